"""Records of the bulk load in a lake's own folder: a mark per table, and a record per chunk.

A record names the files that hold a chunk's rows, and is written after them. So a chunk is done
exactly if its record is there: a chunk that is copied again replaces the record, and files without
a record are removed. `bulk/<table>/mark.json` has the plan of a table's rows; the records of a plan
are in a folder of its name, so that a late task of an earlier plan changes nothing. Once the rows
are committed, the mark has the counts of all chunks, and the records are removed. Not here: data
files (`bulk_writer.py`), and the commit (`bulk.py`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from penstock.engines.lake.format import ColumnStatistics, LakeColumn, NewFile
from penstock.engines.lake.storage import Folder
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import Mark

FOLDER = "bulk"
MARK = "mark.json"
COPY_PREFIX = "copy-"
"""Prefix of the folders with data files, below a table's own; the plan's name follows."""

_READABLE_MAX = 60


class LakeRecordDamaged(PenstockError):
    """A record in penstock's folder of a lake is not what penstock wrote."""

    code = "LK11"
    retry = "operator"


class TableMark(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `mark.json`.

    Attributes:
        source: The source table: schema and name.
        target: The table in the lake: schema and name.
        done: Rows by chunk number; of a finished table only.
        columns: The lake's columns as the files of the plan have them.
        abandoned: Earlier plans whose files were never committed; a late task may still write some.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    plan: str
    position: str
    finished: bool = False
    row_count: int | None = None
    done: dict[int, int] = {}
    columns: tuple[LakeColumn, ...] = ()
    abandoned: tuple[str, ...] = ()

    @property
    def name(self) -> TableName:
        """Name of the source table."""
        return TableName(*self.source)


class _Statistics(msgspec.Struct, kw_only=True):
    low: tuple[str, str] | None
    high: tuple[str, str] | None
    null_count: int
    nan_count: int
    value_count: int
    size_bytes: int


class _File(msgspec.Struct, kw_only=True):
    location: str
    size_bytes: int
    row_count: int
    statistics: dict[str, _Statistics]
    split_offsets: tuple[int, ...]
    partition: tuple[str | None, ...] = ()


class _Record(msgspec.Struct, kw_only=True):
    plan: str
    row_count: int
    files: list[_File]


class ChunkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a copied chunk."""

    row_count: int
    files: tuple[NewFile, ...]


def folder_name(table: TableName) -> str:
    """Return the name of a table's folder: readable, and different for each table."""
    text = str(table)
    readable = re.sub(r"[^A-Za-z0-9_.]+", "_", text)[:_READABLE_MAX].strip(".")
    digest = hashlib.sha256("\0".join(table).encode()).hexdigest()[:12]
    return f"{readable}-{digest}"


def copy_folder(data_folder: str, plan: str) -> str:
    """Return the folder of the data files that a plan's chunks are copied to."""
    return f"{data_folder}/{COPY_PREFIX}{plan}"


def bulk_log(plan: str) -> str:
    """Return the log id in the mark of the commit that a plan's rows are in."""
    return f"bulk/{plan}"


class ChunkRecords:
    """Marks and records of all tables in a lake's own folder. Used by one thread."""

    def __init__(self, folder: Folder) -> None:
        """Keep the folder."""
        self._folder = folder
        self._counts: dict[str, int] = {}  # rows by a record's name, which keeps its meaning

    # -- marks -------------------------------------------------------------------------------

    def read_mark(self, table: TableName) -> TableMark | None:
        """Return the mark of a source table, or None."""
        return self._decode_mark(f"{FOLDER}/{folder_name(table)}/{MARK}")

    def _decode_mark(self, name: str) -> TableMark | None:
        data = self._folder.read(name)
        return None if data is None else self._decode(data, TableMark, name)

    def write_mark(self, mark: TableMark) -> None:
        """Write a table's mark."""
        name = f"{FOLDER}/{folder_name(mark.name)}/{MARK}"
        self._folder.write(name, msgspec.json.encode(mark))

    def marks(self) -> dict[TableName, Mark]:
        """Return all marks by source table, with the chunks that are done."""
        names = list(self._folder.names(FOLDER))
        return {
            mark.name: Mark(
                plan=mark.plan,
                position=mark.position,
                finished=mark.finished,
                row_count=mark.row_count,
                done=mark.done if mark.finished else self._count_done(mark, names),
            )
            for mark in self._read_marks(names)
        }

    def _read_marks(self, names: list[str]) -> Iterator[TableMark]:
        for name in names:
            if name.endswith(f"/{MARK}") and (mark := self._decode_mark(name)) is not None:
                yield mark

    def _count_done(self, mark: TableMark, names: list[str]) -> dict[int, int]:
        folder = f"{FOLDER}/{folder_name(mark.name)}/{mark.plan}/"
        done: dict[int, int] = {}
        for name in names:
            if not name.startswith(folder):
                continue
            if name not in self._counts:
                record = self._read_record(name)
                if record is None:
                    continue
                self._counts[name] = record.row_count
            done[_number_of(name)] = self._counts[name]
        return done

    # -- records -----------------------------------------------------------------------------

    def read(self, table: TableName, plan: str, number: int) -> ChunkRecord | None:
        """Return the record of one chunk, or None."""
        return self._read_record(_record_name(table, plan, number))

    def read_all(self, table: TableName, plan: str) -> dict[int, ChunkRecord]:
        """Return the records of a plan by chunk number."""
        found: dict[int, ChunkRecord] = {}
        for name in self._folder.names(_plan_folder(table, plan)):
            record = self._read_record(name)
            if record is not None:
                found[_number_of(name)] = record
        return found

    def write(self, table: TableName, plan: str, number: int, record: ChunkRecord) -> None:
        """Record a chunk as done; replaces the record of an earlier attempt."""
        content = _Record(
            plan=plan, row_count=record.row_count, files=[_pack(one) for one in record.files]
        )
        self._folder.write(_record_name(table, plan, number), msgspec.json.encode(content))

    def forget(self, table: TableName, *, keep: str = "") -> None:
        """Remove the records of all plans of a table, but those of the plan to keep."""
        kept = f"{_plan_folder(table, keep)}/" if keep else ""
        for name in list(self._folder.names(f"{FOLDER}/{folder_name(table)}")):
            if not name.endswith(f"/{MARK}") and not (kept and name.startswith(kept)):
                self._folder.remove(name)
                self._counts.pop(name, None)

    def forget_table(self, table: TableName) -> None:
        """Remove all records of a table, with its mark."""
        self.forget(table)
        self._folder.remove(f"{FOLDER}/{folder_name(table)}/{MARK}")

    def _read_record(self, name: str) -> ChunkRecord | None:
        data = self._folder.read(name)
        if data is None:
            return None
        content = self._decode(data, _Record, name)
        return ChunkRecord(
            row_count=content.row_count, files=tuple(_unpack(one) for one in content.files)
        )

    def _decode(self, data: bytes, kind: type[Any], name: str) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LakeRecordDamaged(
                f"{self._folder.location}/{name} is damaged: {error}",
                hint="Remove the file; the bulk load then copies this table from the beginning.",
                path=f"{self._folder.location}/{name}",
            ) from error


def _plan_folder(table: TableName, plan: str) -> str:
    return f"{FOLDER}/{folder_name(table)}/{plan}"


def _record_name(table: TableName, plan: str, number: int) -> str:
    return f"{_plan_folder(table, plan)}/{number}.json"


def _number_of(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".json"))


