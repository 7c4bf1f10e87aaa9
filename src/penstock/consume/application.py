"""Consumer application of Ignite's CDC: it delivers every change to a consumer and keeps its
state.

It takes the lock, loads the state and starts the consumer. Then it repeats: look for segments,
pass on tables, deliver events, save the position if the consumer says so, remove the links before
it. Any error ends it, with nothing saved. Not here: the class and its configuration
(`penstock.control`).

A segment is delivered from a place on: markers and events in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.consume.api import CdcConsumer, PlaceKeeper
from penstock.consume.batches import batches_of
from penstock.consume.classes import call, call_at, call_for_answer
from penstock.consume.events import events_of
from penstock.consume.lock import take_lock
from penstock.consume.metadata import Metadata, Takes
from penstock.consume.pieces import Piece
from penstock.consume.places import PlaceOfLog, encode, settle
from penstock.consume.position import ConsumerOfOtherLog, ConsumerState, Position, reader_errors
from penstock.consume.report import Report
from penstock.consume.snapshot import Made, Snapshot
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.log import links
from penstock.log.layout import EXTENSION_DEFAULT, SegmentFile, load_done
from penstock.log.listing import Listing
from penstock.log.reader import check_link
from penstock.log.segment import ClosedSegment, Segment, SegmentOpener
from penstock.model import DROP_TABLE, Marker, MarkerKind, PenstockError, Relation, TableName

declare(
    "consume.read.after",
    "consume.answer.after",
    "consume.link.before",
    "consume.link.after",
)

logger = structlog.get_logger(__name__)
MOVE_INTERVAL_S = 1.0  # interval for saving a position that moves over other tables' rows
HELD_WAIT_S = 0.2
SPIN_WAIT_S = 0.05  # a consumer that took nothing is asked again after this


def _everything(_: TableName) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationOptions:
    """Settings of a consumer, with the names and defaults of Ignite's CDC.

    Attributes:
        takes: returns whether the consumer wants a table.
        standby: wait for the lock without a limit (mode passive).
        reads_open: read the durable part of the open segment, too.
        exit_when_done: end when the log is finished (CHANGE.DONE) and read.
        is_held: called before each piece; while it returns True nothing is delivered.
        gone: returns names of tables that are no longer captured.
    """

    takes: Takes = _everything
    lock_timeout_ms: int = 1000
    check_frequency_ms: int = 1000
    keep_binary: bool = True
    standby: bool = False
    reads_open: bool = True
    exit_when_done: bool = False
    extension: str = EXTENSION_DEFAULT
    is_held: Callable[[], bool] = lambda: False
    gone: Callable[[], frozenset[str]] = field(default=frozenset)


class Application:
    """One consumer at work in its directory. run() returns when it was asked to stop."""

    def __init__(
        self,
        consumer: CdcConsumer,
        *,
        directory: Path,
        log_directory: Path,
        report: Report,
        options: ApplicationOptions | None = None,
        stop: Callable[[], bool] = lambda: False,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Set the directories.

        Args:
            consumer: the consumer.
            directory: the consumer's, with its links.
            log_directory: directory of the open segment.
            report: the report.
            options: settings.
            stop: returns whether to stop.
            files: the disk.
            clock: the clock.
        """
        self._consumer = consumer
        self._directory = directory
        self._log_directory = log_directory
        self._options = options or ApplicationOptions()
        self._stop = stop
        self._files = files
        self._clock = clock
        self._report = report
        self._state = ConsumerState(directory, files)
        self._saved: Position | None = None
        self._read: Position | None = None
        self._before: ClosedSegment | None = None
        self._has_unsaved = False  # events were delivered after the saved position
        self._moved_s = 0.0
        self._released = -1  # links below this segment are removed
        self._snapshot = Snapshot(directory, files)
        self._pending: Made | None = None  # a snapshot that the saved position is in
        self._is_in_snapshot = False
        self._keeps_place = isinstance(consumer, PlaceKeeper)

    def run(self) -> None:
        """Take the lock, deliver events until stopped, and stop the consumer once.

        Raises ConsumerLocked, ConsumerStateCorrupt, SegmentsMissed, ConsumerFailed, and the errors
        of reading the log; the saved state is then that of the last True.
        """
        with ExitStack() as stack:
            lock = self._take_lock()
            if lock is None:
                return
            stack.callback(lock.release)
            self._forget_temporary()
            self._saved = self._read = self._state.load()
            self._pending = self._snapshot.pending(self._saved)
            self._metadata = Metadata(self._consumer, self._state, self._options.takes)
            options = self._options
            self._opener = SegmentOpener(options.extension, self._files)
            self._listing = Listing(
                self._directory,
                self._log_directory,
                errors=reader_errors(self._directory),
                extension=options.extension,
                reads_open=options.reads_open,
                files=self._files,
            )
            stack.callback(self._listing.close)
            self._report.note_loaded(self._saved)
            self._work()

    def _take_lock(self) -> Any:
        options = self._options
        self._report.mode("passive")
        lock = take_lock(
            self._directory,
            timeout_s=None if options.standby else options.lock_timeout_ms / 1000,
            stop=self._stop,
            files=self._files,
            clock=self._clock,
        )
        self._report.mode("active")
        return lock

    def _forget_temporary(self) -> None:
        """Remove left-overs of files that were being replaced at a crash."""
        with contextlib.suppress(FileMissing):
            for name in self._files.listdir(self._state.directory):
                if name.endswith(".tmp"):
                    self._files.unlink(self._state.directory / name)

    def _work(self) -> None:
        try:
            call(self._consumer, "start", self._report.own_metrics)
            self._settle()
            while not self._stop() and self._is_alive() and not self._round():
                pass
            self._save_move(force=True)
        except BaseException as error:
            if isinstance(error, PenstockError):
                logger.error("Cdc error", error=error.message, code=error.code)
            with contextlib.suppress(Exception):
                # The first error is reported.
                call(self._consumer, "stop")
            raise
        logger.info("the consumer is stopped")
        call(self._consumer, "stop")

    def _settle(self) -> None:
        """Continue at the place that the consumer itself stored, if it stores places."""
        if isinstance(self._consumer, PlaceKeeper):
            place = PlaceOfLog(
                directory=self._directory,
                log_directory=self._log_directory,
                snapshot_id="" if self._pending is None else self._pending.log_id,
                extension=self._options.extension,
                files=self._files,
            )
            self._saved = self._read = settle(self._consumer, place, self._state, self._saved)
            self._pending = self._snapshot.pending(self._saved)
            self._report.note_loaded(self._saved)

    def _is_alive(self) -> bool:
        if call(self._consumer, "alive"):
            return True
        logger.warning("the consumer is not alive: it is stopped")
        return False

    def _round(self) -> bool:
        """Look for segments and read them, or wait; return whether the log is finished and read."""
        if not self._may_go_on():
            return False
        is_done = self._options.exit_when_done and load_done(self._log_directory, self._files)
        found = self._look()
        for file in found:
            if self._stop():
                return False
            self._read_segment(file)
        self._save_move(force=False)
        if is_done and not self._is_in_snapshot and self._read_all(is_done.number_last):
            return True
        if not found:
            # Not before: events of a table that is gone may still be in the log.
            self._tell([], self._options.gone())
            self._report.show_state("waiting")
            self._listing.wait(self._options.check_frequency_ms / 1000)
        return False

    def _look(self) -> list[SegmentFile]:
        """Return the next segments: those of the snapshot, then those of the log."""
        made = self._pending
        if made is None:
            saved = None if self._saved is None else self._saved.of_listing
            return self._listing.look(saved, is_pending=self._before is None)
        read = self._read
        if read is not None and read.log_id == made.log_id:
            self._is_in_snapshot = True
            number = read.segment if self._before is None else self._before.number + 1
            if found := self._snapshot.segments(number, self._options.extension):
                return found
            self._is_in_snapshot, self._before, self._read = False, None, made.begin
        begin = None if made.begin is None else made.begin.of_listing
        return self._listing.look(begin, is_pending=self._before is None)

    def _may_go_on(self) -> bool:
        """Wait while the consumer is paused; return False when asked to stop."""
        while self._options.is_held() and not self._stop():
            self._report.show_state("paused")
            self._clock.sleep(HELD_WAIT_S)
        return not self._stop()

    def _read_all(self, number_last: int) -> bool:
        closed = -1 if self._before is None else self._before.number
        return closed >= number_last or number_last < 0

    def _read_segment(self, file: SegmentFile) -> None:
        try:
            segment = self._opener.open(file)
        except FileMissing:
            if not file.is_open:
                raise
            return  # it was closed and removed meanwhile: its link follows
        with segment:
            began_s = self._clock.monotonic_s()
            self._begin(segment)
            self._report.segment_began(self._place, segment)
            relations = [relation for _, relation in segment.relations()]
            self._tell(relations)
            if self._deliver(segment) and segment.is_closed:
                self._before = segment.facts()
                self._report.segment_ended(self._clock.monotonic_s() - began_s)

    def _begin(self, segment: Segment) -> None:
        """Check that the segment continues where the last one ended, and take its place."""
        self._segment = segment
        if self._before is not None and self._before.number < segment.number:
            check_link(self._before, segment)
        read = self._read
        if read is not None:
            check_log(read, segment)
        if read is None or read.segment < segment.number:
            read = Position(segment=segment.number, gsn=segment.start.gsn)
        self._read = replace(read, log_id=segment.header.log_id)

    def _tell(self, relations: list[Any], gone: frozenset[str] = frozenset()) -> None:
        began_s = self._clock.monotonic_s()
        gsn = 0 if self._read is None else self._read.gsn
        if self._metadata.tell(relations, gone, gsn):
            self._report.metadata_told(self._clock.monotonic_s() - began_s)

    # -- events ------------------------------------------------------------------------------

    def _deliver(self, segment: Segment) -> bool:
        """Deliver the rest of a segment; return False if stopped before its end."""
        was_called = False
        for piece in deliveries_of(
            self._consumer,
            segment,
            self._place,
            takes=self._options.takes,
            keep_binary=self._options.keep_binary,
        ):
            for place, marker in piece.markers:
                self._mark(place, marker)
            if not self._may_go_on():
                return False
            if piece.is_empty and not (piece.is_last and segment.is_closed and not was_called):
                self._read = piece.place(self._place)
                self._report.note_moved(self._read)
                continue
            was_called = True
            if not self._give(piece, segment):
                return False
        if self._keeps_place and self._has_unsaved:
            self._save(self._place)  # a segment's durable part ends with a whole transaction
        return True

    @property
    def _place(self) -> Position:
        assert self._read is not None  # _begin has set it
        return self._read

    def _give(self, piece: Delivery, segment: Segment) -> bool:
        """Call the consumer until the piece is read; return False if stopped before."""
        while True:
            before = self._place
            point("consume.read.after")
            is_saved = call_for_answer(self._consumer, piece.callback, piece.items)
            point("consume.answer.after")
            is_read = (
                piece.is_read
            )  # first: the place after the last event of a run is the run's end
            self._read = piece.place(before)
            self._has_unsaved = self._has_unsaved or self._read != before
            self._report.note_given(self._read, segment)
            if is_saved:
                self._save(self._read)
            if is_read:
                return True
            if self._read == before:
                self._clock.sleep(SPIN_WAIT_S)
            if not self._may_go_on():
                return False

    def _mark(self, place: Position, marker: Marker) -> None:
        """Call the consumer for a marker of its tables, and count the marker as read."""
        if marker.kind is MarkerKind.DDL:
            if marker.data == DROP_TABLE:
                names = [".".join(table) for table in marker.tables]
                self._metadata.tell_dropped(names, self._made_again(marker), marker.gsn)
            self._read_marker(place)
            return
        callback = "on_truncate" if marker.kind is MarkerKind.TRUNCATE else "on_reload"
        for table in marker.tables:
            if self._options.takes(TableName(*table)):
                call_at(self._consumer, callback, ".".join(table), marker.gsn)
                # It is stored with the rest of its transaction.
                self._has_unsaved = self._has_unsaved or self._keeps_place
        self._read_marker(place)

    def _made_again(self, marker: Marker) -> list[Relation]:
        """Return the segment's shapes of dropped tables that have rows after the marker of the
        drop.
        """
        assert self._segment is not None, "it is being read"
        behind = {e.relation_id for e in self._segment.row_frames() if e.gsn_last > marker.gsn}
        relations = [self._segment.relation(number) for number in sorted(behind)]
        return [one for one in relations if (one.schema, one.name) in marker.tables]

    def _read_marker(self, place: Position) -> None:
        self._read = place
        if not self._has_unsaved:
            self._save(place)

    def _save_move(self, *, force: bool) -> None:
        """Save a position that moved without the consumer, at intervals."""
        now_s = self._clock.monotonic_s()
        if self._read is None or self._has_unsaved or self._read == self._saved:
            return
        if force or now_s - self._moved_s >= MOVE_INTERVAL_S:
            self._moved_s = now_s
            self._save(self._read)

    def _save(self, position: Position) -> None:
        """Save the position, durably, and remove the links before its segment."""
        self._has_unsaved = False
        if position != self._saved:
            if self._keeps_place:
                call(self._consumer, "store_place", encode(position))
            self._state.save(position)
            if self._keeps_place:
                self._state.note_settled()
            self._saved = position
            self._report.note_saved(position, self._segment)
        if self._pending is not None:
            if position.log_id == self._pending.log_id:
                return  # its numbers are not those of the links
            self._pending = None
            self._snapshot.remove()
        if position.segment == self._released:
            return
        point("consume.link.before")
        links.release(
            self._directory,
            through=position.segment - 1,
            log_id=position.log_id,
            extension=self._options.extension,
            files=self._files,
        )
        self._released = position.segment
        point("consume.link.after")


