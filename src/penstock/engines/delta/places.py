"""Names and places of files: paths in Delta's log, folders of tables, deletion vectors.

Paths in the log are URL-encoded and relative to the table's folder, or URIs; locations are neither
(`engines/lake/format.py`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from penstock.codec.lake.deletion_vectors import DeltaVector
from penstock.codec.lake.z85 import decode_z85, encode_z85
from penstock.engines.lake.format import DeleteForm, DeletionRef
from penstock.model import TableName

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_VECTOR_FILE = re.compile(
    r"deletion_vector_([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.bin"
)
# Characters in names of folders that no reader encodes or decodes: delta-rs decodes %41, and polars
# does not find a folder with a space. A name that begins with _ or . would be skipped.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]|\A[._]")
_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")
_SAFE_IN_PATH = "/-._~+@,()!$'"


def folder_name(name: str) -> str:
    """Return the name of the folder of a schema or table: bytes that are not safe as ~XX."""
    return _UNSAFE.sub(_escape, name) or "~"


def _escape(found: re.Match[str]) -> str:
    return "".join(f"~{byte:02X}" for byte in found[0].encode())


def name_of_folder(folder: str) -> str:
    """Return the name of the schema or table that has this folder."""
    if folder == "~":
        return ""
    return _ESCAPED.sub(_unescape, folder)


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("~", "")).decode("utf-8", errors="replace")


def table_folder(root: str, name: TableName) -> str:
    """Return the folder of a table."""
    return f"{root}/{folder_name(name.schema)}/{folder_name(name.name)}"


def location_of(path: str, folder: str) -> str:
    """Return where the file is that a path in the log names. folder: of the table."""
    decoded = unquote(path)
    if decoded.startswith("/"):
        return decoded
    if not _URI.match(path):
        return f"{folder}/{decoded}"
    if decoded.startswith("file:"):
        return "/" + decoded.removeprefix("file:").lstrip("/")
    return re.sub(r"\As3[an]:", "s3:", decoded)


def path_of(location: str, folder: str) -> str:
    """Return the path in the log of a new file below the table's folder."""
    if not location.startswith(f"{folder}/"):
        raise ValueError(f"{location} is not below {folder}")
    return quote(location.removeprefix(f"{folder}/"), safe=_SAFE_IN_PATH)


def parse_vector(found: Mapping[str, Any], folder: str) -> DeletionRef:
    """Return the place of the deletion vector of an action. Raises DeletionCorrupt."""
    vector = DeltaVector.of_json(found)
    if vector.storage == "i":
        return DeletionRef(
            form=DeleteForm.DELTA,
            size_bytes=vector.size_bytes,
            cardinality=vector.count,
            inline=decode_z85(vector.text, vector.size_bytes),
        )
    is_relative = vector.storage == "u"
    return DeletionRef(
        form=DeleteForm.DELTA,
        location=f"{folder}/{vector.path}" if is_relative else location_of(vector.path, folder),
        offset=vector.offset or 0,
        size_bytes=vector.size_bytes,
        cardinality=vector.count,
    )


def make_vector(ref: DeletionRef, folder: str) -> dict[str, Any]:
    """Return the descriptor of a deletion vector for an action."""
    if ref.inline is not None:
        storage, text = "i", encode_z85(ref.inline)
    else:
        storage, text = _name_vector(ref.location, folder)
    return DeltaVector(
        storage=storage,
        text=text,
        offset=None if ref.inline is not None else ref.offset,
        size_bytes=len(ref.inline) if ref.inline is not None else ref.size_bytes,
        count=ref.cardinality,
    ).as_json()


def _name_vector(location: str, folder: str) -> tuple[str, str]:
    """Return storage type and text of a file of vectors; relative ones move with the table."""
    parent, _, name = location.rpartition("/")
    if found := _VECTOR_FILE.fullmatch(name):
        text = encode_z85(uuid.UUID(found[1]).bytes)
        if parent == folder:
            return "u", text
        prefix = parent.removeprefix(f"{folder}/")
        if prefix != parent and "/" not in prefix:
            return "u", prefix + text
    uri = f"file://{location}" if location.startswith("/") else location
    return "p", quote(uri, safe=f":{_SAFE_IN_PATH}")
