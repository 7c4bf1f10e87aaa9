"""Read change tables of SQL Server into a log: CPU for each row, merge of 8 instances, idle polls.

Estimate for a row of ten columns and its head, with one update (two rows of the change table) in
four changes: the driver makes Arrow of TDS, 1.3 us; head and pairs in numpy, 0.2 us; columns of
neutral types, 0.3 us; order, row numbers and slices, 0.2 us, of 8 instances as of one; the log
encodes with lz4 and writes, 0.4 us. Goals: 6 us of client CPU for each row from the driver to
closed segments, 300,000 rows a second for the merge of 8 instances, 3 statements for an idle poll.
Limit: the server. Here it is the simulator of the tests, in a process of its own: its speed says
nothing about SQL Server's, so of the driver only our CPU counts. The merge reads prepared batches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import bench  # noqa: F401 - it makes the tests' modules importable
from harness.servers.change_tables import HEAD_TYPES, ChangeServer, arrow_type, lsn
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.extraction import open_session
from penstock.engines.sqlserver.reading.catalog import captured_tables
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.engines.sqlserver.source.instances import Book, instances_of
from penstock.engines.sqlserver.source.reader import ROWS_AT_ONCE, ChangeReader, Session
from penstock.engines.sqlserver.source.shapes import Shapes
from penstock.engines.sqlserver.source.stream import ChangeStream
from penstock.log import Writer, WriterOptions
from penstock.model import FlushPoint, TableDefinition
from plugins.sqlserver import SimServer, running_alone

INSTANCES = 8
COLUMNS = [
    ("id", "bigint"),
    ("a", "int"),
    ("b", "smallint"),
    ("price", "decimal(12,2)"),
    ("f", "float"),
    ("day", "date"),
    ("at", "datetime2(6)"),
    ("name", "nvarchar(40)"),
    ("city", "nvarchar(40)"),
    ("flag", "bit"),
]
FIRST = 0x00000027000007000001
ROWS_OF_TRANSACTION = 200
CAPTURE_WAIT_S = 600.0


def make_batches(table: int, rows: int) -> list[pa.RecordBatch]:
    """Return so many rows of a change table: three inserts, then an update, over and over."""
    random = np.random.default_rng(table)
    number = np.arange(rows)
    place = number % 5
    operations = np.where(place < 3, 2, np.where(place == 3, 3, 4)).astype(np.int32)
    change = number // 5 * 4 + np.minimum(place, 3)
    transaction = change // (ROWS_OF_TRANSACTION // INSTANCES)
    change_texts = [lsn(int(one) * INSTANCES + table + 1) for one in change]
    head = [
        pa.array([lsn(FIRST + (int(one) + 1 << 16)) for one in transaction], pa.large_binary()),
        pa.array((change % 1000 + 1).astype(np.int32)),
        pa.array(change_texts, pa.large_binary()),
        pa.array(operations),
        pa.array([b"\x03\xff"] * rows, pa.large_binary()),
    ]
    cents = pa.array(random.integers(0, 10**6, rows)).cast(pa.decimal128(19, 0))
    values = [
        pa.array(change),
        pa.array(random.integers(0, 10**6, rows).astype(np.int32)),
        pa.array(random.integers(0, 100, rows).astype(np.int16)),
        cents.cast(pa.decimal128(12, 2)),
        pa.array(random.random(rows)),
        pa.array(random.integers(0, 20_000, rows).astype(np.int32)).cast(pa.date32()),
        pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
        pa.array([f"name {at % 977}" for at in range(rows)], pa.large_string()),
        pa.array([f"city {at % 97}" for at in range(rows)], pa.large_string()),
        pa.array(random.integers(0, 2, rows) == 1),
    ]
    names = [name for name, _ in (*HEAD_TYPES, *COLUMNS)]
    whole = pa.RecordBatch.from_arrays([*head, *values], names=names)
    kinds = [arrow_type(one.kind) for one in ChangeServer().add_table("x", COLUMNS).columns]
    assert whole.schema.types[len(head) :] == kinds
    return [whole.slice(at, ROWS_AT_ONCE) for at in range(0, rows, ROWS_AT_ONCE)]


class PreparedSession:
    """Session of a server in memory whose change tables are prepared batches."""

    def __init__(self, server: ChangeServer, batches: dict[str, list[pa.RecordBatch]]) -> None:
        self._session = server.open()
        self._batches = batches

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement."""
        found: list[tuple[Any, ...]] = self._session.execute(sql, *parameters)
        return found

    def arrow(self, sql: str, *_: Any, rows: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a change table."""
        del rows
        name = sql.partition("FROM [cdc].[")[2].partition("_CT]")[0]
        yield from self._batches[name]

    def close(self) -> None:
        """End the session."""
        self._session.close()


def merge(rows: int) -> dict[str, float]:
    """Merge prepared batches of 8 instances into runs of the log; nothing is written."""
    server = ChangeServer()
    batches = {}
    for at in range(INSTANCES):
        table = server.add_table(f"t{at}", COLUMNS)
        instance = server.capture(table, start=FIRST)
        batches[instance.name] = make_batches(at, rows // INSTANCES)
    count = rows // INSTANCES // 5 * 4 // (ROWS_OF_TRANSACTION // INSTANCES) + 2
    for at in range(count):
        server.commit(FIRST + (at + 1 << 16))
    reader = make_reader(
        lambda: PreparedSession(server, batches), server.definitions(), FIRST, count=count + 1
    )
    stream = ChangeStream(reader, start=FlushPoint(position=FIRST), caught_up=CaughtUp())
    began, cpu = time.perf_counter(), time.process_time()
    found = 0
    while (run := stream.next_run(0)) is not None:
        found += sum(one.batch.num_rows for one in run.rows)
    elapsed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    reader.close()
    total = sum(batch.num_rows for some in batches.values() for batch in some)
    assert found == sum(
        int((np.asarray(batch.column(3)) != 3).sum()) for some in batches.values() for batch in some
    )
    return {
        "rows": total,
        "changes": found,
        "rows_per_s": total / elapsed_s,
        "cpu_us_per_row": cpu_s * 1e6 / total,
    }


def make_reader(
    opens: Any, definitions: list[TableDefinition], begin: int, *, count: int
) -> ChangeReader:
    """Return a reader of all tables."""
    book = Book(lambda _: True)
    session: Session = opens()
    book.check(instances_of(session.execute(statements.INSTANCES)), begin, exists=lambda _: True)
    session.close()
    return ChangeReader(opens, book, Shapes(lambda: definitions), count=count)


def extract(server: SimServer, rows: int, folder: Path) -> dict[str, float]:
    """Read one change table of the simulator into closed segments."""
    url = server.url(server.make_database("bench"))
    with connect(url) as connection:
        connection.run("EXEC sys.sp_cdc_enable_db")
        made = ", ".join(f"[{name}] {kind}" for name, kind in COLUMNS[1:])
        connection.run(f"CREATE TABLE dbo.t (id bigint NOT NULL PRIMARY KEY, {made})")
        connection.run(
            "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', "
            "@role_name = NULL, @supports_net_changes = 0"
        )
        begin = begin_of(connection)
        fill(connection, rows)
        definitions = captured_tables(connection, ["dbo.t"])
    reader = make_reader(lambda: open_session(url), definitions, begin, count=5000)
    stream = ChangeStream(reader, start=FlushPoint(position=begin), caught_up=CaughtUp())
    writer = Writer.open(
        folder, log_id=None, source={"engine": "sqlserver"}, options=WriterOptions()
    )
    with writer:
        began, cpu = time.perf_counter(), time.process_time()
        found = 0
        while found < rows:
            run = stream.next_run(1.0)
            if run is None:
                continue
            found += sum(one.batch.num_rows for one in run.rows)
            writer.write(run)
            if writer.at_commit:
                writer.flush()
                if writer.due():
                    writer.rotate()
        writer.rotate()
        cpu_s, elapsed_s = time.process_time() - cpu, time.perf_counter() - began
    statement_count = count_idle(stream, reader)
    reader.close()
    return {
        "rows": found,
        "cpu_us_per_row": cpu_s * 1e6 / found,
        "rows_per_cpu_s": found / cpu_s,
        "seconds_with_simulator": elapsed_s,
        "statements_per_idle_poll": statement_count,
    }


def begin_of(connection: Any) -> int:
    """Return the start of the newest instance, where nothing was changed yet."""
    return max(one.start for one in instances_of(connection.execute(statements.INSTANCES)))


def fill(connection: Any, rows: int) -> None:
    """Insert rows, and wait until they are captured."""
    for first in range(0, rows, 500):
        some = ", ".join(
            f"({at}, {at % 1000}, {at % 100}, {at % 10_000}.25, {at}.5, '2026-03-04', "
            f"'2026-03-04T05:06:07.123456', N'name {at % 977}', N'city {at % 97}', {at % 2})"
            for at in range(first, min(first + 500, rows))
        )
        connection.run(f"INSERT INTO dbo.t VALUES {some}")
    until_s = time.monotonic() + CAPTURE_WAIT_S
    while connection.execute("SELECT COUNT(*) FROM cdc.[dbo_t_CT]")[0][0] < rows:
        assert time.monotonic() < until_s
        time.sleep(0.5)


def count_idle(stream: ChangeStream, reader: ChangeReader) -> int:
    """Return the number of statements of a poll that finds nothing."""
    while stream.next_run(0) is not None:
        pass
    count = 0
    session = reader.session
    execute = session.execute

    def counting(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        nonlocal count
        count += 1
        return execute(sql, *parameters)

    session.execute = counting  # type: ignore[method-assign]
    stream.next_run(0)
    return count


def main() -> None:
    """Print each figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, rounds = (80_000, 1) if options.quick else (options.rows, options.rounds)
    for number in range(rounds):
        print(json.dumps({"what": "merge of 8", "round": number, **merge(rows)}), flush=True)
    with running_alone("--database", "shop") as server:
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                found = extract(server, rows // 10, Path(folder) / "log")
            print(json.dumps({"what": "extract", "round": number, **found}), flush=True)


if __name__ == "__main__":
    main()
