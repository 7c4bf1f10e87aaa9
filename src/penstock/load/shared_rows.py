"""Divide a hot table's frames into its buckets' rows once, for all tasks of a batch on one machine.

Reading and decoding a frame costs about as much as all else that is done for its rows until they
are sent, so it must not be done again for each bucket. The frames of a table are in as many groups
as it has buckets. The first task that needs a group divides it: it reads the group's frames and
writes the rows of each bucket, not compressed, into a file of the group. The others wait for that
file, or divide another group meanwhile. If the divider dies, its lock ends with it, and the next
task divides the group again.

A bucket then maps the files and reads its own rows. Keys that changed into each other belong to one
bucket (see `split.py`), which is known only when all groups are divided. So each row is filed by
its own hash, the files list the changes of keys, and a bucket takes the rows of keys that belong to
it by such a change from the rows of other buckets.

Files are mapped, not read: they are a moment old, and their pages are in memory. If the disk lost a
page, the worker would die, and its batch would be staged again.

Not here: where the files are and when they are removed (`sql_target.py`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from penstock.codec import ckt
from penstock.host.files import REAL_FILES, hold_lock
from penstock.load.plan import FrameRef, Task
from penstock.load.split import Hashes, Links, find_changed, key_hashes

logger = structlog.get_logger(__name__)

Ints = npt.NDArray[np.int64]

# Rows are divided in pieces of this size, decoded: many small ones cost more for the same rows.
PIECE_BYTES = 16 * 2**20
_FACTS = 4  # int64 numbers at the end of a file
_FILTER_BITS = np.uint64(0xFFFF)


@contextmanager
def open_directories(parent: Path | None, tasks: Iterable[Task]) -> Iterator[dict[str, Path]]:
    """Provide, by merge table, a directory for the shared rows of each table with several buckets.

    parent: a directory on a disk that all workers have. Without it, or if no directory can be
    created there, none is provided, and each bucket reads all frames.
    """
    names = dict.fromkeys(task.staging for task in tasks if task.buckets > 1)
    if parent is None or not names:
        yield {}
        return
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # A task of an earlier batch that goes on cannot write here: its directory is another one.
        root = Path(tempfile.mkdtemp(dir=parent)).absolute()
        found = {name: root / str(number) for number, name in enumerate(names)}
        for directory in found.values():
            directory.mkdir()
    except OSError as error:
        logger.warning("buckets cannot share rows", path=str(parent), reason=str(error))
        yield {}
        return
    try:
        yield found
    finally:
        shutil.rmtree(root, ignore_errors=True)


class SharedRows:
    """Rows of a task's bucket, in the order of changes; iteration can be repeated."""

    def __init__(
        self, task: Task, directory: Path, read: Callable[[FrameRef], pa.RecordBatch]
    ) -> None:
        """Divide the groups that no other task has divided, and wait for the rest.

        Args:
            task: one of several buckets.
            directory: an empty one for the table's files in this batch, the same for all buckets.
            read: returns the rows of a frame that count.

        Raises the errors of read, DiskFull and FileFailed.
        """
        self._number, self._count = task.bucket, task.buckets
        groups = _group(task.frames, task.buckets)
        for step in range(len(groups)):
            # Each bucket begins with another group, so tasks that run at once share the work.
            number = (self._number + step) % len(groups)
            _divide_once(task, groups[number], directory / str(number), read)
        self._groups = [_Group(directory / str(n), self._count) for n in range(len(groups))]
        self._links = Links([group.changed for group in self._groups])
        self._moves = self._links.cross(self._count)
        self._may_move = np.zeros(int(_FILTER_BITS) + 1, np.bool_)
        self._may_move[self._links.hashes & _FILTER_BITS] = True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield our rows of each piece of a group, possibly none."""
        for group in self._groups:
            for piece in range(group.piece_count):
                if self._moves:
                    yield self._gather(group, piece)
                else:
                    yield group.rows(piece, self._number)

    def _gather(self, group: _Group, piece: int) -> pa.RecordBatch:
        """Return our rows of a piece if rows belong to another bucket than their own hash says."""
        parts = []
        for bucket in range(self._count):
            rows, hashes = group.rows(piece, bucket), group.hashes(piece, bucket)
            places = np.flatnonzero(self._may_move[hashes & _FILTER_BITS])
            ours = self._links.resolve(hashes[places]) % np.uint64(self._count) == self._number
            if bucket != self._number:
                places = places[ours]
            elif ours.all():
                places = np.arange(rows.num_rows)
            else:
                places = np.setdiff1d(np.arange(rows.num_rows), places[~ours], assume_unique=True)
            if len(places):
                is_whole = len(places) == rows.num_rows
                parts.append(rows if is_whole else rows.take(pa.array(places)))
        if len(parts) < 2:
            return parts[0] if parts else group.rows(piece, self._number).slice(0, 0)
        joined = pa.concat_batches(parts)
        return joined.take(pa.array(np.argsort(joined.column("gsn").to_numpy(), kind="stable")))


def _group(frames: Sequence[FrameRef], count: int) -> list[Sequence[FrameRef]]:
    """Return the frames in up to count groups of neighbours that have about equal sizes."""
    ends = np.cumsum([ref.entry.length_bytes for ref in frames])
    starts = np.unique((ends - 1) * count // ends[-1], return_index=True)[1]
    return [frames[low:high] for low, high in pairwise([*starts.tolist(), len(frames)])]


def _divide_once(
    task: Task,
    frames: Sequence[FrameRef],
    path: Path,
    read: Callable[[FrameRef], pa.RecordBatch],
) -> None:
    """Write the file of a group unless it is there; it gets its name when it is complete."""
    if path.exists():
        return
    with hold_lock(path.with_suffix(".lock")):
        if path.exists():
            return
        draft = path.with_suffix(f".{os.getpid()}")
        draft.unlink(missing_ok=True)
        file = REAL_FILES.create(draft)
        try:
            for part in _divide(task, frames, read):
                file.append(part)
        finally:
            file.close()
        REAL_FILES.rename(draft, path)


def _divide(
    task: Task, frames: Sequence[FrameRef], read: Callable[[FrameRef], pa.RecordBatch]
) -> Iterator[list[pa.Buffer]]:
    """Yield what is written for each piece of a group, and in the end where everything is.

    places: for each piece where the rows of each bucket are, and after them the end of the last
    bucket's, where the hashes begin. bounds: for each piece its rows before each bucket's.
    """
    changes_keys = any(ref.entry.updates_with_before for ref in task.frames)
    count = task.buckets
    places, bounds, changed = [], [], []
    writer: _Writer | None = None
    for rows in _join(map(read, frames)):
        if writer is None:
            writer = _Writer(rows.schema)
        origin, hashes = key_hashes(task.relation, rows)
        bucket_of = (hashes % np.uint64(count)).astype(np.uint8)
        order = np.argsort(bucket_of, kind="stable")
        bound = np.searchsorted(bucket_of[order], np.arange(count + 1))
        bounds.append(bound)
        place = []
        for low, high in pairwise(bound.tolist()):
            place.append(writer.end)
            if high > low:
                writer.add(rows.take(pa.array(order[low:high])))
        places.append([*place, writer.end])
        if changes_keys:
            changed.append(find_changed(origin, hashes))
            writer.add_raw(pa.py_buffer(hashes[order]))
        yield writer.take()
    assert writer is not None, "a group has frames"
    pairs = np.concatenate(changed, axis=1) if changed else np.empty((2, 0), np.uint64)
    facts = np.array([writer.schema_end, len(places), pairs.shape[1], writer.end], np.int64)
    tail = [np.array(places, np.int64), np.array(bounds, np.int64), pairs, facts]
    yield [pa.py_buffer(np.ascontiguousarray(one)) for one in tail]


def _join(frames: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of successive frames in larger pieces."""
    held: list[pa.RecordBatch] = []
    for rows in frames:
        held.append(rows)
        if sum(one.nbytes for one in held) >= PIECE_BYTES:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


