"""`penstock verify`: are source and target equal, row by row, at one position?

The source may be written meanwhile, and the pipeline may run: then the loader is asked to stand
still at the position at which the source is read, just long enough to take a snapshot of the
target. Without a running loader verify first makes sure that nothing is left to apply. Not here:
the comparison (`compare.py`) and the loader's side of the hold (`penstock.load.hold`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import psycopg
import structlog

from penstock.control.bulk_load import source_tables
from penstock.control.compare import (
    NAMED_MAX,
    CompareProgress,
    Side,
    TablePair,
    TableResult,
    compare_tables,
)
from penstock.control.config import Config, Mode
from penstock.control.log_facts import read_log_end
from penstock.control.running import processes
from penstock.control.source_planner import HeldPoint
from penstock.host import files
from penstock.host.clock import REAL_CLOCK
from penstock.host.connect import EXACT_TEXT_SETTINGS, connect, server_errors
from penstock.host.files import DirectoryLock
from penstock.load.hold import (
    HOLD_LOCK,
    Held,
    Hold,
    clear_hold,
    read_held,
    write_hold,
)
from penstock.load.ledger import read_ledger
from penstock.load.postgres.progress import read_applied
from penstock.load.target import Applied, target_name
from penstock.model import Lsn, PenstockError, Retry
from penstock.source.postgres.snapshot import temporary_consistent_point

logger = structlog.get_logger()
APPLICATION_NAME = "penstock verify"
POLL_INTERVAL_S = 0.05
TIMEOUT_S = 300.0
SESSIONS = 2

# Row messages (tags I, U, D, T) of transactions that end behind the log. A transaction's last
# message has the position of its end; the slot may stand before the log's end after a crash.
UNREAD_ROWS = """
    select coalesce(sum(row_count), 0)::int8
      from (select count(*) filter (where get_byte(data, 0) in (73, 85, 68, 84)) as row_count,
                   max(lsn) as end_lsn
              from pg_logical_slot_peek_binary_changes(
                       %(slot)s, %(until)s::pg_lsn, null,
                       'proto_version', '1', 'publication_names', %(publications)s)
             group by xid) as transactions
     where end_lsn > %(log_end)s::pg_lsn
"""
SLOT_EXISTS = """
    select exists (select from pg_replication_slots where slot_name = %(slot)s)
"""
# Makes the server's log reach beyond the position, so that an idle source is passed at once.
NUDGE = """
    select case when not pg_is_in_recovery()
                then pg_logical_emit_message(true, 'penstock', 'verify')
           end
