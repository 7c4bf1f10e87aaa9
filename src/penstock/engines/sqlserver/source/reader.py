"""Reader of batches of change tables: which commits, from which instances, over which sessions.

Each instance has a session of its own, so that the server prepares all results at once (reference,
S18). A batch ends between two commits, and is whole only when the loss checks after it have passed:
the clean-up job may run while it is read (section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import structlog

from penstock.codec.sqlserver.lsn import LSN_BYTES
from penstock.engines.sqlserver.connect import is_gone
from penstock.engines.sqlserver.errors import CaptureStopped, PositionAhead, RangeInvalid
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.change_rows import Bytes, Chunk, Ints, Layout, make_chunk
from penstock.engines.sqlserver.source.instances import (
    Book,
    CapturedColumn,
    Instance,
    KnownCommit,
    Range,
    columns_of,
    current_of,
    instances_of,
    lsn_bytes,
    lsn_text,
    number,
)
from penstock.engines.sqlserver.source.merging import Feed, whole_batches
from penstock.engines.sqlserver.source.shapes import Shapes
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted

TRANSACTIONS_MAX = 5000  # of one batch
ROWS_AT_ONCE = 4_096
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

logger = structlog.get_logger(__name__)


class Session(Protocol):
    """Connection, as far as the reader uses it; see `connect.Connection`."""

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    def arrow(self, sql: str, *parameters: Any, rows: int = ...) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Answer of `statements.NEWEST`.

    Attributes:
        position: The newest captured commit; 0 if there is none.
        now_us: The server's clock, microseconds since 1970 UTC.
        zone_us: What its local time is ahead of UTC.
    """

    position: int
    now_us: int
    zone_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Transaction of cdc.lsn_time_mapping. known: as the state file remembers it."""

    position: int
    time_us: int
    id: int
    known: KnownCommit


@dataclass(slots=True, kw_only=True)
class Batch:
    """Commits to read.

    Attributes:
        last: Everything up to this commit was read before.
        end: The last commit of the batch.
        commits: All captured transactions of the batch, in order.
        feeds: Changes of the instances.
        instances: All instances when the batch was begun.
        dropped: Object ids of tables that no longer exist, or that have another name.
        ddl: Statements that altered captured tables, with their LSNs.
    """

    last: int
    end: int
    commits: Sequence[Commit]
    feeds: list[Feed]
    instances: Sequence[Instance]
    dropped: Sequence[int] = ()
    ddl: Sequence[tuple[int, str]] = ()


def read_newest(session: Session) -> Newest:
    """Return the newest captured commit and the server's clock."""
    (((newest, now, zone_minutes)),) = session.execute(statements.NEWEST)
    return Newest(
        position=number(newest), now_us=micros(now), zone_us=int(zone_minutes) * 60_000_000
    )


def micros(moment: datetime) -> int:
    """Return a moment without a zone, or in UTC, as microseconds since 1970."""
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def read_commits(
    session: Session, last: int, end: int, *, count: int, zone_us: int
) -> list[Commit]:
    """Return the first transactions after `last`, up to `end`."""
    rows = session.execute(statements.TRANSACTIONS, count, lsn_bytes(last), lsn_bytes(end))
    return [
        Commit(
            position=number(start),
            time_us=micros(time) - zone_us if time is not None else 0,
            id=int.from_bytes(told or b"") & (2**64 - 1),
            known=known_commit(number(start), time, told),
        )
        for start, time, told in rows
    ]


def known_commit(position: int, ended: object, told: bytes | None) -> KnownCommit:
    """Return a transaction as the state file remembers it. ended: time. told: tran_id."""
    return KnownCommit(lsn=lsn_text(position), ended=str(ended), id=(told or b"").hex())


def check_agent(session: Session) -> None:
    """Raise CaptureStopped if the server says that its Agent, which captures, does not run."""
    try:
        states = statements.agent_states(session.execute(statements.SERVICES))
    except PrivilegeMissing:
        return  # doctor says which right is missing; nothing can be said about the Agent
    if states and statements.AGENT_RUNS not in states:
        raise CaptureStopped(
            "SQL Server Agent does not run: no change reaches the change tables",
            hint="Start the service SQL Server Agent of this instance; penstock continues then.",
        )


