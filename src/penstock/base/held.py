"""State of all tables that stays readable: links to the base's files and to the later log.

The base moves on, and its files and the log's segments are removed; a held state has names of its
own, in a directory that is removed when it is released. Nothing is copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.base.changes import Window, changes_of, first_trx
from penstock.base.manifest import HELD, BaseTable, Manifest, load_manifest, read_file
from penstock.base.state import Piece, state
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, FileMissing, Files, remove_tree
from penstock.log.layout import EXTENSION_DEFAULT, load_state, open_name, read_durable, segment_name
from penstock.log.segment import open_segment
from penstock.model import FlushPoint, PenstockError, Relation, TableName

_ATTEMPTS_MAX = 20
declare("base.held.linked")


class BaseNotReady(PenstockError):
    """There is no base yet, or the log does not reach the point at which it was read."""

    code = "BA04"
    retry = "backoff"


class TableNotInBase(PenstockError):
    """A table is not in the base, or not yet. Fields: table."""

    code = "BA05"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """All tables as they were at the log's position `end`.

    Attributes:
        segments: the files after the base.
    """

    directory: Path
    manifest: Manifest
    segments: tuple[Path, ...]
    end: FlushPoint
    extension: str

    def table(self, name: TableName) -> BaseTable:
        """Return a table of the base. Raises TableNotInBase."""
        found = self.manifest.of(name)
        if found is None and any(one.table == name for one in self.manifest.unread):
            raise TableNotInBase(
                f"table {name} is not in the merged log's base: its shape has changed otherwise "
                "than the base can follow",
                hint="If one merged pipeline alone has the table, run: penstock table resync FILE "
                "TABLE; with that pipeline's file. Otherwise begin the merge again: give it "
                "another name in [pipeline], and a directory of its own.",
                table=str(name),
            )
        if found is None:
            raise TableNotInBase(
                f"table {name} is not in the log's base yet",
                hint="A table that is new is read from the source by the load process: try again "
                "when it has been. It runs in mode data+change, as `penstock load` or in "
                "`penstock run`.",
                table=str(name),
            )
        return found

    def pieces(self, name: TableName) -> Generator[Piece]:
        """Yield the rows of a table, in its shape at the end.

        Raises TableNotInBase, SegmentCorrupt.
        """
        table = self.table(name)
        with ExitStack() as stack:
            segments = [
                stack.enter_context(open_segment(path, extension=self.extension))
                for path in self.segments
            ]
            window = Window(
                end=self.end,
                gsn_after=self.manifest.gsn,
                trx_from=first_trx(segments, int(table.ordinal)),
                position=int(table.ordinal),
                settled_trx=first_trx(segments, int(table.settled)),
            )
            changes = changes_of(segments, name, window)
            yield from state(self._base(table), changes, shapes=table.relations)

    def _base(self, table: BaseTable) -> Iterator[Piece]:
        for file in table.files:
            relation = table.relations[file.relation]
            yield Piece(relation=relation, rows=read_file(self.directory, file, relation))

    def release(self) -> None:
        """Remove the held files. Raises FileFailed."""
        with suppress(FileMissing):
            remove_tree(self.directory)


class Holder:
    """Holds states of one log. Used by several threads."""

    def __init__(
        self,
        base: Path,
        *,
        owner: str,
        log: Path,
        links: tuple[Path, ...],
        extension: str = EXTENSION_DEFAULT,
        files: Files = REAL_FILES,
    ) -> None:
        """Set the directories.

        Args:
            base: the base.
            owner: a name that no other process has.
            log: the log.
            links: directories with names of segments, besides the log's own.
            extension: of segments.
            files: the disk.
        """
        self._base, self._log, self._links = base, log, links
        self._held = base / HELD / owner
        self._seen = -1
        self._extension, self._files = extension, files

    def clear(self) -> None:
        """Remove the states that an earlier process of this owner held."""
        if self._files.exists(self._held):
            remove_tree(self._held)

    def shapes(self) -> list[Relation] | None:
        """Return the tables' newest shapes; None if the base is unchanged since the last call."""
        manifest = load_manifest(self._base, self._files)
        number = -1 if manifest is None else manifest.number
        if number == self._seen:
            return None
        self._seen = number
        return [] if manifest is None else [table.relations[-1] for table in manifest.tables]

    def hold_now(self) -> tuple[HeldState, int]:
        """Return the state at the log's end in its files, and the segment of that end.

        Raises BaseNotReady, FileFailed.
        """
        found = self._now()
        if found is None:
            raise _not_ready("there is no log yet")
        log_id, number, end, is_open = found
        return self.hold(log_id, number, end, is_open=is_open), number

    def end(self) -> FlushPoint | None:
        """Return the log's end in its files; None if there is no log yet."""
        found = self._now()
        return None if found is None else found[2]

    def _now(self) -> tuple[str, int, FlushPoint, bool] | None:
        """Return the log's id, the segment of its end, that end, and whether that
        segment is open.
        """
        durable, log = read_durable(self._log, self._files), load_state(self._log, self._files)
        if log is None:
            return None
        if durable is not None and durable.number >= log.number_next:
            return log.log_id, durable.number, durable.end, True
        return log.log_id, log.number_next, log.end, False

    def hold(self, log_id: str, number: int, end: FlushPoint, *, is_open: bool) -> HeldState:
        """Return the state at the durable end. Raises BaseNotReady, FileFailed.

        Args:
            log_id: the log.
            number: of the segment that the end is in, or of the next one.
            end: the durable end.
            is_open: whether that segment is open.
        """
        for _ in range(_ATTEMPTS_MAX):
            manifest = load_manifest(self._base, self._files)
            if manifest is None or manifest.log_id != log_id or manifest.is_empty:
                raise _not_ready("there is no base of the log's tables yet")
            if end.position < manifest.complete_at:
                raise _not_ready("the log is not as far yet as the point of its base")
            directory = self._held / secrets.token_hex(8)
            self._files.make_directory(directory)
            try:
                for table in manifest.tables:
                    for file in table.files:
                        self._files.link(self._base / file.name, directory / file.name)
                        point("base.held.linked")
                last = number if is_open else number - 1
                segments = tuple(
                    self._segment(directory, one) for one in range(manifest.segment, last + 1)
                )
            except FileMissing:
                remove_tree(directory)  # the base moved on meanwhile
                continue
            return HeldState(
                directory=directory,
                manifest=manifest,
                segments=segments,
                end=end,
                extension=self._extension,
            )
        raise _not_ready("the base moves on faster than it can be held")

    def _segment(self, directory: Path, number: int) -> Path:
        """Return a link to a segment, whose name shows whether the segment was open. Raises
        FileMissing.
        """
        closed = segment_name(number, self._extension)
        opened = open_name(number, self._extension)
        # It may be closed and renamed between two looks.
        places = [(one, closed) for one in (*self._links, self._log)]
        for folder, name in (*places, (self._log, opened), *places):
            with suppress(FileMissing):
                self._files.link(folder / name, directory / name)
                return directory / name
        raise FileMissing(f"segment {number} of the log is not there", path=str(self._log / closed))


def _not_ready(why: str) -> BaseNotReady:
    return BaseNotReady(
        why,
        hint="Wait. If `penstock status FILE` shows no load process, which reads the base in mode "
        "data+change, start it: penstock run FILE",
    )
