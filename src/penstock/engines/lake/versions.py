"""Reading of versions without penstock's loader: what the readers of both formats share.

A reader opens tables by a library that is not Spark, or by a session that the caller has. Not here:
each format's library (`engines/delta/versions.py`, `engines/iceberg/versions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

import pyarrow as pa

from penstock.codec.columns import cast_exactly
from penstock.engines.lake.java import message_of
from penstock.model import PenstockError
from penstock.ports.lake import ReaderFailed, ReaderMissing, VersionExpired

SPARK_HINT = "Read it with Spark: .table(NAME, session)."
_EXPIRED_HINT = (
    "Choose a later commit: .at_commit(). [target] versionHours says for how long versions are "
    "kept."
)
_GONE = (
    "not found",
    "no such file",
    "does not exist",
    "cannot find snapshot",
    "cannot time travel",
    "not the same as the specified end version",
)
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def import_library(name: str, *, to_install: str, reads: str) -> ModuleType:
    """Import a package, or a module of it, that reads a format. Raises ReaderMissing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ReaderMissing(
            f"{reads} are read without Spark by the package {error.name}, which is not installed",
            hint=f"Run: pip install '{to_install}'. penstock.lake can also read with Spark: "
            ".at_commit(session=SESSION).",
        ) from error


def version_expired(what: str) -> VersionExpired:
    """Return the error for a version that cannot be read any more. what: table and version."""
    return VersionExpired(f"{what} cannot be read any more: it was removed", hint=_EXPIRED_HINT)


@contextmanager
def typed_reading(what: str, *, hint: str = SPARK_HINT) -> Iterator[None]:
    """Convert the errors of a library or of Spark. what: table and version; hint: for others."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # each library has classes of its own, and plain Exceptions
        said = message_of(error)
        if any(word in said.lower() for word in _GONE):
            raise version_expired(what) from error
        raise ReaderFailed(f"cannot read {what}: {said}", hint=hint) from error


def with_plain_types(
    rows: pa.Table, plain: Mapping[pa.DataType, pa.DataType] = MappingProxyType(_VIEWS)
) -> pa.Table:
    """Return rows without Arrow's view types, which not every program knows.

    plain: The type that columns of a type get.
    """
    kinds = [plain.get(field.type, field.type) for field in rows.schema]
    columns = [cast_exactly(*both) for both in zip(rows.columns, kinds, strict=True)]
    return pa.table(columns, names=rows.column_names)


def store_options(s3: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Return settings of an object store as a library spells them.

    Args:
        s3: As Hadoop spells them, see `storage.file_system`.
        names: By Hadoop's name the library's.
    """
    found = {names[name]: value for name, value in s3.items() if name in names}
    endpoint = s3.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        found[names["endpoint"]] = f"https://{endpoint}"
    return found
