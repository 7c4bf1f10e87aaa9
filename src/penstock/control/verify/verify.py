"""`penstock verify`: are source and target equal, row by row, at one position?

The source may be written meanwhile, and the pipeline may run: then the loader is asked to pause at
the position at which the source is read, just long enough to take a snapshot of the target. Without
a running loader verify first makes sure that nothing is left to apply.

Not here: the comparison (`compare.py`), the repair (`repair.py`) and the loader's side of the hold
(`penstock.load.loader_state`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import structlog

from penstock.control.pipeline.config import need_target
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.new_tables import without_new
from penstock.control.pipeline.running import processes
from penstock.control.pipeline.servers import server_pair, source_tables
from penstock.control.tables.table_list import columns_left_out, tables_in_sync
from penstock.control.verify.compare import (
    NAMED_MAX,
    CompareProgress,
    TablePair,
    TableResult,
    compare,
    hasher_for,
)
from penstock.control.verify.repair import Repair, Repaired
from penstock.host import files
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import DirectoryLock
from penstock.load.ledger import read_ledger
from penstock.load.loader_state import (
    HOLD_LOCK,
    Hold,
    HoldAnswer,
    clear_hold,
    read_held,
    write_hold,
)
from penstock.model import LOAD_AFRESH, PenstockError, Retry, TableName
from penstock.model.words import count_words
from penstock.ports.config import Config, Mode
from penstock.ports.handover import log_begin
from penstock.ports.positions import positions_of
from penstock.ports.progress import open_progress, open_target_reader
from penstock.ports.target import Applied, target_name
from penstock.ports.verify import (
    APPLICATION_NAME,
    VERIFY_PART,
    SourcePoint,
    VerifyReader,
    verifier_of,
)

logger = structlog.get_logger()


class OpenTarget(Protocol):
    """Function that opens the target of a comparison."""

    def __call__(self, url: str, *, sessions: int) -> AbstractContextManager[VerifyReader]:
        """Return its rows as they are now. sessions: how many read at once."""
        ...


POLL_INTERVAL_S = 0.05
NOT_CAPTURED = "it is new and not captured yet"
TIMEOUT_S = 300.0
SESSIONS = 2


class NotLoadedYet(PenstockError):
    """The bulk load has not ended, so the target necessarily differs."""

    code = "VF10"


class ChangesUnapplied(PenstockError):
    """No loader runs, and captured changes are not in the target yet."""

    code = "VF11"


class ExtractorMissing(PenstockError):
    """The loader runs, but no extractor extracts the changes up to the compared position."""

    code = "VF12"


class HoldNotReached(PenstockError):
    """The loader did not reach the position in time."""

    code = "VF13"
    retry: ClassVar[Retry] = "backoff"


class NotComparable(PenstockError):
    """The source has neither a consistent point to compare at nor checksums of its tables."""

    code = "VF15"
    retry: ClassVar[Retry] = "never"


class VerifyStopped(PenstockError):
    """Verify was stopped before it had an answer."""

    code = "VF14"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """Result of verify.

    Attributes:
        position: Where both sides were.
        at: The position as the source writes it.
        way: How the sides were compared, for people.
        seconds: In all.
        hold_seconds: For how long the loader was kept from applying; 0 without a loader.
        repaired: Work done on tables that were not equal, and are now.
        left_out: Tables whose table sync has not ended (`penstock table`), and the state of each.
        columns_left_out: By table, columns of the source that the target does not have, by policy:
            they are not compared.
        not_compared: Matching tables that are not captured, or that a side does not have, and why.
    """

    position: int
    at: str
    tables: tuple[TableResult, ...]
    seconds: float
    hold_seconds: float = 0.0
    way: str = ""
    repaired: tuple[Repaired, ...] = ()
    left_out: Mapping[TableName, str] = field(default_factory=dict)
    columns_left_out: Mapping[TableName, Collection[str]] = field(default_factory=dict)
    not_compared: Mapping[TableName, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Return whether every table is equal, row by row."""
        return all(table.equal for table in self.tables) and not self.not_compared

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock verify --json` prints it."""
        return {
            "equal": self.equal,
            "position": self.at,
            "way": self.way,
            "seconds": round(self.seconds, 3),
            "hold_seconds": round(self.hold_seconds, 3),
            "left_out": {str(table): state for table, state in self.left_out.items()},
            "not_compared": {str(table): why for table, why in self.not_compared.items()},
            "columns_left_out": {
                str(table): sorted(names) for table, names in self.columns_left_out.items()
            },
            "tables": [
                {**asdict(t), "table": str(t.table), "target": str(t.target), "equal": t.equal}
                for t in self.tables
            ],
            "repaired": [
                {**asdict(t), "table": str(t.table), "target": str(t.target)} for t in self.repaired
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
    repair: bool = False,
    open_target: OpenTarget | None = None,
) -> VerifyResult:
    """Compare all captured tables at one position. Changes nothing except for a temporary slot.

    on_waiting: gets a text that says what is waited for. named_max: number of differing keys named
    per table. timeout_s: for the loader to reach the position. sessions: readers per side. repair:
    write the rows that differ again, while the loader is paused; raises the errors of `Repair`.
    open_target: opens the target, by its URL; None: as its engine does.
    Raises NotComparable, TargetMissing, NotLoadedYet, ChangesUnapplied, ExtractorMissing,
    HoldNotReached, VerifyStopped, the errors of `compare.py`, of the catalogue and of the servers.
    """
    began_s = REAL_CLOCK.monotonic_s()
    check_loaded(config)
    waiting = _Waiting(on_waiting or (lambda _text: None), stop, timeout_s)
    servers = server_pair(config)
    left_out = tables_in_sync(config)
    with ExitStack() as stack:
        opened = _open_sides(config, waiting, sessions, stack, open_target, keep=repair)
        hasher = hasher_for(opened.source, opened.target)
        left_out |= tables_in_sync(config)  # and tables that have left the others meanwhile
        pairs, without, not_compared = _pairs(config, left_out)
        compared = compare(
            pairs,
            opened.source,
            opened.target,
            hasher=hasher,
            named_max=named_max,
            on_progress=on_progress,
            servers=servers,
            on_gone=lambda name, error: not_compared.update({name: error.message}),
        )
        repaired: tuple[Repaired, ...] = ()
        if repair:
            waiting.stop_here("repairing")
            repaired = Repair(
                config=config,
                source=opened.source,
                target=opened.target,
                hasher=hasher,
                servers=servers,
                applied=opened.applied,
                tell=waiting.tell,
            ).run(compared)
    ended_s = REAL_CLOCK.monotonic_s()
    result = VerifyResult(
        position=opened.point.position,
        tables=tuple(table.result for table in compared),
        seconds=ended_s - began_s,
        hold_seconds=ended_s - opened.held_from_s if opened.held_from_s else opened.hold_s,
        at=opened.point.text,
        way=hasher.way,
        repaired=repaired,
        left_out=left_out,
        columns_left_out=without,
        not_compared=not_compared,
    )
    logger.info("verify ended", equal=result.equal, tables=len(compared), repaired=len(repaired))
    return result


def _pairs(
    config: Config, left_out: Collection[TableName]
) -> tuple[list[TablePair], dict[TableName, frozenset[str]], dict[TableName, str]]:
    """Return the compared tables, their columns that are not compared, and tables that are not."""
    pairs = [pair for pair in table_pairs(config) if pair.source.name not in left_out]
    captured = {table.name for table in without_new(config, [pair.source for pair in pairs])}
    new = {p.source.name: NOT_CAPTURED for p in pairs if p.source.name not in captured}
    pairs = [pair for pair in pairs if pair.source.name in captured]
    lacking = columns_left_out(config)
    without = {p.source.name: lacking[p.source.name] for p in pairs if p.source.name in lacking}
    return [pair.without(without.get(pair.source.name, ())) for pair in pairs], without, new


def table_pairs(config: Config) -> list[TablePair]:
    """Return the present captured tables, and their places in the target."""
    return [
        TablePair(source=table, target=target_name(table.name, config.target.map))
        for table in source_tables(config)
    ]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Wait with a text, which ends on a stop or after the time."""

    tell: Callable[[str], None]
    stop: Callable[[], bool]
    timeout_s: float

    def stop_here(self, what: str) -> None:
        """Raise VerifyStopped if a stop was requested."""
        if self.stop():
            raise VerifyStopped("verify was stopped before " + what)

    def until(
        self, what: str, ready: Callable[[], bool], late: Callable[[], PenstockError]
    ) -> None:
        """Wait until ready().

        Raises late() after timeout_s, VerifyStopped if a stop was requested.
        """
        self.tell(what)
        deadline_s = REAL_CLOCK.monotonic_s() + self.timeout_s
        while not ready():
            if self.stop():
                raise VerifyStopped("verify was stopped while it waited: " + what)
            if REAL_CLOCK.monotonic_s() > deadline_s:
                raise late()
            REAL_CLOCK.sleep(POLL_INTERVAL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """Both sides at one point.

    Attributes:
        applied: The position of the target.
        hold_s: For how long the loader was paused for it.
        held_from_s: Since when it is paused, monotonic; 0 if it no longer is.
    """

    source: VerifyReader
    target: VerifyReader
    point: SourcePoint
    applied: Applied
    hold_s: float = 0.0
    held_from_s: float = 0.0


def check_loaded(config: Config) -> None:
    """Check that the pipeline can be compared.

    Raises NotLoadedYet in the modes with data until the bulk load has ended, TargetMissing if
    there is nothing to compare with, NotComparable for a source whose tables cannot be compared.
    """
    need_target(
        config,
        "verify compares it with the source",
        instead="See how far the log is with `penstock lag FILE`, and check it with `penstock log "
        "check FILE`",
    )
    _check_comparable(config)
    if config.pipeline.mode.has_data and not read_ledger(config.layout.state).finished:
        raise NotLoadedYet(
            "the bulk load of this pipeline has not ended",
            hint=f"Wait for it (`penstock status {config.path.name}`), or start it: penstock run "
            f"{config.path.name}",
        )


