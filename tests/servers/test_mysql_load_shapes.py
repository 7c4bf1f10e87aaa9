"""Changes of shape applied to MySQL and MariaDB, whose DDL commits: cut off, repeated, killed."""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import delete, insert, update
from penstock.codec.types import Engine, parse_choices
from penstock.engines.mysql.connect import connect, run
from penstock.engines.mysql.target import apply
from penstock.engines.mysql.target.claims import alone
from penstock.engines.mysql.target.layout import same_type
from penstock.host.faults import FaultInjected, arming
from penstock.model import Column, MarkerKind, PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import AppliedByAnother, ShapeNotApplicable, ValueRefused
from plugins.mysql_loader import MyApplying, MyStart, Target

OLD = relation(("id", "integer", "int32"), ("name", "text", "string"))
WIDE = relation(
    ("id", "integer", "int32"), ("name", "text", "string"), ("n", "integer", "int32"), version=2
)
NARROW = relation(("id", "integer", "int32"), ("n", "integer", "int32"), version=3)
OTHER = relation(("id", "integer", "int32"), name="other")
TABLES = (
    "create table t (id int primary key, name varchar(20)); create table other (id int primary key)"
)


def shape(target: MyApplying) -> list[str]:
    """Return the names of the columns of t."""
    return [row[0] for row in target.rows("show columns from t")]


def load_first_batch(target: MyApplying) -> MyApplying:
    """Let a loader apply a first batch of the old shape, so that the next is a change."""
    target.batch()
    return target


def begin_target(my_start: MyStart, log: LogMaker, **more: Any) -> MyApplying:
    """Return a target with row 1, in its first shape."""
    target = my_start(TABLES, **more)
    log.transaction(insert(OLD, 1, "a"))
    log.close_segment()
    return load_first_batch(target)


def apply_cut_off(target: MyApplying, place: str) -> None:
    """Apply the second segment, cut off once at a fault point if one is named."""
    with arming(f"{place}:1:error" if place else ""):
        try:
            while target.applied.segment < 1:
                target.batch()
        except FaultInjected:
            target.target.forget()
    while target.applied.segment < 1:
        target.batch()


def test_a_batch_ends_where_a_shape_changes(my_start: MyStart, log: LogMaker) -> None:
    """Rows before the change, the change, and rows after it are three moments of the source."""
    target = begin_target(my_start, log)
    log.transaction(insert(OLD, 2, "b"), insert(OTHER, 1))
    log.transaction(insert(OTHER, 2))
    log.transaction(insert(WIDE, 3, "c", 3), insert(OTHER, 3))
    log.transaction(update(NARROW, 1, 11))
    log.close_segment()
    first = target.batch()
    assert first.is_cut
    assert [file.finished for file in first.files] == [False]
    assert target.rows("select * from t order by id") == [(1, "a"), (2, "b")]
    assert target.rows("select id from other order by id") == [(1,), (2,)]
    target.batch()
    assert target.rows("select * from t order by id") == [
        (1, "a", None),
        (2, "b", None),
        (3, "c", 3),
    ]
    assert target.rows("select id from other order by id") == [(1,), (2,), (3,)]
    last = target.batch()
    assert not last.is_cut
    assert [file.finished for file in last.files] == [True]
    assert target.rows("select * from t order by id") == [(1, 11), (2, None), (3, 3)]


def test_a_change_without_rows(my_start: MyStart, log: LogMaker) -> None:
    """A column without written rows has the value of old rows."""
    target = begin_target(my_start, log)
    added = Column(name="n", source_type="integer", neutral="int32", nullable=False, missing="7")
    log.transaction(
        insert(OTHER, 1), relations=[replace(OLD, columns=(*OLD.columns, added), version=2)]
    )
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t") == [(1, "a", 7)]
    assert target.rows("select * from other") == [(1,)]


