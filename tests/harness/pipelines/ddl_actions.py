"""The actions of ALTER TABLE that random histories draw, and the model that follows them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from harness.pipelines.ddl_model import (
    FEATURES,
    MY_ONLY,
    NAMES,
    PG_ONLY,
    STEPS_MAX,
    TABLE_NAMES,
    Made,
    Table,
)
from harness.pipelines.ddl_script import Statement
from harness.pipelines.ddl_types import POSTGRES, TYPES, ColumnType


class NothingToDo(Exception):
    """Error: the drawn statement is impossible in the table as it is."""


class Actions:
    """A drawer of actions, each with the statements that must precede it, for tables
    of one source.
    """

    def __init__(self, source: str, seed: int | str, features: Iterable[str] = FEATURES) -> None:
        """Prepare to draw; source is a kind of server, features are kinds of statements to draw."""
        self._source = source
        self._is_pg = source == POSTGRES
        self._features = set(features) - (MY_ONLY if self._is_pg else PG_ONLY)
        self._dice = random.Random(f"{source} {seed}")
        self._types = TYPES[source]
        self._tables: list[Table] = []
        self._made_types: set[tuple[str, ...]] = set()
        self._steps_left = self._dice.randint(3, STEPS_MAX)
        self._before: tuple[Any, ...] | None = None
        self._label_number = 0
        self._added_labels: dict[str, list[str]] = {}  # by type
        self._usable_labels: dict[str, list[str]] = {}  # of these, the committed ones
        self._next_steps: list[tuple[str, str]] = []  # methods and their arguments
        self._touches = self._dice.random() < 0.6
        self._begins_with_setting = "session" in self._features and self._dice.random() < 0.4
        self._has_time_zone = False
        self._uses_odd_names = "odd_names" in self._features and self._dice.random() < 0.5

    def _alter_table(self, table: Table, *actions: str) -> Statement:
        return Statement(f"alter table {self._q(table.name)}", actions)

    def _q(self, name: str) -> str:
        if self._is_pg:
            return '"' + name.replace('"', '""') + '"'
        return "`" + name.replace("`", "``") + "`"

    def _table_name(self) -> str:
        free = [n for n in TABLE_NAMES if n not in {one.name for one in self._tables}]
        if not free:
            raise NothingToDo
        return self._dice.choice(free)

    def _new_name(self, table: Table) -> str:
        pool = NAMES if self._uses_odd_names else NAMES[:6]
        if "names_with_quotes" not in self._features:
            pool = tuple(name for name in pool if '"' not in name)
        taken = {one.name.lower() for one in table.columns}
        free = [name for name in pool if name.lower() not in taken]
        if not free:
            raise NothingToDo
        return self._dice.choice(free)

    def _may_be_key(self, kind: ColumnType) -> bool:
        return kind.is_key and (kind.family != "text" or "text_keys" in self._features)

    def _other(self, table: Table) -> Made:
        if not table.others:
            raise NothingToDo
        return self._dice.choice(table.others)

    def _needs(self, kind: ColumnType) -> list[Statement]:
        if not kind.needs or kind.needs in self._made_types:
            return []
        self._made_types.add(kind.needs)
        return [Statement(one) for one in kind.needs]

    # -- actions of ALTER TABLE: statements that must precede them, and the actions

    def _declare(self, table: Table, *, default: str = "", not_null: bool = False) -> str:
        column = table.columns[-1]
        text = f"add column {self._q(column.name)} {column.type.declared}"
        if not_null:
            column.nullable = False
            text += " not null"
        elif not self._is_pg:
            text += " null"
        if default:
            column.has_default = True
            text += f" default {default}"
        if not self._is_pg and self._dice.random() < 0.3:
            where = self._dice.choice(table.columns[:-1]).name
            text += self._dice.choice((" first", f" after {self._q(where)}"))
        return text

    def _add_column(
        self, table: Table, name: str, fits: Callable[[ColumnType], object] = lambda _: True
    ) -> tuple[ColumnType, list[Statement]]:
        kind = self._dice.choice([one for one in self._types if fits(one)])
        table.columns.append(Made(name, kind))
        return kind, self._needs(kind)

    def _add(self, table: Table) -> tuple[list[Statement], list[str]]:
        _, needed = self._add_column(table, self._new_name(table))
        return needed, [self._declare(table)]

    def _add_default(self, table: Table) -> tuple[list[Statement], list[str]]:
        # Of a session with a time zone, the values that depend on it are of interest.
        is_zoned = self._has_time_zone and self._dice.random() < 0.5
        kind, needed = self._add_column(
            table,
            self._new_name(table),
            lambda one: one.defaults and (not is_zoned or one.declared.startswith("timestamp")),
        )
        is_not_null = self._dice.random() < 0.5
        default = self._dice.choice(kind.defaults)
        return needed, [self._declare(table, default=default, not_null=is_not_null)]

    def _add_not_null(self, table: Table) -> tuple[list[Statement], list[str]]:
        if self._is_pg and table.ids:
            return self._add_default(table)
        _, needed = self._add_column(table, self._new_name(table))
        return needed, [self._declare(table, not_null=True)]

    def _add_computed(self, table: Table) -> tuple[list[Statement], list[str]]:
        kind, needed = self._add_column(table, self._new_name(table), lambda one: one.computed)
        return needed, [self._declare(table, default=self._dice.choice(kind.computed))]

    def _add_generated(self, table: Table) -> tuple[list[Statement], list[str]]:
        """Add a column that is computed from the one that identifies rows."""
        if table.column(table.id).type.family != "number":
            raise NothingToDo
        name = self._new_name(table)
        number = next(one for one in self._types if one.declared == "bigint")
        table.columns.append(Made(name, number, is_generated=True))
        how = "stored" if self._is_pg or self._dice.random() < 0.5 else "virtual"
        computed = f"({self._q(table.id)} * 2)"
        return [], [f"add column {self._q(name)} bigint generated always as {computed} {how}"]

    def _identity(self, table: Table) -> tuple[list[Statement], list[str]]:
        """Add a column that numbers the rows."""
        name = self._new_name(table)
        number = next(one for one in self._types if one.declared == "integer")
        table.columns.append(Made(name, number, nullable=False, has_default=True))
        forms = ("serial", "integer generated by default as identity")
        return [], [f"add column {self._q(name)} {self._dice.choice(forms)}"]

    def _forget(self, table: Table, name: str) -> None:
        table.columns = [one for one in table.columns if one.name != name]
        table.uniques = {k: v for k, v in table.uniques.items() if name not in v}

    def _drop(self, table: Table) -> tuple[list[Statement], list[str]]:
        name = self._other(table).name
        self._forget(table, name)
        return [], [f"drop column {self._q(name)}"]

    def _drop_add(self, table: Table) -> tuple[list[Statement], list[str]]:
        old = self._other(table)
        self._forget(table, old.name)
        same = self._dice.random() < 0.6
        kind, needed = self._add_column(
            table, old.name, (lambda one: one == old.type) if same else lambda _: True
        )
        default = ""
        if kind.defaults and self._dice.random() < 0.5:
            default = self._dice.choice(kind.defaults)
        return needed, [f"drop column {self._q(old.name)}", self._declare(table, default=default)]

    def _change_name(self, table: Table, old: str, new: str) -> str:
        table.column(old).name = new
        table.key = tuple(new if one == old else one for one in table.key)
        table.uniques = {
            name: tuple(new if one == old else one for one in columns)
            for name, columns in table.uniques.items()
        }
        if table.id == old:
            table.id = new
        return f"rename column {self._q(old)} to {self._q(new)}"

    def _rename(self, table: Table) -> tuple[list[Statement], list[str]]:
        old = self._dice.choice(table.columns).name
        return [], [self._change_name(table, old, self._new_name(table))]

    def _change_type(self, table: Table, column: Made, kind: ColumnType) -> str:
        column.type = kind
        if self._is_pg:
            return f"alter column {self._q(column.name)} type {kind.declared}"
        return self._modify_column(column)

    def _modify_column(self, column: Made, name: str = "", kind: str = "") -> str:
        """Return MODIFY or CHANGE to the model's column, which loses its default."""
        column.has_default = False
        declared = kind or column.type.declared
        rest = "null" if column.nullable else "not null"
        shown = self._q(name or column.name)
        if self._dice.random() < 0.3:
            return f"change column {self._q(column.name)} {shown} {declared} {rest}"
        return f"modify column {shown} {declared} {rest}"

    def _retype(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._dice.choice(table.columns)
        kinds = [
            one
            for one in self._types
            if one.family
            and one.family == column.type.family
            and (self._may_be_key(one) or column.name not in table.key)
        ]
        if not kinds:
            raise NothingToDo
        kind = self._dice.choice(kinds)
        return self._needs(kind), [self._change_type(table, column, kind)]

    def _using(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._other(table)
        if column.has_default:
            raise NothingToDo
        kind = self._dice.choice(self._types)
        column.type = kind
        value = self._dice.choice(kind.values)
        return self._needs(kind), [
            f"alter column {self._q(column.name)} type {kind.declared}"
            f" using {value}::{kind.declared}"
        ]

    def _set_not_null(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._other(table)
        column.nullable = False
        if self._is_pg:
            return [], [f"alter column {self._q(column.name)} set not null"]
        return [], [self._modify_column(column)]

    def _drop_not_null(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._other(table)
        if column.name in table.key:
            raise NothingToDo
        column.nullable = True
        if self._is_pg:
            return [], [f"alter column {self._q(column.name)} drop not null"]
        return [], [self._modify_column(column)]

    def _set_default(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._other(table)
        if column.has_default and self._dice.random() < 0.5:
            column.has_default = False
            return [], [f"alter column {self._q(column.name)} drop default"]
        if not column.type.defaults:
            raise NothingToDo
        column.has_default = True
        default = self._dice.choice(column.type.defaults)
        return [], [f"alter column {self._q(column.name)} set default {default}"]

    def _unique(self, table: Table) -> tuple[list[Statement], list[str]]:
        others = [one.name for one in table.others if self._may_be_key(one.type)]
        if not others:
            raise NothingToDo
        columns = (self._dice.choice(others), table.id)[: self._dice.randint(1, 2)]
        self._label_number += 1
        name = f"u{self._label_number}"
        table.uniques[name] = columns
        if self._dice.random() < 0.4:
            self._next_steps.append(("write_equal_rows", table.name))
        listed = ", ".join(map(self._q, columns))
        word = f"constraint {name} unique" if self._is_pg else f"unique key {name}"
        return [], [f"add {word} ({listed})"]

    def _drop_unique(self, table: Table) -> tuple[list[Statement], list[str]]:
        if not table.uniques:
            raise NothingToDo
        name = self._dice.choice(sorted(table.uniques))
        del table.uniques[name]
        return [], [f"drop {'constraint' if self._is_pg else 'index'} {name}"]

    def _dropped_key(self, table: Table) -> str:
        if not table.key:
            raise NothingToDo
        if not self._is_pg:
            return "drop primary key"
        return f"drop constraint {self._q(table.name + '_pkey')}"

    def _change_key(self, table: Table) -> tuple[list[Statement], list[str]]:
        choice = [one.name for one in table.others if self._may_be_key(one.type)]
        columns = (table.id, *self._dice.sample(choice, min(len(choice), 1)))
        if self._dice.random() < 0.3:
            columns = columns[::-1]
        if columns == table.key:
            columns = (table.id,)
        dropped = [self._dropped_key(table)] if table.key else []
        table.key = columns
        for name in columns:
            table.column(name).nullable = False
        listed = ", ".join(map(self._q, columns))
        return [], [*dropped, f"add primary key ({listed})"]

    def _drop_key(self, table: Table) -> tuple[list[Statement], list[str]]:
        if "keyless" not in self._features:
            raise NothingToDo
        dropped = self._dropped_key(table)
        table.key = ()
        return [], [dropped, "replica identity full"] if self._is_pg else [dropped]

    def _modify_case(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = self._other(table)
        name = column.name.swapcase()
        if name.lower() != column.name.lower() or name == column.name:
            raise NothingToDo
        modified = self._modify_column(column, name)
        if modified.startswith("change"):
            self._change_name(table, column.name, name)
        else:
            column.name = name
        return [], [modified]

    def _collation(self, table: Table) -> tuple[list[Statement], list[str]]:
        texts = [one for one in table.columns if one.type.declared.startswith("varchar(")]
        if not texts:
            raise NothingToDo
        column = self._dice.choice(texts)
        if column.name == table.id:
            self._next_steps.append(("use_collation", table.name))
        size = 40 if "(40)" in column.type.declared else 20
        forms = (
            "collate utf8mb4_bin",
            "collate utf8mb4_general_ci",
            "character set latin1",
            "character set utf8mb4",
            "character set latin1 collate latin1_bin",
        )
        form = self._dice.choice(forms)
        modified = self._modify_column(column, kind=f"varchar({size}) {form}")
        return self._prepare_conversion(form), [modified]

    def _prepare_conversion(self, to: str) -> list[Statement]:
        """Let the server write question marks for letters that a character set lacks."""
        if "latin1" in to and "session" in self._features and self._dice.random() < 0.5:
            return [Statement("set sql_mode = ''")]
        return []

    def _labels(self, table: Table) -> tuple[list[Statement], list[str]]:
        """Give a column another list of labels, by MODIFY."""
        columns = [one for one in table.columns if one.type.family in ("label", "set")]
        if self._is_pg or not columns:
            raise NothingToDo
        column = self._dice.choice(columns)
        kinds = [one for one in self._types if one.family == column.type.family]
        return [], [self._change_type(table, column, self._dice.choice(kinds))]

    def _auto_increment(self, table: Table) -> tuple[list[Statement], list[str]]:
        column = table.column(table.id)
        if table.key != (table.id,) or column.type.family != "number":
            raise NothingToDo
        text = f"modify column {self._q(column.name)} {column.type.declared} not null"
        numbers = self._dice.choice((" auto_increment", ""))
        if not numbers:
            self._next_steps.append(("change_old_key", table.name))
        return [], [text + numbers]
