"""Extraction to fdatasync from MariaDB and MySQL, against what else reads their binlog.

Estimate: W is about 190 bytes of binlog a row in transactions of 50 rows; the server's dump thread
reads and sends it at some 300 MB/s, the kernel decodes at 0.4 to 0.6 us a row, lz4 and writing take
0.4 us: 1 M rows/s on a core of our own. W1 has a transaction of four events around each row: the
server sends one packet per event, and each transaction costs the kernel 1 us more: 250 k rows/s.
Ours ends when the last change is in a closed, fdatasync'ed segment. Beside it: `mariadb-binlog
--raw`, which copies the file and decodes nothing, `-vv` to /dev/null, which prints all rows, and
mysql-replication (python), where `--reader-python` names an interpreter that has it; these can not
all read MySQL's binlog, and none of them keeps anything durable.
The two lines of orientation are other people's programs on another day of this machine, as the
issue tells them; they were not measured here.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.bench_bulk_mysql import client
from bench.harness import (
    ROUND_COUNT,
    Comparison,
    Contender,
    Measurement,
    TreeSampler,
    run_process,
)
from bench.workload_mysql import DATABASE, Made, MySQLWorkload
from penstock.host.mysql.server import EmbeddedMariaDB, EmbeddedMySQL
from penstock.model import BinlogPosition

Server = EmbeddedMariaDB | EmbeddedMySQL
KINDS = {"mariadb": EmbeddedMariaDB, "mysql": EmbeddedMySQL}
SETTINGS = {
    "mariadb": {"gtid_strict_mode": "ON"},
    "mysql": {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"},
}
ORIENTATION = {
    "w": {"go-mysql, decoding alone": 322_000, "Debezium embedded": 33_000},
    "w1": {"go-mysql, decoding alone": 104_000, "Debezium embedded": 13_000},
}
READER_ROWS = 50_000  # of a contender that would take minutes for all


def extract_once(url: str, directory: str, begin: str, row_count: int) -> None:
    """Child process: extract until the log holds all rows; prints what it took as JSON."""
    from penstock.source.extract import ExtractOptions, Extractor
    from penstock.source.mysql.beginning import find_beginning
    from penstock.source.mysql.engine import MySQLEngine

    beginning = find_beginning(url, [f"{DATABASE}.w"], at=BinlogPosition.parse(begin))
    options = ExtractOptions()
    extractor: Extractor

    def reached() -> bool:
        return extractor.progress.row_count >= row_count

    engine = MySQLEngine(
        url, tables=beginning.tables, options=options, beginning=beginning, task=directory
    )
    extractor = Extractor(engine, Path(directory), options=options, stop=reached)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()
    extractor.run()
    elapsed_s = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "elapsed_s": elapsed_s,
                "cpu_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
                "wakeups": used.ru_nvcsw - before.ru_nvcsw,
                "rows": extractor.progress.row_count,
            }
        )
    )


def penstock(url: str, made: Made) -> Measurement:
    """Run the extractor in a process of its own; its start and imports do not count."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        told, peak_bytes = measured_child(
            [
                *(sys.executable, "-m", "bench.bench_extraction_mysql", "--child"),
                *(url, directory, str(made.begin), str(made.row_count)),
            ]
        )
    if told["rows"] != made.row_count:
        raise RuntimeError(f"extracted {told['rows']} rows, expected {made.row_count}")
    return Measurement(
        elapsed_s=told["elapsed_s"],
        cpu_s=told["cpu_s"],
        peak_bytes=peak_bytes,
        extra={"wakeups": told["wakeups"]},
    )


def measured_child(arguments: list[str]) -> tuple[dict[str, float], int]:
    """What a process printed last, as JSON, and the most memory that it had."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    with TreeSampler(process.pid) as sampler:
        output, _ = process.communicate()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    told: dict[str, float] = json.loads(output.splitlines()[-1])
    return told, sampler.peak_bytes


def mariadb_binlog(url: str, made: Made, *, raw: bool) -> Measurement:
    """The server's own tool as a reader over the network: copying files, or printing rows."""
    reading = [*client("mariadb-binlog", url), "--read-from-remote-server", "--to-last-log"]
    if not raw:
        return run_process([*reading, "--base64-output=DECODE-ROWS", "-vv", made.begin.file])
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        return run_process([*reading, "--raw", f"--result-file={directory}/", made.begin.file])


def mysql_replication(python: str, url: str, made: Made, count: int) -> Measurement:
    """mysql-replication as a reader of the first rows, in an interpreter that has it."""
    program = str(Path(__file__).with_name("read_with_mysql_replication.py"))
    parts = urlsplit(url)
    place = [str(parts.port), str(parts.username), str(parts.password)]
    told, peak_bytes = measured_child(
        [python, program, *place, made.begin.file, str(made.begin.offset), str(count)]
    )
    return Measurement(elapsed_s=told["elapsed_s"], cpu_s=told["cpu_s"], peak_bytes=peak_bytes)


def contenders(server: Server, made: Made, reader_python: str) -> list[Contender]:
    """Those that can read this server's binlog."""
    url = server.url(DATABASE)
    count = made.row_count
    found = []
    if isinstance(server, EmbeddedMariaDB):
        for name, raw in (("mariadb-binlog -vv", False), ("mariadb-binlog --raw", True)):
            found.append(
                Contender(
                    name=name,
                    run=lambda raw=raw: mariadb_binlog(url, made, raw=raw),  # type: ignore[misc]
                    unit_count=count,
                )
            )
    ours = Contender(name="penstock", run=lambda: penstock(url, made), unit_count=count)
    if reader_python:
        few = min(READER_ROWS, count)
        reader = Contender(
            name="mysql-replication",
            run=lambda: mysql_replication(reader_python, url, made, few),
            unit_count=few,
        )
        found.append(reader)
    return [*found, ours]


def compare(kind: str, name: str, workload: MySQLWorkload, flags: argparse.Namespace) -> None:
    """Make the binlog once, then let all sides read it in turn."""
    with KINDS[kind](settings={**SETTINGS[kind], "innodb_buffer_pool_size": "1G"}) as server:
        workload.create(server.url())
        made = workload.change(server.url())
        comparison = Comparison(
            bench=f"extraction_{kind}_{name}",
            contenders=contenders(server, made, flags.reader_python),
        ).run(flags.rounds)
        comparison.print_table()
        ours = made.row_count / comparison.best_s("penstock")
        for whose, rate in ORIENTATION[name].items():
            print(
                json.dumps(
                    {
                        "bench": comparison.bench,
                        "orientation": whose,
                        "published_rows_per_s": rate,
                        "measured_here": False,
                        "ours_to_it": round(ours / rate, 2),
                    }
                ),
                flush=True,
            )


def main() -> None:
    """W and W1, of both servers or one."""
    if sys.argv[1:2] == ["--child"]:
        url, directory, begin, row_count = sys.argv[2:6]
        extract_once(url, directory, begin, int(row_count))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUND_COUNT)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--single-changes", type=int, default=300_000)
    parser.add_argument("--server", choices=sorted(KINDS), action="append")
    parser.add_argument("--reader-python", default="", help="has mysql-replication installed")
    flags = parser.parse_args()
    for kind in flags.server or sorted(KINDS):
        compare(kind, "w", MySQLWorkload(change_count=flags.changes), flags)
        single = MySQLWorkload(change_count=flags.single_changes, rows_per_transaction=1)
        compare(kind, "w1", single, flags)


if __name__ == "__main__":
    main()
