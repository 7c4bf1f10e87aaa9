"""Doctor's checks of what the extract process (MY040...) and the loader (PK20) would refuse.

They check what those processes check themselves before their first row, by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from penstock.engines.mysql.connect import Connection
from penstock.engines.mysql.extraction import mysql_identity
from penstock.engines.mysql.log_start import asked_position, has_begun
from penstock.engines.mysql.replica import NotAReplica, ReplicaNotOurs, applying
from penstock.engines.mysql.source.beginning import check_beginning
from penstock.engines.mysql.source.dump_errors import LogPurged, PositionUnfit, ServerBehind
from penstock.engines.mysql.source.unsupported import StartUnfit
from penstock.engines.mysql.target.apply import MySQLTarget
from penstock.engines.mysql.target.shapes import check_shape
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Checks, Examined, Finding, Severity, Side, fix_of
from penstock.ports.config import HandoverMode, Mode, Pipeline
from penstock.ports.handover import read_handover
from penstock.ports.identity import (
    DirectoryOfOtherPipeline,
    DirectoryOfOtherSource,
    check_identity,
    stored_identity,
)
from penstock.ports.target import (
    TargetNotTransactional,
    TargetShapeDiffers,
    TargetTableMissing,
    TriggersWouldFire,
    target_name,
)

APPLY_CHECKS = Checks(Side.TARGET)


@dataclass(frozen=True, slots=True)
class Applying:
    """Task of the loader. tables: the captured ones, as the source has them."""

    examined: Examined
    tables: tuple[TableDefinition, ...]


def _finding_of_target(error: PenstockError, why: str) -> Finding:
    return Finding(
        code="PK20",
        severity=Severity.ERROR,
        side=Side.TARGET,
        what=error.message,
        why=why,
        command=fix_of(error),
    )


@APPLY_CHECKS.check("PK20", "target tables for changes", change_only=True, needs_source=True)
def applied_to(applying: Applying) -> Iterator[Finding]:
    """Check the target's tables: they exist in mode change, have the source's shape, and no other
    pipeline loads them.
    """
    examined = applying.examined
    config = examined.config
    servers = examined.servers()
    assert servers is not None, "the target is MySQL or MariaDB"
    copied = examined.copied()  # those are created
    makes = config.creates_tables
    planned = examined.pipeline.bulk().planned
    with closing(MySQLTarget(config.target.url, config.target.map)) as target:
        for table in applying.tables:
            is_copied = table.name in copied
            try:
                found = target.get_table(target_name(table.name, config.target.map))
                if makes and not is_copied and table.name not in planned:
                    check_shape(table, found, servers)
            except TargetShapeDiffers as error:
                yield _finding_of_target(error, "rows of the source do not fit into it")
            except TargetTableMissing as error:
                if not makes and not is_copied:
                    yield _finding_of_target(
                        error, "mode change applies changes to existing tables; it creates none"
                    )
            except (TargetNotTransactional, TriggersWouldFire) as error:
                yield _finding_of_target(error, "the loader refuses the table at its first change")


EXTRACT_CHECKS = Checks(Side.SOURCE)


@dataclass(frozen=True, slots=True)
class Extracting:
    """Task of the extract process. connection: to the source."""

    pipeline: Pipeline
    connection: Connection


def _finding_of(code: str, error: PenstockError, why: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.ERROR,
        side=Side.SOURCE,
        what=error.message,
        why=why,
        command=fix_of(error),
    )


@EXTRACT_CHECKS.check("MY040", "same source as before", change_only=True)
def same_source(extracting: Extracting) -> Iterator[Finding]:
    """Check that the directory belongs to this pipeline and was filled from a server of
    this kind.
    """
    config = extracting.pipeline.config
    now = mysql_identity(config, str(extracting.connection.server.flavour))
    try:
        check_identity(config, stored_identity(config), now)
    except (DirectoryOfOtherPipeline, DirectoryOfOtherSource) as error:
        why = "positions of one source mean nothing in another; changes would be missed or mixed"
        yield _finding_of("MY040", error, why)


@EXTRACT_CHECKS.check("MY041", "starting position", change_only=True)
def beginning(extracting: Extracting) -> Iterator[Finding]:
    """Check that a transaction begins where binlogFile and binlogPosition say that a new log
    begins.
    """
    config = extracting.pipeline.config
    position = asked_position(config)
    if (
        position is None
        or config.pipeline.mode is Mode.DATA_CHANGE
        or has_begun(extracting.pipeline)
    ):
        return
    try:
        check_beginning(config.source.url, extracting.connection, position)
    except (StartUnfit, LogPurged, ServerBehind, PositionUnfit) as error:
        yield _finding_of("MY041", error, "the change log cannot begin there")


@EXTRACT_CHECKS.check("MY042", "mode pause", change_only=True)
def pausable(extracting: Extracting) -> Iterator[Finding]:
    """Check for a replica, and for the privilege to stop it, until a handover in mode pause is
    finished.
    """
    config = extracting.pipeline.config
    made = read_handover(config)
    pauses = (
        config.pipeline.mode is Mode.DATA_CHANGE and config.pipeline.handover is HandoverMode.PAUSE
    )
    if not pauses or has_begun(extracting.pipeline) or (made is not None and made.position):
        return
    try:
        applying(extracting.connection)
    except (NotAReplica, ReplicaNotOurs) as error:
        yield _finding_of("MY042", error, "the handover is refused")
