"""Changes of a lake table's shape: from a relation of the log to changes that one commit makes.

Pure. A plan is computed twice from the same facts: when rows are staged, because files are written
with the columns that the table will have, and when they are committed; both must agree. Columns are
matched by their identities in the log, as in `sql/shape_changes.py`. Not here: the commit
(`target.py`), and which changes a format can make (`LakeTable.refuse_change`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from penstock.codec.types import ValueUnfit, parse_value
from penstock.codec.types.to_lake import LakeMapping
from penstock.engines.lake.format import Change, LakeColumn, LakeTable, Snapshot
from penstock.engines.lake.format import ChangeKind as LakeChangeKind
from penstock.engines.lake.refusals import value_refused
from penstock.model import Column, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import ShapeNotApplicable, ShapeNote, TableRecord
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import (
    ShapeChange,
    column_renames,
    has_ids,
    is_applied,
    names_in_the_way,
    shape_changes,
    type_rules_of,
    under_new_names,
    with_copied_ids,
    with_names,
)

logger = structlog.get_logger(__name__)

_EVOLVING = (Policy.EVOLVE, Policy.TRY_EVOLVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a table that is planned on.

    Attributes:
        columns: As in `Snapshot`; also next_field_id.
        record: What the source's table was like then.
    """

    columns: tuple[LakeColumn, ...]
    next_field_id: int
    record: TableRecord

    @classmethod
    def of(cls, snapshot: Snapshot, record: TableRecord) -> Shape:
        """Return the shape of a version of a table."""
        return cls(columns=snapshot.columns, next_field_id=snapshot.next_field_id, record=record)

    def column(self, name: str) -> LakeColumn | None:
        """Return the column of this name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePlan:
    """Changes to make, and the shape that results.

    Attributes:
        changes: In order; each is relative to the columns after the one before.
        fills: By name of an added column the text of the value that existing rows must get, where
            the format cannot keep it as the column's initial value.
        casts: By name of a column the previous one whose values it takes over, where the format
            cannot change the type in place.
        notes: The changes, applied or not.
    """

    shape: Shape
    changes: tuple[Change, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, LakeColumn] = field(default_factory=dict)
    notes: tuple[ShapeNote, ...] = ()

    @property
    def is_rewrite(self) -> bool:
        """Return whether existing rows need new files."""
        return bool(self.fills or self.casts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Planner of the changes of one table.

    Attributes:
        table: Says which changes the format makes in place.
        mapping_of: Returns the type that a source column has in the lake.
        log_id: The log that relations are from.
        starts: See `PhaseSpec`.
        is_emptied: The rows are removed in the same commit, so values need not fit.
    """

    table: LakeTable
    policies: Policies
    source_engine: str
    mapping_of: Callable[[Column], LakeMapping]
    log_id: str
    starts: Mapping[TableName, int] = field(default_factory=dict)
    is_emptied: bool = False

    def plan(self, shape: Shape, relation: Relation, snapshot: Snapshot) -> ShapePlan:
        """Return the changes to a relation's shape; none if the table has it or a later one.

        Raises SchemaChangeRefused, ShapeNotApplicable, ValueRefused.
        """
        if is_applied(shape.record, relation, self.log_id):
            return ShapePlan(shape=shape)
        record = with_copied_ids(shape.record, relation, self.starts)
        return _Planning(self, replace(shape, record=record), relation, snapshot).run()


