"""State of a pipeline's base: its own files, and the segments that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.base.manifest import load_manifest
from penstock.control.pipeline.display import human_bytes
from penstock.control.pipeline.servers import base_place
from penstock.host.files import FileMissing
from penstock.log.layout import list_segments
from penstock.model.words import count_words
from penstock.ports.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSeen:
    """State of the base.

    Attributes:
        size_bytes: Size of its files.
        segment: The first segment that is not in it yet.
        segments: Number of segments that it holds.
        segment_bytes: Their size.
        held_bytes: Size of those that no other reader holds.
    """

    tables: int
    rows: int
    size_bytes: int
    segment: int
    segments: int
    segment_bytes: int
    held_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as `penstock status --json` prints it."""
        return {
            "tables": self.tables,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "segment": self.segment,
            "segments": self.segments,
            "segment_bytes": self.segment_bytes,
            "held_bytes": self.held_bytes,
        }

    def lines(self) -> Iterator[str]:
        """Yield its lines for people."""
        if not self.tables:
            yield "base: no table is in it yet"
        else:
            through = f"up to segment {self.segment - 1}" if self.segment else "before any segment"
            yield (
                f"base: {count_words(self.tables, 'table')}, {count_words(self.rows, 'row')}, "
                f"{human_bytes(self.size_bytes)}, {through}"
            )
        if self.segments:
            yield (
                f"base: holds {count_words(self.segments, 'segment')} not in it yet, "
                f"{human_bytes(self.segment_bytes)}, {human_bytes(self.held_bytes)} of them alone"
            )


def read_base(config: Config) -> BaseSeen | None:
    """Read the state from the files; None if the log has no base. Raises CheckpointCorrupt."""
    if not config.has_base:
        return None
    place = base_place(config)
    manifest = load_manifest(place.directory)
    found: list[tuple[int, int]] = []
    for file in list_segments(place.links, place.extension):
        with suppress(FileNotFoundError, FileMissing):  # released meanwhile
            stat = file.path.stat()
            found.append((stat.st_size, stat.st_nlink))
    tables = manifest.tables if manifest is not None else ()
    return BaseSeen(
        tables=len(tables),
        rows=sum(table.row_count for table in tables),
        size_bytes=manifest.size_bytes if manifest is not None else 0,
        segment=manifest.segment if manifest is not None else 0,
        segments=len(found),
        segment_bytes=sum(size for size, _ in found),
        held_bytes=sum(size for size, names in found if names == 1),
    )
