"""Catalogue of the target for the tables that changes are applied to.

It is only read. Names are compared as the server compares them (`lower_case_table_names`).
Not here: creating and altering tables (`schema.py`, `alter.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pymysql

from penstock.engines.mysql.connect import Connection, literal, quote, rows, run, value
from penstock.model import PenstockError, TableName
from penstock.ports.target import TargetTableMissing

CHARACTER = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})

TABLES = """
    select table_name, engine, table_type
      from information_schema.tables
     where table_schema = %s and table_type in ('BASE TABLE', 'SYSTEM VERSIONED')
"""

COLUMNS = """
    select table_name, column_name, column_default, is_nullable, data_type, column_type,
           character_set_name, collation_name, extra, generation_expression, column_comment
      from information_schema.columns
     where table_schema = %s
     order by table_name, ordinal_position
"""

UNIQUE_INDEXES = """
    select table_name, index_name, column_name, sub_part
      from information_schema.statistics
     where table_schema = %s and non_unique = 0
     order by table_name, index_name, seq_in_index
"""

TRIGGERS = """
    select event_object_table as table_name, trigger_name
      from information_schema.triggers
     where event_object_schema = %s
     order by 1, 2
"""

# For MariaDB; MySQL's view has no table name.
CHECKS = """
    select table_name, check_clause
      from information_schema.check_constraints
     where constraint_schema = %s
