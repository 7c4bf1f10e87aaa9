"""Doctor's checks of the target (PG32 to PG34, PK07 to PK12).

What needs a privilege is tried inside a transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.postgres.checks.probe import TARGET_CHECKS, Probe
from penstock.engines.postgres.connect import quote, server_errors, statement
from penstock.engines.postgres.target.schema import check_shape, create_tables
from penstock.engines.postgres.target.target import read_target_tables
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.model.policies import ChangeKind, Policy
from penstock.ports.checks import Finding, Severity, Side, fix_of
from penstock.ports.target import (
    ProgressUnwritable,
    TargetDdlFailed,
    TargetSchemaMissing,
    TargetShapeDiffers,
    TargetTypeMissing,
    target_name,
)

META_SCHEMA = "wirekite"
LOADED = """
    select source_schema, source_name
      from wirekite.bulk_table
     where finish_time is not null
"""
FOREIGN = """
    select format('%%I.%%I', n.nspname, c.relname) as name, pg_get_userbyid(c.relowner) as owner
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where n.nspname = %(schema)s
       and c.relkind = 'r'
       and not pg_has_role(c.relowner, 'usage')
     order by 1
"""
APPLIED = """
    select source_schema, source_name
      from wirekite.wirekite_table
     where columns is not null
"""


def _finding(code: str, severity: Severity, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=code, severity=severity, side=Side.TARGET, what=what, why=why, command=command
    )


def map_name(probe: Probe, name: TableName) -> TableName:
    """Return the target name of a source table: its schema mapped by [target.map], its own name
    kept.
    """
    return target_name(name, probe.config.target.map)


def target_schemas(probe: Probe) -> list[str]:
    """Return the schemas of the target that the wanted tables go to."""
    return sorted({map_name(probe, table.name).schema for table in probe.tables})


def existing_ids(probe: Probe) -> list[int]:
    """Return the oids of the captured tables that the target has already. They are read once."""
    if "existing" not in probe.memo:
        names = [map_name(probe, table.name) for table in probe.tables]
        probe.memo["existing"] = [
            int(row["oid"])
            for row in probe.rows(
                """
                select c.oid
                  from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema, name)
                  join pg_namespace as n on n.nspname = wanted.schema
                  join pg_class as c on c.relnamespace = n.oid and c.relname = wanted.name
                """,
                schemas=[name.schema for name in names],
                names=[name.name for name in names],
            )
        ]
    ids: list[int] = probe.memo["existing"]
    return ids


@TARGET_CHECKS.check("PK07", "target version and state")
def writable(probe: Probe) -> Iterator[Finding]:
    """Check that the target is version 14 or later and accepts writes."""
    if probe.version < 140000:
        yield _finding(
            "PK07",
            Severity.ERROR,
            f"the target is PostgreSQL {probe.version // 10000}; 14 is the oldest supported",
            "older servers lack statements that the loader uses",
        )
    if probe.value("select pg_is_in_recovery()"):
        yield _finding(
            "PK07",
            Severity.ERROR,
            "the target is a standby",
            "nothing can be written to it",
            "point target.url at the primary",
        )
    elif probe.setting("default_transaction_read_only") == "on":
        yield _finding(
            "PK07",
            Severity.ERROR,
            f"transactions of {probe.user} in the target are read-only",
            "nothing can be written to it",
            f"alter role {quote(probe.user)} set default_transaction_read_only = off;",
        )


@TARGET_CHECKS.check("PK08", "privileges for progress tables")
def meta_schema(probe: Probe) -> Iterator[Finding]:
    """Try to create what the loader needs in schema wirekite. Everything is rolled back."""
    user = quote(probe.user)
    database = quote(probe.connection.info.dbname)
    trials = (
        (
            f"create schema if not exists {META_SCHEMA}",
            f"create schema {META_SCHEMA} authorization {user};  "
            f"-- or: grant create on database {database} to {user};",
        ),
        (
            f"create unlogged table {META_SCHEMA}.penstock_trial (n int)",
            f"grant usage, create on schema {META_SCHEMA} to {user};",
        ),
    )
    exists = probe.value("select true from pg_namespace where nspname = %(name)s", name=META_SCHEMA)
    yield from _try_creating(
        probe,
        "PK08",
        trials[1:] if exists else trials,
        f"schema {META_SCHEMA}",
        "the loader keeps its progress and its merge tables there",
    )
    foreign = probe.rows(FOREIGN, schema=META_SCHEMA)
    if foreign:
        yield _finding(
            "PK08",
            Severity.ERROR,
            f"{foreign[0]['name']} belongs to {foreign[0]['owner']}, not to {probe.user}"
            + (f", and so do {len(foreign) - 1} more tables there" if foreign[1:] else ""),
            "the loader reads, empties, drops and makes tables in this schema",
            " ".join(f"alter table {row['name']} owner to {user};" for row in foreign),
        )


@TARGET_CHECKS.check("PK09", "CREATE privilege in the target", needs_source=True)
def target_namespaces(probe: Probe) -> Iterator[Finding]:
    """Try to create a table in each schema that lacks a captured table; all is rolled back."""
    user = quote(probe.user)
    database = quote(probe.connection.info.dbname)
    if len(existing_ids(probe)) == len(probe.tables) or not probe.config.creates_tables:
        return
    for schema in target_schemas(probe):
        exists = probe.value("select true from pg_namespace where nspname = %(name)s", name=schema)
        make = (
            ()
            if exists
            else (
                (
                    f"create schema {quote(schema)}",
                    f"grant create on database {database} to {user};",
                ),
            )
        )
        trial = (
            f"create table {quote(schema, 'penstock_trial')} (n int)",
            f"grant usage, create on schema {quote(schema)} to {user};",
        )
        yield from _try_creating(
            probe,
            "PK09",
            (*make, trial),
            f"schema {schema}",
            "tables that the target lacks are created there",
        )


def _try_creating(
    probe: Probe, code: str, trials: tuple[tuple[str, str], ...], where: str, why: str
) -> Iterator[Finding]:
    connection = probe.connection
    with connection.transaction(force_rollback=True):
        # The other half may be making the same at this moment, which fails even with
        # `if not exists`.
        connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
        for sql, fix in trials:
            try:
                with server_errors(f"trying in {where}"), connection.transaction():
                    connection.execute(statement(sql))
            except (PrivilegeMissing, StatementFailed) as error:
                yield _finding(
                    code,
                    Severity.ERROR,
                    f"{probe.user} may not create in {where} of the target: {error.message}",
                    why,
                    fix,
                )
                return


@TARGET_CHECKS.check("PK10", "write privileges on target tables", needs_source=True)
def table_rights(probe: Probe) -> Iterator[Finding]:
    """Check that existing tables allow inserts, updates, deletes and truncates."""
    for row in probe.rows(
        """
        select n.nspname as schema, c.relname as name
          from pg_class as c
          join pg_namespace as n on n.oid = c.relnamespace
         where c.oid = any(%(ids)s)
           and not (has_schema_privilege(n.oid, 'usage')
                    and has_table_privilege(c.oid, 'select')
                    and has_table_privilege(c.oid, 'insert')
                    and has_table_privilege(c.oid, 'update')
                    and has_table_privilege(c.oid, 'delete')
                    and has_table_privilege(c.oid, 'truncate'))
         order by 1, 2
        """,
        ids=existing_ids(probe),
    ):
        yield _finding(
            "PK10",
            Severity.ERROR,
            f"{probe.user} may not write {row['schema']}.{row['name']} in the target",
            "changes are inserted, updated, deleted and truncated there",
            f"grant usage on schema {quote(row['schema'])} to {quote(probe.user)}; "
            "grant select, insert, update, delete, truncate on "
            f"{quote(row['schema'], row['name'])} to {quote(probe.user)};",
        )


ALTERING = frozenset({Policy.EVOLVE, Policy.TRY_EVOLVE, Policy.LENIENT})
NOT_OURS = """
    select format('%%I.%%I', n.nspname, c.relname) as name, pg_get_userbyid(c.relowner) as owner
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where c.oid = any(%(ids)s)
       and not pg_has_role(c.relowner, 'usage')
     order by 1
