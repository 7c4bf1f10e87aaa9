"""Doctor's checks of a SQL Server source: its tables, snapshots, rights and positions."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.checks.probe import SNAPSHOTS, SOURCE_CHECKS, SQLServerProbe, names
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.errors import (
    ChangesLost,
    DatabaseReplaced,
    InstanceMissing,
    InstanceUnreadable,
    PositionAhead,
)
from penstock.engines.sqlserver.extraction import has_begun, identity_of, known_tables
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.beginning import given_place
from penstock.engines.sqlserver.source.instances import Book, lsn_text
from penstock.engines.sqlserver.source.reader import ChangeReader, read_newest
from penstock.engines.sqlserver.source.shapes import Shapes
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError
from penstock.ports.checks import Finding, Severity, fix_of
from penstock.ports.config import Mode
from penstock.ports.identity import (
    DirectoryOfOtherPipeline,
    DirectoryOfOtherSource,
    check_identity,
    stored_identity,
)

ON = 1  # snapshot_isolation_state
COLUMNSTORES = "SELECT object_id FROM sys.indexes WHERE type = 5"
COLLATIONS = (
    "SELECT c.object_id, c.name, c.collation_name FROM sys.columns AS c "
    "JOIN sys.types AS ty ON ty.user_type_id = c.user_type_id "
    "WHERE c.collation_name IS NOT NULL AND ty.name IN (N'char', N'varchar', N'text')"
)
HIDDEN = (
    "SELECT object_id, name FROM sys.columns WHERE encryption_type IS NOT NULL OR is_column_set = 1"
)
DELAYED = "SELECT delayed_durability_desc FROM sys.databases WHERE name = DB_NAME()"


@SOURCE_CHECKS.check("MS008", "snapshot isolation")
def snapshots(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check for snapshots, in which the bulk load reads rows without locks."""
    ((state, has_versions, _),) = probe.rows(SNAPSHOTS)
    if int(state or 0) == ON or probe.pipeline is None:
        return
    if not probe.pipeline.config.pipeline.mode.has_data:
        return
    keyless = [one.name for one in probe.tables if not one.row_key]
    database = quote(probe.server.database)
    yield probe.make_finding(
        "MS008",
        Severity.WARNING,
        f"{probe.server.database} does not allow snapshot isolation"
        + (f"; {names(keyless)} have no key" if keyless else ""),
        "rows are read under READ COMMITTED: "
        + ("" if has_versions else "readers wait for writers, ")
        + "rows of one chunk are of several moments, a table without a key may miss rows or have "
        "them twice, and penstock resend is refused",
        f"ALTER DATABASE {database} SET ALLOW_SNAPSHOT_ISOLATION ON;",
    )


