"""The bulk load's ledger: what is planned, at which position, and whose rows the target holds.

Two halves that are only believed together. `state/bulk.json`, replaced whole, holds the plan: each
table's chunks, its consistent point and the name of the plan. The target holds what was done: a DL
row per chunk, committed with the chunk's rows, and in `wirekite.bulk_table` the name of the plan
that a table's rows came from. A chunk's transaction checks that name first, so that a task left
over from a killed process cannot add rows of an old plan to a table that was begun afresh.
Not here: running anything (`bulk.py`, `chunk.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import psycopg

from penstock.engines.postgres.connect import commit_durably
from penstock.engines.postgres.target import progress
from penstock.engines.postgres.target.bulk_checks import check_no_cascade
from penstock.engines.postgres.target.target import read_own_rows
from penstock.host import files
from penstock.model import LOAD_AGAIN, BinlogPosition, Lsn, PenstockError, TableName
from penstock.sql.read_plan import Way

STATE_FILE = "bulk.json"
FORMAT_VERSION = 1

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
# Held to the end of a chunk's transaction: whoever begins the table afresh waits for it.
CHECK_PLAN = """
    select 1
      from wirekite.bulk_table
     where source_schema = %(schema)s
       and source_name = %(name)s
       and plan = %(plan)s
       and finish_time is null
       for share
"""


class LedgerUnreadable(PenstockError):
    """state/bulk.json is not what penstock wrote."""

    code = "LD42"


class TargetHoldsRows(PenstockError):
    """A target table holds rows that this pipeline did not load."""

    code = "LD43"


class ChunksMissing(PenstockError):
    """A table cannot be called finished: chunks of its plan are not recorded in the target."""

    code = "LD44"


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a source table that is copied at once.

    relation: the storage relation it is read from, a leaf for a partitioned table. copy_out: the
    COPY TO STDOUT of its rows, with the columns of its plan in order and in the plan's format.
    size_bytes, row_count: estimates.
    """

    number: int
    relation: TableName
    copy_out: str
    size_bytes: int = 0
    row_count: int = 0


class TablePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one table is loaded. Also what bulk.json holds of it.

    name: of the plan, random. given_up: names of earlier plans whose rows the target may hold.
    position: the consistent point as text; the rows are the state before it, unless `settled` says
    up to where changes have to be applied until they are some one state. snapshot_id: an
    exported snapshot of the source at that point; snapshot_text: what it holds. columns: those
    that are copied, in order; binary: in COPY's binary format; way: how rows go between
    engines. has_keys: its keys, indexes and statistics were made by an earlier load.
    """

    source: TableName
    target: TableName
    columns: tuple[str, ...]
    binary: bool
    position: str
    snapshot_id: str
    snapshot_text: str
    chunks: tuple[Chunk, ...]
    name: str = ""
    given_up: tuple[str, ...] = ()
    way: Way | None = None
    settled: str = ""
    has_keys: bool = False

    def renamed(self, earlier: TablePlan | None) -> TablePlan:
        """This plan under a new name, remembering those that it replaces."""
        given_up = () if earlier is None else (*earlier.given_up, earlier.name)
        return msgspec.structs.replace(self, name=secrets.token_hex(8), given_up=given_up)

    def at(self, snapshot_id: str, snapshot_text: str, settled: str) -> TablePlan:
        """The same plan, read from another snapshot of the same point."""
        return msgspec.structs.replace(
            self, snapshot_id=snapshot_id, snapshot_text=snapshot_text, settled=settled
        )

    @property
    def is_mixed(self) -> bool:
        """Whether rows of several moments may be in the table, until changes are applied."""
        return self.settled not in ("", self.position)


class Ledger(msgspec.Struct, kw_only=True):
    """What bulk.json holds.

    copied: all rows are in the target, nothing has to be read at the source any more. finished:
    keys and indexes are there, too.
    """

    version: int = FORMAT_VERSION
    copied: bool = False
    finished: bool = False
    foreign_keys_done: bool = False
    plans: list[TablePlan] = []

    def plan_of(self, table: TableName) -> TablePlan | None:
        """The plan of a source table, or None."""
        return next((plan for plan in self.plans if plan.source == table), None)

    @property
    def settled_at(self) -> dict[TableName, int]:
        """Where each table whose rows are of several moments is as the source was at one."""
        return {
            plan.source: position_of(plan.settled).ordinal for plan in self.plans if plan.is_mixed
        }

    def reopen(self) -> None:
        """More tables are loaded behind those that are finished, which stay as they are."""
        self.finished = self.copied = False
        self.plans = [msgspec.structs.replace(plan, has_keys=True) for plan in self.plans]

    def put(self, plans: Iterable[TablePlan]) -> None:
        """Add plans, replacing those of the same tables."""
        new = {plan.source: plan for plan in plans}
        kept = [plan for plan in self.plans if plan.source not in new]
        self.plans = kept + list(new.values())


def read_ledger(state_directory: Path) -> Ledger:
    """Read bulk.json; an empty ledger when there is none. Raises LedgerUnreadable."""
    path = state_directory / STATE_FILE
    try:
        ledger = msgspec.json.decode(path.read_bytes(), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except (OSError, msgspec.MsgspecError) as error:
        raise LedgerUnreadable(
            f"{path} cannot be read: {error}",
            hint=f"Put the file back from a copy, or {LOAD_AGAIN}",
        ) from error
    if ledger.version != FORMAT_VERSION:
        raise LedgerUnreadable(
            f"{path} has format {ledger.version}, this penstock reads {FORMAT_VERSION}",
            hint="Go on with the version of penstock that began this load.",
        )
    return ledger


def write_ledger(state_directory: Path, ledger: Ledger) -> None:
    """Replace bulk.json whole, durably."""
    files.REAL_FILES.make_directory(state_directory)
    data = msgspec.json.format(msgspec.json.encode(ledger), indent=1)
    files.replace(state_directory / STATE_FILE, data + b"\n")


def start_positions(state_directory: Path) -> dict[TableName, int]:
    """Source table to its consistent point as an ordered number.

    The loader leaves out changes with a smaller position: the bulk load's rows have them.
    """
    plans = read_ledger(state_directory).plans
    return {plan.source: position_of(plan.position).ordinal for plan in plans}


def position_of(text: str) -> Lsn | BinlogPosition:
    """A position as a plan has it: of PostgreSQL's log, or of a binlog."""
    return BinlogPosition.parse(text) if ":" in text else Lsn.parse(text)


