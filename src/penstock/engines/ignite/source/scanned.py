"""Facts about caches before their first change, from a scan, stored beside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from penstock.engines.ignite.directory import Cache, NodeDirectory, open_any
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.scan import InMemory, learn
from penstock.engines.ignite.source.shapes import (
    SCANNED_FILE,
    SHAPES_FILE,
    Declared,
    KeptShape,
    Shapes,
    table_of,
)
from penstock.engines.ignite.thin import open_thin
from penstock.engines.ignite.url import thin_url
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile, StateFiles
from penstock.model import PenstockError, Relation
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode
from penstock.ports.handover import read_handover

SAMPLE_ENTRIES = 1000

logger = structlog.get_logger(__name__)


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
