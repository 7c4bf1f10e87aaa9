"""Target tables made from the source's definitions, or checked against them.

Order of a load from scratch: `create_tables` (types, tables without keys), the rows, `add_keys`
(primary key, unique keys, indexes), and when all tables are at one position `add_foreign_keys`;
Each is safe to repeat. Not here: unique keys where rows are of several moments
(`deferred_keys.py`), changes of shape in mid-stream (`alter.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg
import structlog

from penstock.engines.postgres.connect import literal, quote
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.target import (
    TargetTable,
    map_namespaces,
    read_target_tables,
    same_type,
)
from penstock.engines.postgres.type_rules import TYPE_RULES
from penstock.model import (
    ColumnDefinition,
    TableDefinition,
    TableName,
    TypeDefinition,
    UniqueKey,
)
from penstock.ports.target import (
    TableRecord,
    TargetDdlFailed,
    TargetSchemaMissing,
    TargetShapeDiffers,
    TargetTypeMissing,
    check_still_fits,
    copied_ids,
    target_name,
)

logger = structlog.get_logger(__name__)

INDEX_MEMORY = "256MB"
NAME_BYTES = 63

_SEQUENCE = re.compile(r"nextval\('((?:[^']|'')+)'::regclass\)\Z")


@dataclass(slots=True)
class Created:
    """Result of `create_tables`. notes: a sentence for each part that the target's tables lack."""

    made: list[TableName] = field(default_factory=list)
    found: list[TableName] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def create_tables(
    connection: psycopg.Connection,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
) -> Created:
    """Make the missing target tables, without keys, and check those that are there.

    All in one transaction: when anything is wrong, nothing is changed. Records each table's
    shape in `wirekite.wirekite_table`. connection: autocommit, EXACT_TEXT_SETTINGS.
    Raises TargetShapeDiffers, TargetTypeMissing, TargetSchemaMissing or TargetDdlFailed.
    """
    progress = PostgresProgress(connection)
    progress.ensure_tables()
    result = Created()
    with connection.transaction():
        targets = {d.name: target_name(d.name, namespaces) for d in definitions}
        present = read_target_tables(connection, targets.values())
        known = progress.read_tables()
        for definition in definitions:
            found = present.get(targets[definition.name])
            if found is not None:
                check_shape(definition, found, namespaces)
                names = [column.name for column in found.columns]
                check_still_fits(known.get(definition.name), definition, names)
        for definition in definitions:
            name = targets[definition.name]
            if name in present:
                result.found.append(name)
            else:
                _create(connection, definition, namespaces, result.notes)
                result.made.append(name)
        _record(progress, definitions, targets, set(result.made))
    for note in result.notes:
        logger.warning("target table differs from the source", note=note)
    return result


def _record(
    progress: PostgresProgress,
    definitions: Sequence[TableDefinition],
    targets: Mapping[TableName, TableName],
    made: set[TableName],
) -> None:
    taken = {r.merge_name: r.target for r in progress.read_tables().values()}
    records = []
    for definition in definitions:
        target = targets[definition.name]
        name = progress.dialect.merge_name(target, taken)
        taken[name] = target
        # Rows have no values for generated columns.
        copied = [column for column in definition.columns if not column.generated]
        records.append(
            TableRecord(
                source=definition.name,
                target=target,
                merge_name=name,
                made=target in made,
                columns=tuple((column.name, column.type_text) for column in copied),
                ids=copied_ids(copied),
                source_id=definition.source_id,
                unique=UniqueKey.columns_of(definition.unique_keys),
                key=definition.row_key,
                not_null=tuple(column.name for column in copied if column.not_null),
                computed=tuple(
                    (one.id, one.name, one.type_text, one.default or "", one.generated == "s")
                    for one in definition.columns
                    if one.generated
                ),
            )
        )
    progress.write_tables(records)


