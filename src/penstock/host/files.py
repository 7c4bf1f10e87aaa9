"""Files: every operation of the log on a disk, behind one interface.

`REAL_FILES` is the machine's; `tests/harness/faults/disk.py` has a simulated disk that loses
everything that was not synced. Failures are typed errors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from penstock.host.faults import declare, point
from penstock.model import PenstockError

# Faults of a disk: with `PENSTOCK_FAULT=files.write:5:error=ENOSPC` the 5th write raises DiskFull.
declare("files.create", "files.write", "files.fdatasync", "files.rename")
declare("files.replace", "files.replace.rename")

SECRET_MODE = 0o600
FILE_MODE = 0o640  # rows of the captured database: not for every user
DIRECTORY_MODE = 0o750
TEMPORARY_SUFFIX = ".tmp"
_BUFFERS_PER_WRITE_MAX = 512  # below IOV_MAX (1024 on Linux)

Bytes = Any  # bytes, memoryview or pyarrow.Buffer: everything that has the buffer protocol


class FileFailed(PenstockError):
    """The operating system refused an operation on a file."""

    code = "HS10"
    retry = "operator"


class FileMissing(FileFailed):
    """A file or directory is missing."""

    code = "HS11"


class FileExists(FileFailed):
    """A file exists already."""

    code = "HS12"


class DiskFull(FileFailed):
    """No space (or no quota, or no inode) is left for a write."""

    code = "HS13"


class DirectoryLocked(PenstockError):
    """Another process holds the lock of this directory. fields: path, holder_pid (0: unknown)."""

    code = "HS14"
    retry = "operator"


class AppendFile(Protocol):
    """File open for writing at its end, by one thread.

    Appended bytes are durable only after fdatasync() or fsync() returned. After a failed append
    or sync the state on disk is unknown: close the file, and let recovery decide.
    """

    path: Path
    size_bytes: int

    @abstractmethod
    def append(self, parts: Sequence[Bytes]) -> None:
        """Write all parts, in order, at the end. Raises DiskFull or FileFailed."""
        ...

    @abstractmethod
    def overwrite(self, offset_bytes: int, data: Bytes) -> None:
        """Write over existing bytes. Raises DiskFull or FileFailed."""
        ...

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Cut the file; durable only after fsync()."""
        ...

    @abstractmethod
    def fdatasync(self) -> None:
        """Return once the content, and the size needed to read it, is on the disk."""
        ...

    @abstractmethod
    def fsync(self) -> None:
        """Do as fdatasync, with all metadata: needed after truncate."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the descriptor; syncs nothing. May be called twice."""
        ...


class ReadFile(Protocol):
    """File open for reading at any place; several threads may read at once."""

    path: Path
    size_bytes: int

    @abstractmethod
    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read so many bytes from this offset; fewer only at the end of the file."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        ...


class Lock(Protocol):
    """Lock that is held until released or until the process ends."""

    @abstractmethod
    def release(self) -> None:
        """Let other processes take it. May be called twice."""
        ...


class Files(Protocol):
    """Operations of the log on a file system. Paths are absolute or relative as given.

    Directory entries (new files, links, renames, removals) are durable only after
    fsync_directory() of their directory.
    """

    @abstractmethod
    def create(self, path: Path) -> AppendFile:
        """Create an empty file. Raises FileExists."""
        ...

    @abstractmethod
    def open_append(self, path: Path) -> AppendFile:
        """Open an existing file to write at its end. Raises FileMissing."""
        ...

    @abstractmethod
    def open_read(self, path: Path) -> ReadFile:
        """Open an existing file to read. Raises FileMissing."""
        ...

    @abstractmethod
    def read_whole(self, path: Path) -> bytes:
        """Return all bytes of a small file. Raises FileMissing."""
        ...

    @abstractmethod
    def rename(self, old: Path, new: Path) -> None:
        """Move within one file system, at once; an existing `new` is replaced."""
        ...

    @abstractmethod
    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExists if `new` exists."""
        ...

    @abstractmethod
    def unlink(self, path: Path) -> None:
        """Remove a name. Raises FileMissing."""
        ...

    @abstractmethod
    def fsync_directory(self, path: Path) -> None:
        """Return once all entries of the directory are on the disk."""
        ...

    @abstractmethod
    def make_directory(self, path: Path) -> None:
        """Create the directory and its parents, durably, unless it exists."""
        ...

    @abstractmethod
    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, unordered. Raises FileMissing."""
        ...

    @abstractmethod
    def exists(self, path: Path) -> bool:
        """Return whether the name exists now."""
        ...

    @abstractmethod
    def replace(
        self, path: Path, data: bytes, *, durable: bool = True, is_secret: bool = False
    ) -> None:
        """Replace the whole content of a file: a crash leaves the old or the new, never a mix.

        Args:
            path: The file.
            data: The new content.
            durable: The new content also survives a crash of the machine after this call; without
                it, only a crash of the process.
            is_secret: The content holds a password: only its owner may read it, at every moment.
        """
        ...

    @abstractmethod
    def free_bytes(self, path: Path) -> int:
        """Return the bytes that we may still write to the file system of an existing path."""
        ...

    @abstractmethod
    def lock(self, directory: Path, name: str = "LOCK") -> Lock:
        """Take the directory's lock without waiting. Raises DirectoryLocked."""
        ...


