"""CREATE, ALTER and DROP of tables and indexes, as PostgreSQL statements and rows of state."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Protocol

from sim_sqlserver import row_size
from sim_sqlserver.ddl_parse import ColumnDef, ConstraintDef, IndexDef, Name
from sim_sqlserver.errors import SqlError
from sim_sqlserver.names import literal, quote_name
from sim_sqlserver.sqltypes import SqlType, parse_type, postgres_type

INDEX_COLUMNS_MAX = 32
KEY_BYTES_MAX = {True: 900, False: 1700}  # clustered, nonclustered
TABLE_COLUMNS_MAX = 1024


class Database(Protocol):
    """Part of a session that DDL needs."""

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a PostgreSQL statement in the session's transaction."""
        ...

    def expression(self, text: str, *, table: int = 0, is_condition: bool = False) -> str:
        """Return a T-SQL expression over a table's columns as PostgreSQL's."""
        ...

    def spelling(self, name: str) -> str:
        """Return the existing spelling of a name."""
        ...

    def info(self, said: str, number: int = 0) -> None:
        """Send a message that does not count as an error."""
        ...

    def need_type(self, sql_type: SqlType, *, is_binary: bool = False) -> str:
        """Return the PostgreSQL type of columns; create it if it is not there.

        is_binary: the column has a binary collation.
        """
        ...


def qualify(database: Database, name: Name) -> str:
    """Return a table's quoted name."""
    schema, table = name
    if table.startswith("#"):
        return quote_name(table)
    return (
        f"{quote_name(database.spelling(schema or 'dbo'))}.{quote_name(database.spelling(table))}"
    )


def table_id(database: Database, name: Name) -> int:
    """Return a table's object id; raises SqlError 4902."""
    found = database.rows(f"select to_regclass({literal(qualify(database, name))})::oid::int")
    if found[0][0] is None:
        shown = ".".join(part for part in name if part)
        raise SqlError(4902, f'Cannot find the object "{shown}" because it does not exist.')
    number: int = found[0][0]
    return number


def _system_name(kind: str, *parts: str) -> str:
    joined = "__".join(part[:20] for part in parts)
    return f"{kind}__{joined}__{secrets.token_hex(4).upper()}"


# --- tables ---------------------------------------------------------------------------------------


def create_table(
    database: Database,
    name: Name,
    columns: list[ColumnDef],
    constraints: list[ConstraintDef],
    indexes: list[IndexDef],
) -> None:
    """Create a table with its constraints and indexes."""
    if len(columns) > TABLE_COLUMNS_MAX:
        said = f"CREATE TABLE failed because column '{columns[TABLE_COLUMNS_MAX].name}' in table "
        said += f"'{name[1]}' exceeds the maximum of 1024 columns."
        raise SqlError(1702, said)
    schema = name[0] or "dbo"
    is_temporary = name[1].startswith("#")
    table = (
        quote_name(name[1])
        if is_temporary
        else f"{quote_name(database.spelling(schema))}.{quote_name(name[1])}"
    )
    if not is_temporary and not database.rows(
        f"select 1 from pg_namespace where nspname = {literal(database.spelling(schema))}"
    ):
        said = f'The specified schema name "{schema}" either does not exist or you do not have '
        raise SqlError(2760, said + "permission to use it.")
    keys = {c for k in constraints if k.kind == "primary" for c, _ in k.columns}
    folded = {key.lower() for key in keys}
    for column in columns:
        if column.name.lower() in folded and column.is_nullable is None:
            column.is_nullable = False
    kind = "temporary table" if is_temporary else "table"
    computed = _computed_types(database, columns)
    parts = [computed.get(c.name) or _column_sql(database, c) for c in columns]
    database.rows(f"create {kind} {table} ({', '.join(parts)})")
    number = _register(database, table)
    for column in columns:
        if column.computed:
            _note_computed(database, number, column)
        else:
            _after_column(database, table, number, column)
    has_clustered = any(k.is_clustered for k in constraints) or any(i.is_clustered for i in indexes)
    for constraint in constraints:
        if constraint.kind == "primary" and constraint.is_clustered is None:
            constraint.is_clustered = not has_clustered
        add_constraint(database, name, constraint)
    for index in indexes:
        index.table = name
        create_index(database, index)
    if normalise(database, number):
        said = f'Warning: The table "{name[1]}" has been created, but its maximum row size exceeds '
        said += "the allowed maximum of 8060 bytes. INSERT or UPDATE to this table will fail if "
        database.info(said + "the resulting row exceeds the size limit.", 1708)


