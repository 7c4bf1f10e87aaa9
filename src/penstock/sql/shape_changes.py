"""Changes that a shape of the log makes in a target's copy of the table.

Pure. The log says which columns are the same ones (`Column.id`) and in which order shapes follow
one another (`Relation.version`): nothing is guessed from names and types. Only a copy whose
identities are not known yet, fresh from the bulk load, is matched by name, once. Not here: the
policy for a change (`model/policies.py`), and the shape that was applied last (`TableRecord`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.codec.types import Server
from penstock.model import Column, ComputedColumn, Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.registry import PartName, engine_with_types
from penstock.ports.target import TableRecord

DROPPED_ID = 2**31  # larger than any identity from a source


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """Rules for a source's types, which are given as texts.

    Attributes:
        holds: returns whether the first type holds all values of the second.
        same: returns whether two texts are the same type.
    """

    holds: Callable[[str, str], bool]
    same: Callable[[str, str], bool]


TYPE_RULES_PART: PartName[TypeRules] = PartName("type_rules")


def type_rules_of(source_engine: str) -> TypeRules:
    """Return the rules for the types of an engine. source_engine: its name in a log, or empty."""
    return engine_with_types(Server.from_log(source_engine).engine).part(TYPE_RULES_PART)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """One difference between the copy and the wanted shape.

    Attributes:
        what: the sentence for messages, without a stop.
        column: the wanted column; None for a dropped one, and for changes of keys.
        name: of a dropped or renamed column, its name in the copy.
        columns: of a unique key, the names of its columns.
        computed: the generated column that changes, which rows do not have.
        is_recollated: the collation or character set of the column's text changed.
    """

    kind: ChangeKind
    what: str
    column: Column | None = None
    name: str = ""
    columns: tuple[str, ...] = ()
    computed: ComputedColumn | None = None
    is_recollated: bool = False


def shape_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """Return names and source types of a relation's columns, as a record keeps them."""
    return tuple((column.name, column.source_type) for column in relation.columns)


def key_of(relation: Relation) -> tuple[str, ...]:
    """Return the names of a relation's key columns."""
    return tuple(relation.columns[index].name for index in relation.key)


def not_null_of(relation: Relation) -> tuple[str, ...]:
    """Return the names of the columns that are never NULL."""
    return tuple(column.name for column in relation.columns if not column.nullable)


def ids_of(relation: Relation) -> tuple[int, ...]:
    """Return the identities of a relation's columns; empty if the source has none."""
    ids = tuple(column.id for column in relation.columns)
    return ids if all(ids) else ()


def computed_in(relation: Relation) -> tuple[tuple[int, str, str, str, bool], ...] | None:
    """Return a relation's generated columns, as a record keeps them; None if not known."""
    if relation.computed is None:
        return None
    return tuple(
        (one.id, one.name, one.source_type, one.expression, one.is_stored)
        for one in relation.computed
    )


def is_applied(record: TableRecord, relation: Relation, log_id: str = "") -> bool:
    """Return whether the target's copy has this shape, or a later one of the same log.

    Args:
        record: the copy as it is.
        relation: the shape.
        log_id: the relation's log; empty for the one that the record names.
    """
    if log_id and record.log_id != log_id:
        return False
    return 0 < relation.version <= record.version


def with_copied_ids(
    record: TableRecord, relation: Relation, starts: Mapping[TableName, int]
) -> TableRecord:
    """Return the record of a copy with the identities of its columns, if it lacks them.

    At the position of the copy the columns had the names that the record has. A column that the
    relation lacks was dropped since, and gets an identity that no other column has.

    Args:
        record: the copy as it is.
        relation: a shape of the table in the log, not older than the copy.
        starts: the positions at which tables were copied.
    """
    if record.version or record.ids or not record.columns or not ids_of(relation):
        return record
    if record.source not in starts:
        return record
    position = starts[record.source]
    then = {
        name.lower(): column.id
        for column in relation.columns
        if (name := column.name_at(position)) is not None
    }
    ids = tuple(
        then.get(name.lower(), DROPPED_ID + place) for place, (name, _) in enumerate(record.columns)
    )
    return replace(record, ids=ids, source_id=relation.source_id)


