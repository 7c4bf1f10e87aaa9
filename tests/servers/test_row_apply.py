"""Mutations applied row by row: the promises of `ports.row_apply`, on every engine."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from decimal import Decimal

import pytest

from penstock.model.hlc import Hlc
from penstock.ports.feeds import Mutation, StagedTable
from penstock.ports.row_apply import (
    DeadLetter,
    ReferenceMissing,
    RowKeyMissing,
    RowRules,
    RulesUnfit,
    SchemaDrift,
    row_target_at,
)
from plugins.row_apply import Rows, delete, documents, upsert


def test_rows_come_change_and_go(target: Rows) -> None:
    """An existing row is replaced, and a missing key can be deleted."""
    target.run("create table t (id bigint primary key, v varchar(20))")
    assert target.upsert(upsert({"id": 1, "v": "a"}), upsert({"id": 2, "v": "b"})) == []
    assert target.upsert(upsert({"id": 2, "v": None}), upsert({"id": 3, "v": "ü%s"})) == []
    assert target.delete(delete(1), delete(99)) == 1
    assert target.rows("select * from t order by id") == [(2, None), (3, "ü%s")]


def test_the_last_of_two_with_one_key_counts(target: Rows) -> None:
    """The last mutation of a key in one call counts, though the columns of both differ."""
    target.run("create table t (id bigint primary key, v int, w int)")
    target.upsert(upsert({"id": 1, "v": 1, "w": 1}), upsert({"id": 1, "v": 2}))
    assert target.rows("select * from t") == [(1, 2, None)]


def test_absent_columns_keep_what_they_have(target: Rows) -> None:
    """A new row gets the default; a column missing in the source does not become NULL or the
    default.
    """
    target.run("create table t (id bigint primary key, v int, d int default 7, n int not null)")
    target.upsert(upsert({"id": 1, "v": 1, "n": 5}))
    assert target.rows("select * from t") == [(1, 1, 7, 5)]
    target.run("update t set d = 8")
    target.upsert(upsert({"id": 1, "v": 2}))
    assert target.rows("select * from t") == [(1, 2, 8, 5)]


def test_generated_columns_are_left_to_the_target(target: Rows) -> None:
    """The target computes them, whatever the source says of them."""
    stored = "generated always as (v * 2) stored"
    target.run(f"create table t (id bigint primary key, v int, twice int {stored})")
    target.upsert(upsert({"id": 1, "v": 4, "twice": 99}))
    assert target.rows("select * from t") == [(1, 4, 8)]


def test_names_differ_by_case(target: Rows) -> None:
    """A property finds its column, and odd names are valid."""
    quote = target.session.quote
    target.run(f"create table t ({quote('Id')} bigint primary key, {quote('a %s b')} int)")
    target.upsert(upsert({"id": 1, "A %s B": 5}))
    assert target.rows("select * from t") == [(1, 5)]
    assert target.delete(delete(1)) == 1


def test_another_shape_is_schema_drift(target: Rows) -> None:
    """Unknown properties, missing keys and keys of another width are refused unwritten."""
    target.run("create table t (a int, id int, v int, primary key (id, a))")
    row = {"id": 1, "a": 2, "v": 3}
    name = f"{target.table().name}"
    with pytest.raises(SchemaDrift) as caught:
        target.upsert(upsert(row), upsert({**row, "x": 1, "b": 2}, time=5))
    assert caught.value.message == (
        f"schema drift detected in {name}: unexpected columns [b x]: key [1]@5.0000000000"
    )
    with pytest.raises(SchemaDrift, match=r"missing PK column a: key \[1\]@1\.0"):
        target.upsert(upsert({"id": 1, "v": 3}))
    with pytest.raises(
        SchemaDrift, match="inconsistent number of key columns: received 1 expect 2"
    ):
        target.delete(delete(1))
    assert target.rows("select * from t") == []


def test_a_table_without_a_key_is_refused(target: Rows) -> None:
    """Rows of a table without a key cannot be found."""
    target.run("create table t (id int)")
    with pytest.raises(RowKeyMissing, match="no primary key"):
        target.upsert(upsert({"id": 1}))


def test_keys_of_several_columns_are_in_the_order_of_the_primary_key(target: Rows) -> None:
    """The order of the primary key may differ from that of the table's columns."""
    target.run("create table t (a int, id varchar(5), primary key (id, a))")
    target.upsert(upsert({"id": "x", "a": 2}, key=["x", 2]), upsert({"id": "x", "a": 3}))
    assert target.delete(delete("x", 2), delete("y", 3)) == 1
    assert target.rows("select * from t") == [(3, "x")]


