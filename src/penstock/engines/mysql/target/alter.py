"""Changes of a table's shape: a new relation version results in one ALTER TABLE.

MySQL and MariaDB commit at DDL, so a crash can separate an ALTER from the record of it. An ALTER is
computed from three things: the shape last applied according to `wirekite_table`, the wanted shape,
and the present table. Parts that exist are left alone, so it is safe to repeat. Not here: the time
at which it runs (`apply.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.codec.types import Engine, Server, fill_template
from penstock.codec.types import Mapping as TypeMapping
from penstock.engines.mysql.connect import quote
from penstock.engines.mysql.target.layout import default_of, same_type
from penstock.engines.mysql.target.target import TargetColumn, TargetTable
from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.shape_changes import ShapeChange, key_of, shape_of

_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection",
)  # fmt: skip
TEXT = "longtext character set utf8mb4 collate utf8mb4_bin"
DROP_KEY = "drop primary key"
_LONG = ("text", "blob", "json")
_NUMBERS = " auto_increment"
EXPRESSION_DEFAULTS = (8, 0, 13)  # the version of MySQL that has them
_LITERAL_DEFAULT = re.compile(r" default ('(?:[^'\\]|\\.)*')")
_COMMENT = re.compile(r" comment '(?:[^'\\]|\\.)*'\Z", re.DOTALL)
_PRESENT = re.compile(r"(?i)( default | on update )current_timestamp(?:\(\d?\))?")
_MOMENTS = ("timestamp", "datetime")
_CHARACTER = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")


@dataclass(frozen=True, slots=True)
class Clause:
    """Part of an ALTER TABLE, with a description of its effect for messages.

    sql: the clause; empty if the table already has the effect. fill: assignment that gives old rows
    their value, if the server does not accept it as default. modifies: the column that the clause
    redefines. strict: the clause with NOT NULL. key: the columns of the key that it adds. loosens:
    it only makes the column nullable. unnumbers: it only takes AUTO_INCREMENT away. behind_key: it
    is possible only if the primary key is dropped. empties: the rows are deleted before it, because
    they are dropped anyway.
    """

    sql: str
    what: str
    fill: str = ""
    modifies: str = ""
    strict: str = ""
    key: tuple[str, ...] = ()
    loosens: bool = False
    unnumbers: bool = False
    behind_key: bool = False
    empties: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterer:
    """Converter of the changes of one table into clauses of one ALTER TABLE.

    table: the present table. mapping_of: returns the type that a source column has here. emptied:
    the batch drops the table's rows, so that their values need not fit a new type. replaced: the
    batch rewrites or deletes each row, and only the columns that the source lacks keep their
    values.
    """

    record: TableRecord
    relation: Relation
    table: TargetTable
    mapping_of: Callable[[Column], TypeMapping]
    server: Server
    emptied: bool
    replaced: bool = False

    def check(self) -> None:
        """Raise ShapeNotApplicable if a column is missing for a reason not told by the log."""
        old = self.record.columns
        for column in self.relation.columns:
            is_known = old is None or column.name in dict(old)
            is_there = self.table.column(column.name) is not None
            if is_known and not is_there and column.name not in self.record.left_out:
                raise _missing(column, self.mapping_of(column).target_type, self.table)

    def stop_computing(self) -> list[Clause]:
        """Return clauses for columns that the target computes and the source no longer does."""
        if self.record.columns in (None, shape_of(self.relation)):
            return []
        before = dict(self.record.columns or ())
        clauses: list[Clause] = []
        for column in self.relation.columns:
            found = self.table.column(column.name)
            if found is None or not found.generated:
                continue
            if column.name in before and not self.emptied:
                continue
            kind = self.mapping_of(column).target_type
            if found.is_virtual:  # it is never made an ordinary one
                what = f"column {column.name} became {kind}"
                name = quote(column.name)
                clauses.append(Clause(f"drop column {name}", what))
                clauses.append(Clause(f"add column {name} {_with_collation(kind)} null", what))
            else:
                clauses.append(_retype(column, kind, found))
        return clauses

    def drop_computed(self, changes: Sequence[ShapeChange]) -> list[Clause]:
        """Return clauses that drop generated columns of the source.

        They come in a statement of their own: MySQL refuses one that drops the columns that these
        are computed from, too.
        """
        leaving = [
            change
            for change in changes
            if change.kind is ChangeKind.DROP_COLUMN
            and (found := self._leaving(change.name)) is not None
            and found.generated
        ]
        return [
            *self._drop_keys_with([change.name for change in leaving]),
            *(Clause(f"drop column {quote(change.name)}", change.what) for change in leaving),
        ]

    def set_aside(self, names: Mapping[str, str]) -> list[Clause]:
        """Return clauses that rename columns temporarily, so that their names are free.

        A column that already has the other name gets none: a crash came before the record of it.
        """
        return [
            Clause(
                f"rename column {quote(old)} to {quote(new)}",
                f"column {old} makes room for another of that name",
            )
            for old, new in names.items()
            if self.table.column(old) is not None and self.table.column(new) is None
        ]

    def evolve(self, change: ShapeChange) -> list[Clause]:
        """Return the clauses of a change as the source made it. Raises ShapeNotApplicable."""
        return list(self._evolve(change))

    def lenient(self, change: ShapeChange) -> list[Clause]:
        """Return clauses that keep all columns and values. Raises ShapeNotApplicable."""
        return list(self._lenient(change))

    def free(self, clauses: Sequence[Clause]) -> Iterator[str]:
        """Yield statements that remove old values, which the batch removes or replaces anyway."""
        if self.emptied:
            yield f"delete from {self.table.sql_name}"
        if not self.replaced:
            return
        key = {name for name in key_of(self.relation) if self._is_nullable(name)}
        if key:  # no row that is read has such a key
            nulls = " or ".join(f"{quote(name)} is null" for name in sorted(key))
            yield f"delete from {self.table.sql_name} where {nulls}"
        typed = {clause.modifies for clause in clauses if clause.modifies and not clause.loosens}
        voided = [
            f"{quote(name)} = null" for name in sorted(typed - key) if self._is_nullable(name)
        ]
        if voided:
            yield f"update {self.table.sql_name} set " + ", ".join(voided)

    def _is_nullable(self, name: str) -> bool:
        found = self.table.column(name)
        return found is not None and not found.not_null and not found.generated

    # --- as at the source -------------------------------------------------------------------------

    def _evolve(self, change: ShapeChange) -> Iterator[Clause]:
        column = change.column
        if change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            yield from self._rename(column, change)
            return
        if change.kind is ChangeKind.DROP_COLUMN:
            found = self._leaving(change.name)
            if found is not None:
                for key in {key for key, name in self.table.references if name == found.name}:
                    yield Clause(
                        f"drop foreign key {quote(key)}", f"{key} was dropped with a column"
                    )
                yield from self._drop_keys_with([found.name], first_only=True)
                yield Clause(f"drop column {quote(change.name)}", change.what)
        if change.kind is ChangeKind.CHANGE_KEY and change.columns:
            yield from self._drop_unique(change)
            return
        if change.kind is ChangeKind.CHANGE_KEY:
            yield from self._key(change)
        if column is None:
            return
        if change.kind is ChangeKind.ADD_COLUMN:
            yield from self._add(column)
        elif change.kind is ChangeKind.NULLABILITY:
            yield from self._loosen(column, change)
        elif (found := self.table.column(column.name)) is not None:
            kind = self.mapping_of(column).target_type
            is_other = not same_type(found.type_text, kind) or (
                change.is_recollated and _collation_of(kind) not in ("", found.collation)
            )
            if not found.generated and is_other:
                yield _retype(column, kind, found, _fit_default(found, kind, change, self.server))

    def _rename(self, column: Column, change: ShapeChange) -> Iterator[Clause]:
        """Rename a column, unless an earlier run did so and crashed before it recorded that."""
        found = self.table.column(change.name)
        if found is None or found.name == column.name:
            return
        other = self.table.column(column.name)
        if other is not None and other.name != found.name:
            table = self.table.sql_name
            raise ShapeNotApplicable(
                f"{change.what}, and target table {self.table.name} has both",
                hint=f"Run: alter table {table} drop column ...; for the one that is not wanted; "
                "then `penstock run` again, and `penstock verify`.",
                table=str(self.table.name),
            )
        sql = f"rename column {quote(found.name)} to {quote(column.name)}"
        yield Clause(sql, change.what)

    def _leaving(self, name: str) -> TargetColumn | None:
        """Return a column that the source now lacks. A column whose name only changed its case does
        not count.
        """
        if any(column.name.lower() == name.lower() for column in self.relation.columns):
            return None
        return self.table.column(name)

    def _add(self, column: Column) -> Iterator[Clause]:
        mapping = self.mapping_of(column)
        found = self.table.column(column.name)
        if found is None:
            _check(column, mapping, self.table)
            if column.name in self._coming_key():
                what = f"column {column.name} was added to the key"
                kind = _with_collation(mapping.target_type)
                sql = f"add column {quote(column.name)} {kind} not null"
                yield Clause(sql, what, empties=True)
            else:
                yield _add_column(column, mapping, self.server)
            return
        self._refuse_kept(column.name)
        if not found.generated and _is_filled_later(column, mapping.target_type, self.server):
            # After a crash between the two statements, or if another program added that column.
            what = f"column {column.name} is there"
            yield Clause("", what, fill=_fill(column, mapping))

    def _refuse_kept(self, name: str) -> None:
        if name in self.record.kept:
            table = self.table.sql_name
            raise ShapeNotApplicable(
                f"column {name} was added at the source, and target table {self.table.name} still "
                "has the values of an earlier column of that name",
                hint=f"Run: alter table {table} drop column {quote(name)}; then `penstock run` "
                "again.",
                table=str(self.table.name),
            )

    def _loosen(self, column: Column, change: ShapeChange) -> Iterator[Clause]:
        """Make a column nullable. It is never made stricter: a looser target loses nothing."""
        found = self.table.column(column.name)
        if column.nullable and found is not None and found.not_null:
            clause = _loosen_column(found, change.what)
            yield replace(clause, behind_key=found.name in self._primary)

    def _drop_unique(self, change: ShapeChange) -> Iterator[Clause]:
        """Drop the target's unique keys on these columns, in which rows may now be equal."""
        wanted = {name.lower() for name in change.columns}
        for index in self.table.unique:
            if index.name != "PRIMARY" and {name.lower() for name in index.columns} == wanted:
                yield Clause(f"drop index {quote(index.name)}", change.what)

    def _drop_keys_with(self, names: Collection[str], *, first_only: bool = False) -> list[Clause]:
        """Drop the unique keys that have other columns besides one that leaves.

        MariaDB refuses to drop such a column. MySQL would leave a key on the other columns, in
        which rows may be equal, unless the source has that one, too. first_only: pass over a key
        in which another column leaves earlier, since that one brings the clause.
        """
        source = {frozenset(map(str.lower, key)) for key in self.relation.unique or ()}
        clauses = []
        for index in self.table.unique:
            leaving = [name for name in index.columns if self._leaving(name) is not None]
            if index.name == "PRIMARY" or len(index.columns) == 1 or not {*names} & {*leaving}:
                continue
            rest = {name.lower() for name in index.columns if name not in leaving}
            stays = self.server.mysql() and rest in source
            if not stays and (not first_only or leaving[0] in names):
                what = f"the unique key on {', '.join(index.columns)} was dropped with a column"
                clauses.append(Clause(f"drop index {quote(index.name)}", what))
        return clauses

    @property
    def _primary(self) -> tuple[str, ...]:
        index = next((one for one in self.table.unique if one.name == "PRIMARY"), None)
        return index.columns if index is not None else ()

    def _key(self, change: ShapeChange) -> Iterator[Clause]:
        """Replace the primary key if the target has the one that the source had."""
        old, new, primary = self.record.key or (), key_of(self.relation), self._primary
        there = {name for name in old if self.table.column(name) is not None}
        if old and not new and primary and set(primary) == there:
            yield from self._drop_key(change)
        if not new or set(primary) == set(new) or set(primary) not in (there, set()):
            return
        coming = self._coming_key() | self._filled_columns()
        if not set(new) <= {name for name, _ in self.record.columns or ()} | coming:
            return  # existing rows have no values for it yet
        if any(self.table.column(name) is None for name in {*new} - coming):
            return
        fitted = self._fit_to_key(new)
        if fitted is None:
            # Rows are found by these columns without an index on them.
            if primary:
                yield from self._drop_key(change)
            return
        yield from fitted
        for found in self.table.columns:
            if found.auto_increment and found.name != new[0] and not self._leaving(found.name):
                yield _without_numbers(found)
        if primary:
            yield Clause(DROP_KEY, change.what)
        sql = f"add primary key ({', '.join(map(quote, new))})"
        yield Clause(sql, change.what, key=new)

    def _drop_key(self, change: ShapeChange) -> Iterator[Clause]:
        """Drop the primary key: rows with equal values of it may follow."""
        yield from (
            _without_numbers(one)
            for one in self.table.columns
            if one.auto_increment and not self._leaving(one.name)
        )
        yield Clause(DROP_KEY, change.what)

    def _fit_to_key(self, names: Iterable[str]) -> list[Clause] | None:
        """Return clauses that give long columns types that a key can contain; None if none fit."""
        clauses = []
        for name in names:
            if self._may_be_key(name):
                continue
            found = self.table.column(name)
            column = next(one for one in self.relation.columns if one.name == name)
            kind = self.mapping_of(column).target_type
            if found is None or _base_of(kind).endswith(_LONG):
                return None
            if dict(self.record.columns or ()).get(name) == column.source_type:
                clauses.append(_retype(column, kind, found))  # else another clause does so
        return clauses

    def _coming_key(self) -> set[str]:
        """Return the key columns that the table gets now, if no row remains without them."""
        if not self.emptied:
            return set()
        return {name for name in key_of(self.relation) if self.table.column(name) is None}

    def _filled_columns(self) -> set[str]:
        """Return the columns that the table gets now, together with a value in existing rows."""
        return {
            column.name
            for column in self.relation.columns
            if column.missing is not None
            and self.table.column(column.name) is None
            and not _is_filled_later(column, self.mapping_of(column).target_type, self.server)
        }

    def _may_be_key(self, name: str) -> bool:
        """Return whether a key can contain the whole column, which it cannot for long types.

        In a table without rows, a column whose type changes gets its new type in the same
        statement.
        """
        found = self.table.column(name)
        column = next(one for one in self.relation.columns if one.name == name)
        is_retyped = dict(self.record.columns or ()).get(name) != column.source_type
        if found is not None and not (self.emptied and is_retyped):
            return not found.data_type.endswith(_LONG)
        return not _base_of(self.mapping_of(column).target_type).endswith(_LONG)

    # --- leniently --------------------------------------------------------------------------------

    def _lenient(self, change: ShapeChange) -> Iterator[Clause]:
        column = change.column
        if change.kind in (ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN):
            found = self._leaving(change.name)
            if found is not None and found.not_null and not found.generated:
                if found.name in self._primary:
                    yield Clause(DROP_KEY, f"column {found.name} is not part of the key")
                yield _loosen_column(found, f"{change.what}, and stays")
        if change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            yield from self._add_beside(column, change)
        elif change.kind is ChangeKind.ADD_COLUMN and column is not None:
            yield from self._add_somehow(column)
        if change.kind in (ChangeKind.NULLABILITY, ChangeKind.CHANGE_KEY, ChangeKind.WIDEN_TYPE):
            yield from self._evolve(change)
        if change.kind is ChangeKind.CHANGE_TYPE and column is not None:
            yield from self._widen(column, change)

    def _add_beside(self, column: Column, change: ShapeChange) -> Iterator[Clause]:
        """Add a renamed column under its new name, and fill it with the values of the old one."""
        if self.table.column(change.name) is None:
            return
        fill = f"{quote(column.name)} = {quote(change.name)}"
        added = list(self._add_somehow(column)) or [Clause("", change.what)]
        yield from (replace(clause, fill=fill) for clause in added)

    def _add_somehow(self, column: Column) -> Iterator[Clause]:
        """Add a nullable column, as text if its own type is not possible or a choice is missing."""
        mapping = self.mapping_of(column)
        if self.table.column(column.name) is not None:
            yield from self._add(column)
        elif mapping.may_run:
            yield _add_column(replace(column, nullable=True), mapping, self.server)
        else:
            as_text = TypeMapping(source_type=column.source_type, target_type=TEXT)
            yield _add_column(replace(column, nullable=True), as_text, self.server)

    def _widen(self, column: Column, change: ShapeChange) -> Iterator[Clause]:
        """Give a column a type that holds existing and new values."""
        found = self.table.column(column.name)
        kind = self.mapping_of(column).target_type
        if found is None or found.data_type == "longtext" or same_type(found.type_text, kind):
            return
        if column.name in key_of(self.relation) or found.name in self._primary:
            raise ShapeNotApplicable(
                f"{change.what}: column {column.name} of {self.table.name} is part of the key, "
                "which cannot be kept as text",
                hint=f"Run: alter table {self.table.sql_name} modify column "
                f"{quote(column.name)} {kind}; then `penstock run` again.",
                table=str(self.table.name),
            )
        null = "not null" if found.not_null else "null"
        sql = f"modify column {quote(found.name)} {TEXT} {null}"
        yield Clause(sql, f"{change.what}, kept as text", modifies=found.name)