"""


class NotLoadedYet(PenstockError):
    """The bulk load has not ended: of course the target differs."""

    code = "VF10"


class ChangesUnapplied(PenstockError):
    """No loader runs, and captured changes are not in the target yet."""

    code = "VF11"


class ExtractorMissing(PenstockError):
    """The loader runs, but nothing brings the changes up to the position that is compared."""

    code = "VF12"


class HoldNotReached(PenstockError):
    """The loader did not come to stand at the position in time."""

    code = "VF13"
    retry: ClassVar[Retry] = "backoff"


class VerifyStopped(PenstockError):
    """Verify was told to stop before it had an answer."""

    code = "VF14"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What verify found. position: where both sides stood; seconds: in all, and of the hold.

    hold_seconds: for how long the loader was kept from applying; 0 without a loader.
    """

    position: int
    tables: tuple[TableResult, ...]
    seconds: float
    hold_seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every table is equal, row by row."""
        return all(table.equal for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """As `penstock verify --json` prints it."""
        return {
            "equal": self.equal,
            "position": str(Lsn(self.position)),
            "seconds": round(self.seconds, 3),
            "hold_seconds": round(self.hold_seconds, 3),
            "tables": [
                {**asdict(t), "table": str(t.table), "target": str(t.target), "equal": t.equal}
                for t in self.tables
            ],
        }


def verify(
    config: Config,
    *,
    on_progress: Callable[[CompareProgress], None] | None = None,
    on_waiting: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    named_max: int = NAMED_MAX,
    timeout_s: float = TIMEOUT_S,
    sessions: int = SESSIONS,
) -> VerifyResult:
    """Compare all captured tables at one position. Changes nothing but for a temporary slot.

    on_waiting: told in words what is waited for. named_max: differing keys named per table.
    timeout_s: for the loader to come to the position. sessions: readers per side.
    Raises NotLoadedYet, ChangesUnapplied, ExtractorMissing, HoldNotReached, VerifyStopped, the
    errors of `compare.py`, of the catalogue and of `host.connect`.
    """
    began_s = REAL_CLOCK.monotonic_s()
    check_loaded(config)
    pairs = [
        TablePair(source=table, target=target_name(table.name, config.target.map))
        for table in source_tables(config)
    ]
    waiting = _Waiting(on_waiting or (lambda _text: None), stop, timeout_s)
    with ExitStack() as stack:
        if _runs(config, "load") and config.pipeline.mode.has_change:
            opened = _sides_while_running(config, waiting, sessions, stack)
        else:
            opened = _sides_at_rest(config, waiting, sessions, stack)
        source, target, position, hold_s = opened
        tables = compare_tables(pairs, source, target, named_max=named_max, on_progress=on_progress)
    result = VerifyResult(
        position=position,
        tables=tuple(tables),
        seconds=REAL_CLOCK.monotonic_s() - began_s,
        hold_seconds=hold_s,
    )
    logger.info("verify ended", equal=result.equal, tables=len(tables), seconds=result.seconds)
    return result


@dataclass(frozen=True, slots=True)
class _Waiting:
    """How to wait: tell what for, give up on stop or after the time."""

    tell: Callable[[str], None]
    stop: Callable[[], bool]
    timeout_s: float

    def until(
        self, what: str, ready: Callable[[], bool], late: Callable[[], PenstockError]
    ) -> None:
        """Wait until ready(); raise late() after timeout_s, VerifyStopped when told to stop."""
        self.tell(what)
        deadline_s = REAL_CLOCK.monotonic_s() + self.timeout_s
        while not ready():
            if self.stop():
                raise VerifyStopped("verify was stopped while it waited: " + what)
            if REAL_CLOCK.monotonic_s() > deadline_s:
                raise late()
            REAL_CLOCK.sleep(POLL_INTERVAL_S)


_Opened = tuple[Side, Side, int, float]


def check_loaded(config: Config) -> None:
    """Raise NotLoadedYet in the modes with data until the bulk load has ended."""
    if config.pipeline.mode.has_data and not read_ledger(config.layout.state).finished:
        raise NotLoadedYet(
            "the bulk load of this pipeline has not ended",
            hint=f"Wait for it (`penstock status {config.path.name}`), or start it: penstock run "
            f"{config.path.name}",
        )


def _runs(config: Config, name: str) -> bool:
    return any(process.name == name and process.pid for process in processes(config))


# --- while the loader runs ------------------------------------------------------------------------


def _sides_while_running(
    config: Config, waiting: _Waiting, sessions: int, stack: ExitStack
) -> _Opened:
    """Open both sides at one position; the loader stands still only within this call."""
    state = config.layout.state
    if not _runs(config, "extract"):
        raise ExtractorMissing(
            "the loader runs, but no extractor",
            hint=f"Start it (penstock extract {config.path.name}), or stop the loader.",
        )
    with _hold(config) as nonce:
        began_s = REAL_CLOCK.monotonic_s()
        waiting.until(
            "waiting for the loader to finish its batch",
            lambda: read_held(state, nonce) is not None or not _runs(config, "load"),
            lambda: _not_reached(config, read_held(state, nonce)),
        )
        source, point = _source_side(config, sessions, stack)
        _nudge(config)
        write_hold(state, Hold(nonce=nonce, until=point.position))

        def reached() -> bool:
            held = read_held(state, nonce)
            if not _runs(config, "load"):
                raise _not_reached(config, held)
            return held is not None and held.reached == point.position

        waiting.until(
            f"waiting for the loader to reach {Lsn(point.position)}",
            reached,
            lambda: _not_reached(config, read_held(state, nonce)),
        )
        target = stack.enter_context(Side(config.target.url, snapshot_id=None, sessions=sessions))
    return source, target, point.position, REAL_CLOCK.monotonic_s() - began_s


@contextmanager
def _hold(config: Config) -> Iterator[str]:
    """Hold the loader; whatever happens, it goes on afterwards. Gives the hold's nonce."""
    state = config.layout.state
    files.REAL_FILES.make_directory(state)
    with DirectoryLock(state, HOLD_LOCK):
        nonce = secrets.token_hex(8)
        clear_hold(state)
        write_hold(state, Hold(nonce=nonce))
        try:
            yield nonce
        finally:
            clear_hold(state)