@dataclass(slots=True)
class ChangeReader:
    """Reader of batches. Used by one thread.

    Attributes:
        opens: Opens a session.
        book: Captured tables with their instances.
        shapes: Relations of the tables.
        count: Transactions of one batch at most.
        row_count: Rows that the driver gives at once.
        byte_count: Bytes of all rows that were read.
        newest: The newest captured commit when `next_batch` was called last; 0 if there was none.
    """

    opens: Callable[[], Session]
    book: Book
    shapes: Shapes
    count: int = TRANSACTIONS_MAX
    row_count: int = ROWS_AT_ONCE
    byte_count: int = 0
    newest: int = 0
    _session: Session | None = None
    _is_checked: bool = False
    _sessions: dict[int, Session] = field(default_factory=dict)
    _columns: Mapping[int, tuple[CapturedColumn, ...]] = field(default_factory=dict)
    _with_command: frozenset[int] = frozenset()
    _read_at: dict[tuple[int, str], int] = field(default_factory=dict)

    def close(self) -> None:
        """End all sessions."""
        sessions = [*self._sessions.values(), *([self._session] if self._session else [])]
        self._sessions, self._session = {}, None
        self._is_checked = False
        for session in sessions:
            session.close()

    @property
    def session(self) -> Session:
        """Return the session for everything but change tables; open it if it is not."""
        if self._session is None:
            self._session = self.opens()
        return self._session

    def check_database(self) -> None:
        """Check once per session that the database is still the log's. Raises DatabaseReplaced."""
        if self._is_checked:
            return
        session = self.session
        rows = session.execute(statements.GUID)

        def find(position: int) -> tuple[int, int, KnownCommit | None]:
            ((oldest, newest, ended, told),) = session.execute(
                statements.KNOWN_COMMIT, lsn_bytes(position)
            )
            commit = known_commit(position, ended, told) if told is not None else None
            return number(oldest), number(newest), commit

        self.book.check_database(str(rows[0][0] or "") if rows else "", find)
        self._is_checked = True

    def next_batch(self, last: int, *, through: int | None = None) -> Batch | None:
        """Return the commits after `last`; None if nothing was captured since, or may be read yet.

        through: the last commit to read; None for all.

        Raises:
            PositionAhead: The server has captured less than it had before.
            DatabaseReplaced: See `check_database`.
            ChangesLost, TableRenamed: See `Book.check`, with the other errors of instances.
            CaptureStopped: There is no captured commit at all, and the Agent does not run.
        """
        self.check_database()
        if self.book.is_ending:
            return None
        newest = read_newest(self.session)
        self.newest = newest.position
        if not newest.position:
            check_agent(self.session)
            return None
        if newest.position < self.book.newest:
            raise PositionAhead(
                f"the server has captured changes up to {lsn_text(newest.position)}, and had "
                f"captured up to {lsn_text(self.book.newest)} before",
                hint="The database was restored, or another server took over that lacks changes: "
                "load the tables again: penstock reset --target, then penstock run.",
            )
        self.book.saw_newest(newest.position)
        newest_end = newest.position if through is None else min(newest.position, through)
        if newest_end <= last:
            return None
        instances = self._instances(last)
        dropped = self.book.check(instances, last, exists=self._exists)
        commits = read_commits(
            self.session, last, newest_end, count=self.count, zone_us=newest.zone_us
        )
        end = commits[-1].position if len(commits) == self.count else newest_end
        parts, end = self.book.plan(instances, last, end)
        commits = [one for one in commits if one.position <= end]
        if commits:
            self.book.commit = commits[-1].known
        batch = Batch(
            last=last,
            end=end,
            commits=commits,
            feeds=[],
            instances=instances,
            dropped=dropped,
            ddl=self._ddl(last, end) if any(one.altered > last for one in instances) else (),
        )
        if commits:
            index_of = CommitIndex(commits)
            batch.feeds = [self._feed(part, index_of) for part in parts]
        return batch

    def confirm(self, batch: Batch) -> None:
        """Check again, after all changes of a batch were read, that none had been removed.

        Raises the errors of `next_batch`, and StatementInterrupted if a table was altered
        meanwhile, so that the batch is read again.
        """
        now = instances_of(self.session.execute(statements.INSTANCES))
        self.book.check(now, batch.last, exists=self._exists)
        before = {one.identity: one.altered for one in batch.instances}
        changed = [one for one in now if before.get(one.identity, one.altered) != one.altered]
        if changed:
            raise StatementInterrupted(
                f"{changed[0].table} was altered while its changes were read",
                hint="Nothing to do: they are read again.",
            )

    def _instances(self, last: int) -> list[Instance]:
        found = instances_of(self.session.execute(statements.INSTANCES))
        seen = {one.identity: one.altered for one in found}
        if seen != self._read_at:
            self._columns = columns_of(self.session.execute(statements.COLUMNS))
            rows = self.session.execute(statements.WITH_COMMAND)
            self._with_command = frozenset(int(one) for (one,) in rows)
            self.shapes.forget_definitions()
            self._read_at = seen
            logger.info("capture instances", count=len(found), position=lsn_text(last))
        return found

    def _exists(self, source_id: int) -> bool:
        ((count,),) = self.session.execute(statements.TABLE_EXISTS, source_id)
        return bool(count)

    def _ddl(self, last: int, end: int) -> list[tuple[int, str]]:
        rows = self.session.execute(statements.DDL_HISTORY, lsn_bytes(last), lsn_bytes(end))
        captured = [row for row in rows if int(row[0]) in self.book.tables]
        return [(number(lsn), str(text)) for _, _, _, text, lsn in captured]

    # -- one instance ------------------------------------------------------------------------

    def instance_at(self, source_id: int, last: int) -> Instance | None:
        """Return the instance that has a table's changes after a commit; None if it is gone."""
        current = current_of(self.book.tables[source_id], last + 1)
        identity = current.object_id, current.created
        return next((one for one in self._instances(last) if one.identity == identity), None)

    def layout_of(self, instance: Instance, since: int) -> Layout:
        """Return how an instance is read. Raises StatementInterrupted for a table that is gone."""
        known = self.book.tables[instance.source_id]
        columns = self._columns.get(instance.object_id, ())
        layout = self.shapes.layout(instance.source_id, known, columns, since=since)
        if layout is None:
            raise StatementInterrupted(
                f"{known.schema}.{known.name} is not in the catalogue, where it was just now",
                hint="Nothing to do: the catalogue is read again.",
            )
        return layout

    def _feed(self, part: Range, index_of: CommitIndex) -> Feed:
        layout = self.layout_of(part.instance, part.first)
        sql = statements.changes_of(
            part.instance.name,
            layout.columns,
            has_command=part.instance.object_id in self._with_command,
        )
        source_id = part.instance.source_id
        session = self._sessions.get(source_id)
        if session is None:
            session = self._sessions[source_id] = self.opens()
        rows = session.arrow(sql, lsn_bytes(part.first), lsn_bytes(part.last), rows=self.row_count)
        return Feed(self._chunks(source_id, whole_batches(rows), layout, index_of))

    def _chunks(
        self,
        source_id: int,
        batches: Iterator[pa.RecordBatch],
        layout: Layout,
        index_of: CommitIndex,
    ) -> Iterator[Chunk]:
        def widen(layout: Layout, indexes: tuple[int, ...]) -> Layout:
            return self.shapes.widen(source_id, layout, indexes)

        try:
            for batch in batches:
                self.byte_count += batch.nbytes
                chunk = make_chunk(batch, layout, index_of=index_of, widen=widen)
                layout = chunk.layout
                yield chunk
        except StatementFailed as error:
            if not is_gone(error):
                raise
            raise StatementInterrupted(
                f"the change table of {layout.relation.full_name} was dropped while it was read",
                hint="Nothing to do: what became of it is looked up.",
            ) from error


class CommitIndex:
    """Indexes of transactions by their LSN. commits: in order."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._index = {lsn_bytes(one.position): at for at, one in enumerate(commits)}

    def __call__(self, starts: Bytes) -> Ints:
        """Return the index of each row's transaction; rows are in order of their LSNs.

        Raises RangeInvalid for a transaction that cdc.lsn_time_mapping does not have.
        """
        packed = np.ascontiguousarray(starts)
        first = np.ones(len(packed), np.bool_)
        first[1:] = (packed[1:] != packed[:-1]).any(axis=1)
        places = np.flatnonzero(first)
        text = packed[places].tobytes()
        found = np.empty(len(places), np.int64)
        for at in range(len(places)):
            lsn = text[at * LSN_BYTES : (at + 1) * LSN_BYTES]
            index = self._index.get(lsn)
            if index is None:
                raise RangeInvalid(
                    f"a change table has the transaction {lsn_text(number(lsn))}, which "
                    "cdc.lsn_time_mapping lacks",
                    hint="Nothing to do: both are read again.",
                )
            found[at] = index
        return np.repeat(found, np.diff(np.append(places, len(packed))))
