"""Reading the files in which rows wait for this target, as they were written and not otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.ports.refusals import StagingChanged
from penstock.ports.target import RowsFile


@contextmanager
def pieces_of(file: RowsFile, *, size_bytes: int) -> Iterator[Iterator[bytes]]:
    """A file's bytes, in pieces of at most this size.

    Raises StagingChanged where it is not as it was written, or cannot be read.
    """
    try:
        with file.path.open("rb") as opened:
            found = os.fstat(opened.fileno()).st_size
            if found != file.size_bytes:
                raise _changed(file, f"holds {found} bytes, {file.size_bytes} were written")
            yield iter(lambda: opened.read(size_bytes), b"")
    except OSError as error:
        raise _changed(file, f"cannot be read: {error.strerror}") from error


def _changed(file: RowsFile, what: str) -> StagingChanged:
    return StagingChanged(f"{file.path} {what}", hint="The batch is staged again by itself.")
