"""Reading tables at one consistent point of a real server."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from harness.pipelines.writer import Writer
from harness.servers.peek import capturing
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.snapshot import (
    SnapshotGone,
    StorageChunk,
    TableRewritten,
    check_not_rewritten,
    copy_sql,
    lock_tables,
    open_snapshot,
    plan_chunks,
    temporary_consistent_point,
)
from penstock.model import TableDefinition


@pytest.fixture
def catalog(source_url: str) -> Iterator[psycopg.Connection]:
    """A catalogue connection to a fresh database."""
    with open_catalog(source_url) as connection:
        yield connection


def _table(connection: psycopg.Connection, name: str) -> TableDefinition:
    return captured_tables(connection, [name])[0]


def _read(connection: psycopg.Connection, chunks: list[StorageChunk], *columns: str) -> list[bytes]:
    lines: list[bytes] = []
    for chunk in chunks:
        with connection.cursor().copy(copy_sql(chunk, columns)) as copy:
            lines.extend(b"".join(copy).splitlines())
    return lines


def test_chunks_hold_every_row_once_while_others_write(
    source_url: str, catalog: psycopg.Connection
) -> None:
    """Rows that move between chunks under one snapshot are neither lost nor read twice."""
    catalog.execute("create table public.t (id int primary key, n int, pad text)")
    catalog.execute(
        "insert into public.t select i, 0, repeat('x', 200) from generate_series(1, 20000) as i"
    )
    moving = (
        "update public.t set n = n + 1 where id % 7 = 0",
        "delete from public.t where id > 20000",
        "insert into public.t select i, -1, '' from generate_series(20001, 21000) as i",
    )
    with Writer(source_url, *moving) as writer, temporary_consistent_point(source_url) as point:
        table = _table(catalog, "public.t")
        with open_snapshot(source_url, point.snapshot_id) as reader:
            expected = [
                f"{row[0]}\t{row[1]}".encode()
                for row in reader.execute("select id, n from public.t").fetchall()
            ]
        chunks = plan_chunks(catalog, table, size_bytes_target=256 * 1024)
        assert len(chunks) > 10
        lines: list[bytes] = []
        rounds = writer.round_count
        for chunk in chunks:  # each chunk on its own connection, as in Spark's tasks
            with open_snapshot(source_url, point.snapshot_id) as reader:
                lines += _read(reader, [pickle.loads(pickle.dumps(chunk))], "id", "n")
        assert writer.round_count > rounds
    assert Counter(lines) == Counter(expected)
    assert len(set(expected)) == len(expected) >= 20000


def test_chunks_are_counted_over_all_partitions(catalog: psycopg.Connection) -> None:
    """Each leaf is cut separately; columns are in the root's order; foreign leaves are whole."""
    for statement in (
        "create table public.root (id int, v text) partition by list (id)",
        "create table public.one partition of public.root for values in (1)",
        "create table public.two (v text, id int)",
        "alter table public.root attach partition public.two for values in (2)",
        "create table public.none partition of public.root for values in (3)",
        "insert into public.root select i % 2 + 1, repeat('y', 300) from generate_series(1, 999) i",
    ):
        catalog.execute(statement)
    chunks = plan_chunks(catalog, _table(catalog, "public.root"), size_bytes_target=50_000)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert {chunk.storage.name for chunk in chunks} == {"one", "two", "none"}
    assert {str(chunk.table) for chunk in chunks} == {"public.root"}
    lines = _read(catalog, chunks, "id", "v")
    assert Counter(line[:1] for line in lines) == {b"1": 499, b"2": 500}
    assert sum(chunk.size_bytes for chunk in chunks) > 999 * 300


def test_values_stored_out_of_line_count(catalog: psycopg.Connection) -> None:
    """A chunk is about as large as requested, TOAST included."""
    catalog.execute("create table public.t (id int primary key, big text)")
    catalog.execute("alter table public.t alter big set storage external")
    catalog.execute(
        "insert into public.t select i, repeat('z', 20000) from generate_series(1, 1500) as i"
    )
    table = _table(catalog, "public.t")
    chunks = plan_chunks(catalog, table, size_bytes_target=4 * 2**20)
    assert table.size_bytes > 30_000_000
    assert len(chunks) >= 7
    assert len(_read(catalog, chunks, "id")) == 1500


def test_an_empty_table_is_one_open_chunk(catalog: psycopg.Connection) -> None:
    """Rows inserted between planning and reading are read, too."""
    catalog.execute('create table public."T t" (id int, "B b" text)')
    (chunk,) = plan_chunks(catalog, _table(catalog, "public.T t"))
    assert (chunk.first_block, chunk.last_block) == (0, None)
    catalog.execute("insert into public.\"T t\" values (1, e'a\\tb')")
    assert _read(catalog, [chunk], "B b", "id") == [b"a\\tb\t1"]
    assert copy_sql(chunk, ["id"], binary=True).endswith(
        'only "public"."T t") to stdout (format binary)'
    )
    catalog.execute("create table public.nothing (id int) partition by list (id)")
    assert plan_chunks(catalog, _table(catalog, "public.nothing")) == []
    with pytest.raises(ValueError, match="chunk size"):
        plan_chunks(catalog, _table(catalog, "public.T t"), size_bytes_target=0)


