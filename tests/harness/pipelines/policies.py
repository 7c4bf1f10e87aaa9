"""Changes of shape by policy, for the modules that name the target: test_*schema_policies.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import delete, insert, update
from penstock.model import Column, MarkerKind, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy, SchemaChangeRefused
from penstock.ports.target import KeyNotInTarget, ShapeNotApplicable, TableRecord

ID = Column(name="id", source_type="integer", neutral="int32", nullable=False, id=1)
NAME = Column(name="name", source_type="text", neutral="string", id=2)
N = Column(name="n", source_type="integer", neutral="int32", nullable=False, id=3)
MORE = Column(name="more", source_type="integer", neutral="int32", id=4)
TABLE = TableName("public", "t")
DDL = "create table t (id int primary key, name varchar(20), n int not null)"
Begin = Callable[..., Applying]


def build_shape(*columns: Column, version: int, key: tuple[int, ...] = (0,)) -> Relation:
    """Return a relation of t."""
    base = relation(("id", "integer", "int32"), version=version)
    return replace(base, columns=columns, key=key, before=key)


BASE = build_shape(ID, NAME, N, version=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change after row (1, 'a', 10), and its results.

    Attributes:
        row: First row of the new shape.
        shown: Query of the result.
        evolved: Result of the query under evolve.
        lenient: Result of the query under lenient.
        ignored: Result of the query under ignore.
    """

    after: Relation
    row: tuple[Any, ...]
    shown: str
    evolved: Any
    lenient: Any
    ignored: Any


BIG = replace(N, source_type="bigint", neutral="int64")
SMALL = replace(N, source_type="smallint", neutral="int16")
TEXT_N = replace(N, source_type="text", neutral="string")
FREE = replace(N, nullable=True)
CASES = {
    ChangeKind.ADD_COLUMN: Case(
        after=build_shape(ID, NAME, N, MORE, version=2),
        row=(2, "b", 20, 7),
        shown="select * from t order by id",
        evolved=[(1, "a", 10, None), (2, "b", 20, 7)],
        lenient=[(1, "a", 10, None), (2, "b", 20, 7)],
        ignored=[(1, "a", 10), (2, "b", 20)],
    ),
    ChangeKind.DROP_COLUMN: Case(
        after=build_shape(ID, N, version=2),
        row=(2, 20),
        shown="select * from t order by id",
        evolved=[(1, 10), (2, 20)],
        lenient=[(1, "a", 10), (2, None, 20)],
        ignored=[(1, "a", 10), (2, None, 20)],
    ),
    ChangeKind.RENAME_COLUMN: Case(
        after=build_shape(ID, replace(NAME, name="title"), N, version=2),
        row=(2, "b", 20),
        shown="select * from t order by id",
        evolved=[(1, "a", 10), (2, "b", 20)],
        lenient=[(1, "a", 10, "a"), (2, None, 20, "b")],
        ignored=[(1, "a", 10), (2, None, 20)],
    ),
    ChangeKind.WIDEN_TYPE: Case(
        after=build_shape(ID, NAME, BIG, version=2),
        row=(2, "b", 20),
        shown="type",
        evolved="bigint",
        lenient="bigint",
        ignored="int",
    ),
    ChangeKind.NARROW_TYPE: Case(
        after=build_shape(ID, NAME, SMALL, version=2),
        row=(2, "b", 20),
        shown="type",
        evolved="smallint",
        lenient="int",
        ignored="int",
    ),
    ChangeKind.CHANGE_TYPE: Case(
        after=build_shape(ID, NAME, TEXT_N, version=2),
        row=(2, "b", "20"),
        shown="type",
        evolved="text",
        lenient="text",
        ignored="int",
    ),
    ChangeKind.NULLABILITY: Case(
        after=build_shape(ID, NAME, FREE, version=2),
        row=(2, "b", 20),
        shown="null",
        evolved="YES",
        lenient="YES",
        ignored="NO",
    ),
    ChangeKind.CHANGE_KEY: Case(
        after=build_shape(ID, NAME, N, version=2, key=(2,)),
        row=(2, "b", 20),
        shown="key",
        evolved=["n"],
        lenient=["n"],
        ignored=["id"],
    ),
    ChangeKind.TRUNCATE: Case(
        after=BASE,
        row=(2, "b", 20),
        shown="select * from t order by id",
        evolved=[(2, "b", 20)],
        lenient=[(1, "a", 10), (2, "b", 20)],
        ignored=[(1, "a", 10), (2, "b", 20)],
    ),
}
_OF_SQLSERVER = (
    " from sys.columns as c join sys.types as y on y.user_type_id = c.user_type_id"
    " where c.object_id = object_id('dbo.t') and c.name = '{name}'"
)
_OF_ORACLE = " FROM ALL_TAB_COLS WHERE TABLE_NAME = 't' AND COLUMN_NAME = '{name}'"
FACTS = {
    "sqlserver": {
        "data_type": f"select y.name{_OF_SQLSERVER}",
        "is_nullable": f"select case c.is_nullable when 1 then 'YES' else 'NO' end{_OF_SQLSERVER}",
    },
    "oracle": {
        "data_type": f"SELECT DATA_TYPE || DATA_PRECISION{_OF_ORACLE}",
        "is_nullable": f"SELECT CASE NULLABLE WHEN 'Y' THEN 'YES' ELSE 'NO' END{_OF_ORACLE}",
    },
}
"""Facts about a column of t, for engines without an information_schema as others have it."""