ON_EVENTS, ON_BATCHES = "on_events", "on_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Piece of a segment.

    Attributes:
        markers: those before it, each with the position after it.
        callback: of the consumer, which gets `items`.
        is_last: it is the last one of its segment.
    """

    markers: tuple[tuple[Position, Marker], ...]
    callback: str
    items: Any
    is_last: bool

    @property
    def is_empty(self) -> bool:
        """Return whether it has nothing for the consumer."""
        return bool(self.items.is_drained)

    @property
    def is_read(self) -> bool:
        """Return whether all of it was delivered."""
        return bool(self.items.is_drained)

    def place(self, before: Position) -> Position:
        """Return the consumer's place after this piece, given its place before."""
        gsn, entries = self.items.place_read
        if (gsn, entries) == (before.gsn, before.entries):
            return before
        markers = before.markers if gsn == before.gsn else 0
        unit = self.callback if entries else ""
        return replace(before, gsn=gsn, entries=entries, unit=unit, markers=markers)


def is_of_batches(consumer: CdcConsumer) -> bool:
    """Return whether a consumer wants Arrow batches instead of events."""
    return type(consumer).on_batches is not CdcConsumer.on_batches


def deliveries_of(
    consumer: CdcConsumer,
    segment: Segment,
    place: Position,
    *,
    takes: Callable[[TableName], bool],
    keep_binary: bool,
) -> Iterator[Delivery]:
    """Yield the pieces of a segment after a place in it; at least one. Raises SegmentCorrupt."""
    found: Iterator[Piece[Any]]
    callback = ON_BATCHES if is_of_batches(consumer) else ON_EVENTS
    # A class was rewritten from one to the other: a half-read part is delivered again.
    after, skip = place.gsn, place.entries if place.unit == callback else 0
    if callback == ON_BATCHES:
        found = batches_of(segment, takes=takes, gsn_after=after, entries_after=skip)
    else:
        found = events_of(
            segment, takes=takes, gsn_after=after, entries_after=skip, keep_binary=keep_binary
        )
    for piece in found:
        markers = []
        for count, marker in enumerate(piece.markers_before, 1):
            behind = Position(
                segment=segment.number, gsn=marker.gsn, markers=count, log_id=place.log_id
            )
            if not _is_done(behind, place):
                markers.append((behind, marker))
        yield Delivery(
            markers=tuple(markers),
            callback=callback,
            items=piece.events,
            is_last=piece.gsn_end == segment.end.gsn,
        )


def _is_done(behind: Position, place: Position) -> bool:
    return behind.gsn < place.gsn or (
        behind.gsn == place.gsn and (behind.markers <= place.markers or place.entries > 0)
    )


def check_log(place: Position, segment: Segment) -> None:
    """Check that a position may belong to this segment's log. Raises ConsumerOfOtherLog."""
    actual = segment.header.log_id
    other = bool(place.log_id) and place.log_id != actual
    if place.segment == segment.number:
        other = other or place.gsn < segment.start.gsn
        other = other or (segment.is_closed and place.gsn > segment.end.gsn)
    if other:
        raise ConsumerOfOtherLog(
            f"the saved state {place} is of another log: {place.log_id or 'unknown'}; "
            f"{segment.path} belongs to {actual} and has gsn {segment.start.gsn} to "
            f"{segment.end.gsn}",
            hint="The log was created again, or the state is from another pipeline. Let the "
            "consumer begin again: penstock consumers remove FILE NAME --yes, then penstock "
            "consumers add FILE NAME.",
            expected=place.log_id,
            actual=actual,
        )
