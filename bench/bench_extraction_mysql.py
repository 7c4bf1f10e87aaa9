"""Extraction to fdatasync from MariaDB and MySQL, against other readers of their binlog.

Estimate: W is about 190 bytes of binlog a row in transactions of 50 rows; the server's dump thread
reads and sends it at some 300 MB/s, the kernel decodes at 0.4 to 0.6 us a row, lz4 and writing take
0.4 us: 1 M rows/s on a core of our own. W1 has a transaction of four events around each row: the
server sends one packet per event, and each transaction costs the kernel 1 us more: 250 k rows/s.
Ours ends when the last change is in a closed, fdatasync'ed segment. Beside it: `mariadb-binlog
--raw`, which copies the file and decodes nothing, `-vv` to /dev/null, which prints all rows, and
mysql-replication (python), where `--reader-python` names an interpreter that has it. None of them
writes anything durably. A missing one is printed as absent.
The lines of orientation are other people's programs on another day of this machine; they were not
measured here.
Small, as a trial run: `--rounds 1 --rows 220000 --changes 50000 --single-changes 5000`; the changes
delete from row 200,001 on, eight rows in fifty.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
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
from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.connect import Flavour

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
OURS = "penstock"
READER_ROWS = 50_000  # of a contender that would take minutes for all


def extract_once(url: str, directory: str, begin: str, row_count: int) -> None:
    """Extract until the log holds all rows; print the cost as JSON: the child process."""
    from penstock.engines.mysql.source.beginning import find_beginning
    from penstock.engines.mysql.source.source_engine import MySQLEngine
    from penstock.extract.extractor import ExtractOptions, Extractor

    beginning = find_beginning(url, [f"{DATABASE}.w"], at=BinlogPosition.parse(begin))
    options = ExtractOptions()
    extractor: Extractor

    def has_reached() -> bool:
        return extractor.progress.row_count >= row_count

    engine = MySQLEngine(
        url, tables=beginning.tables, options=options, beginning=beginning, task=directory
    )
    extractor = Extractor(engine, Path(directory), options=options, stop=has_reached)
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
    """Return the last JSON that a process printed, and its peak memory."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    with TreeSampler(process.pid) as sampler:
        output, _ = process.communicate()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    told: dict[str, float] = json.loads(output.splitlines()[-1])
    return told, sampler.peak_bytes


def mariadb_binlog(url: str, made: Made, *, raw: bool) -> Measurement:
    """Run the server's own tool as a network reader: it copies files, or prints rows."""
    reading = client("mariadb-binlog", url, "--read-from-remote-server", "--to-last-log")
    if not raw:
        return run_process([*reading, "--base64-output=DECODE-ROWS", "-vv", made.begin.file])
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        return run_process([*reading, "--raw", f"--result-file={directory}/", made.begin.file])


def mysql_replication(python: str, url: str, made: Made, count: int) -> Measurement:
    """Run mysql-replication as a reader of the first rows, in an interpreter that has it."""
    program = str(Path(__file__).with_name("read_with_mysql_replication.py"))
    parts = urlsplit(url)
    place = [str(parts.port), str(parts.username), str(parts.password)]
    told, peak_bytes = measured_child(
        [python, program, *place, made.begin.file, str(made.begin.offset), str(count)]
    )
    return Measurement(elapsed_s=told["elapsed_s"], cpu_s=told["cpu_s"], peak_bytes=peak_bytes)


def contenders(server: Server, made: Made, flags: argparse.Namespace) -> list[Contender]:
    """Return the installed contenders, in the order of the table; print the missing ones."""
    url = server.url(DATABASE)
    count, few = made.row_count, min(READER_ROWS, made.row_count)
    found: list[Contender] = []

    def add(
        name: str, run: Callable[[], Measurement], absent: str = "", unit_count: int = count
    ) -> None:
        if absent:
            print(json.dumps({"server": str(server.flavour), "absent": name, "why": absent}))
        else:
            found.append(Contender(name=name, run=run, unit_count=unit_count))

    tool = "" if shutil.which("mariadb-binlog") else "it is not installed"
    if server.flavour is not Flavour.MARIADB:
        tool = "it cannot read MySQL's binlog"
    add("mariadb-binlog -vv", lambda: mariadb_binlog(url, made, raw=False), tool)
    add("mariadb-binlog --raw", lambda: mariadb_binlog(url, made, raw=True), tool)
    python = flags.reader_python
    add(
        "mysql-replication",
        lambda: mysql_replication(python, url, made, few),
        "" if python else "no --reader-python",
        few,
    )
    add(OURS, lambda: penstock(url, made))
    return found


def compare(kind: str, name: str, workload: MySQLWorkload, flags: argparse.Namespace) -> None:
    """Write the binlog once, then let all sides read it in turn."""
    with KINDS[kind](settings={**SETTINGS[kind], "innodb_buffer_pool_size": "1G"}) as server:
        workload.create(server.url())
        made = workload.change(server.url())
        sides = contenders(server, made, flags)
        comparison = Comparison(bench=f"extraction_{kind}_{name}", contenders=sides)
        comparison.run(flags.rounds).print_table()
        best = {side.name: side.unit_count / comparison.best_s(side.name) for side in sides}
        for measured, rates in ((True, best), (False, ORIENTATION[name])):
            ours = {whose: round(best[OURS] / rate, 2) for whose, rate in rates.items()}
            told = {"bench": comparison.bench, "measured_here": measured, "ours_to": ours}
            print(json.dumps(told), flush=True)


def main() -> None:
    """Compare W and W1, of both servers or one."""
    if sys.argv[1:2] == ["--child"]:
        url, directory, begin, row_count = sys.argv[2:6]
        extract_once(url, directory, begin, int(row_count))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUND_COUNT)
    parser.add_argument("--rows", type=int, default=500_000, help="rows before the changes")
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--single-changes", type=int, default=300_000)
    parser.add_argument("--server", choices=sorted(KINDS), action="append")
    parser.add_argument("--reader-python", default="", help="has mysql-replication installed")
    flags = parser.parse_args()
    for kind in flags.server or sorted(KINDS):
        base = MySQLWorkload(base_row_count=flags.rows, change_count=flags.changes)
        compare(kind, "w", base, flags)
        single = replace(base, change_count=flags.single_changes, rows_per_transaction=1)
        compare(kind, "w1", single, flags)


if __name__ == "__main__":
    main()
