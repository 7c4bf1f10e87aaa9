"""Scanned caches: their shapes before a bulk load, rows in a fixed shape, and stored facts.

The shapes and the columns are those of the change log (`shapes.py`, `rows.py`): an entry of a
scan is treated as a put of the log. Facts about caches before their first change come from a scan,
too, and are stored beside the log. Not here: the connection (`thin.py`), chunks (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from penstock.codec.ignite.changes import changes_of
from penstock.codec.ignite.marshal import decoder
from penstock.codec.ignite.pages import Entry
from penstock.codec.ignite.types import BinaryType, Types
from penstock.engines.ignite.directory import Cache, NodeDirectory, open_any
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.shapes import (
    NOTHING,
    SCANNED_FILE,
    SHAPES_FILE,
    Declared,
    DeclaredColumn,
    KeptShape,
    Shapes,
    copy_shape,
    table_of,
)
from penstock.engines.ignite.thin import ALL, ThinClient, open_thin
from penstock.engines.ignite.url import thin_url
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile, StateFiles
from penstock.model import PenstockError, Relation
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode
from penstock.ports.handover import read_handover

Decode = Callable[[bytes, int], Any]
PIECE_ENTRIES = 2000

logger = structlog.get_logger(__name__)


class ScanEntry:
    """Entry of a scan, in the form from which rows are made. A scan does not report its expiry.

    Key and value are decoded when they are accessed.
    """

    __slots__ = ("_decode", "cache_id", "key_bytes", "key_kind", "value_bytes", "value_kind")
    has_value = primary = True
    expire_time_ms = 0

    def __init__(self, cache_id: int, found: Entry, decode: Decode) -> None:
        """Store an entry of a page."""
        self.cache_id = cache_id
        self.key_kind, self.key_bytes, self.value_kind, self.value_bytes = found
        self._decode = decode

    @property
    def key(self) -> Any:
        """Key as a Python value. Raises ValueBroken, TypeUnknown."""
        return self._decode(self.key_bytes, self.key_kind)

    @property
    def value(self) -> Any:
        """Value as a Python value. Raises ValueBroken, TypeUnknown."""
        return self._decode(self.value_bytes, self.value_kind)


def entries(
    client: ThinClient, types: Types, cache: str, cache_id: int, partition: int = ALL
) -> Iterator[list[ScanEntry]]:
    """Yield the entries of a partition or of a cache, a page at a time.

    Raises the errors of scanning.
    """
    decode = decoder(types)
    for page in client.scan(cache, cache_id, partition):
        for begin in range(0, len(page), PIECE_ENTRIES):
            yield [ScanEntry(cache_id, one, decode) for one in page[begin : begin + PIECE_ENTRIES]]


class InMemory(StateFiles):
    """State files that are never stored."""

    def load(self, _name: str, _kind: Any) -> None:
        """Return None: nothing is ever stored."""

    def save(self, name: str, state: Any) -> None:
        """Do nothing, because nothing is stored."""


def learn(
    client: ThinClient,
    maker: RowMaker,
    types: Types,
    cache: str,
    cache_id: int,
    *,
    entries_max: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Let the shape of a cache hold every entry, or entries_max; return the number of entries
    read.

    Ends early when asked to stop. Raises KeyNotUsable and the errors of scanning.
    """
    seen = 0
    for piece in entries(client, types, cache, cache_id):
        numbers = np.zeros(len(piece), np.int64)
        if piece:
            maker.rows(cache, changes_of(piece, decoder(types)), numbers, numbers)
        seen += len(piece)
        if stop() or (entries_max is not None and seen >= entries_max):
            break
    return seen


