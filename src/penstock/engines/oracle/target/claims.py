"""Sessions of lost workers, which fill penstock's own tables: they are ended.

A worker that hangs while it fills a merge table keeps its session, and its rows, for as long as its
machine answers. The next batch then waits in vain for the table. So each worker names the table in
the MODULE of its session before it fills it. A batch fills its tables in one job, so a session that
still uses one when the next batch begins belongs to a worker that was given up. If it continues, it
finds its connection lost, and its rows are not there.
"""

from __future__ import annotations

import hashlib

import structlog

from penstock.engines.oracle.connect import Connection
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted
from penstock.model import PenstockError

USED_ELSEWHERE = 54
CLAIM = "BEGIN DBMS_APPLICATION_INFO.SET_MODULE(:module, NULL); END;"
SESSIONS = (
    "SELECT inst_id, sid, serial# FROM gv$session WHERE module = :module"
    " AND username = SYS_CONTEXT('USERENV', 'SESSION_USER') AND status <> 'KILLED'"
)
_NO_SUCH_SESSION = frozenset({30, 31})  # it has ended, or is marked to be ended

logger = structlog.get_logger(__name__)


def module_of(staging: str) -> str:
    """Return the MODULE of the sessions that fill a merge table: at most 48 bytes."""
    return f"penstock {hashlib.sha256(staging.encode()).hexdigest()[:32]}"


def claim_staging(connection: Connection, staging: str) -> None:
    """Make this session findable by the merge table that it will fill; call before filling it."""
    connection.run(CLAIM, module=module_of(staging))


def is_used_elsewhere(error: PenstockError) -> bool:
    """Return whether DDL has waited in vain for other sessions."""
    return error.fields.get("errno") == USED_ELSEWHERE


def end_workers(connection: Connection, staging: str) -> int:
    """End the sessions that fill a merge table, or were the last to fill it; return their number.

    Call this after waiting for them in vain. A worker whose idle session is ended opens another.
    Raises StatementInterrupted with the statements to run if the user may not end sessions.
    """
    kill = ""
    try:
        found = connection.execute(SESSIONS, module=module_of(staging))
        for instance, sid, serial in found:
            kill = f"ALTER SYSTEM KILL SESSION '{sid},{serial},@{instance}' IMMEDIATE"
            logger.warning("the session of a lost worker is ended", table=staging, session=sid)
            _end(connection, kill)
    except PrivilegeMissing as error:
        raise StatementInterrupted(
            f"another session uses merge table {staging}, and the user may not end it: "
            f"{error.message}",
            hint="Stop the worker that hangs. "
            + (f"Or run at the target: {kill}; " if kill else "")
            + "So that penstock can do it, run at the target: GRANT ALTER SYSTEM TO [USER]; GRANT "
            "SELECT ON GV_$SESSION TO [USER];",
        ) from error
    return len(found)


def _end(connection: Connection, kill: str) -> None:
    try:
        connection.run(kill)
    except StatementFailed as error:
        if error.fields.get("errno") not in _NO_SUCH_SESSION:
            raise
        logger.info("the session had ended", said=error.message)