"""


@TARGET_CHECKS.check("PK18", "ownership of target tables", change_only=True, needs_source=True)
def ownership(probe: Probe) -> Iterator[Finding]:
    """Check that the user owns the tables: only an owner may alter them when they change at the
    source.
    """
    policies = probe.config.schema_changes.policies
    if not any(policies.of(kind) in ALTERING for kind in ChangeKind):
        return
    foreign = probe.rows(NOT_OURS, ids=existing_ids(probe))
    if foreign:
        user = quote(probe.user)
        yield _finding(
            "PK18",
            Severity.WARNING,
            f"{foreign[0]['name']} belongs to {foreign[0]['owner']}, not to {probe.user}"
            + (f", and so do {len(foreign) - 1} more tables" if foreign[1:] else ""),
            "when the source's table is altered the target's cannot be, and the loader stops there",
            " ".join(f"alter table {row['name']} owner to {user};" for row in foreign),
        )


@TARGET_CHECKS.check("PK11", "source and target are different databases", needs_source=True)
def not_the_source(probe: Probe) -> Iterator[Finding]:
    """Refuse one database as source and target, unless the tables go to other schemas."""
    system_id = str(probe.value("select system_identifier::text from pg_control_system()"))
    if probe.database != (system_id, probe.connection.info.dbname):
        return
    same = [t.name for t in probe.tables if map_name(probe, t.name) == t.name]
    if same:
        yield _finding(
            "PK11",
            Severity.ERROR,
            f"source and target are the same database, and {same[0]} would be copied onto itself",
            "each change would be captured again, without end",
            "name another database in target.url, or another schema in [target.map]",
        )


def _following(probe: Probe) -> set[TableName]:
    """Return the tables whose target shape follows the change log, which may lag the source."""
    if not probe.config.pipeline.mode.has_change:
        return set()
    has_data = probe.config.pipeline.mode.has_data
    needed = "wirekite.bulk_table" if has_data else "wirekite.wirekite_table"
    if probe.value("select to_regclass(%(name)s)", name=needed) is None:
        return set()
    rows = probe.rows(LOADED if has_data else APPLIED)
    return {TableName(row["source_schema"], row["source_name"]) for row in rows}


@TARGET_CHECKS.check("PK12", "shape of existing tables", needs_source=True)
def shapes(probe: Probe) -> Iterator[Finding]:
    """Check that the tables that the target has already have the source's columns."""
    present = read_target_tables(
        probe.connection, [map_name(probe, table.name) for table in probe.tables]
    )
    following = _following(probe) | probe.examined.copied()
    for table in probe.tables:
        target = present.get(map_name(probe, table.name))
        if target is None or table.name in following:
            continue
        try:
            check_shape(table, target, probe.config.target.map)
        except TargetShapeDiffers as error:
            yield _finding(
                "PK12",
                Severity.ERROR,
                error.message,
                "rows of the source do not fit into it",
                fix_of(error),
            )


