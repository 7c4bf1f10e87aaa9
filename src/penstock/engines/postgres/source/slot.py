"""The publication and the slot: made once, in this order, and never silently made again.

Every condition that would lose changes is an error with the SQL to type. Reading goes through the
replication connection itself, so that what is seen is the server that will stream. Not here: the
stream (`stream.py`), which tables belong to the pipeline (`catalog.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire import quoted_name
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.client import ReplicationConnection, Row, open_replication
from penstock.host.errors import StatementFailed
from penstock.host.faults import declare, point
from penstock.model import LOAD_AGAIN, PenstockError, TableName

logger = structlog.get_logger()
APPLICATION_NAME = "penstock"
BLOCKERS_AFTER_S = 2.0
STATEMENT_LENGTH_MAX = 200

declare("slot.create.before", "slot.create.after", "slot.snapshot.before", "slot.snapshot.after")


class SlotMissing(PenstockError):
    """The slot that held our position is gone: changes since then are lost."""

    code = "PG50"


class SlotLost(PenstockError):
    """The server has invalidated the slot: changes that were not read yet are gone."""

    code = "PG51"


class SlotUnfit(PenstockError):
    """A slot of this name exists, but penstock cannot use it."""

    code = "PG52"


class SlotInUse(PenstockError):
    """Another process is reading from the slot."""

    code = "PG53"


class PositionGone(PenstockError):
    """The slot is further than the log: changes in between were sent to another reader."""

    code = "PG54"


class PositionAhead(PenstockError):
    """The log is ahead of the server, which was replaced by an older copy."""

    code = "PG55"


class PublicationMissing(PenstockError):
    """The publication does not exist in this database."""

    code = "PG58"


class PublicationUnfit(PenstockError):
    """The publication leaves out tables or operations that the pipeline needs."""

    code = "PG59"


class SlotNameInvalid(PenstockError):
    """PostgreSQL allows lower-case letters, digits and underscores, at most 63."""

    code = "PG60"


# The server no longer has what lies behind the log's end.
CHANGES_GONE = (SlotMissing, SlotLost, PositionGone)

# Its walwriter has it on disk after 0.2 s by default.
LOGGED_WAIT_S = 2.0
LOGGED_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """Row of pg_replication_slots, as far as the server's version has its columns. Positions are
    LSNs.
    """

    name: str
    plugin: str
    slot_type: str
    database: str
    active_pid: int
    confirmed_flush: int
    restart: int
    wal_status: str
    two_phase: bool
    conflicting: bool
    invalidation_reason: str

    @property
    def is_whole(self) -> bool:
        """Return whether the server still has all the WAL that it keeps for the slot."""
        return not (self.wal_status == "lost" or self.conflicting or self.invalidation_reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSlot:
    """New slot. It sends the transactions committed at or after its position, and no others.

    snapshot_id: lives until the next command on the connection that created the slot; empty if none
    was requested.
    """

    name: str
    position: int
    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A transaction that the creation of a slot waits for. pid: 0 for a prepared transaction."""

    pid: int
    what: str
    sql: str


# -- looking -----------------------------------------------------------------------------------


def read_slot(connection: ReplicationConnection, name: str) -> SlotState | None:
    """Return the slot's state, or None when there is none of this name."""
    rows = connection.query(
        f"select * from pg_replication_slots where slot_name = {literal(name)}",
        doing=f"looking at slot {name}",
    )
    return _slot_state(rows[0]) if rows else None


def _slot_state(row: Row) -> SlotState:
    return SlotState(
        name=row["slot_name"] or "",
        plugin=row["plugin"] or "",
        slot_type=row["slot_type"] or "",
        database=row["database"] or "",
        active_pid=int(row["active_pid"] or 0),
        confirmed_flush=_position(row["confirmed_flush_lsn"]),
        restart=_position(row["restart_lsn"]),
        wal_status=row.get("wal_status") or "",
        two_phase=row.get("two_phase") == "t",
        conflicting=row.get("conflicting") == "t",
        invalidation_reason=row.get("invalidation_reason") or "",
    )


def _position(text: str | None) -> int:
    return Lsn.parse(text).ordinal if text else 0


