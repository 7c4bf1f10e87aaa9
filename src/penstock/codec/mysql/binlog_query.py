"""Parse QUERY events: a statement and the settings it ran under."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from penstock.codec.mysql.binlog_compressed import inflate
from penstock.codec.mysql.binlog_events import (
    HEAD_BYTES,
    EventKind,
    event_head,
    malformed_is_broken,
)
from penstock.codec.mysql.charsets import charset_of, decoder
from penstock.codec.mysql.malformed import Malformed

_POST_HEAD = struct.Struct("<IIBHH")
_MANY_SCHEMAS = 254  # too many to be named
_OPTION_NO_FOREIGN_KEY_CHECKS = 0x0400_0000
_MODE_ANSI_QUOTES = 4
NO_BACKSLASH_ESCAPES = 0x10_0000  # a bit of sql_mode
_STRICT_MODES = 0x60_0000  # STRICT_TRANS_TABLES and STRICT_ALL_TABLES
# Status variables of a fixed size that are passed over: number -> bytes.
_PASSED = {3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 18: 2, 19: 1, 20: 1, 129: 8}
_TIME_ZONE, _EXPLICIT_TIMESTAMPS = 5, 16
_CLOCK = (_TIME_ZONE, _EXPLICIT_TIMESTAMPS, 13, 128)  # the last two: microseconds of now()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A statement.

    Attributes:
        text: decoded from the client's character set.
        raw: bytes of the statement in the log.
        schema: the current schema.
        error: not 0 if the statement failed half-way.
        sql_mode: bits of the mode.
        schemas: schemas that it changes, as the server noted; None if it did not.
        collation: collation of the text.
        ddl_xid: number of the transaction of an atomic DDL statement in MySQL 8, else 0.
        time_zone: time zone of the session, empty if the server did not note it.
        time_us: value of now(), microseconds since 1970 UTC.
        has_explicit_timestamps: explicit_defaults_for_timestamp; None if not noted.
    """

    text: str
    raw: bytes
    schema: str
    thread_id: int
    error: int
    sql_mode: int = 0
    options: int = 0
    collation: int = 0
    schemas: tuple[str, ...] | None = None
    ddl_xid: int = 0
    time_zone: str = ""
    time_us: int = 0
    has_explicit_timestamps: bool | None = None

    @property
    def has_ansi_quotes(self) -> bool:
        """Return whether double quotes enclose names."""
        return bool(self.sql_mode & _MODE_ANSI_QUOTES)

    @property
    def has_backslash_escapes(self) -> bool:
        """Return whether a backslash escapes inside strings."""
        return not self.sql_mode & NO_BACKSLASH_ESCAPES

    @property
    def is_strict(self) -> bool:
        """Return whether values that do not fit were refused."""
        return bool(self.sql_mode & _STRICT_MODES)

    @property
    def checks_foreign_keys(self) -> bool:
        """Return whether foreign keys were checked."""
        return not self.options & _OPTION_NO_FOREIGN_KEY_CHECKS


@dataclass(slots=True)
class _Status:
    """The status variables that are used."""

    options: int = 0
    sql_mode: int = 0
    collation: int = 0
    schemas: tuple[str, ...] | None = None
    ddl_xid: int = 0
    time_zone: str = ""
    microseconds: int = 0
    has_explicit_timestamps: bool | None = None
    names: list[str] = field(default_factory=list)


def query_text_start(event: bytes) -> int:
    """Return where the text starts in a QUERY event. Raises Malformed."""
    if len(event) < HEAD_BYTES + _POST_HEAD.size:
        raise Malformed
    _, _, schema_size, _, status_size = _POST_HEAD.unpack_from(event, HEAD_BYTES)
    start: int = HEAD_BYTES + _POST_HEAD.size + status_size + schema_size + 1
    if start > len(event):
        raise Malformed
    return start


@malformed_is_broken
def query(event: bytes) -> Query:
    """Read a QUERY event, also one that MariaDB compressed."""
    start = query_text_start(event)
    thread_id, _, schema_size, error, status_size = _POST_HEAD.unpack_from(event, HEAD_BYTES)
    status_start = HEAD_BYTES + _POST_HEAD.size
    status = _status(event[status_start : status_start + status_size])
    schema = event[start - 1 - schema_size : start - 1].decode()
    raw = event[start:]
    if event_head(event).kind == EventKind.QUERY_COMPRESSED:
        raw = inflate(raw)
    charset = charset_of(status.collation) if status.collation else None
    try:
        text = decoder(charset or "utf8mb4")(raw)
    except (UnicodeDecodeError, KeyError):
        # A statement may hold bytes of any kind in its strings; names must still be readable.
        text = raw.decode("utf-8", "replace")
    return Query(
        text=text,
        raw=raw,
        schema=schema,
        thread_id=thread_id,
        error=error,
        sql_mode=status.sql_mode,
        options=status.options,
        collation=status.collation,
        schemas=status.schemas,
        ddl_xid=status.ddl_xid,
        time_zone=status.time_zone,
        time_us=event_head(event).timestamp_s * 1_000_000 + status.microseconds,
        has_explicit_timestamps=status.has_explicit_timestamps,
    )


def _status(data: bytes) -> _Status:
    """Read the status variables up to the first unknown one. The statement's text is found without
    them.
    """
    status = _Status()
    at = 0
    while at < len(data):
        number = data[at]
        at += 1
        if number == 0:
            (status.options,) = struct.unpack_from("<I", data, at)
            at += 4
        elif number == 1:
            (status.sql_mode,) = struct.unpack_from("<Q", data, at)
            at += 8
        elif number == 4:
            (status.collation,) = struct.unpack_from("<H", data, at)
            at += 6
        elif number == 6:
            at += 1 + data[at]
        elif number in _CLOCK:
            at = _clock(status, number, data, at)
        elif number == 11:
            at += 1 + data[at]
            at += 1 + data[at]
        elif number == 12:
            at = _schemas(status, data, at)
        elif number == 17:
            (status.ddl_xid,) = struct.unpack_from("<Q", data, at)
            at += 8
        elif number in _PASSED:
            at += _PASSED[number]
        else:
            break
    return status


def _clock(status: _Status, number: int, data: bytes, at: int) -> int:
    """Read a variable that affects the meaning of times; return the offset after it."""
    if number == _TIME_ZONE:
        end = at + 1 + data[at]
        status.time_zone = data[at + 1 : end].decode()
        return end
    if number == _EXPLICIT_TIMESTAMPS:
        status.has_explicit_timestamps = bool(data[at])
        return at + 1
    status.microseconds = int.from_bytes(data[at : at + 3], "little")
    return at + 3


def _schemas(status: _Status, data: bytes, at: int) -> int:
    count = data[at]
    at += 1
    if count == _MANY_SCHEMAS:
        return at
    for _ in range(count):
        end = data.find(b"\0", at)
        if end < 0:
            raise Malformed
        status.names.append(data[at:end].decode())
        at = end + 1
    status.schemas = tuple(status.names)
    return at