def _register(database: Database, table: str) -> int:
    found = database.rows(
        f"insert into sim.tables (id) values ({literal(table)}::regclass) returning id::int"
    )
    number: int = found[0][0]
    return number


def _column_sql(database: Database, column: ColumnDef, *, with_default: bool = True) -> str:
    assert column.type is not None
    collate = _collate(column)
    kind = database.need_type(column.type, is_binary=collate == BINARY)
    text = f"{quote_name(column.name)} {kind}{collate}"
    if column.is_nullable is False or column.identity is not None:
        text += " not null"
    if column.identity is not None:
        seed, increment = column.identity
        limits = " minvalue -9223372036854775808" if seed < 1 or increment < 0 else ""
        text += f" generated by default as identity (start with {seed} increment by {increment}"
        text += f"{limits})"
    if column.default is not None and with_default:
        text += f" default {database.expression(column.default[1])}"
    if column.type.name == "rowversion":
        text += " default int8send(nextval('sim.rowversion'))"
    return text


BINARY = ' collate "C"'


def _collate(column: ColumnDef) -> str:
    name = column.collation.upper()
    if not name or name == "DATABASE_DEFAULT":
        return ""
    if "BIN" in name.split("_") or "BIN2" in name.split("_"):
        return BINARY
    return ' collate sim."cs"' if "CS" in name.split("_") else ' collate sim."default"'


def _number_of(database: Database, number: int, column: str) -> int:
    found = database.rows(
        f"select attnum::int from pg_attribute where attrelid = {number} "
        f"and attname = {literal(database.spelling(column))} and not attisdropped"
    ) or database.rows(
        f"select attnum::int from pg_attribute where attrelid = {number} and attnum > 0 "
        f"and lower(attname) = {literal(column.lower())} and not attisdropped"
    )
    if not found:
        raise SqlError(4924, f"Column '{column}' does not exist in the table.")
    place: int = found[0][0]
    return place


def column_spelling(database: Database, number: int, column: str) -> str:
    """Return the spelling of a column of this table; raises SqlError 4924."""
    place = _number_of(database, number, column)
    found = database.rows(
        f"select attname from pg_attribute where attrelid = {number} and attnum = {place}"
    )
    return str(found[0][0])


def _after_column(database: Database, table: str, number: int, column: ColumnDef) -> None:
    place = _number_of(database, number, column.name)
    if column.collation:
        database.rows(
            f"insert into sim.collations values ({number}, {place}, {literal(column.collation)})"
        )
    if column.default is not None:
        name = column.default[0] or _system_name(
            "DF", table.rpartition('."')[2].strip('"'), column.name
        )
        _note_default(database, number, place, name, column.default[1])
    if column.is_sparse:
        database.rows(
            f"insert into sim.column_flags (table_id, column_number, flags) "
            f"values ({number}, {place}, 1)"
        )


def _note_default(database: Database, number: int, place: int, name: str, text: str) -> None:
    definition = text if text.startswith("(") else f"({text})"
    database.rows(
        f"insert into sim.defaults values ({number}, {place}, {literal(name)}, "
        f"{literal(definition)}) on conflict (table_id, column_number) do update "
        "set name = excluded.name, definition = excluded.definition"
    )


def _computed_types(database: Database, columns: list[ColumnDef]) -> dict[str, str]:
    """Return the definitions of computed columns; their types come from a table without them."""
    computed = [column for column in columns if column.computed]
    if not computed:
        return {}
    others = [_column_sql(database, c, with_default=False) for c in columns if not c.computed]
    database.rows(f"create temporary table sim$shape ({', '.join(others)})")
    number = int(database.rows("select 'pg_temp.sim$shape'::regclass::oid::int")[0][0])
    found = {}
    for column in computed:
        found[column.name] = _computed_sql(database, "pg_temp.sim$shape", number, column)
    database.rows("drop table pg_temp.sim$shape")
    return found


def _computed_sql(database: Database, table: str, number: int, column: ColumnDef) -> str:
    expression = database.expression(column.computed, table=number)
    found = database.rows(
        f"select pg_typeof(x.v)::text from (select 1) as one left join lateral "
        f"(select ({expression}) as v from {table} limit 1) as x on true"
    )
    postgres = _computed_type(str(found[0][0]))
    return f"{quote_name(column.name)} {postgres} generated always as ({expression}) stored"