KEYS = {
    "sqlserver": (
        "select c.name from sys.index_columns as k"
        " join sys.indexes as i on i.object_id = k.object_id and i.index_id = k.index_id"
        " join sys.columns as c on c.object_id = k.object_id and c.column_id = k.column_id"
        " where i.is_primary_key = 1 and k.object_id = object_id('dbo.t') order by k.key_ordinal"
    ),
    "oracle": (
        "SELECT k.COLUMN_NAME FROM ALL_CONS_COLUMNS k JOIN ALL_CONSTRAINTS c"
        " ON c.CONSTRAINT_NAME = k.CONSTRAINT_NAME AND c.OWNER = k.OWNER"
        " WHERE c.CONSTRAINT_TYPE = 'P' AND c.TABLE_NAME = 't' ORDER BY k.POSITION"
    ),
}
TYPES = {
    "integer": "int",
    "longtext": "text",
    "nvarchar": "text",
    "CLOB": "text",
    "NUMBER5": "smallint",
    "NUMBER10": "int",
    "NUMBER19": "bigint",
}
"""Names of types as the cases have them, by those of the engines."""

WITHOUT_TRUNCATE = [kind for kind in ChangeKind if kind is not ChangeKind.TRUNCATE]


def read_state(target: Applying, shown: str) -> Any:
    """Return the target's state that a case asks for."""
    if shown == "type":
        kind = column_fact(target, "data_type")
        return TYPES.get(kind, kind)
    if shown == "null":
        return column_fact(target, "is_nullable")
    if shown == "key":
        rows = target.rows(
            KEYS.get(scheme_of(target))
            or "select k.column_name from information_schema.key_column_usage as k"
            " join information_schema.table_constraints as c"
            " on c.constraint_name = k.constraint_name and c.table_name = k.table_name"
            " and c.table_schema = k.table_schema"
            " where c.constraint_type = 'PRIMARY KEY' and k.table_name = 't'"
            f" and k.table_schema = '{schema_of(target)}'"
        )
        return [row[0] for row in rows]
    return target.rows(shown)


def scheme_of(target: Applying) -> str:
    """Return the scheme of the target's URL."""
    return target.url.partition(":")[0]


def column_word(target: Applying) -> str:
    """Return the word after ADD that SQL Server and Oracle do not have."""
    return "" if scheme_of(target) in FACTS else "column "


