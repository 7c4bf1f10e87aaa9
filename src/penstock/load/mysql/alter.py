"""Changes of a table's shape: a new relation version becomes one ALTER TABLE.

Both engines commit at DDL, so that an ALTER can be cut off from the memory of having been done. It
is worked out from three things: the shape that `wirekite_table` says was applied last, the shape
that is wanted, and the table as it is now. What is there already is left alone: done twice, it does
nothing the second time. Not here: when it is done (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.codec.typemap import Engine, Mapping, Server, filled
from penstock.host.mysql.connect import quoted
from penstock.load import LOAD_AFRESH
from penstock.load.mysql.target import TargetColumn, TargetTable
from penstock.load.mysql.types import default_of, same_type
from penstock.load.refusals import RelationNotCarried
from penstock.model import Column, Relation

_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection",
)  # fmt: skip
_CHARACTER = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of an ALTER TABLE, and what it does, for messages.

    sql: empty where the table has it already. afresh: the same where the rows are dropped anyway
    and do not fit; empty: no other. fill: assignment that gives old rows their value, where the
    server takes none as default.
    """

    sql: str
    what: str
    afresh: str = ""
    fill: str = ""


def shape_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """The part of a relation that the target's table follows: column names and source types."""
    return tuple((column.name, column.source_type) for column in relation.columns)


def alterations(
    old: tuple[tuple[str, str], ...] | None,
    relation: Relation,
    table: TargetTable,
    mapping_of: Callable[[Column], Mapping],
    server: Server,
    *,
    emptied: bool,
) -> list[Clause]:
    """The clauses that bring the target table from the old shape to the relation's.

    old: the shape applied last; None when none was, then the target must fit as it is. mapping_of:
    how a column of this source is held here. emptied: the batch drops the table's rows, so that a
    type that they do not fit is no obstacle.
    Raises RelationNotCarried when a column is missing in the target for no reason the log tells.
    """
    before = dict(old) if old is not None else dict(shape_of(relation))
    now = {column.name for column in relation.columns}
    clauses = []
    for name in before:
        found = table.column(name)
        if name not in now and found is not None and not found.generated:
            clauses.append(Clause(f"drop column {quoted(name)}", f"column {name} was dropped"))
    for column in relation.columns:
        found = table.column(column.name)
        mapping = mapping_of(column)
        kind = mapping.target_type
        if found is None:
            if old is None or column.name in before:
                raise _missing(column, kind, table)
            _check(column, mapping, table)
            clauses.append(_added(column, mapping, server))
        elif column.name not in before and _filled_later(column, kind, server):
            # Cut off between the two statements, or somebody's own column of that name.
            clauses.append(
                Clause("", f"column {column.name} is there", fill=_fill(column, mapping))
            )
        elif _differs(column, kind, found, before, emptied=emptied):
            clauses.append(_retyped(column, kind, found))
    return clauses


def _is_unfilled(
    column: Column, kind: str, found: TargetColumn, before: dict[str, str], server: Server
) -> bool:
    """Whether a new column is there, but perhaps not its values: cut off between the two."""
    is_new = column.name not in before and not found.generated
    return is_new and _filled_later(column, kind, server)


def _differs(
    column: Column, kind: str, found: TargetColumn, before: dict[str, str], *, emptied: bool
) -> bool:
    """Whether a column must be made what the source's has become."""
    if found.generated:
        return column.name not in before or emptied
    became = before.get(column.name, column.source_type) != column.source_type
    return became and not same_type(found.type_text, kind)


def alter_table(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """All clauses in one statement, which the servers do whole or not at all; may be empty."""
    parts = [clause.sql for clause in clauses if clause.sql]
    return f"alter table {table.sql_name} " + ", ".join(parts) if parts else ""


def fill_new(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """The statement that gives old rows the values of new columns; empty when there is none."""
    fills = [clause.fill for clause in clauses if clause.fill]
    return f"update {table.sql_name} set " + ", ".join(fills) if fills else ""


def alter_afresh(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """The same for a table whose rows do not fit and are dropped anyway: columns made anew."""
    parts = [clause.afresh or clause.sql for clause in clauses if clause.sql]
    return f"alter table {table.sql_name} " + ", ".join(parts)


def _missing(column: Column, kind: str, table: TargetTable) -> RelationNotCarried:
    return RelationNotCarried(
        f"target table {table.name} has no column {column.name}, the source has it as "
        f"{column.source_type}",
        hint=f"Run: alter table {table.sql_name} add column {quoted(column.name)} {kind}; then "
        f"`penstock run`, and `penstock verify`. {LOAD_AFRESH}",
        table=str(table.name),
    )


def _check(column: Column, mapping: Mapping, table: TargetTable) -> None:
    """A column that nobody has chosen for is not begun."""
    if mapping.may_run:
        return
    why = mapping.refused or "what may get lost is not chosen for: " + ", ".join(
        loss.name for loss in mapping.missing
    )
    raise RelationNotCarried(
        f"new column {column.name} of {table.name}, {column.source_type} at the source: {why}",
        hint="Add to [target.types] what shall become of it (`penstock plan` shows the choices), "
        "then run again: nothing of the batch was applied.",
        table=str(table.name),
    )


def _filled_later(column: Column, kind: str, server: Server) -> bool:
    """Whether old rows can not get their value by a default: MySQL takes none for long types."""
    if column.missing is None:
        return False
    base = kind.partition("(")[0].partition(" ")[0].lower()
    if base in _GEOMETRIES or base == "bit":
        return True
    return server.engine is Engine.MYSQL and (base in ("json",) or base.endswith(("text", "blob")))


def _fill(column: Column, mapping: Mapping) -> str:
    name = quoted(column.name)
    return f"{name} = {filled(mapping.write.sql, default_of(column))}"


def _added(column: Column, mapping: Mapping, server: Server) -> Clause:
    kind = mapping.target_type
    sql, what = f"add column {quoted(column.name)} {_collated(kind)}", f"column {column.name} was"
    what = f"{what} added as {kind}"
    if column.missing is None:
        return Clause(f"{sql} null default null", what)
    if _filled_later(column, kind, server):
        return Clause(f"{sql} null", what, fill=_fill(column, mapping))
    null = "null" if column.nullable else "not null"
    return Clause(f"{sql} {null} default {default_of(column)}", what)


def _retyped(column: Column, kind: str, found: TargetColumn) -> Clause:
    name = quoted(column.name)
    definition = f"{name} {_collated(kind, found)}{' not null' if found.not_null else ' null'}"
    if found.auto_increment:
        definition += " auto_increment"
    return Clause(
        f"modify column {definition}",
        f"column {column.name} became {kind}",
        afresh=f"drop column {name}, add column {definition}",
    )


def _collated(kind: str, found: TargetColumn | None = None) -> str:
    """A type with the collation that its column has, or one that compares bytes."""
    if not kind.lower().startswith(_CHARACTER) or " character set " in kind.lower():
        return kind
    if found is not None and found.is_text:
        return f"{kind} character set {found.charset} collate {found.collation}"
    return f"{kind} character set utf8mb4 collate utf8mb4_bin"
