"""Files of deleted positions: those of live files are read, and new ones written.

Not here: their bytes (`codec/lake/`), and which positions are deleted (`lookup.py`).
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.codec.lake import (
    NO_POSITIONS,
    DeltaVector,
    Positions,
    bin_name,
    make_bin,
    make_position_deletes,
    make_puffin,
    parse_blob,
    parse_position_deletes,
)
from penstock.codec.lake.deletion_vectors import FRAME_BYTES, parse_vector
from penstock.engines.lake.format import (
    CommitRefused,
    DeleteForm,
    DeletionRef,
    LiveFile,
    NewDeletes,
)
from penstock.engines.lake.keys import vector_uuid
from penstock.engines.lake.parquet import write_file
from penstock.engines.lake.storage import file_system, path_in
from penstock.model import PenstockError, Retry


class DeletionFileFailed(PenstockError):
    """A file of deleted positions could not be read or written."""

    code = "LK06"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """Positions that are deleted in a live file.

    Attributes:
        positions: All of them, ascending.
        added: Number of those that were not deleted before.
    """

    file: LiveFile
    positions: Positions
    added: int


def read_deleted(file: LiveFile, storage: Mapping[str, str]) -> Positions:
    """Return the positions that are deleted in a live file, ascending.

    Raises DeletionCorrupt, DeletionFileFailed, CommitRefused if a file is gone.
    """
    found = [_read(ref, file, storage) for ref in file.deletes]
    if not found:
        return NO_POSITIONS
    return found[0] if len(found) == 1 else np.unique(np.concatenate(found))


def _read(ref: DeletionRef, file: LiveFile, storage: Mapping[str, str]) -> Positions:
    what = f"the deletions of {file.name}" if ref.inline is not None else ref.location
    if ref.inline is not None:
        return parse_vector(ref.inline, what, count=ref.cardinality)
    if ref.form is DeleteForm.DELTA:
        # Its name is ignored here; the place of its bytes counts.
        vector = DeltaVector(
            storage="p",
            text=ref.location,
            offset=ref.offset,
            size_bytes=ref.size_bytes,
            count=ref.cardinality,
        )
        return vector.parse_framed(_bytes_of(ref, ref.size_bytes + FRAME_BYTES, storage))
    data = _bytes_of(ref, ref.size_bytes, storage)
    if ref.form is DeleteForm.PUFFIN:
        return parse_blob(data, what, count=ref.cardinality)
    return parse_position_deletes(data, file.name, what)


def _bytes_of(ref: DeletionRef, size: int, storage: Mapping[str, str]) -> bytes:
    try:
        files = file_system(ref.location, storage)
        with files.open_input_file(path_in(ref.location)) as source:
            whole = ref.form is DeleteForm.POSITIONS
            return bytes(source.read() if whole else source.read_at(size, ref.offset))
    except FileNotFoundError as error:
        raise CommitRefused(
            f"{ref.location} is gone: another client has replaced the table's files",
            hint="penstock looks at the table again.",
        ) from error
    except OSError as error:
        raise _make_error("read", ref.location, error) from error


def write_deleted(
    deleted: Sequence[Deleted],
    form: DeleteForm,
    folder: str,
    token: str,
    storage: Mapping[str, str],
) -> tuple[NewDeletes, ...]:
    """Write the deleted positions of live files; return them for the commit.

    Delta's vectors share one file, because a file of each would cost more than its bytes. Raises
    DeletionFileFailed.
    """
    if not deleted:
        return ()
    if form is DeleteForm.DELTA:
        return _write_bin(deleted, folder, token, storage)
    if form is DeleteForm.PUFFIN:
        return tuple(_write_puffin(one, folder, token, storage) for one in deleted)
    return tuple(_write_positions(one, folder, token, storage) for one in deleted)


def _write_bin(
    deleted: Sequence[Deleted], folder: str, token: str, storage: Mapping[str, str]
) -> tuple[NewDeletes, ...]:
    number = uuid.UUID(vector_uuid(token, secrets.token_hex(8)))
    content, vectors = make_bin(number, [one.positions for one in deleted])
    location = f"{folder}/{bin_name(number)}"
    _write(location, content, storage)
    return tuple(
        NewDeletes(
            name=one.file.name,
            ref=DeletionRef(
                form=DeleteForm.DELTA,
                location=location,
                offset=vector.offset or 0,
                size_bytes=vector.size_bytes,
                cardinality=vector.count,
            ),
            file_size_bytes=len(content),
            added=one.added,
        )
        for one, vector in zip(deleted, vectors, strict=True)
    )


def _write_puffin(one: Deleted, folder: str, token: str, storage: Mapping[str, str]) -> NewDeletes:
    """Write a file with one vector.

    Iceberg's `expireSnapshots` removes the whole file once one of its vectors was replaced, even if
    it has others that are live. Source: org.apache.iceberg.IncrementalFileCleanup of 1.12.
    """
    content, (blob,) = make_puffin([(one.file.name, one.positions)])
    location = f"{folder}/{token}-{secrets.token_hex(4)}-deletes.puffin"
    _write(location, content, storage)
    return NewDeletes(
        name=one.file.name,
        ref=DeletionRef(
            form=DeleteForm.PUFFIN,
            location=location,
            offset=blob.offset,
            size_bytes=blob.size_bytes,
            cardinality=blob.count,
        ),
        file_size_bytes=len(content),
        added=one.added,
    )


def _write_positions(
    one: Deleted, folder: str, token: str, storage: Mapping[str, str]
) -> NewDeletes:
    content = make_position_deletes(one.file.name, one.positions)
    location = f"{folder}/{token}-{secrets.token_hex(4)}-deletes.parquet"
    _write(location, content, storage)
    return NewDeletes(
        name=one.file.name,
        ref=DeletionRef(
            form=DeleteForm.POSITIONS,
            location=location,
            size_bytes=len(content),
            cardinality=len(one.positions),
        ),
        file_size_bytes=len(content),
        added=one.added,
    )


def _write(location: str, content: bytes, storage: Mapping[str, str]) -> None:
    try:
        write_file(location, content, storage)
    except OSError as error:
        raise _make_error("write", location, error) from error


def _make_error(doing: str, location: str, error: OSError) -> DeletionFileFailed:
    return DeletionFileFailed(
        f"cannot {doing} {location}: {error}",
        hint="Check that the storage answers, and that the workers may read and write there.",
    )