@TARGET_CHECKS.check("PK14", "target tables for changes", change_only=True, needs_source=True)
def tables_there(probe: Probe) -> Iterator[Finding]:
    """Check that each table is in the target in mode change, which creates none."""
    if probe.config.creates_tables:
        return
    copied = probe.examined.copied()  # those are made
    present = read_target_tables(
        probe.connection, [map_name(probe, table.name) for table in probe.tables]
    )
    for table in probe.tables:
        name = map_name(probe, table.name)
        if name not in present and table.name not in copied:
            yield _finding(
                "PK14",
                Severity.ERROR,
                f"the target has no table {name}",
                "mode change applies changes to existing tables; it creates none",
                f"pg_dump --schema-only --table '{quote(*table.name)}' SOURCE | psql TARGET  "
                '# or set mode = "data+change"',
            )


@TARGET_CHECKS.check("PK13", "types the target can hold", needs_source=True)
def makeable(probe: Probe) -> Iterator[Finding]:
    """Create each table that the target lacks, one at a time, and roll it back."""
    if not probe.config.creates_tables:
        return
    present = read_target_tables(
        probe.connection, [map_name(probe, table.name) for table in probe.tables]
    )
    for table in probe.tables:
        if map_name(probe, table.name) in present:
            continue
        try:
            with (
                server_errors(f"trying to make {table.name}"),
                probe.connection.transaction(force_rollback=True),
            ):
                create_tables(probe.connection, [table], probe.config.target.map)
        except (TargetTypeMissing, TargetDdlFailed) as error:
            yield _finding(
                "PK13",
                Severity.ERROR,
                error.message,
                "the table cannot be created in the target as the source has it",
                fix_of(error),
            )
        except (TargetSchemaMissing, ProgressUnwritable, PrivilegeMissing):
            return  # PK08 and PK09 say so, with the GRANT


