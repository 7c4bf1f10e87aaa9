"""Engine of `penstock extract` for an Ignite node's directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.engines.ignite.directory import NodeDirectory
from penstock.engines.ignite.source.captures import Captures
from penstock.engines.ignite.source.node import NodeReader, NodeSegmentsMissed
from penstock.engines.ignite.source.position import (
    OFFSET_BITS,
    IgnitePosition,
    position_of,
)
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.shapes import Declared, Shapes
from penstock.engines.ignite.source.stream import IgniteStream
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, PenstockError, Run
from penstock.model.patterns import Selection
from penstock.ports.config import Config
from penstock.ports.source import EnginePlace, LogAccess, Origin, Ranges, ServerEnd, SourceEngine

LOCK_TIMEOUT_MS = 1000


class IgniteEngine(SourceEngine):
    """Source engine over one node's log."""

    def __init__(
        self, directory: NodeDirectory, config: Config, *, begin: int = 0, copied_ms: int = 0
    ) -> None:
        """Store the node's directory. begin: position of an empty log; 0: at the saved state.

        copied_ms: see NodeReader.
        """
        self._copied_ms = copied_ms
        self._begin = begin
        self._directory = directory
        self._config = config
        self._source = config.source
        self._shapes: Shapes | None = None
        self._captures: Captures | None = None
        self._clock: Clock = REAL_CLOCK
        self._log_id: Callable[[], str] = str

    @property
    def name(self) -> str:
        """Name of the node's folder."""
        return self._directory.directory.name

    def begin(self, place: EnginePlace) -> Origin:
        """Return the node's identity. Segments are deleted only when the log has them."""
        declared = Declared(self._directory)
        self._shapes = Shapes(files=place.state, declared=declared.of)
        self._begin_captures(place)
        saved = self._directory.load_place()
        return Origin(
            identity={"engine": "ignite", "node": self.name},
            resend_from=0 if saved is None else position_of(saved),
            begin=self._begin,
        )

    def _begin_captures(self, place: EnginePlace) -> None:
        assert self._shapes is not None
        self._clock, self._log_id = place.clock, place.log_id
        self._captures = Captures(
            self._config, self._directory, place.state, self._shapes, clock=place.clock
        )
        self._captures.begin()

    def server_end(self) -> ServerEnd:
        """Return the last existing segment. Later changes are not known."""
        last = max(self._directory.segments(), default=0)
        return ServerEnd(position=last << OFFSET_BITS)

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: nothing is ever written to a node."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return str(IgnitePosition(position))

    def bytes_between(self, first: int, last: int) -> int:
        return self._directory.bytes_between(first, last)

    def attempt(self) -> AbstractContextManager[None]:
        """Hold the directory's lock. Raises DirectoryTaken."""
        return self._hold_lock()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        held = self._directory.lock(LOCK_TIMEOUT_MS, stop=lambda: False, clock=self._clock)
        assert held is not None, "it was not asked to stop"
        try:
            yield
        finally:
            held.release()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    def stream(self, durable: FlushPoint) -> AbstractContextManager[IgniteStream]:
        assert self._shapes is not None, "begin() comes first"
        assert self._captures is not None
        source, directory = self._source, self._directory
        if durable.position in (0, self._begin):
            directory.claim(self._log_id())
        else:
            directory.check_claimed(self._log_id())
        self._shapes.load(durable.position)
        reader = NodeReader(
            directory,
            takes=self._captures.takes,
            backups=source.include_backups,
            copied_ms=self._copied_ms,
            known=self._known_caches,
        )
        maker = RowMaker(
            self._shapes,
            directory.types_read,
            zone=source.time_zone,
            backups=source.include_backups,
        )
        return nullcontext(
            IgniteStream(
                reader,
                maker,
                self._shapes,
                start=durable,
                clock=self._clock,
            )
        )

    def _known_caches(self) -> list[str]:
        """Return the names of caches whose changes are wanted also if they are gone."""
        assert self._shapes is not None, "begin() comes first"
        return [*Selection.parse(self._source.tables).names(), *self._shapes.names()]

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:
        """Do nothing."""

    def has_outstanding(self) -> bool:
        return False

    def tend(self, log_access: LogAccess) -> None:
        """Add tables by request. The shape of an added cache is written to the log first."""
        assert self._captures is not None, "begin() comes first"
        for relation in self._captures.tend():
            log_access.flush()
            log_access.write(Run(relations=(relation,), end=log_access.durable))
            log_access.flush()

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether segments that the log lacks are gone."""
        return isinstance(error, NodeSegmentsMissed)