def _add_computed(database: Database, table: str, number: int, column: ColumnDef) -> None:
    text = _computed_sql(database, table, number, column)
    database.rows(f"alter table {table} add column {text}")
    _note_computed(database, number, column)


def _note_computed(database: Database, number: int, column: ColumnDef) -> None:
    place = _number_of(database, number, column.name)
    database.rows(
        f"insert into sim.computed values ({number}, {place}, {literal(f'({column.computed})')}, "
        f"{int(column.is_persisted)})"
    )


def _computed_type(shown: str) -> str:
    return {"text": 'sim."nvarchar(4000)"', "character": 'sim."nvarchar(4000)"'}.get(shown, shown)


def add_columns(database: Database, name: Name, columns: Iterable[ColumnDef]) -> None:
    """Add columns; a default fills existing rows only if the column is NOT NULL or says so."""
    number, table = table_id(database, name), qualify(database, name)
    for column in columns:
        if column.computed:
            _add_computed(database, table, number, column)
            continue
        fills = column.is_nullable is False or column.with_values
        text = _column_sql(database, column, with_default=fills)
        try:
            database.rows(f"alter table {table} add column {text}")
        except SqlError as error:
            if error.number != 515:
                raise
            said = "ALTER TABLE only allows columns to be added that can contain nulls, or have a "
            said += f"DEFAULT definition specified. Column '{column.name}' cannot be added."
            raise SqlError(4901, said) from error
        if column.default is not None and not fills:
            value = database.expression(column.default[1])
            database.rows(
                f"alter table {table} alter {quote_name(column.name)} set default {value}"
            )
        _after_column(database, table, number, column)
    _touch(database, number)


def _touch(database: Database, number: int) -> None:
    database.rows(
        f"update sim.tables set modified = clock_timestamp() at time zone 'utc' where id = {number}"
    )
    normalise(database, number)


def alter_column(database: Database, name: Name, column: ColumnDef) -> None:
    """Change type, collation and nullability of a column."""
    number, table = table_id(database, name), qualify(database, name)
    place = _number_of(database, number, column.name)
    spelled = column_spelling(database, number, column.name)
    assert column.type is not None
    wanted = database.need_type(column.type, is_binary=_collate(column) == BINARY)
    database.rows(f"select sim.drop_normaliser({number})")
    using = _conversion(database, number, place, spelled, column.type)
    default = database.rows(
        f"select pg_get_expr(adbin, adrelid) from pg_attrdef where adrelid = {number} "
        f"and adnum = {place}"
    )
    quoted_name = quote_name(spelled)
    if default:
        database.rows(f"alter table {table} alter {quoted_name} drop default")
    database.rows(
        f"alter table {table} alter {quoted_name} type {wanted}{_collate(column)} using {using}"
    )
    if default:
        text = database.rows(
            f"select definition from sim.defaults where table_id = {number} "
            f"and column_number = {place}"
        )
        value = database.expression(text[0][0]) if text else default[0][0]
        database.rows(f"alter table {table} alter {quoted_name} set default {value}")
    action = "set" if column.is_nullable is False else "drop"
    database.rows(f"alter table {table} alter {quoted_name} {action} not null")
    database.rows(
        f"delete from sim.collations where table_id = {number} and column_number = {place}"
    )
    if column.collation:
        database.rows(
            f"insert into sim.collations values ({number}, {place}, {literal(column.collation)})"
        )
    _touch(database, number)


def _conversion(database: Database, number: int, place: int, spelled: str, wanted: SqlType) -> str:
    """Return the expression of the column's values in its new type."""
    found = database.rows(
        f"select sim.type_name(atttypid), format_type(atttypid, atttypmod) from pg_attribute "
        f"where attrelid = {number} and attnum = {place}"
    )
    now = str(found[0][0])
    if wanted.is_text and now in ("varchar", "nvarchar", "char", "nchar", "text", "ntext"):
        text = quote_name(spelled)
        if wanted.name in ("char", "nchar"):
            return f"sim.blank_to({text}, {wanted.length})::{postgres_type(wanted)}"
        return f"{text}::{postgres_type(wanted)}"
    if now == wanted.name or postgres_type(wanted).startswith(("int", "numeric")):
        return f"{quote_name(spelled)}::text::{postgres_type(wanted)}"
    converted = database.expression(f"CAST([{spelled}] AS {wanted.text})", table=number)
    return f"({converted})::{postgres_type(wanted)}"


