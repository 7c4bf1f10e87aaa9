"""Transactions that the server streams before they are committed."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from harness.pipelines.stream import PlainShapes, collect, prepare, rows, run_sql, streaming
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.assemble import Limits
from penstock.model import MarkerKind
from plugins.postgres import Server

pytestmark = pytest.mark.each_server


@pytest.fixture
def small_memory(postgres: object, source_url: str) -> str:
    """A database whose sessions' transactions above 64 kB are streamed by the server."""
    with connect(source_url, application_name="test") as sql:
        name = sql.info.dbname
        sql.execute(f"alter database \"{name}\" set logical_decoding_work_mem = '64kB'".encode())
    return source_url


def _big(count: int, first: int = 0, row: str = "i, repeat(chr(65 + i % 26), 200)") -> str:
    return f"insert into t select {row} from generate_series({first + 1}, {first + count}) i"


DDL = "create table t (id int, v text);; create table u (id int primary key)"


def test_streamed_transaction_comes_whole_at_its_commit(small_memory: str, tmp_path: Path) -> None:
    """No row shows before the commit; then all of them show, in order, in bounded runs."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="test", autocommit=False) as big,
        connect(small_memory, application_name="test") as small,
        streaming(small_memory, tmp_path, limits=Limits(row_count=1000)) as source,
    ):
        big.execute(_big(5000).encode())
        small.execute("insert into u values (1)")
        got = collect(source, rows(1))
        assert [c.table for c in got.changes] == ["u"]
        assert source.spilled_byte_count > 500_000
        big.commit()
        got = collect(source, rows(5000))
        assert source.spilled_byte_count == 0
    changes = got.changes
    assert [c.after and c.after["id"] for c in changes] == list(range(1, 5001))
    assert [c.gsn for c in changes] == list(range(2, 5002))
    assert {c.trx for c in changes} == {2}
    assert max(r.batch.num_rows for run in got.runs for r in run.rows) <= 1000
    assert all(run.end is None for run in got.runs[:-1])


def test_rolled_back_parts_do_not_show(small_memory: str, tmp_path: Path) -> None:
    """Savepoints that are rolled back, even nested ones, leave nothing; released ones stay."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path) as source,
    ):
        sql.execute(_big(1000).encode())
        sql.execute("savepoint a")
        sql.execute(_big(1000, 1000).encode())
        sql.execute("savepoint b")
        sql.execute(_big(1000, 2000).encode())
        sql.execute("insert into u values (100)")
        _wait_for_spill(source, 500_000)  # sent before it is rolled back
        sql.execute("release savepoint b")
        sql.execute("rollback to savepoint a")
        sql.execute("insert into u values (101)")
        sql.execute("savepoint c")
        sql.execute("alter table t add extra int")
        sql.execute("insert into t values (-1, 'gone', 1)")
        before = source.spilled_byte_count
        sql.execute(_big(1000, 3000, "i, repeat('z', 200), 1").encode())
        _wait_for_spill(source, before + 100_000)
        sql.execute("rollback to savepoint c")
        sql.execute("savepoint d")
        sql.execute(_big(1000, 4000).encode())
        sql.execute("release savepoint d")
        sql.commit()
        got = collect(source, rows(2001))
    assert {r.relation.version for run in got.runs for r in run.rows} == {1}
    ids = [c.after["id"] for c in got.changes if c.after and c.table == "t"]
    assert ids == [*range(1, 1001), *range(4001, 5001)]
    assert [c.after for c in got.changes if c.table == "u"] == [{"id": 101}]
    assert {tuple(c.after) for c in got.changes if c.after and c.table == "t"} == {("id", "v")}


def test_rolled_back_transaction_leaves_no_file(small_memory: str, tmp_path: Path) -> None:
    """A streamed transaction that is rolled back uses a file, which is deleted."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path) as source,
    ):
        sql.execute(_big(3000).encode())
        sql.rollback()
        sql.execute("insert into u values (1)")
        sql.commit()
        got = collect(source, rows(1))
        assert [c.table for c in got.changes] == ["u"]
        assert list((tmp_path / "spill").iterdir()) == []


def test_streamed_transactions_of_other_replications_come(
    small_memory: str, tmp_path: Path
) -> None:
    """A session has a replication origin, like a subscription or a merge of databases."""
    prepare(small_memory, DDL)
    name = f"penstock_test_{uuid.uuid4().hex}"
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path) as source,
    ):
        sql.execute("select pg_replication_origin_create(%s)", (name,))
        sql.execute("select pg_replication_origin_session_setup(%s)", (name,))
        sql.commit()
        sql.execute("select pg_replication_origin_xact_setup('0/1234', now())")
        sql.execute(_big(2000).encode())
        _wait_for_spill(source, 100_000)
        sql.execute("insert into u values (1)")
        sql.commit()
        sql.execute("insert into u values (2)")
        sql.commit()
        got = collect(source, rows(2002))
        sql.execute("select pg_replication_origin_session_reset()")
        sql.execute("select pg_replication_origin_drop(%s)", (name,))
        sql.commit()
    assert [c.after["id"] for c in got.changes if c.after] == [*range(1, 2001), 1, 2]
    assert {c.trx for c in got.changes} == {1, 2}


def test_a_source_that_is_itself_a_subscriber(
    postgres: Server, small_memory: str, tmp_path: Path
) -> None:
    """Rows that its subscription applies come in their original transactions."""
    above = postgres.make_database("above")
    name = "penstock_test_above"
    try:
        prepare(above, DDL, slot=name, publication="above")
        prepare(small_memory, DDL)
        with (
            connect(above, application_name="test") as upstream,
            connect(small_memory, application_name="test") as sql,
            streaming(small_memory, tmp_path) as source,
        ):
            sql.execute("alter table t replica identity full")
            run_sql(upstream, f"{_big(2000)};; insert into u values (1)")
            sql.execute(
                f"create subscription {name} connection '{above}' publication above"
                f" with (create_slot = false, slot_name = '{name}', copy_data = false)".encode()
            )
            try:
                got = collect(source, rows(2001))
            finally:
                run_sql(
                    sql,
                    f"alter subscription {name} disable;;"
                    f" alter subscription {name} set (slot_name = none);;"
                    f" drop subscription {name}",
                )
    finally:
        postgres.drop_database(above)
    assert [c.after["id"] for c in got.changes if c.after] == [*range(1, 2001), 1]
    assert {c.trx for c in got.changes} == {1, 2}


def test_interleaved_transactions_come_in_commit_order(small_memory: str, tmp_path: Path) -> None:
    """Blocks of several transactions interleave; each comes whole, in the order of commits."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="a", autocommit=False) as a,
        connect(small_memory, application_name="b", autocommit=False) as b,
        connect(small_memory, application_name="c") as small,
        streaming(small_memory, tmp_path, limits=Limits(row_count=700)) as source,
    ):
        for step in range(5):
            a.execute(_big(800, 10_000 + 800 * step).encode())
            b.execute(_big(800, 20_000 + 800 * step).encode())
            small.execute("insert into u values (%s)", (step,))
        b.commit()
        small.execute("insert into u values (10)")
        a.commit()
        got = collect(source, rows(8006))
    seen = [(c.table, c.after["id"]) for c in got.changes if c.after]
    assert seen == [
        *(("u", step) for step in range(5)),
        *(("t", 20_001 + i) for i in range(4000)),
        ("u", 10),
        *(("t", 10_001 + i) for i in range(4000)),
    ]
    assert [c.gsn for c in got.changes] == list(range(1, 8007))


