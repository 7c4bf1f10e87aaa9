"""Writer of the change log: one writer per directory, one thread.

Files on disk: closed segments `0.ckt 1.ckt ...`, at most one open `N.ckt_`, the log's state
`LOG.json`, the lock. Durable is exactly what the last flush() or rotate() returned. Memory: frames
are written out (not synced) beyond `buffer_size_bytes_max`, however long a transaction is. After
any failed write or sync the writer refuses to continue: the contents of the disk are unknown until
recovery has looked, so the process starts again through `Writer.open`.

The order of runs is checked before anything is written. GSNs are one higher each, or two higher if
an update with a before image takes one for its old key. Transactions are dense and each is
announced. Flush points never go back. A run that breaks this would be loaded wrongly much later;
here it still stops the source at the place where it happened.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import replace as changed
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec import ckt
from penstock.codec.ckt import FrameEntry, FrameKind, MessageEncoder
from penstock.codec.columns import batch_schema
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, DirectoryLocked, Files
from penstock.log import links
from penstock.log.closing import (
    Place,
    SegmentKeeper,
    publish,
    state_behind,
    store_state,
    write_footer,
)
from penstock.log.cut import Cut, list_cuts, remove_passed
from penstock.log.frames import FrameBuffer
from penstock.log.layout import (
    DONE_NAME,
    EXTENSION_DEFAULT,
    Done,
    Durable,
    DurableMark,
    checked_extension,
    open_name,
    save_done,
)
from penstock.log.recovery import recover
from penstock.log.segment import ClosedSegment, IndexBuilder, row_facts
from penstock.log.transactions import never_fall
from penstock.model import LOAD_AGAIN, FlushPoint, Marker, Op, PenstockError, Relation, Rows, Run
from penstock.model.keeping import Keeping
from penstock.model.position import to_ordinal


class RunInvalid(PenstockError):
    """A run does not continue the log: numbers are missing or twice, or a position goes back."""

    code = "LG07"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Present end of the log.

    Attributes:
        gsn: number of the last row.
        trx: the highest transaction seen.
        announced: the last transaction whose commit position is known.
        end: the last end of a run.
        position: of the last announced transaction; 0 before any.
        at_commit: the last run ended where a transaction ends.
    """

    gsn: int
    trx: int
    announced: int
    end: FlushPoint
    position: int = 0
    at_commit: bool = True


def start_of(point: FlushPoint) -> Sequence:
    """Return the sequence directly after a flush point."""
    return Sequence(gsn=point.gsn, trx=point.trx, announced=point.trx, end=point)


def advance(last: Sequence, run: Run) -> Sequence:
    """Return the sequence after a run. Raises RunInvalid if the run does not follow `last`."""
    gsn = _last_number(last.gsn, run.rows)
    trx = last.trx
    for rows in run.rows:
        low, high = _bounds(rows)
        if low <= last.announced:
            raise _invalid(f"transaction {low} in {rows.relation.full_name}", last)
        trx = max(trx, high)
    for marker in run.markers:
        if not last.gsn <= marker.gsn <= gsn or marker.trx < last.end.trx:
            raise _invalid(f"{marker.kind} marker behind row {marker.gsn}", last)
        trx = max(trx, marker.trx)
    announced, position = _find_announced(last, run)
    if run.end is None:
        if trx > announced + 1:
            raise _invalid(
                f"transaction {trx} behind transaction {announced}, the last announced", last
            )
        return replace(
            last, gsn=gsn, trx=trx, announced=announced, position=position, at_commit=False
        )
    end = run.end
    if end.gsn != gsn or end.trx < trx or end.position < last.end.position:
        raise _invalid(f"flush point {end} behind row {gsn}, transaction {trx}", last)
    if end.trx != announced:
        raise _invalid(
            f"flush point {end} behind transaction {announced}, the last announced", last
        )
    return Sequence(gsn=gsn, trx=end.trx, announced=announced, end=end, position=position)


def _find_announced(last: Sequence, run: Run) -> tuple[int, int]:
    """Return the last transaction that is announced in this run, and its position."""
    if run.transactions is None or not run.transactions.num_rows:
        return last.announced, last.position
    positions = run.transactions.column(0)
    first, final = (to_ordinal(positions[at].as_py()) for at in (0, len(positions) - 1))
    if first < last.position or not never_fall(positions):
        raise _invalid(f"transaction {last.announced + 1} at a lower position", last)
    return last.announced + len(positions), final