class _Planning:
    """One plan while it is made."""

    def __init__(
        self, planner: Planner, shape: Shape, relation: Relation, snapshot: Snapshot
    ) -> None:
        self._planner = planner
        self._table = planner.table
        self._policies = planner.policies
        self._before = shape.record
        self._relation = relation
        self._snapshot = snapshot
        self._columns = list(shape.columns)
        self._next_field_id = shape.next_field_id
        self._types = type_rules_of(planner.source_engine)
        self._drift = SchemaDrift.of(shape.record)
        self._changes: list[Change] = []
        self._fills: dict[str, str] = {}
        self._casts: dict[str, LakeColumn] = {}
        self._notes: list[ShapeNote] = []

    def run(self) -> ShapePlan:
        """Return the plan."""
        names = column_renames(self._before, self._relation)
        known = self._under_new_names(self._before, names)
        for change in [*names, *shape_changes(known, self._relation, self._types)]:
            self._policies.check(change.kind, change.what, table=str(self._table.name))
        record = self._set_aside(self._before)
        names = column_renames(record, self._relation)
        for change in names:
            if not self._drift.never_there(change):
                self._go(change)
        known = self._under_new_names(record, names)
        for change in shape_changes(known, self._relation, self._types):
            self._go(change)
        self._notes += self._drift.applied_notes(self._table.name)
        return ShapePlan(
            shape=Shape(
                columns=tuple(self._columns),
                next_field_id=self._next_field_id,
                record=self._drift.record(
                    self._before, self._relation, log_id=self._planner.log_id
                ),
            ),
            changes=tuple(self._changes),
            fills=self._fills,
            casts=self._casts,
            notes=tuple(self._notes),
        )

    def _under_new_names(self, record: TableRecord, names: Sequence[ShapeChange]) -> TableRecord:
        is_key_kept = self._policies.of(ChangeKind.RENAME_COLUMN) in _EVOLVING
        return under_new_names(record, names, is_key_kept=is_key_kept)

    def _set_aside(self, record: TableRecord) -> TableRecord:
        """Rename columns whose names other columns get, temporarily."""
        if self._policies.keeps(ChangeKind.RENAME_COLUMN):
            return record
        keeps_dropped = self._policies.keeps(ChangeKind.DROP_COLUMN)
        aside = names_in_the_way(record, self._relation, keeps_dropped=keeps_dropped)
        for old, new in aside.items():
            if (column := self._find(old)) is not None:
                self._rename(column, new, f"column {old} makes room for another of that name")
        return with_names(record, aside)

    def _go(self, change: ShapeChange) -> None:
        """Make one change by its policy."""
        policy = self._policies.of(change.kind)
        if policy is Policy.TRY_EVOLVE:
            saved = self._save()
            try:
                self._evolve(change)
                policy = Policy.EVOLVE
            except ShapeNotApplicable as error:
                self._restore(saved)
                policy = Policy.LENIENT
                note = self._drift.note(change, error.message)
                self._notes.append(ShapeNote(table=self._table.name, text=note))
                self._lenient(change)
        elif policy is Policy.EVOLVE:
            self._evolve(change)
        elif policy is Policy.LENIENT:
            self._lenient(change)
        self._drift.went(change, policy)

    def _save(self) -> _Saved:
        changes, fills, casts = list(self._changes), {**self._fills}, {**self._casts}
        return list(self._columns), self._next_field_id, changes, fills, casts

    def _restore(self, saved: _Saved) -> None:
        self._columns, self._next_field_id, self._changes, self._fills, self._casts = saved

    # --- as at the source -------------------------------------------------------------------------

    def _evolve(self, change: ShapeChange) -> None:
        column = change.column
        if change.kind is ChangeKind.DROP_COLUMN:
            if (found := self._find(change.name)) is not None:
                self._make(Change(kind=LakeChangeKind.DROP, name=found.name), change.what)
        elif change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            if (found := self._find(change.name)) is not None:
                self._rename(found, column.name, change.what)
        elif change.kind is ChangeKind.ADD_COLUMN and column is not None:
            self._add(column, change)
        elif column is not None and change.kind in (
            ChangeKind.WIDEN_TYPE,
            ChangeKind.CHANGE_TYPE,
            ChangeKind.NARROW_TYPE,
        ):
            self._retype(column, change)
        # A lake's columns may all be NULL, and it has no keys: nothing else changes there.

    def _add(self, column: Column, change: ShapeChange) -> None:
        kind = self._type_of(column)
        if self._find(column.name) is not None:
            raise self._not_applicable(
                f"{change.what}, and the lake's table still has an earlier column of that name"
            )
        initial = self._value_of_existing(column, kind)
        added = self._table.plan_column(
            column.name, kind, field_id=self._next_field_id, initial=initial
        )
        self._make(Change(kind=LakeChangeKind.ADD, name=added.name, column=added), change.what)
        if initial is not None and added.initial is None:
            self._fills[added.name] = initial

    def _retype(self, column: Column, change: ShapeChange) -> None:
        found = self._find(column.name)
        if found is None:
            return
        kind = self._type_of(column)
        if kind == found.type or (not self._planner.is_emptied and holds(found.type, kind)):
            return  # it may be wider since an earlier change
        if self._planner.is_emptied:
            self._replace(found, kind, change.what)
            return
        if change.kind is ChangeKind.NARROW_TYPE:
            return  # the wider type holds all of its values
        widened = Change(
            kind=LakeChangeKind.WIDEN, name=found.name, column=replace(found, type=kind)
        )
        if self._refuse(widened) and is_exact(found.type, kind):
            self._replace(found, kind, change.what)
            self._casts[found.name] = found
        else:
            self._make(widened, change.what)

    def _replace(self, column: LakeColumn, kind: str, what: str) -> None:
        """Put a column of another type in place of one. All files are replaced with it."""
        if any(one.source.identity == column.identity for one in self._snapshot.partition):
            raise self._not_applicable(f"{what}: the table is partitioned by it")
        added = self._table.plan_column(
            column.name, kind, field_id=self._next_field_id, initial=None, is_emptied=True
        )
        for change in (
            Change(kind=LakeChangeKind.DROP, name=column.name),
            Change(kind=LakeChangeKind.ADD, name=added.name, column=added),
        ):
            self._columns = list(apply_change(self._columns, change))
            self._changes.append(change)
        if self._next_field_id:
            self._next_field_id += 1

    def _rename(self, column: LakeColumn, name: str, what: str) -> None:
        # A file with ids is read by them. Its columns get the new names: an added one may have the
        # old name, and pyiceberg refuses a file with two columns of one name.
        has_own_name = column.physical or not column.field_id
        physical = column.file_name if has_own_name else ""
        renamed = replace(column, name=name, physical=physical)
        self._make(Change(kind=LakeChangeKind.RENAME, name=column.name, column=renamed), what)

    # --- leniently --------------------------------------------------------------------------------

    def _lenient(self, change: ShapeChange) -> None:
        """Make a change so that no column and no value of the lake is lost."""
        column = change.column
        if column is None:
            return
        if change.kind in (ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN):
            if self._find(column.name) is None:
                kind = self._type_of(column)
                added = self._table.plan_column(
                    column.name,
                    kind,
                    field_id=self._next_field_id,
                    initial=self._value_of_existing(column, kind),
                )
                self._make(
                    Change(kind=LakeChangeKind.ADD, name=added.name, column=added), change.what
                )
        elif change.kind is ChangeKind.WIDEN_TYPE:
            self._retype(column, change)

    # --- parts ------------------------------------------------------------------------------------

    def _find(self, name: str) -> LakeColumn | None:
        return next((column for column in self._columns if column.name == name), None)

    def _type_of(self, column: Column) -> str:
        mapping = self._planner.mapping_of(column)
        if not mapping.refused:
            return mapping.type
        raise ShapeNotApplicable(
            f"column {column.name} of {self._table.name}, {column.source_type} at the source: "
            f"{mapping.refused}",
            hint="Change the choice in [target.types] (`penstock plan` shows them), then run "
            "again: nothing of the batch was applied.",
            table=str(self._table.name),
        )

    def _value_of_existing(self, column: Column, kind: str) -> str | None:
        """Return the text of an added column's value in existing rows; None for NULL.

        It may be NULL by a choice in [target.types]. Raises ValueRefused if the lake's type cannot
        hold it.
        """
        if self._planner.is_emptied or column.missing is None:
            return None
        mapping = self._planner.mapping_of(column)
        try:
            value = parse_value(column.missing, kind, mapping=mapping)
        except ValueUnfit as error:
            source = TableName(self._relation.schema, self._relation.name)
            wanted = LakeColumn(name=column.name, type=kind)
            raise value_refused(error, column, wanted, source) from error
        return column.missing if value.is_valid else None

    def _make(self, change: Change, what: str) -> None:
        """Add a change to the plan. Raises ShapeNotApplicable if the format cannot make it."""
        if why := self._refuse(change):
            raise self._not_applicable(f"{what}: {why}")
        self._columns = list(apply_change(self._columns, change))
        if change.kind is LakeChangeKind.ADD and self._next_field_id:
            self._next_field_id += 1
        self._changes.append(change)

    def _refuse(self, change: Change) -> str:
        """Return why the format cannot make a change in place; empty if it can."""
        snapshot = replace(self._snapshot, columns=tuple(self._columns))
        return self._table.refuse_change(change, snapshot)

    def _not_applicable(self, what: str) -> ShapeNotApplicable:
        return ShapeNotApplicable(
            f"{self._table.name}: {what}",
            hint="Copy the table again, which replaces it in one commit: penstock table resync "
            f"FILE {self._before.source}",
            table=str(self._table.name),
        )


