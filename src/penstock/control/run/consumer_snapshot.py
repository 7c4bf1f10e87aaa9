"""The first rows of a consumer of `start = "snapshot"`, read at one consistent point.

They are read with the planners and readers of the bulk load, into a small log in the consumer's
directory (`consume/snapshot.py`). Reading begins again if a table is rewritten meanwhile or the
process dies; once all rows are read it only waits until the pipeline's log has reached the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from penstock.base.held import BaseNotReady, HeldState
from penstock.base.state import Piece, as_inserts
from penstock.codec.columns import transactions_batch
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.lines import LineDialect
from penstock.consume.lock import take_lock
from penstock.consume.pieces import SNAPSHOT_KEY, TOLD
from penstock.consume.position import ConsumerState, Position
from penstock.consume.snapshot import Made, Snapshot, place_behind
from penstock.control.pipeline.servers import base_holder, source_tables
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.log.layout import LogState, list_segments, load_state, read_durable
from penstock.log.links import LogPlace
from penstock.log.segment import open_segment
from penstock.log.writer import Writer
from penstock.model import (
    FlushPoint,
    PenstockError,
    Relation,
    Rows,
    Run,
    TableDefinition,
    TableName,
)
from penstock.ports.bulk import (
    BulkReader,
    ChunkTask,
    Planner,
    Point,
    PointUnfit,
    TableRead,
    bulk_source,
    open_planner,
)
from penstock.ports.config import Config
from penstock.ports.tables import tables_at
from penstock.sql.read_plan import read_for_log

declare("consume.snapshot.rows")

logger = structlog.get_logger(__name__)
ATTEMPTS_MAX = 5
WAIT_S = 0.2
ROWS_PER_TRANSACTION = 20_000


class SnapshotUnread(PenstockError):
    """The first rows of a consumer could not be read at one point, in several tries."""

    code = "CN30"
    retry = "backoff"


def ensure_snapshot(
    config: Config,
    place: LogPlace,
    name: str,
    takes: Callable[[TableName], bool],
    *,
    stop: Callable[[], bool],
    lock_timeout_s: float | None,
    clock: Clock = REAL_CLOCK,
) -> None:
    """Prepare the rows of a new consumer, if it begins with them; return when it may begin.

    Returns also when asked to stop. Raises ConsumerLocked, SnapshotUnread, and errors of reading.
    """
    directory = place.consumers / name
    snapshot = Snapshot(directory, place.files)
    if not snapshot.is_wanted:
        return
    lock = take_lock(directory, timeout_s=lock_timeout_s, stop=stop, files=place.files)
    if lock is None:
        return
    try:
        if snapshot.is_wanted:  # another process has not made it meanwhile
            _make_ready(config, place, directory, takes, stop, clock)
    finally:
        lock.release()


def _make_ready(
    config: Config,
    place: LogPlace,
    directory: Path,
    takes: Callable[[TableName], bool],
    stop: Callable[[], bool],
    clock: Clock,
) -> None:
    snapshot = Snapshot(directory, place.files)
    after = ConsumerState(directory, place.files).load()
    if after is None:  # dropped with lost links: rows before the remaining links are of no use
        snapshot.clear()
    made = snapshot.load_made()
    if made is None:
        log = _begun_log(place, stop, clock)
        if log is None:
            return
        made = _of_base(config, snapshot, place, log, takes, stop, clock)
        if made is None and not stop():
            made = _read(config, snapshot, log, takes, stop, clock)
        if made is None:
            return
        snapshot.save_made(made)
    if made.begin is None:
        if after is None:
            after = _first_left(place, directory)
        ordinal = int(made.ordinal)
        begin = place_behind(place, directory, after, ordinal, stop=stop, clock=clock)
        if begin is None:
            return
        made = replace(made, begin=begin)
        snapshot.save_made(made)
    snapshot.begin(made)


def _first_left(place: LogPlace, directory: Path) -> Position:
    """Return the place before the oldest link, or before the open segment."""
    links = list_segments(directory, place.extension, place.files)
    state = load_state(place.log, place.files)
    assert state is not None  # the log has begun
    return Position(segment=links[0].number if links else state.number_next, gsn=0)


def _begun_log(place: LogPlace, stop: Callable[[], bool], clock: Clock) -> LogState | None:
    """Wait for the log to have a position, because earlier changes would be missing. Returns None
    if stopped.
    """
    told = False
    while not stop():
        state, durable = load_state(place.log, place.files), read_durable(place.log, place.files)
        if state is not None and (state.end.position or durable is not None):
            return state
        if not told:
            logger.warning("waiting for the extraction to begin: penstock extract or run")
            told = True
        clock.sleep(WAIT_S)
    return None


def _of_base(
    config: Config,
    snapshot: Snapshot,
    place: LogPlace,
    log: LogState,
    takes: Callable[[TableName], bool],
    stop: Callable[[], bool],
    clock: Clock,
) -> Made | None:
    """Read all rows from the log's base, at its present end. Returns None if stopped or there is no
    base.
    """
    if not config.has_base:
        return None
    holder = base_holder(config, f"consume-{snapshot.folder.parent.name}")
    holder.clear()
    told = False
    while True:
        try:
            held, number = holder.hold_now()
            break
        except BaseNotReady as error:
            if config.merge is None:
                logger.info("rows are read from the source", reason=error.message)
                return None
            if not told:
                logger.info("waiting for the base", reason=error.message)
            told = True
            if stop():
                return None
            clock.sleep(WAIT_S)
    try:
        snapshot.clear()
        end = held.end
        source = {**log.source, SNAPSHOT_KEY: str(end.position)}
        with Writer.open(snapshot.folder, log_id=None, source=source) as writer:
            rows = _RowWriter(writer, end.position, clock)
            for table in held.manifest.tables:
                if not takes(table.table):
                    continue
                for piece in held.pieces(table.table):
                    if stop():
                        return None
                    rows.add(piece)
                    point("consume.snapshot.rows")
            writer.rotate()
            made = Made(
                log_id=writer.log_id,
                ordinal=str(end.position),
                begin=_behind(held, number, place.extension),
            )
        logger.info("snapshot read", position=str(end.position), row_count=rows.gsn)
        return made
    finally:
        held.release()


def _behind(held: HeldState, number: int, extension: str) -> Position:
    """Return the place after a held state."""
    end, done = held.end, 0
    if held.segments and held.segments[-1].name.startswith(f"{number}."):
        with open_segment(held.segments[-1], extension=extension) as segment:
            done = sum(
                marker.kind in TOLD and marker.gsn == end.gsn and marker.trx <= end.trx
                for marker in segment.markers()
            )
    return Position(segment=number, gsn=end.gsn, markers=done, log_id=held.manifest.log_id)


def _read(
    config: Config,
    snapshot: Snapshot,
    log: LogState,
    takes: Callable[[TableName], bool],
    stop: Callable[[], bool],
    clock: Clock,
) -> Made | None:
    """Read all rows at one point; again at a later point if a table was rewritten. Returns None if
    stopped.
    """
    for _ in range(ATTEMPTS_MAX):
        snapshot.clear()
        tables = [one for one in source_tables(config) if takes(one.name)]
        with open_planner(config) as planner:
            try:
                return _read_at(config, planner, snapshot, log, tables, stop, clock)
            except PointUnfit as error:
                logger.info("snapshot is taken again", reason=error.message)
    raise SnapshotUnread(
        f"tables were rewritten {ATTEMPTS_MAX} times while they were read for "
        f"{snapshot.folder.parent.name}",
        hint="Start the consumer again while no client truncates or alters tables.",
    )


def _read_at(
    config: Config,
    planner: Planner,
    snapshot: Snapshot,
    log: LogState,
    tables: Sequence[TableDefinition],
    stop: Callable[[], bool],
    clock: Clock,
) -> Made | None:
    at = planner.fresh_point()
    source = {**log.source, SNAPSHOT_KEY: str(at.position)}
    # As the pipeline's log counts positions, which may have continued after another server's.
    ordinal = at.position.ordinal + tables_at(config.source.url).shift(config)
    with Writer.open(snapshot.folder, log_id=None, source=source) as writer:
        rows = _RowWriter(writer, ordinal, clock)
        for definition in tables:
            reading = reading_of(config, planner, at, definition)
            for block in reading.blocks():
                if stop():
                    return None
                reading.relation = rows.write(reading.relation, block, reading.dialect)
                point("consume.snapshot.rows")
        writer.rotate()
        made = Made(log_id=writer.log_id, ordinal=str(ordinal))
    planner.release()
    logger.info("snapshot read", position=str(at.position), row_count=rows.gsn)
    return made


class _RowWriter:
    """Writer of rows into the snapshot's small log. Each block is a transaction of its own."""

    def __init__(self, writer: Writer, position: int, clock: Clock) -> None:
        self._writer = writer
        self._position = position
        self._clock = clock
        self.gsn = self._trx = 0

    def write(self, relation: Relation, block: bytes, dialect: LineDialect) -> Relation:
        """Write whole lines of a table; return the relation of its further rows."""
        columns = cells_of(block, len(relation.columns))
        count = len(columns[0]) if columns else block.count(b"\n")
        if not count:
            return relation
        self._trx += 1
        rows = inserts(relation, columns, count, gsn=self.gsn + 1, trx=self._trx, dialect=dialect)
        self._put(rows)
        return rows.relation

    def add(self, piece: Piece) -> None:
        """Add rows of a table unchanged."""
        count = piece.rows.num_rows
        for at in range(0, count, ROWS_PER_TRANSACTION):
            self._trx += 1
            some = piece.slice(at, ROWS_PER_TRANSACTION)
            batch = as_inserts(some, gsn=self.gsn + 1, trx=self._trx)
            self._put(Rows(relation=piece.relation, batch=batch))

    def _put(self, rows: Rows) -> None:
        self.gsn += rows.batch.num_rows
        now_us = self._clock.now_us()
        end = FlushPoint(
            position=self._position, gsn=self.gsn, trx=self._trx, commit_time_us=now_us
        )
        told = transactions_batch([(self._position, self._position, now_us, 0)])
        self._writer.write(Run(rows=(rows,), transactions=told, end=end))
        if self._writer.due():
            self._writer.rotate()