@TARGET_CHECKS.check("PG32", "identity and deferrable keys", needs_source=True)
def identity_and_deferrable(probe: Probe) -> Iterator[Finding]:
    """Report GENERATED ALWAYS identities and deferrable keys, for which penstock uses other
    statements.
    """
    for row in probe.rows(
        """
        select a.attrelid::regclass::text as name, a.attname as what, 'identity' as kind
          from pg_attribute as a
         where a.attidentity = 'a' and a.attrelid = any(%(ids)s)
         union all
        select conrelid::regclass::text, conname, 'key'
          from pg_constraint
         where contype in ('u', 'p') and condeferrable and conrelid = any(%(ids)s)
         order by 1, 2
        """,
        ids=existing_ids(probe),
    ):
        always = row["kind"] == "identity"
        yield _finding(
            "PG32",
            Severity.INFO,
            f"{row['name']} has the identity column {row['what']}, generated always"
            if always
            else f"{row['name']} has the deferrable constraint {row['what']}",
            "the loader writes the source's value over the generated one"
            if always
            else "ON CONFLICT cannot use it; the loader deletes and inserts instead",
            f"alter table {row['name']} alter column {quote(row['what'])} "
            "set generated by default;  -- only if you want to"
            if always
            else "",
        )


def may_set_replica_role(probe: Probe) -> bool:
    """Return whether this role may set session_replication_role, by setting it and resetting it."""
    if "replica" not in probe.memo:
        try:
            with (
                server_errors("trying session_replication_role"),
                probe.connection.transaction(force_rollback=True),
            ):
                probe.connection.execute("set local session_replication_role = replica")
            probe.memo["replica"] = True
        except PrivilegeMissing:
            probe.memo["replica"] = False
    return bool(probe.memo["replica"])


@TARGET_CHECKS.check("PG33", "triggers in the target", needs_source=True)
def triggers(probe: Probe) -> Iterator[Finding]:
    """Report triggers that fire on our writes, and so repeat what they did at the source."""
    replica = may_set_replica_role(probe)
    fires = ("A", "R") if replica else ("O", "A")
    for row in probe.rows(
        """
        select tgrelid::regclass::text as name, tgname as trigger
          from pg_trigger
         where not tgisinternal
           and tgenabled = any(%(fires)s::"char"[])
           and tgrelid = any(%(ids)s)
         order by 1, 2
        """,
        fires=list(fires),
        ids=existing_ids(probe),
    ):
        yield _finding(
            "PG33",
            # Under the replica role only ENABLE ALWAYS and ENABLE REPLICA triggers fire.
            Severity.WARNING if replica else Severity.ERROR,
            f"the trigger {row['trigger']} on {row['name']} fires on the loader's writes",
            "its changes at the source arrive as rows; it would make them a second time"
            + ("" if replica else ", so the loader refuses"),
            f"alter table {row['name']} disable trigger {quote(row['trigger'])};",
        )


@TARGET_CHECKS.check("PG34", "session_replication_role privilege")
def replica_role(probe: Probe) -> Iterator[Finding]:
    """Report that session_replication_role cannot be set: the loader then orders its statements by
    foreign keys, and triggers fire.
    """
    if may_set_replica_role(probe):
        return
    keys = probe.rows(
        """
        select conname as name, conrelid::regclass::text as child
          from pg_constraint
         where contype = 'f'
           and conrelid = any(%(ids)s)
         order by 2, 1
        """,
        ids=existing_ids(probe),
    )
    blocked = bool(keys) and probe.config.pipeline.mode.has_data
    fix = f"grant set on parameter session_replication_role to {quote(probe.user)};"
    yield _finding(
        "PG34",
        Severity.ERROR if blocked else Severity.WARNING,
        f"{probe.user} may not set session_replication_role in the target"
        + (f", and {keys[0]['child']} has the foreign key {keys[0]['name']}" if blocked else ""),
        "the bulk load writes tables in any order, which foreign keys would refuse"
        if blocked
        else "foreign keys are checked while changes are applied: parents are written before "
        "children, and a cycle of foreign keys has to be deferrable",
        fix if probe.version >= 150000 else f"alter role {quote(probe.user)} superuser;",
    )
