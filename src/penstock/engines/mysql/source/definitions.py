"""Tables' definitions from information_schema: columns, keys and other facts that a target needs.

Types stay as the server prints them.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.mysql.charsets import single_byte_table
from penstock.codec.mysql.types import neutral_type
from penstock.engines.mysql.connect import (
    Connection,
    ServerVersion,
    is_gone,
    literal,
    quote,
    rows,
)
from penstock.host.errors import StatementFailed
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    Identity,
    TableDefinition,
    TableName,
    UniqueKey,
)

COLUMNS = """
    select table_schema, table_name, column_name, column_default, is_nullable, data_type,
           column_type, character_set_name, collation_name, extra, generation_expression
      from information_schema.columns
     where table_schema = %s
     order by table_schema, table_name, ordinal_position
"""

INDEXES = """
    select table_schema, table_name, index_name, non_unique, column_name, sub_part, nullable,
           index_type, {expression} as expression
      from information_schema.statistics
     where table_schema = %s
     order by table_schema, table_name, index_name, seq_in_index
"""

FOREIGN_KEYS = """
    select k.table_schema, k.table_name, k.constraint_name, k.column_name,
           k.referenced_table_schema, k.referenced_table_name, k.referenced_column_name,
           r.update_rule, r.delete_rule
      from information_schema.key_column_usage as k
      join information_schema.referential_constraints as r
        on r.constraint_schema = k.constraint_schema
       and r.constraint_name = k.constraint_name
       and cast(r.table_name as binary) = cast(k.table_name as binary)
     where k.referenced_table_name is not null
       and k.table_schema = %s
     order by k.table_schema, k.table_name, k.constraint_name, k.ordinal_position
"""

# MariaDB's JSON is LONGTEXT with this check and nothing else.
JSON_CHECKS = """
    select constraint_schema as table_schema, table_name, constraint_name as column_name,
           check_clause
      from information_schema.check_constraints
     where check_clause like 'json%%'
       and constraint_schema = %s
"""

# Columns that a table WITH SYSTEM VERSIONING has without naming them: no catalogue lists them.
HIDDEN_PERIOD = ("row_start", "row_end")
_PERIOD_TYPE = "timestamp(6)"
_SOURCE_ID_BYTES = 6
_CHARSETS = {"utf8": "utf8mb3"}  # MySQL before 8.0.29 and MariaDB before 10.6 call it that
_TEMPORAL = ("timestamp", "datetime")
_MEMBERS = ("enum", "set")
_BYTES = ("bit", "binary", "varbinary")
_NUMBERLIKE = re.compile(r"b'[01]*'|0x[0-9a-fA-F]*", re.IGNORECASE)
_BARE_QUOTE = re.compile(r"(?<!\\)'")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CURRENT_TIMESTAMP = re.compile(r"current_timestamp(\(\d?\))?", re.IGNORECASE)

Row = dict[str, Any]
_ByTable = defaultdict[TableName, list[Row]]


def source_id_of(name: TableName) -> int:
    """Return a table's number in the log, computed from its name: MySQL has no permanent one."""
    text = f"{name.schema}\0{name.name}".encode()
    digest = hashlib.blake2b(text, digest_size=_SOURCE_ID_BYTES).digest()
    return int.from_bytes(digest, "big") or 1


def definitions_of(
    connection: Connection,
    tables: Mapping[TableName, Row],
    *,
    with_create_sql: bool = False,
) -> dict[TableName, TableDefinition]:
    """Return definitions of tables, keyed by name.

    tables: their rows of information_schema.tables, column names in lower case. with_create_sql:
    query SHOW CREATE TABLE as well. A table that was dropped meanwhile is left out.
    """
    server = connection.server
    columns: _ByTable = defaultdict(list)
    indexes: _ByTable = defaultdict(list)
    foreign: _ByTable = defaultdict(list)
    json_columns: defaultdict[TableName, set[str]] = defaultdict(set)
    expression = "expression" if server.mysql(8, 0, 13) else "null"
    for schema in sorted({name.schema for name in tables}):
        _gather(columns, connection, COLUMNS, schema)
        _gather(indexes, connection, INDEXES.replace("{expression}", expression), schema)
        _gather(foreign, connection, FOREIGN_KEYS, schema)
        if server.is_mariadb:
            _gather_json(json_columns, connection, schema)
    found = {}
    for name, facts in tables.items():
        if not columns[name]:
            continue
        try:
            found[name] = _table(
                name,
                facts,
                _as_written(
                    tuple(_column(row, server, json_columns[name]) for row in columns[name]),
                    lambda name=name: _create_sql(connection, name),  # type: ignore[misc]
                    server,
                ),
                indexes[name],
                foreign[name],
                create_sql=_create_sql(connection, name) if with_create_sql else "",
            )
        except StatementFailed as error:
            if not is_gone(error):
                raise
    return found


