"""TYPE_INFO and COLMETADATA: the types of results as they are sent (MS-TDS 2.2.5.6, 2.2.7.4)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sim_sqlserver.sqltypes import DEFAULT_COLLATION, MAX, SqlType, decimal_bytes

_FIXED_LENGTH = {
    "tinyint": (0x26, 1), "smallint": (0x26, 2), "int": (0x26, 4), "bigint": (0x26, 8),
    "bit": (0x68, 1), "real": (0x6D, 4), "float": (0x6D, 8), "smallmoney": (0x6E, 4),
    "money": (0x6E, 8), "smalldatetime": (0x6F, 4), "datetime": (0x6F, 8),
    "uniqueidentifier": (0x24, 16),
}  # fmt: skip
_VARIABLE = {"varbinary": 0xA5, "binary": 0xAD, "varchar": 0xA7, "char": 0xAF, "nvarchar": 0xE7}
_VARIABLE["nchar"] = 0xEF
_SCALED = {"time": 0x29, "datetime2": 0x2A, "datetimeoffset": 0x2B}
_WITHOUT_SIZE = {"date": b"\x28", "xml": b"\xf1\x00"}
_CLR = {"geometry", "geography", "hierarchyid"}
# Flags of a collation: bits 20 and up of its first four bytes.
_LATIN = 0x0409
_IGNORE_CASE, _IGNORE_ACCENT, _IGNORE_KANA, _IGNORE_WIDTH = 1 << 20, 1 << 21, 1 << 22, 1 << 23
_BINARY, _BINARY2, _UTF8 = 1 << 24, 1 << 25, 1 << 26


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a result."""

    name: str
    type: SqlType
    is_nullable: bool = True
    is_identity: bool = False
    is_computed: bool = False


@cache
def collation_bytes(name: str) -> bytes:
    """Return the five bytes of a collation."""
    if not name or name.lower() == DEFAULT_COLLATION.lower():
        return bytes.fromhex("0904d00034")
    parts = name.upper().split("_")
    bits = _LATIN
    if "BIN2" in parts:
        bits |= _BINARY2
    elif "BIN" in parts:
        bits |= _BINARY
    else:
        bits |= _IGNORE_CASE if "CI" in parts else 0
        bits |= _IGNORE_ACCENT if "AI" in parts else 0
        bits |= 0 if "KS" in parts else _IGNORE_KANA
        bits |= 0 if "WS" in parts else _IGNORE_WIDTH
    bits |= _UTF8 if "UTF8" in parts else 0
    bits |= (2 if "100" in parts else 3 if "140" in parts else 1 if "90" in parts else 0) << 28
    return struct.pack("<I", bits) + b"\0"


def is_utf8(collation: str) -> bool:
    """Return whether varchar is UTF-8 in a collation."""
    return collation.upper().endswith("_UTF8")


@cache
def type_info(sql_type: SqlType) -> bytes:
    """Return TYPE_INFO, without the table name that text and image have."""
    name, length = sql_type.name, sql_type.length
    if name in _FIXED_LENGTH:
        return bytes(_FIXED_LENGTH[name])
    if name in ("decimal", "numeric"):
        token = 0x6A if name == "decimal" else 0x6C
        return bytes((token, decimal_bytes(sql_type.precision), sql_type.precision, sql_type.scale))
    if name in _WITHOUT_SIZE:
        return _WITHOUT_SIZE[name]
    if name in _SCALED:
        return bytes((_SCALED[name], sql_type.scale))
    if name == "rowversion":
        return b"\xad" + struct.pack("<H", 8)
    if name in ("json", "vector"):  # as clients see them that do not know the type
        return b"\xe7\xff\xff" + collation_bytes("")
    if name in _CLR:
        return b"\xa5\xff\xff"
    collation = collation_bytes(sql_type.collation)
    if name in ("text", "ntext"):
        size = 0x7FFFFFFF if name == "text" else 0x7FFFFFFE
        return (b"\x23" if name == "text" else b"\x63") + struct.pack("<I", size) + collation
    if name == "image":
        return b"\x22" + struct.pack("<I", 0x7FFFFFFF)
    if name == "sysname":
        return b"\xe7" + struct.pack("<H", 256) + collation
    if name == "sql_variant":
        return b"\x62" + struct.pack("<I", 8009)
    size = 0xFFFF if length == MAX else length * (2 if name[0] == "n" else 1)
    info = bytes((_VARIABLE[name],)) + struct.pack("<H", size)
    return info + (collation if name not in ("varbinary", "binary") else b"")


def column_metadata(columns: Sequence[Column]) -> bytes:
    """Return the COLMETADATA token."""
    out = [b"\x81", struct.pack("<H", len(columns))]
    for column in columns:
        flags = 0x08 | int(column.is_nullable)
        flags |= 0x10 if column.is_identity else 0
        flags |= 0x20 if column.is_computed else 0
        name = column.name.encode("utf-16-le")
        out.append(struct.pack("<IH", _user_type(column.type), flags))
        out.append(type_info(column.type))
        if column.type.name in ("text", "ntext", "image"):
            out.append(b"\x01" + struct.pack("<H", 1) + "t".encode("utf-16-le"))
        out.append(bytes((len(name) // 2,)) + name)
    return b"".join(out)


def _user_type(sql_type: SqlType) -> int:
    return 0x50 if sql_type.name == "rowversion" else 0
