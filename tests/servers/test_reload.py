"""A table that is read again into the stream while it is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from harness.pipelines.extract import until
from harness.pipelines.writer import Writer
from harness.servers.peek import Capture, capturing
from harness.twins.pgoutput import positions_of, xlog
from penstock.codec.postgres.pgoutput import Decoder, Stop, make_decoder
from penstock.codec.postgres.pgoutput_messages import relation_message
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source import reload
from penstock.engines.postgres.source.catalog import RelationResolver, captured_tables, open_catalog
from penstock.engines.postgres.source.reload import TableVanished, open_reload
from penstock.engines.postgres.source.snapshot import (
    TableRewritten,
    check_not_rewritten,
    open_snapshot,
)
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, Run, TableName

T = TableName("public", "t")


@dataclass
class Reader:
    """A small assembler of a stream: it feeds a decoder, collects runs, applies them to a dict."""

    resolver: RelationResolver
    decoder: Decoder = field(default_factory=make_decoder)
    bound: dict[int, Relation] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    table: dict[Any, tuple[str | None, ...]] = field(default_factory=dict)

    def bind(self, source_id: int, relation: Relation) -> None:
        self.bound[source_id] = relation
        self.decoder.bind(source_id, relation)

    def widen(self) -> None:
        source_id, column = self.decoder.widen
        self.bind(source_id, self.resolver.widen(self.bound[source_id], column))

    def mark(
        self, kind: MarkerKind, *, tables: tuple[tuple[str, str], ...], data: dict[str, Any]
    ) -> None:
        gsn, trx = self.decoder.note_marker()
        self.markers.append(
            Marker(
                kind=kind,
                gsn=gsn,
                trx=trx,
                position=self.decoder.commit_position,
                commit_time_us=self.decoder.commit_time_us,
                tables=tables,
                data=data,
            )
        )

    def introduce(self, relation: Relation) -> None:
        """Introduce the rows' relation directly."""

    def cut(self) -> None:
        end = None
        if not self.decoder.in_transaction:
            end = FlushPoint(position=self.decoder.end_position)
        run = Run(rows=tuple(self.decoder.take()), markers=tuple(self.markers), end=end)
        self.markers = []
        self.runs.append(run)
        self._apply(run)

    def _apply(self, run: Run) -> None:
        rows = [(row["gsn"], row) for part in run.rows for row in part.batch.to_pylist()]
        for marker in run.markers:
            rows.append((marker.gsn + 0.5, None))
        for _, row in sorted(rows, key=lambda pair: pair[0]):
            if row is None:
                self.table.clear()
                continue
            if row["before"] is not None:
                self.table.pop(row["before"]["id"], None)
            if row["after"] is not None:
                self.table[row["after"]["id"]] = tuple(row["after"].values())

    def stream(self, messages: list[bytes]) -> None:
        for message in messages:
            if message[:1] == b"R":
                relation = self.resolver.resolve(relation_message(message[1:]))
                assert relation is not None
                self.bind(relation.source_id, relation)
                continue
            frame = xlog(message)
            at = 0
            while at < len(frame):
                at = self.decoder.feed(frame, at, len(frame), 10_000)
                if self.decoder.stop is Stop.WIDEN:
                    self.widen()
                elif self.decoder.stop is Stop.LIMIT:
                    self.cut()
        self.cut()


def _split(messages: list[bytes], position: int) -> tuple[list[bytes], list[bytes]]:
    """Return the messages that commit before position, and the rest."""
    for index, message in enumerate(messages):
        if message[:1] == b"B" and int.from_bytes(message[1:9]) >= position:
            return messages[:index], messages[index:]
    return messages, []


def _contents(connection: psycopg.Connection, columns: str = "*") -> dict[Any, tuple[Any, ...]]:
    rows = connection.execute(f"select {columns} from public.t").fetchall()
    return {row[0]: tuple(row) for row in rows}


@pytest.fixture
def catalog(source_url: str) -> Iterator[psycopg.Connection]:
    """A catalogue connection to a fresh database."""
    with open_catalog(source_url) as connection:
        yield connection


def _reader(url: str, catalog: psycopg.Connection) -> Reader:
    return Reader(RelationResolver(open_catalog(url), captured_tables(catalog, ["public.t"])))


