"""Open connections that see the tables at one point, whose place in the binlog is known.

`open_snapshots` takes the best strategy that the account's privileges allow (`strategies.py`),
reports it before it begins, and tries the next one if it does not succeed in time. Locks are held
only for the statements that take the snapshots and read the position; if penstock dies meanwhile,
the server ends its sessions and with them the locks. Not here: reading the tables (`chunks.py`
plans it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import structlog

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.connect import Connection, connect, quote, rows, run, value
from penstock.engines.mysql.source.dump_errors import LogOff
from penstock.engines.mysql.source.rights import read_rights
from penstock.engines.mysql.source.status import LogStatus, read_identity, read_status
from penstock.engines.mysql.source.strategies import (
    Choice,
    Facts,
    NoConsistentPoint,
    Strategy,
    choices,
)
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted
from penstock.host.faults import declare, point
from penstock.model import PenstockError, TableDefinition

logger = structlog.get_logger()
APPLICATION_NAME = "penstock snapshot"
LOCK_TIMEOUT_S = 10
ROUNDS_MAX = 20  # how often snapshots are taken again if changes are not blocked
ROUND_PAUSE_S = 0.05
OWNED_PAUSE_S = 0.005
XA_ROUNDS_MAX = 10

BEGIN = "start transaction with consistent snapshot, read only"
ISOLATION = "set session transaction isolation level repeatable read"
UNLOGGED = "set session sql_log_bin = 0"
XA_ENDED = "show global status where variable_name in ('Com_xa_commit', 'Com_xa_rollback')"
POSITION_OF_SNAPSHOT = "show status like 'binlog_snapshot_%'"

# Position of rows that no changes follow, at a server without a binlog.
UNKNOWN_POSITION = BinlogPosition(0, "none")

declare("snapshot.locked", "snapshot.taken")


class SnapshotsDiffer(PenstockError):
    """Transactions kept ending while the snapshots were taken: they are not at one point."""

    code = "MY71"
    retry = "backoff"


class TransactionsPrepared(PenstockError):
    """XA transactions are prepared and not ended: their rows are in the log already.

    Rows that are in the log before the point are not read again, and rows that are not committed
    are in no snapshot: they would be lost.
    """

    code = "MY72"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """Connections in transactions that see the captured tables at one point.

    Attributes:
        status: the point; changes after its position are to be applied, and its GTIDs are in every
            snapshot.
        settled: position at which the tables become consistent: the point itself, except without a
            lock, when a snapshot may have changes up to there already.
        lock_held_s: longest time that others had to wait.
    """

    choice: Choice
    connections: tuple[Connection, ...]
    status: LogStatus
    settled: BinlogPosition
    lock_held_s: float


def read_choices(
    connection: Connection, tables: Sequence[TableDefinition], *, follows: bool = True
) -> list[Choice]:
    """Return the strategies that this connection's account may use, best first.

    follows: changes are applied after the rows. Raises NoConsistentPoint if there is none.
    """
    doing = "asking whether there is a binlog"
    facts = Facts(
        server=connection.server,
        rights=read_rights(connection),
        has_gtids=read_identity(connection).has_gtids,
        tables=tables,
        has_log=bool(int(value(connection, "select @@global.log_bin", doing=doing))),
        follows=follows,
    )
    return choices(facts)


@contextmanager
def open_snapshots(
    url: str,
    tables: Sequence[TableDefinition],
    *,
    count: int,
    among: Sequence[Choice] | None = None,
    on_choice: Callable[[Choice], None] | None = None,
    follows: bool = True,
) -> Iterator[Snapshots]:
    """Open `count` snapshots of the tables at one point; the way out closes them.

    among: the strategies to try, in order; None: all that the account may use. on_choice: called
    with each before it begins. follows: changes from the point on are applied later; otherwise the
    server needs no binlog, and the account no privilege to ask for its position. Raises
    NoConsistentPoint, or the last strategy's error.
    """
    if count < 1:
        raise ValueError(f"not a number of snapshots: {count}")
    with ExitStack() as stack:
        control = stack.enter_context(connect(url, application_name=APPLICATION_NAME))
        if among is None:
            among = read_choices(control, tables, follows=follows)
        unlogged = _has_to_say_unlogged(control)
        readers = tuple(
            stack.enter_context(connect(url, application_name=APPLICATION_NAME))
            for _ in range(count)
        )
        for reader in readers:
            run(reader, ISOLATION, doing="preparing a snapshot")
            if unlogged:
                run(reader, UNLOGGED, doing="preparing a snapshot")
        taken = _first_success(_Taking(control, readers, tables, follows=follows), among, on_choice)
        control.close()
        yield taken


def _has_to_say_unlogged(control: Connection) -> bool:
    """Return whether readers have to switch off binary logging, so that they release metadata
    locks.

    MariaDB releases metadata locks at a savepoint only in a session that writes no binlog. Ours
    write nothing; but switching the binlog off takes a privilege, and without it an ALTER waits for
    the whole load.
    """
    if not control.server.is_mariadb:
        return False
    if read_rights(control).has("binlog admin", "super"):
        return True
    logger.warning(
        "schema changes of tables wait until the bulk load has read all of them",
        why="the account does not have the privilege binlog admin",
    )
    return False


def _first_success(
    taking: _Taking, among: Sequence[Choice], on_choice: Callable[[Choice], None] | None
) -> Snapshots:
    failed: PenstockError | None = None
    for choice in among:
        if on_choice is not None:
            on_choice(choice)
        logger.info("taking snapshots", strategy=str(choice.strategy), count=len(taking.readers))
        try:
            taken = taking.take(choice)
        except (SnapshotsDiffer, PrivilegeMissing, StatementFailed, StatementInterrupted) as error:
            logger.warning("strategy did not lead to snapshots", error=error.message)
            taking.give_up()
            failed = error
        else:
            logger.info(
                "snapshots taken",
                position=str(taken.status.position),
                settled=str(taken.settled),
                lock_held_s=round(taken.lock_held_s, 4),
            )
            return taken
    raise failed or NoConsistentPoint(
        "no strategy for snapshots was given", hint="Run `penstock doctor`."
    )


class _Taking:
    """Attempts, one after the other, to take snapshots on the readers."""

    def __init__(
        self,
        control: Connection,
        readers: tuple[Connection, ...],
        tables: Sequence[TableDefinition],
        *,
        follows: bool,
    ) -> None:
        self.readers = readers
        self._follows = follows
        self._control = control
        self._tables = tables
        self._strategies: dict[Strategy, Callable[[Choice], Snapshots]] = {
            Strategy.OWN_POSITIONS: self._own_positions,
            Strategy.BACKUP_LOCK: self._backup_lock,
            Strategy.BACKUP_STAGE: self._backup_stage,
            Strategy.GLOBAL_LOCK: self._global_lock,
            Strategy.TABLE_LOCKS: self._table_locks,
            Strategy.LOCK_FREE: self._lock_free,
        }

    def take(self, choice: Choice) -> Snapshots:
        """Try this strategy, until no XA transaction is between its two ends at the point."""
        if not self._follows:
            return self._strategies[choice.strategy](choice)
        for attempt in range(1, XA_ROUNDS_MAX + 1):
            before = self._xa_ended()
            taken = self._strategies[choice.strategy](choice)
            # A transaction that was prepared at the point is still prepared, or has been ended
            # since.
            prepared = (
                rows(self._control, "xa recover", doing="asking for prepared transactions")
                if choice.sees_prepared
                else []
            )
            if not prepared and self._xa_ended() == before:
                return taken
            self.give_up()
            time.sleep(ROUND_PAUSE_S * attempt)
        raise TransactionsPrepared(
            f"{len(prepared)} XA transactions are prepared and not ended"
            if prepared
            else "XA transactions are prepared all the time",
            hint="End those that are forgotten: `xa recover convert xid;`, then `xa commit ...` or "
            "`xa rollback ...` each; or begin when their coordinator rests.",
        )

    def _xa_ended(self) -> list[tuple[str, str]]:
        found = rows(self._control, XA_ENDED, doing="counting XA transactions")
        return sorted((row["variable_name"].lower(), str(row["value"])) for row in found)

    def give_up(self) -> None:
        """End the transactions that an attempt has begun."""
        for reader in self.readers:
            run(reader, "rollback", doing="giving up a snapshot")

    def _status(self) -> LogStatus:
        """Return where the binlog ends; unknown is allowed if no changes follow."""
        try:
            return read_status(self._control)
        except (LogOff, PrivilegeMissing):
            if self._follows:
                raise
            return LogStatus(position=UNKNOWN_POSITION)

    def _begin(self) -> None:
        for reader in self.readers:
            run(reader, BEGIN, doing="taking a snapshot")
        point("snapshot.taken")

    def _run(self, sql: str, doing: str) -> None:
        run(self._control, sql, doing=doing)

    @contextmanager
    def _hold_locks(self, lock: Sequence[str], unlock: str, doing: str) -> Iterator[list[float]]:
        """Hold locks for a with block; the list gets the seconds for which they were held."""
        self._run(f"set session lock_wait_timeout = {LOCK_TIMEOUT_S}", doing)
        held: list[float] = []
        began = time.monotonic()
        try:
            for statement in lock:
                began = time.monotonic()  # of the last one: earlier ones block no sessions
                self._run(statement, doing)
            point("snapshot.locked")
            yield held
        finally:
            self._run(unlock, "releasing the locks")
            held.append(time.monotonic() - began)

    def _at_one_point(self, choice: Choice, status: LogStatus, held: Sequence[float]) -> Snapshots:
        return Snapshots(
            choice=choice,
            connections=self.readers,
            status=status,
            settled=status.position,
            lock_held_s=held[0] if held else 0.0,
        )

    # -- with a lock -----------------------------------------------------------------------------

    def _global_lock(self, choice: Choice) -> Snapshots:
        # The first FLUSH waits for running statements without stopping others from beginning.
        lock = ("flush local tables", "flush tables with read lock")
        with self._hold_locks(lock, "unlock tables", "taking the global read lock") as held:
            self._begin()
            status = self._status()
        has_place = self._control.server.is_mariadb and status.position != UNKNOWN_POSITION
        if has_place and self._own_place() != status.position:
            raise _differ()
        return self._at_one_point(choice, status, held)

    def _backup_stage(self, choice: Choice) -> Snapshots:
        lock = ("backup stage start", "backup stage block_commit")
        with self._hold_locks(lock, "backup stage end", "blocking commits") as held:
            self._begin()
        place = self._own_place()
        if place is None:
            raise _differ()
        return self._at_one_point(choice, self._status_at(place), held)

    def _table_locks(self, choice: Choice) -> Snapshots:
        names = ", ".join(f"{quote(*table.name)} read" for table in self._tables)
        # Without autocommit InnoDB locks as well, which prevents cascades of foreign keys.
        doing = "locking the tables"
        self._run("set session autocommit = 0", doing)
        try:
            with self._hold_locks((f"lock tables {names}",), "unlock tables", doing) as held:
                self._begin()
                status = self._status()
        finally:
            self._run("set session autocommit = 1", doing)
        return self._at_one_point(choice, status, held)

    # -- without one -----------------------------------------------------------------------------

    def _backup_lock(self, choice: Choice) -> Snapshots:
        doing = "keeping schema changes away"
        with self._hold_locks(("lock instance for backup",), "unlock instance", doing):
            for _ in range(ROUNDS_MAX):
                before = self._read_executed()
                self._begin()
                # In this order: a transaction that the position includes has an id, and owns it
                # until it is visible.
                status = self._status()
                owned = value(self._control, "select @@global.gtid_owned", doing=doing)
                if not owned and self._read_executed() == before:
                    return self._at_one_point(choice, replace(status, gtids=before), ())
                self.give_up()
                time.sleep(ROUND_PAUSE_S)
        raise _differ()

    def _read_executed(self) -> str:
        text = value(
            self._control, "select @@global.gtid_executed", doing="asking for transactions"
        )
        return "".join(str(text).split())

    def _own_positions(self, choice: Choice) -> Snapshots:
        for _ in range(ROUNDS_MAX):
            self._begin()
            place = self._own_place()
            if place is not None:
                return self._at_one_point(choice, self._status_at(place), ())
            self.give_up()
            time.sleep(ROUND_PAUSE_S)
        raise _differ()

    def _own_place(self) -> BinlogPosition | None:
        """Return the position that all snapshots report; None if they differ."""
        positions = {_own_position(reader) for reader in self.readers}
        return positions.pop() if len(positions) == 1 else None

    def _status_at(self, position: BinlogPosition) -> LogStatus:
        gtids = value(
            self._control,
            "select binlog_gtid_pos(%s, %s)",
            (position.file, position.offset),
            doing="asking for the transactions before the snapshot",
        )
        return LogStatus(position=position, gtids=str(gtids or ""))

    def _lock_free(self, choice: Choice) -> Snapshots:
        if self._control.server.is_mariadb:
            self._begin()
            positions = [_own_position(reader) for reader in self.readers]
            return Snapshots(
                choice=choice,
                connections=self.readers,
                status=self._status_at(min(positions)),
                settled=max(positions),
                lock_held_s=0.0,
            )
        low = read_status(self._control)
        self._wait_until_seen()
        before = self._read_executed()
        self._begin()
        high = read_status(self._control)
        return Snapshots(
            choice=choice,
            connections=self.readers,
            status=replace(low, gtids=before),
            settled=high.position,
            lock_held_s=0.0,
        )

    def _wait_until_seen(self) -> None:
        """Wait for transactions that a position includes but that are not visible yet.

        A transaction owns its id before it is in the log, and until its rows are visible.
        """
        owned = self._read_owned()
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while owned:
            if time.monotonic() > deadline_s:
                raise SnapshotsDiffer(
                    f"a transaction that is in the binlog was not seen for {LOCK_TIMEOUT_S} s",
                    hint="Look for commits that wait: show processlist;",
                )
            time.sleep(OWNED_PAUSE_S)
            owned &= self._read_owned()

    def _read_owned(self) -> set[str]:
        """Return the ids of transactions that are being committed: `uuid:5#12:6#13, uuid:...`."""
        doing = "asking for transactions that are being committed"
        text = "".join(str(value(self._control, "select @@global.gtid_owned", doing=doing)).split())
        found = set()
        for part in filter(None, text.split(",")):
            uuid, *numbers = part.split(":")
            found |= {f"{uuid}:{one.partition('#')[0]}" for one in numbers if "#" in one}
        return found


def _own_position(reader: Connection) -> BinlogPosition:
    """Return the exact place of a MariaDB connection's snapshot."""
    found = rows(reader, POSITION_OF_SNAPSHOT, doing="asking for a snapshot's position")
    found_values = {row["variable_name"].lower(): row["value"] for row in found}
    if not found_values.get("binlog_snapshot_file"):
        raise LogOff(
            f"{reader.server} writes no binlog",
            hint="Set log_bin = binlog and server_id in the server's configuration; restart it.",
        )
    return BinlogPosition.at(
        found_values["binlog_snapshot_file"], int(found_values["binlog_snapshot_position"])
    )


def _differ() -> SnapshotsDiffer:
    return SnapshotsDiffer(
        f"{ROUNDS_MAX} times a transaction ended while the snapshots were taken",
        hint="Let the account lock: grant reload on *.* to 'USER'@'HOST'; or begin when less is "
        "written.",
    )