def test_a_key_in_another_order_than_the_sources_is_refused(target: Rows) -> None:
    """A delete would remove another row: the row in the line shows this."""
    target.run("create table t (a int, id int, primary key (id, a))")
    target.run("insert into t values (2, 1), (1, 2)")
    with pytest.raises(SchemaDrift, match="in another order than the source's"):
        target.upsert(upsert({"id": 1, "a": 2}, key=[2, 1]))
    with pytest.raises(SchemaDrift, match="in another order than the source's"):
        target.delete(Mutation(time=Hlc(1), key="[2,1]", after=None, before=b'{"id":1,"a":2}'))
    assert target.rows("select count(*) from t") == [(2,)]


def test_many_rows_in_statements_of_few(target: Rows) -> None:
    """The module's row limit divides many rows among statements."""
    target.run("create table t (id int primary key, v int)")
    rules = RowRules(row_limit=7)
    target.upsert(*(upsert({"id": n, "v": n}) for n in range(2_500)), rules=rules)
    assert target.rows("select count(*), sum(v) from t") == [(2500, 2499 * 1250)]
    assert target.delete(*(delete(n) for n in range(2_400)), rules=rules) == 2_400


def test_another_unique_key_is_respected(target: Rows) -> None:
    """A row never replaces a row of another key that has the same unique value."""
    target.run("create table t (id int primary key, u int unique, v int)")
    target.upsert(upsert({"id": 1, "u": 1, "v": 1}))
    with pytest.raises(Exception, match=r"(?i)duplicate"):
        target.upsert(upsert({"id": 2, "u": 1, "v": 2}))
    target.upsert(upsert({"id": 1, "u": 2, "v": 3}), upsert({"id": 3, "u": 5, "v": 4}))
    assert target.rows("select * from t order by id") == [(1, 2, 3), (3, 5, 4)]


def test_a_missing_parent_has_an_error_of_its_own(target: Rows) -> None:
    """The parent may come later; and a parent with children cannot be deleted."""
    target.run(
        "create table p (id int primary key)",
        "create table t (id int primary key, p int, foreign key (p) references p (id))",
    )
    with pytest.raises(ReferenceMissing):
        target.upsert(upsert({"id": 1, "p": 9}))
    target.upsert(upsert({"id": 9}), table="p")
    target.upsert(upsert({"id": 1, "p": 9}))
    with pytest.raises(ReferenceMissing):
        target.delete(delete(9), table="p")


def test_nothing_of_a_transaction_that_fails(target: Rows) -> None:
    """No row is written, and the session remains usable."""
    target.run("create table t (id int primary key)")

    def both() -> None:
        with target.session.transaction():
            target.session.upsert(target.table(), RowRules(), [upsert({"id": 1})])
            raise KeyError

    with pytest.raises(KeyError):
        both()
    assert target.rows("select * from t") == []
    target.upsert(upsert({"id": 2}))
    assert target.rows("select * from t") == [(2,)]


# --- rules ----------------------------------------------------------------------------------------


def test_compare_and_set_writes_what_is_newer(target: Rows) -> None:
    """Absent rows and strictly greater tuples are written; deletes are not compared."""
    target.run("create table t (id int primary key, major int, minor int, v varchar(9))")
    rules = RowRules(cas=("major", "minor"))

    def row(n: int, major: int, minor: int, v: str) -> Mutation:
        return upsert({"id": n, "major": major, "minor": minor, "v": v})

    assert target.upsert(row(1, 1, 9, "a"), row(2, 1, 9, "a"), rules=rules) == []
    lost = target.upsert(
        row(1, 2, 0, "b"), row(2, 1, 9, "b"), row(3, 0, 0, "b"), row(4, 0, 0, "c"), rules=rules
    )
    assert documents(lost) == [("[2]", None, None, None)]
    assert [one.mutation.key for one in target.upsert(row(1, 1, 99, "z"), rules=rules)] == ["[1]"]
    rows = target.rows("select id, v from t order by id")
    assert rows == [(1, "b"), (2, "a"), (3, "b"), (4, "c")]
    assert target.delete(delete(1), rules=rules) == 1


