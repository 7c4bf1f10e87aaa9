"""Stream of the format `ckt`: offsets in the log, and the consumer that keeps its segments.

A stream is a consumer of the log: its directory has a link to each segment until a micro-batch with
the segment is committed, so nothing that it needs is removed. Its checkpoint says what it has read.
An offset names the log, and the last transaction; a micro-batch is the transactions between two
offsets, whole. It has everything that is durable when it begins.

Spark makes a reader in several processes: only the one that asks for offsets holds the consumer's
lock. Not here: registration (`penstock.consume.registration`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.consume.lock import take_lock
from penstock.consume.pieces import told_markers
from penstock.consume.position import ConsumerState, Known, Position
from penstock.consume.registration import register
from penstock.host.files import Lock
from penstock.host.state_of_log import StateOfOtherLog, check_log_id
from penstock.log import links
from penstock.log.change_tables import ChangeShape
from penstock.log.layout import LogState, load_state, read_durable
from penstock.log.links import LogPlace
from penstock.log.scan import Part, Scan
from penstock.log.segment import Segment
from penstock.model import PenstockError, Relation, TableName
from penstock.model.sections import Start
from penstock.spark.options import Options
from penstock.spark.reading import group_parts, read_segments, telling

LOCK_WAIT_S = 30.0
SHAPE_FILE = "spark-shape.json"


class StreamUnnamed(PenstockError):
    """Error: a stream has no name as a consumer, so segments would not be kept for it."""

    code = "SK03"
    retry = "never"


class ShapeChanged(PenstockError):
    """A table got a column or another type while a stream read it. Fields: table, columns."""

    code = "SK04"
    retry = "operator"


class Offset(TypedDict):
    """Place in a log: after a transaction, in a segment. Spark keeps it in the checkpoint.

    Attributes:
        log: Id of the log.
        segment: Number of the segment that has the transaction's end, or begins after it.
        gsn: Number of the last row change up to there.
        trx: Number of the transaction.
    """

    log: str
    segment: int
    gsn: int
    trx: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Plan of a stream, and its name as a consumer.

    Attributes:
        scan: Without parts; its directories are the consumer's and the log's.
        only: Columns of the table that are read; None for all.
        start: Where a new consumer begins.
    """

    scan: Scan
    place: LogPlace
    consumer: str
    start: Start
    only: tuple[str, ...] | None

    @classmethod
    def of(cls, scan: Scan, options: Options, place: LogPlace) -> Streaming:
        """Return what the options ask for. Raises StreamUnnamed."""
        if not options.consumer:
            raise StreamUnnamed(
                "a stream is a consumer of the log and needs a name",
                hint='Give it one, which no other stream has: .option("consumer", "fresh_orders").',
            )
        directory = place.consumers / options.consumer
        return cls(
            scan=replace(scan, directories=(directory, place.log), parts=()),
            place=place,
            consumer=options.consumer,
            start=Start(options.start),
            only=options.column_names,
        )

    @property
    def directory(self) -> Path:
        """Directory of the consumer."""
        return self.place.consumers / self.consumer

    @property
    def state(self) -> ConsumerState:
        """Saved state of the consumer."""
        return ConsumerState(self.directory, self.place.files)