def renamed_columns(rows: Relation, table: Relation) -> dict[str, str]:
    """Return the names that columns of rows have in a later shape of the table, if they differ."""
    names = {column.id: column.name for column in table.columns if column.id}
    then = {column.name: names.get(column.id, column.name) for column in rows.columns}
    return {old: new for old, new in then.items() if old != new}


def replaced_columns(rows: Relation, table: Relation) -> set[str]:
    """Return the columns of rows whose names now belong to other columns of the table."""
    ids = {column.name: column.id for column in table.columns}
    return {column.name for column in rows.columns if ids.get(column.name, column.id) != column.id}


def has_ids(record: TableRecord, relation: Relation) -> bool:
    """Return whether a record's columns and a relation's can be matched by identity."""
    return bool(record.ids and ids_of(relation)) and record.source_id == relation.source_id


def names_in_the_way(
    record: TableRecord, relation: Relation, *, keeps_dropped: bool, fold: bool = False
) -> dict[str, str]:
    """Return the columns to be renamed first, with their temporary names.

    These are columns that the source has dropped or renamed, and whose name another column has
    now: two columns swap their names, or one is dropped and another takes its name.

    Args:
        record: the copy as it is.
        relation: the wanted shape.
        keeps_dropped: dropped columns stay in the target, by policy.
        fold: the target ignores the case of column names.
    """
    if not has_ids(record, relation):
        return {}

    def fold_case(name: str) -> str:
        return name.lower() if fold else name

    wanted = {fold_case(column.name): column.id for column in relation.columns}
    present = {column.id for column in relation.columns}
    found = {}
    for (name, _), number in zip(record.columns or (), record.ids, strict=True):
        taken_by = wanted.get(fold_case(name))
        stays = number not in present and keeps_dropped
        if taken_by not in (None, number) and not stays:
            found[name] = f"penstock_column_{number}"
    return found


def with_names(record: TableRecord, names: Mapping[str, str]) -> TableRecord:
    """Return the record of a copy whose columns were renamed.

    Args:
        record: the copy before the renames.
        names: old names to new ones.
    """

    def rename(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in given)

    columns = record.columns
    return replace(
        record,
        columns=columns and tuple((names.get(name, name), kind) for name, kind in columns),
        key=rename(record.key) if record.key else record.key,
        not_null=rename(record.not_null),
        left_out=rename(record.left_out),
        unique=record.unique and tuple(rename(one) for one in record.unique),
    )


def column_renames(record: TableRecord, relation: Relation) -> list[ShapeChange]:
    """Return the columns that have another name in the copy.

    These renames are carried out before the changes that `shape_changes` returns for the record of
    `under_new_names`.
    """
    if not has_ids(record, relation):
        return []
    old_names = dict(zip(record.ids, (name for name, _ in record.columns or ()), strict=True))
    return [
        ShapeChange(
            kind=ChangeKind.RENAME_COLUMN,
            what=f"column {old} was renamed to {column.name}",
            column=column,
            name=old,
        )
        for column in relation.columns
        if (old := old_names.get(column.id, column.name)) != column.name
    ]


def under_new_names(
    record: TableRecord, renames: Iterable[ShapeChange], *, is_key_kept: bool
) -> TableRecord:
    """Return the record as if its columns had already had these names when it was written.

    Args:
        record: the copy before the renames.
        renames: the renamed columns.
        is_key_kept: the target's columns were renamed, so its key did not change.
    """
    names = {change.name: change.column.name for change in renames if change.column is not None}
    if not names:
        return record
    renamed = with_names(record, names)
    return renamed if is_key_kept else replace(renamed, key=record.key, unique=record.unique)