def _not_reached(config: Config, held: Held | None) -> HoldNotReached:
    if not _runs(config, "load"):
        return HoldNotReached(
            "the loader ended while verify waited for it", hint="Run `penstock verify` again."
        )
    where = "did not answer" if held is None else f"stands at {Lsn(held.position)}"
    return HoldNotReached(
        f"the loader {where}",
        hint=f"See `penstock lag {config.path.name}`: when the lag is large, wait, or give a "
        "longer timeout.",
    )


def _nudge(config: Config) -> None:
    with (
        connect(config.source.url, application_name=APPLICATION_NAME) as connection,
        server_errors("writing a mark into the source's log"),
    ):
        connection.execute(NUDGE)


def _source_side(config: Config, sessions: int, stack: ExitStack) -> tuple[Side, HeldPoint]:
    """The source at a new consistent point; its slot is gone as soon as the side has taken over."""
    with temporary_consistent_point(config.source.url) as point:
        side = stack.enter_context(
            Side(config.source.url, snapshot_id=point.snapshot_id, sessions=sessions)
        )
    return side, point


# --- at rest --------------------------------------------------------------------------------------


def _sides_at_rest(config: Config, waiting: _Waiting, sessions: int, stack: ExitStack) -> _Opened:
    """Open both sides when no loader runs; refuse when changes before the position are missing."""
    source, point = _source_side(config, sessions, stack)
    if config.pipeline.mode.has_change:
        _check_all_applied(config, waiting, point.position)
    target = stack.enter_context(Side(config.target.url, snapshot_id=None, sessions=sessions))
    if _runs(config, "load") and config.pipeline.mode is not Mode.DATA:
        raise ChangesUnapplied(
            "a loader was started while verify began", hint="Run `penstock verify` again."
        )
    return source, target, point.position, 0.0


def _check_all_applied(config: Config, waiting: _Waiting, position: int) -> None:
    """Raise ChangesUnapplied when a captured change before the position is not in the target."""
    if _runs(config, "extract"):
        _nudge(config)
        waiting.until(
            f"waiting for the extractor to reach {Lsn(position)}",
            lambda: read_log_end(config).end.position >= position,
            lambda: _unapplied(config, "the extractor is behind"),
        )
    else:
        unread = _unread_rows(config, position)
        if unread:
            raise _unapplied(config, f"{unread} changes are still in the replication slot")
    end = read_log_end(config).end
    with connect(
        config.target.url, application_name=APPLICATION_NAME, options=EXACT_TEXT_SETTINGS
    ) as connection:
        applied: Applied = read_applied(connection)
    if applied.gsn < end.gsn:
        raise _unapplied(config, f"{end.gsn - applied.gsn} changes in the log are not applied")


def _unread_rows(config: Config, position: int) -> int:
    """Row messages in the slot that the log has not taken yet and that precede the position.

    A slot that is not there yet holds none: nothing was captured so far.
    """
    section = config.change_extractor
    names = '"' + section.publication.replace('"', '""') + '"'
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        parameters = {
            "slot": section.replication_slot,
            "until": str(Lsn(position)),
            "publications": names,
            "log_end": str(Lsn(read_log_end(config).end.position)),
        }
        with server_errors("looking into the replication slot"):
            if not _first(connection, SLOT_EXISTS, parameters):
                return 0
            return int(_first(connection, UNREAD_ROWS, parameters))


def _first(connection: psycopg.Connection, query: str, parameters: dict[str, str]) -> Any:
    row: Sequence[Any] | None = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def _unapplied(config: Config, what: str) -> ChangesUnapplied:
    return ChangesUnapplied(
        f"the target is behind the source and no loader runs: {what}",
        hint=f"Start the pipeline and verify while it runs: penstock run {config.path.name}",
    )
