"""The target's half of the bulk load's ledger: `wirekite.bulk_table`, tables begun, finished."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from penstock.engines.postgres.connect import commit_durably
from penstock.engines.postgres.target import progress
from penstock.engines.postgres.target.bulk_checks import check_no_cascade
from penstock.engines.postgres.target.claims import end_copies
from penstock.engines.postgres.target.target import read_own_rows
from penstock.model import TableName
from penstock.ports.bulk import Mark, TablePlan, chunks_missing

CREATE_TABLE = """
    create table if not exists wirekite.bulk_table (
        source_schema varchar(63) not null,
        source_name   varchar(63) not null,
        plan          varchar(64) not null,
        position      varchar(256) not null,
        row_count     bigint null,
        start_time    timestamp not null,
        finish_time   timestamp null,
        primary key (source_schema, source_name)
    )
"""
READ_MARKS = """
    select source_schema, source_name, plan, position::text, row_count, finish_time is not null
      from wirekite.bulk_table
"""
WRITE_MARK = """
    insert into wirekite.bulk_table as t
           (source_schema, source_name, plan, position, start_time)
    values (%(schema)s, %(name)s, %(plan)s, %(position)s, clock_timestamp() at time zone 'utc')
        on conflict (source_schema, source_name) do update
       set plan = excluded.plan,
           position = excluded.position,
           row_count = null,
           start_time = excluded.start_time,
           finish_time = null
"""
FINISH_MARK = """
    update wirekite.bulk_table
       set row_count = %(rows)s,
           finish_time = clock_timestamp() at time zone 'utc'
     where source_schema = %(schema)s
       and source_name = %(name)s
       and plan = %(plan)s
"""
# Held to the end of a chunk's transaction: a process that starts the table again waits for it.
CHECK_PLAN = """
    select 1
      from wirekite.bulk_table
     where source_schema = %(schema)s
       and source_name = %(name)s
       and plan = %(plan)s
       and finish_time is null
       for share
"""


def ensure_marks(connection: psycopg.Connection) -> None:
    """Make the table that marks are kept in; schema `wirekite` must be there."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
        connection.execute(CREATE_TABLE)


def read_marks(connection: psycopg.Connection) -> dict[TableName, Mark]:
    """Return the marks of all tables, by source name."""
    done = progress.all_finished_chunks(connection)
    return {
        (table := TableName(schema, name)): Mark(
            plan=plan,
            position=position,
            row_count=row_count,
            finished=finished,
            done=done.get(str(table), {}),
        )
        for schema, name, plan, position, row_count, finished in connection.execute(
            READ_MARKS
        ).fetchall()
    }


def is_empty(connection: psycopg.Connection, target: TableName) -> bool:
    """Return whether a target table has no row."""
    row = connection.execute(
        f"select exists (select from {read_own_rows(connection, target)})"
    ).fetchone()
    return row is not None and not row[0]


def holds_plan(connection: psycopg.Connection, table: TableName, plan: str) -> bool:
    """Inside a chunk's transaction: whether the table still follows this plan, and keep it so."""
    row = connection.execute(CHECK_PLAN, _keys(table, plan)).fetchone()
    return row is not None


def begin_afresh(connection: psycopg.Connection, plans: Iterable[TablePlan]) -> None:
    """Empty the target tables of these plans and put them under their new plans, all at once.

    Sessions that still write chunks of their older plans are ended. Emptying is by TRUNCATE, or by
    DELETE where a foreign key of another table forbids that.
    """
    plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
    if not plans:
        return
    with connection.transaction():
        commit_durably(connection, once=True)
        for plan in plans:
            end_copies(connection, plan.given_up, plan.source)
            connection.execute(
                WRITE_MARK, {**_keys(plan.source, plan.name), "position": plan.position}
            )
        for plan in plans:
            progress.forget_chunks(connection, plan.source)
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
    with connection.transaction():
        commit_durably(connection, once=True)
        done = progress.finished_chunks(connection, plan.source)
        missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
        rows = sum(done.values())
        if not missing:
            end_copies(connection, [plan.name], plan.source)
        marked = connection.execute(
            FINISH_MARK, {**_keys(plan.source, plan.name), "rows": rows}
        ).rowcount
        if missing or marked != 1:
            raise chunks_missing(plan, missing, is_marked=marked == 1)
    return rows


def _keys(table: TableName, plan: str) -> dict[str, str]:
    return {"schema": table.schema, "name": table.name, "plan": plan}