def check_slot(
    state: SlotState | None, name: str, *, database: str, position: int, plugin: str = "pgoutput"
) -> None:
    """Check that the stream can continue from position (0: from the slot's). Pure.

    Raises SlotMissing, SlotUnfit, SlotLost or PositionGone, each with the SQL to type.
    """
    if state is None:
        raise SlotMissing(
            f"replication slot {name} does not exist, but the log goes on at {Lsn(position)}"
            if position
            else f"replication slot {name} does not exist",
            hint=f"It was dropped: changes since then are gone; {LOAD_AGAIN}",
        )
    own = "Give this pipeline a slot and a publication of its own, in [changeExtractor] "
    own += "replicationSlot and publication"
    if state.slot_type != "logical" or state.plugin != plugin or state.database != database:
        raise SlotUnfit(
            f"slot {name} is {state.slot_type}, plugin {state.plugin or 'none'}, database "
            f"{state.database or 'none'}; needed: logical, {plugin}, {database}",
            hint=f"{own}, and {LOAD_AGAIN}",
        )
    if state.two_phase:
        raise SlotUnfit(
            f"slot {name} is made for two-phase commit, which penstock does not read",
            hint=f"{own}, and {LOAD_AGAIN}",
        )
    if not state.is_whole:
        reason = state.invalidation_reason or state.wal_status
        raise SlotLost(
            f"slot {name} was invalidated by the server ({reason}): changes are gone",
            hint="Give the server more room (alter system set max_slot_wal_keep_size = '50GB'; "
            f"select pg_reload_conf();), and {LOAD_AGAIN}",
            reason=reason,
        )
    if position and state.confirmed_flush > position:
        raise PositionGone(
            f"slot {name} is at {Lsn(state.confirmed_flush)}, the log ends at "
            f"{Lsn(position)}: the changes between were given to another reader",
            hint=f"Let nothing else read from this slot, and {LOAD_AGAIN}",
            expected=str(Lsn(position)),
            actual=str(Lsn(state.confirmed_flush)),
        )


def check_not_ahead(connection: ReplicationConnection, position: int) -> None:
    """Refuse a server whose WAL ends before the log's position. Raises PositionAhead."""
    row = connection.query(
        "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()"
        " else pg_current_wal_flush_lsn() end as lsn",
        doing="reading the server's position",
    )[0]
    end = _position(row["lsn"])
    if position > end:
        raise PositionAhead(
            f"the log has changes up to {Lsn(position)}, the server's WAL ends at {Lsn(end)}: it "
            "was put back from an older copy",
            hint="What the target has may never have happened on this server: put the newer one "
            f"back, or {LOAD_AGAIN}",
            expected=str(Lsn(position)),
            actual=str(Lsn(end)),
        )


# -- publication -------------------------------------------------------------------------------

PUBLICATION = """
    select pubinsert and pubupdate and pubdelete and pubtruncate as all_operations,
           pubviaroot,
           puballtables
      from pg_publication
     where pubname = {name}
"""
PUBLISHED = """
    select schemaname, tablename
      from pg_publication_tables
     where pubname = {name}
"""


def flushed_position(connection: ReplicationConnection) -> int:
    """Return the end of the server's WAL on disk; 0 on a standby."""
    row = connection.query(
        "select case when pg_is_in_recovery() then '0/0'"
        " else pg_current_wal_flush_lsn() end as lsn",
        doing="reading the server's position",
    )[0]
    return _position(row["lsn"])


def log_running_transactions(connection: ReplicationConnection) -> bool:
    """Make a primary write the running transactions into its WAL, and wait until it is on its
    disk.

    A slot's restart_lsn can move only to such a record, and by default the server writes one
    every 15 seconds at most. Returns False if it is not granted or a version before 16 has no
    function for it: then restart_lsn moves later. Source: PostgreSQL manual, "System
    Administration Functions".
    """
    if connection.server_version < 16:
        return False
    doing = "logging the running transactions"
    row = connection.query(
        "select has_function_privilege('pg_log_standby_snapshot()', 'execute') as granted",
        doing=doing,
    )[0]
    if row["granted"] != "t":
        return False
    row = connection.query("select pg_log_standby_snapshot() as lsn", doing=doing)[0]
    written = _position(row["lsn"])
    deadline_s = time.monotonic() + LOGGED_WAIT_S
    while (is_late := flushed_position(connection) < written) and time.monotonic() < deadline_s:
        time.sleep(LOGGED_LOOK_S)
    return not is_late


def check_publication(connection: ReplicationConnection, name: str) -> None:
    """Raise PublicationMissing if the publication does not exist now.

    Called before each start of the stream, because PostgreSQL 18 continues without a missing
    publication. It only warns, and the rows are lost.
    """
    rows = connection.query(
        PUBLICATION.format(name=literal(name)), doing=f"looking at publication {name}"
    )
    if not rows:
        raise PublicationMissing(
            f"publication {name} does not exist",
            hint=f"If it was dropped while the slot was in use, changes may be missing: load "
            f"again. For a new pipeline: create publication {quote(name)} for table only ... with "
            "(publish_via_partition_root = true);",
        )


