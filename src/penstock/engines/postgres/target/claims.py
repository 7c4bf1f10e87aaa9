"""Sessions of workers that copy a chunk or fill a merge table: those that hang are terminated.

A worker that hangs keeps its session and the session's locks for as long as its machine's kernel
answers: no limit of the server ends a COPY that waits for rows. The next worker does not wait,
but terminates that session; a role may always end its own sessions. The old worker finds its
connection lost when it continues, and nothing of the open transaction is in the target.

Sessions of another pipeline are never terminated. Those at a chunk hold an advisory lock whose
key comes from the name of the plan, which is random. Those of changes hold a lock on a merge
table: a database's merge tables belong to one change log, which `progress.bind_log` checks
before anything is staged, and of logs that instances share each table belongs to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import psycopg
import structlog

from penstock.model import TableName
from penstock.ports.bulk import ChunkTask

logger = structlog.get_logger(__name__)

WORKER_NAME = "penstock worker"  # of the sessions that fill merge tables
END_TIMEOUT_MS = 10_000

# Shared, so that every session at a chunk can be found by it, and none waits for another here.
CLAIM = "select pg_advisory_xact_lock_shared(key) from unnest(%s::int8[]) as key"
# Only those that the session may end: the role may have been changed by the URL's own options.
_ENDED = """
    select count(*) filter (where pg_terminate_backend(pid, %(timeout_ms)s))
      from (select distinct a.pid
              from pg_locks as l
              join pg_database as d on d.oid = l.database and d.datname = current_database()
              join pg_stat_activity as a on a.pid = l.pid
             where a.pid <> pg_backend_pid()
               and a.usename = session_user
               and pg_has_role(a.usesysid, 'usage')
               and {condition}) as held
"""
END_CLAIMING = _ENDED.format(
    condition="""l.locktype = 'advisory' and l.objsubid = 1
               and (l.classid::int8 << 32) | l.objid::int8 = any(%(keys)s)"""
)
# A pool in between may add to the name.
END_SENDING = _ENDED.format(
    condition="""l.locktype = 'relation' and starts_with(a.application_name, %(name)s)
               and l.relation in (select c.oid
                                    from pg_class as c
                                   where c.relnamespace = 'wirekite'::regnamespace
                                     and c.relname = any(%(tables)s))"""
)


def claim_chunk(connection: psycopg.Connection, task: ChunkTask) -> None:
    """Lock the chunk and its plan, so that the transaction can be found. Call this first in it.

    An earlier session of the same chunk is terminated if an executor that had the chunk was lost.
    Otherwise it is still working, and will commit.
    """
    connection.execute(CLAIM, ([_key(task.claim), _key(task.plan)],))
    if task.repeated:
        _end_claiming(connection, [task.claim], task.table)


def end_copies(connection: psycopg.Connection, plans: Collection[str], table: TableName) -> None:
    """Terminate the sessions that still copy chunks of these plans, given by name."""
    if plans:
        _end_claiming(connection, plans, table)


def end_workers(connection: psycopg.Connection, merge_tables: Iterable[str]) -> None:
    """End the workers that still fill these merge tables. Call this before a batch is staged there.

    They belong to an attempt or a run that was given up, because a batch fills its tables in a
    single job.
    """
    parameters = {"tables": list(merge_tables), "name": WORKER_NAME, "timeout_ms": END_TIMEOUT_MS}
    count = _count(connection, END_SENDING, parameters)
    if count:
        logger.warning("sessions of lost workers are ended", sessions=count)


def _end_claiming(connection: psycopg.Connection, what: Iterable[str], table: TableName) -> None:
    parameters = {"keys": [_key(text) for text in what], "timeout_ms": END_TIMEOUT_MS}
    count = _count(connection, END_CLAIMING, parameters)
    if count:
        logger.warning("the session of a lost executor is ended", table=str(table), sessions=count)


def _count(connection: psycopg.Connection, query: str, parameters: dict[str, object]) -> int:
    found = connection.execute(query, parameters).fetchone()
    assert found is not None, "count(*) has a row"
    return int(found[0])


def _key(text: str) -> int:
    """Return the key of an advisory lock: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
