"""Deletion vectors: the positions in a data file whose rows are deleted.

Delta and Iceberg 3 have the same bytes: a magic number and a set of positions, and around them a
length and a checksum. Delta keeps them in `.bin` files or, if they are few, in the table's
metadata (`DeltaVector`); Iceberg keeps them in Puffin files (`puffin.py`).

No I/O. Not here: the bytes of the set (`roaring.py`).
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from penstock.codec.lake.errors import corrupt
from penstock.codec.lake.roaring import Positions, parse_positions, serialize_positions
from penstock.codec.lake.z85 import decode_z85, encode_z85

_MAGIC = struct.pack("<I", 1681511377)
_BIN_VERSION = b"\x01"
_UUID_CHARACTERS, _UUID_BYTES = 20, 16
FRAME_BYTES = 8
"""Bytes of the length and the checksum around a vector."""


def make_vector(positions: Positions) -> bytes:
    """Return a vector without its frame. positions: strictly ascending."""
    return _MAGIC + serialize_positions(positions)


def parse_vector(data: bytes | memoryview, what: str, *, count: int | None = None) -> Positions:
    """Return the positions of a vector without its frame.

    Args:
        data: bytes of the vector.
        what: name of the vector, for errors.
        count: number of positions that the table's metadata names; None if it does not.

    Raises:
        DeletionCorrupt: The bytes are no vector, or one of another number of positions.
    """
    view = memoryview(data)
    if view[: len(_MAGIC)] != _MAGIC:
        raise corrupt(what, "it does not begin with the magic number of deletion vectors")
    positions = parse_positions(view[len(_MAGIC) :])
    if count is not None and len(positions) != count:
        raise corrupt(what, f"it has {len(positions)} positions, expected {count}")
    return positions


def frame_vector(vector: bytes) -> bytes:
    """Return a vector between its length and its checksum."""
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def unframe_vector(data: bytes | memoryview, what: str) -> memoryview:
    """Return the vector inside its frame. Raises DeletionCorrupt. what: name for errors."""
    view = memoryview(data)
    if len(view) < FRAME_BYTES:
        raise corrupt(what, "it ends too early")
    (size,) = struct.unpack_from(">I", view, 0)
    if size != len(view) - FRAME_BYTES:
        raise corrupt(what, f"it has {len(view) - FRAME_BYTES} bytes, its length says {size}")
    vector = view[4 : 4 + size]
    if struct.unpack_from(">I", view, 4 + size)[0] != zlib.crc32(vector):
        raise corrupt(what, "its checksum differs")
    return vector


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaVector:
    """Descriptor of a vector in Delta's metadata.

    Attributes:
        storage: `u` for a file in the table's folder named by a UUID, `p` for a file with an
            absolute path, `i` for a vector in the descriptor.
        text: the UUID as Z85 behind a prefix of the path, the path, or the vector as Z85.
        offset: offset of the vector's frame in its file; None if there is no file.
        size_bytes: size of the vector without its frame.
        count: number of positions.
    """

    storage: str
    text: str
    offset: int | None
    size_bytes: int
    count: int

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the descriptor that an action of Delta's log has. Raises DeletionCorrupt."""
        try:
            vector = cls(
                storage=str(found["storageType"]),
                text=str(found["pathOrInlineDv"]),
                offset=None if found.get("offset") is None else int(found["offset"]),
                size_bytes=int(found["sizeInBytes"]),
                count=int(found["cardinality"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt("a deletion vector's descriptor", f"{error!r}") from error
        if vector.storage not in ("u", "p", "i"):
            raise corrupt("a deletion vector's descriptor", f"storageType {vector.storage!r}")
        return vector

    def as_json(self) -> dict[str, Any]:
        """Return the descriptor as an action of Delta's log has it."""
        found: dict[str, Any] = {
            "storageType": self.storage,
            "pathOrInlineDv": self.text,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.count,
        }
        if self.offset is not None:
            found["offset"] = self.offset
        return found

    @property
    def path(self) -> str:
        """Path of the file: relative to the table's folder for `u`, absolute for `p`.

        Empty if there is no file.
        """
        if self.storage == "i":
            return ""
        if self.storage == "p":
            return unquote(self.text)
        prefix, tail = self.text[:-_UUID_CHARACTERS], self.text[-_UUID_CHARACTERS:]
        name = bin_name(uuid.UUID(bytes=decode_z85(tail, _UUID_BYTES)))
        return f"{prefix}/{name}" if prefix else name

    @property
    def end(self) -> int:
        """Offset of the end of the vector's frame in its file."""
        return (self.offset or 0) + self.size_bytes + FRAME_BYTES

    def parse_inline(self) -> Positions:
        """Return the positions of a vector in the descriptor. Raises DeletionCorrupt."""
        return parse_vector(
            decode_z85(self.text, self.size_bytes), "a deletion vector", count=self.count
        )

    def parse_framed(self, frame: bytes | memoryview) -> Positions:
        """Return the positions of the bytes from `offset` to `end`. Raises DeletionCorrupt."""
        what = f"the deletion vector at {self.offset or 0} of {self.path}"
        return parse_vector(unframe_vector(frame, what), what, count=self.count)


def inline_vector(positions: Positions) -> DeltaVector:
    """Return a descriptor that has the vector itself, for a few positions."""
    vector = make_vector(positions)
    return DeltaVector(
        storage="i",
        text=encode_z85(vector),
        offset=None,
        size_bytes=len(vector),
        count=len(positions),
    )


def bin_name(number: uuid.UUID) -> str:
    """Return the name of Delta's file of vectors with this UUID."""
    return f"deletion_vector_{number}.bin"


def make_bin(number: uuid.UUID, sets: Iterable[Positions]) -> tuple[bytes, list[DeltaVector]]:
    """Return the content of Delta's file of these sets, and the descriptor of each.

    number: the UUID that names the file, in the table's folder.
    """
    content, vectors = bytearray(_BIN_VERSION), []
    name = encode_z85(number.bytes)
    for positions in sets:
        vector = make_vector(positions)
        vectors.append(
            DeltaVector(
                storage="u",
                text=name,
                offset=len(content),
                size_bytes=len(vector),
                count=len(positions),
            )
        )
        content += frame_vector(vector)
    return bytes(content), vectors