@contextmanager
def _convert_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn OSError into the errors of this module."""
    try:
        yield
    except OSError as error:
        raise _error(path, doing, error) from error


def _error(path: Path, doing: str, error: OSError) -> FileFailed:
    text = f"cannot {doing} {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = _free_bytes_near(path)
        return DiskFull(
            f"{text}, {free} bytes free",
            hint="Make room on this file system, then start the same command again.",
            path=str(path),
            free_bytes=free,
        )
    if error.errno == errno.ENOENT:
        return FileMissing(text, path=str(path))
    if error.errno == errno.EEXIST:
        return FileExists(text, path=str(path))
    hint = "See the kernel's messages (dmesg) for the disk, and the rights of this directory."
    return FileFailed(text, hint=hint, path=str(path))


def _free_bytes_near(path: Path) -> int:
    """Return the free bytes of the file system of path or its nearest parent; -1: unknown."""
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return -1
        return found.f_bavail * found.f_frsize
    return -1


class _RealAppendFile(AppendFile):
    """Implementation of AppendFile."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def append(self, parts: Sequence[Bytes]) -> None:
        """Append; size_bytes counts the bytes written even if an error follows."""
        views = [memoryview(part).cast("B") for part in parts]
        with _convert_errors(self.path, "write"):
            point("files.write")
            for start in range(0, len(views), _BUFFERS_PER_WRITE_MAX):
                for written in self._write_all(
                    views[start : start + _BUFFERS_PER_WRITE_MAX], self.size_bytes
                ):
                    self.size_bytes += written

    def overwrite(self, offset_bytes: int, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        if offset_bytes + len(view) > self.size_bytes:
            raise ValueError("overwrite must stay inside the file")
        with _convert_errors(self.path, "write"):
            for _ in self._write_all([view], offset_bytes):
                pass

    def _write_all(self, views: list[memoryview], offset_bytes: int) -> Iterator[int]:
        """Write all in as many calls as the kernel needs, and yield the bytes of each."""
        while views:
            written = os.pwritev(self._file.fileno(), views, offset_bytes)
            yield written
            offset_bytes += written
            index = 0
            while index < len(views) and written >= len(views[index]):
                written -= len(views[index])
                index += 1
            views = views[index:]
            if written:
                views[0] = views[0][written:]

    def truncate(self, size_bytes: int) -> None:
        """Cut the file. The next append goes to the new end."""
        with _convert_errors(self.path, "truncate"):
            os.ftruncate(self._file.fileno(), size_bytes)
        self.size_bytes = size_bytes

    def fdatasync(self) -> None:
        with _convert_errors(self.path, "fdatasync"):
            point("files.fdatasync")
            os.fdatasync(self._file.fileno())

    def fsync(self) -> None:
        with _convert_errors(self.path, "fsync"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with _convert_errors(self.path, "close"):
            self._file.close()


class _RealReadFile(ReadFile):
    """Implementation of ReadFile. pread, not mmap: a bad disk is then an error, not a SIGBUS."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read repeatedly, because one call reads at most 2 GB."""
        with _convert_errors(self.path, "read"):
            data = os.pread(self._file.fileno(), length_bytes, offset_bytes)
            while 0 < len(data) < length_bytes:
                rest = length_bytes - len(data)
                more = os.pread(self._file.fileno(), rest, offset_bytes + len(data))
                if not more:
                    break
                data += more
            return data

    def close(self) -> None:
        self._file.close()


class DirectoryLock(Lock):
    """Flock on a file in the directory; the file holds the holder's pid for messages.

    The lock ends with the process however that ends. A child made by fork without exec shares it.
    """

    def __init__(self, directory: Path, name: str = "LOCK") -> None:
        """Take it without waiting. Raises DirectoryLocked if another process has it."""
        self.path = directory / name
        with _convert_errors(self.path, "open"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._file.read(20).strip()
            self._file.close()
            pid = int(holder) if holder.isdigit() else 0
            raise DirectoryLocked(
                f"{directory} is in use by process {pid or 'unknown'}",
                hint=f"Stop that process first, for example with: kill {pid or '<pid>'}",
                path=str(directory),
                holder_pid=pid,
            ) from error
        with _convert_errors(self.path, "write"):
            os.ftruncate(self._file.fileno(), 0)
            os.pwrite(self._file.fileno(), f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let other processes take it. The file stays: if it were removed, two could hold the lock.

        The pid is removed from the file, because our process may live on.
        """
        if not self._file.closed:
            os.ftruncate(self._file.fileno(), 0)
            self._file.close()

    def __enter__(self) -> Self:
        """Return the lock, already held."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release."""
        self.release()


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file during the block, after waiting for other processes that have it.

    It is created if needed. The lock ends with the process, however that ends.
    """
    with _convert_errors(path, "open"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        with _convert_errors(path, "lock"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class RealFiles(Files):
    """File systems of this machine. See Files for the contracts."""

    def create(self, path: Path) -> AppendFile:
        return self._open_append(path, os.O_CREAT | os.O_EXCL, "create")

    def open_append(self, path: Path) -> AppendFile:
        return self._open_append(path, 0, "open")

    def _open_append(self, path: Path, flags: int, doing: str) -> AppendFile:
        with _convert_errors(path, doing):
            point("files.create")
            descriptor = os.open(path, os.O_WRONLY | flags, FILE_MODE)
            return _RealAppendFile(path, os.fdopen(descriptor, "wb", buffering=0))

    def open_read(self, path: Path) -> ReadFile:
        with _convert_errors(path, "open"):
            return _RealReadFile(path, path.open("rb", buffering=0))

    def read_whole(self, path: Path) -> bytes:
        with _convert_errors(path, "read"):
            return path.read_bytes()

    def rename(self, old: Path, new: Path) -> None:
        with _convert_errors(old, "rename"):
            point("files.rename")
            old.replace(new)

    def link(self, old: Path, new: Path) -> None:
        with _convert_errors(new, "link"):
            new.hardlink_to(old)

    def unlink(self, path: Path) -> None:
        with _convert_errors(path, "remove"):
            path.unlink()

    def fsync_directory(self, path: Path) -> None:
        with _convert_errors(path, "fsync"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        with _convert_errors(path, "make directory"):
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.fsync_directory(path.parent)

    def listdir(self, path: Path) -> list[str]:
        with _convert_errors(path, "list"):
            return os.listdir(path)  # noqa: PTH208 - names, not paths

    def exists(self, path: Path) -> bool:
        with _convert_errors(path, "look at"):
            return path.exists()

    def replace(
        self, path: Path, data: bytes, *, durable: bool = True, is_secret: bool = False
    ) -> None:
        """Replace a file. The temporary one is beside it: rename works in one file system only."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
        with _convert_errors(temporary, "replace"):
            point("files.replace")
            mode = SECRET_MODE if is_secret else FILE_MODE
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                if is_secret:  # an earlier process may have left the temporary file
                    os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            point("files.replace.rename")
            temporary.replace(path)
        if durable:
            self.fsync_directory(path.parent)

    def free_bytes(self, path: Path) -> int:
        with _convert_errors(path, "look at"):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, directory: Path, name: str = "LOCK") -> Lock:
        return DirectoryLock(directory, name)


REAL_FILES: Files = RealFiles()


def replace(path: Path, data: bytes) -> None:
    """Replace a file's content durably; a crash leaves the old or the new content, never a mix."""
    REAL_FILES.replace(path, data)


def remove_tree(path: Path) -> None:
    """Remove a directory and its content. Raises FileFailed; then a part of it is removed."""
    with _convert_errors(path, "remove"):
        shutil.rmtree(path)