def drop_columns(
    database: Database, name: Name, columns: Iterable[str], *, if_exists: bool
) -> None:
    """Drop columns; raises SqlError 5074 if a constraint depends on one."""
    number, table = table_id(database, name), qualify(database, name)
    for column in columns:
        try:
            place = _number_of(database, number, column)
        except SqlError:
            if if_exists:
                continue
            raise
        found = database.rows(
            f"select name from sim.defaults where table_id = {number} and column_number = {place} "
            f"union all select conname from pg_constraint where conrelid = {number} "
            f"and {place} = any (conkey) "
            "and contype in ('p', 'u', 'f', 'c')"
        )
        if found:
            said = f"The object '{found[0][0]}' is dependent on column '{column}'."
            raise SqlError(5074, said)
        database.rows(f"select sim.drop_normaliser({number})")
        spelled = column_spelling(database, number, column)
        database.rows(f"alter table {table} drop column {quote_name(spelled)}")
    _touch(database, number)


def drop_table(database: Database, name: Name, *, if_exists: bool) -> None:
    """Drop a table; raises SqlError 3701 if there is none, 3726 if a foreign key refers to it."""
    try:
        number = table_id(database, name)
    except SqlError as error:
        if if_exists:
            return
        said = f"Cannot drop the table '{name[1]}', because it does not exist."
        raise SqlError(3701, said, severity=11, state=5) from error
    database.rows(f"drop table {qualify(database, name)}")
    for state in ("tables", "triggers", "defaults", "checks", "computed", "collations"):
        column = "id" if state == "tables" else "table_id"
        database.rows(f"delete from sim.{state} where {column} = {number}")
    for state in ("disabled", "untrusted", "column_flags"):
        database.rows(f"delete from sim.{state} where table_id = {number}")
    database.rows(f'drop function if exists sim."norm${number}"()')


# --- constraints ----------------------------------------------------------------------------------


def add_constraint(
    database: Database, name: Name, constraint: ConstraintDef, *, is_checked: bool = True
) -> None:
    """Add a constraint to a table."""
    number, table = table_id(database, name), qualify(database, name)
    if constraint.kind == "default":
        _add_default(database, table, number, constraint, name[1])
    elif constraint.kind == "check":
        _add_check(database, table, number, constraint, name[1], is_checked=is_checked)
    elif constraint.kind == "foreign":
        _add_foreign(database, table, number, constraint, name, is_checked=is_checked)
    else:
        _add_key(database, table, number, constraint, name[1])


def _add_default(
    database: Database, table: str, number: int, constraint: ConstraintDef, shown: str
) -> None:
    place = _number_of(database, number, constraint.column)
    spelled = column_spelling(database, number, constraint.column)
    value = database.expression(constraint.expression)
    database.rows(f"alter table {table} alter {quote_name(spelled)} set default {value}")
    name = constraint.name or _system_name("DF", shown, spelled)
    _note_default(database, number, place, name, constraint.expression)


def _add_check(
    database: Database,
    table: str,
    number: int,
    constraint: ConstraintDef,
    shown: str,
    *,
    is_checked: bool,
) -> None:
    name = constraint.name or _system_name("CK", shown)
    condition = database.expression(constraint.expression, table=number, is_condition=True)
    valid = "" if is_checked else " not valid"
    database.rows(
        f"alter table {table} add constraint {quote_name(name)} check ({condition}){valid}"
    )
    place = _number_of(database, number, constraint.column) if constraint.column else 0
    database.rows(
        f"insert into sim.checks values ({number}, {literal(name)}, "
        f"{literal(f'({constraint.expression})')}, {place})"
    )


def _columns_of(database: Database, number: int, columns: Iterable[str]) -> list[str]:
    return [quote_name(column_spelling(database, number, column)) for column in columns]


def _add_foreign(
    database: Database,
    table: str,
    number: int,
    constraint: ConstraintDef,
    shown: Name,
    *,
    is_checked: bool,
) -> None:
    referred_name = constraint.referenced
    if not referred_name[0]:
        referred_name = (shown[0] or "dbo", referred_name[1])
    referred = table_id(database, referred_name)
    columns = ", ".join(_columns_of(database, number, (c for c, _ in constraint.columns)))
    name = constraint.name or _system_name("FK", shown[1])
    database.rows(f"select sim.make_immediate({referred})")
    target = qualify(database, referred_name)
    if constraint.referenced_columns:
        target += f" ({', '.join(_columns_of(database, referred, constraint.referenced_columns))})"
    valid = "" if is_checked else " not valid"
    database.rows(
        f"alter table {table} add constraint {quote_name(name)} foreign key ({columns}) references "
        f"{target} on delete {constraint.on_delete} on update {constraint.on_update}{valid}"
    )


