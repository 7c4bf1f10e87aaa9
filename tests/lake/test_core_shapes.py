"""Changes of shape in a lake, with the format in memory: by the facts in the log, and by policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.lake.applying import LakeRun, create_table
from harness.lake.fake_format import FakeCatalogue, FakeFormat, FakeStore
from harness.pipelines.changes import Change
from harness.pipelines.loader import LogMaker
from penstock.codec.types import parse_choices
from penstock.engines.lake.known_tables import decode_record
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import Column, MarkerKind, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy, SchemaChangeRefused
from penstock.ports.target import ShapeNotApplicable, ValueRefused

NAME = TableName("public", "t")
POINTS = (
    "lake.apply.begun",
    "lake.fill.before",
    "lake.fill.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.after",
)


def shape(version: int, *columns: tuple[int, str, str, str], missing: str = "") -> Relation:
    """Return a version of the table: columns given as (id, name, source type, neutral type).

    missing: value of the last column in older rows.
    """
    made = [Column(id=i, name=n, source_type=s, neutral=k) for i, n, s, k in columns]
    if missing:
        made[-1] = replace(made[-1], missing=missing)
    return Relation(
        schema="public",
        name="t",
        columns=tuple(made),
        key=(0,),
        before=(0,),
        source_id=7,
        version=version,
    )


ID = (1, "id", "bigint", "int64")
FIRST_B = (3, "b", "text", "string")
FIRST = shape(1, ID, (2, "a", "integer", "int32"), FIRST_B)


class Lake:
    """Lake in memory with one table, and its log."""

    def __init__(self, folder: Path) -> None:
        """Create the table, and write its first rows."""
        self.url = f"delta+file://{folder}/lake"
        self.directory = folder / "log"
        self.directory.mkdir()
        self.store = FakeStore(root=folder / "lake")
        create_table(FakeCatalogue(self.store), FIRST)
        self.log = LogMaker(self.directory)
        self._is_open = False
        self.insert(FIRST, (1, 10, "one"), (2, 20, "two"))

    def insert(self, relation: Relation, *rows: tuple[Any, ...]) -> None:
        """Commit new rows."""
        self._is_open = True
        self.log.transaction(*((relation, Change(op="I", gsn=0, after=row)) for row in rows))

    def update(self, relation: Relation, *rows: tuple[Any, ...]) -> None:
        """Commit changed rows."""
        self._is_open = True
        self.log.transaction(*((relation, Change(op="U", gsn=0, after=row)) for row in rows))

    def open(
        self, policies: Policies | None = None, choices: Mapping[str, str] | None = None
    ) -> LakeRun:
        """Return a new loader of all that is written so far. choices: of [target.types]."""
        if self._is_open:
            self.log.close_segment()
            self._is_open = False
        return LakeRun(
            FakeFormat(self.store),
            self.url,
            self.directory,
            policies=policies or Policies(),
            choices=parse_choices(choices or {}, "postgresql"),
        )

    def run(
        self, policies: Policies | None = None, choices: Mapping[str, str] | None = None
    ) -> list[str]:
        """Apply everything; return the texts of the notes. choices: of [target.types]."""
        run = self.open(policies, choices)
        try:
            run.run()
            return [note.text for note in run.target.take_notes()]
        finally:
            run.close()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows in order of their keys."""
        return sorted(self.store.rows(NAME), key=lambda row: row["id"])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake with two rows in the log."""
    lake = Lake(tmp_path)
    yield lake
    lake.log.writer.close()


def test_an_added_column_comes_with_its_rows(lake: Lake) -> None:
    """Add a column without a value for older rows."""
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"))
    lake.insert(second, (3, 30, "three", 300))
    lake.update(second, (1, 11, "one", 100))
    notes = lake.run()
    assert lake.rows() == [
        {"id": 1, "a": 11, "b": "one", "c": 100},
        {"id": 2, "a": 20, "b": "two", "c": None},
        {"id": 3, "a": 30, "b": "three", "c": 300},
    ]
    assert any("column c was added" in note for note in notes)


@pytest.mark.parametrize("keeps_initial", [True, False])
def test_older_rows_have_the_value_of_an_added_column(lake: Lake, keeps_initial: bool) -> None:
    """Add a column with a value for older rows, which the format keeps or new files have."""
    lake.store.keeps_initial = keeps_initial
    lake.run()
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"), missing="7")
    lake.insert(second, (3, 30, "three", 300))
    lake.run()
    assert [row["c"] for row in lake.rows()] == [7, 7, 300]
    assert ("fill" in lake.store.tables[NAME].operations) is not keeps_initial


@pytest.mark.parametrize("keeps_initial", [True, False])
def test_older_rows_have_the_bytes_of_an_added_column(lake: Lake, keeps_initial: bool) -> None:
    """Add a column with bytes for older rows, which the log has as hexadecimal text."""
    lake.store.keeps_initial = keeps_initial
    lake.run()
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bytea", "binary"), missing=r"\x00ff")
    lake.insert(second, (3, 30, "three", b"new"))
    lake.run()
    assert [row["c"] for row in lake.rows()] == [b"\0\xff", b"\0\xff", b"new"]
    for number in (4, 5, 6):
        lake.insert(second, (number, number, "later", b"later"))
        lake.run()
    assert "compact" in lake.store.tables[NAME].operations  # by it, small files are joined
    assert [row["c"] for row in lake.rows()][:3] == [b"\0\xff", b"\0\xff", b"new"]


@pytest.mark.parametrize("keeps_initial", [True, False])
def test_a_value_of_older_rows_that_the_lake_cannot_hold(lake: Lake, keeps_initial: bool) -> None:
    """Refuse a column with such a value by name, and leave it NULL by choice."""
    lake.store.keeps_initial = keeps_initial
    lake.run()
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "date", "date"), missing="infinity")
    lake.insert(second, (3, 30, "three", date(2026, 11, 30)))
    loss = "dates out of range"
    with pytest.raises(ValueRefused, match=r"column c of public\.t") as refused:
        lake.run()
    assert f'"public.t.c {loss}" = "null"' in refused.value.hint
    lake.run(choices={f"public.t.c {loss}": "null"})
    assert [row["c"] for row in lake.rows()] == [None, None, date(2026, 11, 30)]


def test_dropped_and_renamed_columns_follow(lake: Lake) -> None:
    """Drop one column, rename another to its name, and add a new one in one version."""
    second = shape(2, ID, (3, "a", "text", "string"), (5, "d", "integer", "int32"))
    lake.insert(second, (3, "three", 5))
    lake.run()
    assert lake.rows() == [
        {"id": 1, "a": "one", "d": None},
        {"id": 2, "a": "two", "d": None},
        {"id": 3, "a": "three", "d": 5},
    ]


def test_columns_that_swap_their_names_keep_their_values(lake: Lake) -> None:
    """Swap the names of two columns."""
    second = shape(2, ID, (2, "b", "integer", "int32"), (3, "a", "text", "string"))
    lake.insert(second, (3, 30, "three"))
    lake.run()
    assert lake.rows() == [
        {"id": 1, "b": 10, "a": "one"},
        {"id": 2, "b": 20, "a": "two"},
        {"id": 3, "b": 30, "a": "three"},
    ]


def test_a_key_is_found_where_its_column_had_another_name(lake: Lake) -> None:
    """Swap the names of the key's column and of another one, and change a row, in one batch."""
    lake.run()
    second = shape(2, (1, "a", "bigint", "int64"), (2, "id", "integer", "int32"), FIRST_B)
    lake.update(second, (2, 21, "later"))
    lake.run()
    assert lake.rows() == [{"a": 1, "id": 10, "b": "one"}, {"a": 2, "id": 21, "b": "later"}]