def _check_comparable(config: Config) -> None:
    engine = config.source.engine
    if VERIFY_PART not in engine.parts:
        name = config.path.name
        again = f"penstock table resync {name} TABLE copies the rows of a table again."
        if not engine.has_table_requests:
            again = f"{LOAD_AFRESH.replace('FILE', name)}."
        raise NotComparable(
            f"tables of {engine.shown} are not compared: it has no point at which all of them can "
            "be read, and no checksums",
            hint=f"Wait until penstock lag {name} has no lag left, and compare by the source's own "
            f"queries. If rows differ: {again}",
        )


def _runs(config: Config, name: str) -> bool:
    return any(process.name == name and process.pid for process in processes(config))


def _open_sides(
    config: Config,
    waiting: _Waiting,
    sessions: int,
    stack: ExitStack,
    open_target: OpenTarget | None,
    *,
    keep: bool,
) -> _Opened:
    """Open both sides at one position. keep: see `_sides_while_running`, `_sides_at_rest`."""
    if open_target is None:
        open_target = verifier_of(config.target.url).open_target
    target = partial(open_target, config.target.url, sessions=sessions)
    is_running = _runs(config, "load") and config.pipeline.mode.has_change
    open_them = _sides_while_running if is_running else _sides_at_rest
    return open_them(config, waiting, sessions, stack, target, keep=keep)