def _add_key(
    database: Database, table: str, number: int, constraint: ConstraintDef, shown: str
) -> None:
    is_primary = constraint.kind == "primary"
    name = constraint.name or _system_name("PK" if is_primary else "UQ", shown)
    names = [column_spelling(database, number, column) for column, _ in constraint.columns]
    is_clustered = bool(constraint.is_clustered)
    if is_primary and constraint.is_clustered is None:
        found = database.rows(
            f"select 1 from pg_index where indrelid = {number} and indisclustered"
        )
        is_clustered = not found
    check_key_types(database, number, names, name)
    kind = "primary key" if is_primary else "unique nulls not distinct"
    if is_primary:
        nullable = database.rows(
            f"select attname from pg_attribute where attrelid = {number} and not attnotnull "
            f"and attname in ({', '.join(literal(n) for n in names)})"
        )
        if nullable:
            said = f"Cannot define PRIMARY KEY constraint on nullable column in table '{shown}'."
            raise SqlError(8111, said)
    listed = ", ".join(quote_name(column) for column in names)
    database.rows(
        f"alter table {table} add constraint {quote_name(name)} {kind} ({listed}) "
        "deferrable initially immediate"
    )
    if is_clustered:
        database.rows(f"alter table {table} cluster on {quote_name(name)}")
    normalise(database, number)


def check_key_types(database: Database, number: int, names: Iterable[str], key: str) -> None:
    """Raise SqlError 1919 if a column's type cannot be in a key."""
    for name in names:
        found = database.rows(
            f"select sim.type_name(atttypid), sim.type_argument(atttypid, atttypmod, 1) "
            f"from pg_attribute where attrelid = {number} and attname = {literal(name)}"
        )
        kind, length = found[0]
        is_large = length == -1 and kind in ("varchar", "nvarchar", "varbinary")
        if is_large or kind in ("text", "ntext", "image", "xml", "geometry", "geography"):
            said = f"Column '{name}' in table is of a type that is invalid for use as a key column "
            raise SqlError(1919, said + f"in an index ({key}).")


def create_index(database: Database, index: IndexDef) -> None:
    """Create an index."""
    number, table = table_id(database, index.table), qualify(database, index.table)
    name = quote_name(f"ix${index.name}${number}")
    columns = [(column_spelling(database, number, c), d) for c, d in index.columns]
    if index.is_columnstore:
        columns = columns or [
            (str(row[0]), False)
            for row in database.rows(
                f"select attname from pg_attribute where attrelid = {number} and attnum = 1"
            )
        ]
    check_key_types(database, number, (c for c, _ in columns), index.name)
    listed = ", ".join(quote_name(c) + (" desc" if d else "") for c, d in columns)
    unique = "unique " if index.is_unique else ""
    text = f"create {unique}index {name} on {table} ({listed})"
    if index.included:
        text += f" include ({', '.join(_columns_of(database, number, index.included))})"
    if index.is_unique:
        text += " nulls not distinct"
    if index.condition:
        text += f" where {database.expression(index.condition, table=number, is_condition=True)}"
    database.rows(text)
    schema = table.rpartition(".")[0]
    full = f"{schema}.{name}" if schema else name
    if index.is_clustered:
        database.rows(f"alter table {table} cluster on {name}")
    if index.condition or index.is_columnstore:
        kind = "null" if not index.is_columnstore else "5" if index.is_clustered else "6"
        database.rows(
            f"insert into sim.index_flags (id, kind, filter) values "
            f"({literal(full)}::regclass, {kind}, {literal(index.condition or None)})"
        )
    normalise(database, number)


# --- values as SQL Server stores them -------------------------------------------------------------


