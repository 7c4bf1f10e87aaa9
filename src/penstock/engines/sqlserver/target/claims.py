"""Sessions of lost workers, which hold penstock's own tables: they are ended.

A worker that hangs while it fills a table keeps its session and the table's lock for as long as its
machine answers. The next batch, or the end of a load, then waits for that lock in vain. Only tables
of schema wirekite are looked at, and only sessions of the same login. A batch fills its tables in
one job, so a worker that holds them when the next batch begins was given up. If it continues, it
finds its connection lost, and its rows are not there. KILL needs a right of the server.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.reading.statements import end_session
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted
from penstock.model import PenstockError
from penstock.ports.target import SCHEMA

LOCK_WAIT_S = 10
"""Seconds that a table of our own is waited for before its holders are ended."""
LOCK_NOT_GRANTED = 1222
HOLDERS = (
    "SELECT DISTINCT CONVERT(int, l.request_session_id) AS session_id FROM sys.dm_tran_locks AS l "
    "JOIN sys.dm_exec_sessions AS s ON s.session_id = l.request_session_id "
    "WHERE l.resource_type = N'OBJECT' AND l.request_status = N'GRANT' "
    "AND l.resource_associated_entity_id = OBJECT_ID(?, N'U') "
    "AND l.request_session_id <> @@SPID AND s.login_name = SUSER_SNAME()"
)

logger = structlog.get_logger(__name__)


def is_lock_timeout(error: PenstockError) -> bool:
    """Return whether a statement waited for a lock in vain."""
    return error.fields.get("errno") == LOCK_NOT_GRANTED


def end_holders(connection: Connection, names: Iterable[str]) -> None:
    """End the sessions of this login that hold tables of schema wirekite.

    Call it outside of a transaction, after the tables were waited for in vain. Raises
    StatementInterrupted with the statements to run if the user may not end sessions.
    """
    for name in sorted(names):
        held: list[int] = []
        try:
            rows = connection.execute(HOLDERS, quote(SCHEMA, name))
            held = [int(number) for (number,) in rows]
            for number in held:
                logger.warning("the session of a lost worker is ended", table=name, session=number)
                _end(connection, number)
        except PrivilegeMissing as error:
            kill = " ".join(f"KILL {number};" for number in held)
            raise StatementInterrupted(
                f"another session holds {quote(SCHEMA, name)}, and the user may not end it: "
                f"{error.message}",
                hint="Stop the worker that hangs. "
                + (f"Or run at the target: {kill} " if kill else "")
                + "So that penstock can do it, run at the target: GRANT ALTER ANY CONNECTION, VIEW "
                "SERVER STATE TO [LOGIN];",
            ) from error


def drop_held(connection: Connection, name: str) -> None:
    """Drop a table of schema wirekite; end the session of a worker that hangs while it fills it."""
    drop = f"DROP TABLE IF EXISTS {quote(SCHEMA, name)}"
    try:
        connection.run(drop)
    except StatementInterrupted as error:
        if not is_lock_timeout(error):
            raise
        end_holders(connection, [name])
        connection.run(drop)


def _end(connection: Connection, number: int) -> None:
    try:
        connection.run(end_session(number))
    except StatementFailed as error:
        logger.info("the session had ended", session=number, said=error.message)
