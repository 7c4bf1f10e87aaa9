"""Doctor's checks of an Oracle target: its version, its tables, and who writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from penstock.engines.oracle.checks.log_checks import version_findings
from penstock.engines.oracle.checks.probe import CHARACTER_SET, TARGET_CHECKS, OracleProbe, names
from penstock.engines.oracle.connect import connect
from penstock.engines.oracle.reading.catalog import OWN_SCHEMA
from penstock.engines.oracle.target.catalog import read_target_tables, require
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Checks, Examined, Finding, Severity, Side, fix_of
from penstock.ports.target import TargetTableMissing, target_name

APPLY_CHECKS = Checks(Side.TARGET)

HAS_SCHEMA = "SELECT COUNT(*) FROM ALL_USERS WHERE USERNAME = :name"
WRITES = ("INSERT ANY TABLE", "UPDATE ANY TABLE", "DELETE ANY TABLE", "SELECT ANY TABLE")
CREATES = (
    *("CREATE ANY TABLE", "ALTER ANY TABLE", "DROP ANY TABLE", "LOCK ANY TABLE"),
    *("CREATE ANY INDEX", "DROP ANY INDEX"),
)
CHARACTER_SETS = ("AL32UTF8", "UTF8")


@TARGET_CHECKS.check("OR013", "server version")
def target_version(probe: OracleProbe) -> Iterator[Finding]:
    """Check the target's version."""
    yield from version_findings(probe)


@TARGET_CHECKS.check("OR038", "character set of the target")
def target_character_set(probe: OracleProbe) -> Iterator[Finding]:
    """Check that the target holds every character."""
    rows = probe.connection.execute(CHARACTER_SET)
    found = str(rows[0][0]) if rows else ""
    if found not in CHARACTER_SETS:
        yield probe.make_finding(
            "OR038",
            Severity.WARNING,
            f"the character set of the target is {found}",
            "the server replaces characters that it lacks, without an error",
            "use a database with AL32UTF8",
        )


@TARGET_CHECKS.check("OR039", "rights at the target")
def target_rights(probe: OracleProbe) -> Iterator[Finding]:
    """Check that penstock may create its own schema and tables, and write the others."""
    there = probe.connection.execute(HAS_SCHEMA, name=OWN_SCHEMA)
    wanted = list(WRITES + CREATES)
    if not there[0][0]:
        wanted.append("CREATE USER")
    missing = [one for one in wanted if one not in probe.privileges]
    if missing:
        yield probe.make_finding(
            "OR039",
            Severity.ERROR,
            f"{probe.user} lacks {names(missing)}",
            f"penstock keeps progress and merge tables in the schema {OWN_SCHEMA}, and writes the "
            "tables of other schemas",
            f"GRANT {', '.join(missing)} TO {probe.user};",
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
