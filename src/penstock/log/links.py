"""Consumers' hard links: each consumer owns a directory with a second name of every segment.

A segment's space is freed when its last name is removed: the log's own (removed by the loader) and
every consumer's. So consumers are isolated and no bookkeeping is needed. A consumer that is
disabled, or whose directory has reached its size limit, gets no further links: it meets the gap as
SegmentMissing, never silently. Follows Ignite's CDC (hard links, skipped segments). The file
`cdc.disabled` beside the consumers' directories stops all links. After a crash the newest segment
may be linked again although a consumer has removed it: a consumer removes, unread, links that its
own state is past.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import structlog

from penstock.host.files import REAL_FILES, FileExists, FileMissing, Files
from penstock.host.state_file import StateFile
from penstock.host.state_of_log import StateOfOtherLog, check_log_id
from penstock.log.frames import FrameReader
from penstock.log.layout import EXTENSION_DEFAULT, SegmentFile, list_segments
from penstock.model.segment_order import lost_count

CONSUMER_FILE = "CONSUMER.json"
DISABLED_FILE = "cdc.disabled"
DISABLED_WARNING = (
    "no consumer got a link to the segment: all are disabled (penstock consumers enable FILE --all)"
)

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Log and its consumers' directories."""

    log: Path
    consumers: Path
    extension: str = EXTENSION_DEFAULT
    files: Files = REAL_FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Settings in a consumer's directory.

    Attributes:
        size_bytes_max: limit for the size of its links; None: no limit.
        paused: it gets no changes, and keeps its links.
        start: where it begins, until that is resolved; empty afterwards.
    """

    enabled: bool = True
    size_bytes_max: int | None = None
    paused: bool = False
    start: str = ""


def enable(
    directory: Path, *, size_bytes_max: int | None = None, files: Files = REAL_FILES
) -> None:
    """Let a consumer have links from the next rotation on; create its directory."""
    consumer = load_consumer(directory, files) or Consumer()
    save_consumer(directory, changed(consumer, enabled=True, size_bytes_max=size_bytes_max), files)


def disable(directory: Path, files: Files = REAL_FILES) -> None:
    """Give a consumer no further links; existing links stay until it removes them."""
    consumer = load_consumer(directory, files)
    if consumer is not None:
        save_consumer(directory, changed(consumer, enabled=False), files)


def _settings_file(directory: Path, files: Files) -> StateFile[Consumer]:
    name = directory.name
    hint = f"Register it again: penstock consumers remove FILE {name} --yes, then penstock run FILE"
    return StateFile(directory / CONSUMER_FILE, Consumer, hint=hint, files=files)


def save_consumer(directory: Path, consumer: Consumer, files: Files = REAL_FILES) -> None:
    """Replace a consumer's settings, durably; create its directory."""
    files.make_directory(directory)
    _settings_file(directory, files).save(consumer)


def load_consumer(directory: Path, files: Files = REAL_FILES) -> Consumer | None:
    """Return a consumer's settings; None if the directory is not a consumer's."""
    return _settings_file(directory, files).load()


def registered_consumers(consumers: Path, files: Files = REAL_FILES) -> list[str]:
    """Return the names of all consumers, enabled or not, sorted."""
    try:
        names = files.listdir(consumers)
    except FileMissing:
        return []
    return sorted(name for name in names if files.exists(consumers / name / CONSUMER_FILE))


def enabled_consumers(consumers: Path, files: Files = REAL_FILES) -> list[str]:
    """Return the names of the enabled consumers, sorted. Not here: `cdc.disabled`."""
    return [
        name
        for name in registered_consumers(consumers, files)
        if _is_enabled(consumers / name, files)
    ]


def disable_all(consumers: Path, files: Files = REAL_FILES) -> None:
    """Give no consumer further links: the published property cdc.disabled."""
    files.make_directory(consumers)
    files.replace(consumers / DISABLED_FILE, b"true\n")


