"""Read the extended query protocol's messages, Parse to Close, and write a server's answers.

Pure. `pgwire_server` has the frames around messages. Values are text or binary. Only types that a
catalogue's answers have can be binary; others are refused. Source: PostgreSQL manual, "Message
Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.postgres.pgwire_server import Refused, message
from penstock.codec.postgres.pgwire_values import from_binary, to_binary

PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE = message(b"1"), message(b"2"), message(b"3")
NO_DATA, PORTAL_SUSPENDED = message(b"n"), message(b"s")
PARAMETERS_MAX = 65_535  # of a statement
_VIOLATION = "08P01"
TEXT, BINARY = 0, 1


class Described(Protocol):
    """A column of an answer."""

    @property
    def name(self) -> str:
        """Return the name of the column."""
        ...

    @property
    def type_oid(self) -> int:
        """Return the oid of its type."""
        ...

    @property
    def type_size(self) -> int:
        """Return the size of its type; -1 if it varies."""
        ...

    @property
    def typmod(self) -> int:
        """Return the modifier of its type; -1 for none."""
        ...

    @property
    def table_oid(self) -> int:
        """Return the oid of its table; 0 for none."""
        ...

    @property
    def number(self) -> int:
        """Return the column's number in that table, from 1; 0 for none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """A statement to prepare. types: oids of the parameters that the client specified."""

    name: str
    sql: str
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A portal to create. formats, results: none, one for all, or one each."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    results: tuple[int, ...]


class _Body:
    """Reader of a message's body. Anything that does not fit is a protocol violation."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def text(self) -> str:
        """Return the text up to the next zero byte."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise Refused(_VIOLATION, "invalid string in message")
        data, self._at = self._body[self._at : end], end + 1
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Refused("22021", "invalid byte sequence for encoding UTF8") from None

    def data(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count < 0 or len(self._body) - self._at < count:
            raise Refused(_VIOLATION, "insufficient data left in message")
        found, self._at = self._body[self._at : self._at + count], self._at + count
        return found

    def number(self, size: int, *, signed: bool = False) -> int:
        """Return a number of this many bytes."""
        return int.from_bytes(self.data(size), signed=signed)

    def formats(self) -> tuple[int, ...]:
        """Return a list of format codes."""
        found = tuple(self.number(2) for _ in range(self.number(2)))
        if any(one not in (TEXT, BINARY) for one in found):
            raise Refused(_VIOLATION, "unsupported format code")
        return found

    def end(self) -> None:
        """Raise unless everything was read."""
        if self._at != len(self._body):
            raise Refused(_VIOLATION, "invalid message format")


def parse(body: bytes) -> Parse:
    """Return the contents of a Parse. Raises Refused."""
    read = _Body(body)
    name, sql = read.text(), read.text()
    types = tuple(read.number(4) for _ in range(read.number(2)))
    read.end()
    return Parse(name=name, sql=sql, types=types)


def bind(body: bytes) -> Bind:
    """Return the contents of a Bind. Raises Refused."""
    read = _Body(body)
    portal, statement, formats = read.text(), read.text(), read.formats()
    values: list[bytes | None] = []
    for _ in range(read.number(2)):
        length = read.number(4, signed=True)
        values.append(None if length == -1 else read.data(length))
    results = read.formats()
    read.end()
    if len(formats) > 1 and len(formats) != len(values):
        raise Refused(
            _VIOLATION, f"bind message has {len(formats)} formats but {len(values)} parameters"
        )
    return Bind(
        portal=portal, statement=statement, formats=formats, values=tuple(values), results=results
    )


def target(body: bytes) -> tuple[str, str]:
    """Return the subject of a Describe or Close: `S` (statement) or `P` (portal), and its name."""
    read = _Body(body)
    kind, name = read.data(1).decode("latin-1"), read.text()
    read.end()
    if kind not in ("S", "P"):
        raise Refused(_VIOLATION, f"invalid subtype {ord(kind)} of message")
    return kind, name


def execute(body: bytes) -> tuple[str, int]:
    """Return the portal of an Execute, and its limit of rows; 0: all."""
    read = _Body(body)
    portal, count = read.text(), read.number(4, signed=True)
    read.end()
    return portal, max(count, 0)


def per_value(formats: Sequence[int], count: int) -> list[int]:
    """Return a format code for each of `count` values from a message's codes. Raises Refused."""
    if len(formats) <= 1:
        return list(formats or (TEXT,)) * count
    if len(formats) != count:
        raise Refused(
            _VIOLATION, f"bind message has {len(formats)} result formats but query has {count}"
        )
    return list(formats)


def parameter_description(types: Sequence[int]) -> bytes:
    """Return ParameterDescription."""
    return message(b"t", struct.pack(f">H{len(types)}I", len(types), *types))


def row_description(columns: Sequence[Described], formats: Sequence[int] = ()) -> bytes:
    """Return RowDescription."""
    parts = [struct.pack(">H", len(columns))]
    codes = per_value(formats, len(columns))
    for column, code in zip(columns, codes, strict=True):
        name = column.name.replace("\0", "?").encode(errors="replace") + b"\0"
        parts.append(
            name
            + struct.pack(
                ">IhIhih",
                column.table_oid,
                column.number,
                column.type_oid,
                column.type_size,
                column.typmod,
                code,
            )
        )
    return message(b"T", b"".join(parts))


def data_row(
    values: Sequence[str | None], columns: Sequence[Described], formats: Sequence[int]
) -> bytes:
    """Return DataRow. formats: one for each column. Raises Refused."""
    parts = [struct.pack(">H", len(values))]
    for value, column, code in zip(values, columns, formats, strict=True):
        if value is None:
            parts.append(struct.pack(">i", -1))
            continue
        data = value.encode() if code == TEXT else to_binary(value, column.type_oid)
        parts.append(struct.pack(">i", len(data)) + data)
    return message(b"D", b"".join(parts))


def parameter_text(data: bytes, code: int, type_oid: int) -> str:
    """Return a parameter's value as text. Raises Refused."""
    if code == BINARY:
        return from_binary(data, type_oid)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Refused("22021", "invalid byte sequence for encoding UTF8") from None
    if "\0" in text:
        raise Refused("22021", "invalid byte sequence for encoding UTF8: 0x00")
    return text
