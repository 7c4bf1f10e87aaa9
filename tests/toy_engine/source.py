"""Capture of changes: parts `extraction`, `lag` and `positions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from penstock.codec.columns import after_type, batch_schema, before_type, transactions_batch
from penstock.model import (
    Column,
    FlushPoint,
    Marker,
    MarkerKind,
    Op,
    PenstockError,
    Relation,
    Rows,
    Run,
    TableDefinition,
)
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)
from penstock.ports.identity import SourceIdentity
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread
from penstock.ports.positions import Positions
from penstock.ports.source import (
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
    SourceStream,
    StreamCounted,
)
from toy_engine.store import Logged, Shape, Store, ToyPosition, heartbeat_of, now_us
from toy_engine.values import images

RUN_LINES_MAX = 500  # a larger transaction is returned in pieces
POLL_S = 0.05
OPS = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}


class HistoryGone(PenstockError):
    """An error: the file is behind the change log, because it was restored from a copy."""

    code = "TY03"


# --- the part `extraction` ------------------------------------------------------------------------


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    with closing(Store(config.source.url)) as store:
        return SourceIdentity(
            pipeline=config.pipeline.name,
            engine="toy",
            system_id=store.get("identity", "", str) or "",
            timeline=0,
            database=str(store.path),
            database_id=0,
            slot="",
            publication="",
        )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[ToyEngine]:
    """Return the engine. A snapshot is a position, so nothing is kept open for the bulk load."""
    del options, tables, stop
    config = pipeline.config
    with closing(Store(config.source.url)) as store:
        begin = store.end()
        if config.pipeline.mode is Mode.DATA_CHANGE:
            begin = handed_over(pipeline, begin)
        yield ToyEngine(store, begin, Selection.parse(config.source.tables), config.pipeline.name)


def handed_over(pipeline: Pipeline, now: ToyPosition) -> ToyPosition:
    """Take the four steps at once and return where the bulk load reads and the changes begin."""
    config, state = pipeline.config, read_handover(pipeline.config)
    check_bulk_load(config, state, has_begun=has_begun(pipeline))
    if state is not None:
        return ToyPosition.parse(state.position)
    where = str(now)
    state = Handover(
        phase=HandoverPhase.DONE,
        slot_position=where,
        position=where,
        snapshot_id=where,
        snapshot_text=where,
    )
    for number, text in (
        (1, "Stop Replication: nothing is stopped"),
        (2, f"Capture Position: {where}"),
        (3, "Start Change Processes: they start"),
        (4, "Resume Replication: nothing was stopped"),
    ):
        state = state.with_step(number, text)
    write_handover(config, msgspec.structs.replace(state))
    return now


class ToyEngine(SourceEngine):
    """Source engine over the log of a store."""

    name = "toy"

    def __init__(
        self, store: Store, begin: ToyPosition, selection: Selection, pipeline: str
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._begin = begin
        self._takes = selection.takes

    def begin(self, _place: EnginePlace) -> Origin:
        """Return the store's identity. The engine can send everything again at any time."""
        identity = {
            "engine": "toy",  # the scheme, by which a reader of the log finds this engine
            "flavour": "postgresql",  # the engine whose types the columns have
            "id": self._store.get("identity", "", str) or "",
        }
        return Origin(identity=identity, resend_from=0, begin=self._begin.ordinal)

    def server_end(self) -> ServerEnd:
        """Return the end of the store's log. A thread of its own calls this."""
        with closing(Store(self._store.url)) as store:
            return ServerEnd(now_us=now_us(), position=store.end().ordinal)

    @contextmanager
    def heartbeats(self) -> Iterator[Callable[[int], None]]:
        """Return the sender: a heartbeat is a commit with a line that belongs to no table."""
        with closing(Store(self._store.url)) as store:
            yield lambda sent_us: store.beat(self._pipeline, sent_us)

    def text(self, position: int) -> str:
        return str(ToyPosition(position))

    def bytes_between(self, first: int, last: int) -> int:
        return bytes_between(self._store.url, first, last)

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    def stream(self, durable: FlushPoint) -> AbstractContextManager[ToyStream]:
        """Return a stream of the store's log. Raises HistoryGone."""
        here, end = ToyPosition(durable.position), self._store.end()
        if here > end:
            raise HistoryGone(
                f"the change log is at {here}, the database ends at {end}",
                hint="Bring the newer file back.",
            )
        return nullcontext(ToyStream(self._store, durable, self._takes, self._pipeline))

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:
        """Do nothing."""

    def has_outstanding(self) -> bool:
        return False

    def tend(self, log_access: LogAccess) -> None:
        """Do nothing."""

    def is_loss(self, error: PenstockError) -> bool:
        return isinstance(error, HistoryGone)


