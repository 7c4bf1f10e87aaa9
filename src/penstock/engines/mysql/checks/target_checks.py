"""Doctor's checks of a MySQL or MariaDB target, some of them in comparison with its source."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.mysql.checks.probe import TARGET_CHECKS, MySQLProbe
from penstock.engines.mysql.connect import quote
from penstock.engines.mysql.source.definitions import definitions_of
from penstock.model import TableDefinition, TableName
from penstock.ports.checks import Finding, Severity
from penstock.ports.target import SCHEMA

PACKET_BYTES_ADVISED = 2**30
# Collations with these endings distinguish all characters; in all others some compare equal.
EXACT_ENDINGS = ("_bin", "_as_cs")

# Emptying a table takes DROP; a foreign key takes REFERENCES, which MariaDB does not have.
LOADING = frozenset({"SELECT", "INSERT", "DELETE", "DROP"})
CHANGING = LOADING | {"UPDATE", "ALTER"}
MAKING = frozenset({"CREATE", "ALTER"})
ALL_OF_OURS = CHANGING | {"CREATE"}

PRESENT = """
    select table_schema, table_name, table_type, engine, create_options, table_rows, data_length
      from information_schema.tables
     where table_schema = %s
"""
TRIGGERS = """
    select trigger_schema, trigger_name, event_object_table as table_name,
           event_manipulation as event
      from information_schema.triggers
     order by trigger_schema, trigger_name
"""


def present_tables(probe: MySQLProbe) -> dict[TableName, TableDefinition]:
    """Return the captured tables that the target has already, under the same names; read once."""
    if "present" not in probe.memo:
        wanted = {table.name for table in probe.tables}
        facts = {
            name: row
            for schema in sorted({name.schema for name in wanted})
            for row in probe.rows(PRESENT, (schema,))
            if (name := TableName(row["table_schema"], row["table_name"])) in wanted
        }
        probe.memo["present"] = definitions_of(probe.connection, facts)
    found: dict[TableName, TableDefinition] = probe.memo["present"]
    return found


@TARGET_CHECKS.check("MY024", "key collations", needs_source=True)
def key_collations(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that keys that differ in the source are not equal in the target."""
    present = present_tables(probe)
    for table in probe.tables:
        target = present.get(table.name)
        if target is None:
            continue
        ours = {column.name: column for column in target.columns}
        theirs = {column.name: column for column in table.columns}
        for name in target.identity_columns:
            collation = ours[name].collation
            if collation is None or collation.endswith(EXACT_ENDINGS):
                continue
            source = theirs[name].collation if name in theirs else None
            if source != collation:
                column = ours[name]
                yield probe.make_finding(
                    "MY024",
                    Severity.ERROR,
                    f"the key of {table.name} compares {name} by {collation} in the target, by "
                    f"{source or 'its bytes'} in the source",
                    "rows that differ in the source, as 'a' and 'A', are one row there",
                    f"alter table {quote(*table.name)} modify {quote(name)} "
                    f"{column.type_text} character set {column.charset} collate "
                    f"{column.charset}_bin{' not null' if column.not_null else ''};",
                )