def schema_of(target: Applying) -> str:
    """Return the schema of t."""
    return target.namespaces.get("public", "public")


def column_fact(target: Applying, fact: str, name: str = "n") -> str:
    """Return a fact about a column of t."""
    facts = FACTS.get(scheme_of(target))
    rows = target.rows(
        facts[fact].format(name=name)
        if facts is not None
        else f"select {fact} from information_schema.columns where table_name = 't'"
        f" and table_schema = '{schema_of(target)}' and column_name = '{name}'"
    )
    return str(rows[0][0])


def record_of(target: Applying) -> TableRecord:
    """Return the target's record of t."""
    inner = target.target
    records = getattr(inner, "_records", None) or inner.records
    got = records.get(TABLE, TableName(schema_of(target), "t"))
    assert isinstance(got, TableRecord)
    return got


def begin_target(begin: Begin, log: LogMaker, policies: Policies = Policies()) -> Applying:  # noqa: B008
    """Return a target with row (1, 'a', 10), in its first shape."""
    target = begin(DDL, policies=policies)
    log.transaction(insert(BASE, 1, "a", 10))
    log.close_segment()
    target.batch()
    return target


def change(log: LogMaker, kind: ChangeKind) -> None:
    """Write the change of a kind, and the row after it."""
    case = CASES[kind]
    if kind is ChangeKind.TRUNCATE:
        log.transaction((MarkerKind.TRUNCATE, [TABLE]))
    log.transaction(insert(case.after, *case.row))
    log.close_segment()


def settle(target: Applying, log: LogMaker) -> None:
    """Apply the whole log."""
    while target.applied.gsn < log.gsn:
        target.batch()


class EveryKind:
    """Each kind of change under each policy."""

    @pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
    def test_exception_stops_before_it_and_another_policy_goes_on(
        self, begin: Begin, log: LogMaker, kind: ChangeKind, again: Callable[..., Applying]
    ) -> None:
        """The change is named, and nothing of it is done; a restart with evolve does it."""
        target = begin_target(begin, log, Policies(kinds={kind: Policy.EXCEPTION}))
        before = [read_state(target, shown) for shown in ("select * from t", "type", "null", "key")]
        change(log, kind)
        with pytest.raises(SchemaChangeRefused) as caught:
            settle(target, log)
        assert caught.value.fields["kind"] == kind.value
        assert kind.value in caught.value.hint
        assert "penstock run" in caught.value.hint
        assert [
            read_state(target, shown) for shown in ("select * from t", "type", "null", "key")
        ] == before
        later = again(target, policies=Policies())
        settle(later, log)
        assert read_state(later, CASES[kind].shown) == CASES[kind].evolved

    @pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
    @pytest.mark.parametrize("policy", [Policy.EVOLVE, Policy.TRY_EVOLVE], ids=str)
    def test_evolve_does_what_the_source_did(
        self, begin: Begin, log: LogMaker, kind: ChangeKind, policy: Policy
    ) -> None:
        """Both policies evolve the table if that is possible, and no note is written."""
        target = begin_target(begin, log, Policies(default=policy))
        change(log, kind)
        settle(target, log)
        shown = read_state(target, CASES[kind].shown)
        assert sorted(map(str, shown)) == sorted(map(str, CASES[kind].evolved))
        assert record_of(target).notes == ()

    @pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
    def test_lenient_gives_nothing_up(self, begin: Begin, log: LogMaker, kind: ChangeKind) -> None:
        """Columns and values stay, and new columns are added."""
        target = begin_target(begin, log, Policies(kinds={kind: Policy.LENIENT}))
        change(log, kind)
        settle(target, log)
        assert read_state(target, CASES[kind].shown) == CASES[kind].lenient

    @pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
    def test_ignore_leaves_the_shape(self, begin: Begin, log: LogMaker, kind: ChangeKind) -> None:
        """Rows are written into the existing columns."""
        target = begin_target(begin, log, Policies(kinds={kind: Policy.IGNORE}))
        change(log, kind)
        settle(target, log)
        assert read_state(target, CASES[kind].shown) == CASES[kind].ignored

    @pytest.mark.parametrize("policy", [Policy.LENIENT, Policy.IGNORE], ids=str)
    @pytest.mark.parametrize("kind", WITHOUT_TRUNCATE, ids=str)
    def test_rows_go_on_behind_it(
        self,
        begin: Begin,
        log: LogMaker,
        kind: ChangeKind,
        policy: Policy,
        again: Callable[..., Applying],
    ) -> None:
        """Updates and deletes follow too, and in a process that was started later."""
        target = begin_target(begin, log, Policies(default=policy))
        change(log, kind)
        settle(target, log)
        case = CASES[kind]
        place = [column.name for column in case.after.columns].index("n")
        changed = list(case.row)
        changed[place] = "21" if isinstance(changed[place], str) else 21
        gone = [None] * len(case.row)
        gone[0] = 1
        old = tuple(case.row) if kind is ChangeKind.CHANGE_KEY else None
        if kind is ChangeKind.CHANGE_KEY:
            gone[place] = 10
        log.transaction(update(case.after, *changed, old=old), delete(case.after, *gone))
        log.close_segment()
        later = again(target, policies=Policies(default=policy))
        settle(later, log)
        rows = later.rows("select id, n from t")
        assert [(row[0], int(row[1])) for row in rows] == [(2, 21)]