@dataclass(slots=True, kw_only=True)
class Reading:
    """Reading of one table at the point."""

    url: str
    at: Point
    tasks: Sequence[ChunkTask]
    relation: Relation
    dialect: LineDialect

    def blocks(self) -> Iterator[bytes]:
        """Yield whole lines. Raises PointUnfit if the point does not have the rows."""
        for task in self.tasks:
            reader = bulk_source(self.url).open_reader(
                self.url, self.at.snapshot_id, self.at.snapshot_text
            )
            if reader is None:
                raise _unfit(task.table, "the snapshot is gone")
            try:
                yield from self._chunk(reader, task)
            finally:
                reader.close()

    def _chunk(self, reader: BulkReader, task: ChunkTask) -> Iterator[bytes]:
        if reader.was_rewritten(task):
            raise _unfit(task.table, "it was rewritten")
        try:
            yield from reader.lines(task, self.dialect)
        except PenstockError as error:
            if reader.tells_rewritten(error):
                raise _unfit(task.table, "it was rewritten") from error
            raise


def _unfit(table: TableName, why: str) -> PointUnfit:
    return PointUnfit(
        f"{table} cannot be read at the point: {why}",
        hint="Nothing to do: a later point is taken.",
    )


def reading_of(config: Config, planner: Planner, at: Point, definition: TableDefinition) -> Reading:
    """Return how a table is read at a point, in the log's shape and types. Raises PointUnfit."""
    url = config.source.url
    relation, read_plan = read_for_log(definition, url)
    columns = tuple(column.name for column in relation.columns)
    listed = columns if read_plan is None else read_plan.expressions
    read = TableRead(definition=definition, columns=tuple(listed))
    chunks = planner.chunks(at, [read]).get(definition.name)
    if chunks is None:
        raise _unfit(definition.name, "it was rewritten, or the snapshot is gone")
    tasks = [
        ChunkTask(
            source_url=url,
            target_url="",
            table=definition.name,
            target=definition.name,
            chunk=chunk,
            columns=columns,
            binary=False,
            snapshot_id=at.snapshot_id,
            snapshot_text=at.snapshot_text,
            plan="",
            replica_role=False,
            read_plan=read_plan,
        )
        for chunk in chunks
    ]
    # A COPY of the source's own, or lines that hold every character, also the zero.
    dialect = LineDialect.COPY if read_plan is None else LineDialect.LOAD_DATA
    return Reading(url=url, at=at, tasks=tasks, relation=relation, dialect=dialect)