class ShapeUnfit(Exception):
    """An entry has something that does not fit a fixed shape. what: for people."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class FixedShapes(Shapes):
    """Shape of one cache, which does not grow. Raises ShapeUnfit if it would have to."""

    def __init__(self, cache: str, kept: KeptShape) -> None:
        """Store its columns, and the types that its values may have."""
        super().__init__(files=InMemory(), declared=self._no_declaration)
        self._is_whole = True
        self._kept[cache] = copy_shape(kept)

    def begin_again(self, cache: str) -> None:
        """Do nothing: the shape stays."""

    def declare(self, cache: str) -> None:
        """Do nothing: a column that was added since is not wanted."""

    def _no_declaration(self, _cache: str) -> Sequence[DeclaredColumn]:
        """Return no columns; a new list each time if rows must not be read from only their
        bytes.
        """
        return NOTHING if self._is_whole else []

    def object(self, cache: str, side: str, found: BinaryType) -> None:
        """Note whether each field that has a value in an entry has a column."""
        there = {one.field for one in self._kept[cache].columns if one.side == side}
        self._is_whole = self._is_whole and found.fields.keys() <= there

    def hold_text(self, cache: str, column: str) -> None:
        raise ShapeUnfit(f"a value that column {column} of {cache} cannot hold exactly")

    def take_type(self, cache: str, shown: str) -> None:
        if shown not in self._kept[cache].types:
            raise ShapeUnfit(f"a value of type {shown} in {cache}")

    def _put(self, cache: str, side: str, of: str, kind: str, name: str) -> None:
        before = [(one.kind, one.neutral) for one in self._kept[cache].columns]
        super()._put(cache, side, of, kind, name)
        if [(one.kind, one.neutral) for one in self._kept[cache].columns] != before:
            raise ShapeUnfit(f"a value of type {kind} in {of or side} of {cache}")


class FixedRows:
    """Columns of entries, in a shape that does not grow.

    skipped: number of entries that did not fit so far.
    """

    def __init__(
        self,
        cache: str,
        kept: KeptShape,
        types: Types,
        *,
        order: Sequence[str],
        zone: str,
        backups: bool,
        skips: bool,
    ) -> None:
        """Store the names of the columns, in order.

        skips: leave out entries that do not fit, because the change log has them; else raise
        ShapeUnfit.
        """
        self._cache = cache
        self._kept = kept
        self._types = types
        self._decode = decoder(types)
        self._order = order
        self._zone = zone
        self._backups = backups
        self._skips = skips
        self._maker = self._make_maker()
        self.skipped = 0

    def _make_maker(self) -> RowMaker:
        shapes = FixedShapes(self._cache, self._kept)
        return RowMaker(shapes, self._types, zone=self._zone, backups=self._backups)

    def columns(self, piece: Sequence[ScanEntry]) -> list[list[pa.Array]]:
        """Return the columns of these entries, in one part, or in more if some are left out."""
        if not piece:
            return []
        numbers = np.zeros(len(piece), np.int64)
        try:
            changes = changes_of(piece, self._decode)
            rows = self._maker.rows(self._cache, changes, numbers, numbers)
        except ShapeUnfit as unfit:
            if not self._skips:
                raise
            self._maker = self._make_maker()  # the old one has added part of it
            if len(piece) == 1:
                self.skipped += 1
                logger.info("a row is left to the change log", cache=self._cache, why=unfit.what)
                return []
            half = len(piece) // 2
            return self.columns(piece[:half]) + self.columns(piece[half:])
        after = rows.batch.column(rows.batch.schema.get_field_index("after"))
        names = [one.name for one in rows.relation.columns]
        return [[after.field(names.index(name)) for name in self._order]]


SAMPLE_ENTRIES = 1000


class AddressMissing(PenstockError):
    """Rows are to be read, but [source] url names no thin client connector."""

    code = "IG73"
    retry = "operator"


class StateDirectory(StateFiles):
    """State files of a pipeline, in its state directory."""

    def __init__(self, config: Config) -> None:
        """Store the directory; nothing is created yet."""
        self._directory = config.layout.state

    def load(self, name: str, kind: Any) -> Any:
        """Return what was saved. Raises CheckpointCorrupt."""
        return StateFile(self._directory / name, kind).load()

    def save(self, name: str, state: Any) -> None:
        REAL_FILES.make_directory(self._directory)
        StateFile(self._directory / name, type(state)).save(state)


class Read(StateDirectory):
    """State files of a pipeline that are only read."""

    def save(self, name: str, state: Any) -> None:
        """Do nothing: the extract process stores it."""


def check_address(config: Config) -> None:
    """Raise AddressMissing if rows are to be read and the URL has no address."""
    if not thin_url(config.source.url).addresses:
        raise AddressMissing(
            "the rows of the caches are to be read, and url in [source] has no address",
            hint="Add the node's thin client connector to url: &address=127.0.0.1:10800. Without "
            'one, mode = "change" follows changes only.',
            parameter="address",
        )


def known_shapes(config: Config, directory: NodeDirectory) -> Shapes:
    """Load the stored shapes of the caches, of the log or of a scan; nothing is written."""
    shapes = Shapes(files=Read(config), declared=Declared(directory).of)
    shapes.load()
    return shapes


def scanned_shapes(
    config: Config,
    directory: NodeDirectory,
    caches: Iterable[Cache],
    *,
    kept: dict[str, KeptShape] | None = None,
    entries_max: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, KeptShape]:
    """Read every entry of caches, or entries_max of them; return the shapes that hold them.

    kept: earlier shapes of the caches, which grow. Raises KeyNotUsable and the errors of
    scanning.
    """
    shapes = Shapes(files=InMemory(), declared=Declared(directory).of)
    shapes.take(kept or {})
    source = config.source
    maker = RowMaker(
        shapes, directory.types_read, zone=source.time_zone, backups=source.include_backups
    )
    with open_thin(thin_url(source.url)) as client:
        for cache in caches:
            if stop():
                break
            seen = learn(
                client, maker, directory.types_read, cache.name, cache.cache_id,
                entries_max=entries_max, stop=stop,
            )  # fmt: skip
            logger.info("cache was looked at", cache=cache.name, row_count=seen)
            shapes.known_relation(cache.name, cache.cache_id)
    return {name: one for name, one in shapes.all_kept().items() if one.columns}


def keep_scanned(config: Config, found: dict[str, KeptShape]) -> None:
    """Store shapes that a scan has found for caches that the log does not know."""
    files = StateDirectory(config)
    known = files.load(SCANNED_FILE, dict[str, KeptShape]) or {}
    files.save(SCANNED_FILE, {**known, **found})


def keep_first(config: Config, found: dict[str, KeptShape]) -> None:
    """Store shapes that a scan has found as those with which the log begins."""
    files = StateDirectory(config)
    known = files.load(SHAPES_FILE, dict[str, KeptShape]) or {}
    files.save(SHAPES_FILE, {**known, **found})


def known_relations(config: Config) -> list[Relation]:
    """Return the known shapes of captured caches, by name."""
    directory = open_any(config.source.url)
    shapes = known_shapes(config, directory)
    caches = taken_caches(config, directory)
    unknown = [one for one in caches if shapes.known_relation(one.name, one.cache_id) is None]
    if unknown and thin_url(config.source.url).addresses:
        shapes.take({**shapes.all_kept(), **_looked_at(config, directory, unknown)})
    found = [shapes.known_relation(one.name, one.cache_id) for one in caches]
    return [one for one in found if one is not None]


def _looked_at(
    config: Config, directory: NodeDirectory, caches: Sequence[Cache]
) -> Mapping[str, KeptShape]:
    """Return shapes of unknown caches from their rows; nothing for an unreachable node."""
    mode = config.pipeline.mode
    state = read_handover(config)
    try:
        if mode is Mode.DATA_CHANGE and (state is None or not state.position):
            # The handover will scan all of them.
            return scanned_shapes(config, directory, caches, entries_max=SAMPLE_ENTRIES)
        found = scanned_shapes(config, directory, caches)
    except (ConnectFailed, ConnectionLost) as error:
        if mode.has_data:
            raise
        logger.warning("columns are known with the first change", reason=error.message)
        return {}
    keep_scanned(config, found)
    return found


def taken_caches(config: Config, directory: NodeDirectory) -> list[Cache]:
    """Return the caches of a node that match the configuration, by name."""
    takes = Selection.parse(config.source.tables).takes
    found: list[Cache] = [told.read() for told in directory.caches()]
    return sorted((one for one in found if takes(table_of(one.name))), key=lambda one: one.name)
