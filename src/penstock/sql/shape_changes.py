"""How two shapes of a table differ, change by change: what was applied last, and what is wanted.

Pure. Only what the log has is compared: names, types, which columns may be NULL, the key. Not here:
what becomes of a change (`policies.py`), and what was applied last (`TableRecord`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.ports.policies import ChangeKind
from penstock.ports.refusals import ShapeNotApplicable
from penstock.ports.target import TableRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """What is known of a source's types, given as texts.

    holds: whether the first holds all values of the second. same: whether they are one type,
    written in two ways.
    """

    holds: Callable[[str, str], bool]
    same: Callable[[str, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """One difference. what: the sentence for messages, without a stop.

    column: the column as it is now, None where it is gone or the key is meant. name: of a column
    that is gone, or was renamed: what it was called. keeps_rows: existing rows have their values
    already, under the other name.
    """

    kind: ChangeKind
    what: str
    column: Column | None = None
    name: str = ""
    keeps_rows: bool = False


def shape_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """The part of a relation that a record's columns are: names and source types."""
    return tuple((column.name, column.source_type) for column in relation.columns)


def key_of(relation: Relation) -> tuple[str, ...]:
    """The names of a relation's key."""
    return tuple(relation.columns[index].name for index in relation.key)


def not_null_of(relation: Relation) -> tuple[str, ...]:
    """The names of the columns that are never NULL."""
    return tuple(column.name for column in relation.columns if not column.nullable)


def is_applied(record: TableRecord, relation: Relation) -> bool:
    """Whether a table was brought to exactly this shape before, as far as the record says."""
    return (
        record.columns == shape_of(relation)
        and record.key is not None
        and set(record.key) == set(key_of(relation))
        and set(record.not_null) == set(not_null_of(relation))
    )


def column_renames(
    record: TableRecord, relation: Relation, there: Collection[str]
) -> list[ShapeChange]:
    """Columns that have another name than when the table was last brought to a shape.

    there: the target table's columns, for a table that was not brought to any. To be carried out
    before what `shape_changes` finds with `under_new_names`. Raises ShapeNotApplicable where a name
    went from one column to another meanwhile.
    """
    before = {name for name, _ in record.columns} if record.columns is not None else {*there}
    now = {column.name for column in relation.columns}
    found = []
    for column in relation.columns:
        old = next((name for name in column.was if name in before), None)
        if column.name in before or old is None:
            continue
        if old in now:
            raise ShapeNotApplicable(
                f"column {old} of {relation.full_name} was renamed to {column.name}, and there is "
                "another column of the old name since",
                hint=LOAD_AFRESH,
                table=relation.full_name,
            )
        what = f"column {old} was renamed to {column.name}"
        found.append(
            ShapeChange(
                kind=ChangeKind.RENAME_COLUMN, what=what, column=column, name=old, keeps_rows=True
            )
        )
    return found


def under_new_names(
    record: TableRecord, renames: Iterable[ShapeChange], *, is_key_kept: bool
) -> TableRecord:
    """The record as if its columns had had these names then.

    is_key_kept: the target's columns were renamed, so that its key is the one that it was.
    """
    names = {change.name: change.column.name for change in renames if change.column is not None}
    if not names:
        return record

    def renamed(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in given)

    columns = record.columns
    return replace(
        record,
        columns=columns and tuple((names.get(name, name), kind) for name, kind in columns),
        key=renamed(record.key) if record.key and is_key_kept else record.key,
        not_null=renamed(record.not_null),
        left_out=renamed(record.left_out),
    )


def shape_changes(
    record: TableRecord,
    relation: Relation,
    types: TypeRules,
    *,
    computed: Collection[str] = (),
    renamed: bool = False,
) -> list[ShapeChange]:
    """What a relation changes in the shape that was applied last, in an order to carry it out in.

    computed: columns that the target computes itself, which rows need not have. renamed: the log
    says that columns got other names, so that a column in the place of another is that one.
    """
    before = dict(record.columns if record.columns is not None else shape_of(relation))
    now = {column.name: column for column in relation.columns}
    names = _renamed(record, relation) if renamed else {}
    result = [
        ShapeChange(kind=ChangeKind.DROP_COLUMN, what=f"column {name} was dropped", name=name)
        for name in before
        if name not in now and name not in names.values() and name not in computed
    ]
    for column in relation.columns:
        if column.name in names:
            old = names[column.name]
            what = f"column {old} was renamed to {column.name}"
            result.append(
                ShapeChange(kind=ChangeKind.RENAME_COLUMN, what=what, column=column, name=old)
            )
        elif column.name not in before:
            what = f"column {column.name} was added as {column.source_type}"
            result.append(ShapeChange(kind=ChangeKind.ADD_COLUMN, what=what, column=column))
        elif not types.same(before[column.name], column.source_type):
            result.append(_retyped(before[column.name], column, types))
    if record.key is not None:
        result += _nullability(record, relation, before)
        result += _key(record.key, key_of(relation))
    return result


def _renamed(record: TableRecord, relation: Relation) -> Mapping[str, str]:
    """New names to old ones, where columns are in the same places as before."""
    old = [name for name, _ in record.columns or ()]
    new = [column.name for column in relation.columns]
    if len(old) != len(new):
        return {}
    return {
        now: before
        for before, now in zip(old, new, strict=True)
        if before != now and before not in new and now not in old
    }


def _retyped(before: str, column: Column, types: TypeRules) -> ShapeChange:
    kind = ChangeKind.CHANGE_TYPE
    if types.holds(column.source_type, before):
        kind = ChangeKind.WIDEN_TYPE
    elif types.holds(before, column.source_type):
        kind = ChangeKind.NARROW_TYPE
    what = f"column {column.name} became {column.source_type}, it was {before}"
    return ShapeChange(kind=kind, what=what, column=column)


def _nullability(
    record: TableRecord, relation: Relation, before: Mapping[str, str]
) -> list[ShapeChange]:
    result = []
    for column in relation.columns:
        was_nullable = column.name not in record.not_null
        if column.name in before and was_nullable != column.nullable:
            what = f"column {column.name} {'may' if column.nullable else 'must not'} be NULL"
            result.append(ShapeChange(kind=ChangeKind.NULLABILITY, what=what, column=column))
    return result


def _key(old: tuple[str, ...], new: tuple[str, ...]) -> list[ShapeChange]:
    if set(old) == set(new):
        return []
    listed = ", ".join(new) or "nothing"
    what = f"the key became {listed}, it was {', '.join(old) or 'nothing'}"
    return [ShapeChange(kind=ChangeKind.CHANGE_KEY, what=what)]
