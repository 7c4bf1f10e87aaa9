"""Random histories of tables: rows and DDL of every statement that a source may run.

A history is written while it runs, because the next statement depends on which parts of the
previous one the server accepted: `Author` keeps a model of the tables, and forgets failed parts.
Not here: the parts of a history (`harness/pipelines/ddl_script.py`), and running it
(`harness/pipelines/ddl_arena.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

from harness.pipelines.ddl_actions import Actions, NothingToDo
from harness.pipelines.ddl_model import (
    ALTERS,
    MY_SESSIONS,
    PG_SESSIONS,
    ROWS,
    TABLE_NAMES,
    WHOLE,
    Made,
    Table,
)
from harness.pipelines.ddl_script import Statement, Step
from harness.pipelines.ddl_types import MARIADB, ColumnType


class Author(Actions):
    """An author of one history, used by one thread."""

    # -- requests of the arena

    def write_setup(self) -> list[Statement]:
        """Return statements for the tables and rows that exist before the pipeline."""
        count = self._dice.choice((1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 12))
        statements: list[Statement] = []
        for name in self._dice.sample(TABLE_NAMES, count) if count > 1 else [self._table_name()]:
            statements += self._create(name)
            table = self._tables[-1]
            for _ in range(self._dice.choice((0, 1, 2, 4))):
                statements.append(self._insert(table))
        return statements

    def write_step(self) -> Step | None:
        """Return the next transaction or pause; None at the end."""
        if self._begins_with_setting:  # as most settings matter to later statements alone
            self._begins_with_setting = False
            self._remember()
            return Step((self._change_setting(),))
        self._steps_left -= 1
        if self._steps_left < 0:
            return self._touch(-self._steps_left - 1)
        if "pause" in self._features and self._dice.random() < 0.2:
            return Step(pause=self._dice.randint(1, 2))
        self._remember()
        while self._next_steps:
            name, argument = self._next_steps.pop(0)
            try:
                return Step(tuple(getattr(self, f"_{name}")(argument)))
            except NothingToDo:
                self.forget_step()
                self._remember()
        several = "several_per_transaction" in self._features and self._dice.random() < 0.4
        statements: list[Statement] = []
        for _ in range(self._dice.randint(2, 4) if several else 1):
            # DDL ends a transaction on the other servers.
            statements += self._draw(rows_only=several and not self._is_pg)
        return Step(tuple(statements))

    def _touch(self, number: int) -> Step | None:
        """Insert a row into each table at the end of some histories, as it may reveal unreported
        changes.
        """
        if not self._touches or number >= len(self._tables) or "insert" not in self._features:
            return None
        self._remember()
        return Step((self._insert(self._tables[number]),))

    def forget_step(self) -> None:
        """Undo the last step in the model, as the server refused it."""
        assert self._before is not None
        self._tables, self._made_types, self._added_labels = self._before

    def _remember(self) -> None:
        self._before = copy.deepcopy((self._tables, self._made_types, self._added_labels))
        self._usable_labels = copy.deepcopy(self._added_labels)

    # -- drawing

    def _draw(self, *, rows_only: bool) -> list[Statement]:
        weights = (1, 0, 0, 0) if rows_only else (10, 10, 3, 1)
        while True:
            table = self._dice.choice(self._tables)
            if rows_only and not table.ids:
                return [self._insert(table)]
            what = self._dice.choices(("rows", "alter", "whole", "session"), weights)[0]
            before = copy.deepcopy((self._tables, self._made_types))
            try:
                if what == "rows":
                    return [getattr(self, f"_{self._one_of(ROWS)}")(table)]
                if what == "alter":
                    return self._alter(table)
                if what == "whole":
                    done: list[Statement] = getattr(self, f"_{self._one_of(WHOLE)}")(table)
                    return done
                if "session" in self._features:
                    return [self._change_setting()]
            except NothingToDo:
                self._tables, self._made_types = before

    def _change_setting(self) -> Statement:
        text = self._dice.choice(PG_SESSIONS if self._is_pg else MY_SESSIONS)
        self._has_time_zone |= "zone" in text
        return Statement(text)

    def _one_of(self, weights: dict[str, int]) -> str:
        names = [one for one in weights if one in self._features]
        if not names:
            raise NothingToDo
        return self._dice.choices(names, [weights[one] for one in names])[0]

    def _alter(self, table: Table) -> list[Statement]:
        several = "several_actions" in self._features and self._dice.random() < 0.3
        before: list[Statement] = []
        actions: list[str] = []
        for _ in range(self._dice.randint(2, 3) if several else 1):
            name = self._one_of(ALTERS)
            made: Callable[[Table], tuple[list[Statement], list[str]]]
            made = getattr(self, f"_{name}")
            needed, parts = made(table)
            before += needed
            if self._is_pg and name == "rename":  # must be the only action there
                ahead = [self._alter_table(table, *actions)] if actions else []
                return [*before, *ahead, self._alter_table(table, *parts)]
            actions += parts
        return [*before, self._alter_table(table, *actions)]

    # -- tables

    def _create(self, name: str) -> list[Statement]:
        keys = [one for one in self._types if one.is_key]
        is_text = self._dice.random() < 0.3 and "text_keys" in self._features
        keys = keys[2:] if is_text else keys[:2]
        table = Table(name=name, id="id")
        table.columns.append(Made("id", self._dice.choice(keys), nullable=False))
        needed: list[Statement] = []
        for _ in range(self._dice.randint(1, 5)):
            kind = self._dice.choice(self._types)
            needed += self._needs(kind)
            table.columns.append(Made(self._new_name(table), kind))
        table.key = () if "keyless" in self._features and self._dice.random() < 0.15 else ("id",)
        parts = []
        for column in table.columns:
            text = f"{self._q(column.name)} {column.type.declared}"
            if column.name == "id":
                text += " not null"
                numbers = not self._is_pg and column.type.family == "number" and table.key
                if numbers and "auto_increment" in self._features and self._dice.random() < 0.4:
                    text += " auto_increment"
            elif self._dice.random() < 0.3 and column.type.defaults:
                column.has_default = True
                text += f" default {self._dice.choice(column.type.defaults)}"
            elif not self._is_pg:
                text += " null"
            parts.append(text)
        if table.key:
            parts.append("primary key (id)")
        if "unique" in self._features and self._dice.random() < 0.25:
            with suppress(NothingToDo):  # no column can have it
                parts += [part.removeprefix("add ") for part in self._unique(table)[1]]
        self._tables.append(table)
        statements = [*needed, Statement(f"create table {self._q(name)} ({', '.join(parts)})")]
        if self._is_pg and not table.key:
            statements.append(Statement(f"alter table {self._q(name)} replica identity full"))
        return statements

    def _truncate(self, table: Table) -> list[Statement]:
        table.ids.clear()
        return [Statement(f"truncate table {self._q(table.name)}")]

    def _drop_and_create(self, table: Table) -> list[Statement]:
        self._tables.remove(table)
        return [Statement(f"drop table {self._q(table.name)}"), *self._create(table.name)]

    def _recreate(self, table: Table) -> list[Statement]:
        return self._drop_and_create(table)

    def _recreate_other(self, table: Table) -> list[Statement]:
        """Create the table again without a common column."""
        taken = {one.name for one in table.columns}
        statements = self._drop_and_create(table)
        made = self._tables[-1]
        if taken & {one.name for one in made.columns} - {"id"}:
            raise NothingToDo
        text = statements[-1].head if statements[-1].head.startswith("create table") else ""
        if not text:
            raise NothingToDo
        made.id, made.columns[0].name, made.key = "nr", "nr", ("nr",)
        text = text.replace(f"({self._q('id')} ", f"({self._q('nr')} ", 1)
        return [*statements[:-1], Statement(text.replace("primary key (id)", "primary key (nr)"))]

    # -- rows

    def _insert(self, table: Table) -> Statement:
        rows = []
        names = [
            one for one in table.columns if not one.is_generated and self._is_inserted(table, one)
        ]
        for _ in range(self._dice.choice((1, 1, 2, 3))):
            table.counter += 1
            table.ids.append(table.counter)
            values = [
                self._id_literal(table, table.counter) if one.name == table.id else self._value(one)
                for one in names
            ]
            rows.append(f"({', '.join(values)})")
        listed = ", ".join(self._q(one.name) for one in names)
        return Statement(f"insert into {self._q(table.name)} ({listed}) values {', '.join(rows)}")

    def _is_inserted(self, table: Table, column: Made) -> bool:
        must = column.name == table.id or not (column.has_default or column.nullable)
        return must or self._dice.random() < 0.8

    def _choose_written(self, table: Table) -> Made:
        if not table.settable_columns:
            raise NothingToDo
        return self._dice.choice(table.settable_columns)

    def _id_literal(self, table: Table, number: int) -> str:
        """Return a row's number; two texts differ in case, which some collations refuse."""
        is_text = table.column(table.id).type.family == "text"
        return f"'{'aA'[number % 2]}{number // 2}'" if is_text else str(number)

    def _value(self, column: Made) -> str:
        if column.nullable and self._dice.random() < 0.15:
            return "null"
        labels = self._usable_labels.get(column.type.declared)
        if labels and self._dice.random() < 0.5:
            return self._dice.choice(labels)
        return self._dice.choice(column.type.values)

    def _where(self, table: Table) -> str:
        if not table.ids:
            raise NothingToDo
        number = self._dice.choice(table.ids)
        return f"where {self._q(table.id)} = {self._id_literal(table, number)}"

    def _update(self, table: Table) -> Statement:
        column = self._choose_written(table)
        text = f"update {self._q(table.name)} set {self._q(column.name)} = {self._value(column)}"
        return Statement(f"{text} {self._where(table)}")

    def _update_all(self, table: Table) -> Statement:
        column = self._choose_written(table)
        return Statement(
            f"update {self._q(table.name)} set {self._q(column.name)} = {self._value(column)}"
        )

    def _delete(self, table: Table) -> Statement:
        where = self._where(table)
        return Statement(f"delete from {self._q(table.name)} {where}")

    # -- statements about whole tables and types

    def _convert(self, table: Table) -> list[Statement]:
        to = self._dice.choice(
            (
                "convert to character set utf8mb4",
                "convert to character set utf8mb4 collate utf8mb4_bin",
                "convert to character set latin1",
                "default character set latin1",
            )
        )
        return [*self._prepare_conversion(to), self._alter_table(table, to)]

    def _enum_value(self, table: Table) -> list[Statement]:
        del table
        kinds = [
            one for one in self._types if one.needs in self._made_types and one.family == "label"
        ]
        if not kinds:
            raise NothingToDo
        kind = self._dice.choice(kinds).declared
        if "rename_chain" in self._features and self._dice.random() < 0.5:
            self._next_steps += [("add_label_later", kind), ("use_label", kind)]
            return self._give_away_name(kind)
        self._next_steps.append(("use_label", kind))
        return self._add_label(kind)

    def _add_label(self, kind: str) -> list[Statement]:
        self._label_number += 1
        label = f"'new{self._label_number}'"
        self._added_labels.setdefault(kind, []).append(label)
        return [Statement(f"alter type {kind} add value {label}")]

    def _add_label_later(self, kind: str) -> list[Statement]:
        """Add a label once the source has read the types of the rows before; a row shows it."""
        return [Statement("select pg_sleep(0.3)"), *self._add_label(kind)]

    def _tables_with(self, kind: str) -> list[Table]:
        found = [one for one in self._tables if any(c.type.declared == kind for c in one.columns)]
        if not found:
            raise NothingToDo
        return found

    def _use_label(self, kind: str) -> list[Statement]:
        return [self._insert(self._dice.choice(self._tables_with(kind)))]

    def _table_named(self, name: str) -> Table:
        table = next((one for one in self._tables if one.name == name), None)
        if table is None:
            raise NothingToDo
        return table

    def _use_collation(self, name: str) -> list[Statement]:
        """Insert two rows into a table whose numbers got another collation."""
        table = self._table_named(name)
        return [self._insert(table), self._insert(table)]

    def _write_equal_rows(self, name: str) -> list[Statement]:
        """Drop a unique key of a table, and insert rows that may be equal in its columns."""
        table = self._table_named(name)
        needed, actions = self._drop_unique(table)
        rows = [self._insert(table), self._insert(table)]
        return [*needed, self._alter_table(table, *actions), *rows]

    def _change_old_key(self, name: str) -> list[Statement]:
        """Change the key of a table whose numbers the server gives no longer."""
        table = self._table_named(name)
        change = self._dice.choice((self._change_key, self._drop_key, self._drop_key))
        needed, actions = change(table)
        return [*needed, self._alter_table(table, *actions)]

    def _give_away_name(self, kind: str) -> list[Statement]:
        """Drop a column of a type, and give its name to another one, which gets a row."""
        table = self._dice.choice(self._tables_with(kind))
        leaving = next(one for one in table.columns if one.type.declared == kind)
        others = [one for one in table.others if one is not leaving]
        if leaving not in table.others or not others:
            raise NothingToDo
        statements = self._take_name(table, leaving.name, self._dice.choice(others).name)
        return [*statements, self._insert(table)]

    def _enum_rename(self, table: Table) -> list[Statement]:
        del table
        if self._types_named("mood") is None:
            raise NothingToDo
        return [Statement("alter type mood rename value 'happy' to 'glad'")]

    def _types_named(self, name: str) -> ColumnType | None:
        made = [one for one in self._types if one.declared == name]
        return next((one for one in made if one.needs in self._made_types), None)

    def _replica_identity(self, table: Table) -> list[Statement]:
        to = self._dice.choice(("full", "default") if table.key else ("full",))
        return [self._alter_table(table, f"replica identity {to}")]

    def _temporary(self, table: Table) -> list[Statement]:
        """Create a temporary table with a captured table's name."""
        if self._is_pg:
            raise NothingToDo
        name = self._q(table.name)
        return [
            Statement(f"create temporary table {name} (id int)"),
            Statement(f"insert into {name} values (1)"),
            Statement(f"alter table {name} add column zz int"),
            *(
                [
                    Statement(f"alter table {name} rename to tmp9"),
                    Statement("drop temporary table tmp9"),
                ]
                if self._source == MARIADB
                else [Statement(f"drop temporary table {name}")]
            ),
        ]

    def _table_swap(self, table: Table) -> list[Statement]:
        """Swap the table as gh-ost does: a copy is altered, filled, and gets the table's name."""
        name, ghost = self._q(table.name), self._q(f"_{table.name}_gho")
        old = self._q(f"_{table.name}_del")
        kept = ", ".join(self._q(one.name) for one in table.columns if not one.is_generated)
        kind, needed = self._add_column(table, self._new_name(table))
        default = self._dice.choice(kind.defaults) if kind.defaults else ""
        return [
            *needed,
            Statement(f"create table {ghost} like {name}"),
            Statement(f"alter table {ghost}", (self._declare(table, default=default),)),
            Statement(f"insert ignore into {ghost} ({kept}) select {kept} from {name}"),
            Statement(f"rename table {name} to {old}, {ghost} to {name}"),
            Statement(f"drop table {old}"),
        ]

    def _replace_table(self, table: Table) -> list[Statement]:
        if self._source != MARIADB:
            raise NothingToDo
        _, *created = self._drop_and_create(table)
        last = created[-1].head.replace("create table", "create or replace table", 1)
        return [*created[:-1], Statement(last)]

    def _rename_table(self, table: Table) -> list[Statement]:
        name = self._table_name()
        statement = Statement(f"alter table {self._q(table.name)} rename to {self._q(name)}")
        table.name = name
        return [statement]

    def _comment(self, table: Table) -> list[Statement]:
        if self._is_pg:
            return [Statement(f"comment on table {self._q(table.name)} is 'x'")]
        return [self._alter_table(table, "comment 'x'")]

    def _swap(self, table: Table) -> list[Statement]:
        if len(table.others) < 2:
            raise NothingToDo
        one, other = (made.name for made in self._dice.sample(table.others, 2))
        names = ((one, "tmp"), (other, one), ("tmp", other))
        if self._is_pg or self._dice.random() < 0.5:
            return [self._alter_table(table, self._change_name(table, *pair)) for pair in names]
        for pair in names:
            self._change_name(table, *pair)
        both = (
            f"rename column {self._q(one)} to {self._q(other)}",
            f"rename column {self._q(other)} to {self._q(one)}",
        )
        return [Statement(f"alter table {self._q(table.name)} {', '.join(both)}")]

    def _take_name(self, table: Table, leaving: str, other: str) -> list[Statement]:
        """Drop a column, and give its name to another one."""
        self._forget(table, leaving)
        statements = [self._alter_table(table, f"drop column {self._q(leaving)}")]
        return [*statements, self._alter_table(table, self._change_name(table, other, leaving))]

    def _rename_chain(self, table: Table) -> list[Statement]:
        """Rename a to c and add a, or drop a and rename b to a."""
        if len(table.others) < 2:
            raise NothingToDo
        one, other = self._dice.sample(table.others, 2)
        first, second = one.name, other.name
        if self._dice.random() < 0.5:
            return self._take_name(table, first, second)
        renamed = self._alter_table(table, self._change_name(table, first, self._new_name(table)))
        kind, needed = self._add_column(table, first)
        default = self._dice.choice(kind.defaults) if kind.defaults else ""
        return [renamed, *needed, self._alter_table(table, self._declare(table, default=default))]