_Saved = tuple[list[LakeColumn], int, list[Change], dict[str, str], dict[str, LakeColumn]]


def is_exact(before: str, after: str) -> bool:
    """Return whether values of a type become those of another without a choice of form.

    The log says that the source has kept every value. Digits are the same in numbers and texts.
    """
    return _is_exact_number(before) and (_is_exact_number(after) or after == "string")


def holds(wider: str, narrower: str) -> bool:
    """Return whether a type has all values of another one, exactly."""
    if wider == narrower or (narrower, wider) in (("float32", "float64"), ("int32", "int64")):
        return True
    if not (wider.startswith("decimal(") and _is_exact_number(narrower)):
        return False
    (digits, scale), (old_digits, old_scale) = _digits_of(wider), _digits_of(narrower)
    return digits >= old_digits and scale >= old_scale


def _digits_of(kind: str) -> tuple[int, int]:
    """Return the digits of an exact number before and after the point."""
    if kind in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[kind], 0
    precision, scale = map(int, kind.removeprefix("decimal(").removesuffix(")").split(","))
    return precision - scale, scale


_INTEGER_DIGITS = {"int32": 10, "int64": 19}


def _is_exact_number(kind: str) -> bool:
    return kind in _INTEGER_DIGITS or kind.startswith("decimal(")