def check_shape(
    definition: TableDefinition, table: TargetTable, namespaces: Mapping[str, str]
) -> None:
    """Compare a target table with the definition. Raises TargetShapeDiffers naming the columns.

    More columns in the target are allowed when they can be left out of an insert.
    """
    differing: list[str] = []
    wanted = {column.name: column for column in definition.columns}
    for column in definition.columns:
        found = table.column(column.name)
        expected = map_namespaces(column.type_text, namespaces)
        if found is None:
            differing.append(f"{column.name} is missing, expected {expected}")
        elif not (
            same_type(found.type_text, expected)
            or same_type(found.type_text, column.type_text)
            or (definition.widens and TYPE_RULES.holds(found.type_text, expected))
        ):
            differing.append(f"{column.name} is {found.type_text}, expected {expected}")
    for extra in table.columns:
        optional = not extra.not_null or extra.has_default or extra.generated or extra.identity
        if extra.name not in wanted and not optional:
            differing.append(f"{extra.name} is not null, has no default and is not in the source")
    if differing:
        raise TargetShapeDiffers(
            f"target table {table.name} has another shape than the source's: "
            + "; ".join(differing),
            hint=f"Alter it, or rename it so that penstock makes its own: alter table "
            f"{table.sql_name} rename to {quote(table.name.name + '_before')};",
            table=str(table.name),
        )


# --- creating -------------------------------------------------------------------------------------


def _create(
    connection: psycopg.Connection,
    definition: TableDefinition,
    namespaces: Mapping[str, str],
    notes: list[str],
) -> None:
    name = target_name(definition.name, namespaces)
    _ensure_schema(connection, name.schema)
    for kind in definition.types:
        ensure_type(connection, kind, namespaces)
    version = connection.info.server_version
    columns = []
    for column in definition.columns:
        type_text = _resolved_type(connection, column, namespaces, name)
        columns.append(_column_sql(column, type_text, namespaces, version))
        if column.generated == "v" and version < 180000:
            notes.append(f"{name}.{column.name} is virtual in the source and stored in the target")
    body = ",\n    ".join(columns)
    with ddl_errors(f"creating table {name}"):
        connection.execute(f"create table {quote(*name)} (\n    {body}\n)")
    for column in definition.columns:
        _set_default(connection, name, column, namespaces, notes)
    _try_keys(connection, definition, namespaces)


def _try_keys(
    connection: psycopg.Connection, definition: TableDefinition, namespaces: Mapping[str, str]
) -> None:
    """Create the keys and indexes that need more than columns, and roll them back.

    They are created after the rows, so this reports what the target lacks for them before the first
    row.
    """
    name = target_name(definition.name, namespaces)
    statements = [key.definition for key in definition.unique_keys]
    for sql in (*statements, *definition.indexes):
        if not _PLAIN_INDEX.search(sql):
            free = _free_name(connection, _index_name(sql), name)
            with (
                ddl_errors(f"adding index {_index_name(sql)} of {name}"),
                connection.transaction(force_rollback=True),
            ):
                connection.execute(index_sql(_under_name(sql, free), namespaces))


def _column_sql(
    column: ColumnDefinition, type_text: str, namespaces: Mapping[str, str], version: int
) -> str:
    parts = [quote(column.name), type_text]
    if column.collation:
        parts.append(f"collate {map_namespaces(column.collation, namespaces)}")
    if column.generated:
        expression = map_namespaces(column.default or "null", namespaces)
        kind = "virtual" if column.generated == "v" and version >= 180000 else "stored"
        parts.append(f"generated always as ({expression}) {kind}")
    elif column.identity_kind:
        how = "always" if column.identity_kind == "a" else "by default"
        parts.append(f"generated {how} as identity")
    if column.not_null:
        parts.append("not null")
    return " ".join(parts)


def _set_default(
    connection: psycopg.Connection,
    name: TableName,
    column: ColumnDefinition,
    namespaces: Mapping[str, str],
    notes: list[str],
) -> None:
    """Give a column its default. Rows never need it, so one that fails is a note, not an error."""
    if column.default is None or column.generated or column.identity_kind:
        return
    try:
        with connection.transaction():
            expression = map_namespaces(column.default, namespaces)
            if match := _SEQUENCE.match(column.default):
                sequence = map_namespaces(match[1].replace("''", "'"), namespaces)
                connection.execute(f"create sequence if not exists {sequence}")
                connection.execute(
                    f"alter sequence {sequence} owned by {quote(*name, column.name)}"
                )
                expression = f"nextval({literal(sequence)}::regclass)"
            connection.execute(
                f"alter table {quote(*name)} alter column {quote(column.name)}"
                f" set default {expression}"
            )
    except psycopg.Error as error:
        notes.append(
            f"{name}.{column.name} has no default in the target: {error.diag.message_primary}"
        )


