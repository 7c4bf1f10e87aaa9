"""The modes that write straight into the target, and the user's module in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.feeds.sequencer import Stage, make_delete, module, row
from penstock.feeds.apply.admission import MutationLate
from penstock.feeds.apply.tables import ConflictUnmerged, DeadLetterTableUnfit, TableNotThere
from penstock.feeds.position import LeaseLost
from penstock.feeds.script import UserModuleFailed
from penstock.host.errors import ConnectFailed
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import StageMode
from penstock.ports.row_apply import ReferenceMissing, SchemaDrift
from plugins.row_apply import Rows

Make = Callable[..., Stage]


@pytest.fixture
def make(target: Rows, tmp_path: Path) -> Iterator[Make]:
    """Maker of a sequencer from a mode and the text of a user's module."""
    with ExitStack() as stack:

        def make_stage(mode: StageMode = StageMode.IMMEDIATE, text: str = "", **more: Any) -> Stage:
            return Stage(target, stack, mode=mode, script=module(tmp_path, text), more=more)

        yield make_stage


FAMILY = (
    "create table p (id int primary key, v int)",
    "create table c (id int primary key, p int, foreign key (p) references p (id))",
)
SINGLE = "create table t (id int primary key, v int)"

# --- immediate ------------------------------------------------------------------------------------


def test_immediate_writes_a_request_in_one_transaction(make: Make, target: Rows) -> None:
    """Parents precede children, whatever the order of the lines; no row is left to be staged."""
    target.run(*FAMILY)
    stage = make()
    assert stage.post(c=[row(1, 5, p=1)], p=[row(2, 1, v=7)]) == {"c": (1, 0), "p": (1, 0)}
    assert target.rows("select * from c") == [(5, 1)]
    assert stage.post(p=[make_delete(3, 1)], c=[make_delete(3, 5)]) == {"p": (1, 0), "c": (1, 0)}
    assert target.rows("select * from p") == []
    assert stage.waiting("p") == stage.waiting("c") == []
    assert stage.count("apply_upserts_total", "p") == 1
    assert stage.count("apply_deletes_total", "c") == 1
    assert stage.count("apply_mutation_age_seconds_count", "p") == 2


@pytest.mark.parametrize("mode", [StageMode.IMMEDIATE, StageMode.BEST_EFFORT])
def test_what_is_written_directly_is_staged_for_consumers(
    make: Make, target: Rows, mode: StageMode
) -> None:
    """Whole rows are staged and marked applied; without consumers there are stubs."""
    target.run(SINGLE)
    stage = make(mode, stages_all=True)
    stage.post(t=row(1, 1, v=1))
    assert target.rows("select * from t") == [(1, 1)]
    assert stage.waiting("t") == []
    slices = stage.staging.read([stage.table("t")], ZERO, Hlc(9), limit=9, with_applied=True)
    (found,) = (batch for one in slices for batch in one.rows.values())
    assert [json.loads(one) for one in found.column("after").to_pylist()] == [{"id": 1, "v": 1}]


def test_immediate_leaves_out_what_was_applied(make: Make, target: Rows) -> None:
    """A repeated old line does not undo a newer one."""
    target.run(SINGLE)
    stage = make()
    stage.post(t=row(1, 1, v=1))
    stage.post(t=row(2, 1, v=2))
    assert stage.post(t=[row(1, 1, v=1), row(2, 1, v=2)]) == {"t": (0, 2)}
    assert target.rows("select * from t") == [(1, 2)]


def test_immediate_refuses_what_cannot_be_written(make: Make, target: Rows) -> None:
    """The whole request is refused, so that the feed sends it again; then it counts."""
    target.run(*FAMILY)
    stage = make()
    with pytest.raises(ReferenceMissing):
        stage.post(c=[row(1, 5, p=1)])
    with pytest.raises(SchemaDrift):
        stage.post(p=[row(1, 1, v=1), row(1, 2, other=1)])
    assert target.rows("select * from p") == []
    assert stage.post(p=[row(1, 1, v=1)]) == {"p": (1, 0)}
    assert stage.post(c=[row(1, 5, p=1)]) == {"c": (1, 0)}
    assert stage.count("apply_errors_total", "p") == 1