def list_published(tables: Iterable[TableName]) -> str:
    """Return the tables as a publication's statement lists them, each without the tables that
    inherit from it.

    Partitions are nevertheless included with their root.
    """
    return ", ".join(f"only {quote(*table)}" for table in tables)


def ensure_publication(
    connection: psycopg.Connection, name: str, tables: Sequence[TableName]
) -> bool:
    """Create the publication if it is missing; return whether it was created.

    An existing one must publish every operation and all of `tables`; more tables do no harm. Raises
    PublicationUnfit with the SQL that fixes it.
    """
    with server_errors(f"looking at publication {name}"):
        found = connection.execute(PUBLICATION.format(name=literal(name))).fetchone()
    if found is None:
        if not tables:
            raise PublicationUnfit(f"publication {name} would hold no table")
        statement = (
            f"create publication {quote(name)} for table {list_published(tables)}"
            " with (publish = 'insert, update, delete, truncate',"
            " publish_via_partition_root = true)"
        )
        with server_errors(f"making publication {name}"):
            connection.execute(statement.encode())
        return True
    if not found[0] or not found[1]:
        raise PublicationUnfit(
            f"publication {name} does not publish every operation by the root of partitioned "
            "tables",
            hint=f"alter publication {quote(name)} set (publish = 'insert, update, delete, "
            "truncate', publish_via_partition_root = true);",
        )
    with server_errors(f"looking at publication {name}"):
        rows = connection.execute(PUBLISHED.format(name=literal(name))).fetchall()
    missing = [table for table in tables if tuple(table) not in {tuple(row) for row in rows}]
    if missing:
        raise PublicationUnfit(
            f"publication {name} lacks {len(missing)} of the pipeline's tables: "
            f"{', '.join(map(str, missing))}",
            hint=f"alter publication {quote(name)} add table {list_published(missing)};",
        )
    return False


# -- making and dropping a slot ----------------------------------------------------------------

BLOCKERS = f"""
    select pid,
           format('process %s, %s of %s in database %s since %s: %s', pid, state, usename, datname,
                  date_trunc('second', xact_start),
                  left(regexp_replace(query, '\\s+', ' ', 'g'), {STATEMENT_LENGTH_MAX})),
           format('select pg_terminate_backend(%s);', pid)
      from pg_stat_activity
     where backend_xid is not null
       and pid <> pg_backend_pid()
     union all
    select 0,
           format('prepared transaction of %s in database %s since %s', owner, database,
                  date_trunc('second', prepared)),
           format('rollback prepared %L;', gid)
      from pg_prepared_xacts
     order by 1
"""

Watch = Callable[[float, list[Blocker]], None]


def blockers(url: str) -> list[Blocker]:
    """Return the transactions that delay the creation of a slot, in all databases of the server."""
    with (
        connect(url, application_name=f"{APPLICATION_NAME} slot") as connection,
        server_errors("looking for open transactions"),
    ):
        rows = connection.execute(BLOCKERS).fetchall()
    return [Blocker(pid=pid, what=what, sql=statement) for pid, what, statement in rows]


def create_slot(
    connection: ReplicationConnection,
    url: str,
    name: str,
    *,
    snapshot: bool,
    temporary: bool = False,
    on_blocked: Watch | None = None,
) -> CreatedSlot:
    """Make the slot; the publication must be there already.

    Waits for every transaction that runs now. on_blocked: called every BLOCKERS_AFTER_S with the
    seconds waited and the transactions that are waited for, and without any once the wait is over;
    an exception in it gives up. snapshot: export one, which lives until the next command on this
    connection.
    """
    if not re.fullmatch(r"[a-z0-9_]{1,63}", name):
        raise SlotNameInvalid(
            f"not a name for a replication slot: {name!r}",
            hint="Use lower-case letters, digits and underscores, at most 63.",
        )
    word = "export" if snapshot else "nothing"
    if connection.server_version >= 15:
        choice = f"(SNAPSHOT '{word}')"
    else:
        choice = "EXPORT_SNAPSHOT" if snapshot else "NOEXPORT_SNAPSHOT"
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    reported = 0.0

    def on_wait(seconds: float) -> None:
        nonlocal reported
        if on_blocked is not None and seconds - reported >= BLOCKERS_AFTER_S:
            reported = seconds
            on_blocked(seconds, blockers(url))

    point("slot.create.before")
    row = connection.query(
        f"CREATE_REPLICATION_SLOT {quoted_name(name)} {kind} pgoutput {choice}",
        doing=f"making slot {name}",
        on_wait=on_wait,
    )[0]
    if on_blocked is not None and reported:
        on_blocked(0.0, [])
    point("slot.create.after")
    created = CreatedSlot(
        name=name,
        position=_position(row["consistent_point"]),
        snapshot_id=row["snapshot_name"] or "",
    )
    logger.info("slot made", slot=name, position=str(Lsn(created.position)), temporary=temporary)
    return created


