"""Random histories of a SQL Server source: rows, and the DDL that it allows on captured tables.

It refuses TRUNCATE and renamed columns there, so these are not drawn. Each DDL statement is a step
of its own, after which the administrator enables another capture instance (`ddl_sqlserver.py`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from typing import ClassVar

from harness.pipelines.ddl_actions import NothingToDo
from harness.pipelines.ddl_model import NAMES, STEPS_MAX, TABLE_NAMES, Made, Table
from harness.pipelines.ddl_script import Statement, Step
from harness.pipelines.ddl_types import SQLSERVER, ColumnType

_INTS = ("0", "1", "5", "100")
_INT_DEFAULTS = ("7", "'7'", "3+4", "0x41")
_TEXTS = ("'a'", "'A'", "'b c'", "'it''s'", "''", "'tail '")
_WIDE = (*_TEXTS, "N'é'", "N'😀'")
_MOMENTS = ("'2020-02-29T12:00:00'", "'1999-12-31T23:59:00'", "'2024-06-01T00:30:00'")
TYPES = (
    ColumnType(declared="tinyint", values=_INTS, defaults=_INT_DEFAULTS, family="number"),
    ColumnType(declared="smallint", values=_INTS, defaults=_INT_DEFAULTS, family="number"),
    ColumnType(
        declared="int",
        values=(*_INTS, "-7", "70000"),
        defaults=_INT_DEFAULTS,
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="bigint",
        values=(*_INTS, "9000000000"),
        defaults=_INT_DEFAULTS,
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="decimal(10,2)",
        values=("0", "1.25", "-3.5", "12345.67"),
        defaults=("1.235", "-.5", "7"),
        family="number",
    ),
    ColumnType(
        declared="decimal(14,4)",
        values=("0", "1.2345", "-3.5"),
        defaults=("1.25",),
        family="number",
    ),
    ColumnType(declared="money", values=("0", "1.2345", "-3.5"), defaults=("1.5",)),
    ColumnType(declared="real", values=("0", "1.5", "-0.25"), defaults=("1.5",), family="float"),
    ColumnType(declared="float", values=("0", "0.1", "-1e10"), defaults=(".25",), family="float"),
    ColumnType(declared="bit", values=("0", "1"), defaults=("1", "'true'")),
    ColumnType(
        declared="nvarchar(20)",
        values=_WIDE,
        defaults=("'a'", "N'é'", "''", "'ab  '"),
        family="text",
        is_key=True,
    ),
    ColumnType(declared="nvarchar(40)", values=_WIDE, defaults=("'a'", "N'é😀'"), family="text"),
    ColumnType(declared="varchar(20)", values=_TEXTS, defaults=("'a'", "''", "7"), family="text"),
    ColumnType(declared="nchar(10)", values=("'a'", "'xy'", "N'é'"), defaults=("'a'",)),
    ColumnType(declared="nvarchar(max)", values=_WIDE, defaults=("'a'",), family="text"),
    ColumnType(declared="varchar(max)", values=_TEXTS, defaults=("'it''s'",), family="text"),
    ColumnType(
        declared="varbinary(20)", values=("0x00ff", "0x"), defaults=("0x00ff",), family="bytes"
    ),
    ColumnType(declared="binary(5)", values=("0x6162", "0x00ff"), defaults=("0x41",)),
    ColumnType(declared="varbinary(max)", values=("0x00ff", "0x"), family="bytes"),
    ColumnType(declared="date", values=("'2020-02-29'", "'1999-12-31'"), defaults=("'20240102'",)),
    ColumnType(
        declared="datetime", values=_MOMENTS, defaults=("'2024-01-02T03:04:05'",), family="moment"
    ),
    ColumnType(
        declared="datetime2(3)",
        values=(*_MOMENTS, "'2024-01-02T03:04:05.678'"),
        defaults=("'2024-01-02T03:04:05.678'",),
        computed=("sysutcdatetime()",),
        family="moment",
    ),
    ColumnType(
        declared="datetime2(6)",
        values=(*_MOMENTS, "'2024-01-02T03:04:05.678901'"),
        defaults=("'2024-01-02'",),
        computed=("sysutcdatetime()",),
        family="moment",
    ),
    ColumnType(
        declared="datetimeoffset(3)",
        values=("'2020-02-29T12:00:00+00:00'", "'1999-12-31T23:59:59.5+00:00'"),
        defaults=("'2024-01-02T03:04:05+00:00'",),
    ),
    ColumnType(
        declared="time(3)", values=("'01:02:03'", "'23:59:59.5'"), defaults=("'01:02:03.5'",)
    ),
    ColumnType(
        declared="uniqueidentifier",
        values=("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
        defaults=("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12'",),
        computed=("newid()",),
    ),
)
ROWS = {"insert": 6, "update": 4, "update_all": 2, "delete": 1, "change_id": 1}
ALTERS = {
    "add": 5,
    "add_default": 3,
    "add_not_null": 4,
    "add_with_values": 2,
    "add_computed": 1,
    "drop": 4,
    "drop_add": 2,
    "retype": 3,
    "set_not_null": 2,
    "drop_not_null": 1,
    "set_default": 1,
    "unique": 1,
    "drop_unique": 1,
}
WHOLE = {"recreate": 2, "create_other": 1}
OTHER = ("keyless", "pause", "several_per_transaction", "odd_names", "text_keys")
OTHER += ("names_with_quotes",)
FEATURES = (*ROWS, *ALTERS, *WHOLE, *OTHER)


class SQLServerAuthor:
    """An author of one history, used by one thread.

    Attributes:
        kind: Kind of the source.
        types: Types of columns.
        alters: How often a change of a table is drawn, by the name of its feature.
        whole: The same for statements about whole tables.
        names: Names of columns.
        plain_count: How many of these are plain.
    """

    kind = SQLSERVER
    types = TYPES
    alters: ClassVar = ALTERS
    whole: ClassVar = WHOLE
    names = NAMES
    plain_count = 6

    def __init__(self, seed: int | str, features: Iterable[str] = FEATURES) -> None:
        """Prepare to draw; features are kinds of statements to draw."""
        self._features = set(features)
        self._dice = random.Random(f"{self.kind} {seed}")
        self._tables: list[Table] = []
        self._constraints: dict[tuple[str, str], str] = {}  # of defaults, by table and column
        self._number = 0
        self._steps_left = self._dice.randint(3, STEPS_MAX)
        self._next: list[Statement] = []
        self._uses_odd_names = "odd_names" in self._features and self._dice.random() < 0.5
        self._before = self._state()

    @staticmethod
    def quote(name: str) -> str:
        """Return a name in quotes."""
        return "[" + name.replace("]", "]]") + "]"

    def name(self, table: Table) -> str:
        """Return a table as statements name it."""
        return f"this.{self.quote(table.name)}"

    # -- requests of the arena

    def write_setup(self) -> list[Statement]:
        """Return statements for the tables and rows that exist before the pipeline."""
        statements: list[Statement] = []
        for _ in range(self._dice.choice((1, 1, 1, 2, 2, 3))):
            statements += self._create(self._table_name())
            table = self._tables[-1]
            statements += [self._insert(table) for _ in range(self._dice.choice((0, 1, 2, 4)))]
        return statements

    def write_step(self) -> Step | None:
        """Return the next transaction or pause; None at the end."""
        self._before = self._state()
        if self._next:
            return Step((self._next.pop(0),))
        self._steps_left -= 1
        if self._steps_left < 0:
            return None
        if "pause" in self._features and self._dice.random() < 0.2:
            return Step(pause=self._dice.randint(1, 2))
        if "several_per_transaction" in self._features and self._dice.random() < 0.3:
            return Step(tuple(self._rows() for _ in range(self._dice.randint(2, 4))))
        first, *self._next = self._draw()
        return Step((first,))

    def forget_step(self) -> None:
        """Undo the last step in the model, as the server refused it."""
        self._tables, self._constraints = self._before
        self._next = []

    def _state(self) -> tuple[list[Table], dict[tuple[str, str], str]]:
        return copy.deepcopy((self._tables, self._constraints))

    # -- drawing

    def _draw(self) -> list[Statement]:
        while True:
            before = self._state()
            try:
                what = self._dice.choices(("rows", "alter", "whole"), (10, 10, 1))[0]
                if what == "rows":
                    return [self._rows()]
                choice = self.alters if what == "alter" else self.whole
                drawn: list[Statement] = getattr(self, f"_{self._one_of(choice)}")(self._table())
            except NothingToDo:
                self._tables, self._constraints = before
                continue
            return drawn

    def _rows(self) -> Statement:
        while True:
            try:
                made: Statement = getattr(self, f"_{self._one_of(ROWS)}")(self._table())
            except NothingToDo:
                continue
            return made

    def _table(self) -> Table:
        return self._dice.choice(self._tables)

    def _one_of(self, weights: dict[str, int]) -> str:
        names = [one for one in weights if one in self._features]
        if not names:
            raise NothingToDo
        return self._dice.choices(names, [weights[one] for one in names])[0]

    def _table_name(self) -> str:
        free = [n for n in TABLE_NAMES if n not in {one.name for one in self._tables}]
        return self._dice.choice(free)

    def _may_be_key(self, kind: ColumnType) -> bool:
        return kind.is_key and (kind.family != "text" or "text_keys" in self._features)

    def _new_name(self, table: Table) -> str:
        pool = self.names if self._uses_odd_names else self.names[: self.plain_count]
        if "names_with_quotes" not in self._features:
            pool = tuple(one for one in pool if '"' not in one)
        taken = {one.name.lower() for one in table.columns}
        free = [name for name in pool if name.lower() not in taken]
        if not free:
            raise NothingToDo
        return self._dice.choice(free)

    def _constraint(self, table: Table, column: str) -> str:
        """Return a name for a column's default, and remember it."""
        self._number += 1
        name = f"df_{self._number}"
        self._constraints[table.name, column] = name
        return name

    # -- tables

    def _create(self, name: str) -> list[Statement]:
        keys = [one for one in self.types if self._may_be_key(one)]
        table = Table(name=name, id="id")
        table.columns.append(Made("id", self._dice.choice(keys), nullable=False))
        for _ in range(self._dice.randint(1, 5)):
            table.columns.append(Made(self._new_name(table), self._dice.choice(self.types)))
        table.key = () if "keyless" in self._features and self._dice.random() < 0.15 else ("id",)
        parts = []
        for column in table.columns:
            text = f"{self.quote(column.name)} {column.type.declared}"
            if column.name == "id":
                text += " not null primary key" if table.key else " not null"
            elif column.type.defaults and self._dice.random() < 0.3:
                default = self._dice.choice(column.type.defaults)
                column.has_default = True
                text += f" constraint {self._constraint(table, column.name)} default {default}"
            parts.append(text)
        self._tables.append(table)
        return [Statement(f"create table {self.name(table)} ({', '.join(parts)})")]

    def _recreate(self, table: Table) -> list[Statement]:
        self._tables.remove(table)
        dropped = Statement(f"drop table {self.name(table)}")
        created = self._create(table.name)
        return [dropped, *created, self._insert(self._tables[-1])]

    def _create_other(self, table: Table) -> list[Statement]:
        del table
        created = self._create(self._table_name())
        return [*created, self._insert(self._tables[-1])]

    # -- rows

    def _insert(self, table: Table) -> Statement:
        names = [one for one in table.columns if self._is_inserted(table, one)]
        rows = []
        for _ in range(self._dice.choice((1, 1, 2, 3))):
            table.counter += 1
            table.ids.append(table.counter)
            values = [
                write_id(table, table.counter) if one.name == table.id else self._value(one)
                for one in names
            ]
            rows.append(f"({', '.join(values)})")
        listed = ", ".join(self.quote(one.name) for one in names)
        return self._write_insert(f"insert into {self.name(table)} ({listed})", rows)

    def _write_insert(self, head: str, rows: Sequence[str]) -> Statement:
        return Statement(f"{head} values {', '.join(rows)}")

    def _is_inserted(self, table: Table, column: Made) -> bool:
        must = column.name == table.id or not (column.has_default or column.nullable)
        return must or self._dice.random() < 0.8

    def _value(self, column: Made) -> str:
        if column.nullable and self._dice.random() < 0.15:
            return "null"
        return self._dice.choice(column.type.values)

    def _where(self, table: Table) -> str:
        if not table.ids:
            raise NothingToDo
        return f"where {self.quote(table.id)} = {write_id(table, self._dice.choice(table.ids))}"

    def _update(self, table: Table) -> Statement:
        return Statement(f"{self._update_all(table).head} {self._where(table)}")

    def _update_all(self, table: Table) -> Statement:
        column = self._other(table)
        return Statement(
            f"update {self.name(table)} set {self.quote(column.name)} = {self._value(column)}"
        )

    def _delete(self, table: Table) -> Statement:
        return Statement(f"delete from {self.name(table)} {self._where(table)}")

    def _change_id(self, table: Table) -> Statement:
        where = self._where(table)
        table.counter += 1
        table.ids.append(table.counter)
        new = write_id(table, table.counter)
        return Statement(f"update {self.name(table)} set {self.quote('id')} = {new} {where}")

    # -- ALTER TABLE

    def _other(self, table: Table) -> Made:
        if not table.others:
            raise NothingToDo
        return self._dice.choice(table.others)

    def _alter(self, table: Table, action: str) -> Statement:
        return Statement(f"alter table {self.name(table)} {action}")

    def _add_column(
        self, table: Table, kind: ColumnType, rest: str, *, name: str = ""
    ) -> Statement:
        column = Made(name or self._new_name(table), kind)
        table.columns.append(column)
        column.nullable = "not null" not in rest
        column.has_default = "default" in rest
        named = rest
        if column.has_default:
            named = rest.replace(
                "default", f"constraint {self._constraint(table, column.name)} default"
            )
        return self._alter(table, f"add {self.quote(column.name)} {kind.declared} {named}".rstrip())

    def _kind(self, *, defaults: bool = False) -> ColumnType:
        return self._dice.choice([one for one in self.types if one.defaults or not defaults])

    def _add(self, table: Table) -> list[Statement]:
        return [self._add_column(table, self._kind(), "null")]

    def _add_default(self, table: Table) -> list[Statement]:
        """Add a column whose default older rows do not get."""
        kind = self._kind(defaults=True)
        return [self._add_column(table, kind, f"null default {self._dice.choice(kind.defaults)}")]

    def _add_not_null(self, table: Table) -> list[Statement]:
        kind = self._kind(defaults=True)
        default = self._dice.choice(kind.defaults)
        return [self._add_column(table, kind, f"not null default {default}")]

    def _add_with_values(self, table: Table) -> list[Statement]:
        kind = self._kind(defaults=True)
        default = self._dice.choice(kind.defaults)
        return [self._add_column(table, kind, f"null default {default} with values")]

    def _add_computed(self, table: Table) -> list[Statement]:
        """Add a column whose default is not a constant."""
        kind = self._dice.choice([one for one in self.types if one.computed])
        default = self._dice.choice(kind.computed)
        return [self._add_column(table, kind, f"not null default {default}")]

    def _drop(self, table: Table) -> list[Statement]:
        column = self._other(table)
        table.columns.remove(column)
        table.uniques = {k: v for k, v in table.uniques.items() if column.name not in v}
        constraint = self._constraints.pop((table.name, column.name), "")
        before = [self._alter(table, f"drop constraint {constraint}")] if constraint else []
        return [*before, self._alter(table, f"drop column {self.quote(column.name)}")]

    def _drop_add(self, table: Table) -> list[Statement]:
        old = self._other(table)
        name = old.name
        table.columns.remove(old)
        constraint = self._constraints.pop((table.name, name), "")
        before = [self._alter(table, f"drop constraint {constraint}")] if constraint else []
        dropped = self._alter(table, f"drop column {self.quote(name)}")
        kind = old.type if self._dice.random() < 0.6 else self._kind()
        return [*before, dropped, self._add_column(table, kind, "null", name=name)]

    def _retype(self, table: Table) -> list[Statement]:
        column = self._other(table)
        kinds = [one for one in self.types if one.family and one.family == column.type.family]
        if not kinds or column.has_default:
            raise NothingToDo
        column.type = self._dice.choice(kinds)
        return [self._redefine(table, column)]

    def _redefine(self, table: Table, column: Made) -> Statement:
        rest = "null" if column.nullable else "not null"
        return self._alter(
            table, f"alter column {self.quote(column.name)} {column.type.declared} {rest}"
        )

    def _set_not_null(self, table: Table) -> list[Statement]:
        column = self._other(table)
        column.nullable = False
        return [self._redefine(table, column)]

    def _drop_not_null(self, table: Table) -> list[Statement]:
        column = self._other(table)
        column.nullable = True
        return [self._redefine(table, column)]

    def _set_default(self, table: Table) -> list[Statement]:
        column = self._other(table)
        if column.has_default:
            column.has_default = False
            constraint = self._constraints.pop((table.name, column.name))
            return [self._alter(table, f"drop constraint {constraint}")]
        if not column.type.defaults:
            raise NothingToDo
        column.has_default = True
        default = self._dice.choice(column.type.defaults)
        name = self._constraint(table, column.name)
        return [
            self._alter(
                table, f"add constraint {name} default {default} for {self.quote(column.name)}"
            )
        ]

    def _unique(self, table: Table) -> list[Statement]:
        others = [one.name for one in table.others if self._may_be_key(one.type)]
        if not others:
            raise NothingToDo
        self._number += 1
        name = f"u{self._number}"
        table.uniques[name] = (self._dice.choice(others), table.id)
        listed = ", ".join(map(self.quote, table.uniques[name]))
        return [self._alter(table, f"add constraint {name} unique ({listed})")]

    def _drop_unique(self, table: Table) -> list[Statement]:
        if not table.uniques:
            raise NothingToDo
        name = self._dice.choice(sorted(table.uniques))
        del table.uniques[name]
        return [self._alter(table, f"drop constraint {name}")]


def write_id(table: Table, number: int) -> str:
    """Return the literal of the value that identifies a row."""
    is_text = table.column(table.id).type.family == "text"
    return f"'k{number}'" if is_text else str(number)