def _ensure_schema(connection: psycopg.Connection, schema: str) -> None:
    if connection.execute("select 1 from pg_namespace where nspname = %s", (schema,)).fetchone():
        return
    try:
        with connection.transaction():
            connection.execute(f"create schema {quote(schema)}")
    except psycopg.errors.InsufficientPrivilege as error:
        database, user = connection.info.dbname, connection.info.user
        raise TargetSchemaMissing(
            f"the target has no schema {schema}, and {user} may not create one",
            hint=f"Run: create schema {quote(schema)} authorization {quote(user)}; or: grant "
            f"create on database {quote(database)} to {quote(user)};",
        ) from error


LABELS = """
    select e.enumlabel
      from pg_enum e
      join pg_type t on t.oid = e.enumtypid
      join pg_namespace n on n.oid = t.typnamespace
     where n.nspname = %s and t.typname = %s
     order by e.enumsortorder
"""


def ensure_type(
    connection: psycopg.Connection, kind: TypeDefinition, namespaces: Mapping[str, str]
) -> None:
    """Create a type of the source's if the target has none of its name; add labels that it lacks.

    Raises TargetSchemaMissing, TargetTypeMissing, TargetDdlFailed.
    """
    schema = namespaces.get(kind.schema, kind.schema)
    if connection.execute(
        "select 1 from pg_type t join pg_namespace n on n.oid = t.typnamespace"
        " where n.nspname = %s and t.typname = %s",
        (schema, kind.name),
    ).fetchone():
        _add_labels(connection, schema, kind)
        return
    _ensure_schema(connection, schema)
    with ddl_errors(f"creating type {schema}.{kind.name}"):
        connection.execute(map_namespaces(kind.create_sql, namespaces))


def _add_labels(connection: psycopg.Connection, schema: str, kind: TypeDefinition) -> None:
    """Give an enum of the target the source's labels, each after its predecessor in the source."""
    if not kind.labels:
        return
    rows = connection.execute(LABELS, (schema, kind.name)).fetchall()
    there = {label for (label,) in rows}
    place = ""
    for label in kind.labels:
        if label not in there:
            added = f"alter type {quote(schema, kind.name)} add value if not exists"
            first = f" before {literal(rows[0][0])}" if rows else ""
            connection.execute(f"{added} {literal(label)}{place or first}")
        place = f" after {literal(label)}"


def _resolved_type(
    connection: psycopg.Connection,
    column: ColumnDefinition,
    namespaces: Mapping[str, str],
    table: TableName,
) -> str:
    """Return the column's type in the target, where an extension may be in another schema."""
    for candidate in (map_namespaces(column.type_text, namespaces), column.type_text):
        if type_exists(connection, candidate):
            return candidate
    if moved := _extension_type(connection, column.type_text):
        return moved
    raise TargetTypeMissing(
        f"the target cannot hold {table}.{column.name}: it has no type {column.type_text}",
        hint="Install the extension that brings the type (create extension ...), or leave the "
        "table out with an entry like !schema.table in [source] tables.",
        table=str(table),
    )


def type_exists(connection: psycopg.Connection, type_text: str) -> bool:
    """Return whether the target understands a type's name."""
    try:
        with connection.transaction():
            row = connection.execute(
                "select to_regtype(%s)", (_without_modifiers(type_text),)
            ).fetchone()
    except psycopg.Error:  # a name that is not even a type name
        return False
    return row is not None and row[0] is not None


def _extension_type(connection: psycopg.Connection, type_text: str) -> str | None:
    match = re.match(r'(?:"(?:[^"]|"")*"|[\w$]+)\.("(?:[^"]|"")*"|[\w$]+)(.*)\Z', type_text)
    if match is None:
        return None
    name = match[1][1:-1].replace('""', '"') if match[1].startswith('"') else match[1]
    row = connection.execute(
        """
        select n.nspname
          from pg_type t
          join pg_namespace n on n.oid = t.typnamespace
          join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid
                          and d.deptype = 'e'
         where t.typname = %s
         limit 1
        """,
        (name,),
    ).fetchone()
    return None if row is None else f"{quote(row[0], name)}{match[2]}"