class _Writer:
    """Collector of uncompressed Arrow messages, whose buffers it does not copy."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = ckt.MessageParts()
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._parts: list[Any] = [schema.serialize()]
        self._sink.take()
        self.schema_end = self.end = self._parts[0].size
        self._is_new = True

    def add(self, rows: pa.RecordBatch) -> None:
        if self._is_new:
            self._writer.write_batch(rows.slice(0, 0))  # the first one writes the schema, too
            self._sink.take()
            self._is_new = False
        self._writer.write_batch(rows)
        for part in self._sink.take():
            self.add_raw(part)

    def add_raw(self, part: Any) -> None:
        self._parts.append(part)
        self.end += len(part)

    def take(self) -> list[Any]:
        """Return what was added since the last call."""
        parts, self._parts = self._parts, []
        return parts


class _Group:
    """A group's file, mapped; see `_divide`. changed: hashes before and after changes of keys."""

    def __init__(self, path: Path, count: int) -> None:
        mapped = np.memmap(path, np.uint8, "r")
        self._data = pa.py_buffer(mapped)
        schema_end, self.piece_count, pair_count, at = mapped[-_FACTS * 8 :].view(np.int64).tolist()
        self._schema = pa.ipc.read_schema(self._data[:schema_end])
        size = self.piece_count * (count + 1)
        self._places: Ints = mapped[at : at + size * 8].view(np.int64).reshape(-1, count + 1)
        at += size * 8
        self._bounds: Ints = mapped[at : at + size * 8].view(np.int64).reshape(-1, count + 1)
        at += size * 8
        self.changed: Hashes = mapped[at : at + pair_count * 16].view(np.uint64).reshape(2, -1)
        self._mapped = mapped

    def rows(self, piece: int, bucket: int) -> pa.RecordBatch:
        """Return the rows of a piece whose own hash is a bucket's."""
        low, high = self._places[piece, bucket : bucket + 2].tolist()
        if low == high:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        return pa.ipc.read_record_batch(self._data[low:high], self._schema)

    def hashes(self, piece: int, bucket: int) -> Hashes:
        """Return the hash of each of these rows."""
        low, high = self._bounds[piece, bucket : bucket + 2].tolist()
        start = int(self._places[piece, -1])
        found: Hashes = self._mapped[start + low * 8 : start + high * 8].view(np.uint64)
        return found