# -- files as JSON: the statistics keep the types of their values ------------------------------


def _pack(file: NewFile) -> _File:
    return _File(
        location=file.location,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        statistics={
            name: _Statistics(
                low=pack_value(one.low),
                high=pack_value(one.high),
                null_count=one.null_count,
                nan_count=one.nan_count,
                value_count=one.value_count,
                size_bytes=one.size_bytes,
            )
            for name, one in file.statistics.items()
        },
        split_offsets=file.split_offsets,
        partition=file.partition,
    )


def _unpack(file: _File) -> NewFile:
    return NewFile(
        location=file.location,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        statistics={
            name: ColumnStatistics(
                low=unpack_value(one.low),
                high=unpack_value(one.high),
                null_count=one.null_count,
                nan_count=one.nan_count,
                value_count=one.value_count,
                size_bytes=one.size_bytes,
            )
            for name, one in file.statistics.items()
        },
        split_offsets=file.split_offsets,
        partition=file.partition,
    )


def pack_value(value: Any) -> tuple[str, str] | None:
    """Return a value of a column's statistics as the name of its type and its exact text."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool", str(int(value))
    if isinstance(value, bytes):
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, datetime):
        kind = "datetime" if value.tzinfo is None else "instant"
        return kind, value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, date):
        return "date", value.isoformat()
    if isinstance(value, (int, Decimal, str)):
        return type(value).__name__, str(value)
    raise TypeError(f"statistics of a {type(value).__name__}")


_READ: Mapping[str, Any] = {
    "bool": lambda text: text == "1",
    "bytes": base64.b64decode,
    "float": float.fromhex,
    "datetime": datetime.fromisoformat,
    "instant": datetime.fromisoformat,
    "date": date.fromisoformat,
    "int": int,
    "Decimal": Decimal,
    "str": str,
}


def unpack_value(packed: tuple[str, str] | None) -> Any:
    """Return the value of `pack_value`."""
    if packed is None:
        return None
    kind, text = packed
    return _READ[kind](text)
