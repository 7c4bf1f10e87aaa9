"""Registration of a new consumer: its directory, its first links, its first saved position.

The settings are written first and name the start until all else is done, so after a crash the next
process begins again. As soon as they exist the extractor makes links.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from penstock.consume.lock import take_lock
from penstock.consume.pieces import TOLD
from penstock.consume.position import ConsumerState, Position
from penstock.consume.snapshot import Snapshot
from penstock.host.files import FileMissing, Lock
from penstock.log import links
from penstock.log.layout import (
    SegmentFile,
    closed_path,
    list_segments,
    load_state,
    open_name,
    read_durable,
)
from penstock.log.links import LogPlace
from penstock.log.segment import SegmentOpener, open_segment
from penstock.model import PenstockError
from penstock.model.sections import Start

logger = structlog.get_logger(__name__)
LOCK_WAIT_S = 30.0
ATTEMPTS_MAX = 20


class StartUnsettled(PenstockError):
    """The log moved on repeatedly while a consumer's first position was determined."""

    code = "CN09"
    retry = "backoff"


def register(
    place: LogPlace, name: str, *, start: Start = Start.NOW, size_bytes_max: int | None = None
) -> bool:
    """Register a consumer, so that it has links from the next rotation on; return whether it is
    new.

    A known one only gets the size limit. Raises StartUnsettled.
    """
    directory, files = place.consumers / name, place.files
    known = links.load_consumer(directory, files)
    if known is not None and not known.start:
        if known.size_bytes_max != size_bytes_max:
            links.save_consumer(directory, replace(known, size_bytes_max=size_bytes_max), files)
        return False
    files.make_directory(directory)
    lock = _lock_to_register(place, directory)
    if lock is None:
        return False  # by another process, meanwhile
    try:
        known = links.load_consumer(directory, files)
        if known is not None and not known.start:
            return False
        if start is Start.BEGINNING:
            _keep_all(place, directory)
        consumer = links.Consumer(size_bytes_max=size_bytes_max, start=start.value)
        links.save_consumer(directory, consumer, files)
        position = _beginning(place, directory) if start is Start.BEGINNING else _now(place)
        ConsumerState(directory, files).save(position)
        if start is Start.SNAPSHOT:
            Snapshot(directory, files).want()  # made at its first run, later than this position
        links.save_consumer(directory, replace(consumer, start=""), files)
        logger.info("consumer registered", consumer=name, start=start.value, at=str(position))
        return True
    finally:
        lock.release()


def _lock_to_register(place: LogPlace, directory: Path) -> Lock | None:
    """Return the consumer's lock; None if another process has registered it and may run it."""

    def is_registered() -> bool:
        known = links.load_consumer(directory, place.files)
        return known is not None and not known.start

    return take_lock(directory, timeout_s=LOCK_WAIT_S, stop=is_registered, files=place.files)


def _now(place: LogPlace) -> Position:
    """Return the position after the durable end, read after links are enabled.

    The next rotation makes a link.
    """
    for _ in range(ATTEMPTS_MAX):
        durable = read_durable(place.log, place.files)
        state = load_state(place.log, place.files)
        if state is None:
            return Position(segment=0, gsn=0)
        if durable is None or durable.number < state.number_next:
            return Position(segment=state.number_next, gsn=state.end.gsn, log_id=state.log_id)
        path = place.log / open_name(durable.number, place.extension)
        file = SegmentFile(number=durable.number, path=path, is_open=True, durable=durable)
        try:
            with SegmentOpener(place.extension, place.files).open(file) as segment:
                gsn = segment.end.gsn
                done = [m for m in segment.markers() if m.kind in TOLD and m.gsn == gsn]
                return Position(
                    segment=segment.number, gsn=gsn, markers=len(done), log_id=state.log_id
                )
        except FileMissing:
            continue  # it was closed and removed meanwhile
    raise _make_unsettled(place)


def _keep_all(place: LogPlace, directory: Path) -> None:
    """Link the existing segments before the extractor knows the consumer.

    Without a loader the extractor removes the names of all closed segments once it has a consumer.
    """
    for path in _all_segments(place).values():
        with suppress(FileMissing):  # by a loader, meanwhile
            links.make_link(directory, path, place.files)


def _beginning(place: LogPlace, directory: Path) -> Position:
    """Return the position before the oldest segment that no gap follows.

    The segments of all directories count. Each of them gets its link, whatever the size limit: the
    limit is for later ones.
    """
    files = place.files
    for _ in range(ATTEMPTS_MAX):
        state = load_state(place.log, files)  # first: segments that are closed later get links
        if state is None:
            return Position(segment=0, gsn=0)
        found = _all_segments(place)
        first = state.number_next
        while first - 1 in found:
            first -= 1
        if first == state.number_next:
            if _is_there(place, first - 1):
                continue  # it is being named at this moment
            return Position(segment=first, gsn=state.end.gsn, log_id=state.log_id)
        if older := [number for number in found if number < first]:
            logger.warning("segments before a hole are left out", first=first, oldest=min(older))
        try:
            with open_segment(found[first], extension=place.extension, files=files) as segment:
                gsn = segment.start.gsn
            for number in range(first, state.number_next):
                links.make_link(directory, found[number], files)
        except FileMissing:
            continue  # removed meanwhile: the next one is the oldest then
        return Position(segment=first, gsn=gsn, log_id=state.log_id)
    raise _make_unsettled(place)


def _all_segments(place: LogPlace) -> dict[int, Path]:
    """Return every closed segment that the log or a consumer has."""
    consumers = links.registered_consumers(place.consumers, place.files)
    return {
        file.number: file.path
        for directory in (*(place.consumers / name for name in consumers), place.log)
        for file in list_segments(directory, place.extension, place.files)
    }


def _is_there(place: LogPlace, number: int) -> bool:
    path = place.log / open_name(number, place.extension)
    return any(place.files.exists(one) for one in (path, closed_path(path)))


def _make_unsettled(place: LogPlace) -> StartUnsettled:
    return StartUnsettled(
        f"the place to begin in {place.log} could not be found: the log moves on too fast",
        hint="Register the consumer again: penstock consumers add FILE with its name.",
    )
