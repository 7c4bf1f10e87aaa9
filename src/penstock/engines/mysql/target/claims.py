"""Named locks by which the sessions that work on a chunk or fill a merge table are found.

A server keeps the session of a machine that has vanished, or of a worker that hangs, and its locks
for as long as a session may pause between two rows. A worker that takes over does not wait for
that: an account may always end its own sessions.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pymysql
import structlog

from penstock.engines.mysql.connect import Connection, rows, run, value
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


def _end(connection: Connection, session: int) -> None:
    with suppress(pymysql.err.OperationalError):  # it has just ended
        connection.query(f"kill connection {session}")


def _staging_name(staging: str) -> str:
    """Return the lock's name without the session's id: at most 42 characters of 64."""
    return f"penstock {hashlib.sha256(staging.encode()).hexdigest()[:32]} "
