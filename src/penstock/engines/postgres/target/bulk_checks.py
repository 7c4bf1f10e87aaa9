"""Decisions about a bulk load's tables before the first row: refusals and formats.

They only read the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.target import TargetTable
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import TargetFires

# Types whose binary form is the same in every version and says everything; others go as text.
# Not interval: what is the largest one up to 16 means infinity from 17 on.
BINARY_TYPES = frozenset(
    {
        "boolean", "smallint", "integer", "bigint", "oid", "real", "double precision", "numeric",
        "text", "character varying", "character", "bytea", "bit", "bit varying", "uuid",
        "date", "time without time zone", "time with time zone",
        "timestamp without time zone", "timestamp with time zone",
        "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8",
        "point", "line", "lseg", "box", "path", "polygon", "circle",
        "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
    }
)  # fmt: skip


# Foreign keys of other tables to these that act on a DELETE.
CASCADES = """
    select conrelid::regclass::text, confrelid::regclass::text, conname
      from pg_constraint
     where contype = 'f'
       and confrelid = any(%(names)s::text[]::regclass[])
       and conrelid <> all(%(names)s::text[]::regclass[])
       and confdeltype in ('c', 'n', 'd')
     order by 1, 3
     limit 1
"""


def may_be_replica(connection: psycopg.Connection) -> bool:
    """Return whether we may keep the target's triggers and foreign keys from acting on our rows."""
    try:
        with connection.transaction():
            connection.execute("set local session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def check_quiet(table: TargetTable) -> None:
    """Refuse a table whose triggers or foreign keys would act on rows that come in any order."""
    if not table.triggers and not table.parents and not table.self_reference:
        return
    what = "a foreign key" if table.parents or table.self_reference else "a trigger"
    raise TargetFires(
        f"target table {table.name} has {what}, and the role may not set session_replication_role",
        hint="On 15 and later, as superuser: grant set on parameter session_replication_role to "
        "ROLE; or drop foreign keys and disable triggers until the load is done.",
        table=str(table.name),
    )


def check_no_cascade(connection: psycopg.Connection, tables: Sequence[TableName]) -> None:
    """Refuse to empty tables when that would change or delete rows of others that refer to them."""
    names = [quote(*table) for table in tables]
    row = connection.execute(CASCADES, {"names": names}).fetchone()
    if row is None:
        return
    raise TargetFires(
        f"deleting the rows of target table {row[1]} would change rows of {row[0]} by its foreign "
        f"key {row[2]}, and the role may not set session_replication_role",
        hint="On 15 and later, as superuser: grant set on parameter session_replication_role to "
        "ROLE; or drop the foreign key until the rows are copied.",
        table=str(row[1]),
    )


def goes_binary(definition: TableDefinition) -> bool:
    """Return whether a table may be copied in COPY's binary format.

    The target has the same types: `create_tables` created or checked them. An array names its
    elements' type by oid, which for these types is the same everywhere.
    """
    types = (c.type_text.partition("(") for c in definition.columns if not c.generated)
    bare = (head + rest.partition(")")[2] for head, _, rest in types)
    return all(text.removesuffix("[]") in BINARY_TYPES for text in bare)
