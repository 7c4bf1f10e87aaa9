"""Messages of a real server, as runs."""

from __future__ import annotations

import decimal
from pathlib import Path

import pytest

from harness.pipelines.stream import ABSENT, collect, prepare, rows, run_sql, streaming
from harness.pipelines.writer import Writer
from penstock.engines.postgres.connect import connect
from penstock.model import MarkerKind
from plugins.postgres import Server

pytestmark = pytest.mark.each_server


def test_inserts_updates_and_deletes_come_in_order_as_whole_transactions(
    source_url: str, tmp_path: Path
) -> None:
    """GSN and trx increase without gaps; each run ends at the end of a transaction."""
    prepare(source_url, "create table t (id int primary key, name text, amount numeric(10,2))")
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into t values (1, 'a', 1.50), (2, null, null);;
                update t set name = 'b' where id = 1;;
                delete from t where id = 2
                """,
        )
        got = collect(source, rows(4))
    changes = got.changes
    assert [c.gsn for c in changes] == [1, 2, 3, 4]
    assert [c.trx for c in changes] == [1, 1, 2, 3]
    assert [c.op for c in changes] == ["I", "I", "U", "D"]
    assert changes[0].after == {"id": 1, "name": "a", "amount": decimal.Decimal("1.50")}
    assert changes[1].after == {"id": 2, "name": None, "amount": None}
    assert changes[2].after is not None
    assert changes[2].after["name"] == "b"
    assert changes[3].after is None
    assert changes[3].before == {"id": 2}
    assert (got.end.gsn, got.end.trx) == (4, 3)


def test_unchanged_toast_value_is_absent_not_null(source_url: str, tmp_path: Path) -> None:
    """An unchanged toasted value is not sent; NULL here would erase it in the target."""
    prepare(
        source_url,
        """
            create table t (id int primary key, n int, big text);;
            alter table t alter big set storage external;;
            insert into t values (1, 1, repeat('x', 100000))
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute("update t set n = 2")
        got = collect(source, rows(1))
    assert got.changes[0].after == {"id": 1, "n": 2, "big": ABSENT}


