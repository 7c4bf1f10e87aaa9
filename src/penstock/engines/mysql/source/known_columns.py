"""The columns of a table along the binlog, with identities that statements carry on. Pure.

A name cannot distinguish a column that was dropped and added again from one that stayed. So each
column gets a number when it is first seen, and every statement of the binlog updates it. Changes
that no statement shows are kept as a doubt: the rows before it are then not known in the new shape,
and the table is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.codec.copy_rows import fit_missing
from penstock.codec.mysql.retyping import keeps_values
from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.source.ddl_text import ALL_COLUMNS, Effect
from penstock.model import Column, Relation, TableDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumn:
    """A column at a place of the binlog.

    Attributes:
        id: identity, from 1, never used again in this table.
        missing: text of the value of rows written before the column was added; None is NULL.
        redefined: number of statements that gave it another definition since the last relation.
        names: as `Column.names`.
    """

    id: int
    name: str
    missing: str | None = None
    redefined: int = 0
    names: tuple[tuple[int, str], ...] = ()

    def rename(self, name: str, since: int) -> KnownColumn:
        """Return the column under the name that it has since a position."""
        if name == self.name:
            return self
        names = self.names or ((0, self.name),)
        return replace(self, name=name, names=(*names, (since, name)))

    def name_at(self, since: int) -> str:
        """Return its name at a position."""
        return next((name for at, name in reversed(self.names) if at <= since), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """All columns of a table at a place of the binlog.

    Attributes:
        doubt: reason why rows written earlier are not known in this shape; empty if they are.
        is_loose: a session that was not strict changed the table since the last relation.
        conversion: a clause since the last relation that converts text to a character set.
        lost_keys: identities of the columns of each unique key that was dropped since then.
    """

    columns: tuple[KnownColumn, ...]
    doubt: str = ""
    is_loose: bool = False
    conversion: str = ""
    lost_keys: tuple[tuple[int, ...], ...] = ()

    def by_name(self) -> dict[str, KnownColumn]:
        """Return the columns, keyed by name in lower case: the servers ignore the case."""
        return {column.name.lower(): column for column in self.columns}

    def with_doubt(self, why: str) -> KnownColumns:
        """Return the same columns with a doubt; the first doubt stays."""
        return self if self.doubt else replace(self, doubt=why)


def number_columns(names: Iterable[str], *, last_id: int) -> KnownColumns:
    """Give columns the identities after last_id, in order."""
    return KnownColumns(
        columns=tuple(
            KnownColumn(id=number, name=name) for number, name in enumerate(names, last_id + 1)
        )
    )


def alter_columns(
    before: KnownColumns,
    effect: Effect,
    values: Mapping[str, str | None],
    *,
    last_id: int,
    since: int = 0,
) -> KnownColumns:
    """Return the columns after an ALTER TABLE.

    Args:
        before: the columns before it.
        effect: the ALTER; all its clauses refer to the names before it.
        values: of added columns, the value that existing rows got, keyed by name.
        last_id: the highest identity that any column of the table has had.
        since: the position since which it holds.
    """
    known = before.by_name()
    doubt = before.doubt
    for name in effect.dropped:
        known.pop(name.lower(), None)
    pairs = [(known.pop(old.lower(), None), new) for old, new in effect.columns]
    renamed = [column.rename(new, since) for column, new in pairs if column is not None]
    redefined = {name.lower() for name in effect.redefined}
    columns = [
        replace(column, redefined=column.redefined + 1)
        if redefined & {column.name.lower(), ALL_COLUMNS}
        else column
        for column in (*known.values(), *renamed)
    ]
    columns.sort(key=lambda column: column.id)
    there = {column.name.lower() for column in columns}
    for added in effect.added:
        if added.name.lower() in there:
            continue  # ADD COLUMN IF NOT EXISTS
        last_id += 1
        missing = values.get(added.name)
        names = ((since, added.name),)
        columns.append(KnownColumn(id=last_id, name=added.name, missing=missing, names=names))
        if added.name not in values:
            why = added.unclear or "the server does not tell the value of existing rows"
            doubt = doubt or f"column {added.name} was added, and {why}"
    return replace(
        before,
        columns=tuple(columns),
        doubt=doubt,
        conversion=before.conversion or effect.converts,
    )


def identify(
    known: KnownColumns, relation: Relation, last: Relation | None, *, last_id: int
) -> tuple[KnownColumns, Relation]:
    """Give each column of a relation its identity, and note a doubt about rows written earlier.

    Args:
        known: the columns as the binlog's statements have changed them.
        relation: the shape of the rows from here on.
        last: the previous relation, None if there was none.
        last_id: the highest identity that any column of the table has had.
    """
    by_name = known.by_name()
    doubt = known.doubt
    names = {column.name.lower() for column in relation.columns}
    found, columns = [], []
    for column in relation.columns:
        one = by_name.get(column.name.lower())
        if one is None:
            last_id += 1
            one = KnownColumn(id=last_id, name=column.name)
            doubt = doubt or f"no statement in the binlog added column {column.name}"
        columns.append(
            fit_missing(replace(column, id=one.id, missing=one.missing, names=one.names))
        )
        found.append(one)
    gone = [one.name for name, one in by_name.items() if name not in names]
    if gone and not doubt:
        doubt = f"no statement in the binlog dropped column {gone[0]}"
    if last is not None:
        before = {column.id: column for column in last.columns}
        for place, (column, one) in enumerate(zip(columns, found, strict=True)):
            old = before.get(column.id)
            if old is None:
                if one.redefined:
                    doubt = doubt or f"column {column.name} was added and then redefined"
                elif place in relation.key and one.missing is None:
                    # MariaDB keeps a dropped and added column in its keys, where NULL cannot be.
                    doubt = doubt or f"column {column.name} was added to the key"
                continue
            doubt = doubt or _doubt_of(old, column, one, known)
            if place in relation.key and old.nullable and not column.nullable:
                # ADD PRIMARY KEY gives NULLs another value, even in a strict session.
                doubt = doubt or f"column {column.name} became a column of the key"
            columns[place] = _continue(old, column)
    settled = KnownColumns(
        columns=tuple(
            replace(one, name=column.name, redefined=0)
            for one, column in zip(found, columns, strict=True)
        ),
        doubt=doubt,
    )
    unique = relation.unique
    if unique is None and last is not None and last.unique is not None:
        unique = _rename_keys(last, columns, known.lost_keys)
    relation = replace(relation, columns=tuple(columns), unique=unique, awaits_reload=doubt)
    return settled, relation


def find_keys(
    known: KnownColumns, definition: TableDefinition, names: Iterable[str], *, since: int
) -> tuple[tuple[int, ...], ...]:
    """Return the identities of the columns of the unique keys that have these names.

    definition: holds since a position. Names of other indexes are passed over.
    """
    wanted = {name.lower() for name in names}
    ids = {column.name_at(since).lower(): column.id for column in known.columns}
    keys = [key.columns for key in definition.unique_keys if key.name.lower() in wanted]
    return tuple(
        tuple(ids[name.lower()] for name in key)
        for key in keys
        if {name.lower() for name in key} <= set(ids)
    )


def _rename_keys(
    last: Relation, columns: Sequence[Column], lost: Iterable[tuple[int, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Return the unique keys of the last shape under the names that their columns have now.

    lost: those that statements have dropped.
    """
    now = {column.id: column.name for column in columns}
    names = {column.name: now.get(column.id) for column in last.columns}
    ids = {column.name: column.id for column in last.columns}
    gone = {frozenset(key) for key in lost}
    kept = [key for key in last.unique or () if frozenset(ids[name] for name in key) not in gone]
    renamed = [[names[name] for name in key] for key in kept]
    return tuple(
        tuple(name for name in key if name is not None) for key in renamed if None not in key
    )