def _without_modifiers(type_text: str) -> str:
    """Return a type without the modifiers that to_regtype of servers below 17 refuses: `interval
    day to second(3)`.
    """
    text = re.sub(r"\((?:[^()\"]*)\)", "", type_text)
    return re.sub(r"^interval .*?(\[\].*)?$", r"interval\1", text) if "[" not in text else text


@contextmanager
def ddl_errors(doing: str) -> Iterator[None]:
    """Turn a refused DDL statement into TargetDdlFailed with the server's message."""
    try:
        yield
    except psycopg.errors.UndefinedObject as error:
        raise TargetTypeMissing(
            f"{doing}: {error.diag.message_primary}",
            hint="Install what is missing in the target (create extension ..., create type ..., "
            "create collation ...) and run again.",
            sqlstate=error.sqlstate,
        ) from error
    except psycopg.errors.UndefinedFunction as error:
        said = error.diag.message_primary or ""
        found = _FUNCTION.search(said)
        function = found[1].rpartition(".")[2].strip('"') if found else "..."
        raise TargetDdlFailed(
            f"{doing}: {said}",
            hint="Create it in the target, as the source has it. There, run: select "
            f"pg_get_functiondef(oid) from pg_proc where proname = {literal(function)};",
            sqlstate=error.sqlstate,
        ) from error
    except (
        psycopg.errors.ProgrammingError,
        psycopg.errors.NotSupportedError,
        psycopg.errors.IntegrityError,
        psycopg.errors.DataError,
    ) as error:
        raise TargetDdlFailed(
            f"{doing}: {error.diag.message_primary}",
            hint=error.diag.message_hint
            or "Run `penstock doctor`: it prints the GRANTs that the target needs.",
            sqlstate=error.sqlstate,
        ) from error


# --- keys, after the rows -------------------------------------------------------------------------


def add_keys(
    connection: psycopg.Connection,
    definition: TableDefinition,
    namespaces: Mapping[str, str],
) -> list[str]:
    """Create the primary key, unique keys and indexes of a table that penstock created.

    Existing ones are left alone, so that a killed run can continue. Returns the names of those
    created. Raises TargetDdlFailed, with the table's rows untouched.
    """
    name = target_name(definition.name, namespaces)
    made: list[str] = []
    present = index_names(connection, name)
    if definition.primary_key and not any(present.values()):
        columns = ", ".join(quote(column) for column in definition.primary_key)
        later = " deferrable" if definition.primary_key_deferrable else ""
        with _unless_lacking(name, "the primary key"), connection.transaction():
            connection.execute(f"alter table {quote(*name)} add primary key ({columns}){later}")
            made.append("primary key")
    for key in definition.unique_keys:
        free = _free_name(connection, key.name, name)
        if present.keys() & {key.name, free}:
            continue
        key = replace(key, name=free, definition=_under_name(key.definition, free))
        with _unless_lacking(name, f"unique key {key.name}"), connection.transaction():
            for statement in unique_key_sql(key, name, namespaces):
                connection.execute(statement)
            made.append(key.name)
    for sql in definition.indexes:
        index = _index_name(sql)
        free = _free_name(connection, index, name)
        if not present.keys() & {index, free}:
            with _unless_lacking(name, f"index {index}"), connection.transaction():
                connection.execute(index_sql(_under_name(sql, free), namespaces))
                made.append(free)
    return made


def _free_name(connection: psycopg.Connection, index: str, table: TableName) -> str:
    """Return a name for an index of a table: its own, unless another relation there has it.

    The copy of a table may have it that was renamed at the source before it was copied again.
    """
    row = connection.execute(
        "select 1 from pg_class c left join pg_index i on i.indexrelid = c.oid"
        " where c.relname = %s and c.relnamespace = to_regnamespace(%s)"
        " and i.indrelid is distinct from to_regclass(%s)",
        (index, quote(table.schema), quote(*table)),
    ).fetchone()
    if row is None:
        return index
    return f"{table.name}_{index}".encode()[:NAME_BYTES].decode(errors="ignore")


