"""Buckets that share their rows have the same rows as buckets that each read all frames."""

from __future__ import annotations

import os
import signal
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.changes import Change, batch, relation
from harness.pipelines.histories import STEPS, histories, keyless
from penstock.codec.ckt import FrameKind
from penstock.host import faults
from penstock.host.files import DiskFull
from penstock.load import shared_rows
from penstock.load.job import Work, _own_rows
from penstock.load.plan import FrameRef, Task
from penstock.load.shared_rows import SharedRows, open_directories
from penstock.load.split import Bucket
from penstock.log.frames import place_entry
from penstock.model import Identity, Relation

PATH = Path("0.ckt")


class Frames:
    """Frames of a table in memory, and how often each was read."""

    def __init__(self, shape: Relation, changes: Sequence[Change], size: int) -> None:
        """Divide the changes into frames of this size."""
        parts = [changes[at : at + size] for at in range(0, len(changes), size)]
        self.shape = shape
        self.batches = [batch(shape, part) for part in parts]
        self.reads = [0] * len(parts)
        self.on_read: Callable[[int], object] = lambda _: None

    def task(self, bucket: int, buckets: int) -> Task:
        """Return the task of a bucket; the offset of a frame is its number."""
        return Task(
            phase=0,
            relation=self.shape,
            frames=tuple(
                FrameRef(path=PATH, entry=self._entry(number)) for number in range(len(self.reads))
            ),
            gsn_after=0,
            gsn_upto=10**6,
            bucket=bucket,
            buckets=buckets,
            staging="s",
        )

    def _entry(self, number: int) -> Any:
        rows = self.batches[number]
        before = rows.num_rows - rows.column("before").null_count
        entry = place_entry(FrameKind.ROWS, number, rows.nbytes, 0)
        return entry._replace(updates_with_before=before)

    def read(self, ref: FrameRef) -> pa.RecordBatch:
        """Return a frame."""
        number = ref.entry.offset_bytes
        self.reads[number] += 1
        self.on_read(number)
        return self.batches[number]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read all frames."""
        return map(self.read, self.task(0, 1).frames)

    def share(self, bucket: int, buckets: int, directory: Path) -> pa.Table:
        """Return a bucket's rows, which the buckets share."""
        return table(SharedRows(self.task(bucket, buckets), directory, self.read))

    def select(self, bucket: int, buckets: int) -> pa.Table:
        """Return a bucket's rows, selected from all frames."""
        return table(
            Bucket(self.shape, self.batches, number=bucket, count=buckets, changes_keys=True)
        )


def table(batches: Any) -> pa.Table:
    """Return the rows of all batches, in order."""
    return pa.Table.from_batches(list(batches)).combine_chunks()


@contextmanager
def new_directory() -> Iterator[Path]:
    """Provide an empty directory for each example."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def check(shape: Relation, changes: Sequence[Change], data: st.DataObject) -> None:
    """Compare each bucket's rows, whichever bucket comes first and however the rows are cut."""
    if not changes:
        return
    frames = Frames(shape, changes, data.draw(st.integers(1, 9)))
    count = data.draw(st.integers(2, 8))
    piece = data.draw(st.sampled_from([1, 300, 10**6]))
    with new_directory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_rows, "PIECE_BYTES", piece)
        for bucket in data.draw(st.permutations(range(count))):
            found, expected = frames.share(bucket, count, directory), frames.select(bucket, count)
            assert found.schema == expected.schema
            assert repr(found.to_pylist()) == repr(expected.to_pylist()), bucket  # NaN is one text
    assert frames.reads == [1] * len(frames.reads), "each frame is read once for all buckets"


@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
@given(data=st.data())
def test_shared_rows_are_the_buckets_rows(identity: Identity, data: st.DataObject) -> None:
    """Keys change and are swapped, rows return, columns are unsent."""
    _, history = data.draw(histories(identity))
    check(history.relation, history.changes, data)


@given(data=st.data(), steps=STEPS)
def test_shared_rows_of_a_table_without_a_key(data: st.DataObject, steps: Any) -> None:
    """The whole row is the key, with NULL."""
    start = data.draw(st.dictionaries(st.tuples(st.none(), st.integers(0, 3)), st.integers(1, 3)))
    shape, changes, _ = keyless(start, steps)  # type: ignore[arg-type]
    check(shape, changes, data)


NAN_TOO = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]
KEY_TYPES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "int16": ("smallint", st.integers(-3, 3)),
    "int64": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "uint64": ("bigint unsigned", st.integers(0, 2**64 - 1)),
    "bool": ("boolean", st.booleans()),
    "float64": ("float8", st.sampled_from([0.0, -0.0, float("nan"), NAN_TOO, 1.5])),
    "decimal(12,2)": ("numeric(12,2)", st.decimals(-9, 9, places=2)),
    "date": ("date", st.dates()),
    "uuid": ("uuid", st.binary(min_size=16, max_size=16)),
    # Keys that a target may consider equal: case, spaces at the end, 1 and 1.0.
    "string": ("text", st.sampled_from(["a", "A", "a ", "á", "1", "1.0", "", "b" * 20])),
    "binary": ("bytea", st.binary(max_size=9)),
}