def _gather(into: _ByTable, connection: Connection, sql: str, schema: str) -> None:
    """Read a query's rows about one schema's tables.

    It reads all of them, not only the wanted ones: names in a condition are compared without case,
    and MariaDB takes `in ('t', 'T')` for one table.
    """
    for row in rows(connection, sql, (schema,), doing="reading the catalogue"):
        if row["table_schema"] == schema:
            into[TableName(schema, row["table_name"])].append(row)


def _gather_json(
    into: defaultdict[TableName, set[str]], connection: Connection, schema: str
) -> None:
    """Note MariaDB's columns that were created as JSON."""
    for row in rows(connection, JSON_CHECKS, (schema,), doing="reading the catalogue"):
        if row["check_clause"] == f"json_valid({quote(row['column_name'])})":
            into[TableName(row["table_schema"], row["table_name"])].add(row["column_name"])


def _create_sql(connection: Connection, name: TableName) -> str:
    found = rows(connection, f"show create table {quote(*name)}", doing=f"reading {name}")
    return str(found[0]["create table"])


# -- columns -------------------------------------------------------------------------------------


def _column(row: Row, server: ServerVersion, json_columns: set[str]) -> ColumnDefinition:
    text = str(row["column_type"])
    is_json = row["column_name"] in json_columns and row["data_type"] == "longtext"
    extra = str(row["extra"] or "").upper()
    # MySQL names no character set for members in bytes.
    none = "binary" if row["data_type"] in _MEMBERS else ""
    charset = row["character_set_name"] or none
    generated = _generated_kind(extra)
    expression = str(row["generation_expression"] or "")
    return ColumnDefinition(
        name=row["column_name"],
        type_text="json" if is_json else text,
        type_oid=0,
        typmod=-1,
        not_null=row["is_nullable"] == "NO",
        default=_unescape(expression, server) if generated else _default(row, server, extra),
        generated=generated,
        identity_kind="d" if "AUTO_INCREMENT" in extra else "",
        collation=row["collation_name"] or none or None,
        base_type=text,
        neutral=neutral_type("json" if is_json else text),
        charset=_CHARSETS.get(charset, charset),
        is_invisible="INVISIBLE" in extra,
    )


def _generated_kind(extra: str) -> str:
    if "VIRTUAL GENERATED" in extra or extra == "VIRTUAL":
        return "v"
    return "s" if "STORED GENERATED" in extra or "PERSISTENT" in extra else ""


def _default(row: Row, server: ServerVersion, extra: str) -> str | None:
    """Return a column's default as SQL; MariaDB prints it so, MySQL prints values without
    quotes.
    """
    text = row["column_default"]
    if text is None or (server.is_mariadb and text == "NULL"):
        return None
    text = str(text)
    if server.is_mariadb:
        return text
    if "DEFAULT_GENERATED" in extra:
        return _unescape(text, server)
    is_now = row["data_type"] in _TEMPORAL and _CURRENT_TIMESTAMP.fullmatch(text)
    if is_now or (row["data_type"] in _BYTES and _NUMBERLIKE.fullmatch(text)):
        return text
    return literal(text)


def _unescape(expression: str, server: ServerVersion) -> str:
    """Return an expression as SQL: MySQL shows it like the inside of a string, all quotes
    escaped.
    """
    if server.is_mariadb or _BARE_QUOTE.search(expression):
        return expression
    return _ESCAPED.sub(r"\1", expression)


def _as_written(
    columns: tuple[ColumnDefinition, ...], create_sql: Callable[[], str], server: ServerVersion
) -> tuple[ColumnDefinition, ...]:
    """Return the columns with their expressions as they were written.

    MySQL 8 shows characters beyond ASCII in them as if their bytes were latin1; SHOW CREATE TABLE
    prints them correctly.
    """
    if server.is_mariadb or all((column.default or "").isascii() for column in columns):
        return columns
    created = create_sql()
    return tuple(
        replace(column, default=written)
        if column.default is not None
        and (written := _from_latin1(column.default)) != column.default
        and f"({column.default})" not in created
        and f"({written})" in created
        else column
        for column in columns
    )


def _from_latin1(text: str) -> str:
    """Return the UTF-8 text that was read as latin1, or the text itself if it cannot be that."""
    known = {character: byte for byte, character in enumerate(single_byte_table("latin1") or ())}
    if any(character not in known for character in text):
        return text
    try:
        return bytes(known[character] for character in text).decode()
    except UnicodeDecodeError:
        return text


# -- tables --------------------------------------------------------------------------------------