@SOURCE_CHECKS.check("MS010", "collations", change_only=True)
def collations(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check for text in a collation that is not the database's, which capture may corrupt."""
    ((_, _, of_database),) = probe.rows(SNAPSHOTS)
    tables = {one.source_id: one.name for one in probe.tables}
    others = [
        f"{tables[int(object_id)]}.{name} ({collation})"
        for object_id, name, collation in probe.rows(COLLATIONS)
        if int(object_id) in tables and collation != of_database
    ]
    if others:
        yield probe.make_finding(
            "MS010",
            Severity.WARNING,
            f"columns have another collation than the database's {of_database}: {names(others)}",
            "capture may corrupt characters outside of ASCII in them",
            "give them a type of Unicode: ALTER TABLE [TABLE] ALTER COLUMN [COLUMN] nvarchar(N);",
        )


@SOURCE_CHECKS.check("MS011", "tables without capture")
def not_capturable(probe: SQLServerProbe) -> Iterator[Finding]:
    """Report tables and columns that SQL Server does not capture (reference, S11)."""
    for one in probe.survey.excluded:
        if one.pattern:
            continue
        yield probe.make_finding(
            "MS011",
            Severity.INFO,
            f"left out: {one}",
            "a pattern matches it",
            f'"!{one.name}" in [source] tables says that on purpose',
        )
    tables = {one.source_id: one.name for one in probe.tables}
    stores = [tables[int(it)] for (it,) in probe.ask(COLUMNSTORES) or [] if int(it) in tables]
    if stores:
        yield probe.make_finding(
            "MS011",
            Severity.ERROR,
            f"clustered columnstore: {names(stores)}",
            "SQL Server captures no changes of such a table (error 35353)",
            f'leave them out: "!{stores[0]}" in [source] tables',
        )
    hidden = [
        f"{tables[int(object_id)]}.{name}"
        for object_id, name in probe.ask(HIDDEN) or []
        if int(object_id) in tables
    ]
    if hidden:
        yield probe.make_finding(
            "MS011",
            Severity.WARNING,
            f"encrypted columns and column sets: {names(hidden)}",
            "encrypted values arrive as ciphertext, and column sets not at all",
        )
    delayed = probe.ask(DELAYED) or []
    if delayed and str(delayed[0][0]) not in ("DISABLED", "None"):
        yield probe.make_finding(
            "MS011",
            Severity.WARNING,
            f"{probe.server.database} has delayed durability {delayed[0][0]}",
            "a crash may undo transactions that applications have seen committed",
            f"ALTER DATABASE {quote(probe.server.database)} SET DELAYED_DURABILITY = DISABLED;",
        )


@SOURCE_CHECKS.check("MS014", "rights")
def rights(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check the rights by using them: one row of each table, and of each change table."""
    user = quote(probe.server.user)
    for table in probe.tables:
        name = quote(*table.name)
        if not _may(probe, f"SELECT TOP (0) * FROM {name}"):
            yield probe.make_finding(
                "MS014",
                Severity.ERROR,
                f"{probe.server.user} may not read {table.name}",
                "its rows and its changes cannot be read",
                f"GRANT SELECT ON {name} TO {user};",
            )
    for one in probe.list_captured():
        name = statements.change_table(one.name)
        if not _may(probe, f"SELECT TOP (0) * FROM {name}"):
            yield probe.make_finding(
                "MS014",
                Severity.ERROR,
                f"{probe.server.user} may not read {name}",
                "changes are read from there",
                f"GRANT SELECT ON SCHEMA::[cdc] TO {user};",
            )


def _may(probe: SQLServerProbe, sql: str) -> bool:
    try:
        probe.rows(sql)
    except PrivilegeMissing:
        return False
    return True


@SOURCE_CHECKS.check("MS015", "changes after the log's end", change_only=True)
def nothing_lost(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the change tables still have everything after the log's end."""
    if probe.pipeline is None or not probe.log_end or not probe.is_enabled:
        return
    book = Book.load(known_tables(probe.pipeline.config), lambda _: False)
    why = "the extractor refuses to continue"
    try:
        newest = read_newest(probe.connection)
        if newest.position and newest.position < book.newest:
            raise PositionAhead(
                f"the server has captured {lsn_text(newest.position)}, and had captured "
                f"{lsn_text(book.newest)} before",
                hint="Load the tables again: penstock reset --target, then penstock run.",
            )
        book.check(probe.instances, probe.log_end, exists=lambda at: _exists(probe, at))
    except (ChangesLost, InstanceMissing, InstanceUnreadable, PositionAhead) as error:
        yield _finding_of(probe, "MS015", error, why)


def _exists(probe: SQLServerProbe, object_id: int) -> bool:
    return bool(probe.rows(statements.TABLE_EXISTS, object_id)[0][0])


def _finding_of(probe: SQLServerProbe, code: str, error: PenstockError, why: str) -> Finding:
    return probe.make_finding(code, Severity.ERROR, error.message, why, fix_of(error))


@SOURCE_CHECKS.check("MS017", "tables without a key", change_only=True)
def keyless(probe: SQLServerProbe) -> Iterator[Finding]:
    """Report tables whose rows are found by all of their values, and which of them cannot be."""
    for table in probe.tables:
        if table.row_key:
            continue
        if probe.is_secondary and probe.copies_rows:
            yield probe.make_finding(
                "MS017",
                Severity.ERROR,
                f"{table.name} has no primary key, and this is a readable secondary",
                "its rows are copied under a lock, which keeps no writer off on a secondary",
                "Name the primary replica in [source] url, without applicationIntent.",
            )
            continue
        large = [
            one.name for one in table.columns if parse_type(one.base_type or one.type_text).is_large
        ]
        yield probe.make_finding(
            "MS017",
            Severity.WARNING,
            f"{table.name} has no primary key"
            + (f", and the large columns {names(large)}" if large else ""),
            "a change has to find its row by all values"
            + (", which change tables do not have of large columns" if large else ""),
            f"ALTER TABLE {quote(*table.name)} ADD CONSTRAINT "
            f"{quote('pk_' + table.name.name)} PRIMARY KEY ([COLUMN]);",
        )


@SOURCE_CHECKS.check("MS040", "same source as before", change_only=True)
def same_source(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the directory belongs to this pipeline and was filled from this database."""
    if probe.pipeline is None:
        return
    config = probe.pipeline.config
    try:
        check_identity(config, stored_identity(config), identity_of(config, probe.server.database))
        known = known_tables(config)
        if known is not None and probe.is_enabled:
            reader = ChangeReader(
                lambda: probe.connection, Book.load(known, lambda _: True), Shapes(lambda: ())
            )
            reader.check_database()
    except (DatabaseReplaced, DirectoryOfOtherPipeline, DirectoryOfOtherSource) as error:
        why = "positions of one source mean nothing in another; changes would be missed or mixed"
        yield _finding_of(probe, "MS040", error, why)


@SOURCE_CHECKS.check("MS041", "starting position", change_only=True)
def beginning(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the change tables have everything after startLsn, if a new log begins there."""
    if probe.pipeline is None or not probe.is_enabled:
        return
    config = probe.pipeline.config
    text = config.change_extractor.start_lsn
    if text is None or config.pipeline.mode is Mode.DATA_CHANGE or has_begun(probe.pipeline):
        return
    try:
        given_place(probe.connection, text, probe.list_captured())
    except (ChangesLost, PositionAhead) as error:
        yield _finding_of(probe, "MS041", error, "the change log cannot begin there")
