"""Division of a batch's tables into parts, by measured cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.pipelines.changes import relation
from penstock.load.division import (
    PART_S_MIN,
    ROW_S,
    RowCosts,
    divide,
    is_divisible,
    split_phase,
)
from penstock.model import Marker, MarkerKind, TableName
from penstock.ports.target import Counts, MergeSpec, PhaseSpec

MANY = int(PART_S_MIN / ROW_S)  # rows that are worth a part of their own


def spec(name: str, rows: int) -> MergeSpec:
    """Return a filled merge table of the table `public.NAME`."""
    return MergeSpec(
        relation=relation(("id", "integer", "int32"), name=name),
        table=TableName("copy", name),
        staging=f"{name}_wkm",
        stamp=1,
        counts=Counts(changes=rows, upserts=rows),
    )


def phase(**rows: int) -> PhaseSpec:
    """Return a phase with so many rows of each table."""
    specs = tuple(spec(name, count) for name, count in rows.items())
    return PhaseSpec(relations=tuple(one.relation for one in specs), merges=specs, gsn=7)


def each(one: PhaseSpec) -> list[PhaseSpec]:
    """Return a phase for each table."""
    return split_phase(one, [{spec.table} for spec in one.merges])


def names(parts: list[list[PhaseSpec]]) -> list[set[str]]:
    """Return the tables of each part."""
    return [{spec.table.name for phase in part for spec in phase.merges} for part in parts]


def test_a_piece_has_its_tables_rows_and_shapes() -> None:
    """A group stays one piece, and no table of the phase is lost."""
    groups = [{TableName("copy", "a"), TableName("copy", "c")}, {TableName("copy", "b")}]
    first, second = split_phase(phase(a=1, b=2, c=3), groups)
    assert [one.table.name for one in first.merges] == ["a", "c"]
    assert [one.name for one in first.relations] == ["a", "c"]
    assert [one.name for one in second.relations] == ["b"]
    assert (first.gsn, second.gsn) == (7, 7)


def test_the_largest_tables_are_given_out_first() -> None:
    """The parts cost about the same."""
    rows = {"a": 4 * MANY, "b": 3 * MANY, "c": 3 * MANY, "d": MANY, "e": MANY}
    parts = divide(each(phase(**rows)), RowCosts(), count_max=3)
    assert sorted(names(parts), key=sorted) == [{"a"}, {"b", "d"}, {"c", "e"}]


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ({"a": MANY, "b": MANY // 2}, 0),
        ({"a": MANY, "b": MANY}, 2),
        ({"a": 9 * MANY}, 0),
        ({}, 0),
        ({"a": MANY, "b": MANY, "c": MANY}, 3),
        ({"a": 9 * MANY, "b": 9 * MANY, "c": 0, "d": 0}, 4),
    ],
)
def test_a_part_is_worth_its_cost(rows: dict[str, int], count: int) -> None:
    """Small batches, and a single table, stay in one session."""
    parts = divide(each(phase(**rows)), RowCosts(), count_max=4)
    assert len(parts) <= count
    assert sum(map(len, parts)) == (len(rows) if parts else 0)
    assert bool(parts) == bool(count)


def test_measured_costs_decide() -> None:
    """A table with few expensive rows is a part of its own."""
    costs = RowCosts()
    costs.note(phase(a=MANY), 100 * MANY * ROW_S)
    parts = divide(each(phase(a=MANY, b=3 * MANY, c=3 * MANY)), costs, count_max=2)
    assert names(parts) == [{"a"}, {"b", "c"}]


def test_the_cost_of_a_few_rows_is_not_that_of_rows() -> None:
    """The fixed cost of a batch of one row would make the table look expensive."""
    costs = RowCosts()
    costs.note(phase(a=1), 1.0)
    assert costs.estimate_s(phase(a=MANY)) == pytest.approx(MANY * ROW_S)


def test_costs_follow_what_is_measured() -> None:
    """A later batch counts as much as all earlier ones."""
    costs = RowCosts()
    for seconds in (1.0, 3.0):
        costs.note(phase(a=5000, b=5000), seconds)
    assert costs.estimate_s(phase(a=5000)) == pytest.approx(1.0)


def test_only_rows_are_divided() -> None:
    """A table that is emptied, or altered between two rows, keeps the batch in one session."""
    plain, table = phase(a=1), TableName("copy", "a")
    marker = Marker(kind=MarkerKind.TRUNCATE, gsn=1, trx=1, position=1, commit_time_us=0)
    assert is_divisible([plain])
    assert not is_divisible([plain, plain])
    assert not is_divisible([replace(plain, truncated=(table,))])
    assert not is_divisible([replace(plain, reloaded=(table,))])
    assert not is_divisible([replace(plain, emptyings=((table, marker),))])
    assert not is_divisible([replace(plain, histories=plain.merges)])
