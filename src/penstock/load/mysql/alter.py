"""Changes of a table's shape: a new relation version becomes one ALTER TABLE.

Both engines commit at DDL, so that an ALTER can be cut off from the memory of having been done. It
is worked out from three things: the shape that `wirekite_table` says was applied last, the shape
that is wanted, and the table as it is now. What is there already is left alone: done twice, it does
nothing the second time. Not here: when it is done (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.host.mysql.connect import quoted
from penstock.load import LOAD_AFRESH
from penstock.load.mysql.target import TargetColumn, TargetTable
from penstock.load.mysql.types import CHARSET, default_of, mysql_type, same_type
from penstock.load.refusals import RelationNotCarried
from penstock.model import Column, Relation

_CHARACTER = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of an ALTER TABLE, and what it does, for messages.

    afresh: the same where the rows are dropped anyway and do not fit; empty: no other.
    """

    sql: str
    what: str
    afresh: str = ""


def shape_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """The part of a relation that the target's table follows: column names and source types."""
    return tuple((column.name, column.source_type) for column in relation.columns)


def alterations(
    old: tuple[tuple[str, str], ...] | None,
    relation: Relation,
    table: TargetTable,
    source_engine: str,
    *,
    emptied: bool,
) -> list[Clause]:
    """The clauses that bring the target table from the old shape to the relation's.

    old: the shape applied last; None when none was, then the target must fit as it is. emptied:
    the batch drops the table's rows, so that a type that they do not fit is no obstacle.
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
        kind = mysql_type(column, source_engine)
        if found is None:
            if old is None or column.name in before:
                raise _missing(column, kind, table)
            clauses.append(_added(column, kind))
        elif _differs(column, kind, found, before, emptied=emptied):
            clauses.append(_retyped(column, kind, found))
    return clauses


def _differs(
    column: Column, kind: str, found: TargetColumn, before: dict[str, str], *, emptied: bool
) -> bool:
    """Whether a column must be made what the source's has become."""
    if found.generated:
        return column.name not in before or emptied
    became = before.get(column.name, column.source_type) != column.source_type
    return became and not same_type(found.type_text, kind)


def alter_table(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """All clauses in one statement: both engines do all of it or nothing."""
    return f"alter table {table.sql_name} " + ", ".join(clause.sql for clause in clauses)


def alter_afresh(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """The same for a table whose rows do not fit and are dropped anyway: columns made anew."""
    parts = [clause.afresh or clause.sql for clause in clauses]
    return f"alter table {table.sql_name} " + ", ".join(parts)


def _missing(column: Column, kind: str, table: TargetTable) -> RelationNotCarried:
    return RelationNotCarried(
        f"target table {table.name} has no column {column.name}, the source has it as "
        f"{column.source_type}",
        hint=f"Run: alter table {table.sql_name} add column {quoted(column.name)} {kind}; then "
        f"`penstock run`, and `penstock verify`. {LOAD_AFRESH}",
        table=str(table.name),
    )


def _added(column: Column, kind: str) -> Clause:
    sql = f"add column {quoted(column.name)} {_with_charset(kind)}"
    if column.missing is None:
        sql += " null default null"
    elif column.nullable:
        sql += f" null default ({default_of(column)})"
    else:
        sql += f" not null default ({default_of(column)})"
    return Clause(sql, f"column {column.name} was added as {kind}")


def _retyped(column: Column, kind: str, found: TargetColumn) -> Clause:
    name = quoted(column.name)
    definition = f"{name} {_with_charset(kind, found)}{' not null' if found.not_null else ' null'}"
    if found.auto_increment:
        definition += " auto_increment"
    return Clause(
        f"modify column {definition}",
        f"column {column.name} became {kind}",
        afresh=f"drop column {name}, add column {definition}",
    )


def _with_charset(kind: str, found: TargetColumn | None = None) -> str:
    """A type with the character set that the column has, or one that compares bytes."""
    if not kind.lower().startswith(_CHARACTER) or " character set " in kind.lower():
        return kind
    if found is not None and found.is_text:
        return f"{kind} character set {found.charset} collate {found.collation}"
    return f"{kind} {CHARSET}"