@TARGET_CHECKS.check("MY027", "max_allowed_packet", needs_source=True)
def packet_size(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that the largest row that the source can log fits a statement of the target."""
    ours = probe.number("max_allowed_packet") or 0
    theirs = (probe.source.number("max_allowed_packet") or 0) if probe.source is not None else 0
    if ours < theirs:
        yield probe.make_finding(
            "MY027",
            Severity.WARNING,
            f"max_allowed_packet is {ours} bytes in the target, {theirs} in the source",
            "a row may be too long for the target",
            probe.setting("max_allowed_packet", str(PACKET_BYTES_ADVISED)),
        )


@TARGET_CHECKS.check("MY028", "local_infile")
def local_infile(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that rows can be loaded with LOAD DATA LOCAL."""
    if not probe.is_on("local_infile"):
        yield probe.make_finding(
            "MY028",
            Severity.WARNING,
            "local_infile of the target is off",
            "rows are loaded with INSERT, which is slower than LOAD DATA LOCAL",
            probe.setting("local_infile", "1"),
        )


@TARGET_CHECKS.check("MY029", "durability")
def durable_commits(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that a crash cannot undo applied changes; a session cannot ask for more durability than
    the server's settings give.
    """
    name = "innodb_flush_log_at_trx_commit"
    text = probe.variable(name)
    if text is not None and text != "1":
        yield probe.make_finding(
            "MY029",
            Severity.WARNING,
            f"{name} of the target is {text}, not 1",
            "a crash of its machine may undo batches whose files are gone by then "
            "(removeFiles, doneDirectory): the tables have to be loaded again",
            probe.setting(name, "1"),
        )


@TARGET_CHECKS.check("MY033", "case of table names", needs_source=True)
def name_case(probe: MySQLProbe) -> Iterator[Finding]:
    """Report tables whose names differ only in case: they are one where names are case-
    insensitive.
    """
    folds = probe.number("lower_case_table_names") or 0
    source_folds = (
        (probe.source.number("lower_case_table_names") or 0) if probe.source is not None else 0
    )
    if not folds:
        if source_folds == 2:
            yield probe.make_finding(
                "MY033",
                Severity.WARNING,
                "names of tables count by their case in the target (lower_case_table_names = 0), "
                "in the source they do not",
                "a statement that writes a table's name in another case works at the source, and "
                "not in the target",
            )
        return
    by_folded: dict[tuple[str, str], list[str]] = {}
    for table in probe.tables:
        folded = (table.name.schema.lower(), table.name.name.lower())
        by_folded.setdefault(folded, []).append(str(table.name))
    for same in by_folded.values():
        if len(same) > 1:
            yield probe.make_finding(
                "MY033",
                Severity.ERROR,
                f"{' and '.join(same)} are one table in the target "
                f"(lower_case_table_names = {folds})",
                "rows of both would be mixed",
                "map one of them to another name in [target.map]",
            )
    odd = [str(t.name) for t in probe.tables if str(t.name) != str(t.name).lower()]
    if odd and not source_folds:
        yield probe.make_finding(
            "MY033",
            Severity.WARNING,
            f"the target stores names of tables in lower case, such as that of {odd[0]} "
            f"(lower_case_table_names = {folds})",
            "the table has another name there",
            "map it to that name in [target.map]",
        )


@TARGET_CHECKS.check("MY037", "triggers in the target", needs_source=True)
def triggers(probe: MySQLProbe) -> Iterator[Finding]:
    """Report triggers that fire on our writes: they would do their work twice."""
    wanted = {table.name for table in probe.tables}
    for row in probe.rows(TRIGGERS):
        table = TableName(row["trigger_schema"], row["table_name"])
        if table in wanted:
            trigger = quote(row["trigger_schema"], row["trigger_name"])
            yield probe.make_finding(
                "MY037",
                Severity.WARNING,
                f"the trigger {row['trigger_name']} on {table} fires on the loader's "
                f"{row['event'].lower()}s",
                "its changes at the source arrive as rows; it would make them a second time",
                f"drop trigger {trigger};",
            )


@TARGET_CHECKS.check("MY038", "columns of type UUID", needs_source=True)
def uuid_columns(probe: MySQLProbe) -> Iterator[Finding]:
    """Report columns of MariaDB's UUID, which does not accept every value of PostgreSQL's uuid."""
    if probe.source is not None:
        return
    present = present_tables(probe)
    for table in probe.tables:
        there = present.get(table.name)
        held = {column.name: column for column in there.columns} if there is not None else {}
        for column in table.columns:
            ours = held.get(column.name)
            if column.neutral == "uuid" and ours is not None and ours.type_text == "uuid":
                yield probe.make_finding(
                    "MY038",
                    Severity.WARNING,
                    f"the column {column.name} of {table.name} is a UUID of MariaDB in the target",
                    "MariaDB refuses some values of PostgreSQL's uuid, and the load stops at the "
                    "first of them",
                    f"alter table {quote(*table.name)} modify {quote(column.name)} char(36) "
                    f"character set ascii collate ascii_bin{' not null' if ours.not_null else ''};",
                )


@TARGET_CHECKS.check("MY039", "privileges in the target")
def rights(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the account's grants for what the load and the loader do in the target."""
    present = present_tables(probe)
    schemas: dict[str, frozenset[str]] = {SCHEMA: ALL_OF_OURS}
    for table in probe.tables:
        needed = CHANGING if probe.wanted.has_change else LOADING
        if table.name not in present and probe.wanted.has_data:
            needed = needed | MAKING
            if table.foreign_keys and not probe.server.is_mariadb:
                needed = needed | {"REFERENCES"}
        schemas[table.name.schema] = schemas.get(table.name.schema, frozenset()) | needed
    for schema, needed in sorted(schemas.items()):
        # Privileges on single tables count as well; a new table has those of its database.
        names = [t.name for t in probe.tables if t.name.schema == schema]
        places = names or [TableName(schema, "wirekite_log")]
        lacking = sorted(right for right in needed if probe.rights.lacking_on(places, right))
        if lacking:
            yield probe.make_finding(
                "MY039",
                Severity.ERROR,
                f"{probe.account} lacks privileges on {schema} in the target: "
                f"{', '.join(lacking).lower()}",
                "the loader keeps its progress and its merge tables there"
                if schema == SCHEMA
                else "tables are created, filled, changed, emptied and altered there",
                f"grant {', '.join(sorted(needed)).lower()} on {quote(schema)}.* to "
                f"{probe.account};",
            )