@dataclass
class Counted(StreamCounted):
    """Counts of a stream."""

    byte_count: int = 0
    ignored_row_count: int = 0


@dataclass(slots=True)
class ToyStream(SourceStream):
    """Stream of the lines of a store's log.

    Attributes:
        last: The number of the line that was given last.
        gsn: The last row number given so far.
        trx: The last transaction number given so far.
    """

    store: Store
    start: FlushPoint
    takes: Callable[[Any], bool]
    pipeline: str
    counts: Counted = field(default_factory=Counted)
    spilled_byte_count: int = 0

    def __post_init__(self) -> None:
        """Begin after the flush point."""
        # the next one, or the one in progress
        self.commit = ToyPosition(self.start.position).commit
        self.last = 0
        self.gsn, self.trx = self.start.gsn, self.start.trx
        self.is_inside = False

    def next_run(self, timeout_s: float) -> Run | None:
        until_s = time.monotonic() + timeout_s
        while not (lines := self._lines()):
            if time.monotonic() >= until_s:
                return None
            time.sleep(POLL_S)
        return self._run(lines)

    def _lines(self) -> list[Logged]:
        return self.store.log(commit=self.commit, number=self.last, limit=RUN_LINES_MAX)

    def _run(self, lines: list[Logged]) -> Run:
        """Return a run of some lines.

        It has whole transactions, except that the last one may continue in the next run.
        """
        rows: dict[Relation, list[tuple[int, int, Logged]]] = {}
        markers: list[Marker] = []
        ended: list[tuple[int, int, int, int]] = []
        shapes: list[Relation] = []
        for commit, group in groupby(lines, key=lambda line: line.commit):
            if not self.is_inside:
                self.trx += 1
            for line in group:
                self._take(line, rows, markers, shapes)
            position = ToyPosition.before(commit)
            self.is_inside = commit == lines[-1].commit and bool(self._rest(lines[-1]))
            if not self.is_inside:
                behind = ToyPosition.before(commit + 1).ordinal
                ended.append((position.ordinal, behind, line.commit_us, commit))
        self.last = lines[-1].number
        self.commit = lines[-1].commit + (not self.is_inside)
        return Run(
            rows=tuple(rows_of(relation, some) for relation, some in rows.items()),
            markers=tuple(markers),
            relations=tuple(shapes),
            transactions=transactions_batch(ended),
            end=None if self.is_inside else self._end(lines[-1].commit_us),
        )

    def _rest(self, line: Logged) -> list[Logged]:
        following = self.store.log(commit=line.commit, number=line.number, limit=1)
        return [one for one in following if one.commit == line.commit]

    def _end(self, commit_us: int) -> FlushPoint:
        position = ToyPosition.before(self.commit).ordinal
        return FlushPoint(position=position, gsn=self.gsn, trx=self.trx, commit_time_us=commit_us)

    def _take(
        self,
        line: Logged,
        rows: dict[Relation, list[tuple[int, int, Logged]]],
        markers: list[Marker],
        shapes: list[Relation],
    ) -> None:
        if line.op == "heartbeat":
            if line.table == heartbeat_of(self.pipeline):
                told = {"sent_us": int((line.after or {})["sent_us"] or 0)}
                markers.append(self._marker(line, MarkerKind.HEARTBEAT, data=told))
            return
        if not self.takes(line.table):
            self.counts.ignored_row_count += 1
            return
        relation = relation_of(self.store.shape_at(line.table, line.version))
        if line.op == "shape":
            shapes.append(relation)
        elif line.op == "truncate":
            table = (line.table.schema, line.table.name)
            markers.append(self._marker(line, MarkerKind.TRUNCATE, tables=(table,)))
        else:
            old, new = line.before or {}, line.after or {}
            names = [relation.columns[at].name for at in relation.key]
            moved = line.op == "update" and any(old[name] != new[name] for name in names)
            self.gsn += 1 + moved  # an update of the key has two numbers
            rows.setdefault(relation, []).append((self.gsn, self.trx, line))

    def _marker(self, line: Logged, kind: MarkerKind, **told: Any) -> Marker:
        return Marker(
            kind=kind,
            gsn=self.gsn,
            trx=self.trx,
            position=ToyPosition.before(line.commit).ordinal,
            commit_time_us=line.commit_us,
            **told,
        )

    def has_given(self, position: int) -> bool:
        return not self.is_inside and ToyPosition.before(self.commit).ordinal >= position

    def ask_for_position(self) -> None:
        """Do nothing: the position is always known."""

    def acknowledge(self, position: int) -> None:
        """Do nothing: the engine never removes changes."""


