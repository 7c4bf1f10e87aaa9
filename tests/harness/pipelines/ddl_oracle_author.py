"""Random histories of an Oracle source: rows, and DDL of all kinds that LogMiner shows.

Each DDL statement is a step of its own, because it commits. No column is a large object: one that
was written before a statement and is read after it stops the extractor (OR29, docs/oracle.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from harness.pipelines.ddl_actions import NothingToDo
from harness.pipelines.ddl_model import NAMES, Made, Table
from harness.pipelines.ddl_script import Statement
from harness.pipelines.ddl_sqlserver_author import ALTERS, WHOLE, SQLServerAuthor
from harness.pipelines.ddl_types import ORACLE, ColumnType

_INTS = ("0", "1", "5", "100", "-7")
_TEXTS = ("'a'", "'A'", "'b c'", "'it''s'", "'tail '", "'é'", "'😀'")
_MOMENTS = ("TIMESTAMP '2020-02-29 12:00:00'", "TIMESTAMP '1999-12-31 23:59:00'")
TYPES = (
    ColumnType(
        declared="number(5)", values=_INTS, defaults=("7", "-1"), family="number", is_key=True
    ),
    ColumnType(
        declared="number(10)", values=_INTS, defaults=("7", "70000"), family="number", is_key=True
    ),
    ColumnType(
        declared="number(19)",
        values=(*_INTS, "9000000000"),
        defaults=("7", "9000000000"),
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="number(12,2)",
        values=("0", "1.25", "-3.5", "12345.67"),
        defaults=("1.5", "-.5", "7"),
        family="number",
    ),
    ColumnType(declared="number", values=("0", "1.25", "-3.5"), defaults=("1.5",), family="number"),
    ColumnType(declared="binary_double", values=("0", "0.5", "-2.25"), family="float"),
    ColumnType(declared="varchar2(20)", values=_TEXTS[:5], defaults=("'a'", "'it''s'"),
               family="text", is_key=True),
    ColumnType(declared="varchar2(40)", values=_TEXTS, defaults=("'a'", "'tail '"), family="text"),
    ColumnType(declared="nvarchar2(20)", values=_TEXTS, defaults=("'a'",)),
    ColumnType(declared="char(10)", values=("'a'", "'xy'"), defaults=("'a'",)),
    ColumnType(declared="raw(20)", values=("HEXTORAW('00ff')", "HEXTORAW('61')"), family="bytes"),
    ColumnType(
        declared="date",
        values=("DATE '2020-02-29'", "DATE '1999-12-31'"),
        computed=("SYSDATE",),
        family="moment",
    ),
    ColumnType(
        declared="timestamp(3)",
        values=(*_MOMENTS, "TIMESTAMP '2024-01-02 03:04:05.678'"),
        computed=("SYSTIMESTAMP",),
        family="moment",
    ),
    ColumnType(
        declared="timestamp(6)",
        values=(*_MOMENTS, "TIMESTAMP '2024-01-02 03:04:05.678901'"),
        family="moment",
    ),
    ColumnType(
        declared="timestamp(6) with time zone",
        values=("TIMESTAMP '2020-02-29 12:00:00 +00:00'", "TIMESTAMP '1999-12-31 23:59:00 +00:00'"),
    ),
)  # fmt: skip


class OracleAuthor(SQLServerAuthor):
    """An author of one history, used by one thread."""

    kind = ORACLE
    types = TYPES
    alters: ClassVar = {**ALTERS, "add_with_values": 0, "add_computed": 0, "rename": 4}
    whole: ClassVar = {**WHOLE, "truncate": 2}
    names = tuple(one for one in NAMES if '"' not in one)

    def __init__(self, seed: int | str, features: Sequence[str] | None = None) -> None:
        """Prepare to draw; features are kinds of statements to draw."""
        every = (*self.alters, *self.whole)
        super().__init__(seed, *(() if features is None else (features,)))
        if features is None:
            self._features |= set(every)

    @staticmethod
    def quote(name: str) -> str:
        """Return a name in quotes."""
        return f'"{name}"'

    def name(self, table: Table) -> str:
        """Return a table as statements name it."""
        return self.quote(table.name)

    def _write_insert(self, head: str, rows: Sequence[str]) -> Statement:
        listed = (f"select {row[1:-1]} from dual" for row in rows)
        return Statement(f"{head} {' union all '.join(listed)}")

    def _create(self, name: str) -> list[Statement]:
        (made,) = super()._create(name)
        table = self._tables[-1]
        parts = []
        for column in table.columns:
            text = f"{self.quote(column.name)} {column.type.declared}"
            if column.name == "id":
                text += " primary key" if table.key else " not null"
            elif column.has_default:
                text += f" default {self._dice.choice(column.type.defaults)}"
            parts.append(text)
        head = made.sql.partition("(")[0]
        return [Statement(f"{head}({', '.join(parts)})")]

    def _add_column(
        self, table: Table, kind: ColumnType, rest: str, *, name: str = ""
    ) -> Statement:
        column = Made(name or self._new_name(table), kind)
        table.columns.append(column)
        column.nullable = "not null" not in rest
        column.has_default = "default" in rest
        default = rest.partition("default")[2].strip()
        text = f"{self.quote(column.name)} {kind.declared}"
        text += f" default {default}" if default else ""
        text += "" if column.nullable else " not null"
        return self._alter(table, self._dice.choice((f"add {text}", f"add ({text})")))

    def _drop(self, table: Table) -> list[Statement]:
        column = self._other(table)
        table.columns.remove(column)
        table.uniques = {k: v for k, v in table.uniques.items() if column.name not in v}
        return [self._alter(table, f"drop column {self.quote(column.name)} cascade constraints")]

    def _drop_add(self, table: Table) -> list[Statement]:
        old = self._other(table)
        table.columns.remove(old)
        table.uniques = {k: v for k, v in table.uniques.items() if old.name not in v}
        dropped = self._alter(table, f"drop ({self.quote(old.name)}) cascade constraints")
        kind = old.type if self._dice.random() < 0.6 else self._kind()
        return [dropped, self._add_column(table, kind, "null", name=old.name)]

    def _rename(self, table: Table) -> list[Statement]:
        column = self._other(table)
        old, column.name = column.name, self._new_name(table)
        table.uniques = {
            key: tuple(column.name if one == old else one for one in value)
            for key, value in table.uniques.items()
        }
        to = self.quote(column.name)
        return [self._alter(table, f"rename column {self.quote(old)} to {to}")]

    def _truncate(self, table: Table) -> list[Statement]:
        table.ids.clear()
        return [Statement(f"truncate table {self.name(table)}")]

    def _retype(self, table: Table) -> list[Statement]:
        column = self._other(table)
        kinds = [one for one in self.types if one.family and one.family == column.type.family]
        if not kinds or column.has_default:
            raise NothingToDo
        column.type = self._dice.choice(kinds)
        return [self._modify(table, column, column.type.declared)]

    def _modify(self, table: Table, column: Made, what: str) -> Statement:
        return self._alter(table, f"modify ({self.quote(column.name)} {what})")

    def _redefine(self, table: Table, column: Made) -> Statement:
        return self._modify(table, column, "null" if column.nullable else "not null")

    def _set_default(self, table: Table) -> list[Statement]:
        column = self._other(table)
        if column.has_default or not column.type.defaults:
            column.has_default = False
            return [self._modify(table, column, "default null")]
        column.has_default = True
        return [self._modify(table, column, f"default {self._dice.choice(column.type.defaults)}")]