class CktStreamReader(DataSourceStreamReader):
    """Reader of one stream."""

    def __init__(self, streaming: Streaming) -> None:
        """Keep the plan. Nothing is registered before an offset is asked for."""
        self._streaming = streaming
        self._lock: Lock | None = None

    # -- called in the process that follows the stream ---------------------------------------

    def initialOffset(self) -> Any:  # noqa: N802 - Spark's name
        """Return where the consumer begins.

        A known consumer goes on where it had read to: its checkpoint is a new one.

        Raises ConsumerLocked, StartUnsettled.
        """
        with telling():
            self._hold()
            position = self._streaming.state.load()
            assert position is not None, "a consumer is registered with a position"
            return self._offset_of(position)

    def latestOffset(self) -> Any:  # noqa: N802 - Spark's name
        """Return the durable end of the log. Spark asks for it before `initialOffset`.

        Raises ConsumerLocked, StartUnsettled.
        """
        with telling():
            self._hold()
            state = self._load_log()
            durable = read_durable(self._streaming.place.log, self._streaming.place.files)
            if durable is None or durable.number < state.number_next:
                return Offset(
                    log=state.log_id,
                    segment=state.number_next,
                    gsn=state.end.gsn,
                    trx=state.end.trx,
                )
            return Offset(
                log=state.log_id,
                segment=durable.number,
                gsn=durable.end.gsn,
                trx=durable.end.trx,
            )

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return the groups of segments between two offsets.

        Raises SegmentMissing, StateOfOtherLog, and ShapeChanged if the table's shape is another one
        than that of the stream.
        """
        with telling():
            scan = self._scan_between(start, end)
            parts = []
            for number in range(start["segment"], end["segment"] + 1):
                if end["trx"] > start["trx"]:
                    part = self._plan(scan, number, end)
                    parts += [part] if part is not None else []
            return [
                InputPartition((one.value, start, end)) for one in group_parts(parts) if one.value
            ]

    def commit(self, end: Any) -> None:
        """Release the segments before an offset: its micro-batch and all before are committed."""
        with telling():
            streaming = self._streaming
            streaming.state.save(self._position_of(end))
            links.release(
                streaming.directory,
                through=end["segment"] - 1,
                log_id=end["log"],
                extension=streaming.place.extension,
                files=streaming.place.files,
            )

    def stop(self) -> None:
        """Let another process be the consumer."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- called in the processes that read ---------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a group. Raises SegmentMissing, SegmentCorrupt."""
        numbers, start, end = partition.value
        with telling():
            yield from read_segments(self._scan_between(start, end), numbers)

    # ----------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Be the consumer: registered, and alone."""
        if self._lock is None:
            streaming, files = self._streaming, self._streaming.place.files
            register(streaming.place, streaming.consumer, start=streaming.start)
            self._lock = take_lock(streaming.directory, timeout_s=LOCK_WAIT_S, files=files)
            save_shape(streaming)

    def _load_log(self) -> LogState:
        state = load_state(self._streaming.place.log, self._streaming.place.files)
        assert state is not None, "the schema came from this log"
        return state

    def _scan_between(self, start: Offset, end: Offset) -> Scan:
        check_log_id(
            start["log"],
            end["log"],
            place=f"the checkpoint of the stream {self._streaming.consumer}",
            hint="The log was created again: begin the stream with a new checkpoint and another "
            "name of the consumer.",
            error=StateOfOtherLog,
        )
        scan = self._streaming.scan
        wanted = replace(scan.wanted, trx_after=start["trx"], trx_through=end["trx"])
        return replace(scan, wanted=wanted, log_id=start["log"])

    def _plan(self, scan: Scan, number: int, end: Offset) -> Part | None:
        state = self._load_log()
        if number == end["segment"] == state.number_next and end["trx"] == state.end.trx:
            return None  # it is not begun, or has nothing yet
        with scan.open(number) as segment:
            part = scan.plan(segment)
            if part is not None:
                self._check_shape(segment)
            return part

    def _check_shape(self, segment: Segment) -> None:
        scan = self._streaming.scan
        if scan.table is None or not isinstance(scan.shape, ChangeShape):
            return
        here = shape_in(segment, self._streaming)
        joined = scan.shape.join(here)
        if joined == scan.shape:
            return
        changed = sorted(
            name for name, kind in joined.columns.items() if scan.shape.columns.get(name) != kind
        )
        save_shape(replace(self._streaming, scan=replace(scan, shape=joined)))
        table = ".".join(scan.table)
        raise ShapeChanged(
            f"{table} got another shape since the stream began: {', '.join(changed)}",
            hint="Start the query again with the same checkpoint: its schema then has the change.",
            table=table,
            columns=changed,
        )

    def _offset_of(self, position: Position) -> Offset:
        state = self._load_log()
        check_log_id(
            position.log_id,
            state.log_id,
            place=f"the position of the consumer {self._streaming.consumer}",
            hint="The log was created again: give the stream another name and a new checkpoint.",
            error=StateOfOtherLog,
        )
        at = Offset(log=state.log_id, segment=position.segment, gsn=position.gsn, trx=state.end.trx)
        if position.segment < state.number_next or position.gsn != state.end.gsn:
            with self._streaming.scan.open(position.segment) as segment:
                at["trx"] = last_transaction(segment, position)
        return at

    def _position_of(self, offset: Offset) -> Position:
        position = Position(segment=offset["segment"], gsn=offset["gsn"], log_id=offset["log"])
        state = self._load_log()
        if offset["segment"] == state.number_next and offset["trx"] == state.end.trx:
            return position
        with self._streaming.scan.open(offset["segment"]) as segment:
            done = [
                marker
                for marker in told_markers(segment)
                if marker.gsn == offset["gsn"] and marker.trx <= offset["trx"]
            ]
        return replace(position, markers=len(done))


def last_transaction(segment: Segment, position: Position) -> int:
    """Return the last transaction with a change up to a consumer's position in the segment."""
    found = segment.start.trx
    for entry in segment.row_frames():
        if entry.gsn_last <= position.gsn:
            found = max(found, entry.trx_last)
        elif entry.gsn_first <= position.gsn:
            batch = segment.read_rows(entry).batch
            for gsn, trx in zip(
                batch.column("gsn").to_pylist(), batch.column("trx").to_pylist(), strict=True
            ):
                found = max(found, trx) if gsn <= position.gsn else found
    markers = told_markers(segment)
    before = [marker for marker in markers if marker.gsn < position.gsn]
    here = [marker for marker in markers if marker.gsn == position.gsn][: position.markers]
    return max([found, *(marker.trx for marker in (*before, *here))])


def shape_in(segment: Segment, streaming: Streaming) -> ChangeShape:
    """Return the shape of the stream's table in a segment."""
    table = streaming.scan.table
    relations: list[Relation] = [
        segment.relation(totals.id)
        for totals in segment.tables
        if (totals.schema, totals.name) == (table and tuple(table))
    ]
    return ChangeShape.of(relations, has_sent=True, only=streaming.only)


def save_shape(streaming: Streaming) -> None:
    """Save the shape beside the consumer's position.

    The log may have no row of the table any more when the query is started again.
    """
    table, shape = streaming.scan.table, streaming.scan.shape
    if table is not None and isinstance(shape, ChangeShape):
        told = {
            "table": list(table),
            "columns": _encode(shape.columns),
            "before": _encode(shape.before),
            "is_wide": shape.is_wide,
        }
        streaming.state.save_known(SHAPE_FILE, Known(told=told))


def load_shape(directory: Path) -> tuple[TableName, ChangeShape] | None:
    """Return a stream's table and its saved shape; None if there is none. directory: consumer's."""
    told = ConsumerState(directory).load_known(SHAPE_FILE).told
    if not told:
        return None
    shape = ChangeShape(
        columns=_decode(told["columns"]),
        before=_decode(told["before"]),
        is_wide=told["is_wide"],
        has_sent=True,
    )
    return TableName(*told["table"]), shape


def _encode(types: dict[str, pa.DataType]) -> str:
    schema = pa.schema(list(types.items()))
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _decode(text: str) -> dict[str, pa.DataType]:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    return {field.name: field.type for field in schema}