def test_a_file_has_no_two_columns_of_one_name(lake: Lake) -> None:
    """Rename a column, and add one with the previous name in the same version."""
    lake.run()
    second = shape(2, ID, (2, "c", "integer", "int32"), FIRST_B, (4, "a", "bigint", "int64"))
    lake.insert(second, (3, 30, "three", 300))
    lake.run()
    assert lake.rows()[-1] == {"id": 3, "c": 30, "b": "three", "a": 300}
    for file in lake.store.newest(NAME).files:
        names = pq.read_schema(file.location).names
        assert sorted(set(names)) == sorted(names)


def test_a_wider_type_holds_old_and_new_values(lake: Lake) -> None:
    """Widen a column, and narrow it again."""
    second = shape(2, ID, (2, "a", "bigint", "int64"), (3, "b", "text", "string"))
    lake.insert(second, (3, 2**40, "three"))
    third = shape(3, ID, (2, "a", "integer", "int32"), (3, "b", "text", "string"))
    lake.update(third, (3, 33, "three"))
    lake.run()
    assert [row["a"] for row in lake.rows()] == [10, 20, 33]


@pytest.mark.parametrize(
    ("source_type", "neutral", "older"),
    [
        ("numeric(14,2)", "decimal(14,2)", [Decimal("10.00"), Decimal("20.00")]),
        ("numeric(11,0)", "decimal(11,0)", [Decimal(10), Decimal(20)]),
        ("numeric", "string", ["10", "20"]),
    ],
)
def test_a_number_that_the_format_cannot_change_in_place_gets_new_files(
    lake: Lake, source_type: str, neutral: str, older: list[Any]
) -> None:
    """Turn a number into one of another type, among rows that changed before and change later."""
    lake.update(FIRST, (2, 20, "before"))
    second = shape(2, ID, (2, "a", source_type, neutral), (3, "b", "text", "string"))
    seven, eight = ("7", "8") if neutral == "string" else (Decimal(7), Decimal(8))
    lake.insert(second, (3, seven, "three"))
    lake.update(second, (3, eight, "later"))
    lake.run()
    assert [row["a"] for row in lake.rows()] == [*older, eight]
    assert [row["b"] for row in lake.rows()] == ["one", "before", "later"]
    assert lake.store.tables[NAME].operations.count("fill") == 1


