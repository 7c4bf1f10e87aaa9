"""New tables that match a pattern: added, left out or refused, by `[source] newTables`.

The catalogue is compared with the followed tables: at every start, and repeatedly while
changes are extracted. A new table is then requested as `penstock table add` does it, so that the
others flow on; one that cannot be followed is left out with the reason, and stops no other. Not
here: carrying it out (the engines' `captures.py`, `penstock.load.table_sync`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import structlog

from penstock.control.pipeline.new_tables import NewTable, left_out, named_alone, stop_error
from penstock.control.pipeline.servers import followed_tables
from penstock.control.pipeline.table_requests import (
    forget_request,
    make_add_request,
    put_request,
    read_answers,
    read_requests,
    requested_patterns,
    with_requests,
)
from penstock.control.tables.table_commands import check_capturable
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.supervised import SupervisedThread
from penstock.load.ledger import read_ledger
from penstock.model import PenstockError, TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import Capture, TableRequest, TableRequests
from penstock.ports.config import Config, NewTables
from penstock.ports.tables import tables_at

logger = structlog.get_logger()

LOOK_INTERVAL_S = 5.0
LOOK_INTERVAL_S_MAX = 60.0
LOOK_SHARE = 0.01  # of the time may be spent on looking, if the catalogue is large
JUDGE_INTERVAL_S = 60.0  # between two looks at a table that cannot be followed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Findings in the catalogue.

    Attributes:
        new: Tables that match a pattern and are not followed.
        gone: Tables that penstock requested, and that were dropped before they were captured.
        uncopied: Followed tables that did not exist when the bulk load read the catalogue.
    """

    new: frozenset[TableName] = frozenset()
    gone: frozenset[TableName] = frozenset()
    uncopied: frozenset[TableName] = frozenset()


def settle_new_tables(config: Config) -> Config:
    """Request new tables, or leave them out, before a start; return the new configuration.

    Raises NewTable if newTables is "stop".
    """
    if not config.pipeline.mode.has_change:
        return config
    try:
        seen = _look(config)
        _settle(config, seen, seen.new)
    except NewTable:
        raise
    except PenstockError as error:
        # The checks that follow ask the same servers, and report their errors.
        logger.warning("new tables cannot be looked for", error=error.message)
    return with_requests(config)


def _look(config: Config) -> _Seen:
    """Compare the catalogue with the followed tables. Raises the errors of asking the source."""
    known = followed_tables(config)
    if known is None:
        return _Seen()
    requests, answers = read_requests(config), read_answers(config)
    chosen = [one for one in requests.tables if one.capture is not Capture.LEFT]
    patterns = requested_patterns(config.file_tables, TableRequests(tables=tuple(chosen)))
    present = tables_at(config.source.url).present(config, patterns, known)
    if present is None:
        return _Seen()
    decided = {
        one.table for one in requests.tables if one.capture in (Capture.ADDED, Capture.REMOVED)
    }
    takes = Selection.parse(config.file_tables).takes
    gone = {
        one.table
        for one in requests.tables
        if one.table not in present.names
        and (
            one.capture is Capture.LEFT
            or (one.capture is Capture.ADDED and not answers.is_done(one) and takes(one.table))
        )
    }
    return _Seen(
        new=frozenset(present.new - decided),
        gone=frozenset(gone),
        uncopied=_find_uncopied(config, present.names & known.names, requests),
    )


def _find_uncopied(
    config: Config, followed: frozenset[TableName], requests: TableRequests
) -> frozenset[TableName]:
    """Return followed tables that were created again and whose rows were not copied since.

    followed: those that still exist under the names by which they are followed. Renamed tables are
    not included: their engine refuses them.
    """
    ledger = read_ledger(config.layout.state)
    if not (config.has_target and config.pipeline.mode.has_data and ledger.finished):
        return frozenset()
    asked = {one.table for one in requests.tables}
    copied = {plan.source for plan in ledger.plans}
    return followed - asked - copied