def test_a_transaction_that_changes_a_shape_midway(my_start: MyStart, log: LogMaker) -> None:
    """The transaction is not divided: the target is altered in advance, all rows come together."""
    target = begin_target(my_start, log)
    log.transaction(insert(OTHER, 1))
    log.transaction(insert(OLD, 2, "b"), insert(WIDE, 3, "c", 3), insert(OTHER, 2))
    log.close_segment()
    target.batch()
    assert target.rows("select id from other") == [(1,)]
    assert target.rows("select id from t") == [(1,)]
    target.batch()
    assert target.rows("select * from t order by id") == [
        (1, "a", None),
        (2, "b", None),
        (3, "c", 3),
    ]
    assert target.applied.segment == 1


def test_rows_before_an_added_column_in_its_transaction_get_its_value(
    my_start: MyStart, log: LogMaker
) -> None:
    """The target is altered before the first row, and some types have no default there."""
    target = begin_target(my_start, log)
    added = (
        Column(name="c", source_type="text", neutral="string", missing="x"),
        Column(name="b", source_type="bit(8)", neutral="string", missing="01000001"),
        Column(name="n", source_type="integer", neutral="int32", missing="7"),
    )
    wide = replace(OLD, columns=(*OLD.columns, *added), version=2)
    log.transaction(
        insert(OLD, 2, "b"),
        insert(wide, 3, "c", None, None, None),
        update(wide, 1, "a", None, None, None),
    )
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t order by id") == [
        (1, "a", None, None, None),
        (2, "b", "x", b"A", 7),
        (3, "c", None, None, None),
    ]


def test_a_column_that_goes_in_mid_transaction(my_start: MyStart, log: LogMaker) -> None:
    """Values of a column that the target no longer has are left out."""
    target = begin_target(my_start, log)
    log.transaction(insert(OLD, 2, "b"), update(NARROW, 2, 22), delete(NARROW, 1, None))
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t") == [(2, 22)]


@pytest.mark.parametrize("place", ["load.alter.before", "load.alter.between", "load.alter.after"])
def test_an_alter_that_is_cut_off_is_not_done_twice(
    my_start: MyStart, log: LogMaker, place: str
) -> None:
    """The next try finds the steps that are done, and continues."""
    target = begin_target(my_start, log)
    log.transaction(update(NARROW, 1, 5))
    log.close_segment()
    with arming(f"{place}:1:error"), pytest.raises(FaultInjected):
        target.batch()
    again = MyApplying(target.place, log.directory)
    try:
        again.batch()
        assert shape(again) == ["id", "n"]
        assert again.rows("select * from t") == [(1, 5)]
    finally:
        again.close()


def test_another_loader_does_not_alter(my_start: MyStart, log: LogMaker) -> None:
    """A loader that was overtaken does not restore an older shape."""
    target = begin_target(my_start, log)
    log.transaction(update(WIDE, 1, "x", 5))
    log.close_segment()
    target.execute("update wirekite.wirekite_log set applied_gsn = 77")
    with pytest.raises(AppliedByAnother):
        target.batch()
    assert shape(target) == ["id", "name"]


def test_a_type_that_grows(my_start: MyStart, log: LogMaker) -> None:
    """The column is converted with its rows; NOT NULL stays."""
    narrow = relation(("id", "integer", "int32"), ("v", "smallint", "int16"))
    wide = relation(("id", "integer", "int32"), ("v", "bigint", "int64"), version=2)
    target = my_start("create table t (id int primary key, v smallint not null)")
    log.transaction(insert(narrow, 1, 5))
    log.close_segment()
    target.batch()
    log.transaction(insert(wide, 2, 2**40))
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by id") == [(1, 5), (2, 2**40)]
    assert target.rows("show columns from t like 'v'")[0][1:3] in (
        ("bigint", "NO"),
        ("bigint(20)", "NO"),
    )