def test_numbers_are_compared_as_numbers(target: Rows) -> None:
    """Numbers are compared neither as texts nor as floats."""
    target.run("create table t (id int primary key, c bigint)")
    rules = RowRules(cas=("c",))
    target.upsert(upsert({"id": 1, "c": 9}), rules=rules)
    assert target.upsert(upsert({"id": 1, "c": 2**60}), rules=rules) == []
    assert len(target.upsert(upsert({"id": 1, "c": 2**60 - 1}), rules=rules)) == 1
    assert target.upsert(upsert({"id": 1, "c": 2**60 + 1}), rules=rules) == []
    assert target.rows("select c from t") == [(2**60 + 1,)]


def test_deadlines_drop_what_is_old(target: Rows) -> None:
    """A row is written only if its time is later than so long ago; NULL is not."""
    moment = "timestamptz" if target.is_postgres else "datetime(6)"
    target.run(f"create table t (id int primary key, at {moment}, v int)")
    rules = RowRules(deadlines={"at": 3600.0}, wants_target=True)
    new, old = "2999-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
    lost = target.upsert(
        upsert({"id": 1, "at": new, "v": 1}),
        upsert({"id": 2, "at": old, "v": 1}),
        upsert({"id": 3, "at": None, "v": 1}),
        rules=rules,
    )
    assert documents(lost) == [("[2]", None, None, None), ("[3]", None, None, None)]
    lost = target.upsert(upsert({"id": 1, "at": old, "v": 2}), rules=rules)
    assert json.loads(lost[0].target or b"")["v"] == 1
    assert target.rows("select id, v from t") == [(1, 1)]


def test_conflicts_are_spelt_alike(target: Rows) -> None:
    """The target's row, the proposed and the previous one have equal texts for equal values."""
    types = (
        "d numeric(12,2), at timestamptz, local timestamp(3), b bytea, c char(4), j jsonb, x jsonb"
        if target.is_postgres
        else "d decimal(12,2), at timestamp(6) null, local datetime(3), b blob, c char(4), j json,"
        " x json"
    )
    target.run(
        f"create table t (id bigint primary key, v int, {types},"
        " g int generated always as (v + 1) stored)"
    )
    row = {
        "id": 1,
        "v": 5,
        "d": 1.5,
        "at": "2024-03-01T10:00:00.12Z",
        "local": "2024-03-01T10:00:00.5",
        "b": "\\x00ff",
        "c": "ab",
        "j": {"b": [1, {"a": None}], "a": "ü"},
        "more": {"z": 1},
        "gone": 1,
    }
    rules = RowRules(cas=("v",), extras="x", ignore=frozenset({"gone"}), wants_target=True)
    assert target.upsert(upsert(row), rules=rules) == []
    again = upsert({**row, "d": 1.50, "more": 2}, time=2, before={**row, "v": 4, "g": 3})
    (lost,) = target.upsert(again, upsert({**row, "id": 2}), rules=rules)
    there, proposed, before = (
        json.loads(one or b"", parse_float=Decimal)
        for one in (lost.target, lost.proposed, lost.before)
    )
    assert there == {**proposed, "more": {"z": 1}}
    assert proposed == {**before, "v": 5, "more": 2}
    assert there["d"] == Decimal("1.5")
    assert there["at"] == row["at"]
    assert there["local"] == row["local"]
    assert there["b"] == row["b"]
    assert there["j"] == row["j"]
    assert there.keys() == row.keys() - {"gone"}
    # The shown row can be written again, and the other row of the call was written.
    final = Mutation(time=Hlc(3), key="[1]", after=lost.target)
    before_rows = target.rows("select * from t where id = 1")
    target.upsert(final, rules=RowRules(extras="x"))
    assert target.rows("select * from t where id = 1") == before_rows
    assert target.rows("select id from t order by id") == [(1,), (2,)]