def test_inheritance_children_are_tables_of_their_own(catalog: psycopg.Connection) -> None:
    """A parent's chunk has only the parent's rows."""
    for statement in (
        "create table public.parent (id int)",
        "create table public.child () inherits (public.parent)",
        "insert into public.parent values (1)",
        "insert into public.child values (2)",
    ):
        catalog.execute(statement)
    for name, expected in (("parent", [b"1"]), ("child", [b"2"])):
        chunks = plan_chunks(catalog, _table(catalog, f"public.{name}"))
        assert _read(catalog, chunks, "id") == expected


def test_a_point_is_where_snapshot_and_stream_meet(
    source_url: str, catalog: psycopg.Connection
) -> None:
    """A row is in the snapshot exactly if its commit record starts before the position."""
    catalog.execute("create table public.t (id serial primary key)")
    with capturing(source_url, "public.t") as capture:
        with (
            Writer(source_url, "insert into public.t default values"),
            temporary_consistent_point(source_url) as point,
            open_snapshot(source_url, point.snapshot_id) as reader,
        ):
            seen = {row[0] for row in reader.execute("select id from public.t").fetchall()}
            point.ping()
        messages = capture.messages()
        before, position = set[int](), 0
        for message in messages:
            if message[:1] == b"B":
                position = int.from_bytes(message[1:9])
            elif message[:1] == b"I" and position < point.position:
                before.add(int(message[13:]))
    assert before == seen
    assert sum(message[:1] == b"I" for message in messages) > len(seen)
    slots = catalog.execute(
        "select 1 from pg_replication_slots where slot_name like 'penstock_tmp%'"
    )
    assert slots.fetchall() == []


def test_a_snapshot_that_is_gone_says_so(source_url: str) -> None:
    """The snapshot's keeper has ended, or none ever had this name."""
    with temporary_consistent_point(source_url) as point:
        open_snapshot(source_url, point.snapshot_id).close()
    for snapshot_id in (point.snapshot_id, "00000003-0000001B-1", "nonsense"):
        with pytest.raises(SnapshotGone, match="is gone"):
            open_snapshot(source_url, snapshot_id)


@pytest.mark.parametrize(
    "change",
    [
        "truncate public.t",
        "alter table public.t alter n type bigint",
        "drop table public.t",
        "truncate public.leaf",
        "drop table public.leaf",
        "alter table public.root detach partition public.leaf",
        "create table public.more partition of public.root for values in (2)",
    ],
)
def test_tables_changed_behind_the_snapshot_are_reported(
    source_url: str, catalog: psycopg.Connection, change: str
) -> None:
    """Such a table would be read empty or changed: TRUNCATE and ALTER ignore snapshots."""
    for statement in (
        "create table public.t (id int, n int)",
        "create table public.root (id int) partition by list (id)",
        "create table public.leaf partition of public.root for values in (1)",
        "insert into public.t values (1, 1)",
        "insert into public.root values (1)",
        "create table public.quiet (id int)",
    ):
        catalog.execute(statement)
    tables = captured_tables(catalog, ["public.*"])
    with (
        temporary_consistent_point(source_url) as point,
        open_snapshot(source_url, point.snapshot_id) as reader,
    ):
        catalog.execute("insert into public.t values (2, 2)")
        catalog.execute("update public.root set id = 1")
        catalog.execute("alter table public.t add c int default 3")
        with open_snapshot(source_url, point.snapshot_id) as other:
            check_not_rewritten(other, tables)
        catalog.execute("set lock_timeout = '5s'")
        catalog.execute(change)
        with pytest.raises(TableRewritten) as caught:
            check_not_rewritten(reader, tables)
    assert caught.value.fields["tables"] == ["public.t" if "public.t" in change else "public.root"]


def test_locked_tables_stay_as_they_are(source_url: str, catalog: psycopg.Connection) -> None:
    """Rows may be written, but the shape cannot change; the wait for a change in progress is
    bounded.
    """
    catalog.execute("create table public.t (id int)")
    table = _table(catalog, "public.t")
    with (
        temporary_consistent_point(source_url) as point,
        open_snapshot(source_url, point.snapshot_id) as reader,
    ):
        lock_tables(reader, [table])
        lock_tables(reader, [])
        check_not_rewritten(reader, [])
        check_not_rewritten(reader, [table])
        catalog.execute("insert into public.t values (1)")
        catalog.execute("set lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            catalog.execute("truncate public.t")
    with catalog.transaction():
        catalog.execute("lock table public.t")
        with (
            open_catalog(source_url) as other,
            pytest.raises(Exception, match="lock timeout") as caught,
            other.transaction(),
        ):
            lock_tables(other, [table], timeout_s=0.05)
    assert caught.value.as_dict()["code"] == "HS30"  # type: ignore[attr-defined]