def test_a_reload_into_a_type_that_the_rows_do_not_fit(my_start: MyStart, log: LogMaker) -> None:
    """The rows are dropped anyway, so the column is recreated."""
    text = relation(("id", "integer", "int32"), ("v", "text", "string"))
    number = relation(("id", "integer", "int32"), ("v", "integer", "int32"), version=2)
    target = my_start("create table t (id int primary key, v text)")
    log.transaction(insert(text, 1, "one"))
    log.close_segment()
    target.batch()
    log.transaction(
        (MarkerKind.RELOAD, [TableName("public", "t")]), insert(number, 1, 1), insert(number, 2, 2)
    )
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t order by id") == [(1, 1), (2, 2)]


ID, V = ("id", "integer", "int32"), ("v", "integer", "int32")
REPLACED = Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT})


def fact(target: MyApplying, column: str, name: str) -> Any:
    """Return a fact of information_schema about a column of t."""
    return target.rows(
        f"select {name} from information_schema.columns where table_schema = database() "
        f"and table_name = 't' and column_name = '{column}'"
    )[0][0]


def apply_killed(target: MyApplying, log: LogMaker, place: str, **more: Any) -> MyApplying:
    """Apply all segments; if a fault point is named, a second loader continues from there."""
    target.close()
    again = MyApplying(target.place, log.directory, **more)
    with arming(f"{place}:1:error" if place else ""):
        try:
            while again.applied.segment < 1:
                again.batch()
        except FaultInjected:
            again.close()
            again = MyApplying(target.place, log.directory, **more)
    while again.applied.segment < 1:
        again.batch()
    return again


@pytest.mark.parametrize(
    ("table", "old", "new", "rows"),
    [
        pytest.param(
            "id int primary key, v int",
            (relation(ID, V), [(1, None), (2, 5)]),
            relation(ID, V, key=(1,), version=2),
            [(7, 5)],
            id="null in the new key",
        ),
        pytest.param(
            "id int primary key, v int not null",
            (relation(ID, V), [(1, 5), (2, 5)]),
            relation(ID, V, key=(1,), version=2),
            [(7, 5)],
            id="equal in the new key",
        ),
        pytest.param(
            "id int primary key, v int not null",
            (relation(ID, V), [(1, 5), (2, 6)]),
            relation(ID, V, key=(1,), version=2),
            [],
            id="no row follows",
        ),
        pytest.param(
            "id varchar(9) primary key, v int",
            (relation(("id", "text", "string"), V), [("one", 1), ("two", 2)]),
            relation(ID, V, version=2),
            [(1, 1), (2, 2)],
            id="a type of the key",
        ),
        pytest.param(
            "id int primary key, v varchar(9)",
            (relation(ID, ("v", "text", "string")), [(1, None), (2, "two")]),
            relation(ID, V, key=(0, 1), version=2),
            [(1, 5), (1, 6)],
            id="another type joins the key",
        ),
        pytest.param(
            "id int primary key, v decimal(65,30)",
            (relation(ID, ("v", "numeric", "string")), [(1, "1.23456")]),
            relation(ID, ("v", "numeric(10,2)", "decimal(10,2)"), ("w", *V[1:]), version=2),
            [(1, Decimal("1.23"), 4)],
            id="rounded values beside a new column",
        ),
    ],
)
def test_old_rows_do_not_refuse_an_alter_if_they_are_void(
    my_start: MyStart,
    log: LogMaker,
    table: str,
    old: tuple[Relation, list[tuple[Any, ...]]],
    new: Relation,
    rows: list[tuple[Any, ...]],
) -> None:
    """The batch deletes the rows, so they need not fit."""
    target = my_start(f"create table t ({table})")
    before, old_rows = old
    log.transaction(*(insert(before, *row) for row in old_rows))
    log.close_segment()
    target.batch()
    emptying = (MarkerKind.RELOAD, [TableName("public", "t")])
    log.transaction(emptying, *(insert(new, *row) for row in rows), relations=[new])
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t order by 1, 2") == rows
    for index in new.key:
        assert fact(target, new.columns[index].name, "column_key") == "PRI"