def test_identity_full_fills_unchanged_toast_from_the_before_image(
    source_url: str, tmp_path: Path
) -> None:
    """No value is absent if the complete old row is sent."""
    prepare(
        source_url,
        """
            create table t (id int, n int, big text);;
            alter table t alter big set storage external;;
            alter table t replica identity full;;
            insert into t values (1, 1, repeat('x', 100000))
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute("update t set n = 2")
        got = collect(source, rows(1))
    big = "x" * 100000
    assert got.changes[0].after == {"id": 1, "n": 2, "big": big}
    assert got.changes[0].before == {"id": 1, "n": 1, "big": big}


def test_key_update_has_the_old_key(source_url: str, tmp_path: Path) -> None:
    """The row is found under its old key; its toasted value stays absent."""
    prepare(
        source_url,
        """
            create table t (id int primary key, n int, big text);;
            alter table t alter big set storage external;;
            insert into t values (1, 1, repeat('x', 100000))
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute("update t set id = 7")
        got = collect(source, rows(1))
    assert got.changes[0].before == {"id": 1}
    assert got.changes[0].after == {"id": 7, "n": 1, "big": ABSENT}


def test_identity_index_and_nothing(source_url: str, tmp_path: Path) -> None:
    """INDEX identifies rows by its columns; NOTHING still sends inserts."""
    prepare(
        source_url,
        """create table i (a int not null, b int);; create unique index i_a on i (a);;
        alter table i replica identity using index i_a;;
        create table n (a int);; alter table n replica identity nothing""",
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into i values (1, 1);;
                update i set a = 2;;
                delete from i;;
                insert into n values (5)
                """,
        )
        got = collect(source, rows(4))
    assert [(c.op, c.before) for c in got.changes] == [
        ("I", None),
        ("U", {"a": 1}),
        ("D", {"a": 2}),
        ("I", None),
    ]


def test_truncate_of_several_tables_is_one_marker(source_url: str, tmp_path: Path) -> None:
    """The marker is between the rows before and after it, and names cascaded tables."""
    prepare(
        source_url,
        """
            create table a (id int primary key);;
            create table b (id int primary key, a int references a);;
            create table c (id int primary key)
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into a values (1);;
                truncate a, c restart identity cascade;;
                insert into a values (2);;
                truncate c
                """,
        )
        got = collect(source, lambda c: len(c.markers) == 2)
    first, second = got.markers
    assert first.kind is MarkerKind.TRUNCATE
    assert sorted(first.tables) == [("public", "a"), ("public", "b"), ("public", "c")]
    assert first.data == {"cascade": True, "restart_identity": True}
    assert (first.gsn, first.trx) == (1, 2)
    assert (second.gsn, second.trx, second.tables) == (2, 4, (("public", "c"),))
    assert got.end.trx == 4


def test_partitioned_table_comes_under_its_root(source_url: str, tmp_path: Path) -> None:
    """Rows of leaves, and a row that moves between them, have the root's name and identity."""
    prepare(
        source_url,
        """
            create table p (id int primary key, v text) partition by range (id);;
            create table p1 partition of p for values from (0) to (10);;
            create table p2 partition of p for values from (10) to (20)
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into p values (1, 'a'), (11, 'b');;
                update p set id = 12 where id = 1;;
                insert into p2 values (13, 'leaf')
                """,
        )
        got = collect(source, rows(5))
    assert {c.table for c in got.changes} == {"p"}
    assert [c.op for c in got.changes] == ["I", "I", "D", "I", "I"]


def test_generated_columns_are_not_sent(source_url: str, tmp_path: Path) -> None:
    """Generated columns are not sent, as the target computes them itself."""
    prepare(
        source_url,
        """
            create table t (id int primary key, twice int generated always as (id * 2) stored,
              n int generated by default as identity)
            """,
    )
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute("insert into t values (4)")
        got = collect(source, rows(1))
    assert got.changes[0].after == {"id": 4, "n": 1}


def test_quoted_and_non_ascii_names(source_url: str, tmp_path: Path) -> None:
    """Names are those of the catalogue."""
    prepare(source_url, 'create table "Größe ""x""" ("Schlüssel" int primary key, "a.b" text)')
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute('insert into public."Größe ""x""" values (1, \'ü\\\')')
        got = collect(source, rows(1))
    assert got.changes[0].table == 'Größe "x"'
    assert got.changes[0].after == {"Schlüssel": 1, "a.b": "ü\\"}


def test_a_thousand_columns(source_url: str, tmp_path: Path) -> None:
    """Rows of 1,000 columns are streamed whole; few tables of PostgreSQL are wider in practice."""
    names = ", ".join(f"c{i} text" for i in range(999))
    prepare(source_url, f"create table w (id int primary key, {names})")
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        values = ", ".join(f"'v{i}'" for i in range(999))
        sql.execute(f"insert into w values (1, {values})")
        sql.execute("update w set c998 = 'last'")
        got = collect(source, rows(2))
    assert got.changes[1].after is not None
    assert len(got.changes[1].after) == 1000
    assert got.changes[1].after["c998"] == "last"
    assert got.changes[1].after["c997"] == "v997"


def test_added_column_gives_a_new_version(source_url: str, tmp_path: Path) -> None:
    """Rows before and after the ALTER are in batches of different versions."""
    prepare(source_url, "create table t (id int primary key)")
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into t values (1);;
                alter table t add b text;;
                insert into t values (2, 'x');;
                alter table t drop b;;
                insert into t values (3)
                """,
        )
        got = collect(source, rows(3))
    assert [c.after for c in got.changes] == [{"id": 1}, {"id": 2, "b": "x"}, {"id": 3}]
    versions = [r.relation.version for run in got.runs for r in run.rows]
    assert sorted(versions) == [1, 2, 3]


def test_value_out_of_range_makes_the_column_text(source_url: str, tmp_path: Path) -> None:
    """Infinity does not fit a timestamp: the column is exact text from that row on."""
    prepare(source_url, "create table t (id int primary key, at timestamp)")
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        run_sql(
            sql,
            """
                insert into t values (1, '2024-01-02 03:04:05');;
                insert into t values (2, 'infinity');;
                insert into t values (3, '2024-01-02 03:04:05')
                """,
        )
        got = collect(source, rows(3))
    assert [str(c.after and c.after["at"]) for c in got.changes] == [
        "2024-01-02 03:04:05",
        "infinity",
        "2024-01-02 03:04:05",
    ]


def test_logical_messages_are_ignored_or_kept(source_url: str, tmp_path: Path) -> None:
    """Messages become markers on demand; penstock's own prefix never shows."""
    prepare(source_url, "create table t (id int primary key)")
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path, keep_messages=True) as source,
    ):
        run_sql(
            sql,
            """
                select pg_logical_emit_message(true, 'app', 'in');;
                select pg_logical_emit_message(false, 'app', 'out');;
                select pg_logical_emit_message(true, 'penstock.x', 'ours');;
                insert into t values (1)
                """,
        )
        got = collect(source, rows(1))
    assert [(m.data["content"], m.data["transactional"]) for m in got.markers] == [
        ("in", True),
        ("out", False),
    ]


def test_a_message_outside_transactions_is_not_sent_twice(source_url: str, tmp_path: Path) -> None:
    """A source that resumes at the position of the message sends only what follows it."""
    prepare(source_url, "create table t (id int primary key)")
    with connect(source_url, application_name="test") as sql:
        with streaming(source_url, tmp_path, keep_messages=True) as source:
            run_sql(sql, "select pg_logical_emit_message(false, 'app', 'first')")
            got = collect(source, lambda got: bool(got.markers))
        with streaming(source_url, tmp_path, keep_messages=True, start=got.end) as source:
            run_sql(sql, "select pg_logical_emit_message(false, 'app', 'second')")
            again = collect(source, lambda got: bool(got.markers))
    assert [(m.trx, m.data["content"]) for m in again.markers] == [(2, "second")]


def test_server_version_is_read(postgres: Server) -> None:
    """The fixture's server has a version that penstock reads."""
    assert postgres.version >= 14


def test_changes_that_never_pause_are_given_out(source_url: str, tmp_path: Path) -> None:
    """Commit follows commit without a pause: runs still come, and they are short."""
    prepare(source_url, "create table t (id int generated always as identity primary key)")
    commit = "insert into t default values"
    with (
        streaming(source_url, tmp_path) as source,
        Writer(source_url, commit) as first,
        Writer(source_url, commit) as second,
    ):
        for _ in range(4):
            run = source.next_run(60)
            assert run is not None
            assert run.end is not None
            assert sum(rows.batch.num_rows for rows in run.rows) < 5000
        for writer in (first, second):
            assert writer.error is None