"""

FOREIGN_KEYS = """
    select table_name, constraint_name, column_name
      from information_schema.key_column_usage
     where table_schema = %s and referenced_table_name is not null
     order by 1, 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """Column of a target table.

    data_type: for example `varchar`. type_text: for example `varchar(40)`. charset, collation:
    empty unless it is text. generated: the target computes it. has_default: it can be left out of
    an insert. more_sql: its default and comment, as in its definition. is_virtual: generated, not
    stored.
    """

    name: str
    data_type: str
    type_text: str
    not_null: bool
    generated: bool
    has_default: bool
    charset: str = ""
    collation: str = ""
    auto_increment: bool = False
    more_sql: str = ""
    is_virtual: bool = False

    @property
    def is_text(self) -> bool:
        """Return whether it holds characters, which its collation compares."""
        return bool(self.charset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIndex:
    """Unique index. plain: it is over whole columns, without expressions."""

    name: str
    columns: tuple[str, ...]
    plain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """Target table as the apply statements need to know it.

    name: as spelled by the server. references: each foreign key's name with one of its columns.
    checks: the expressions of checks, on MariaDB. is_versioned: the server keeps old rows, too.
    """

    name: TableName
    engine: str
    columns: tuple[TargetColumn, ...]
    unique: tuple[TargetIndex, ...] = ()
    triggers: tuple[str, ...] = ()
    references: tuple[tuple[str, str], ...] = ()
    checks: tuple[str, ...] = ()
    is_versioned: bool = False

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of this name in any case, or None."""
        wanted = name.lower()
        return next((column for column in self.columns if column.name.lower() == wanted), None)

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        return quote(*self.name)

    @property
    def documents(self) -> Mapping[str, str]:
        """The check that MariaDB makes for a column of JSON, with the column's name."""
        return {f"json_valid({quote(column.name)})": column.name for column in self.columns}

    @property
    def checks_documents(self) -> bool:
        """Return whether it has checks, all of them MariaDB's own for columns of JSON."""
        return bool(self.checks) and set(self.checks) <= self.documents.keys()


def read_target_tables(
    connection: Connection, names: Iterable[TableName]
) -> dict[TableName, TargetTable]:
    """Read the catalogue for these target tables; those that do not exist are left out."""
    wanted = set(names)
    lower = bool(value(connection, "select @@lower_case_table_names", doing="looking at names"))
    found: dict[TableName, TargetTable] = {}
    for schema in sorted({name.schema for name in wanted}):
        tables = {
            _key(row["table_name"], lower): row
            for row in rows(connection, TABLES, (schema,), doing="reading the target's tables")
        }
        parts = {
            name: _group_rows(connection, query, schema, lower)
            for name, query in (
                ("columns", COLUMNS),
                ("unique", UNIQUE_INDEXES),
                ("triggers", TRIGGERS),
                ("references", FOREIGN_KEYS),
                ("checks", CHECKS if connection.server.is_mariadb else None),
            )
            if query is not None
        }
        for name in wanted:
            key = _key(name.name, lower)
            if name.schema == schema and key in tables:
                found[name] = TargetTable(
                    name=TableName(schema, tables[key]["table_name"]),
                    engine=str(tables[key]["engine"] or ""),
                    columns=tuple(
                        _column(row, is_mariadb=connection.server.is_mariadb)
                        for row in parts["columns"][key]
                    ),
                    unique=_indexes(parts["unique"][key]),
                    triggers=tuple(row["trigger_name"] for row in parts["triggers"][key]),
                    references=tuple(
                        (row["constraint_name"], row["column_name"])
                        for row in parts["references"][key]
                    ),
                    checks=tuple(row["check_clause"] for row in parts["checks"][key])
                    if "checks" in parts
                    else (),
                    is_versioned=tables[key]["table_type"] == "SYSTEM VERSIONED",
                )
    return found


@contextmanager
def accepting_documents(
    connection: Connection, table: TargetTable | None, *, is_from_mysql: bool
) -> Iterator[None]:
    """Have MariaDB store what a source of its kind has in columns of JSON, as its replicas do.

    A column that is added as `json not null` has an empty text in the rows that are there, which is
    no document: the source does not check it, and the target's check would refuse it. Checks that
    are not MariaDB's own are made.
    """
    if table is None or not table.checks_documents or not is_from_mysql:
        yield
        return
    checking = "set session check_constraint_checks = "
    run(connection, f"{checking}0", doing="setting up the session")
    try:
        yield
    except BaseException:
        with suppress(pymysql.Error, PenstockError):  # the connection may be lost
            run(connection, f"{checking}1", doing="setting up the session")
        raise
    run(connection, f"{checking}1", doing="setting up the session")


def require(tables: dict[TableName, TargetTable], name: TableName) -> TargetTable:
    """Return the table of this name. Raises TargetTableMissing."""
    if name not in tables:
        raise TargetTableMissing(
            f"the target has no table {name}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it.",
            table=str(name),
        )
    return tables[name]


def _key(name: str, lower: bool) -> str:
    return name.lower() if lower else name


def _group_rows(
    connection: Connection, query: str, schema: str, lower: bool
) -> defaultdict[str, list[dict[str, Any]]]:
    grouped: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(connection, query, (schema,), doing="reading the target's tables"):
        grouped[_key(row["table_name"], lower)].append(row)
    return grouped


def _column(row: dict[str, Any], *, is_mariadb: bool) -> TargetColumn:
    extra = str(row["extra"] or "").upper()
    default = row["column_default"]
    return TargetColumn(
        name=row["column_name"],
        data_type=str(row["data_type"]).lower(),
        type_text=str(row["column_type"]),
        not_null=row["is_nullable"] == "NO",
        generated=bool(row["generation_expression"]),
        has_default="AUTO_INCREMENT" in extra or (default is not None and default != "NULL"),
        charset=str(row["character_set_name"] or ""),
        collation=str(row["collation_name"] or ""),
        auto_increment="AUTO_INCREMENT" in extra,
        more_sql=_more(default, extra, str(row["column_comment"] or ""), is_mariadb=is_mariadb),
        is_virtual="VIRTUAL GENERATED" in extra,
    )


def _more(default: str | None, extra: str, comment: str, *, is_mariadb: bool) -> str:
    """Return default and comment as SQL.

    MariaDB prints defaults as SQL, MySQL as values or expressions.
    """
    parts = []
    if default is not None and default != "NULL":
        is_sql = is_mariadb or default.lower().startswith(("b'", "current_timestamp"))
        if "DEFAULT_GENERATED" in extra and not is_sql:
            expression = default.replace("\\'", "'")
            parts.append(f"default ({expression})")
        else:
            parts.append(f"default {default if is_sql else literal(default)}")
    _, found, moment = extra.partition("ON UPDATE ")
    if found:
        parts.append(f"on update {moment.lower()}")
    if comment:
        parts.append(f"comment {literal(comment)}")
    return "".join(f" {part}" for part in parts)


def _indexes(parts: list[dict[str, Any]]) -> tuple[TargetIndex, ...]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        by_name.setdefault(part["index_name"], []).append(part)
    return tuple(
        TargetIndex(
            name=name,
            columns=tuple(str(part["column_name"]) for part in group),
            plain=all(part["column_name"] and not part["sub_part"] for part in group),
        )
        for name, group in sorted(by_name.items(), key=lambda item: (item[0] != "PRIMARY", item[0]))
    )
