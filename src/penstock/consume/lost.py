"""`penstock delete-lost-segment-links`: let a consumer continue after a gap in its links."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.consume.lock import LOCK_FILE
from penstock.consume.position import ConsumerState, SegmentsMissed, reader_errors
from penstock.consume.snapshot import Snapshot
from penstock.host.files import DirectoryLocked
from penstock.log import links
from penstock.log.layout import list_segments, read_durable
from penstock.log.links import LogPlace
from penstock.log.listing import Listing, SavedSegment
from penstock.model import PenstockError


class LostLinksLocked(PenstockError):
    """The consumer whose links should be removed is running. Fields: consumer, holder_pid."""

    code = "CN14"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Segments lost to one consumer.

    Attributes:
        segments: numbers of the links that were removed, oldest first.
        is_found: there was a gap; a gap directly after the saved state has no links before it.
    """

    consumer: str
    segments: tuple[int, ...]
    is_found: bool

    @property
    def message(self) -> str:
        """Result in words."""
        if not self.is_found:
            return "no segment is missing: nothing was deleted"
        return (
            f"segments were missing: {len(self.segments)} links before the gap and the saved state "
            "were deleted"
        )


def delete_lost_links(place: LogPlace, name: str) -> Lost:
    """Remove every link before the last gap, and with a gap the saved state.

    If the log is further than the consumer's next link, its links were skipped up to now: all are
    removed, and it begins with the next one. Raises LostLinksLocked, ConsumerStateCorrupt, and
    ConsumerOfOtherLog for a state or links of another log; then nothing is changed.
    """
    directory, files = place.consumers / name, place.files
    try:
        lock = files.lock(directory, LOCK_FILE)
    except DirectoryLocked as error:
        pid = int(error.fields.get("holder_pid", 0))
        raise LostLinksLocked(
            f"consumer {name} runs, and no link was deleted: {error.message}",
            hint=f"End the consumer first: kill {pid or '<pid>'}; then run the same command again.",
            consumer=name,
            holder_pid=pid,
        ) from error
    try:
        _check_log(place, name)
        lost = [file.number for file in links.delete_lost(directory, place.extension, files)]
        if _is_skipped_at_end(place, name):
            rest = list_segments(directory, place.extension, files)
            links.release(
                directory,
                through=rest[-1].number,
                log_id="",  # they are lost, whichever log they belong to
                extension=place.extension,
                files=files,
            )
            lost += [file.number for file in rest]
        is_found = bool(lost) or _is_behind_saved(place, name)
        if is_found:
            ConsumerState(directory, files).drop()
        return Lost(consumer=name, segments=tuple(lost), is_found=is_found)
    finally:
        lock.release()


def _is_skipped_at_end(place: LogPlace, name: str) -> bool:
    """Return whether a segment after the last link was closed without a link."""
    directory = place.consumers / name
    if not links.is_linking(directory, place.files):
        return False  # disabled: its links can still be read
    durable = read_durable(place.log, place.files)
    found = list_segments(directory, place.extension, place.files)
    return durable is not None and bool(found) and durable.number > found[-1].number + 1


def _is_behind_saved(place: LogPlace, name: str) -> bool:
    """Return whether the next segment does not continue the saved state.

    This uses the consumer's own check, so exactly the states that the consumer refuses are repaired
    here.
    """
    with _opened_listing(place, name) as (listing, saved):
        try:
            listing.look(saved, is_pending=True)
        except SegmentsMissed:
            return True
    return False


def _check_log(place: LogPlace, name: str) -> None:
    """Check that the saved state belongs to this log. Raises ConsumerOfOtherLog."""
    with _opened_listing(place, name) as (listing, saved):
        listing.check_log(saved)


@contextmanager
def _opened_listing(place: LogPlace, name: str) -> Iterator[tuple[Listing, SavedSegment | None]]:
    """Open the consumer's listing, with its place in the log."""
    directory, files = place.consumers / name, place.files
    saved = ConsumerState(directory, files).load()
    snapshot = Snapshot(directory, files).pending(saved)
    begin = saved if snapshot is None else snapshot.begin
    listing = Listing(
        directory,
        place.log,
        errors=reader_errors(directory),
        extension=place.extension,
        files=files,
    )
    try:
        yield listing, None if begin is None else begin.of_listing
    finally:
        listing.close()