def test_expressions_take_the_place_of_values(target: Rows) -> None:
    """$0 is the value; an expression without it needs none. Keys have expressions, too."""
    target.run("create table t (id int primary key, v int, w int, made varchar(20))")
    rules = RowRules(exprs={"id": "$0 + 100", "v": "$0 * 2 + mod($0, 10)", "made": "'us%s'"})
    target.upsert(upsert({"id": 1, "v": 4, "w": 1}), upsert({"id": 2, "w": 2}), rules=rules)
    rows = target.rows("select * from t order by id")
    assert rows == [(101, 12, 1, "us%s"), (102, None, 2, "us%s")]
    assert target.delete(delete(2), rules=rules) == 1
    assert target.rows("select id from t") == [(101,)]


def test_extras_and_ignored_properties(target: Rows) -> None:
    """Properties without a column go into the extras; ignored ones are dropped."""
    json_type = "jsonb" if target.is_postgres else "json"
    target.run(f"create table t (id int primary key, v int, rest {json_type}, w int)")
    rules = RowRules(extras="rest", ignore=frozenset({"v", "secret"}))
    target.upsert(
        upsert({"id": 1, "v": 1, "w": 2, "secret": 1, "a": [1], "b": "x"}),
        upsert({"id": 2, "rest": 5}),
        rules=rules,
    )
    cast = "rest::text" if target.is_postgres else "cast(rest as char)"
    rows = target.rows(f"select id, v, w, {cast} from t order by id")
    assert [(*row[:3], json.loads(row[3])) for row in rows] == [
        (1, None, 2, {"a": [1], "b": "x"}),
        (2, None, None, {"rest": 5}),
    ]


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (RowRules(cas=("x",)), "cas"),
        (RowRules(deadlines={"x": 1}), "deadline"),
        (RowRules(exprs={"x": "1"}), "expression"),
        (RowRules(extras="x"), "extras"),
    ],
)
def test_rules_name_columns_that_are_there(target: Rows, rules: RowRules, kind: str) -> None:
    """A rule that names a missing column writes nothing."""
    target.run("create table t (id int primary key)")
    with pytest.raises(RulesUnfit, match=rf"{kind} column name x not found in table \S+\.t$"):
        target.upsert(upsert({"id": 1}), rules=rules)


# --- others ---------------------------------------------------------------------------------------


def test_only_one_applies_at_a_time(target: Rows) -> None:
    """A session waits for a table that another one applies to, but not for other tables."""
    mine, other = StagedTable(target.group, "t"), StagedTable(target.group, "u")
    order: list[str] = []

    def second() -> None:
        with ExitStack() as stack:
            session = stack.enter_context(row_target_at(target.url).open_session())
            with session.exclusive([other]):
                order.append("other")
            begun.set()
            with session.exclusive([other, mine]):
                order.append("second")

    begun = threading.Event()
    thread = threading.Thread(target=second)
    with target.session.exclusive([mine]):
        thread.start()
        assert begun.wait(30)
        thread.join(0.3)
        order.append("first")
    thread.join(30)
    assert order == ["other", "first", "second"]


def test_dead_letters(target: Rows) -> None:
    """Images are as they came, JSON null if there is none."""
    json_type = "jsonb" if target.is_postgres else "json"
    target.run(
        "create table replicator_dlq (dlq_name varchar(40) not null, source_nanos bigint not null,"
        f" source_logical bigint not null, data_after {json_type} not null,"
        f" data_before {json_type} not null)"
    )
    letters = [
        DeadLetter(queue="q", time=Hlc(5, 6), after=b'{"a":1}', before=None),
        DeadLetter(queue="q", time=Hlc(2**62, 0), after=None, before=b'{"b":"%s"}'),
    ]
    with target.session.transaction():
        target.session.add_dead_letters(target.table("replicator_dlq"), letters)
    as_text = "%s::text" if target.is_postgres else "cast(%s as char)"
    images = ", ".join(as_text % name for name in ("data_after", "data_before"))
    rows = target.rows(
        f"select dlq_name, source_nanos, source_logical, {images} from replicator_dlq order by 2"
    )
    assert [(*row[:3], json.loads(row[3]), json.loads(row[4])) for row in rows] == [
        ("q", 5, 6, {"a": 1}, None),
        ("q", 2**62, 0, None, {"b": "%s"}),
    ]
