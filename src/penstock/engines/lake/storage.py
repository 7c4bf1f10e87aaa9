"""Storage of a lake: its files on local disk or in an object store, by pyarrow, without the JVM.

A location is a plain absolute path, a `file:` URI or an `s3:` URI (`s3a:` too); none is
URL-encoded. Not here: names and contents of files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyarrow import fs

from penstock.engines.lake.format import LakeUnreachable
from penstock.engines.lake.object_store import CHECK_DISK, address_of, hint_of

CONNECT_S, REQUEST_S = 10, 60
"""Seconds that an object store may take: pyarrow's own 1 and 3 are too few for a busy one."""

_KEYS = {
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}


def path_in(location: str) -> str:
    """Return the path of a location within its file system."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    for scheme in ("s3://", "s3a://", "s3n://"):
        if location.startswith(scheme):
            return location.removeprefix(scheme)
    return location


def is_local(location: str) -> bool:
    """Return whether a location is on a disk of this machine."""
    return location.startswith(("/", "file:"))


def file_system(location: str, settings: Mapping[str, str]) -> fs.FileSystem:
    """Return the file system of a location; the same object each time.

    settings: of the object store, as Hadoop spells them, without `fs.s3a.`.
    """
    if is_local(location):
        return _local()
    return _object_store(tuple(sorted(settings.items())))


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=8)
def _object_store(settings: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    given = dict(settings)
    options: dict[str, Any] = {new: given[old] for old, new in _KEYS.items() if old in given}
    if address := address_of(given):
        options["scheme"], _, options["endpoint_override"] = address.partition("://")
    options["force_virtual_addressing"] = False
    options |= {"connect_timeout": CONNECT_S, "request_timeout": REQUEST_S}
    try:  # a small file by one request in place of three
        return fs.S3FileSystem(**options, allow_delayed_open=True)
    except TypeError:  # an older pyarrow
        return fs.S3FileSystem(**options)


class Folder:
    """Folder of small files that are written whole."""

    def __init__(self, location: str, settings: Mapping[str, str] | None = None) -> None:
        """Keep the place. settings: see `file_system`."""
        self.location = location
        self._path = path_in(location)
        self._is_local = is_local(location)
        self._files = file_system(location, settings or {})

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if there is no such file. Raises LakeUnreachable."""
        try:
            with self._files.open_input_file(f"{self._path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._make_error("read", name, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, durably: it has its old bytes or the new ones.

        Raises LakeUnreachable.
        """
        try:
            if self._is_local:
                self._write_local(name, data)
                return
            with self._files.open_output_stream(f"{self._path}/{name}") as file:
                file.write(data)
        except OSError as error:
            raise self._make_error("write", name, error) from error

    def _write_local(self, name: str, data: bytes) -> None:
        path = Path(self._path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises LakeUnreachable."""
        try:
            self._files.delete_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._make_error("remove", name, error) from error

    def names(self, below: str = "") -> Iterator[str]:
        """Yield the names of all files, relative to the folder, below a subfolder.

        Files that are being written are not among them. Raises LakeUnreachable.
        """
        base = f"{self._path}/{below}" if below else self._path
        selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
        try:
            found = self._files.get_file_info(selector)
        except OSError as error:
            raise self._make_error("list", below, error) from error
        for info in sorted(found, key=lambda one: str(one.path)):
            if info.type is fs.FileType.File and not info.base_name.startswith("."):
                yield str(info.path).removeprefix(self._path).lstrip("/")

    def _make_error(self, doing: str, name: str, error: OSError) -> LakeUnreachable:
        return LakeUnreachable(
            f"cannot {doing} {self.location}/{name}: {error}",
            hint=CHECK_DISK if self._is_local else hint_of(str(error)),
        )


def remove_file(location: str, settings: Mapping[str, str]) -> None:
    """Remove a file, if it exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        file_system(location, settings).delete_file(path_in(location))