def drop_slot(connection: ReplicationConnection, name: str) -> bool:
    """Drop the slot, after waiting for its reader to end; return False if there was no slot."""
    try:
        connection.query(
            f"DROP_REPLICATION_SLOT {quoted_name(name)} WAIT", doing=f"dropping slot {name}"
        )
    except StatementFailed as error:
        if error.fields.get("sqlstate") == "42704":
            return False
        raise
    return True


# -- the consistent point ----------------------------------------------------------------------


class ConsistentPoint:
    """A position and the snapshot that shows the database exactly there.

    The snapshot lives as long as this object is open: a transaction of its own imported the
    slot's snapshot, exported it again and stays open. It holds back vacuum on the source.
    """

    def __init__(self, position: int, snapshot_id: str, keeper: psycopg.Connection) -> None:
        """Take the keeper's connection, its transaction open."""
        self.position = position
        self.snapshot_id = snapshot_id
        self.keeper_pid = keeper.info.backend_pid
        self._keeper = keeper

    def ping(self) -> None:
        """Raise ConnectionLost when the keeper, and with it the snapshot, is gone."""
        with server_errors("keeping the snapshot"):
            self._keeper.execute("select 1")

    def close(self) -> None:
        """Release the snapshot."""
        with suppress(psycopg.Error):
            self._keeper.rollback()
        self._keeper.close()


@contextmanager
def consistent_point(
    url: str, slot: str, *, temporary: bool = False, on_blocked: Watch | None = None
) -> Iterator[ConsistentPoint]:
    """Create the slot and hold its snapshot for a with block.

    The slot stays afterwards unless it is temporary. A slot whose snapshot could not be taken is
    dropped. Raises the errors of `create_slot`.
    """
    with open_replication(url, application_name=f"{APPLICATION_NAME} slot") as connection:
        created = create_slot(
            connection, url, slot, snapshot=True, temporary=temporary, on_blocked=on_blocked
        )
        try:
            point("slot.snapshot.before")
            kept = _keep_snapshot(url, created)
            point("slot.snapshot.after")
        except BaseException:
            if not temporary:
                drop_slot(connection, slot)
            raise
        try:
            if not temporary:
                connection.close()  # the snapshot is the keeper's now
            yield kept
        finally:
            kept.close()


def _keep_snapshot(url: str, created: CreatedSlot) -> ConsistentPoint:
    keeper = connect(
        url,
        application_name=f"{APPLICATION_NAME} snapshot",
        autocommit=True,
        options=EXACT_TEXT_SETTINGS,
    )
    try:
        with server_errors("keeping the slot's snapshot"):
            keeper.execute("begin isolation level repeatable read read only")
            keeper.execute(f"set transaction snapshot {literal(created.snapshot_id)}".encode())
            row = keeper.execute("select pg_export_snapshot()").fetchone()
        if row is None:
            raise StatementFailed("pg_export_snapshot() gave no row")
    except BaseException:
        keeper.close()
        raise
    return ConsistentPoint(created.position, row[0], keeper)


def start_when_free(
    start: Callable[[], None], read: Callable[[], SlotState | None], *, name: str, wait_s: float
) -> None:
    """Call start until the slot is free, for at most wait_s. Raises SlotInUse with the PID.

    start raises StatementInterrupted with SQLSTATE 55006 while another process has the slot: a
    reader whose connection broke holds it until the server notices.
    """
    deadline = time.monotonic() + wait_s
    pause_s = 0.1
    while True:
        try:
            start()
        except PenstockError as error:
            if error.fields.get("sqlstate") != "55006":
                raise
            if time.monotonic() >= deadline:
                state = read()
                pid = state.active_pid if state is not None else 0
                raise SlotInUse(
                    f"slot {name} is read by server process {pid} since more than {wait_s:g} s",
                    hint="Stop the other reader, or end its session: "
                    f"select pg_terminate_backend({pid});",
                    pid=pid,
                ) from error
        else:
            return
        time.sleep(min(pause_s, max(deadline - time.monotonic(), 0.0)))
        pause_s = min(pause_s * 2, 2.0)
