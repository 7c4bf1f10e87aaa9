"""Batches and the constraints of the target, with and without the right to set replica role."""

from __future__ import annotations

import threading

import psycopg
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import (
    CHILD,
    FAMILY,
    ITEM,
    PARENT,
    POOR,
    TABLE,
    Start,
    delete,
    insert,
    update,
)
from penstock.engines.postgres.target import apply as applying
from penstock.engines.postgres.target.merge import _arbiter
from penstock.engines.postgres.target.target import read_target_tables
from penstock.model import MarkerKind, TableName
from penstock.ports.target import (
    ForeignKeyBlocked,
    TriggersWouldFire,
    TruncateBlocked,
    UniqueBlocked,
    ValueRefused,
)

pytestmark = pytest.mark.usefixtures("rows_at_once")


def test_unique_values_may_swap_inside_a_batch(start: Start, log: LogMaker) -> None:
    """Constraints hold only at the batch's end: rows are deleted and inserted again."""
    target = start(
        "create table public.t (id int primary key, name text unique, n int);"
        "insert into public.t values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)"
    )
    log.transaction(
        update(ITEM, 1, "-", 1),
        update(ITEM, 2, "a", 2),
        update(ITEM, 1, "b", 1),
        update(ITEM, 7, "c", 3, old=(3, None, None)),
    )
    log.close_segment()
    target.batch()
    rows = target.rows("select * from public.t order by id")
    assert rows == [(1, "b", 1), (2, "a", 2), (7, "c", 3)]


def test_deferrable_key_and_exclusion_constraint(start: Start, log: LogMaker) -> None:
    """Constraints of neither kind can be an arbiter of on conflict."""
    target = start(
        "create table public.t (id int primary key deferrable, name text, n int,"
        " exclude using btree (n with =));"
        "insert into public.t values (1, 'a', 1), (2, 'b', 2)"
    )
    table = read_target_tables(target.target.connection, [TableName("public", "t")])
    assert _arbiter(table[TableName("public", "t")], ("id",)) is None
    log.transaction(update(ITEM, 1, "a", 9), update(ITEM, 2, "b", 1), insert(ITEM, 3, "c", 2))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t order by id") == [
        (1, "a", 9),
        (2, "b", 1),
        (3, "c", 2),
    ]