# --- while the loader runs ------------------------------------------------------------------------


def _sides_while_running(
    config: Config,
    waiting: _Waiting,
    sessions: int,
    stack: ExitStack,
    open_target: Callable[[], AbstractContextManager[VerifyReader]],
    *,
    keep: bool,
) -> _Opened:
    """Open both sides at one position.

    The loader is paused only within this call; with keep until the stack is closed.
    """
    state = config.layout.state
    if not _runs(config, "extract"):
        raise ExtractorMissing(
            "the loader runs, but no extractor",
            hint=f"Start it (penstock extract {config.path.name}), or stop the loader.",
        )
    with ExitStack() as holding:
        nonce = holding.enter_context(_hold(config))
        began_s = REAL_CLOCK.monotonic_s()
        waiting.until(
            "waiting for the loader to finish its batch",
            lambda: read_held(state, nonce) is not None or not _runs(config, "load"),
            lambda: _not_reached(config, read_held(state, nonce)),
        )
        source, point = _source_side(config, waiting, sessions, stack)
        verifier_of(config.source.url).nudge(config.source.url)
        write_hold(state, Hold(nonce=nonce, until=point.position))

        def is_reached() -> bool:
            held = read_held(state, nonce)
            if not _runs(config, "load"):
                raise _not_reached(config, held)
            return held is not None and held.reached == point.position

        waiting.until(
            f"waiting for the loader to reach {point.text}",
            is_reached,
            lambda: _not_reached(config, read_held(state, nonce)),
        )
        target = stack.enter_context(open_target())
        applied = _read_applied(config)
        if keep:
            stack.push(holding.pop_all())
    return _Opened(
        source=source,
        target=target,
        point=point,
        applied=applied,
        hold_s=REAL_CLOCK.monotonic_s() - began_s,
        held_from_s=began_s if keep else 0.0,
    )