class Leniently:
    """Promises of the policies for columns and values."""

    def test_what_cannot_be_done_is_noted(self, begin: Begin, log: LogMaker) -> None:
        """Text that is not a number stays text under try_evolve, and so do new values."""
        target = begin_target(begin, log, Policies(default=Policy.TRY_EVOLVE))
        number = replace(NAME, source_type="integer", neutral="int32")
        log.transaction(insert(build_shape(ID, number, N, version=2), 2, 5, 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, name, n from t order by id") == [(1, "a", 10), (2, "5", 20)]
        (note,) = record_of(target).notes
        assert "column name became integer" in note

    def test_evolve_stops_where_it_cannot_be_done(self, begin: Begin, log: LogMaker) -> None:
        """No part of the change is applied."""
        target = begin_target(begin, log)
        number = replace(NAME, source_type="integer", neutral="int32")
        log.transaction(insert(build_shape(ID, number, N, version=2), 2, 5, 20))
        log.close_segment()
        with pytest.raises(Exception, match="applying to"):
            settle(target, log)
        assert target.rows("select * from t") == [(1, "a", 10)]

    def test_a_type_that_neither_holds_becomes_text(self, begin: Begin, log: LogMaker) -> None:
        """Existing and new values are both kept."""
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        day = replace(N, source_type="uuid", neutral="uuid", nullable=False)
        log.transaction(insert(build_shape(ID, NAME, day, version=2), 2, "b", b"\1" * 16))
        log.close_segment()
        settle(target, log)
        assert target.rows("select n from t order by id") == [
            ("10",),
            ("01010101-0101-0101-0101-010101010101",),
        ]

    def test_rows_truncated_in_the_same_batch_stay(self, begin: Begin, log: LogMaker) -> None:
        """Truncated rows stay, even those that were never in the target before."""
        target = begin_target(begin, log, Policies(kinds={ChangeKind.TRUNCATE: Policy.LENIENT}))
        log.transaction(insert(BASE, 2, "b", 20), update(BASE, 1, "a", 11))
        log.transaction((MarkerKind.TRUNCATE, [TABLE]), insert(BASE, 1, "z", 12))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "z", 12), (2, "b", 20)]

    def test_a_table_read_again_keeps_what_the_source_dropped(
        self, begin: Begin, log: LogMaker
    ) -> None:
        """Deleted rows are removed; the remaining ones keep their values in the column."""
        target = begin_target(begin, log, Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT}))
        small = build_shape(ID, N, version=2)
        log.transaction(insert(BASE, 2, "b", 20), insert(BASE, 3, "c", 30))
        log.transaction(update(small, 1, 11))
        log.close_segment()
        settle(target, log)
        log.transaction((MarkerKind.RELOAD, [TABLE]), insert(small, 1, 12), insert(small, 3, 31))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "a", 12), (3, "c", 31)]

    def test_a_name_that_comes_back_is_refused(self, begin: Begin, log: LogMaker) -> None:
        """The kept column's values are not those of the new one."""
        target = begin_target(begin, log, Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT}))
        log.transaction(insert(build_shape(ID, N, version=2), 2, 20))
        log.close_segment()
        settle(target, log)
        log.transaction(insert(build_shape(ID, N, NAME, version=3), 3, 30, "c"))
        log.close_segment()
        with pytest.raises(ShapeNotApplicable, match="earlier column of that name"):
            settle(target, log)

    def test_columns_that_are_not_sent(self, begin: Begin, log: LogMaker) -> None:
        """A left-out column that is unchanged is no more required than one that is sent."""
        target = begin_target(begin, log, Policies(kinds={ChangeKind.ADD_COLUMN: Policy.IGNORE}))
        wide = build_shape(ID, NAME, N, MORE, version=2)
        log.transaction(insert(wide, 2, "b", 20, 5))
        log.transaction(
            update(wide, 1, "x", 11, None, absent=(3,)),
            update(wide, 2, None, 21, None, absent=(1, 3)),
        )
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "x", 11), (2, "b", 21)]

    def test_a_left_out_column_that_somebody_adds(
        self, begin: Begin, log: LogMaker, again: Callable[..., Applying]
    ) -> None:
        """The column is written from then on."""
        target = begin_target(begin, log, Policies(kinds={ChangeKind.ADD_COLUMN: Policy.IGNORE}))
        wide = build_shape(ID, NAME, N, MORE, version=2)
        log.transaction(insert(wide, 2, "b", 20, 5))
        log.close_segment()
        settle(target, log)
        target.execute(f"alter table t add {column_word(target)}more int")
        log.transaction(insert(wide, 3, "c", 30, 6))
        log.close_segment()
        later = again(target, policies=Policies())
        settle(later, log)
        assert later.rows("select * from t order by id") == [
            (1, "a", 10, None),
            (2, "b", 20, None),
            (3, "c", 30, 6),
        ]

    def test_rows_without_a_key_are_made_out_by_all_columns(
        self, begin: Begin, log: LogMaker
    ) -> None:
        """No column can be left out then."""
        target = begin("create table t (id int)", policies=Policies(default=Policy.IGNORE))
        log.transaction(insert(build_shape(ID, version=1, key=()), 1))
        log.close_segment()
        target.batch()
        log.transaction(insert(build_shape(ID, MORE, version=2, key=()), 2, 2))
        log.close_segment()
        with pytest.raises(KeyNotInTarget):
            settle(target, log)

    def test_a_key_that_is_renamed_leniently(self, begin: Begin, log: LogMaker) -> None:
        """The old column stays, and rows are found by the new one."""
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        renamed = build_shape(replace(ID, name="key"), NAME, N, version=2)
        log.transaction((MarkerKind.RELOAD, [TABLE]), insert(renamed, 1, "a", 10))
        log.transaction(update(renamed, 1, "b", 11), insert(renamed, 2, "c", 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select name, n from t order by n") == [("b", 11), ("c", 20)]
        assert column_fact(target, "is_nullable", "id") == "YES"


TITLE = replace(NAME, name="title")
IN_PLACE = build_shape(ID, TITLE, N, version=2)
IN_PLACE_SHOWN: dict[Policy, list[tuple[Any, ...]]] = {
    Policy.EVOLVE: [(1, "a", 10), (2, "b", 20)],
    Policy.TRY_EVOLVE: [(1, "a", 10), (2, "b", 20)],
    Policy.LENIENT: [(1, "a", 10, "a"), (2, None, 20, "b")],
    Policy.IGNORE: [(1, "a", 10), (2, None, 20)],
}


class InPlace:
    """Columns renamed without a reload: the existing rows have their values already."""

    @pytest.mark.parametrize("policy", list(IN_PLACE_SHOWN), ids=str)
    def test_values_stay(
        self, begin: Begin, log: LogMaker, policy: Policy, again: Callable[..., Applying]
    ) -> None:
        """Rows follow under each policy, in a process started later, too."""
        target = begin_target(begin, log, Policies(default=policy))
        log.transaction(insert(IN_PLACE, 2, "b", 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == IN_PLACE_SHOWN[policy]
        assert record_of(target).notes == ()
        log.transaction(update(IN_PLACE, 2, "c", 21), delete(IN_PLACE, 1, None, None))
        log.close_segment()
        later = again(target, policies=Policies(default=policy))
        settle(later, log)
        name = "title" if policy is not Policy.IGNORE else "null"
        assert later.rows(f"select id, n, {name} from t") == [
            (2, 21, "c" if policy is not Policy.IGNORE else None)
        ]

    def test_exception_stops_before_it(
        self, begin: Begin, log: LogMaker, again: Callable[..., Applying]
    ) -> None:
        """The change is named; evolve does it."""
        target = begin_target(
            begin, log, Policies(kinds={ChangeKind.RENAME_COLUMN: Policy.EXCEPTION})
        )
        log.transaction(insert(IN_PLACE, 2, "b", 20))
        log.close_segment()
        with pytest.raises(SchemaChangeRefused, match="name was renamed to title"):
            settle(target, log)
        assert target.rows("select id, name, n from t") == [(1, "a", 10)]
        later = again(target, policies=Policies())
        settle(later, log)
        assert later.rows("select id, title, n from t order by id") == [(1, "a", 10), (2, "b", 20)]

    @pytest.mark.parametrize("policy", [Policy.EVOLVE, Policy.LENIENT], ids=str)
    def test_with_another_type(self, begin: Begin, log: LogMaker, policy: Policy) -> None:
        """One statement renames and widens the column, twice before a row comes."""
        target = begin_target(begin, log, Policies(default=policy))
        wide = replace(BIG, name="m")
        log.transaction(insert(build_shape(ID, NAME, wide, version=3), 2, "b", 2**40))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, m from t order by id") == [(1, 10), (2, 2**40)]

    @pytest.mark.parametrize("policy", list(IN_PLACE_SHOWN)[:3], ids=str)
    def test_the_keys_column(self, begin: Begin, log: LogMaker, policy: Policy) -> None:
        """Rows are found by its new name."""
        target = begin_target(begin, log, Policies(default=policy))
        renamed = build_shape(replace(ID, name="key"), NAME, N, version=2)
        log.transaction(update(renamed, 1, "b", 11), insert(renamed, 2, "c", 20))
        log.close_segment()
        settle(target, log)
        log.transaction(update(renamed, 2, "d", 21))
        log.close_segment()
        settle(target, log)
        assert target.rows("select name, n from t order by n") == [("b", 11), ("d", 21)]
        assert read_state(target, "key") == ["key"]

    def test_a_column_that_the_target_never_had(self, begin: Begin, log: LogMaker) -> None:
        """The column is left out under its new name."""
        kinds = {ChangeKind.ADD_COLUMN: Policy.IGNORE}
        target = begin_target(begin, log, Policies(kinds=kinds))
        log.transaction(insert(build_shape(ID, NAME, N, MORE, version=2), 2, "b", 20, 5))
        log.close_segment()
        settle(target, log)
        other = replace(MORE, name="other")
        log.transaction(insert(build_shape(ID, NAME, N, other, version=3), 3, "c", 30, 6))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [
            (1, "a", 10),
            (2, "b", 20),
            (3, "c", 30),
        ]
        assert record_of(target).left_out == ("other",)

    def test_both_names_are_there(
        self, begin: Begin, log: LogMaker, again: Callable[..., Applying]
    ) -> None:
        """The target's own column has the name: which one is meant is not guessed."""
        target = begin_target(begin, log)
        target.execute(f"alter table t add {column_word(target)}title int")
        log.transaction(insert(IN_PLACE, 2, "b", 20))
        log.close_segment()
        later = again(target, policies=Policies(default=Policy.EVOLVE))
        with pytest.raises(ShapeNotApplicable, match="has both"):
            settle(later, log)
        assert later.rows("select id, name from t") == [(1, "a")]

    def test_another_column_has_the_old_name(self, begin: Begin, log: LogMaker) -> None:
        """A column is renamed, another added under its name: identities distinguish them."""
        target = begin_target(begin, log)
        both = build_shape(ID, TITLE, replace(NAME, id=5, missing="new"), N, version=3)
        log.transaction(insert(both, 2, "b", "x", 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, title, name, n from t order by id") == [
            (1, "a", "new", 10),
            (2, "b", "x", 20),
        ]

    def test_two_columns_swap_their_names(self, begin: Begin, log: LogMaker) -> None:
        """Both have one type: the values move with the identities."""
        other = Column(name="other", source_type="text", neutral="string", id=5, missing="o")
        target = begin_target(begin, log)
        log.transaction(insert(build_shape(ID, NAME, N, other, version=2), 2, "b", 20, "p"))
        log.close_segment()
        settle(target, log)
        swapped = (replace(NAME, name="other"), N, replace(other, name="name"))
        log.transaction(insert(build_shape(ID, *swapped, version=3), 3, "c", 30, "q"))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, other, n, name from t order by id") == [
            (1, "a", 10, "o"),
            (2, "b", 20, "p"),
            (3, "c", 30, "q"),
        ]

    def test_a_column_dropped_and_added_again(self, begin: Begin, log: LogMaker) -> None:
        """Name and type are the same: existing rows have the new column's value."""
        target = begin_target(begin, log)
        again = replace(NAME, id=5, missing="new")
        log.transaction(insert(build_shape(ID, again, N, version=2), 2, "b", 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, name, n from t order by id") == [
            (1, "new", 10),
            (2, "b", 20),
        ]

    def test_a_dropped_name_goes_to_another_column(self, begin: Begin, log: LogMaker) -> None:
        """The dropped column's values are removed with it."""
        other = Column(name="other", source_type="text", neutral="string", id=5, missing="o")
        target = begin_target(begin, log)
        log.transaction(insert(build_shape(ID, NAME, N, other, version=2), 2, "b", 20, "p"))
        log.close_segment()
        settle(target, log)
        log.transaction(
            insert(build_shape(ID, N, replace(other, name="name"), version=3), 3, 30, "q")
        )
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, n, name from t order by id") == [
            (1, 10, "o"),
            (2, 20, "p"),
            (3, 30, "q"),
        ]

    def test_rows_that_await_a_reload_are_not_applied(self, begin: Begin, log: LogMaker) -> None:
        """The table stays at its last known state until all rows come."""
        target = begin_target(begin, log)
        recast = replace(N, source_type="text", neutral="string")
        waits = replace(build_shape(ID, NAME, recast, version=2), awaits_reload="n became text")
        log.transaction(insert(waits, 2, "b", "twenty"))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, name, n from t") == [(1, "a", 10)]
        known = build_shape(ID, NAME, recast, version=3)
        rows = (insert(known, 1, "a", "ten"), insert(known, 2, "b", "twenty"))
        log.transaction((MarkerKind.RELOAD, [TABLE]), *rows)
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, name, n from t order by id") == [
            (1, "a", "ten"),
            (2, "b", "twenty"),
        ]