def _store_pieces(name: str, sql_type: SqlType, collation: str) -> str:
    column = f"new.{quote_name(name)}"
    kind = sql_type.name
    if kind == "datetime":
        return f"{column} := sim.store_datetime({column});"
    if kind == "smalldatetime":
        return f"{column} := sim.store_smalldatetime({column});"
    if kind == "datetime2" and sql_type.scale == 7:
        return f"{column} := sim.store_datetime2({column}::text);"
    if kind == "time" and sql_type.scale == 7:
        return f"{column} := sim.store_time({column}::text);"
    if kind == "datetimeoffset":
        return f"{column} := sim.store_dto({column}::text, {sql_type.scale});"
    if kind in ("char", "nchar"):
        fill = "sim.blank_to" if kind == "char" else "sim.blank_wide_to"
        return f"{column} := {fill}({column}::text, {sql_type.length});"
    if kind == "binary":
        return f"{column} := sim.zero_to({column}, {sql_type.length});"
    if kind in ("varchar", "text") and not collation.upper().endswith("UTF8"):
        return (
            f"if octet_length({column}) <> char_length({column}::text) then "
            f"{column} := sim.cp1252({column}::text); end if;"
        )
    if kind == "rowversion":
        return f"{column} := int8send(nextval('sim.rowversion'));"
    if kind in _CHECKED:
        return f"{column} := {_CHECKED[kind]}({column}::text);"
    if kind == "vector":
        return f"perform sim.check_vector({column}::text, {sql_type.length});"
    return ""


# Functions that check a value, and return it as it is stored.
_CHECKED = {
    "xml": "sim.store_xml",
    "json": "sim.store_json",
    "hierarchyid": "simfn.ms_hierarchyid",
    "sql_variant": "sim.store_variant",
}


def _key_bytes(name: str, sql_type: SqlType) -> tuple[int, str]:
    """Return the most bytes that a column needs in a key, and the expression of those of a row."""
    column = f"new.{quote_name(name)}"
    if sql_type.name in ("nvarchar", "nchar", "sysname"):
        most = 2 * (sql_type.length or 128)
        return most, f"coalesce(2 * sim.utf16_length({column}), 0)"
    if sql_type.name in ("varchar", "char"):
        return sql_type.length, f"coalesce(octet_length(sim.cp1252({column}::text)), 0)"
    if sql_type.name in ("varbinary", "binary"):
        return sql_type.length, f"coalesce(octet_length({column}), 0)"
    return sql_type.bytes_length, str(sql_type.bytes_length)


def _key_checks(database: Database, number: int) -> list[str]:
    """Return the checks of keys that may become too long."""
    found = database.rows(
        "select sim.index_name(c.relname), i.indisclustered, array_agg(a.attname::text), "
        "array_agg(case when t.typtype = 'd' then t.typname::text else '' end) from pg_index i "
        "join pg_class c on c.oid = i.indexrelid "
        "cross join lateral unnest(i.indkey) with ordinality as k(attnum, place) "
        "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum "
        f"join pg_type t on t.oid = a.atttypid where i.indrelid = {number} "
        "and k.place <= i.indnkeyatts group by i.indexrelid, c.relname, i.indisclustered"
    )
    checks = []
    for name, is_clustered, columns, types in found:
        sizes = [
            _key_bytes(column, parse_type(kind) if kind else SqlType("bigint"))
            for column, kind in zip(columns, types, strict=True)
        ]
        most = KEY_BYTES_MAX[bool(is_clustered)]
        if sum(size for size, _ in sizes) > most:
            total = " + ".join(expression for _, expression in sizes)
            kind = "clustered" if is_clustered else "nonclustered"
            checks.append(
                f"perform sim.check_key({total}, {most}, {literal(kind)}, {literal(name)});"
            )
    return checks


def normalise(database: Database, number: int) -> bool:
    """Give a table the trigger that stores values as SQL Server does.

    Returns whether a row may be too long.
    """
    found = database.rows(
        "select a.attname, t.typname, coalesce(c.collation_name, '') from pg_attribute a "
        "join pg_type t on t.oid = a.atttypid "
        "left join sim.collations c on c.table_id = a.attrelid "
        f"and c.column_number = a.attnum where a.attrelid = {number} and a.attnum > 0 "
        "and not a.attisdropped and a.attgenerated = '' and t.typtype = 'd' order by a.attnum"
    )
    pieces = [_store_pieces(str(n), parse_type(str(t)), str(c)) for n, t, c in found]
    pieces += _key_checks(database, number)
    row_check = row_size.check_of(database, number)
    pieces += row_check
    body = " ".join(piece for piece in pieces if piece)
    database.rows(f"select sim.drop_normaliser({number})")
    if not body:
        return False
    function = f'sim."norm${number}"()'
    text = f"begin {body} return new; end"
    database.rows(
        f"create or replace function {function} returns trigger language plpgsql as {literal(text)}"
    )
    database.rows(f"select sim.add_normaliser({number})")
    return bool(row_check)