@pytest.mark.parametrize("kind", [MarkerKind.RELOAD, MarkerKind.TRUNCATE])
@pytest.mark.parametrize("place", ["load.alter.freed", "load.alter.between", "load.alter.after"])
def test_void_rows_are_not_kept_by_a_kill(
    my_start: MyStart, log: LogMaker, place: str, kind: MarkerKind
) -> None:
    """Wherever an ALTER for a recreated table is cut off, only the new rows are there."""
    target = my_start("create table t (id int primary key, v int)")
    log.transaction(insert(relation(ID, V), 1, None), insert(relation(ID, V), 2, 5))
    log.close_segment()
    target.batch()
    new = relation(ID, V, key=(1,), version=2)
    log.transaction((kind, [TableName("public", "t")]), insert(new, 7, 5))
    log.close_segment()
    again = apply_killed(target, log, place)
    try:
        assert again.rows("select * from t") == [(7, 5)]
        assert fact(again, "v", "column_key") == "PRI"
    finally:
        again.close()


@pytest.mark.parametrize("place", ["", "load.alter.freed"])
def test_rows_that_are_rewritten_do_not_refuse_an_alter(
    my_start: MyStart, log: LogMaker, place: str
) -> None:
    """Values of a column that the source dropped stay, all others are those that are read."""
    columns = (ID, ("v", "text", "string"), ("k", *V[1:]))
    first, small = relation(*columns, ("name", "text", "string")), relation(*columns, version=2)
    small = replace(small, key=(2,))
    new = replace(relation(ID, V, ("k", *V[1:]), version=3), key=(2,))
    target = my_start("create table t (id int primary key, v text, k int, name text)")
    log.transaction(insert(first, 1, "one", None, "a"), insert(first, 2, "two", 22, "b"))
    log.close_segment()
    target.batch()
    log.transaction((MarkerKind.RELOAD, [TableName("public", "t")]), insert(new, 3, 4, 22))
    log.close_segment()
    again = apply_killed(target, log, place, policies=REPLACED)
    try:
        assert again.rows("select id, v, k, name from t") == [(3, 4, 22, "b")]
        assert fact(again, "v", "data_type") == "int"
    finally:
        again.close()


def test_rows_that_stay_refuse_an_alter(my_start: MyStart, log: LogMaker) -> None:
    """Without a reload nothing is deleted."""
    first = relation(ID, ("v", "text", "string"))
    target = my_start("create table t (id int primary key, v text)")
    log.transaction(insert(first, 1, "one"))
    log.close_segment()
    target.batch()
    log.transaction(insert(relation(ID, V, version=2), 2, 2))
    log.close_segment()
    with pytest.raises(ValueRefused):
        target.batch()
    assert target.rows("select * from t") == [(1, "one")]


def test_a_definition_that_is_refused_leaves_the_rows(my_start: MyStart, log: LogMaker) -> None:
    """Rows are deleted only if the ALTER is possible without them."""
    wide = [(f"c{number}", "character varying(9000)", "string") for number in range(3)]
    target = my_start("create table t (id int primary key)")
    log.transaction(insert(relation(ID), 1))
    log.close_segment()
    target.batch()
    new = relation(ID, *wide, version=2)
    log.transaction((MarkerKind.RELOAD, [TableName("public", "t")]), insert(new, 1, "", "", ""))
    log.close_segment()
    with pytest.raises(ValueRefused, match="row is too long"):
        target.batch()
    assert target.rows("select id from t") == [(1,)]


def test_a_missing_column_is_named(my_start: MyStart, log: LogMaker) -> None:
    """A column that the target should have had is an error with the statement to type."""
    target = my_start("create table t (id int primary key)")
    log.transaction(insert(OLD, 1, "a"))
    log.close_segment()
    with pytest.raises(PenstockError) as caught:
        target.batch()
    assert isinstance(caught.value, ShapeNotApplicable)
    assert "add column `name`" in caught.value.hint