def without_vain(clauses: Sequence[Clause]) -> Sequence[Clause]:
    """Return the clauses that are possible: columns of a primary key that stays are NOT NULL."""
    if any(clause.sql == DROP_KEY for clause in clauses):
        return clauses
    return [clause for clause in clauses if not clause.behind_key]


def alter_table(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """Return one statement of all clauses, which servers run whole or not at all; may be empty."""
    parts = _parts(clauses)
    return f"alter table {table.sql_name} " + ", ".join(parts) if parts else ""


def _parts(clauses: Sequence[Clause]) -> list[str]:
    """Return the clauses' texts, each once, because a statement may define a column only once."""
    loosened = {clause.modifies for clause in clauses if clause.loosens}
    unnumbered = {clause.modifies for clause in clauses if clause.unnumbers}
    modifying = [clause for clause in clauses if clause.modifies and not clause.unnumbers]
    retyped = {clause.modifies for clause in modifying if not clause.loosens}
    typed = retyped | unnumbered
    key = {name.lower() for clause in clauses for name in clause.key}
    parts = []
    for clause in clauses:
        if clause.modifies in (typed if clause.loosens else retyped if clause.unnumbers else ()):
            continue
        if clause.modifies in unnumbered and not clause.unnumbers:
            clause = replace(
                clause,
                sql=clause.sql.removesuffix(_NUMBERS),
                strict=clause.strict.removesuffix(_NUMBERS),
            )
        if clause.strict and clause.modifies.lower() in key:
            parts.append(clause.strict)
            continue
        both = clause.modifies in loosened and not clause.loosens
        parts.append(clause.sql.replace(" not null", " null", 1) if both else clause.sql)
    return list(dict.fromkeys(part for part in parts if part))


def fill_new(table: TargetTable, clauses: Sequence[Clause]) -> str:
    """Return the statement that sets new columns of old rows; empty if there is none."""
    fills = [clause.fill for clause in clauses if clause.fill]
    return f"update {table.sql_name} set " + ", ".join(fills) if fills else ""


def _missing(column: Column, kind: str, table: TargetTable) -> ShapeNotApplicable:
    return ShapeNotApplicable(
        f"target table {table.name} has no column {column.name}, the source has it as "
        f"{column.source_type}",
        hint=f"Run: alter table {table.sql_name} add column {quote(column.name)} {kind}; then "
        f"`penstock run`, and `penstock verify`. {LOAD_AFRESH}",
        table=str(table.name),
    )


def _check(column: Column, mapping: TypeMapping, table: TargetTable) -> None:
    """Refuse a column with a loss for which no choice is configured."""
    if mapping.may_run:
        return
    why = mapping.refused or "what may get lost is not chosen for: " + ", ".join(
        loss.name for loss in mapping.missing
    )
    raise ShapeNotApplicable(
        f"new column {column.name} of {table.name}, {column.source_type} at the source: {why}",
        hint="Add to [target.types] what to do about it (`penstock plan` shows the choices), "
        "then run again: nothing of the batch was applied.",
        table=str(table.name),
    )


def later_fills(
    old: Relation, last: Relation, mapping_of: Callable[[Column], TypeMapping], server: Server
) -> Iterator[tuple[str, str]]:
    """Yield names of columns that rows of an old shape have not, and assignments of their values.

    Other columns get theirs by the column's default. last: the table's shape.
    """
    numbers = {column.id for column in old.columns}
    names = {column.name for column in old.columns}
    for column in last.columns:
        if column.id in numbers if column.id else column.name in names:
            continue
        mapping = mapping_of(column)
        if _is_filled_later(column, mapping.target_type, server):
            yield column.name, _fill(column, mapping)


def _is_filled_later(column: Column, kind: str, server: Server) -> bool:
    """Return whether old rows must be filled by an UPDATE, because the column's type cannot have
    this default.
    """
    if column.missing is None:
        return False
    base = _base_of(kind)
    if base in _GEOMETRIES or base == "bit":
        return True
    return _lacks_literal_defaults(base, server)


def _base_of(kind: str) -> str:
    return kind.partition("(")[0].partition(" ")[0].lower()


def _lacks_literal_defaults(base: str, server: Server) -> bool:
    """Return whether columns of a type cannot have a literal as default."""
    return server.engine is Engine.MYSQL and base.endswith(_LONG)


def _fit_default(found: TargetColumn, kind: str, change: ShapeChange, server: Server) -> str:
    """Return a column's default and comment in a form that its new type allows.

    Another type has neither. A narrower type may not hold the default; rows never need it. Where a
    literal is refused, an expression is accepted, since MySQL 8.0.13.
    """
    if change.kind is ChangeKind.CHANGE_TYPE:
        return ""
    if change.kind is ChangeKind.NARROW_TYPE:
        comment = _COMMENT.search(found.more_sql)
        return comment[0] if comment is not None else ""
    base = _base_of(kind)
    if base in _MOMENTS:
        # The digits of the present time are those of the type.
        digits = kind.partition("(")[2].partition(")")[0] or "0"
        return _PRESENT.sub(rf"\1current_timestamp({digits})", found.more_sql)
    if not _lacks_literal_defaults(base, server):
        return found.more_sql
    default = r" default (\1)" if server.version >= EXPRESSION_DEFAULTS else ""
    return _LITERAL_DEFAULT.sub(default, found.more_sql, count=1)


def _fill(column: Column, mapping: TypeMapping) -> str:
    name = quote(column.name)
    return f"{name} = {fill_template(mapping.write.sql, default_of(column))}"


def _add_column(column: Column, mapping: TypeMapping, server: Server) -> Clause:
    kind = mapping.target_type
    sql, what = (
        f"add column {quote(column.name)} {_with_collation(kind)}",
        f"column {column.name} was",
    )
    what = f"{what} added as {kind}"
    if column.missing is None:
        return Clause(f"{sql} null default null", what)
    if _is_filled_later(column, kind, server):
        return Clause(f"{sql} null", what, fill=_fill(column, mapping))
    null = "null" if column.nullable or mapping.may_be_null else "not null"
    return Clause(f"{sql} {null} default {default_of(column)}", what)


def _retype(column: Column, kind: str, found: TargetColumn, more: str = "") -> Clause:
    """Return the clause for another type. more: default and comment, if right for the new type."""
    numbers = _NUMBERS if found.auto_increment else ""
    kind_here = f"modify column {quote(column.name)} {_with_collation(kind, found)}"
    strict = f"{kind_here} not null{more}{numbers}"
    return Clause(
        strict if found.not_null else f"{kind_here} null{more}{numbers}",
        f"column {column.name} became {kind}",
        modifies=found.name,
        strict=strict,
    )


def _loosen_column(found: TargetColumn, what: str) -> Clause:
    """Return the clause that makes a column nullable and removes AUTO_INCREMENT from it."""
    kind = _with_collation(found.type_text, found)
    sql = f"modify column {quote(found.name)} {kind} null{found.more_sql}"
    return Clause(sql, what, modifies=found.name, loosens=True)


def _collation_of(kind: str) -> str:
    """Return the collation that a type names; empty if it names none."""
    return kind.rpartition(" collate ")[2] if " collate " in kind else ""


def _without_numbers(found: TargetColumn) -> Clause:
    """Remove AUTO_INCREMENT from a column; the log has its values."""
    null = "not null" if found.not_null else "null"
    sql = f"modify column {quote(found.name)} {_with_collation(found.type_text, found)} {null}"
    what = f"column {found.name} gets no numbers of its own"
    return Clause(f"{sql}{found.more_sql}", what, modifies=found.name, unnumbers=True)


def _with_collation(kind: str, found: TargetColumn | None = None) -> str:
    """Return a type with the collation that its column has, or one that compares bytes."""
    if not kind.lower().startswith(_CHARACTER) or " character set " in kind.lower():
        return kind
    if found is not None and found.is_text:
        return f"{kind} character set {found.charset} collate {found.collation}"
    return f"{kind} character set utf8mb4 collate utf8mb4_bin"