def test_a_table_without_rows_gets_a_number_of_another_type(lake: Lake) -> None:
    """Turn a number into one of another type when there are no files."""
    lake.log.transaction((MarkerKind.TRUNCATE, [NAME]))
    lake.run()
    second = shape(2, ID, (2, "a", "numeric", "string"), (3, "b", "text", "string"))
    lake.insert(second, (3, "7", "three"))
    lake.run()
    assert lake.rows() == [{"id": 3, "b": "three", "a": "7"}]


def test_a_value_that_a_new_type_does_not_hold_stops_by_name(lake: Lake) -> None:
    """Turn a number into one with fewer digits than a value has that only the lake has."""
    lake.insert(FIRST, (3, 99999, "three"))
    second = shape(2, ID, (2, "a", "numeric(3,0)", "decimal(3,0)"), (3, "b", "text", "string"))
    lake.insert(second, (4, Decimal(7), "four"))
    with pytest.raises(ShapeNotApplicable, match=r"a became decimal\(3,0\)") as raised:
        lake.run()
    assert "penstock table resync" in raised.value.hint
    assert [row["a"] for row in lake.rows()] == [10, 20, 99999]


def test_a_type_that_the_format_cannot_change_stops_by_name(lake: Lake) -> None:
    """Turn a text into a number."""
    second = shape(2, ID, (2, "a", "integer", "int32"), (3, "b", "integer", "int32"))
    lake.insert(second, (3, 30, 3))
    with pytest.raises(ShapeNotApplicable, match="b became integer") as raised:
        lake.run()
    assert "penstock table resync" in raised.value.hint
    assert [row["b"] for row in lake.rows()] == ["one", "two"]


def test_an_emptied_table_takes_any_type(lake: Lake) -> None:
    """Turn a number into a text in a table that is read again."""
    second = shape(2, ID, (2, "a", "text", "string"), (3, "b", "text", "string"))
    lake.log.transaction((MarkerKind.TRUNCATE, [NAME]))
    lake.insert(second, (3, "x", "three"))
    lake.run()
    assert lake.rows() == [{"id": 3, "b": "three", "a": "x"}]


@pytest.mark.parametrize("policy", [Policy.LENIENT, Policy.IGNORE])
def test_columns_stay_by_policy(lake: Lake, policy: Policy) -> None:
    """Drop a column whose values are kept."""
    second = shape(2, ID, (2, "a", "integer", "int32"))
    lake.insert(second, (3, 30))
    lake.run(Policies(kinds={ChangeKind.DROP_COLUMN: policy}))
    assert [row["b"] for row in lake.rows()] == ["one", "two", None]