def enable_all(consumers: Path, files: Files = REAL_FILES) -> None:
    """Undo `disable_all`; consumers that are disabled alone stay disabled."""
    with suppress(FileMissing):
        files.unlink(consumers / DISABLED_FILE)
        files.fsync_directory(consumers)


def are_all_disabled(consumers: Path, files: Files = REAL_FILES) -> bool:
    """Return whether cdc.disabled is true."""
    return files.exists(consumers / DISABLED_FILE)


def is_linking(directory: Path, files: Files = REAL_FILES) -> bool:
    """Return whether a consumer gets links now."""
    return _is_enabled(directory, files) and not are_all_disabled(directory.parent, files)


def link_segment(directory: Path, segment: Path, files: Files = REAL_FILES) -> bool:
    """Give a consumer its link, durably; return False if its size limit forbids it (logged).

    Repeating it changes nothing. Raises FileFailed, for example across file systems.
    """
    consumer = load_consumer(directory, files)
    if consumer is None:
        return False
    limit = consumer.size_bytes_max
    if limit is not None and files.exists(segment) and not files.exists(directory / segment.name):
        linked, size = (
            linked_bytes(directory, segment.suffix[1:], files),
            _size_bytes(segment, files),
        )
        if linked + size > limit:
            logger.error(
                "the consumer did not get a link to the segment: its links would exceed "
                "cdcWalDirectoryMaxSize",
                consumer=directory.name,
                segment=segment.name,
                links_bytes=linked,
                segment_bytes=size,
                limit_bytes=limit,
            )
            return False
    make_link(directory, segment, files)
    return True


def make_link(directory: Path, segment: Path, files: Files = REAL_FILES) -> None:
    """Give a consumer its link, durably, whatever its limit. Raises FileMissing, FileFailed."""
    try:
        files.link(segment, directory / segment.name)
    except FileExists:
        logger.info("consumer already had the link", consumer=directory.name, segment=segment.name)
    files.fsync_directory(directory)


def log_id_of(path: Path, files: Files = REAL_FILES) -> str:
    """Return the id of the log that a segment belongs to. Raises FileMissing, SegmentCorrupt."""
    file = files.open_read(path)
    try:
        return FrameReader(file).header.log_id
    finally:
        file.close()


def release(
    directory: Path,
    *,
    through: int,
    log_id: str,
    extension: str = EXTENSION_DEFAULT,
    files: Files = REAL_FILES,
) -> int:
    """Remove a consumer's links up to and with this number, oldest first; return their count.

    Args:
        directory: the consumer's links.
        through: the last number to remove.
        log_id: of the log that the number belongs to; empty if unknown.
        extension: of segments.
        files: the disk.

    Raises:
        StateOfOtherLog: a link belongs to another log. Nothing is removed.
    """
    done = [file for file in list_segments(directory, extension, files) if file.number <= through]
    for file in done if log_id else ():
        check_log_id(
            log_id,
            log_id_of(file.path, files),
            place=f"the position that {directory.name} has read up to",
            hint="The log was created again, and nothing was removed. Move "
            f"{file.path} away if its rows are not needed, or let its reader begin again.",
            error=StateOfOtherLog,
        )
    for file in done:
        files.unlink(file.path)
    return len(done)


def delete_lost(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[SegmentFile]:
    """Remove every link before the last gap; return the removed ones, oldest first."""
    found = list_segments(directory, extension, files)
    lost = found[: lost_count([file.number for file in found])]
    for file in lost:
        files.unlink(file.path)
    return lost


def _is_enabled(directory: Path, files: Files) -> bool:
    consumer = load_consumer(directory, files)
    return consumer is not None and consumer.enabled


def _size_bytes(path: Path, files: Files) -> int:
    file = files.open_read(path)
    try:
        return file.size_bytes
    finally:
        file.close()


def linked_bytes(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> int:
    """Return the total size of a directory's links."""
    return sum(_size_bytes(file.path, files) for file in list_segments(directory, extension, files))