@contextmanager
def _hold(config: Config) -> Iterator[str]:
    """Hold the loader during a block, and let it continue in any case. Yields the hold's nonce."""
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


def _not_reached(config: Config, held: HoldAnswer | None) -> HoldNotReached:
    if not _runs(config, "load"):
        return HoldNotReached(
            "the loader ended while verify waited for it", hint="Run `penstock verify` again."
        )
    text = positions_of(config).text
    where = "did not answer" if held is None else f"is at {text(held.position)}"
    return HoldNotReached(
        f"the loader {where}",
        hint=f"See `penstock lag {config.path.name}`: when the lag is large, wait, or give a "
        "longer timeout.",
    )


def _source_side(
    config: Config, waiting: _Waiting, sessions: int, stack: ExitStack
) -> tuple[VerifyReader, SourcePoint]:
    """Return the source at a new consistent point."""
    return stack.enter_context(
        verifier_of(config.source.url).open_source(
            config, lambda: source_tables(config), waiting.tell, sessions=sessions
        )
    )


# --- at rest --------------------------------------------------------------------------------------


def _sides_at_rest(
    config: Config,
    waiting: _Waiting,
    sessions: int,
    stack: ExitStack,
    open_target: Callable[[], AbstractContextManager[VerifyReader]],
    *,
    keep: bool,
) -> _Opened:
    """Open both sides if no loader runs; refuse if changes before the position are missing.

    keep: a loader that is started meanwhile is paused until the stack is closed.
    """
    if keep and config.pipeline.mode.has_change:
        stack.enter_context(_hold(config))
    source, point = _source_side(config, waiting, sessions, stack)
    if config.pipeline.mode.has_change:
        _check_all_applied(config, waiting, point)
    target = stack.enter_context(open_target())
    if _runs(config, "load") and config.pipeline.mode is not Mode.DATA:
        raise ChangesUnapplied(
            "a loader was started while verify began", hint="Run `penstock verify` again."
        )
    return _Opened(source=source, target=target, point=point, applied=_read_applied(config))


def _read_applied(config: Config) -> Applied:
    """Return how far the target is."""
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        return target.read_applied()


def _check_all_applied(config: Config, waiting: _Waiting, point: SourcePoint) -> None:
    """Raise ChangesUnapplied if a captured change before the position is not in the target."""
    if _runs(config, "extract"):
        verifier_of(config.source.url).nudge(config.source.url)
        waiting.until(
            f"waiting for the extractor to reach {point.text}",
            lambda: read_log_end(config).end.position >= point.position,
            lambda: _unapplied_error(config, "the extractor is behind"),
        )
    elif unread := _unread(config, point):
        raise _unapplied_error(config, unread)
    end = read_log_end(config).end
    applied = _read_applied(config)
    if applied.gsn < end.gsn:
        raise _unapplied_error(
            config,
            f"the log has {count_words(end.gsn - applied.gsn, 'change')} that the target lacks",
        )
    url = config.target.url
    with closing(open_target_reader(url, application_name=APPLICATION_NAME)) as target:
        unfinished = target.read_unfinished()
    if unfinished:
        raise _unapplied_error(config, unfinished.text)


def _unread(config: Config, point: SourcePoint) -> str:
    """Return our changes between our log and the point, for people; empty for none."""
    return verifier_of(config.source.url).unread(
        config,
        point,
        lambda: source_tables(config),
        since=read_log_end(config).end.position or log_begin(config),
    )


def _unapplied_error(config: Config, what: str) -> ChangesUnapplied:
    return ChangesUnapplied(
        f"the target is behind the source and no loader runs: {what}",
        hint=f"Start the pipeline and verify while it runs: penstock run {config.path.name}",
    )