def test_change_of_shape_inside_a_streamed_transaction(small_memory: str, tmp_path: Path) -> None:
    """Rows before and after an ALTER are in one big transaction; the new shape holds afterwards."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path) as source,
    ):
        sql.execute(_big(1000).encode())
        sql.execute("alter table t add extra int default 5")
        sql.execute(_big(1000, 1000).encode())
        sql.execute("truncate u")
        sql.execute("select pg_logical_emit_message(true, 'penstock.x', 'y')")
        sql.commit()
        sql.execute("insert into t values (9999, 'after', 6)")
        sql.commit()
        got = collect(source, rows(2001))
    changes = got.changes
    assert changes[999].after is not None
    assert "extra" not in changes[999].after
    assert changes[1000].after is not None
    assert changes[1000].after["extra"] == 5
    assert changes[2000].after == {"id": 9999, "v": "after", "extra": 6}
    assert [(m.kind, m.gsn) for m in got.markers] == [(MarkerKind.TRUNCATE, 2000)]


def test_value_out_of_range_inside_a_streamed_transaction(
    small_memory: str, tmp_path: Path
) -> None:
    """The column becomes text in the middle of the replay, and stays so."""
    prepare(small_memory, "create table t (id int, v text, at date)")
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path) as source,
    ):
        for day in ("2024-01-01", "infinity", "2024-01-02"):
            sql.execute(
                "insert into t select i, repeat('x', 200), %s::date from generate_series(1, 800) i",
                (day,),
            )
        sql.commit()
        sql.execute("insert into t values (1, 'x', '2024-01-03')")
        sql.commit()
        got = collect(source, rows(2401))
    days = [str(c.after["at"]) for c in got.changes if c.after]
    assert days == ["2024-01-01"] * 800 + ["infinity"] * 800 + ["2024-01-02"] * 800 + ["2024-01-03"]


def test_connection_cut_with_open_transactions_sends_them_again(
    small_memory: str, tmp_path: Path
) -> None:
    """Side files of an earlier connection are deleted; the transaction still comes whole."""
    prepare(small_memory, DDL)
    shapes = PlainShapes()
    with connect(small_memory, application_name="test", autocommit=False) as sql:
        with streaming(small_memory, tmp_path, shapes=shapes) as source:
            sql.execute(_big(2000).encode())
            _wait_for_spill(source, 200_000)
        assert list((tmp_path / "spill").iterdir()) != []
        with streaming(small_memory, tmp_path, shapes=shapes) as source:
            sql.execute(_big(2000, 2000).encode())
            sql.commit()
            got = collect(source, rows(4000))
    assert [c.after and c.after["id"] for c in got.changes] == list(range(1, 4001))


def _wait_for_spill(source: object, size_bytes: int) -> None:
    done = threading.Event()
    for _ in range(200):
        if source.spilled_byte_count >= size_bytes:  # type: ignore[attr-defined]
            return
        done.wait(0.05)
    pytest.fail("nothing was streamed")


def test_uncaptured_tables_are_passed_over(small_memory: str, tmp_path: Path) -> None:
    """A publication may hold more tables than the pipeline: their rows get no GSN."""
    prepare(small_memory, DDL)
    with (
        connect(small_memory, application_name="test", autocommit=False) as sql,
        streaming(small_memory, tmp_path, shapes=PlainShapes(frozenset({"t"}))) as source,
    ):
        run_sql(sql, "insert into t values (1);; insert into u values (1);; truncate t, u")
        sql.commit()
        sql.execute(_big(2000).encode())
        sql.execute("insert into u values (2)")
        sql.commit()
        sql.execute("insert into u values (3)")
        sql.commit()
        got = collect(source, rows(3))
        assert source.counts.ignored_row_count == 2001
    assert [(c.gsn, c.trx, c.table) for c in got.changes] == [
        (1, 1, "u"),
        (2, 2, "u"),
        (3, 3, "u"),
    ]
    assert [m.tables for m in got.markers] == [(("public", "u"),)]
