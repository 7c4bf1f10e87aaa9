"""Tables that the bulk load begins and finishes: emptied, marked, and complete.

Not here: the marks in `wirekite.bulk_table` (`penstock.sql.state_store`).
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from penstock.engines.postgres.connect import commit_durably
from penstock.engines.postgres.target.bulk_checks import check_no_cascade
from penstock.engines.postgres.target.claims import end_copies
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.target import read_own_rows
from penstock.model import TableName
from penstock.ports.bulk import TablePlan, chunks_missing


def is_empty(connection: psycopg.Connection, target: TableName) -> bool:
    """Return whether a target table has no row."""
    row = connection.execute(
        f"select exists (select from {read_own_rows(connection, target)})"
    ).fetchone()
    return row is not None and not row[0]


def begin_afresh(connection: psycopg.Connection, plans: Iterable[TablePlan]) -> None:
    """Empty the target tables of these plans and put them under their new plans, all at once.

    Sessions that still write chunks of their older plans are ended. Emptying is by TRUNCATE, or by
    DELETE where a foreign key of another table forbids that.
    """
    plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
    if not plans:
        return
    progress = PostgresProgress(connection)
    with connection.transaction():
        commit_durably(connection, once=True)
        for plan in plans:
            end_copies(connection, plan.given_up, plan.source)
            progress.begin_mark(plan.source, plan.name, plan.position)
        for plan in plans:
            progress.forget_chunks(plan.source)
        filled = [plan.target for plan in plans if not is_empty(connection, plan.target)]
        if filled:
            _empty(connection, filled)


def _empty(connection: psycopg.Connection, tables: list[TableName]) -> None:
    own = {table: read_own_rows(connection, table) for table in tables}
    try:
        with connection.transaction():
            connection.execute(f"truncate {', '.join(own.values())}")
    except psycopg.errors.FeatureNotSupported:
        # Of tables that foreign keys refer to; no cascade may take the rows that refer with it.
        try:
            with connection.transaction():
                connection.execute("set local session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            check_no_cascade(connection, tables)
        for table in tables:
            connection.execute(f"delete from {own[table]}")


def finish_table(connection: psycopg.Connection, plan: TablePlan) -> int:
    """Record that all rows of a table are there; returns their number.

    The commit is a synchronous one, behind those of all chunks, which were not: so once it is
    durable they all are. Sessions that are still at one are ended, as they would hold the mark.
    Raises ChunksMissing when the target does not have every chunk.
    """
    progress = PostgresProgress(connection)
    with connection.transaction():
        commit_durably(connection, once=True)
        done = progress.finished_chunks(plan.source)
        missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
        rows = sum(done.values())
        if not missing:
            end_copies(connection, [plan.name], plan.source)
        is_marked = progress.finish_mark(plan.source, plan.name, rows)
        if missing or not is_marked:
            raise chunks_missing(plan, missing, is_marked=is_marked)
    return rows