def test_a_table_that_is_altered_is_looked_at_again(
    make: Make, target: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that was added in the target is known at the next line."""
    target.run(SINGLE)
    stage = make()
    stage.post(t=row(1, 1, v=1))
    target.run("alter table t add column w int")
    monkeypatch.setattr(RowSequencerOf(stage), "_is_old", lambda *_: True)
    stage.post(t=row(2, 1, v=2, w=3))
    assert target.rows("select * from t") == [(1, 2, 3)]


def RowSequencerOf(stage: Stage) -> type:  # noqa: N802
    """Return the class of the sequencer."""
    return type(stage.sequencer)


def test_a_table_that_is_not_there(make: Make, target: Rows) -> None:
    """The error for a missing table names it."""
    target.run(SINGLE)
    with pytest.raises(TableNotThere, match=r"\.nowhere\) which does not exist"):
        make().post(nowhere=row(1, 1))


# --- best effort ----------------------------------------------------------------------------------


def test_best_effort_writes_single_tables_at_once(make: Make, target: Rows) -> None:
    """Written rows are marked as applied, so that they are not applied again."""
    target.run(SINGLE)
    stage = make(StageMode.BEST_EFFORT)
    assert stage.post(t=[row(1, 1, v=1), row(2, 2, v=1)]) == {"t": (2, 0)}
    assert stage.post(t=[row(1, 1, v=1)]) == {"t": (0, 1)}
    assert target.rows("select * from t order by id") == [(1, 1), (2, 1)]
    assert stage.waiting("t") == []
    assert stage.count("best_effort_accept_applied_count", "t") == 2


def test_best_effort_stages_what_it_cannot_write(make: Make, target: Rows) -> None:
    """Later rows of these keys wait in the queue as well."""
    target.run("create table t (id int primary key, v int not null)")
    stage = make(StageMode.BEST_EFFORT)
    assert stage.post(t=[row(1, 1, v=None), row(1, 2, v=1)]) == {"t": (2, 0)}
    assert stage.post(t=[row(2, 1, v=5), row(2, 3, v=5)]) == {"t": (2, 0)}
    assert target.rows("select * from t") == [(3, 5)]
    assert stage.waiting("t") == [(1, "[1]"), (1, "[2]"), (2, "[1]")]
    assert stage.count("best_effort_accept_error_count", "t") == 1
    assert stage.count("best_effort_accept_deferred_count", "t") == 1
    target.run("alter table t drop column v", "alter table t add column v int")
    stage.resolve(5)
    assert stage.sweep() == Hlc(5)
    assert target.rows("select id, v from t order by id") == [(1, 5), (2, 1), (3, None)]
    assert stage.waiting("t") == []
    assert stage.staging.window(stage.group).committed == Hlc(5)


def test_connected_tables_are_staged_and_swept(make: Make, target: Rows) -> None:
    """Connected tables are swept up to the resolved timestamp, in the order of foreign keys."""
    target.run(*FAMILY)
    stage = make(StageMode.BEST_EFFORT)
    stage.post(c=[row(1, 5, p=1), row(9, 6, p=2)], p=[row(1, 1, v=7), row(9, 2, v=7)])
    assert target.rows("select * from p") == []
    stage.resolve(5)
    assert stage.sweep() == Hlc(5)
    assert target.rows("select id from c") == [(5,)]
    stage.resolve(9)
    assert stage.sweep() == Hlc(9)
    assert target.rows("select id from c order by id") == [(5,), (6,)]
    assert stage.count("core_sweep_apply_count", "c") == 2
    assert stage.count("core_sweep_success_timestamp_seconds", "c") > 0


def test_before_any_checkpoint_what_is_a_minute_old_is_swept(make: Make, target: Rows) -> None:
    """Old rows are swept before any checkpoint, and the sweep commits none."""
    target.run(*FAMILY)
    stage = make(StageMode.BEST_EFFORT)
    future = 2**62
    stage.post(p=[row(1, 1, v=7), row(future, 2, v=7)])
    stage.sweep()
    assert target.rows("select id from p") == [(1,)]
    assert stage.waiting("p") == [(future, "[2]")]
    assert stage.staging.window(stage.group).committed == ZERO


def test_keys_that_wait_hold_up_only_themselves(
    make: Make, target: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row without its parent waits with later ones of its key; checkpoints stop before it."""
    monkeypatch.setattr("penstock.feeds.apply.sequencer.FLUSH_ROWS", 1)
    target.run(*FAMILY)
    stage = make(StageMode.BEST_EFFORT)
    stage.post(p=[row(1, 1, v=1), row(5, 3, v=1)], c=[row(3, 5, p=2), row(4, 5, p=1)])
    for time in (2, 3, 4, 6):
        stage.resolve(time)
    for _ in range(2):
        assert stage.sweep() == Hlc(2, 10**10 - 1)
        assert target.rows("select id from p order by id") == [(1,), (3,)]
        assert target.rows("select id from c") == []
        assert stage.waiting("c") == [(3, "[5]"), (4, "[5]")]
        assert stage.staging.window(stage.group).committed == Hlc(2)
    with pytest.raises(MutationLate):  # no later row can add the parent
        stage.post(p=[row(2, 2, v=1)])
    target.run("insert into p values (2, 1)")
    assert stage.sweep() == Hlc(6)
    assert target.rows("select * from c") == [(5, 1)]


def test_a_sweep_applies_nothing_twice(make: Make, target: Rows) -> None:
    """Rows applied while it read are left out."""
    target.run(*FAMILY)
    stage = make(StageMode.BEST_EFFORT)
    stage.post(p=[row(1, 1, v=1)])
    target.run("insert into p values (1, 99)")
    kept = stage.staging.tables[stage.table("p")]
    read = stage.staging.read

    def late(*arguments: Any, **more: Any) -> Any:
        found = list(read(*arguments, **more))
        for one in kept.values():
            one.applied = True
        return found

    stage.staging.read = late  # type: ignore[method-assign]
    stage.resolve(5)
    stage.sweep()
    assert target.rows("select * from p") == [(1, 99)]


# --- auto and consistent --------------------------------------------------------------------------


def test_auto_is_consistent_once_it_has_caught_up(make: Make, target: Rows) -> None:
    """The mode begins with best effort; then a window is one transaction, and is marked."""
    target.run(SINGLE)
    stage = make(StageMode.AUTO)
    assert stage.sequencer.mode(stage.staging, stage.group) is StageMode.BEST_EFFORT
    stage.post(t=row(1, 1, v=1))
    now = 2**62
    stage.resolve(now)
    assert stage.round() is StageMode.BEST_EFFORT
    assert stage.sequencer.mode(stage.staging, stage.group) is StageMode.CONSISTENT
    stage.post(t=[row(now + 1, 1, v=2), row(now + 2, 2, v=2)])
    assert target.rows("select * from t") == [(1, 1)]
    stage.resolve(now + 1)
    assert stage.round() is StageMode.CONSISTENT
    assert target.rows("select * from t") == [(1, 2)]
    assert stage.waiting("t") == [(now + 2, "[2]")]
    assert stage.staging.window(stage.group).committed == Hlc(now + 1)


def test_a_window_that_fails_leaves_nothing(make: Make, target: Rows) -> None:
    """A failed window leaves neither rows nor marks."""
    target.run(*FAMILY)
    stage = make(StageMode.CONSISTENT)
    stage.post(p=[row(1, 1, v=1)], c=[row(2, 5, p=9)])
    stage.resolve(5)
    with pytest.raises(ReferenceMissing):
        stage.round()
    assert target.rows("select * from p") == []
    assert stage.waiting("p") == [(1, "[1]")]
    assert stage.staging.window(stage.group).committed < Hlc(5)


# A repeated change shows in n.
COUNTING = """
def count(ops):
    tx = get_tx()
    for op in ops:
        tx.exec(f"update {tx.table()} set v = v + 1 where id = %s", op["pk"][0])

configure_table("t", apply=count)
"""


def test_a_window_that_was_not_marked_is_not_applied_again(make: Make, target: Rows) -> None:
    """The target's record decides, whatever was lost after its commit."""
    target.run(SINGLE, "insert into t values (1, 0)")
    stage = make(StageMode.CONSISTENT, COUNTING)
    stage.post(t=row(1, 1, v=1))
    stage.resolve(5)
    mark = stage.staging.mark_applied_through
    stage.staging.mark_applied_through = lose_staging  # type: ignore[method-assign]
    with pytest.raises(ConnectFailed):
        stage.round()
    assert target.rows("select v from t") == [(1,)]
    assert stage.waiting("t") == [(1, "[1]")]
    stage.staging.mark_applied_through = mark  # type: ignore[method-assign]
    stage.post(t=row(6, 1, v=1))
    stage.resolve(7)
    stage.round(stage.take_over())
    assert target.rows("select v from t") == [(2,)]
    assert stage.waiting("t") == []
    assert stage.staging.window(stage.group).committed == Hlc(7)


def lose_staging(*_: object, **__: object) -> int:
    """Raise an error, as if the staging server were gone."""
    raise ConnectFailed("it is gone", hint="")


def test_who_was_taken_over_applies_nothing_more(make: Make, target: Rows) -> None:
    """An old holder's window, applied after later ones, would undo them."""
    target.run(SINGLE)
    stage = make(StageMode.CONSISTENT)
    before = stage.take_over()
    stage.post(t=row(1, 1, v=1))
    stage.resolve(5)
    stage.take_over()
    with pytest.raises(LeaseLost):
        stage.round(before)
    assert target.rows("select v from t") == []
    assert stage.staging.window(stage.group).committed < Hlc(5)
    stage.round()
    assert target.rows("select v from t") == [(1,)]


# --- the user's module ----------------------------------------------------------------------------

VERSIONED = "create table t (id int primary key, v int, a varchar(9), b varchar(9))"


def test_losers_are_dropped_without_a_merge(make: Make, target: Rows) -> None:
    """Dropped losers are counted."""
    target.run(VERSIONED)
    stage = make(text="configure_table('t', cas=['v'])")
    stage.post(t=row(1, 1, v=5, a="x"))
    stage.post(t=row(2, 1, v=4, a="y"))
    assert target.rows("select v, a from t") == [(5, "x")]
    assert stage.count("apply_conflicts_total", "t") == 1
    assert stage.count("apply_resolves_total", "t") == 0


def test_standard_merge_brings_both_sides_together(make: Make, target: Rows) -> None:
    """One-sided changes of each side are kept; a change on both is an error, nothing is written."""
    target.run(VERSIONED)
    stage = make(text="configure_table('t', cas=['v'], merge=standard_merge())")
    base = {"v": 1, "a": "x", "b": "x"}
    stage.post(t=row(1, 1, **base))
    target.run("update t set v = 9, b = 'target'")
    stage.post(t=row(2, 1, before=base, v=1, a="source", b="x"))
    assert target.rows("select * from t") == [(1, 9, "source", "target")]
    with pytest.raises(ConflictUnmerged) as caught:
        stage.post(t=row(3, 1, before=base, v=2, a="source", b="y"))
    name = ".".join((*stage.group, "t"))
    assert caught.value.message == (f"unmerged data conflict: b, v in {name}: key [1]@3.0000000000")
    assert target.rows("select * from t") == [(1, 9, "source", "target")]
    assert stage.count("apply_resolves_total", "t") == 1


def test_a_merge_may_send_to_dead_letters(make: Make, target: Rows) -> None:
    """The dead letters are a table of the target schema; if it is missing, the error says so."""
    target.run(VERSIONED)
    text = (
        "configure_table('t', cas=['v'], merge=standard_merge("
        "lambda op: {'dlq': 'late'} if op.unmerged == ['a', 'v'] else {'drop': True}))"
    )
    stage = make(text=text, dlq_table="dead")
    base = {"v": 5, "a": "x"}
    stage.post(t=row(1, 1, **base))
    late = row(2, 1, v=4, a="y")
    with pytest.raises(DeadLetterTableUnfit, match=r"dead-letter table \S+\.dead is missing"):
        stage.post(t=late)
    target.run("create table dead (dlq_name varchar(9), source_nanos bigint, data_after text)")
    stage = make(text=text, dlq_table="dead")
    with pytest.raises(DeadLetterTableUnfit, match="lacks the columns source_logical, data_before"):
        stage.post(t=late)
    target.run(
        "alter table dead add column source_logical bigint", "alter table dead add data_before json"
    )
    stage = make(text=text, dlq_table="dead")
    stage.post(t=late)
    stage.post(t=row(3, 1, v=3, a="x"))
    (letter,) = target.rows("select dlq_name, source_nanos, source_logical, data_after from dead")
    assert letter[:3] == ("late", 2, 0)
    assert json.loads(letter[3]) == {"id": 1, "v": 4, "a": "y"}
    assert target.rows("select v, a from t") == [(5, "x")]


def test_functions_change_rows_and_keys(make: Make, target: Rows) -> None:
    """Functions may drop rows, too; get_tx() returns the transaction during a call."""
    target.run(VERSIONED, "create table calls (what varchar(40))")
    stage = make(
        text="""
def change(doc, meta):
    if doc["v"] < 0:
        return None
    get_tx().exec(f"insert into {get_tx().table().replace('t', 't')} (id, v) values (%s, %s)",
                  doc["id"] + 1000, 0)
    return {**doc, "a": f"{meta['table']} {replication_key(meta)[0]}"}

def other(key, meta):
    return [key[0] + 1000] if key[0] < 5 else None

configure_table("t", map=change, delete_key=other)
"""
    )
    stage.post(t=[row(1, 1, v=1, b="b"), row(1, 2, v=-1)])
    expected = [(1, 1, "t 1", "b"), (1001, 0, None, None)]
    assert target.rows("select * from t order by id") == expected
    stage.post(t=[make_delete(2, 1), make_delete(2, 7)])
    assert target.rows("select id from t") == [(1,)]
    assert stage.count("script_exec_time_seconds_count", "t") == 2


def test_a_function_may_write_itself(make: Make, target: Rows) -> None:
    """A function gets everything known of each operation; rows that it leaves are
    written as usual.
    """
    target.run(VERSIONED)
    stage = make(
        text="""
def write(ops):
    tx = get_tx()
    assert [c["name"].strip('"`') for c in tx.columns()] == ["id", "v", "a", "b"], tx.columns()
    assert [c["primary"] for c in tx.columns()] == [True, False, False, False]
    for op in ops:
        if op["action"] == "delete":
            tx.exec(f"update {tx.table()} set a = 'gone' where id = %s", op["pk"][0])
        else:
            op["data"]["b"] = op["before"]["a"] if "before" in op else "new"
            tx.apply([op])
    assert tx.query(f"select count(*) from {tx.table()} where v > %s", 0)[0][0] == 1
    assert tx.schema() in tx.table()

configure_table("t", apply=write)
"""
    )
    stage.post(t=row(1, 1, v=1, a="x"))
    assert target.rows("select * from t") == [(1, 1, "x", "new")]
    stage.post(t=row(2, 1, before={"a": "old"}, v=2, a="y"))
    stage.post(t=make_delete(3, 1))
    assert target.rows("select * from t") == [(1, 2, "gone", "old")]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("map=lambda doc, meta: 1 / 0", "map of .*t in the user's module: ZeroDivisionError"),
        ("map=lambda doc, meta: {'id': object()}", "map of .*t in the user's module: TypeError"),
        ("cas=['v'], merge=lambda op: None", 'a merge gives {"apply": row}'),
        ("cas=['v'], merge=lambda op: {'apply': 5}", "apply is not a row"),
        ("apply=lambda ops: get_tx().apply([{}])", "something that is not an operation"),
    ],
)
def test_a_function_that_fails(make: Make, target: Rows, rules: str, said: str) -> None:
    """No row of the request is written."""
    target.run(VERSIONED, "insert into t values (1, 9, null, null)")
    stage = make(text=f"configure_table('t', {rules})")
    with pytest.raises(UserModuleFailed, match=said):
        stage.post(t=[row(1, 1, v=1), row(1, 2, v=1)])
    assert target.rows("select id, v from t") == [(1, 9)]


def test_a_feed_may_be_dispatched(make: Make, target: Rows) -> None:
    """Dispatch comes first in every mode: rows are staged for the tables of the target."""
    target.run(*FAMILY)
    text = (
        "configure_source('feed', deletes_to='c', dispatch=lambda doc, meta: "
        "{'p': [{'id': doc['id']}], 'c': [{'id': doc['id'], 'p': doc['id']}]})"
    )
    make(text=text).post(feed=[row(1, 1), row(1, 2), make_delete(2, 1)])
    assert target.rows("select id from c") == [(2,)]
    stage = make(StageMode.CONSISTENT, text=text)
    assert stage.post(feed=[row(1, 7)]) == {"p": (1, 0), "c": (1, 0)}
    assert stage.waiting("c") == [(1, "[7]")]