@pytest.mark.parametrize("poor", [False, True])
@pytest.mark.parametrize("action", ["no action", "cascade", "restrict", "set null"])
def test_foreign_keys_hold_and_eat_nothing(
    start: Start, log: LogMaker, poor: bool, action: str
) -> None:
    """Parents are deleted, re-keyed and updated; children move; untouched children stay."""
    target = start(FAMILY.format(unique="", action=action, deferrable=""), poor=poor)
    log.transaction(
        insert(PARENT, 3, "c"),
        update(CHILD, 10, 3),
        delete(CHILD, 11, None),
        delete(PARENT, 1, None),
        update(PARENT, 2, "B"),
        insert(PARENT, 4, "d"),
        insert(CHILD, 40, 4),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.parent order by 1") == [(2, "B"), (3, "c"), (4, "d")]
    assert target.rows("select * from public.child order by 1") == [(10, 3), (20, 2), (40, 4)]


@pytest.mark.parametrize("action", ["no action", "cascade"])
def test_referenced_parent_with_other_unique_constraint(
    start: Start, log: LogMaker, action: str
) -> None:
    """The parent is updated in place without replica role, in an order that satisfies the
    constraint.
    """
    target = start(FAMILY.format(unique="unique", action=action, deferrable=""), poor=True)
    log.transaction(update(PARENT, 1, "z"), update(PARENT, 2, "a"), insert(PARENT, 3, "b"))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.parent order by 1") == [(1, "z"), (2, "a"), (3, "b")]
    assert target.rows("select id from public.child order by 1") == [(10,), (11,), (20,)]


@pytest.mark.parametrize("poor", [False, True])
def test_a_cycle_of_unique_values_in_a_referenced_parent(
    start: Start, log: LogMaker, poor: bool
) -> None:
    """The cycle is applied with replica role; without it the error has the GRANT, nothing is
    applied.
    """
    target = start(FAMILY.format(unique="unique", action="cascade", deferrable=""), poor=poor)
    log.transaction(
        update(PARENT, 1, "-"), update(PARENT, 2, "a"), update(PARENT, 1, "b"), insert(CHILD, 30, 2)
    )
    log.close_segment()
    if poor:
        with pytest.raises(UniqueBlocked) as caught:
            target.batch()
        assert "grant set on parameter session_replication_role" in caught.value.hint
        assert target.rows("select * from public.parent order by 1") == [(1, "a"), (2, "b")]
    else:
        target.batch()
        assert target.rows("select * from public.parent order by 1") == [(1, "b"), (2, "a")]
    assert len(target.rows("select * from public.child")) == (3 if poor else 4)


def test_deferrable_foreign_keys_in_a_circle(start: Start, log: LogMaker) -> None:
    """Two tables refer to each other; each batch is whole, so the end is consistent."""
    target = start(
        """
        create table public.parent (id int primary key, code int);
        create table public.child (id int primary key,
            parent int references public.parent deferrable);
        alter table public.parent add foreign key (code) references public.child deferrable;
        """,
        poor=True,
    )
    parent = relation(("id", "integer", "int32"), ("code", "integer", "int32"), name="parent")
    log.transaction(insert(parent, 1, 10), insert(CHILD, 10, 1))
    log.close_segment()
    target.batch()
    log.transaction(delete(parent, 1, None), delete(CHILD, 10, None))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.parent") == []


def test_foreign_key_that_cannot_hold_is_refused_with_the_grant(
    start: Start, log: LogMaker
) -> None:
    """The target has its own key to a row that the source does not have."""
    target = start(FAMILY.format(unique="", action="no action", deferrable=""), poor=True)
    log.transaction(insert(CHILD, 99, 77))
    log.close_segment()
    with pytest.raises(ForeignKeyBlocked) as caught:
        target.batch()
    assert POOR in caught.value.hint


@pytest.mark.parametrize("poor", [False, True])
def test_truncate_is_a_barrier(start: Start, log: LogMaker, poor: bool) -> None:
    """Rows before it are discarded, rows after it stay; the tables are emptied together."""
    target = start(FAMILY.format(unique="", action="no action", deferrable=""), poor=poor)
    both = [TableName("public", "parent"), TableName("public", "child")]
    log.transaction(
        insert(PARENT, 5, "e"),
        insert(CHILD, 50, 5),
        (MarkerKind.TRUNCATE, both),
        insert(PARENT, 6, "f"),
        insert(CHILD, 60, 6),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select id from public.parent") == [(6,)]
    assert target.rows("select id from public.child") == [(60,)]
    log.transaction((MarkerKind.TRUNCATE, both))
    log.close_segment()
    target.batch()
    assert target.rows("select id from public.parent") == []


def test_truncate_under_a_foreign_key_of_others(start: Start, log: LogMaker) -> None:
    """Without replica role it is refused with the next command; with it, it is applied."""
    ddl = FAMILY.format(unique="", action="cascade", deferrable="")
    log.transaction((MarkerKind.TRUNCATE, [TableName("public", "parent")]))
    log.close_segment()
    poor = start(ddl, poor=True)
    with pytest.raises(TruncateBlocked) as caught:
        poor.batch()
    assert "child_parent_fkey" in caught.value.hint
    rich = start("select 1")
    rich.batch()
    assert rich.rows("select count(*) from public.parent") == [(0,)]
    assert rich.rows("select count(*) from public.child") == [(3,)]


def test_triggers_do_not_fire_twice(start: Start, log: LogMaker) -> None:
    """Triggers are off with replica role; without it an error, unless wanted or always on."""
    ddl = (
        TABLE
        + """;
        create function public.f() returns trigger language plpgsql as
            $$ begin new.n = -1; return new; end $$;
        create trigger g before insert on public.t for each row execute function public.f();
    """
    )
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    poor = start(ddl, poor=True)
    with pytest.raises(TriggersWouldFire) as caught:
        poor.batch()
    assert "disable trigger user" in caught.value.hint
    rich = start("select 1")
    rich.batch()
    assert rich.rows("select n from public.t") == [(1,)]


def test_values_the_target_refuses(start: Start, log: LogMaker) -> None:
    """A value is never cut short or rounded to fit."""
    target = start("create table public.t (id int primary key, name varchar(3), n int)")
    log.transaction(insert(ITEM, 1, "abcd", 1))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    assert caught.value.fields["table"] == "public.t"
    assert "abcd" not in caught.value.message


def test_a_locked_table_is_waited_for(
    start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout interrupts the apply; the same staged rows are applied later."""
    monkeypatch.setattr(applying, "LOCK_TIMEOUT_MS", 200)
    target = start(TABLE)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with psycopg.connect(target.url) as other:
        other.execute("lock table public.t in access exclusive mode")
        timer = threading.Timer(0.7, other.rollback)
        timer.start()
        target.batch()
        timer.join()
    assert target.rows("select count(*) from public.t") == [(1,)]
