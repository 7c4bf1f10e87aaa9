"""The stream of the fake source: the part `extraction`, with the defects that it can have.

Not here: the database (`harness/faults/fake_source.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from harness.faults.fake_source import (
    PIECE_ROWS,
    POLL_S,
    STEP,
    Commit,
    Fake,
    FakeLost,
    FakePosition,
    Item,
    Values,
    fake_at,
    now_us,
)
from harness.pipelines.log import Row, moves, rows_of
from penstock.codec.columns import transactions_batch
from penstock.model import (
    FlushPoint,
    Marker,
    MarkerKind,
    Op,
    PenstockError,
    Relation,
    Run,
    TableName,
)
from penstock.model.patterns import Selection
from penstock.ports.config import Config
from penstock.ports.source import Origin, ServerEnd


def has_begun(pipeline: Any) -> bool:
    """Return whether the log has a position."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(pipeline: Any, _options: Any, **_more: Any) -> Iterator[FakeEngine]:
    """Open the fake of the source's URL for a with block."""
    config: Config = pipeline.config
    selection = Selection.parse(config.source.tables)
    yield FakeEngine(fake_at(config.source.url), selection, config.pipeline.name)


class FakeEngine:
    """The fake as the source of one pipeline; a `SourceEngine`."""

    name = "fake"

    def __init__(self, fake: Fake, selection: Selection, pipeline: str) -> None:
        self._pipeline = pipeline
        self._fake = fake
        self._takes = selection.takes
        self._given = 0  # for a defect: how far the last stream got

    def begin(self, _place: Any) -> Origin:
        """Return the fake's identity, its oldest position and its end."""
        identity = {"engine": "fake", "flavour": "postgresql"}
        return Origin(identity=identity, resend_from=self._fake.oldest * STEP, begin=self._fake.end)

    def server_end(self) -> ServerEnd:
        return ServerEnd(now_us=now_us(), position=self._fake.end)

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that commits the pipeline's heartbeats at the fake."""
        name = self._pipeline
        return nullcontext(lambda sent_us: self._fake.commit(beat=(name, sent_us)))

    def text(self, position: int) -> str:
        return str(FakePosition(position))

    def bytes_between(self, first: int, last: int) -> int:
        """Return the difference of two positions."""
        return last - first

    def attempt(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the stream needs nothing beside it."""
        return nullcontext()

    def ranges(self, _durable: FlushPoint) -> None:
        """Return None: the fake is read by its stream alone."""

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[FakeStream]:
        """Open a stream after a flush point. Raises FakeLost if the next commit is discarded."""
        fake, start = self._fake, durable.position
        if start < fake.oldest * STEP - STEP // 2 and fake.defect != "a lost position goes on":
            if fake.defect == "a lost position is not a typed error":
                raise ConnectionAbortedError("try again")
            raise FakeLost(f"the log is at @{start}, the oldest commit is {fake.oldest}")
        if fake.defect == "a restart begins again" and durable.gsn:
            start = 0
        if fake.defect == "a restart skips what is there" and durable.gsn:
            start = fake.end
        if fake.defect == "a broken stream goes on where it broke":
            start = max(start, self._given)
        made = FakeStream(fake, durable, start, self._takes, self._pipeline)
        try:
            yield made
        finally:
            self._given = made.begun

    def saw(self, _run: Run) -> None:
        """Do nothing: the engine keeps no state about the runs in the log."""

    def before_flush(self, _end: FlushPoint) -> None:
        """Do nothing: the engine saves no state before a flush."""

    def has_outstanding(self) -> bool:
        """Return False: the fake's tables need no work."""
        return False

    def tend(self, _log_access: Any) -> None:
        """Do nothing: the fake's tables need no work."""

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether the error is FakeLost."""
        return isinstance(error, FakeLost)


class FakeStream:
    """Stream of the fake's commits; a `SourceStream`.

    Attributes:
        known: Position up to which everything was passed on.
        begun: Position up to which transactions have been begun.
    """

    byte_count = ignored_row_count = spilled_byte_count = 0

    def __init__(
        self,
        fake: Fake,
        durable: FlushPoint,
        start: int,
        takes: Callable[[TableName], bool],
        pipeline: str,
    ) -> None:
        self._pipeline = pipeline
        self.counts = self
        self.known = self.begun = start
        self._fake = fake
        self._takes = takes
        self._gsn, self._trx = durable.gsn, durable.trx
        self._runs = self._all_runs(start)

    def next_run(self, timeout_s: float) -> Run | None:
        until_s = time.monotonic() + timeout_s
        while (run := next(self._runs)) is None:
            if self._fake.defect == "a wait cannot be stopped" and self._gsn:
                self._fake.closed.wait()
            if time.monotonic() >= until_s:
                return None
            time.sleep(POLL_S)
        return run

    def has_given(self, position: int) -> bool:
        return self.known >= position

    def ask_for_position(self) -> None:
        """Do nothing: the stream learns each position from the commits that it reads."""

    def acknowledge(self, position: int) -> None:
        """Do nothing: the fake keeps its commits until a test discards them."""

    def _all_runs(self, start: int) -> Iterator[Run | None]:
        """Yield everything from a position on, and None while there is nothing more."""
        fake = self._fake
        at = next((i for i, one in enumerate(fake.commits) if one.position >= start), None)
        at = len(fake.commits) if at is None else at
        while True:
            if at == len(fake.commits):
                yield None
                continue
            commit = fake.commits[at]
            items = [item for item in commit.items if self._is_given(item)]
            if items:
                yield from self._runs_of(commit, self._spoilt(items))
            elif (
                commit.beat[0] == self._pipeline and fake.defect != "a heartbeat does not come back"
            ):
                yield self._heartbeat(commit)
            else:
                if fake.defect != "an idle source stands still":
                    self.known = commit.end
                    yield Run(end=self._end(commit))
            at += 1

    def _is_given(self, item: Item) -> bool:
        name = TableName(item.relation.schema, item.relation.name)
        is_undone = item.undone and self._fake.defect != "rolled back work is given"
        return self._takes(name) and not is_undone

    def _spoilt(self, items: list[Item]) -> list[Item]:
        """Return the items, changed by the defect."""
        defect = self._fake.defect
        if defect == "a change is left out":
            return items[:-1] or items
        if defect == "a change comes twice":
            return [*items, items[-1]]
        if defect == "changes come out of order":
            return items[::-1]
        if defect == "a truncate is not reported":
            return [item for item in items if item.op is not None]
        if defect == "a key change has no before image":
            return [_spoilt(item, before=None) if item.op is Op.UPDATE else item for item in items]
        if defect == "a value that was not sent is NULL":
            return [_spoilt(item, after=_without(item), absent=frozenset()) for item in items]
        if defect == "rows come before their shape":
            return [_spoilt(item, relation=_older(item.relation)) for item in items]
        return items

    def _runs_of(self, commit: Commit, items: list[Item]) -> Iterator[Run]:
        fake, size = self._fake, PIECE_ROWS
        if fake.defect == "a large transaction is one run":
            size = len(items)
        if fake.defect == "a transaction is torn":
            size = 1
        self._trx += 1
        self.begun = commit.end
        for first in range(0, len(items), size):
            piece = items[first : first + size]
            is_last = first + size >= len(items)
            torn = fake.defect == "a transaction is torn" and not is_last
            rows, markers = self._take_items(commit, piece)
            told = [(self._position(commit), commit.end, commit.at_us, commit.number)]
            if is_last:
                self.known = commit.end
            yield Run(
                rows=rows_of(rows),
                markers=tuple(markers),
                relations=tuple(item.relation for item in piece if item.op is None),
                transactions=transactions_batch(told) if is_last or torn else None,
                end=self._end(commit) if is_last or torn else None,
            )
            self._trx += torn

    def _heartbeat(self, commit: Commit) -> Run:
        self._trx += 1
        self.known = commit.end
        marker = Marker(
            kind=MarkerKind.HEARTBEAT,
            gsn=self._gsn,
            trx=self._trx,
            position=commit.position,
            commit_time_us=commit.at_us,
            data={"sent_us": commit.beat[1]},
        )
        told = [(commit.position, commit.end, commit.at_us, commit.number)]
        return Run(markers=(marker,), transactions=transactions_batch(told), end=self._end(commit))

    def _position(self, commit: Commit) -> int:
        if self._fake.defect == "positions fall":
            return commit.position - 3 * STEP * (commit.number % 2)
        return commit.position

    def _take_items(self, commit: Commit, items: list[Item]) -> tuple[list[Row], list[Marker]]:
        rows: list[Row] = []
        markers: list[Marker] = []
        for item in items:
            relation = item.relation
            if item.op is None:
                marker = Marker(
                    kind=MarkerKind.TRUNCATE,
                    gsn=self._gsn,
                    trx=self._trx,
                    position=commit.position,
                    commit_time_us=commit.at_us,
                    tables=((relation.schema, relation.name),),
                )
                markers.append(marker)
                continue
            self._gsn += 1 + moves(item.change)
            row = Row(gsn=self._gsn, trx=self._trx, position=commit.position, change=item.change)
            rows.append(row)
        return rows, markers

    def _end(self, commit: Commit) -> FlushPoint:
        return FlushPoint(
            position=commit.end, gsn=self._gsn, trx=self._trx, commit_time_us=commit.at_us
        )


def _spoilt(item: Item, **changed: Any) -> Item:
    fields = {name: getattr(item, name) for name in Item.__dataclass_fields__}
    return Item(**{**fields, **changed})


def _without(item: Item) -> Values | None:
    if item.after is None:
        return None
    return {name: None if name in item.absent else v for name, v in item.after.items()}


def _older(relation: Relation) -> Relation:
    """Return the shape before a column was added."""
    if relation.version == 1:
        return relation
    fields = {name: getattr(relation, name) for name in Relation.__dataclass_fields__}
    return Relation(**{**fields, "columns": relation.columns[:-1], "version": 1})