def _table(
    name: TableName,
    facts: Row,
    columns: tuple[ColumnDefinition, ...],
    indexes: Sequence[Row],
    foreign: Sequence[Row],
    *,
    create_sql: str,
) -> TableDefinition:
    is_versioned = facts["table_type"] == "SYSTEM VERSIONED"
    if is_versioned and not any(c.default in ("ROW START", "ROW END") for c in columns):
        columns += tuple(_hidden_column(column) for column in HIDDEN_PERIOD)
    keys = _keys(indexes)
    primary = keys.pop("PRIMARY", None)
    unique = tuple(keys.values())
    identity, identity_columns = _identity(columns, primary, unique)
    return TableDefinition(
        name=name,
        source_id=source_id_of(name),
        columns=columns,
        primary_key=primary.columns if primary else (),
        primary_key_prefixes=primary.prefixes if primary else (),
        identity=identity,
        identity_columns=identity_columns,
        unique_keys=unique,
        indexes=tuple(_indexes(indexes)),
        foreign_keys=tuple(_foreign_keys(foreign)),
        is_partitioned="partitioned" in str(facts["create_options"] or "").lower(),
        size_bytes=int(facts["data_length"] or 0),
        row_estimate=int(facts["table_rows"] or 0),
        engine=str(facts["engine"] or ""),
        is_versioned=is_versioned,
        create_sql=create_sql,
        changed_s=int(facts.get("changed_s") or 0),
    )


def _hidden_column(name: str) -> ColumnDefinition:
    return ColumnDefinition(
        name=name,
        type_text=_PERIOD_TYPE,
        type_oid=0,
        typmod=-1,
        not_null=True,
        default=name.replace("_", " ").upper(),
        generated="s",
        base_type=_PERIOD_TYPE,
        neutral=neutral_type(_PERIOD_TYPE),
        is_invisible=True,
    )


def _by_index(indexes: Sequence[Row]) -> dict[str, list[Row]]:
    result: dict[str, list[Row]] = {}
    for row in indexes:
        result.setdefault(row["index_name"], []).append(row)
    return result


def _definition(index: str, parts: Sequence[Row]) -> str:
    """Return an index's definition as in CREATE TABLE."""
    columns = ", ".join(
        f"({part['expression']})"
        if part["column_name"] is None
        else quote(part["column_name"])
        + (f"({part['sub_part']})" if part["sub_part"] and part["index_type"] != "SPATIAL" else "")
        for part in parts
    )
    kind = "" if parts[0]["non_unique"] else "unique "
    if parts[0]["index_type"] in ("SPATIAL", "FULLTEXT"):
        kind = f"{parts[0]['index_type'].lower()} "
    return f"{kind}key {quote(index)} ({columns})"


def _keys(indexes: Sequence[Row]) -> dict[str, UniqueKey]:
    """Return unique keys over columns, keyed by name, with the primary one. Others identify
    no row.
    """
    found = {}
    for index, parts in _by_index(indexes).items():
        if parts[0]["non_unique"] or any(part["column_name"] is None for part in parts):
            continue
        prefixes = tuple(int(part["sub_part"] or 0) for part in parts)
        found[index] = UniqueKey(
            name=index,
            columns=tuple(part["column_name"] for part in parts),
            definition=_definition(index, parts),
            is_constraint=True,
            prefixes=prefixes if any(prefixes) else (),
        )
    return found


def _indexes(indexes: Sequence[Row]) -> list[str]:
    """Return the definitions of other indexes: plain ones, and unique ones over expressions."""
    return [
        _definition(index, parts)
        for index, parts in _by_index(indexes).items()
        if parts[0]["non_unique"] or any(part["column_name"] is None for part in parts)
    ]


def _identity(
    columns: Sequence[ColumnDefinition], primary: UniqueKey | None, unique: Sequence[UniqueKey]
) -> tuple[Identity, tuple[str, ...]]:
    """Return the row's identity: the primary key, a key in place of it, or the whole row."""
    if primary is not None and not primary.prefixes:
        return Identity.DEFAULT, primary.columns
    by_name = {column.name: column for column in columns}
    usable = [
        key
        for key in unique
        if not key.prefixes
        and all(by_name[c].not_null and by_name[c].generated != "v" for c in key.columns)
    ]
    if usable:
        chosen = min(usable, key=lambda key: (len(key.columns), key.name))
        return Identity.INDEX, chosen.columns
    return Identity.FULL, tuple(column.name for column in columns if not column.generated)


def _foreign_keys(found: Sequence[Row]) -> list[ForeignKey]:
    by_name: dict[str, list[Row]] = {}
    for row in found:
        by_name.setdefault(row["constraint_name"], []).append(row)
    keys = []
    for name, parts in by_name.items():
        first = parts[0]
        target = TableName(first["referenced_table_schema"], first["referenced_table_name"])
        columns = tuple(part["column_name"] for part in parts)
        target_columns = tuple(part["referenced_column_name"] for part in parts)
        definition = (
            f"foreign key ({', '.join(map(quote, columns))}) references {quote(*target)} "
            f"({', '.join(map(quote, target_columns))}) "
            f"on delete {first['delete_rule'].lower()} on update {first['update_rule'].lower()}"
        )
        keys.append(
            ForeignKey(
                name=name,
                columns=columns,
                target=target,
                target_columns=target_columns,
                definition=definition,
                on_update=first["update_rule"],
                on_delete=first["delete_rule"],
            )
        )
    return keys