@given(data=st.data(), neutral=st.sampled_from(sorted(KEY_TYPES)))
def test_shared_rows_of_every_type_of_key(data: st.DataObject, neutral: str) -> None:
    """Any change may change the key, to one that only looks equal, too."""
    source, values = KEY_TYPES[neutral]
    shape = relation(("a", "integer", "int32"), ("k", source, neutral), key=(1, 0))
    key = st.tuples(st.integers(0, 1), values)
    changes = []
    for op in data.draw(st.lists(st.sampled_from("IUUD"), max_size=30)):
        changes.append(
            Change(
                op=op,
                gsn=len(changes) + 1,
                after=data.draw(key) if op != "D" else None,
                before=data.draw(key) if op == "D" or data.draw(st.booleans()) else None,
            )
        )
    check(shape, [replace(one, before=None) if one.op == "I" else one for one in changes], data)


def rows_of(count: int) -> Frames:
    """Return frames of ten rows with different keys; every seventh key changes into the next."""
    shape = relation(("id", "bigint", "int64"), ("v", "text", "string"))
    changes = [
        Change(
            op="U",
            gsn=number + 1,
            after=(number, "x"),
            before=(number - 1, None) if number % 7 == 6 else None,
        )
        for number in range(count)
    ]
    return Frames(shape, changes, 10)


def test_a_changed_key_takes_the_rows_of_both_keys_along() -> None:
    """Rows of a key that changed into one of another bucket are all in one bucket, in order."""
    shape = relation(("id", "bigint", "int64"), ("v", "text", "string"))
    changes = [
        Change(
            op="U",
            gsn=gsn,
            after=(gsn % 100 if gsn != 500 else 1_000, str(gsn)),
            before=(0, None) if gsn == 500 else None,
        )
        for gsn in range(1, 1_000)
    ]
    frames = Frames(shape, changes, 50)
    with new_directory() as directory:
        found = [frames.share(bucket, 8, directory) for bucket in range(8)]
    holders = {
        bucket
        for bucket, rows in enumerate(found)
        for after in rows.column("after").to_pylist()
        if after["id"] in (0, 1_000)
    }
    assert len(holders) == 1
    for rows in found:
        gsns = rows.column("gsn").to_pylist()
        assert gsns == sorted(gsns)
    assert sum(rows.num_rows for rows in found) == len(changes)


def test_a_bucket_waits_for_the_divider() -> None:
    """Two buckets that run at once read each frame once between them."""
    frames = rows_of(400)
    reached, may_go = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        reached.set()
        assert may_go.wait(20)

    frames.on_read = wait
    found: dict[int, pa.Table] = {}
    with new_directory() as directory:

        def run(bucket: int) -> None:
            found[bucket] = frames.share(bucket, 2, directory)

        threads = [threading.Thread(target=run, args=(bucket,)) for bucket in range(2)]
        for thread in threads:
            thread.start()
        assert reached.wait(20)
        may_go.set()
        for thread in threads:
            thread.join(20)
    assert [found[bucket] for bucket in range(2)] == [frames.select(n, 2) for n in range(2)]
    assert frames.reads == [1] * len(frames.reads)


def test_a_killed_dividers_group_is_divided_again() -> None:
    """The file has no name yet, and the lock ended with its holder."""
    frames = rows_of(400)
    with new_directory() as directory:
        child = os.fork()
        if not child:
            frames.on_read = lambda number: os.kill(os.getpid(), signal.SIGKILL) if number else None
            frames.share(0, 2, directory)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert list(directory.iterdir()), "it had begun"
        for bucket in range(2):
            assert frames.share(bucket, 2, directory).equals(frames.select(bucket, 2))


def test_a_full_disk_is_an_error_and_leaves_no_group() -> None:
    """The next task that needs the group divides it."""
    frames = rows_of(400)
    with new_directory() as directory:
        with faults.arming("files.write:1:error=ENOSPC"), pytest.raises(DiskFull):
            frames.share(0, 2, directory)
        assert frames.share(0, 2, directory).equals(frames.select(0, 2))


def test_a_bucket_that_cannot_share_rows_reads_all_frames() -> None:
    """The other bucket, which shares rows, has the rest: no row is in both or in neither."""
    frames = rows_of(400)
    work: Any = Work(task=frames.task(0, 2), writer=cast("Any", None))
    with new_directory() as directory:
        work = replace(work, shared=directory)
        with faults.arming("files.write:1:error=ENOSPC"):
            first = table(_own_rows(work, cast("Any", frames)))
        second = table(_own_rows(replace(work, task=frames.task(1, 2)), cast("Any", frames)))
    assert first.equals(frames.select(0, 2))
    assert second.equals(frames.select(1, 2))
    assert first.num_rows + second.num_rows == 400


def test_directories_of_a_batch(tmp_path: Path) -> None:
    """Tables with several buckets have one each, which is new for every batch and then removed."""
    frames = rows_of(10)
    hot = [replace(frames.task(bucket, 2), staging=name) for name in "ab" for bucket in range(2)]
    small = replace(frames.task(0, 1), staging="c")
    with open_directories(tmp_path / "rows", [*hot, small]) as first:
        assert sorted(first) == ["a", "b"]
        assert all(path.is_dir() and path.is_absolute() for path in first.values())
        with open_directories(tmp_path / "rows", hot) as second:
            assert not set(first.values()) & set(second.values())
    assert not list((tmp_path / "rows").iterdir())


def test_no_directory_is_needed(tmp_path: Path) -> None:
    """Each bucket reads all frames on a cluster, or where none can be created."""
    hot = [rows_of(10).task(bucket, 2) for bucket in range(2)]
    with open_directories(None, hot) as found:
        assert found == {}
    (tmp_path / "file").touch()
    with open_directories(tmp_path / "file", hot) as found:
        assert found == {}