def _continue(old: Column, new: Column) -> Column:
    """Return a column with the facts that only its previous version has.

    The binlog names no collations, and prints some types otherwise than the catalogue.
    """
    before, after = old.base_type or old.source_type, new.base_type or new.source_type
    is_same = keeps_values(before, after, strict=False) and keeps_values(
        after, before, strict=False
    )
    if is_same and old.nullable == new.nullable and not new.collation:
        new = replace(new, source_type=old.source_type, base_type=old.base_type)
    if not new.collation:
        new = replace(new, collation=old.collation)
    if old.neutral == "string" and old.source_type == new.source_type:
        return new.as_text()
    return new


def _doubt_of(old: Column, new: Column, one: KnownColumn, known: KnownColumns) -> str:
    """Return why values of a column may have changed with its definition; empty if they cannot."""
    is_strict = not known.is_loose
    if one.redefined > 1:
        # The values may have changed with the definitions in between.
        return f"column {new.name} was redefined {one.redefined} times"
    if _is_converted(old, new, known.conversion, is_strict=is_strict):
        return f"a statement did: {known.conversion or 'convert its text'}"
    before, after = old.base_type or old.source_type, new.base_type or new.source_type
    if not keeps_values(before, after, strict=is_strict):
        return f"column {new.name} became {new.source_type}, it was {old.source_type}"
    if old.nullable and not new.nullable and (not is_strict or before.startswith("timestamp")):
        # A strict session refuses NULLs, but a timestamp gets the present time.
        return f"column {new.name} became not null"
    return ""


def _is_converted(old: Column, new: Column, conversion: str, *, is_strict: bool) -> bool:
    """Return whether a column's text may have lost characters to another character set."""
    kind = parse_type(old.base_type or old.source_type)
    if kind is None or kind.base not in _TEXTS:
        return False
    if not old.collation or not new.collation:
        return bool(conversion)
    before, after = charset_of_collation(old.collation), charset_of_collation(new.collation)
    if before in (after, "ascii"):
        return False
    return not (after == "utf8mb4" or (after == "utf8mb3" and is_strict and before != "binary"))


def charset_of_collation(collation: str) -> str:
    """Return a collation's character set; its name begins with it."""
    name = collation.partition("_")[0]
    return "utf8mb3" if name == "utf8" else name


_TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"))


def number_by_name(
    relation: Relation, before: Relation | KnownColumns | None, *, last_id: int, since: int
) -> tuple[KnownColumns, Relation]:
    """Give a relation identities if no existing row is left.

    A column with the name of an earlier one is that column, unless its type holds other values: a
    target could not convert it, and need not.
    """
    known = {
        column.name.lower(): (column.id, column.names)
        for column in (before.columns if before else ())
    }
    types = {
        column.name.lower(): column.base_type or column.source_type
        for column in (before.columns if isinstance(before, Relation) else ())
    }
    found, columns = [], []
    for column in relation.columns:
        name, now = column.name.lower(), column.base_type or column.source_type
        number, names = known.get(name, (0, ()))
        if not number or not keeps_values(types.get(name, now), now, strict=True):
            last_id += 1
            number, names = last_id, ((since, column.name),)
        found.append(KnownColumn(id=number, name=column.name, names=names))
        columns.append(replace(column, id=number, names=names))
    return KnownColumns(columns=tuple(found)), replace(relation, columns=tuple(columns))
