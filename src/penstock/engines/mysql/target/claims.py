"""Named locks by which the sessions that work on a chunk, fill a merge table or alter are found.

A server keeps the session of a machine that has vanished, or of a worker that hangs, and its locks
for as long as a session may pause between two rows. A worker that takes over does not wait for
that: an account may always end its own sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pymysql
import structlog

from penstock.engines.mysql.connect import Connection, rows, run, value
from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError
from penstock.ports.bulk import ChunkTask

logger = structlog.get_logger(__name__)


def claim(connection: Connection, task: ChunkTask) -> None:
    """Hold the chunk's lock in this session, outside a transaction.

    The session of an attempt that Spark has given up is ended; a working session keeps the lock.
    """
    name = f"penstock {task.claim}"
    if task.repeated:
        holder = value(connection, "select is_used_lock(%s)", (name,), doing=task.doing)
        if holder is not None and int(holder) != connection.thread_id():
            logger.warning("the session of a lost executor is ended", table=str(task.table))
            _end(connection, int(holder))
    run(connection, "do release_all_locks()", doing=task.doing)
    run(connection, "do get_lock(%s, 0)", (name,), doing=task.doing)


def claim_staging(connection: Connection, staging: str) -> None:
    """Make this session findable by the merge table that it will fill; call before filling it.

    The lock has the session's id in its name, since several sessions fill a table. It is held
    until the next claim.
    """
    run(
        connection,
        "do release_all_locks(), get_lock(concat(%s, connection_id()), 0)",
        (_staging_name(staging),),
        doing=f"staging into {staging}",
    )


def end_workers(connection: Connection, staging: str) -> None:
    """End the sessions of given-up tasks, which fill a merge table or were the last to fill it.

    Call this after waiting for them in vain. A worker whose idle session is ended opens another.
    """
    held = rows(
        connection,
        "select id from information_schema.processlist where is_used_lock(concat(%s, id)) = id",
        (_staging_name(staging),),
        doing=f"looking for workers at {staging}",
    )
    for row in held:
        logger.warning("the session of a lost worker is ended", merge_table=staging)
        _end(connection, int(row["id"]))


@contextmanager
def alone(connection: Connection, log_id: str, *, wait_s: int) -> Iterator[None]:
    """Hold the lock of the session that alters the target's tables, outside a transaction.

    DDL and what belongs to it is committed statement by statement, and the last statement of a
    loader that was killed may still run, or begin late. So the next one waits until that session
    has ended, and ends it after wait_s seconds. Raises StatementInterrupted if this is in vain.
    """
    doing = "waiting for another session that alters tables"
    name = f"penstock alter {hashlib.sha256(log_id.encode()).hexdigest()[:32]}"
    take, arguments = "select get_lock(%s, %s)", (name, wait_s)
    if not value(connection, take, arguments, doing=doing):
        holder = value(connection, "select is_used_lock(%s)", (name,), doing=doing)
        if holder is not None:
            logger.warning("the session of a lost loader is ended", session=int(holder))
            _end(connection, int(holder))
        if not value(connection, take, arguments, doing=doing):
            raise StatementInterrupted(
                f"another session alters tables of the target, and does not end: {holder}",
                hint=f"Run at the target: kill {holder};",
            )
    try:
        yield
    finally:
        with suppress(PenstockError):  # the lock goes with a connection that is lost
            run(connection, "do release_lock(%s)", (name,), doing=doing)


def _end(connection: Connection, session: int) -> None:
    with suppress(pymysql.err.OperationalError):  # it has just ended
        connection.query(f"kill connection {session}")


def _staging_name(staging: str) -> str:
    """Return the lock's name without the session's id: at most 42 characters of 64."""
    return f"penstock {hashlib.sha256(staging.encode()).hexdigest()[:32]} "