def shape_changes(
    record: TableRecord,
    relation: Relation,
    types: TypeRules,
    *,
    computed: Collection[str] = (),
) -> list[ShapeChange]:
    """Return the changes of a relation in the copy besides names, in the order of execution.

    Args:
        record: the copy, with the present names of its columns.
        relation: the wanted shape.
        types: rules for the source's types.
        computed: columns that the target computes itself, which rows need not have.
    """
    before = dict(record.columns if record.columns is not None else shape_of(relation))
    now = {column.name: column for column in relation.columns}
    collations = dict(zip(before, record.collations, strict=False))
    dropped = [
        ShapeChange(kind=ChangeKind.DROP_COLUMN, what=f"column {name} was dropped", name=name)
        for name in before
        if name not in now and (name not in computed or relation.computed is None)
    ]
    added, result = [], []
    for column in relation.columns:
        if column.name not in before:
            what = f"column {column.name} was added as {column.source_type}"
            added.append(ShapeChange(kind=ChangeKind.ADD_COLUMN, what=what, column=column))
        elif not types.same(before[column.name], column.source_type):
            result.append(_change_type(before[column.name], column, types))
        elif (old := collations.get(column.name)) and column.collation not in ("", old):
            what = f"column {column.name} is of collation {column.collation}, it was of {old}"
            kind = ChangeKind.WIDEN_TYPE
            result.append(ShapeChange(kind=kind, what=what, column=column, is_recollated=True))
    # A table is never without columns: some servers refuse that.
    result = [*added, *dropped, *result]
    if record.key is not None:
        result += _nullability(record, relation, before)
        result += _key(record.key, key_of(relation))
    if record.unique is not None:
        result = [*_dropped_keys(record.unique, relation), *result]
    return result


def computed_changes(
    record: TableRecord, relation: Relation
) -> tuple[list[ShapeChange], list[ShapeChange]]:
    """Return the changes of generated columns: those to make first, and those to make last.

    A generated column is dropped before the columns that it is computed from change, and added
    after them. The same holds for a column whose old or new name is another column's. A column that
    is no longer generated is an ordinary column of the relation and is not included.
    """
    if record.computed is None or relation.computed is None:
        return [], []
    is_same = record.source_id in (0, relation.source_id)  # else it was created again
    now = {one.id: one for one in relation.computed if is_same}
    before = {one[0] for one in record.computed if is_same}
    ordinary = {column.id for column in relation.columns if is_same}
    others = {column.name for column in relation.columns}
    others |= {name for name, _ in record.columns or ()}
    leaving, coming = [], []
    for old in record.computed:
        number, name, *rest = old
        wanted = now.get(number)
        if wanted is None and number not in ordinary:
            leaving.append(_computed_dropped(old, f"generated column {name} was dropped"))
        elif (
            wanted is not None and [wanted.source_type, wanted.expression, wanted.is_stored] != rest
        ):
            leaving.append(_computed_dropped(old, f"generated column {name} was redefined"))
            coming.append(_computed_added(wanted))
        elif wanted is not None and wanted.name != name:
            what = f"generated column {name} was renamed to {wanted.name}"
            taken = others | {one[1] for one in record.computed if one[0] != number}
            if taken & {name, wanted.name}:
                leaving.append(_computed_dropped(old, what))
                coming.append(_computed_added(wanted))
                continue
            kind = ChangeKind.RENAME_COLUMN
            coming.append(ShapeChange(kind=kind, what=what, name=name, computed=wanted))
    coming += [_computed_added(one) for one in relation.computed if one.id not in before]
    return leaving, coming


def _computed_dropped(old: tuple[int, str, str, str, bool], what: str) -> ShapeChange:
    number, name, source_type, expression, is_stored = old
    computed = ComputedColumn(
        name=name, source_type=source_type, expression=expression, is_stored=is_stored, id=number
    )
    return ShapeChange(kind=ChangeKind.DROP_COLUMN, what=what, name=name, computed=computed)


def _computed_added(column: ComputedColumn) -> ShapeChange:
    what = f"generated column {column.name} was added as {column.source_type}"
    return ShapeChange(kind=ChangeKind.ADD_COLUMN, what=what, computed=column)


def _dropped_keys(before: tuple[tuple[str, ...], ...], relation: Relation) -> list[ShapeChange]:
    """Return the unique keys that the source has dropped, so that the target drops them before rows
    violate them.

    A key whose column was dropped is dropped with it.
    """
    if relation.unique is None:
        return []
    names = {column.name for column in relation.columns}
    now = {frozenset(key) for key in relation.unique} | {frozenset(key_of(relation))}
    return [
        ShapeChange(
            kind=ChangeKind.CHANGE_KEY,
            what=f"the unique key on {', '.join(key)} was dropped",
            columns=key,
        )
        for key in before
        if frozenset(key) not in now and set(key) <= names
    ]


def _change_type(before: str, column: Column, types: TypeRules) -> ShapeChange:
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