def apply_change(columns: Sequence[LakeColumn], change: Change) -> tuple[LakeColumn, ...]:
    """Return a table's columns after a change."""
    if change.kind is LakeChangeKind.ADD:
        assert change.column is not None, "an added column is given"
        return (*columns, change.column)
    if change.kind is LakeChangeKind.DROP:
        return tuple(column for column in columns if column.name != change.name)
    assert change.column is not None, "a changed column is given"
    return tuple(change.column if one.name == change.name else one for one in columns)


def columns_for(shape: Shape, relation: Relation) -> tuple[LakeColumn | None, ...]:
    """Return for each column of a relation's rows the lake's column; None if it is left out.

    relation: of the rows, whose shape may be older than the table's. Raises ShapeNotApplicable if
    the table lacks a column for another reason.
    """
    record = shape.record
    names = {column.name: column.name for column in relation.columns}
    if has_ids(record, relation):
        now = dict(zip(record.ids, (name for name, _ in record.columns or ()), strict=True))
        names = {column.name: now.get(column.id, "") for column in relation.columns}
    found: list[LakeColumn | None] = []
    for place, column in enumerate(relation.columns):
        name = names[column.name]
        here = None if name in record.left_out else shape.column(name)
        is_missing = name and here is None and name not in record.left_out
        if is_missing or (here is None and place in relation.key):
            raise ShapeNotApplicable(
                f"the lake's table {record.target} has no column {name or column.name}, the source "
                f"has it as {column.source_type}",
                hint="Copy the table again, which replaces it in one commit: penstock table "
                f"resync FILE {record.source}",
                table=str(record.target),
            )
        found.append(here)
    return tuple(found)


def same_columns(one: Sequence[LakeColumn | None], other: Sequence[LakeColumn | None]) -> bool:
    """Return whether files written with these columns are files of those."""
    return [_file_facts(column) for column in one] == [_file_facts(column) for column in other]


def _file_facts(column: LakeColumn | None) -> tuple[str, str, int | str] | None:
    return None if column is None else (column.name, column.type, column.identity)
