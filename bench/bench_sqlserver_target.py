"""Staging into SQL Server: our CPU for each row; MERGE against DELETE, UPDATE and INSERT.

Estimate: the driver reads Arrow's buffers and writes TDS, 2 to 3 us for a row of ten columns; we
add a stamp and check ranges, under 0.1 us. The goal is 5 us of client CPU for each row staged.
Limit: the server. Here it is the simulator of the tests, in a process of its own, over PostgreSQL:
its speed says nothing about SQL Server's, so only our CPU and the number of statements count. The
seconds of the two ways of applying are PostgreSQL's, and are printed for orientation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

import bench  # noqa: F401 - it makes the tests' modules importable
from harness.pipelines.changes import relation
from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.target.catalog import read_target_tables
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.merge import Merge, MergeSql
from penstock.engines.sqlserver.target.merge_writer import load_rows
from penstock.engines.sqlserver.target.progress import open_session, transaction
from penstock.model import TableName
from penstock.ports.target import GONE, NEW, UPSERT, Counts
from plugins.sqlserver import running_alone

BATCH_ROWS = 20_000
TABLE = TableName("dbo", "w")
SHAPE = relation(
    ("id", "bigint", "int64"),
    ("a", "integer", "int32"),
    ("b", "smallint", "int16"),
    ("price", "numeric(12,2)", "decimal(12,2)"),
    ("f", "double precision", "float64"),
    ("day", "date", "date"),
    ("at", "timestamp(6)", "timestamp"),
    ("name", "text", "string"),
    ("city", "text", "string"),
    ("flag", "boolean", "bool"),
    schema="dbo",
    name="w",
)
CREATE = (
    "CREATE TABLE dbo.w (id bigint NOT NULL PRIMARY KEY, a int, b smallint, price decimal(12,2),"
    " f float, day date, at datetime2(6), name nvarchar(max), city nvarchar(max), flag bit)"
)


def make_columns(first: int, rows: int) -> list[pa.Array]:
    """Return so many rows of W, beginning with this id."""
    random = np.random.default_rng(first)
    cents = pa.array(random.integers(0, 10**6, rows))
    return [
        pa.array(np.arange(first, first + rows)),
        pa.array(random.integers(0, 10**6, rows), pa.int32()),
        pa.array(random.integers(0, 100, rows), pa.int16()),
        cents.cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.array(random.random(rows)),
        pa.array(random.integers(0, 20_000, rows), pa.int32()).cast(pa.date32()),
        pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
        pa.array([f"name {number}" for number in range(rows)]),
        pa.array([f"city of {number % 100}" for number in range(rows)]),
        pa.array(random.integers(0, 2, rows).astype(bool)),
    ]


def stage(url: str, connection: Connection, rows: int) -> dict[str, float]:
    """Stage rows; return our CPU in microseconds for each, and the rows a second."""
    layout = MergeLayout(SHAPE, stamp=1)
    connection.run("DROP TABLE IF EXISTS wirekite.w_wkm")
    connection.run(layout.create("w_wkm"))
    given = [make_columns(first, BATCH_ROWS) for first in range(0, rows, BATCH_ROWS)]
    kinds = np.full(BATCH_ROWS, NEW)

    def batches() -> Iterator[pa.RecordBatch]:
        for columns in given:
            yield layout.batch(kinds, columns)

    began, cpu_began = time.perf_counter(), time.process_time()
    sent = load_rows(url, "[wirekite].[w_wkm]", batches(), doing="staging", table=TABLE)
    cpu, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    return {"cpu_us_per_row": cpu / sent * 1e6, "rows_per_s_of_the_simulator": sent / seconds}


def merge_statement(sql: MergeSql) -> str:
    """Return the one statement that would do the work of the three."""
    names = [column.name for column in SHAPE.columns]
    sets = ", ".join(f"{quote(name)} = m.{quote(name)}" for name in sql.changed_columns)
    return (
        f"MERGE INTO {sql.table.sql_name} WITH (UPDLOCK, HOLDLOCK) AS t USING {sql.staging} AS m"
        f" ON t.[id] = m.[id] WHEN MATCHED AND m.[wk$n] < 0 THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {sets}"
        f" WHEN NOT MATCHED AND m.[wk$n] > 0 THEN INSERT ({', '.join(map(quote, names))})"
        f" VALUES ({', '.join(f'm.{quote(name)}' for name in names)});"
    )


def apply(url: str, connection: Connection, rows: int, *, by_merge: bool) -> dict[str, float]:
    """Apply a batch of a tenth each of new and deleted rows, the others updated."""
    stage(url, connection, rows)
    connection.run("DROP TABLE IF EXISTS dbo.w")
    connection.run(CREATE)
    connection.run(
        "INSERT INTO dbo.w (id) SELECT m.id FROM wirekite.w_wkm AS m WHERE m.id % 10 > 0"
    )
    connection.run(f"UPDATE wirekite.w_wkm SET [wk$n] = {UPSERT} WHERE id % 10 > 0")
    connection.run(f"UPDATE wirekite.w_wkm SET [wk$n] = {GONE} WHERE id % 10 = 1")
    table = read_target_tables(connection, [TABLE])[TABLE]
    sql = MergeSql(Merge(relation=SHAPE, table=table, staging="w_wkm", counts=Counts()))
    three = [sql.delete_gone(), sql.update_rows(), sql.insert_missing()]
    statements = [merge_statement(sql)] if by_merge else three
    began, cpu_began = time.perf_counter(), time.process_time()
    with transaction(connection):
        changed = sum(connection.run(statement) for statement in statements)
    cpu, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    assert changed == rows, changed
    return {
        "statements": len(statements),
        "cpu_us_per_batch": cpu * 1e6,
        "seconds_of_postgresql": seconds,
    }


def main() -> None:
    """Print each figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, rounds = (20_000, 1) if options.quick else (options.rows, options.rounds)
    with running_alone("--database", "shop") as server:
        url = server.url("shop")
        with closing(open_session(url)) as connection:
            connection.run("CREATE SCHEMA wirekite")
            for number in range(rounds):
                results = {
                    "stage": stage(url, connection, rows),
                    "apply by DELETE, UPDATE, INSERT": apply(
                        url, connection, BATCH_ROWS, by_merge=False
                    ),
                    "apply by MERGE": apply(url, connection, BATCH_ROWS, by_merge=True),
                }
                for name, figures in results.items():
                    print(json.dumps({"what": name, "round": number, **figures}), flush=True)


if __name__ == "__main__":
    main()
