"""Send frames of the log to the executors through Spark: `[spark] log = "ship"`.

If executors cannot read the pipeline's directory, the driver reads the frames of a batch and gives
each partition those that its tasks fold. A few frames are sent with the partition; many are sent as
broadcasts in pieces, which Spark keeps on disk and an executor fetches only for its own partitions.
The driver holds one partition's few frames, or one piece, at a time. Tasks read them like a file,
with checksums. Not here: the use of them in tasks (`job.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from penstock.codec.ckt import HEAD, HEADER_REGION_SIZE
from penstock.host.files import ReadFile
from penstock.load.plan import FrameRef
from penstock.log.segment import open_either

if TYPE_CHECKING:
    from pyspark.core.broadcast import Broadcast
    from pyspark.core.rdd import RDD

# Up to so many bytes of frames go with their partitions. They are in the JVM's heap, and in the
# message that starts a task, which Spark limits (spark.rpc.message.maxSize, 128 MiB).
INLINE_BYTES_MAX = 32 * 2**20
PIECE_BYTES_MAX = 16 * 2**20

Place = tuple[Path, int]  # a file, and where in it
Frames = dict[Place, bytes]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A partition's frames, in a worker. pieces: broadcasts. where: piece of each frame."""

    inline: Frames
    where: dict[Place, int]
    pieces: tuple[Broadcast[Frames], ...]

    def open(self, path: Path) -> ReadFile:
        """Open one of the files, as far as it was shipped."""
        return _ShippedFile(path, self)

    def read(self, place: Place) -> bytes:
        """Read a frame, or a file's header. Earlier pieces are released."""
        if place in self.inline:
            return self.inline[place]
        number = self.where[place]
        for other, piece in enumerate(self.pieces):
            if other != number and hasattr(piece, "_path"):  # read again from there
                vars(piece).pop("_value", None)
        return self.pieces[number].value[place]


class _ShippedFile(ReadFile):
    """Shipped parts of a file, which can be read where a frame begins."""

    def __init__(self, path: Path, shipped: Shipped) -> None:
        self.path = path
        self.size_bytes = 0  # not used
        self._shipped = shipped

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        return self._shipped.read((self.path, offset_bytes))[:length_bytes]

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Freight:
    """A partition's frames on the driver, which are read when they are pickled as `Shipped`."""

    def __init__(self, frames: Iterable[FrameRef]) -> None:
        """Keep all frames that the tasks read; several tasks may share one."""
        lengths: dict[Place, int] = {}
        for ref in frames:
            lengths[ref.path, 0] = HEADER_REGION_SIZE
            lengths[ref.path, ref.entry.offset_bytes] = HEAD.size + ref.entry.length_bytes
        self._lengths = lengths
        self.size_bytes = sum(lengths.values())

    def __reduce__(self) -> tuple[type[Shipped], tuple[Any, ...]]:
        """Return the pickled form, which a worker gets."""
        return Shipped, (dict(self._read()), {}, ())

    def broadcast(self, context: SparkContext) -> Shipped:
        """Return the same as broadcasts, in pieces."""
        where: dict[Place, int] = {}
        pieces: list[Broadcast[Frames]] = []
        held: Frames = {}
        size = 0
        for place, data in self._read():
            if held and size + len(data) > PIECE_BYTES_MAX:
                pieces.append(context.broadcast(held))
                held, size = {}, 0
            held[place] = data
            size += len(data)
            where[place] = len(pieces)
        pieces.append(context.broadcast(held))
        return Shipped({}, where, tuple(pieces))

    def _read(self) -> Iterator[tuple[Place, bytes]]:
        """Yield the bytes at each place."""
        with ExitStack() as stack:
            files: dict[Path, ReadFile] = {}
            for (path, offset), length in self._lengths.items():
                if path not in files:
                    files[path] = stack.enter_context(closing(open_either(path)))
                yield (path, offset), files[path].read(offset, length)


@contextmanager
def spread(
    context: SparkContext,
    partitions: Sequence[Sequence[Any]],
    call: Callable[[Iterable[Any]], Iterator[Any]],
) -> Iterator[RDD[Any]]:
    """Yield the RDD of a job whose tasks have `shipped`, a Freight for each partition.

    It is valid inside the context: broadcasts are destroyed at its end.
    """
    freights = [tasks[0].shipped for tasks in partitions]
    if sum(one.size_bytes for one in freights) <= INLINE_BYTES_MAX:
        yield context.parallelize(list(partitions), len(partitions)).mapPartitions(call)
        return
    sent: list[Shipped] = []
    try:
        parts = []
        for tasks, freight in zip(partitions, freights, strict=True):
            shipped = freight.broadcast(context)
            sent.append(shipped)
            works = [replace(task, shipped=shipped) for task in tasks]
            part = context.parallelize([works], 1).mapPartitions(call)
            # The broadcasts that were pickled before a function go with it, and with no other's:
            # so that an executor fetches those of its partitions. It is pickled when asked for.
            assert part._jrdd is not None
            parts.append(part)
        yield context.union(parts)
    finally:
        for shipped in sent:
            for piece in shipped.pieces:
                piece.destroy()