# --- the target's half ----------------------------------------------------------------------------


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the target says of a table: the plan its rows came from, and how far it got.

    done: chunk number to rows, of the chunks whose rows are in the table.
    """

    plan: str
    position: str
    finished: bool
    row_count: int | None
    done: dict[int, int]


def ensure_marks(connection: psycopg.Connection) -> None:
    """Make the table that marks are kept in; schema `wirekite` must be there."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
        connection.execute(CREATE_TABLE)


def read_marks(connection: psycopg.Connection) -> dict[TableName, Mark]:
    """The marks of all tables, by source name."""
    return {
        (table := TableName(schema, name)): Mark(
            plan=plan,
            position=position,
            row_count=row_count,
            finished=finished,
            done=progress.finished_chunks(connection, table),
        )
        for schema, name, plan, position, row_count, finished in connection.execute(
            READ_MARKS
        ).fetchall()
    }


def is_empty(connection: psycopg.Connection, target: TableName) -> bool:
    """Whether a target table holds no row."""
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

    Waits for chunks of older plans that are still being written. Emptying is by TRUNCATE, or by
    DELETE where a foreign key of another table forbids that.
    """
    plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
    if not plans:
        return
    with connection.transaction():
        commit_durably(connection, once=True)
        for plan in plans:
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
    durable they all are. Raises ChunksMissing when the target does not have every chunk.
    """
    with connection.transaction():
        commit_durably(connection, once=True)
        done = progress.finished_chunks(connection, plan.source)
        missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
        rows = sum(done.values())
        marked = connection.execute(
            FINISH_MARK, {**_keys(plan.source, plan.name), "rows": rows}
        ).rowcount
        if missing or marked != 1:
            raise chunks_missing(plan, missing, is_marked=marked == 1)
    return rows


def chunks_missing(plan: TablePlan, missing: Sequence[int], *, is_marked: bool) -> ChunksMissing:
    """The error for a table that is not complete. is_marked: the target holds this plan of it."""
    return ChunksMissing(
        f"{len(missing)} of {len(plan.chunks)} chunks of {plan.source} are not recorded "
        f"in the target{'' if is_marked else ', which holds another plan of it'}",
        hint="Run the same command again: it goes on with the chunks that are missing.",
        table=str(plan.source),
    )


def _keys(table: TableName, plan: str) -> dict[str, str]:
    return {"schema": table.schema, "name": table.name, "plan": plan}


# --- what to do with a table ----------------------------------------------------------------------


class Step(StrEnum):
    """What a starting load does with a table."""

    REFUSE = "refuse"
    AFRESH = "afresh"
    GO_ON = "go on"
    DONE = "done"


def next_step(
    plan: TablePlan | None, mark: Mark | None, *, empty: bool, made: bool = False
) -> Step:
    """Decide from the two halves of the ledger and the target table itself.

    plan: what bulk.json has; mark: what the target has; empty: whether the target table is;
    made: it was made just now, so that whatever a mark says, its rows are gone.
    """
    if made:
        return Step.AFRESH
    if mark is None or plan is None or mark.plan not in (plan.name, *plan.given_up):
        # Nothing says that rows in it are ours.
        return Step.AFRESH if empty else Step.REFUSE
    if mark.plan != plan.name:
        return Step.AFRESH  # killed between writing bulk.json and emptying the table
    if mark.finished:
        return Step.DONE
    if not mark.done and not empty:
        return Step.AFRESH  # its DL rows were taken away
    return Step.GO_ON


def refused(target: TableName, truncate: str) -> TargetHoldsRows:
    """The error for a target table with rows that are not ours. truncate: SQL that empties it."""
    return TargetHoldsRows(
        f"target table {target} holds rows that this pipeline did not load",
        hint=f"If they may go, run: {truncate}; otherwise leave the table out "
        'of [source] tables, or set mode = "change".',
        table=str(target),
    )