def test_types_are_compared_by_what_they_are() -> None:
    """Display widths and spellings are ignored; lengths, signs and labels are compared."""
    for left, right in (
        ("int(11)", "int"),
        ("INTEGER", "int"),
        ("tinyint(1)", "boolean"),
        ("numeric(10)", "decimal(10,0)"),
        ("bit", "bit(1)"),
        ("longtext", "json"),
    ):
        assert same_type(left, right), left
    for left, right in (
        ("int unsigned", "int"),
        ("varchar(5)", "varchar(6)"),
        ("enum('a')", "enum('a','b')"),
        ("datetime", "datetime(6)"),
        ("point", "varchar(5)"),
    ):
        assert not same_type(left, right), left


@pytest.mark.parametrize(
    ("source", "neutral", "missing", "expected"),
    [
        ("character varying(9)", "string", "it's", "it's"),
        ("text", "string", "long", "long"),
        ("bytea", "binary", "\\x00ff", b"\x00\xff"),
        ("jsonb", "string", '{"a": 1}', '{"a": 1}'),
        ("boolean", "bool", "t", 1),
        ("bit(4)", "string", "0101", b"\x05"),
        ("timestamp(0) with time zone", "timestamptz", "2024-02-29 12:00:00+00", None),
        ("numeric(5,2)", "decimal(5,2)", "1.50", Decimal("1.50")),
        ("real", "float32", "0.5", 0.5),
    ],
)
@pytest.mark.parametrize("place", ["", "load.alter.fill", "load.alter.between"])
def test_new_columns_with_values_of_old_rows(
    my_start: MyStart,
    log: LogMaker,
    source: str,
    neutral: str,
    missing: str,
    expected: object,
    place: str,
) -> None:
    """Every kind of type has the value of old rows, wherever the change is cut off."""
    chosen = {"not a number": "null", "dates out of range": "null"}
    target = begin_target(my_start, log, choices=parse_choices(chosen, Engine.POSTGRESQL))
    added = Column(name="n", source_type=source, neutral=neutral, missing=missing)
    log.transaction(
        insert(OTHER, 1), relations=[replace(OLD, columns=(*OLD.columns, added), version=2)]
    )
    log.close_segment()
    apply_cut_off(target, place)
    found = target.rows("select n from t")[0][0]
    assert found == (dt.datetime(2024, 2, 29, 12) if expected is None else expected)  # noqa: DTZ001


def test_a_loss_that_nobody_has_chosen_for(my_start: MyStart, log: LogMaker) -> None:
    """A new column with a possible loss is not added unless the user has chosen."""
    target = begin_target(my_start, log)
    added = Column(name="n", source_type="real", neutral="float32")
    new = replace(OLD, columns=(*OLD.columns, added), version=2)
    log.transaction(insert(new, 2, "b", float("nan")))
    log.close_segment()
    with pytest.raises(ShapeNotApplicable) as caught:
        target.batch()
    assert "not a number" in caught.value.message
    choices = parse_choices({"not a number": "null"}, Engine.POSTGRESQL)
    again = MyApplying(target.place, log.directory, choices=choices)
    try:
        again.batch()
    finally:
        again.close()
    assert target.rows("select * from t order by id") == [(1, "a", None), (2, "b", None)]


@pytest.mark.parametrize("name", ["m", "t", "penstock"])
def test_a_table_may_be_called_as_our_statements_call_things(
    my_start: MyStart, log: LogMaker, name: str
) -> None:
    """An alias of a statement does not hide the target's table."""
    target = my_start(f"create table {name} (id int primary key, v int)")
    shape_of = relation(("id", "integer", "int32"), ("v", "integer", "int32"), name=name)
    log.transaction(insert(shape_of, 1, 1), insert(shape_of, 2, 2))
    log.transaction(update(shape_of, 1, 3), delete(shape_of, 2, None))
    log.close_segment()
    while target.applied.segment < 0:
        target.batch()
    log.transaction(update(shape_of, 1, 4))
    log.close_segment()
    target.batch()
    assert target.rows(f"select * from {name}") == [(1, 4)]