def _last_number(last: int, batches: tuple[Rows, ...]) -> int:
    """Return the number of the last row; rows are last + 1, last + 2, ... over all batches.

    Only an update with a before image may leave one number out directly before its own: that of
    the old key's row.
    """
    columns = [rows.batch.column(0) for rows in batches]
    count = sum(len(column) for column in columns)
    if not all(len(column) for column in columns):
        raise RunInvalid("a batch without rows", hint=_HINT)
    for rows, column in zip(batches, columns, strict=True):
        if column.null_count or _least_step(column) < 1:
            raise RunInvalid(f"rows of {rows.relation.full_name} are not in order", hint=_HINT)
    if not count:
        return last
    numbers = columns[0] if len(columns) == 1 else _merge_numbers(columns)
    low, high = numbers[0].as_py(), numbers[count - 1].as_py()
    dense = len(columns) == 1 or _least_step(numbers) == 1
    dense = dense and low == last + 1 and high == last + count
    if not dense and not _only_keys_lack(last, batches):
        raise RunInvalid(
            f"rows numbered {low} to {high} ({count}) do not follow row {last}", hint=_HINT
        )
    return int(high)


def _least_step(column: pa.Array) -> int:
    """Return the least difference of two neighbours in a column without NULL; 1 if it has none."""
    # Not by Arrow's functions, which take several times as long for a few rows.
    values = column.to_numpy()
    return int((values[1:] - values[:-1]).min(initial=1))


def _only_keys_lack(last: int, batches: tuple[Rows, ...]) -> bool:
    """Return whether each number follows the previous one, or is the second of an update."""
    numbers = np.concatenate([rows.batch.column("gsn").to_numpy() for rows in batches])
    order = np.argsort(numbers, kind="stable")
    steps = np.diff(numbers[order], prepend=last)
    two = np.concatenate([_with_before(rows) for rows in batches])[order]
    return bool(((steps == 1) | (two & (steps == 2))).all())


