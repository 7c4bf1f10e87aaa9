"""`penstock delete-lost-segment-links`: a consumer goes on behind a hole in its links."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.consume.listing import Listing, SegmentsMissed
from penstock.consume.lock import LOCK_FILE
from penstock.consume.position import ConsumerState
from penstock.consume.registration import LogPlace
from penstock.consume.snapshot import Snapshot
from penstock.host.files import DirectoryLocked
from penstock.log import links
from penstock.log.durable import read_durable
from penstock.log.layout import list_segments
from penstock.model import PenstockError
from penstock.model.lost_links import FOUND, NOT_FOUND, locked


class LostLinksLocked(PenstockError):
    """The consumer whose links should be removed runs. fields: consumer, holder_pid."""

    code = "CN14"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What was lost to one consumer.

    segments: numbers of the links that were removed, oldest first. is_found: whether there was a
    hole; also without links before it, behind the saved state.
    """

    consumer: str
    segments: tuple[int, ...]
    is_found: bool

    @property
    def message(self) -> str:
        """The published text."""
        return FOUND if self.is_found else NOT_FOUND


def delete_lost_links(place: LogPlace, name: str) -> Lost:
    """Remove every link below the last hole, and with a hole the saved state.

    Where the log itself is further than the consumer's next link, its links were skipped up to now:
    all go, and it begins with the next one. Raises LostLinksLocked and ConsumerStateCorrupt; then
    nothing is changed.
    """
    directory, files = place.consumers / name, place.files
    try:
        lock = files.lock(directory, LOCK_FILE)
    except DirectoryLocked as error:
        pid = int(error.fields.get("holder_pid", 0))
        raise LostLinksLocked(
            locked(directory, error.message),
            hint=f"End the consumer first: kill {pid or '<pid>'}; then run the same command again.",
            consumer=name,
            holder_pid=pid,
        ) from error
    try:
        lost = [file.number for file in links.delete_lost(directory, place.extension, files)]
        if _is_skipped_at_end(place, name):
            rest = list_segments(directory, place.extension, files)
            links.release(
                directory, through=rest[-1].number, extension=place.extension, files=files
            )
            lost += [file.number for file in rest]
        is_found = bool(lost) or _is_behind_saved(place, name)
        if is_found:
            ConsumerState(directory, files).drop()
        return Lost(consumer=name, segments=tuple(lost), is_found=is_found)
    finally:
        lock.release()


def _is_skipped_at_end(place: LogPlace, name: str) -> bool:
    """Whether a segment behind the last link was closed without a link."""
    directory = place.consumers / name
    if not links.is_linking(directory, place.files):
        return False  # disabled: what it has can still be read
    durable = read_durable(place.log, place.files)
    found = list_segments(directory, place.extension, place.files)
    return durable is not None and bool(found) and durable.number > found[-1].number + 1


def _is_behind_saved(place: LogPlace, name: str) -> bool:
    """Whether what comes next does not follow the saved state.

    The consumer's own check says so: what it would refuse is what has to be mended here.
    """
    directory, files = place.consumers / name, place.files
    saved = ConsumerState(directory, files).load()
    snapshot = Snapshot(directory, files).pending(saved)
    listing = Listing(directory, place.log, extension=place.extension, reads_open=True, files=files)
    try:
        listing.look(saved if snapshot is None else snapshot.begin, is_pending=True)
    except SegmentsMissed:
        return True
    finally:
        listing.close()
    return False