def test_a_collation_follows_the_source(my_target: Target, tmp_path: Path) -> None:
    """Rows that differ only in case are two rows from then on."""
    log = LogMaker(tmp_path / "log", engine="mysql")
    kind = "varchar(9) character set latin1 collate latin1_swedish_ci"
    my_target.execute(f"create table t (v {kind} primary key)")
    target = MyApplying(my_target, log.directory)
    name = Column(
        name="v",
        source_type="varchar(9)",
        neutral="string",
        nullable=False,
        id=1,
        collation="latin1_swedish_ci",
    )
    first = replace(relation(("v", "varchar(9)", "string")), columns=(name,))
    log.transaction(insert(first, "a"))
    log.close_segment()
    target.batch()
    other = replace(name, collation="utf8mb4_bin")
    log.transaction(insert(replace(first, columns=(other,), version=2), "A"))
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select v from t order by v") == [("A",), ("a",)]
    target.close()
    log.writer.close()


def test_a_unique_key_that_the_source_dropped_is_dropped(my_start: MyStart, log: LogMaker) -> None:
    """The key is dropped before the first rows that are equal in it."""
    target = my_start("create table t (id int primary key, v int, unique key k (v))")
    first = relation(("id", "integer", "int32"), ("v", "integer", "int32"))
    log.transaction(insert(replace(first, unique=(("v",),)), 1, 7))
    log.close_segment()
    target.batch()
    log.transaction(insert(replace(first, unique=(), version=2), 2, 7))
    log.close_segment()
    while target.applied.segment < 1:
        target.batch()
    assert target.rows("select * from t order by id") == [(1, 7), (2, 7)]


@pytest.mark.parametrize("place", ["load.alter.before", "load.alter.aside", "load.alter.between"])
def test_names_are_swapped_once_wherever_it_is_cut_off(
    my_start: MyStart, log: LogMaker, place: str
) -> None:
    """DDL commits: the temporary names of columns show its progress."""
    target = my_start("create table t (id int primary key, a int, b int)")
    number, a, b = (
        Column(name=name, source_type="integer", neutral="int32", id=place, nullable=place > 1)
        for place, name in enumerate(("id", "a", "b"), 1)
    )
    first = replace(relation(("id", "integer", "int32")), columns=(number, a, b))
    log.transaction(insert(first, 1, 10, 20))
    log.close_segment()
    target.batch()
    swapped = (number, replace(a, name="b"), replace(b, name="a"))
    log.transaction(insert(replace(first, columns=swapped, version=2), 2, 11, 21))
    log.close_segment()
    apply_cut_off(target, place)
    assert target.rows("select id, b, a from t order by id") == [(1, 10, 20), (2, 11, 21)]


@pytest.mark.parametrize("ends", [True, False])
def test_a_change_waits_for_a_session_that_still_alters(
    my_start: MyStart, log: LogMaker, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last statement of a loader that was killed may run late, and write into new rows."""
    if not ends:
        monkeypatch.setattr(apply, "LOCK_TIMEOUT_S", 1)
    target = begin_target(my_start, log)
    text = Column(name="n", source_type="text", neutral="string", missing="old")
    wide = replace(OLD, columns=(*OLD.columns, text), version=2)
    log.transaction(insert(wide, 2, "b", "new"))
    log.close_segment()
    late = connect(target.url, application_name="late")
    begun = threading.Event()

    def write_late() -> None:
        with suppress(PenstockError), alone(late, target.log_id, wait_s=1):
            begun.set()
            run(late, f"do sleep({2 if ends else 600})", doing="testing")
            run(late, "alter table t add column n longtext", doing="testing")
            run(late, "update t set n = 'old'", doing="testing")
        late.close()

    thread = threading.Thread(target=write_late)
    thread.start()
    assert begun.wait(10)
    while target.applied.segment < 1:
        target.batch()
    thread.join()
    assert target.rows("select * from t order by id") == [(1, "a", "old"), (2, "b", "new")]