def _with_before(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are updates with a before image."""
    updates = rows.batch.column("op").to_numpy() == Op.UPDATE
    found: npt.NDArray[np.bool_] = updates & np.asarray(rows.batch.column("before").is_valid())
    return found


def _merge_numbers(columns: list[Any]) -> Any:
    numbers = pa.concat_arrays(columns)
    return numbers.take(pc.array_sort_indices(numbers))


def _bounds(rows: Rows) -> tuple[int, int]:
    """Return the first and the last transaction; raise RunInvalid if their numbers do not rise."""
    column = rows.batch.column(1)
    if column.null_count or _least_step(column) < 0:
        raise RunInvalid(f"transactions of {rows.relation.full_name} are not in order", hint=_HINT)
    return column[0].as_py(), column[len(column) - 1].as_py()


_HINT = "This is a defect in penstock: nothing was written; please report it with this message."


def _invalid(what: str, last: Sequence) -> RunInvalid:
    return RunInvalid(
        f"{what} does not follow row {last.gsn}, transaction {last.end.trx}, "
        f"position {last.end.position}",
        hint=_HINT,
    )


faults.declare("log.create.before", "log.create.after", "log.flush.before", "log.flush.after")


UNANNOUNCED_COUNT_MAX = 50_000  # transactions that wait in memory for their frame


class LogLocked(PenstockError):
    """Another extractor writes this log. Fields: path, holder_pid."""

    code = "LG05"
    retry = "operator"


class WriterBroken(PenstockError):
    """The writer was used after a failure that leaves the state of the disk unknown."""

    code = "LG06"
    retry = "backoff"


class TransactionOpen(PenstockError):
    """The call is not allowed inside a transaction, or while a segment is open."""

    code = "LG12"
    retry = "never"


class LogBehindSource(PenstockError):
    """The source was told to forget changes that the log does not hold."""

    code = "LG13"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Bounds of a log; defaults as in Wirekite's guide.

    Attributes:
        operation_count_max: rotate at the first COMMIT after this many rows.
        flush_interval_s: rotate a segment with data after this time.
        segment_size_bytes_max: rotate at the first COMMIT beyond this size.
        compression: of rows: lz4, zstd or None.
        process_commits: BEGIN and COMMIT are wanted when the log is printed.
        consumers: directory of the consumers' directories.
        keeping: limits for keeping linked segments; None: a loader removes them.
    """

    operation_count_max: int = 150_000
    flush_interval_s: float = 5.0
    segment_size_bytes_max: int = 256 * 2**20
    buffer_size_bytes_max: int = 8 * 2**20
    compression: str | None = "lz4"
    process_commits: bool = False
    extension: str = EXTENSION_DEFAULT
    consumers: Path | None = None
    keeping: Keeping | None = None
    clock: Clock = REAL_CLOCK

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that cannot work."""
        checked_extension(self.extension)
        if min(self.operation_count_max, self.segment_size_bytes_max) < 1:
            raise ValueError("a segment must be able to hold an operation")
        if self.compression not in ("lz4", "zstd", None):
            raise ValueError(f"unknown compression {self.compression!r}")


class _OpenSegment:
    """The file being written, with its index and the ids of its relations."""

    def __init__(self, buffer: FrameBuffer, header: ckt.SegmentHeader, opened_at_s: float) -> None:
        self.buffer = buffer
        self.header = header
        self.builder = IndexBuilder(header)
        self.opened_at_s = opened_at_s
        # By identity first: to hash a relation of 1,000 columns for every batch would cost too
        # much. The relation is kept beside its id, so no other object can get that id.
        self.ids: dict[int, tuple[int, Relation]] = {}
        self.relation_ids: dict[Relation, int] = {}
        self.encoders: dict[int, MessageEncoder] = {}
        self.version_of: dict[tuple[int, str, str], int] = {}


class Writer:
    """Appends runs to the log. Not thread-safe; holds the directory's lock until close().

    Attributes:
        resume: the newest durable flush point at opening; position 0 for an empty log.
        recovered: segments that recovery closed, for the caller to record.
    """

    def __init__(self, place: Place, options: WriterOptions, lock: Any) -> None:
        """Keep the arguments. Not for callers, which use open()."""
        self._place = place
        self._options = options
        self._lock = lock
        self._failure: BaseException | None = None
        self._segment: _OpenSegment | None = None
        self._transaction_encoders: dict[bool, MessageEncoder] = {}
        self._unannounced: list[pa.RecordBatch] = []
        self.recovered: tuple[ClosedSegment, ...] = ()
        self._cuts: list[Cut] = []
        self._mark = DurableMark(place.directory, place.files)
        self._keeper = SegmentKeeper(place, options.keeping or Keeping())

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        log_id: str | None,
        source: Mapping[str, str],
        resend_from: int | None = None,
        options: WriterOptions | None = None,
        files: Files = REAL_FILES,
    ) -> Writer:
        """Create or recover the log in this directory and take its lock.

        `source` is the permanent identity of the captured database (engine, system id, database,
        slot), never its address. Without a `log_id` it accepts the existing log, or creates one.
        The source can certainly send again from `resend_from`; None if unknown. Raises LogLocked
        and the errors of `recovery.recover`; then nothing is held.
        """
        options = options or WriterOptions()
        files.make_directory(directory)
        try:
            lock = files.lock(directory)
        except DirectoryLocked as error:
            raise LogLocked(error.message, hint=error.hint, **error.fields) from error
        place = Place(
            directory=directory,
            extension=options.extension,
            consumers=options.consumers,
            files=files,
            clock=options.clock,
        )
        try:
            writer = cls(place, options, lock)
            writer._recover(log_id, source, resend_from)
            writer._cuts = list_cuts(directory, options.extension, files)
            writer._forget_cuts()
            writer._remove_done()
        except BaseException:
            lock.release()
            raise
        return writer

    def _recover(
        self, log_id: str | None, source: Mapping[str, str], resend_from: int | None
    ) -> None:
        found = recover(self._place, log_id=log_id, source=source, resend_from=resend_from)
        self._state = found.state
        self.recovered = found.closed
        self.resume = found.state.end
        self._sequence = start_of(self.resume)
        self._unannounced, self._announced = [], self.resume.trx
        self._durable = self.resume
        self._unflushed = False
        self._remove_linked()

    def _remove_linked(self) -> None:
        """Remove the log's names of old segments if consumers have links and no loader does it.

        A skipped link is ignored. Without consumers everything stays.
        """
        consumers = self._place.consumers if self._options.keeping is not None else None
        if consumers is not None and links.registered_consumers(consumers, self._place.files):
            self._keeper.remove_outlived(self._state.number_next - 1)

    def _forget_cuts(self) -> None:
        """Remove the kept bytes of an earlier end of the log once the log has them again."""
        if self._cuts:
            self._cuts = remove_passed(self._place, self._cuts, self._durable)

    def _remove_done(self) -> None:
        """Remove CHANGE.DONE: extraction continues, and no loader may take the log for finished."""
        path = self._place.directory / DONE_NAME
        if self._place.files.exists(path):
            self._place.files.unlink(path)
            self._place.files.fsync_directory(self._place.directory)

    # --- properties at any time ------------------------------------------------------------

    @property
    def log_id(self) -> str:
        """Identity of this log (a uuid)."""
        return self._state.log_id

    @property
    def source(self) -> Mapping[str, str]:
        """Identity of the source, as given when the log was created."""
        return self._state.source

    @property
    def cut_files(self) -> tuple[Path, ...]:
        """Files with bytes that recovery cut off, now or earlier, and the log does not
        have again.
        """
        return tuple(cut.path for cut in self._cuts)

    @property
    def segment_number(self) -> int:
        """Number of the segment that is open, or that will be opened by the next data."""
        return self._state.number_next

    @property
    def durable(self) -> FlushPoint:
        """The newest flush point on disk, which may be acknowledged to the source."""
        return self._durable

    @property
    def end(self) -> FlushPoint:
        """Last written end of a run: the next flush makes it durable."""
        return self._sequence.end

    @property
    def at_commit(self) -> bool:
        """Return whether the last run ended where a transaction ends: flush and rotate are
        allowed.
        """
        return self._sequence.at_commit

    @property
    def operation_count(self) -> int:
        """Rows in the open segment, flushed or not."""
        return self._segment.builder.row_count if self._segment else 0

    @property
    def segment_size_bytes(self) -> int:
        """Size of the open segment including frames in memory; 0 if none is open."""
        return self._segment.buffer.end_bytes if self._segment else 0

    @property
    def segment_age_s(self) -> float:
        """Age of the open segment, seconds; 0 if none is open."""
        if self._segment is None:
            return 0.0
        return self._options.clock.monotonic_s() - self._segment.opened_at_s

    @property
    def has_unflushed(self) -> bool:
        """Return whether anything was written that no flush point covers yet."""
        return self._unflushed or self._sequence.end != self._durable

    def due(self) -> bool:
        """Return whether to rotate now: enough operations, bytes or time, and at a COMMIT."""
        if self._segment is None or not self.at_commit:
            return False
        return (
            self.operation_count >= self._options.operation_count_max
            or self.segment_size_bytes >= self._options.segment_size_bytes_max
            or self.segment_age_s >= self._options.flush_interval_s
        )

    def check_acknowledged(self, position: int) -> None:
        """Raise LogBehindSource if the source was told to forget more than the log holds.

        Call this before streaming starts: the server would begin at `position` (a slot's
        confirmed_flush_lsn), and silently leave a gap.
        """
        if position > self._durable.position:
            raise LogBehindSource(
                f"the log in {self._place.directory} ends at position {self._durable.position}, "
                f"but the source was told to forget everything before {position}",
                hint="Changes between are lost: the directory was restored from a copy, or its "
                f"newest segment is damaged; {LOAD_AGAIN}",
                path=str(self._place.directory),
                expected=position,
                actual=self._durable.position,
            )

    # --- writing -----------------------------------------------------------------------------

    def write(self, run: Run) -> None:
        """Append a run, in memory or written out; it is durable only after flush().

        A run without contents only moves the position. Raises RunInvalid before anything is
        written, DiskFull or FileFailed when writing out.
        """
        self._usable()
        sequence = advance(self._sequence, run)
        try:
            for rows in run.rows:
                self._write_rows(rows)
            for marker in run.markers:
                self._write_marker(marker)
            for relation in run.relations:
                self._write_relation(relation)
            if run.transactions is not None and run.transactions.num_rows:
                self._tell(run.transactions)
        except BaseException as error:
            self._failure = error
            raise
        self._sequence = sequence

    def flush(self) -> FlushPoint:
        """Make everything written so far durable; return the flush point to acknowledge.

        With an open segment this is a flush point frame, one write and one fdatasync; without one,
        if only the position moved, it replaces the log's state. Raises TransactionOpen inside a
        transaction, DiskFull or FileFailed if the disk fails.
        """
        self._usable()
        if not self.at_commit:
            raise TransactionOpen("flush asked for inside a transaction")
        if not self.has_unflushed:
            return self._durable
        try:
            faults.point("log.flush.before")
            self._flush(self._sequence.end)
            faults.point("log.flush.after")
        except BaseException as error:
            self._failure = error
            raise
        return self._durable

    def rotate(self) -> ClosedSegment | None:
        """Flush and close the open segment; the next data opens the next one. Raises as flush().

        Returns the facts to record, or None if no segment is open.
        """
        self.flush()
        segment = self._segment
        if segment is None:
            return None
        try:
            write_footer(segment.buffer, segment.builder, self._options.clock)
            segment.buffer.close()
            state = state_behind(self._state, segment.header, segment.builder)
            number = segment.header.number
            closed, self._state = publish(self._place, store_state(self._place, state), number)
            self._remove_linked()
        except BaseException as error:
            self._failure = error
            raise
        self._segment = None
        return closed

    def rewind(self) -> FlushPoint:
        """Forget everything that no flush point covers (the source disconnected in a transaction).

        It goes through recovery; `recovered` then holds the closed segment. Forgotten changes were
        never acknowledged. Returns the flush point to resume from. Raises as open().
        """
        self._usable()
        try:
            self._close_segment()
            self._recover(self._state.log_id, self._state.source, 0)
        except BaseException as error:
            self._failure = error
            raise
        return self.resume

    def finish(self) -> None:
        """Write CHANGE.DONE, durably: nothing follows after the log's end. Raises TransactionOpen.

        Call rotate() first: the caller has to record its result.
        """
        if self._segment is not None:
            raise TransactionOpen("CHANGE.DONE asked for while a segment is open")
        self.flush()
        done = Done(number_last=self._state.number_next - 1, end=self._durable)
        save_done(self._place.directory, done, self._place.files)

    def close(self) -> None:
        """Close the file and release the lock. Nothing is flushed: call rotate() first to keep
        rows.
        """
        self._close_segment()
        self._mark.close()
        self._lock.release()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the writer."""
        self.close()

    # --- inside ------------------------------------------------------------------------------

    def _usable(self) -> None:
        if self._failure is not None:
            raise WriterBroken(
                f"the log writer failed before: {self._failure}",
                hint="Start the extractor again: it recovers what is on the disk.",
            ) from self._failure

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.buffer.close()
            self._segment = None

    def _flush(self, point: FlushPoint) -> None:
        self._tell_all()
        segment = self._segment
        if segment is None:
            self._state = store_state(self._place, changed(self._state, end=point))
        else:
            frame = ckt.FlushFrame(
                point=point,
                durable_bytes=segment.buffer.durable_bytes,
                row_count=segment.builder.row_count,
                marker_count=segment.builder.marker_count,
                written_us=self._options.clock.now_us(),
            )
            added = segment.buffer.add(FrameKind.FLUSH_POINT, ckt.encode_flush_point(frame))
            segment.builder.add_flush_point(*added, point)
            segment.buffer.sync()
            self._tell_durable(segment, point)
        self._durable = point
        self._unflushed = False
        self._forget_cuts()

    def _tell_durable(self, segment: _OpenSegment, point: FlushPoint) -> None:
        header = segment.header
        self._mark.tell(
            Durable(
                number=header.number,
                file_id=header.file_id,
                size_bytes=segment.buffer.durable_bytes,
                end=point,
            )
        )

    def _open_segment(self) -> _OpenSegment:
        """Return the open segment; create it if there is none. Its header is durable before any
        row.
        """
        if self._segment is None:
            header = ckt.SegmentHeader(
                format=ckt.FORMAT_VERSION,
                log_id=self._state.log_id,
                file_id=str(uuid.uuid4()),
                number=self._state.number_next,
                start=self._durable,
                previous_file_id=self._state.last_file_id,
                source=self._state.source,
                created_us=self._options.clock.now_us(),
            )
            self._segment = self._create(header)
        return self._segment

    def _create(self, header: ckt.SegmentHeader) -> _OpenSegment:
        faults.point("log.create.before")
        files, directory = self._place.files, self._place.directory
        file = files.create(directory / open_name(header.number, self._place.extension))
        parts = ckt.frame(
            FrameKind.HEADER, ckt.HEADER_SALT, len(ckt.MAGIC), ckt.encode_header(header)
        )
        file.append([ckt.MAGIC, *parts])
        file.fdatasync()
        files.fsync_directory(directory)
        faults.point("log.create.after")
        salt = ckt.checksum_salt(header.file_id)
        buffer = FrameBuffer(file, salt, self._options.buffer_size_bytes_max)
        return _OpenSegment(buffer, header, self._options.clock.monotonic_s())

    def _write_rows(self, rows: Rows) -> None:
        segment = self._open_segment()
        relation_id = self._relation_id(segment, rows.relation)
        facts = row_facts(relation_id, rows)
        message = segment.encoders[relation_id].encode(rows.batch)
        offset, length = segment.buffer.add(
            FrameKind.ROWS, [ckt.encode_rows_prefix(facts), *message]
        )
        segment.builder.add_rows(facts._replace(offset_bytes=offset, length_bytes=length))
        self._unflushed = True

    def _tell(self, batch: pa.RecordBatch) -> None:
        """Collect transactions for one frame before the next flush point, rather than one frame per
        run.
        """
        self._open_segment()
        self._unannounced.append(batch)
        self._unflushed = True
        if sum(one.num_rows for one in self._unannounced) >= UNANNOUNCED_COUNT_MAX:
            self._tell_all()

    def _tell_all(self) -> None:
        if self._unannounced:
            batches, self._unannounced = self._unannounced, []
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            self._write_transactions(batch, self._announced + 1)
            self._announced += batch.num_rows

    def _write_transactions(self, batch: pa.RecordBatch, first: int) -> None:
        """Write a transactions frame; `first` is the number of its first transaction."""
        segment = self._open_segment()
        is_named = pa.types.is_string(batch.column(3).type)
        flags = ckt.TransactionsFlag.COMMITS if self._options.process_commits else 0
        flags |= ckt.TransactionsFlag.NAMED if is_named else 0
        facts = FrameEntry(
            kind=FrameKind.TRANSACTIONS,
            frame_flags=0,
            flags=int(flags),
            relation_id=0,
            offset_bytes=0,
            length_bytes=0,
            row_count=batch.num_rows,
            updates_with_before=0,
            gsn_first=0,
            gsn_last=0,
            trx_first=first,
            trx_last=first + batch.num_rows - 1,
        )
        encoder = self._transaction_encoders.get(is_named)
        if encoder is None:
            # Numbers that rise: zstd needs half the bytes of lz4 for them.
            compression = self._options.compression and "zstd"
            encoder = MessageEncoder(batch.schema, compression)
            self._transaction_encoders[is_named] = encoder
        offset, length = segment.buffer.add(
            FrameKind.TRANSACTIONS,
            [ckt.encode_transactions_prefix(facts), *encoder.encode(batch)],
        )
        segment.builder.add_transactions(facts._replace(offset_bytes=offset, length_bytes=length))

    def _write_marker(self, marker: Marker) -> None:
        segment = self._open_segment()
        added = segment.buffer.add(FrameKind.MARKER, ckt.encode_marker(marker))
        segment.builder.add_marker(*added, marker.gsn)
        self._unflushed = True

    def _write_relation(self, relation: Relation) -> None:
        """Write a shape without rows, unless this segment has it, or a later one, already."""
        segment = self._open_segment()
        if segment.version_of.get(_table_of(relation), 0) < relation.version:
            self._relation_id(segment, relation)
        self._unflushed = True

    def _relation_id(self, segment: _OpenSegment, relation: Relation) -> int:
        known = segment.ids.get(id(relation))
        if known is not None:
            return known[0]
        relation_id = segment.relation_ids.get(relation)
        if relation_id is None:
            relation_id = len(segment.relation_ids) + 1
            offset, length = segment.buffer.add(
                FrameKind.RELATION, ckt.encode_relation(relation_id, relation)
            )
            segment.builder.add_relation(offset, length, relation_id, relation)
            segment.relation_ids[relation] = relation_id
            segment.version_of[_table_of(relation)] = relation.version
            segment.encoders[relation_id] = MessageEncoder(
                batch_schema(relation), self._options.compression
            )
        segment.ids[id(relation)] = (relation_id, relation)
        return relation_id


def _table_of(relation: Relation) -> tuple[int, str, str]:
    return relation.source_id, relation.schema, relation.name
