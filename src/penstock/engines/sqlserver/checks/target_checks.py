"""Doctor's checks of a SQL Server target: its version, its tables, and who writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from penstock.engines.sqlserver.checks.capture_checks import version_findings
from penstock.engines.sqlserver.checks.probe import SNAPSHOTS, TARGET_CHECKS, SQLServerProbe
from penstock.engines.sqlserver.connect import connect, quote
from penstock.engines.sqlserver.target.catalog import read_target_tables, require
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Checks, Examined, Finding, Severity, Side, fix_of
from penstock.ports.target import TargetTableMissing, target_name

APPLY_CHECKS = Checks(Side.TARGET)

RIGHTS = (
    "SELECT HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE TABLE') AS creates, "
    "HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE SCHEMA') AS makes_schemas"
)


@TARGET_CHECKS.check("MS013", "server version")
def target_version(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check the target's version."""
    yield from version_findings(probe)


@TARGET_CHECKS.check("MS018", "readers of the target", change_only=True)
def target_readers(probe: SQLServerProbe) -> Iterator[Finding]:
    """Recommend row versions, so that readers do not wait while a batch is applied."""
    ((_, has_versions, _),) = probe.rows(SNAPSHOTS)
    if not has_versions:
        yield probe.make_finding(
            "MS018",
            Severity.INFO,
            f"READ_COMMITTED_SNAPSHOT is off in {probe.server.database}",
            "queries wait while a batch is applied, and a batch waits for queries that hold locks",
            f"ALTER DATABASE {quote(probe.server.database)} SET READ_COMMITTED_SNAPSHOT ON WITH "
            "ROLLBACK IMMEDIATE;  -- it ends other sessions' transactions",
        )


@TARGET_CHECKS.check("MS039", "rights at the target")
def target_rights(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that penstock may create its own tables, and the schema wirekite."""
    ((creates, makes_schemas),) = probe.rows(RIGHTS)
    user = quote(probe.server.user)
    for has, right in ((creates, "CREATE TABLE"), (makes_schemas, "CREATE SCHEMA")):
        if not has:
            yield probe.make_finding(
                "MS039",
                Severity.ERROR,
                f"{probe.server.user} has no right to {right} in {probe.server.database}",
                "penstock keeps progress and merge tables in the schema wirekite",
                f"GRANT {right} TO {user};",
            )


@dataclass(frozen=True, slots=True)
class Applying:
    """Task of the loader. tables: the captured ones, as the source has them."""

    examined: Examined
    tables: tuple[TableDefinition, ...]


@APPLY_CHECKS.check("PK20", "target tables for changes", change_only=True, needs_source=True)
def applied_to(applying: Applying) -> Iterator[Finding]:
    """Check that the target's tables exist in mode change."""
    examined = applying.examined
    config = examined.config
    copied = examined.copied()  # those are created
    with closing(connect(config.target.url)) as connection:
        for table in applying.tables:
            name = target_name(table.name, config.target.map)
            try:
                require(read_target_tables(connection, [name]), name)
            except TargetTableMissing as error:
                if not config.creates_tables and table.name not in copied:
                    yield _finding_of(
                        error, "mode change applies changes to existing tables; it creates none"
                    )


def _finding_of(error: PenstockError, why: str) -> Finding:
    return Finding(
        code="PK20",
        severity=Severity.ERROR,
        side=Side.TARGET,
        what=error.message,
        why=why,
        command=fix_of(error),
    )
