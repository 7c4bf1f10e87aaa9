"""Who works on a chunk: a lock of its name, by which a later attempt finds the session of before.

A server keeps the session of a machine that has vanished for as long as a source may take its time
between two rows, and with it what the session has locked. Who takes over does not wait for that:
an account may always end its own sessions.
"""

from __future__ import annotations

from contextlib import suppress

import pymysql
import structlog

from penstock.engines.mysql.connect import Connection, run, value
from penstock.ports.bulk import ChunkTask

logger = structlog.get_logger(__name__)


def claim(connection: Connection, task: ChunkTask) -> None:
    """Hold the chunk's lock in this session, outside a transaction.

    The session of an attempt that Spark has given up is ended; one that is at work keeps the lock.
    """
    name = f"penstock {task.claim}"
    if task.repeated:
        holder = value(connection, "select is_used_lock(%s)", (name,), doing=task.doing)
        if holder is not None and int(holder) != connection.thread_id():
            logger.warning("the session of a lost executor is ended", table=str(task.table))
            with suppress(pymysql.err.OperationalError):  # it has just ended by itself
                connection.query(f"kill connection {int(holder)}")
    run(connection, "do release_all_locks()", doing=task.doing)
    run(connection, "do get_lock(%s, 0)", (name,), doing=task.doing)