def relation_of(shape: Shape) -> Relation:
    """Return a table's version as the log has it."""
    key = tuple(shape.names.index(name) for name in shape.key)
    return Relation(
        schema=shape.table.schema,
        name=shape.table.name,
        columns=tuple(
            Column(name=name, source_type=kind, neutral=neutral, base_type=kind)
            for name, kind, neutral in shape.columns
        ),
        key=key,
        before=key,
        version=shape.version,
    )


def rows_of(relation: Relation, changes: list[tuple[int, int, Logged]]) -> Rows:
    """Return changes of one version of a table as the log has them."""
    lines = [line for _, _, line in changes]
    columns = [
        pa.array([gsn for gsn, _, _ in changes], pa.int64()),
        pa.array([trx for _, trx, _ in changes], pa.int64()),
        pa.array([int(OPS[line.op]) for line in lines], pa.uint8()),
        pa.nulls(len(lines), pa.binary()),
        images([line.after for line in lines], after_type(relation)),
        images([line.before for line in lines], before_type(relation)),
    ]
    schema = batch_schema(relation)
    return Rows(relation=relation, batch=pa.RecordBatch.from_arrays(columns, schema=schema))


# --- the parts `lag` and `positions` --------------------------------------------------------------


def bytes_between(url: str, first: int, last: int) -> int:
    """Return the bytes of log between two positions, read on a connection of its own."""
    size = "coalesce(sum(length(before)), 0) + coalesce(sum(length(after)), 0)"
    where = "commit_number >= ? and commit_number < ?"
    places = (ToyPosition(one).commit for one in (first, last))
    with closing(Store(url)) as store:
        [(found,)] = store.run(f"select {size} from changes where {where}", *places)
    return int(found)


class ToyLag(SourceReader):
    """Reader of the end of a store's log."""

    def __init__(self, config: Config, _application_name: str) -> None:
        self._store = Store(config.source.url)

    def close(self) -> None:
        self._store.close()

    @property
    def is_closed(self) -> bool:
        return self._store.is_closed

    def state(self, log: LogEnd) -> SourceState:
        here = ToyPosition(log.end.position)
        unread = self._store.log(commit=here.commit, limit=1)
        return SourceState(
            now_us=now_us(),
            position=self._store.end().ordinal,
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here.ordinal,
            unread=Unread(commit_us=unread[0].commit_us if unread else None),
            bytes_between=partial(bytes_between, self._store.url),
        )

    def retention(self) -> Retention | None:
        """Return None: everything is kept, with or without penstock."""
        return None


class ToyPositions(Positions):
    """Printer and parser of positions."""

    def __init__(self, _config: Config) -> None:
        """Ignore the configuration, because positions are the same for every file."""

    def text(self, position: int) -> str:
        return str(ToyPosition(position))

    def origin(self, _position: int) -> str:
        """Return an empty text: origins have no names."""
        return ""

    def parse(self, text: str) -> int:
        return ToyPosition.parse(text).ordinal