def _under_name(definition: str, name: str) -> str:
    """Return the definition of an index with another name."""
    if _index_name(definition) == name:
        return definition
    return _INDEX.sub(lambda match: match[0].replace(match[1], quote(name), 1), definition, count=1)


@contextmanager
def _unless_lacking(table: TableName, what: str) -> Iterator[None]:
    """Leave out a key with columns that the source got after the rows were copied.

    They arrive with the log, which has no keys. Raises TargetDdlFailed for anything else.
    """
    with ddl_errors(f"adding {what} of {table}"):
        try:
            yield
        except psycopg.errors.UndefinedColumn as error:
            logger.warning(
                "key not made", table=str(table), key=what, reason=error.diag.message_primary
            )


def unique_key_sql(key: UniqueKey, name: TableName, namespaces: Mapping[str, str]) -> Iterator[str]:
    """Yield the statements that create a unique key."""
    yield index_sql(key.definition, namespaces)
    if key.is_constraint:
        later = " deferrable" if key.deferrable else ""
        yield (
            f"alter table {quote(*name)} add constraint {quote(key.name)}"
            f" unique using index {quote(key.name)}{later}"
        )


def add_foreign_keys(
    connection: psycopg.Connection,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
) -> list[str]:
    """Create the foreign keys of the tables that penstock created, each deferrable.

    They are deferrable because a batch holds the net effect of many transactions and can satisfy
    them only at its end. A key to a table that is not in the target is left out, with a note in the
    returned list. Call this when all tables are at one position, because existing rows are checked.
    """
    notes: list[str] = []
    names = {target_name(d.name, namespaces) for d in definitions}
    parents = {target_name(k.target, namespaces) for d in definitions for k in d.foreign_keys}
    present = read_target_tables(connection, names | parents)
    for definition in definitions:
        name = target_name(definition.name, namespaces)
        there = _foreign_key_names(connection, name)
        for key in definition.foreign_keys:
            if key.name in there:
                continue
            if target_name(key.target, namespaces) not in present:
                notes.append(f"{name} has no foreign key {key.name}: {key.target} is not captured")
                continue
            body = map_namespaces(key.definition, namespaces)
            if not re.search(r"\bDEFERRABLE\b", body) or re.search(r"\bNOT DEFERRABLE\b", body):
                body = re.sub(r"\s*\bNOT DEFERRABLE\b", "", body) + " deferrable"
            with ddl_errors(f"adding foreign key {key.name} of {name}"):
                connection.execute(
                    f"alter table {quote(*name)} add constraint {quote(key.name)} {body}"
                )
    for note in notes:
        logger.warning("target table differs from the source", note=note)
    return notes


def _foreign_key_names(connection: psycopg.Connection, name: TableName) -> set[str]:
    rows = connection.execute(
        "select conname from pg_constraint where contype = 'f' and conrelid = to_regclass(%s)",
        (quote(*name),),
    ).fetchall()
    return {row[0] for row in rows}


def index_names(connection: psycopg.Connection, name: TableName) -> dict[str, bool]:
    """Return for each index of a table, by name, whether it is the primary key's."""
    rows = connection.execute(
        "select x.relname, i.indisprimary from pg_index i join pg_class x on x.oid = i.indexrelid"
        " where i.indrelid = to_regclass(%s)",
        (quote(*name),),
    ).fetchall()
    return {row[0]: row[1] for row in rows}


_NAME = r'(?:"(?:[^"]|"")*"|[\w$]+)'
_PLAIN_INDEX = re.compile(rf"USING \w+ \({_NAME}(?:, {_NAME})*\)\Z")
_FUNCTION = re.compile(r"function (.+)\(.*\) does not exist")
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX ((?:"(?:[^"]|"")*"|\S)+) ON (ONLY )?', re.IGNORECASE)


def _index_name(sql: str) -> str:
    match = _INDEX.match(sql)
    if match is None:
        raise TargetDdlFailed(f"not an index definition: {sql.split(' (')[0]}")
    name = match[1]
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def index_sql(sql: str, namespaces: Mapping[str, str]) -> str:
    """Return the definition for the target; a partitioned source becomes one table there."""
    mapped = map_namespaces(sql, namespaces)
    return _INDEX.sub(lambda match: match[0].replace(" ON ONLY ", " ON "), mapped, count=1)
