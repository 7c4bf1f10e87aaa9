"""Decode SQL_REDO of LogMiner: rows a second of one core, by the kernel and by its twin.

Estimate for a row of ten columns, 300 bytes as inserts, with an update and a delete of all columns
in five rows: a scan of 300 bytes, 0.2 us; ten values into columns, 0.4 us; a look-up of the row's
text, 0.1 us. Goals: 500,000 rows a second of the kernel into Arrow batches, 10,000 of the twin.
The texts are those of the driver: str, of which the kernel takes the UTF-8 without a copy if it is
ASCII. CPU time of the fastest of several runs, because other work on the machine only adds to it.

`log`: from the driver's rows to closed segments on disk, with transactions of ten rows, and with
one transaction of all rows; both go through side files. Estimate for a row: 1 us for the walk over
its 17 columns and its entry, 1 us for the side file, 1 us to decode, 0.5 us to write it into the
log. For a transaction: 10 us for its two rows, its place in the order and its line in the log. So a
row takes 4.5 us. Goal: 60,000 rows a second on two cores. The benchmark's own work, to make the
rows, is in these figures: `made_us_per_row`. `open`: a restart with a million rows of open
transactions, which the window keeps. Goal: less than a minute. Each is measured in a process of its
own. Memory is what it needs more: see `more_mib`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bench  # noqa: F401 - it makes the tests' modules importable
from bench.oracle_redo import FIRST_SCN, Connection, Redo, define
from harness.twins.oracle_rows import make_relation
from penstock.codec.oracle import sql_redo
from penstock.codec.oracle.redo_outcome import RedoRow
from penstock.engines.oracle.source.source_engine import OracleEngine
from penstock.extract.extractor import Extractor
from penstock.ports.source import ExtractOptions

COLUMNS = {
    "ID": "NUMBER(18)",
    "A": "NUMBER(9)",
    "B": "NUMBER(4)",
    "PRICE": "NUMBER(12,2)",
    "F": "BINARY_DOUBLE",
    "DAY": "DATE",
    "AT": "TIMESTAMP(6)",
    "NAME": "VARCHAR2(40)",
    "CITY": "NVARCHAR2(40)",
    "FLAG": "NUMBER(1)",
}
TWIN_SHARE = 20
POOL = 20_000  # texts that repeat in the redo
RUNS = 7


def make_values(number: int) -> list[str]:
    """Return the literals of a row."""
    return [
        f"'{number}'",
        f"'{number % 1_000_003}'",
        f"'{number % 97}'",
        f"'{number % 100_000}.{number % 90 + 10}'",
        f"'{number % 1000}.25'",
        f"TO_DATE('2026-02-{number % 28 + 1:02} 13:45:59', 'YYYY-MM-DD HH24:MI:SS')",
        f"TO_TIMESTAMP('2026-03-29 01:30:00.{number % 1_000_000:06}000')",
        f"'it''s name {number % 977}'",
        f"UNISTR('city \\00E9 {number % 97}')",
        f"'{number % 2}'",
    ]


def make_rows(count: int) -> list[RedoRow]:
    """Return rows: of five, three are inserts, one an update and one a delete."""
    names = [f'"{name}"' for name in COLUMNS]
    rows = []
    for number in range(count):
        values = make_values(number)
        where = " and ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        if number % 5 < 3:
            text = f'insert into "SHOP"."T"({",".join(names)}) values ({",".join(values)})'
        elif number % 5 == 3:
            text = f'update "SHOP"."T" set "A" = \'7\', "NAME" = \'new\' where {where}'
        else:
            text = f'delete from "SHOP"."T" where {where}'
        rows.append(RedoRow(1, text, number, "0A00070084220000", " 0x0001a4.00002f13.0010 "))
    return rows


def measure(kind: Any, rows: Sequence[RedoRow], runs: int) -> dict[str, float]:
    """Return rows and bytes a second of CPU, of the fastest run."""
    best_s = float("inf")
    for _ in range(runs):
        decoder = kind()
        decoder.bind(1, make_relation(COLUMNS))
        began = time.process_time()
        done = decoder.decode(rows, 1)
        batches = decoder.take()
        best_s = min(best_s, time.process_time() - began)
        assert done == len(rows) == sum(one.batch.num_rows for one in batches)
    size = sum(len(row.text.encode()) for row in rows)
    return {
        "rows": len(rows),
        "bytes_per_row": size / len(rows),
        "rows_per_s": len(rows) / best_s,
        "bytes_per_s": size / best_s,
    }


OPTIONS = ExtractOptions(
    exit_when_idle=True, idle_wait_s=0.0, apply_interval_s=None, operation_count_max=1_000_000
)


def read_peak_kib() -> int:
    """Return the most memory that this process had; getrusage counts that of its parent, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith("VmHWM:"))


def measure_making(redo: Redo) -> float:
    """Return the seconds of CPU that it takes to make all rows of the driver once."""
    used = time.process_time()
    for _ in redo.rows():
        pass
    return time.process_time() - used


def measure_log(count: int, size: int, *, is_committed: bool = True) -> dict[str, float]:
    """Return rows a second and the process's memory, from the driver's rows to closed segments.

    size: rows of a transaction. is_committed: or the transactions stay open.
    """
    redo = Redo([one.text for one in make_rows(POOL)], count, size, is_committed=is_committed)
    before = read_peak_kib()
    with tempfile.TemporaryDirectory() as folder:
        engine = OracleEngine(
            lambda: Connection(redo, COLUMNS),  # type: ignore[arg-type, return-value]
            lambda: Connection(redo, COLUMNS),  # type: ignore[arg-type, return-value]
            tables=lambda: [define(COLUMNS)],
            selects=lambda _: False,
            options=OPTIONS,
            start_scn=str(FIRST_SCN - 100),
        )
        began, used = time.monotonic(), time.process_time()
        outcome = Extractor(engine, Path(folder), options=OPTIONS).run()
        wall_s, cpu_s = time.monotonic() - began, time.process_time() - used
        engine.close()
    assert outcome.end.gsn >= (count if is_committed else 0)
    after = read_peak_kib()
    return {
        "rows": count,
        "rows_of_a_transaction": size,
        "rows_per_s": count / wall_s,
        "cpu_us_per_row": cpu_s / count * 1e6,
        "made_us_per_row": measure_making(redo) / count * 1e6,
        "seconds": wall_s,
        "more_mib": (after - before) / 1024,
    }


def main() -> None:
    """Print each figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--redo-rows", type=int, default=400_000)
    parser.add_argument("--transaction-rows", type=int, default=1_000_000)
    parser.add_argument("--open-rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count, runs = (20_000, 2) if options.quick else (options.rows, options.runs)
    rows = make_rows(count)
    twin = measure(sql_redo.Decoder, rows[: count // TWIN_SHARE], runs)
    print(json.dumps({"what": "twin", **twin}), flush=True)
    if sql_redo.COMPILED:
        from penstock.codec.oracle import _sql_redo

        kernel = measure(_sql_redo.Decoder, rows, runs)
        print(json.dumps({"what": "kernel", **kernel}), flush=True)
    most = count if options.quick else sys.maxsize
    for kind, number, size, is_committed in (
        ("log", options.transaction_rows, sys.maxsize, True),
        ("log", options.redo_rows, 10, True),
        ("open", options.open_rows, 10, False),
    ):
        number = min(number, most)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            work = pool.submit(measure_log, number, min(size, number), is_committed=is_committed)
            found = work.result()
        print(json.dumps({"what": kind, **found}), flush=True)


if __name__ == "__main__":
    main()