def test_an_ignored_column_is_left_out(lake: Lake) -> None:
    """Add a column that the lake does not get."""
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"))
    lake.insert(second, (3, 30, "three", 300))
    lake.run(Policies(kinds={ChangeKind.ADD_COLUMN: Policy.IGNORE}))
    assert lake.rows()[-1] == {"id": 3, "a": 30, "b": "three"}


def test_a_refused_change_stops_before_it(lake: Lake) -> None:
    """Stop at a change by policy, with the rows before it applied."""
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"))
    lake.insert(second, (3, 30, "three", 300))
    with pytest.raises(SchemaChangeRefused):
        lake.run(Policies(kinds={ChangeKind.ADD_COLUMN: Policy.EXCEPTION}))


def test_what_cannot_be_carried_out_is_noted(lake: Lake) -> None:
    """Turn a text into a number under a policy that continues."""
    lake.run()
    second = shape(2, ID, (2, "a", "integer", "int32"), (3, "b", "integer", "int32"))
    lake.insert(second, (3, 30, 33))
    notes = lake.run(Policies(default=Policy.TRY_EVOLVE))
    assert any("could not be carried out" in note for note in notes)
    assert [row["b"] for row in lake.rows()] == ["one", "two", "33"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("keeps_initial", [True, False])
@pytest.mark.parametrize(
    ("source_type", "neutral"), [("bigint", "int64"), ("numeric(20,2)", "decimal(20,2)")]
)
def test_a_failure_at_any_step_of_a_change_leaves_a_whole_table(
    lake: Lake, point: str, keeps_initial: bool, source_type: str, neutral: str
) -> None:
    """Fail in the middle of a change of shape, and go on with a new loader."""
    lake.store.keeps_initial = keeps_initial
    lake.run()
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"), missing="7")
    third = shape(3, ID, (2, "a", source_type, neutral), (4, "e", "bigint", "int64"))
    lake.insert(second, (3, 30, "three", 300))
    lake.update(second, (1, 11, "one", 100))
    lake.update(third, (2, 2**40, 200))
    nth = 1
    while True:
        run = lake.open()
        try:
            with faults.arming(f"{point}:{nth}:error"):
                run.run()
            run.close()
            break
        except FaultInjected:
            run.fail()
            nth = nth % 2 + 1
    lake.run()
    assert lake.rows() == [
        {"id": 1, "a": 11, "e": 100},
        {"id": 2, "a": 2**40, "e": 200},
        {"id": 3, "a": 30, "e": 300},
    ]
    record = decode_record(lake.store.newest(NAME).record, NAME)
    assert record is not None
    assert record.version == 3


@pytest.mark.parametrize("point", ["", "lake.commit.after", "lake.commit.before"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_change_inside_of_a_transaction_counts_once(lake: Lake, point: str, nth: int) -> None:
    """Change the shape between rows of one transaction, with a failure between its commits."""
    lake.run()
    second = shape(2, ID, *as_tuples(FIRST)[1:], (4, "c", "bigint", "int64"))
    lake.log.transaction(
        (FIRST, Change(op="I", gsn=0, after=(3, 30, "three"))),
        (FIRST, Change(op="U", gsn=0, after=(1, 11, "one"))),
        (second, Change(op="I", gsn=0, after=(4, 40, "four", 400))),
        (second, Change(op="U", gsn=0, after=(3, 33, "three", 300))),
    )
    lake.log.close_segment()
    if point:
        run = lake.open()
        with faults.arming(f"{point}:{nth}:error"), pytest.raises(FaultInjected):
            run.run()
        run.fail()
    lake.run()
    assert lake.rows() == [
        {"id": 1, "a": 11, "b": "one", "c": None},
        {"id": 2, "a": 20, "b": "two", "c": None},
        {"id": 3, "a": 33, "b": "three", "c": 300},
        {"id": 4, "a": 40, "b": "four", "c": 400},
    ]
    operations = [one for one in lake.store.tables[NAME].operations if one != "compact"]
    assert operations == ["create", "batch", "batch", "batch"]


def as_tuples(relation: Relation) -> Sequence[tuple[int, str, str, str]]:
    """Return a relation's columns as `shape` takes them."""
    return [(one.id, one.name, one.source_type, one.neutral) for one in relation.columns]