def _settle(config: Config, seen: _Seen, tables: Collection[TableName]) -> None:
    """Request these new tables, or leave them out. Raises NewTable."""
    for table in sorted(seen.gone):
        logger.info("new table is gone again", table=str(table))
        forget_request(config, table)
    for table in sorted(seen.uncopied):
        logger.info("table was created again before its rows were copied", table=str(table))
        put_request(
            config, table, lambda last, number: replace(last, copy_id=number, replaces=True)
        )
    named = named_alone(config.file_tables, tables)
    policy = config.source.new_tables
    other = sorted(set(tables) - named)
    if policy is NewTables.STOP and other:
        raise stop_error(config, other)
    wanted = sorted(named if policy is NewTables.LEAVE else tables)
    refused = _find_refusals(config, wanted)
    for table in wanted:
        if table in refused:
            _leave(config, table, refused[table])
        else:
            _add(config, table)
    if policy is NewTables.LEAVE:
        for table in other:
            _leave(config, table, left_out(config, table))


def _find_refusals(config: Config, tables: Sequence[TableName]) -> dict[TableName, PenstockError]:
    """Return why tables cannot be followed: all are tried at once, and singly if that fails."""
    if not tables:
        return {}
    try:
        check_capturable(config, tables)
    except PenstockError as error:
        if error.retry == "backoff":
            raise
        if len(tables) == 1:
            return {tables[0]: error}
        found: dict[TableName, PenstockError] = {}
        for table in tables:
            found |= _find_refusals(config, [table])
        return found
    return {}


def _add(config: Config, table: TableName) -> None:
    # Rows that the bulk load loaded before the table was captured may be removed.
    loaded = read_ledger(config.layout.state).plan_of(table) is not None

    def change(last: TableRequest, number: int) -> TableRequest:
        if last.capture in (Capture.ADDED, Capture.REMOVED):
            return last  # another process was faster
        return make_add_request(config, table, number, replaces=loaded, paused=last.paused)

    put_request(config, table, change)
    logger.info("new table is added", table=str(table))


def _leave(config: Config, table: TableName, error: PenstockError) -> None:
    def change(last: TableRequest, _: int) -> TableRequest:
        if last.capture in (Capture.ADDED, Capture.REMOVED):
            return last
        code = str(error.as_dict()["code"])
        return replace(last, capture=Capture.LEFT, code=code, error=error.message, hint=error.hint)

    before = read_requests(config).of(table)
    if put_request(config, table, change) != before:
        logger.warning("new table is left out", table=str(table), error=error.message)


class NewTableWatch:
    """Watch for new tables beside the extraction, on a thread of its own.

    Attributes:
        error: Why the extraction has to end; None as long as it need not.
    """

    def __init__(
        self, config: Config, stop: Callable[[], None], *, clock: Clock = REAL_CLOCK
    ) -> None:
        """Prepare the thread. stop: called when the extraction has to end."""
        self.error: PenstockError | None = None
        self._config = config
        self._stop = stop
        self._clock = clock
        self._before: frozenset[TableName] = frozenset()
        self._judged_s: dict[TableName, float] = {}
        self._trouble = ""
        self._ended = threading.Event()
        self._thread = SupervisedThread("new tables", self._run, wait=self._ended.wait)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, without waiting for a server that hangs."""
        self._ended.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        pause_s = LOOK_INTERVAL_S
        while not self._ended.wait(pause_s):
            began_s = self._clock.monotonic_s()
            try:
                self.look()
                self._trouble = ""
            except NewTable as error:
                self.error = error
                self._stop()
                return
            except PenstockError as error:
                if error.message != self._trouble:
                    logger.warning("new tables cannot be looked for", error=error.message)
                self._trouble = error.message
            cost_s = self._clock.monotonic_s() - began_s
            pause_s = min(max(LOOK_INTERVAL_S, cost_s / LOOK_SHARE), LOOK_INTERVAL_S_MAX)

    def look(self) -> None:
        """Look once. Raises NewTable, and the errors of asking the source.

        Only tables that already existed at the last look are settled, so that tables which exist
        for a moment are left alone.
        """
        seen = _look(self._config)
        now_s = self._clock.monotonic_s()
        due = {
            table
            for table in seen.new & self._before
            if now_s - self._judged_s.get(table, float("-inf")) >= JUDGE_INTERVAL_S
        }
        self._before = seen.new
        _settle(self._config, seen, due)
        self._judged_s |= dict.fromkeys(due, now_s)
