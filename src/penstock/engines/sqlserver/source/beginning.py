"""Find where a new log begins: the source's position, as Wirekite's guide does.

The position is that of `sys.fn_cdc_get_max_lsn()`. If nothing was ever captured, it is the last
commit that the availability group knows, then the last commit in the transaction log, which are
positions only: changes never come from there (reference, section 9). All of them are commit LSNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.engines.sqlserver.errors import CdcDisabled, ChangesLost, PositionAhead
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import Instance, instances_of, lsn_text
from penstock.engines.sqlserver.source.reader import Session, read_newest
from penstock.host.errors import PrivilegeMissing, StatementFailed

AZURE_DATABASE = 5  # EngineEdition

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The source. edition: EngineEdition."""

    name: str
    server: str
    edition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of the source. how: its origin, in words."""

    position: int
    how: str


def read_database(session: Session) -> Database:
    """Return the source. Raises CdcDisabled."""
    ((name, _, is_enabled, server, edition),) = session.execute(statements.DATABASE)
    if not is_enabled:
        raise CdcDisabled(
            f"change data capture is not enabled for the database {name}",
            hint="Run in it, as sysadmin: EXEC sys.sp_cdc_enable_db; "
            "(on Amazon RDS: EXEC msdb.dbo.rds_cdc_enable_db N'DATABASE';)",
        )
    return Database(name=str(name), server=str(server or ""), edition=int(edition))


def present_place(session: Session) -> Place:
    """Return the present position of the source."""
    newest = read_newest(session).position
    if newest:
        return Place(position=newest, how="the newest captured commit")
    rows = _ask(session, statements.HADR_COMMIT)
    if rows and rows[0][0]:
        lsn = SqlServerLsn.of_numeric(int(rows[0][0]))
        return Place(position=lsn.ordinal, how="the last commit of the availability group")
    rows = _ask(session, statements.LOG_COMMIT)
    if rows and rows[0][0]:
        lsn = SqlServerLsn.parse(str(rows[0][0]))
        return Place(position=lsn.ordinal, how="the last commit in the transaction log")
    instances = instances_of(session.execute(statements.INSTANCES))
    start = max((one.start for one in instances), default=0)
    return Place(position=start, how="the start of the newest capture instance")


def given_place(session: Session, text: str, captured: Sequence[Instance]) -> Place:
    """Return the place of startLsn. captured: instances of the captured tables.

    Raises:
        PositionAhead: The server has not captured it yet.
        ChangesLost: A change table begins later. An instance that was created later is refused too,
            because the clean-up job leaves no trace of where it began.
    """
    position = SqlServerLsn.parse(text).ordinal
    newest = read_newest(session).position
    if position > newest + 1:  # the end of a log that has everything, too
        shown = lsn_text(newest) if newest else "nothing yet"
        raise PositionAhead(
            f"startLsn is {lsn_text(position)}, and the server has captured {shown}",
            hint="Name a commit that the server has captured: SELECT sys.fn_cdc_get_max_lsn();",
        )
    last = max(captured, key=lambda one: one.least, default=None)
    if last is not None and last.least > position + 1:
        raise ChangesLost(
            f"startLsn is {lsn_text(position)}, and the change table of {last.table} begins at "
            f"{lsn_text(last.least)}",
            hint=f'Write startLsn = "{lsn_text(last.least)}" or a later one.',
            table=str(last.table),
        )
    return Place(position=position, how="startLsn")


def _ask(session: Session, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a fallback; nothing if the user may not ask or the server lacks it."""
    try:
        return session.execute(sql)
    except (PrivilegeMissing, StatementFailed) as error:
        logger.info("no position from here", reason=error.message)
        return []