@pytest.fixture
def capture(source_url: str) -> Iterator[Capture]:
    """A publication of all tables, and a slot."""
    with capturing(source_url) as capture:
        yield capture


def test_a_reload_is_the_table_at_its_position(
    source_url: str, catalog: psycopg.Connection, capture: Capture
) -> None:
    """Stream before, content at X and later stream add up, whatever is written meanwhile."""
    catalog.execute("create table public.t (id int primary key, n int, pad text)")
    catalog.execute(
        "insert into public.t select i, 0, repeat('p', i % 50) from generate_series(1, 3000) i"
    )
    moving = (
        "update public.t set n = n + 1 where id % 5 = 0",
        "delete from public.t where id > 3000",
        "insert into public.t select i, -1, null from generate_series(3001, 3100) as i",
        "update public.t set id = -id where id % 100 = 0 and id between -3000 and 3000",
    )
    reader = _reader(source_url, catalog)
    with reader.resolver.connection, Writer(source_url, *moving) as writer:
        writer.wait_for(3)
        table = captured_tables(catalog, ["public.t"])[0]
        with open_reload(source_url, T, table.source_id) as job:
            writer.wait_for(3)
            writer.stop()
            before, behind = _split(capture.messages(), job.position)
            assert before
            assert behind
            reader.stream(before)
            streamed = dict(reader.table)
            run_count = len(reader.runs)
            count = job.feed(
                reader.decoder,
                reader,
                reader.resolver.reshape(job.definition),
                reason="test",
                row_limit=500,
            )
        assert reader.table == streamed  # nothing was lost: all of the same rows again
        assert count == len(streamed)
        runs = reader.runs[run_count:]
        assert len(runs) >= 6
        assert [run.end is None for run in runs] == [True] * (len(runs) - 1) + [False]
        (marker,) = (marker for run in runs for marker in run.markers)
        assert (marker.kind, marker.tables) == (MarkerKind.RELOAD, (("public", "t"),))
        assert runs[-1].end == FlushPoint(position=job.position)
        numbers = {n for run in runs for part in run.rows for n in part.batch["trx"].to_pylist()}
        assert numbers == {reader.decoder.trx}
        assert positions_of(reader.decoder)[-1] == job.position - 1
        reader.stream(behind)
    assert reader.table == _contents(catalog)


def test_rows_rewritten_in_silence_are_made_good(
    source_url: str, catalog: psycopg.Connection, capture: Capture
) -> None:
    """ALTER TYPE ... USING, another column, a value without neutral type, and partitions are
    covered.
    """
    catalog.execute("create table public.t (id int, v int, at timestamp) partition by list (id)")
    catalog.execute("create table public.one partition of public.t for values in (1, 2)")
    catalog.execute("create table public.two (at timestamp, gone int, v int, id int)")
    catalog.execute("alter table public.two drop gone")
    catalog.execute("alter table public.t attach partition public.two for values in (3)")
    for name in ("t", "one", "two"):  # partitions do not inherit it
        catalog.execute(f"alter table public.{name} replica identity full")
    catalog.execute(
        "insert into public.t values (1, 12, '2020-01-01'), (2, 13, null), (3, 14, null)"
    )
    reader = _reader(source_url, catalog)
    with reader.resolver.connection:
        catalog.execute("alter table public.t alter v type bigint using v * 1000000000000")
        catalog.execute("alter table public.t add x text default 'tab\\tand \\\\'")
        catalog.execute("update public.t set at = 'infinity' where id = 3")
        definition = captured_tables(catalog, ["public.t"])[0]
        with open_reload(source_url, T, definition.source_id) as job:
            # Only the root's messages are bound: those of leaves have no rows.
            messages = [m for m in capture.messages() if m[:1] in b"BC"]
            reader.stream(messages)
            relation = reader.resolver.reshape(job.definition)
            assert job.feed(reader.decoder, reader, relation, reason="x", row_limit=100) == 3
    texts = _contents(catalog, "id, v, at::text, x")
    assert {key: (r[0], r[1], r[3]) for key, r in reader.table.items()} == {
        key: (r[0], r[1], r[3]) for key, r in texts.items()
    }
    assert texts[1][1] == 12_000_000_000_000
    assert reader.table[3][2] == "infinity"
    assert relation.columns[2].neutral == "timestamp"
    last = reader.resolver.current(definition.source_id)
    assert last is not None
    assert (last.version, last.columns[2].neutral) == (relation.version + 1, "string")


