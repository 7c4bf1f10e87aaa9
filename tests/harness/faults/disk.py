"""A simulated disk: a power cut loses everything that was not synced.

Adversarial within what POSIX allows: unsynced writes survive up to any byte, or page by page with
zeros between; directory entries that were not synced survive up to any operation, per directory; a
failed fdatasync drops the writes for good although they are still readable and a later one succeeds
(as Linux does).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.host.files import (
    AppendFile,
    DirectoryLocked,
    DiskFull,
    FileExists,
    FileFailed,
    FileMissing,
    Lock,
    ReadFile,
)

PAGE_BYTES = 512


class PowerCut(BaseException):
    """Error of a machine without power: not an Exception, so that no handler catches it."""


@dataclass(eq=False)
class Inode:
    """A file: content as processes see it, content on the platter, and the pending writes."""

    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # offset (-1: truncate), data
    size_pending: bool = False

    def write(self, offset: int, data: bytes) -> None:
        _put(self.current, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        del self.current[size:]
        self.pending.append((-1, size.to_bytes(8, "little")))
        self.size_pending = True

    def sync(self) -> None:
        self._apply(self.pending)
        self.pending.clear()
        self.size_pending = False

    def lose_pending(self) -> None:
        """Drop the pending writes: after a failed sync the kernel counts the pages as clean."""
        self.pending.clear()

    def _apply(self, writes: Sequence[tuple[int, bytes]]) -> None:
        for offset, data in writes:
            if offset < 0:
                del self.durable[int.from_bytes(data, "little") :]
            else:
                _put(self.durable, offset, data)

    def crash(self, dice: random.Random) -> None:
        """Keep the durable content and some of the pending writes."""
        kept = dice.randint(0, len(self.pending))
        self._apply(self.pending[:kept])
        if kept < len(self.pending) and self.pending[kept][0] >= 0:
            offset, data = self.pending[kept]
            if dice.random() < 0.5:
                self._apply([(offset, data[: dice.randint(0, len(data))])])
            else:
                self._crash_by_pages(dice)
        self.current = bytearray(self.durable)
        self.pending.clear()
        self.size_pending = False

    def _crash_by_pages(self, dice: random.Random) -> None:
        """Keep the size, but only some pages of the writes."""
        seen = bytes(self.current)
        size = max(len(self.durable), dice.randint(len(self.durable), len(seen)))
        self.durable.extend(bytes(size - len(self.durable)))
        for start in range(0, size, PAGE_BYTES):
            if dice.random() < 0.5:
                page = seen[start : min(start + PAGE_BYTES, size)]
                self.durable[start : start + len(page)] = page


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(eq=False)
class Directory:
    """A directory: names as processes see them, names on the platter, pending operations."""

    current: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    pending: list[dict[str, Inode | None]] = field(default_factory=list)

    def change(self, changes: dict[str, Inode | None]) -> None:
        """Carry out one atomic operation: names are set or (None) removed."""
        _apply_names(self.current, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.current)
        self.pending.clear()

    def crash(self, dice: random.Random) -> None:
        for changes in self.pending[: dice.randint(0, len(self.pending))]:
            _apply_names(self.durable, changes)
        self.current = dict(self.durable)
        self.pending.clear()


def _apply_names(names: dict[str, Inode], changes: dict[str, Inode | None]) -> None:
    for name, inode in changes.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class Disk:
    """Files on a simulated disk; implements `penstock.host.files.Files`.

    An fdatasync where fsync is required (after truncate) is an AssertionError.

    Attributes:
        operation_count: Number of operations that change or sync something.
        cut_at: Number of the operation during which the power is cut.
        fail_at: Number of the operation that fails once, with its errno.
    """

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.directories: dict[Path, Directory] = {Path("/"): Directory()}
        self.operation_count = 0
        self.cut_at: int | None = None
        self.fail_at: tuple[int, int] | None = None
        self.is_off = False
        self.locked: set[Path] = set()
        self.trace: list[str] = []

    # --- actions of tests ------------------------------------------------------------------

    def power_cut(self) -> None:
        """Cut the power and start again: only what may be on the platter is left."""
        inodes = {
            id(inode): inode
            for directory in self.directories.values()
            for names in (directory.current, directory.durable, *directory.pending)
            for inode in names.values()  # type: ignore[attr-defined]
            if inode is not None
        }
        for directory in self.directories.values():
            directory.crash(self.dice)
        for inode in inodes.values():
            inode.crash(self.dice)
        self.process_died()

    def process_died(self) -> None:
        """End the process but not the machine: everything written remains readable."""
        self.locked.clear()
        self.is_off = False
        self.cut_at = None
        self.fail_at = None

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, on the platter and in memory."""
        inode = self._inode(path)
        for content in (inode.current, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << bit % 8

    def content(self, path: Path) -> bytes:
        """Return the content that a process reads."""
        return bytes(self._inode(path).current)

    # --- inside ----------------------------------------------------------------------------

    def step(
        self,
        name: str,
        path: Path,
        do: Callable[[], None],
        on_error: Callable[[], None] | None = None,
    ) -> None:
        """Carry out one operation: it is done, fails, or is interrupted by the power cut (perhaps
        done).
        """
        if self.is_off:
            raise PowerCut
        number = self.operation_count
        self.operation_count += 1
        self.trace.append(f"{name} {path.name}")
        if self.fail_at and self.fail_at[0] == number:
            if on_error:
                on_error()
            raise _error(self.fail_at[1], name, path)
        if self.cut_at == number:
            if self.dice.random() < 0.5:
                do()
            self.is_off = True
            raise PowerCut
        do()

    def _directory(self, path: Path) -> Directory:
        if self.is_off:
            raise PowerCut
        if path not in self.directories:
            raise _error(errno.ENOENT, "open", path)
        return self.directories[path]

    def _inode(self, path: Path) -> Inode:
        found = self._directory(path.parent).current.get(path.name)
        if found is None:
            raise _error(errno.ENOENT, "open", path)
        return found

    # --- Files -----------------------------------------------------------------------------

    def create(self, path: Path) -> AppendFile:
        directory = self._directory(path.parent)
        if path.name in directory.current:
            raise _error(errno.EEXIST, "create", path)
        inode = Inode()
        self.step("create", path, lambda: directory.change({path.name: inode}))
        return _Append(self, path, inode)

    def open_append(self, path: Path) -> AppendFile:
        return _Append(self, path, self._inode(path))

    def open_read(self, path: Path) -> ReadFile:
        return _Read(self, path, self._inode(path))

    def read_whole(self, path: Path) -> bytes:
        return bytes(self._inode(path).current)

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        inode = self._inode(old)
        directory = self._directory(old.parent)
        self.step("rename", new, lambda: directory.change({old.name: None, new.name: inode}))

    def link(self, old: Path, new: Path) -> None:
        inode = self._inode(old)
        directory = self._directory(new.parent)
        if new.name in directory.current:
            raise _error(errno.EEXIST, "link", new)
        self.step("link", new, lambda: directory.change({new.name: inode}))

    def unlink(self, path: Path) -> None:
        self._inode(path)
        directory = self._directory(path.parent)
        self.step("unlink", path, lambda: directory.change({path.name: None}))

    def fsync_directory(self, path: Path) -> None:
        self.step("fsync_directory", path, self._directory(path).sync)

    def make_directory(self, path: Path) -> None:
        # Durable at once: the simulation covers a log, not the creation of its directory.
        for place in (path, *path.parents):
            self.directories.setdefault(place, Directory())

    def listdir(self, path: Path) -> list[str]:
        names = list(self._directory(path).current)
        self.dice.shuffle(names)
        return names

    def exists(self, path: Path) -> bool:
        return path.parent in self.directories and path.name in self._directory(path.parent).current

    def replace(
        self, path: Path, data: bytes, *, durable: bool = True, is_secret: bool = False
    ) -> None:
        directory = self._directory(path.parent)
        temporary = path.with_name(path.name + ".1.tmp")
        inode = Inode()
        self.step("create", temporary, lambda: directory.change({temporary.name: inode}))
        self.step("write", temporary, lambda: inode.write(0, data))
        if durable:
            self.step("fsync", temporary, inode.sync, inode.lose_pending)
        self.rename(temporary, path)
        if durable:
            self.fsync_directory(path.parent)

    def free_bytes(self, path: Path) -> int:
        return 10**9

    def lock(self, directory: Path, name: str = "LOCK") -> Lock:
        if directory in self.locked:
            raise DirectoryLocked("locked", holder_pid=1)
        self.locked.add(directory)
        return _Lock(self, directory)


@dataclass
class _Lock:
    disk: Disk
    directory: Path

    def release(self) -> None:
        self.disk.locked.discard(self.directory)


class _Read:
    def __init__(self, disk: Disk, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    @property
    def size_bytes(self) -> int:
        return len(self._inode.current)

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        if self._disk.is_off:
            raise PowerCut
        return bytes(self._inode.current[offset_bytes : offset_bytes + length_bytes])

    def close(self) -> None:
        pass


class _Append:
    def __init__(self, disk: Disk, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self.size_bytes = len(inode.current)

    def append(self, parts: Sequence[Any]) -> None:
        data = b"".join(bytes(memoryview(part)) for part in parts)
        offset = self.size_bytes

        def some() -> None:
            self._inode.write(offset, data[: self._disk.dice.randint(0, len(data))])

        self._disk.step("write", self.path, lambda: self._inode.write(offset, data), some)
        self.size_bytes += len(data)

    def overwrite(self, offset_bytes: int, data: Any) -> None:
        content = bytes(memoryview(data))
        self._disk.step("write", self.path, lambda: self._inode.write(offset_bytes, content))

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("truncate", self.path, lambda: self._inode.truncate(size_bytes))
        self.size_bytes = size_bytes

    def fdatasync(self) -> None:
        assert not self._inode.size_pending, "fdatasync is not enough after truncate"
        self._disk.step("fdatasync", self.path, self._inode.sync, self._inode.lose_pending)

    def fsync(self) -> None:
        self._disk.step("fsync", self.path, self._inode.sync, self._inode.lose_pending)

    def close(self) -> None:
        pass


def _error(number: int, doing: str, path: Path) -> FileFailed:
    kinds = {errno.ENOENT: FileMissing, errno.EEXIST: FileExists, errno.ENOSPC: DiskFull}
    return kinds.get(number, FileFailed)(f"cannot {doing} {path}: {os.strerror(number)}")
