"""Count rows of a binlog with mysql-replication; run by an interpreter that has it installed.

Arguments: port, user, password, file, offset, number of rows. Prints JSON. Nothing of penstock is
used.
"""

import json
import sys
import time

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent


def main() -> None:
    """Read until so many rows have arrived."""
    port, user, password, file, offset, count = sys.argv[1:7]
    login = {"host": "127.0.0.1", "port": int(port), "user": user, "passwd": password}
    started, before = time.monotonic(), time.process_time()
    stream = BinLogStreamReader(
        connection_settings=login,
        server_id=4711,
        log_file=file,
        log_pos=int(offset),
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    found = 0
    for event in stream:
        found += len(event.rows)
        if found >= int(count):
            break
    told = {
        "elapsed_s": time.monotonic() - started,
        "cpu_s": time.process_time() - before,
        "rows": found,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
