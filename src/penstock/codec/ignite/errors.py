"""Errors of reading what an Ignite node wrote: one class per condition."""

from __future__ import annotations

from penstock.model import PenstockError

KEEP = (
    "Nothing was skipped, and the saved state is as it was. Compare the file with the node's "
    "archive (db/wal/archive); restore it from there, or from a copy, and start again."
)


class WalBroken(PenstockError):
    """A segment's bytes are not what a node writes. fields: file, offset, cause."""

    code = "IG40"
    retry = "operator"


class WalUnsupported(PenstockError):
    """A segment has a form that this version does not read. fields: file, offset, cause."""

    code = "IG41"
    retry = "never"


class ValueBroken(PenstockError):
    """A marshalled key, value or type file is unreadable. fields: offset, cause.

    The offset counts from the beginning of the value.
    """

    code = "IG42"
    retry = "operator"


class TypeUnknown(PenstockError):
    """A value names a type, or a version of it, that binary_meta does not have. fields: type_id."""

    code = "IG43"
    retry = "operator"


class CacheConfigBroken(PenstockError):
    """A cache's cache_data.dat is damaged. fields: file, cause."""

    code = "IG44"
    retry = "operator"


class CacheConfigUnknown(PenstockError):
    """A cache's cache_data.dat has an unknown form. fields: file, cause."""

    code = "IG45"
    retry = "never"


def make_broken(name: str, offset: int, cause: str) -> WalBroken:
    """Return the error for a broken place of a segment."""
    return WalBroken(
        f"{name}, offset {offset}: {cause}", hint=KEEP, file=name, offset=offset, cause=cause
    )


def make_unsupported(name: str, offset: int, cause: str) -> WalUnsupported:
    """Return the error for a segment or record of an unknown form."""
    return WalUnsupported(
        f"{name}, offset {offset}: {cause}",
        hint="Segments as Ignite 2.17 writes them are read: serializer version 2, not compacted. "
        "Name the release of the cluster when you report it.",
        file=name,
        offset=offset,
        cause=cause,
    )


def bad_value(offset: int, cause: str) -> ValueBroken:
    """Return the error for a value."""
    return ValueBroken(
        f"a marshalled value, offset {offset}: {cause}",
        hint="The event has key_bytes and value_bytes, as the node wrote them. Report the cause "
        "with the type of the object.",
        offset=offset,
        cause=cause,
    )


def type_unknown(type_id: int, cause: str) -> TypeUnknown:
    """Return the error for a type without metadata."""
    return TypeUnknown(
        f"type {type_id}: {cause}",
        hint="Compare db/binary_meta/<node> with that of the node: it has one file per type. Give "
        "the reader the node's own work directory, not a copy made before the change.",
        type_id=type_id,
    )


def config_broken(name: str, cause: str) -> CacheConfigBroken:
    """Return the error for a cache's configuration that Java would not read."""
    return CacheConfigBroken(
        f"{name}: {cause}",
        hint="Read the node's own work directory, not a copy. With a damaged file the node does "
        "not start; it writes the file when the cache is created or its tables are altered.",
        file=name,
        cause=cause,
    )


def config_unknown(name: str, cause: str) -> CacheConfigUnknown:
    """Return the error for a cache's configuration of another release."""
    return CacheConfigUnknown(
        f"{name}: {cause}",
        hint="Configurations as Ignite 2.17 stores them are read. Leave the cache out of "
        "[source] tables, and name the release of the cluster when you report it.",
        file=name,
        cause=cause,
    )