def test_an_empty_table_is_a_marker_alone(
    source_url: str, catalog: psycopg.Connection, capture: Capture
) -> None:
    """The log's readers lose the table's rows, too."""
    catalog.execute("create table public.t (id int primary key)")
    reader = _reader(source_url, catalog)
    reader.table[1] = (1,)
    with reader.resolver.connection:
        definition = captured_tables(catalog, ["public.t"])[0]
        with open_reload(source_url, T, definition.source_id) as job:
            relation = reader.resolver.reshape(job.definition)
            assert job.feed(reader.decoder, reader, relation, reason="x", row_limit=9) == 0
            reader.decoder.begin(1, 1, 1)
            with pytest.raises(ValueError, match="between transactions"):
                job.feed(reader.decoder, reader, relation, reason="x", row_limit=9)
    assert reader.table == {}
    assert len(reader.runs) == 1


def test_a_table_that_is_gone_cannot_be_read(source_url: str) -> None:
    """The watch will report that it was dropped."""
    with pytest.raises(TableVanished, match=r"public\.t"):
        open_reload(source_url, T, 4_000_000)


@pytest.mark.parametrize(
    "change",
    [
        "alter table public.t add x int default 3",
        "alter table public.t drop n",
        "alter table public.t rename to u",
        "alter table public.t alter n type bigint",
        "truncate public.t",
        "drop table public.t",
    ],
)
def test_a_change_between_snapshot_and_lock_needs_a_later_point(
    source_url: str, catalog: psycopg.Connection, change: str
) -> None:
    """The rows of the snapshot would be read in a shape that the stream does not have there."""
    catalog.execute("create table public.t (id int primary key, n int)")
    catalog.execute("insert into public.t values (1, 1)")
    source_id = captured_tables(catalog, ["public.t"])[0].source_id
    with connect(source_url, application_name="t", autocommit=False) as exporter:
        exporter.execute("set transaction isolation level repeatable read")
        snapshot = exporter.execute("select pg_export_snapshot()").fetchone()
        assert snapshot is not None
        with open_snapshot(source_url, snapshot[0]) as reader:
            catalog.execute(change)
            with pytest.raises(TableRewritten):
                reload._lock_table(source_url, reader, T, source_id)


def test_a_change_that_waits_for_the_lock_is_let_pass(
    source_url: str, catalog: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition of a table with a generated column is read behind the change, which waits."""
    catalog.execute(
        "create table public.t (id int primary key, g int generated always as (id * 2) stored)"
    )
    source_id = captured_tables(catalog, ["public.t"])[0].source_id
    check = check_not_rewritten
    changes: list[threading.Thread] = []
    refused: list[psycopg.Error] = []

    def alter() -> None:
        with psycopg.connect(source_url, autocommit=True) as other:
            other.execute("set lock_timeout = '20s'")
            try:
                other.execute("alter table public.t add x int")
            except psycopg.Error as error:
                refused.append(error)

    def begin_altering(*given: Any) -> None:
        check(*given)
        if not changes:
            changes.append(threading.Thread(target=alter))
            changes[0].start()
            until(
                lambda: catalog.execute(
                    "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
                    " and query like 'alter table public.t%'"
                ).fetchall()
            )

    monkeypatch.setattr(reload, "check_not_rewritten", begin_altering)
    with open_reload(source_url, T, source_id) as job:
        changes[0].join()
        assert not refused
        assert "x" in [column.name for column in job.definition.columns]


def test_a_held_table_keeps_its_shape(source_url: str, catalog: psycopg.Connection) -> None:
    """Rows may be written, and the slot is already dropped."""
    catalog.execute("create table public.t (id int primary key)")
    source_id = captured_tables(catalog, ["public.t"])[0].source_id
    with open_reload(source_url, T, source_id):
        deadline = time.monotonic() + 10
        while catalog.execute(
            "select 1 from pg_replication_slots where slot_name like 'penstock_tmp%'"
        ).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        catalog.execute("insert into public.t values (1)")
        catalog.execute("set lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            catalog.execute("alter table public.t add x int")
    catalog.execute("alter table public.t add x int")
