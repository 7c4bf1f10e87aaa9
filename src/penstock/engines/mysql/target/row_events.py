"""Rows as events of the binlog for MariaDB's BINLOG statement.

Events are vectorized. The statement passes rows to the storage engine as a replica's applier does:
a row is found by its key, and no value is parsed from text or checked. So an event may only hold
values that the column could also hold otherwise: types are the column's own, lengths and ranges are
checked here, and a batch with a value that an event cannot hold exactly is loaded in another way
(`NotExact`). Layouts are those of log_event.h and field.cc of MariaDB 10.5 to 11.8, the same that
`codec/mysql/binlog_cells.py` reads. Not here: the choice of tables (`direct.py`), and
the files in which rows wait (`rows_files.py`).
"""

from __future__ import annotations

import re
import struct
import time
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_lines import as_bytes, join_values, text_of
from penstock.codec.columns import cast_exactly
from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind
from penstock.codec.mysql.types import parse_type
from penstock.ports.target import GONE, NEW, UPSERT

Bytes = npt.NDArray[np.uint8]
Part: TypeAlias = Any  # Bytes, or an array of Arrow's
How: TypeAlias = tuple[Any, ...]  # what an encoder must know of the column

# Size of the events in one statement, before base64 makes four bytes of three.
STATEMENT_BYTES = 512 * 2**10
ROW_BYTES_MAX = 2 * 2**20

_TABLE_ID = 1
_STATEMENT_END, _NO_FOREIGN_KEYS = 1, 2
_ROWS = {NEW: EventKind.WRITE_ROWS_V1, UPSERT: EventKind.UPDATE_ROWS_V1}
# Lengths of the post-headers of events 1 to 27; the relevant ones are 19 and 23 to 25.
_POST_HEADS = bytes(
    (56, 13, 0, 8, 0, 18, 0, 4, 4, 4, 4, 18, 0, 0, 84, 0, 4, 26, 8, 0, 0, 0, 8, 8, 8, 2, 0)
)
_VERSION = b"5.5.0-penstock"  # of a server without checksums

_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_INTEGER_CODES = {"tinyint": 1, "smallint": 2, "mediumint": 9, "int": 3, "bigint": 8}
_INTEGER = re.compile(r"(tinyint|smallint|mediumint|int|bigint)(?:\(\d+\))?( unsigned)?\Z")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_MOMENT = re.compile(r"(datetime|timestamp)(?:\(([1-6])\))?\Z")
_TIME = re.compile(r"time(?:\(([1-6])\))?\Z")
_STRING = re.compile(r"(var|)(char|binary)\((\d+)\)\Z")
_BLOB = re.compile(r"(tiny|medium|long|)(text|blob)\Z")
_BLOB_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_UTF8MB4_BYTES = 4
_DIGITS_MAX = 18  # that fit in one word
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_JSON = msgspec.json.Decoder(msgspec.Raw)  # only checks the grammar
_DOCUMENT_DEPTH_MAX = 31  # MariaDB's JSON_DEPTH_LIMIT is 32
_TIMESTAMP_MAX_S = 2**31 - 1
_US = 1_000_000


class NotExact(Exception):
    """Value that no event can hold as the column would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumn:
    """Column of a table map. name: name in the rows. code, metadata: as in events."""

    name: str
    code: int
    metadata: bytes
    not_null: bool
    encode: Callable[[pa.Array, How], list[Part]]
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTable:
    """Table whose rows are sent as events. columns: all columns, in the table's order.

    key: indexes in `columns` of those that identify rows. count: the rows' column that tells
    whether a row is new. server_id: that of the target.
    """

    schema: str
    name: str
    columns: tuple[EventColumn, ...]
    key: tuple[int, ...]
    count: str
    server_id: int


def event_column(
    name: str,
    type_text: str,
    *,
    charset: str,
    not_null: bool,
    is_document: bool = False,
    has_zero: bool = False,
) -> EventColumn | None:
    """Return a column of MariaDB as in events; None if its type is not supported.

    is_document: a check ensures that its texts are JSON. has_zero: whether an empty text of an ENUM
    is its value 0.
    """
    for pattern, make in _MAKERS:
        match = pattern.match(type_text)
        if match is None:
            continue
        made = make(match, charset)
        if made is None:
            return None
        code, metadata, encode, how = made
        if is_document:
            encode = _documents
        if has_zero and encode is _labels:
            how = (*how[:-1], True)
        return EventColumn(
            name=name, code=code, metadata=metadata, not_null=not_null, encode=encode, how=how
        )
    return None


# --- statements -----------------------------------------------------------------------------------


def format_statement(server_id: int) -> bytes:
    """Return the statement with the layout of our events, which a session must execute first."""
    body = struct.pack("<H50sIB", 4, _VERSION, 0, HEAD_BYTES) + _POST_HEADS
    return _statement(_event(EventKind.FORMAT_DESCRIPTION, body, server_id))


def statements(table: EventTable, batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield BINLOG statements for a batch of a merge table's layout: deleted, new, changed rows.

    Raises NotExact.
    """
    kinds = batch.column(table.count).to_numpy()
    gone, kept = kinds == GONE, kinds != GONE
    if gone.any():
        rows = _images(table, batch.filter(pa.array(gone)), table.key)
        yield from _pieces(table, EventKind.DELETE_ROWS_V1, rows)
    if not kept.any():
        return
    batch = batch.filter(pa.array(kept))
    kinds = kinds[kept]
    after = _images(table, batch, range(len(table.columns)))
    for kind in (UPSERT, NEW):
        chosen = kinds == kind
        if not chosen.any():
            continue
        mask = pa.array(chosen)
        rows = after.filter(mask)
        if kind == UPSERT:
            keys = _images(table, batch.filter(mask), table.key)
            rows = join_values([keys, rows], b"", null=b"")
        yield from _pieces(table, _ROWS[kind], rows)


def _images(table: EventTable, batch: pa.RecordBatch, places: Sequence[int]) -> pa.Array:
    """Return each row's image of these columns: null flags, then the values that are not null."""
    columns = [table.columns[place] for place in places]
    size = batch.num_rows
    flags = np.zeros((size, -(-len(columns) // 8) * 8), np.bool_)
    parts: list[Part] = []
    for number, column in enumerate(columns):
        values = batch.column(column.name)
        if values.null_count:
            if column.not_null:
                raise NotExact
            flags[:, number] = np.asarray(values.is_null())
        parts += column.encode(values, column.how)
    return _together([np.packbits(flags, axis=1, bitorder="little"), *parts])


def _together(parts: list[Part]) -> pa.Array:
    """Concatenate the parts of each row; null parts are left out."""
    found: list[Any] = []
    fixed: list[Bytes] = []
    for part in [*parts, None]:
        if isinstance(part, np.ndarray):
            fixed.append(part)
            continue
        if fixed:
            found.append(_array(np.concatenate(fixed, axis=1), None))
            fixed = []
        if part is not None:
            found.append(part)
    return found[0] if len(found) == 1 else join_values(found, b"", null=b"")


def _pieces(table: EventTable, kind: EventKind, rows: pa.Array) -> Iterator[bytes]:
    sizes = np.cumsum(pc.binary_length(rows).to_numpy(zero_copy_only=False))
    start, sent = 0, 0
    while start < len(rows):
        end = max(start + 1, int(np.searchsorted(sizes, sent + STATEMENT_BYTES, side="right")))
        body = b"".join(as_bytes(rows.slice(start, end - start)))
        if len(body) > STATEMENT_BYTES + ROW_BYTES_MAX:
            raise NotExact  # more than a packet may hold
        yield _statement(_table_map(table) + _rows_event(table, kind, body))
        start, sent = end, int(sizes[end - 1])


def _statement(events: bytes) -> bytes:
    return b"BINLOG '" + b2a_base64(events, newline=False) + b"'"


def _event(kind: EventKind, body: bytes, server_id: int) -> bytes:
    size = HEAD_BYTES + len(body)
    return struct.pack("<IBIIIH", int(time.time()), kind, server_id, size, 0, 0) + body


def _table_map(table: EventTable) -> bytes:
    schema, name = table.schema.encode(), table.name.encode()
    metadata = b"".join(column.metadata for column in table.columns)
    nullable = _bits(not column.not_null for column in table.columns)
    body = b"".join(
        (
            struct.pack("<IHH", _TABLE_ID, 0, 0),
            bytes((len(schema),)) + schema + b"\0",
            bytes((len(name),)) + name + b"\0",
            _length(len(table.columns)),
            bytes(column.code for column in table.columns),
            _length(len(metadata)) + metadata,
            nullable,
        )
    )
    return _event(EventKind.TABLE_MAP, body, table.server_id)


def _rows_event(table: EventTable, kind: EventKind, rows: bytes) -> bytes:
    count = len(table.columns)
    every = _bits(True for _ in table.columns)
    key = _bits(place in table.key for place in range(count))
    present = {
        EventKind.WRITE_ROWS_V1: every,
        EventKind.UPDATE_ROWS_V1: key + every,
        EventKind.DELETE_ROWS_V1: key,
    }[kind]
    head = struct.pack("<IHH", _TABLE_ID, 0, _STATEMENT_END | _NO_FOREIGN_KEYS)
    return _event(kind, head + _length(count) + present + rows, table.server_id)


def _length(value: int) -> bytes:
    """Return a packed integer."""
    return bytes((value,)) if value < 251 else b"\xfc" + struct.pack("<H", value)


def _bits(flags: Any) -> bytes:
    return np.packbits(np.fromiter(flags, np.bool_), bitorder="little").tobytes()


# --- values ---------------------------------------------------------------------------------------


def _array(raw: Bytes, values: pa.Array | None) -> pa.Array:
    """Return rows of bytes as Arrow values, with the nulls of `values`."""
    size, width = raw.shape
    data = pa.py_buffer(np.ascontiguousarray(raw).tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), size, [None, data])
    found = fixed.cast(pa.large_binary())
    return found if values is None else pc.if_else(values.is_valid(), found, None)


def _part(raw: Bytes, values: pa.Array) -> list[Part]:
    return [_array(raw, values) if values.null_count else raw]


def _little(numbers: npt.NDArray[Any], size: int) -> Bytes:
    """Return integers as bytes of this number, the least significant first."""
    words = np.ascontiguousarray(numbers.astype("<i8"))
    return words.view(np.uint8).reshape(len(words), 8)[:, :size]


def _big(numbers: npt.NDArray[Any], size: int) -> Bytes:
    words = np.ascontiguousarray(numbers.astype(">i8"))
    return words.view(np.uint8).reshape(len(words), 8)[:, 8 - size :]


def _integers(values: pa.Array, how: How) -> list[Part]:
    size, signed = how
    low = -(2 ** (8 * size - 1)) if signed else 0
    high = low + 2 ** (8 * size) - 1
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    if len(numbers) and not low <= int(numbers.min()) <= int(numbers.max()) <= high:
        raise NotExact
    return _part(_little(numbers, size), values)


def _decimals(values: pa.Array, how: How) -> list[Part]:
    precision, scale = how
    try:
        values = cast_exactly(values, pa.decimal128(precision, scale))
    except pa.ArrowInvalid as error:
        raise NotExact from error
    words = np.frombuffer(values.buffers()[1], "<i8")
    numbers = words[2 * values.offset : 2 * (values.offset + len(values)) : 2]
    if values.null_count:
        numbers = np.where(np.asarray(values.is_valid()), numbers, 0)
    size = np.abs(numbers)
    whole, fraction = size // 10**scale, size % 10**scale
    groups, rest = divmod(precision - scale, 9)
    parts = [_big(whole // 10 ** (9 * groups), _DIGIT_BYTES[rest])]
    parts += [_big(whole // 10 ** (9 * at) % 10**9, 4) for at in reversed(range(groups))]
    groups, rest = divmod(scale, 9)
    last = fraction % 10**rest
    fraction = fraction // 10**rest
    parts += [_big(fraction // 10 ** (9 * at) % 10**9, 4) for at in reversed(range(groups))]
    parts.append(_big(last, _DIGIT_BYTES[rest]))
    raw = np.concatenate(parts, axis=1)
    raw[numbers < 0] ^= 0xFF
    raw[:, 0] ^= 0x80
    return _part(raw, values)


def _floats(values: pa.Array, how: How) -> list[Part]:
    (size,) = how
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    if numbers.dtype.itemsize != size or not np.isfinite(numbers).all():
        raise NotExact
    raw = np.ascontiguousarray(numbers.astype(f"<f{size}")).view(np.uint8)
    return _part(raw.reshape(len(values), size), values)


def _dates(values: pa.Array, _how: How) -> list[Part]:
    days = values.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    year, month, day = _calendar(days.astype("datetime64[D]"))
    return _part(_little(day | month << 5 | year << 9, 3), values)


def _calendar(days: npt.NDArray[Any]) -> tuple[Any, Any, Any]:
    """Return year, month and day. Raises NotExact for years that the servers do not have."""
    months = days.astype("datetime64[M]")
    years = months.astype("datetime64[Y]")
    year = years.astype(np.int64) + 1970
    if len(year) and not 1 <= int(year.min()) <= int(year.max()) <= 9999:
        raise NotExact
    month = (months - years.astype("datetime64[M]")).astype(np.int64) + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    return year, month, day


def _micros(values: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.cast(pa.int64()).fill_null(_US).to_numpy(zero_copy_only=False)
    return found


def _fraction(micros: npt.NDArray[Any], digits: int) -> list[Bytes]:
    """Return fractions of a second. Raises NotExact if they have more digits than the column."""
    if (micros % 10 ** (6 - digits)).any():
        raise NotExact
    size = (digits + 1) // 2
    return [_big(micros // 10 ** (6 - 2 * size), size)] if size else []


def _datetimes(values: pa.Array, how: How) -> list[Part]:
    (digits,) = how
    micros = _micros(values)
    seconds, fraction = micros // _US, micros % _US
    days, second = seconds // 86400, seconds % 86400
    year, month, day = _calendar(days.astype("datetime64[D]"))
    date = (year * 13 + month) << 5 | day
    clock = second // 3600 << 12 | second // 60 % 60 << 6 | second % 60
    packed = _big((date << 17 | clock) + 2**39, 5)
    return _part(np.concatenate([packed, *_fraction(fraction, digits)], axis=1), values)


def _timestamps(values: pa.Array, how: How) -> list[Part]:
    (digits,) = how
    micros = _micros(values)
    seconds = micros // _US
    if len(seconds) and not 1 <= int(seconds.min()) <= int(seconds.max()) <= _TIMESTAMP_MAX_S:
        raise NotExact
    parts = [_big(seconds, 4), *_fraction(micros % _US, digits)]
    return _part(np.concatenate(parts, axis=1), values)


def _times(values: pa.Array, how: How) -> list[Part]:
    (digits,) = how
    micros = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    second = micros // _US
    clock = second // 3600 << 12 | second // 60 % 60 << 6 | second % 60
    parts = [_big(clock + 2**23, 3), *_fraction(micros % _US, digits)]
    return _part(np.concatenate(parts, axis=1), values)


def _years(values: pa.Array, _how: How) -> list[Part]:
    years = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not ((years == 0) | ((years > 1900) & (years < 2156))).all():
        raise NotExact
    return _part(_little(np.where(years == 0, 0, years - 1900), 1), values)


def _labels(values: pa.Array, how: How) -> list[Part]:
    """Return the numbers of an ENUM's labels. has_zero: an empty text, not a label, is 0."""
    size, labels, has_zero = how
    first = 1
    if has_zero and "" not in labels:
        labels, first = ("", *labels), 0
    numbers = pc.index_in(values, value_set=pa.array(labels, pa.string()))
    if numbers.null_count > values.null_count:
        raise NotExact
    found = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + first
    return _part(_little(found, size), values)


def _members(values: pa.Array, how: How) -> list[Part]:
    """Return the bits of a SET's members."""
    size, labels = how
    bits = {label: 1 << place for place, label in enumerate(labels)}
    encoded = values.dictionary_encode()
    found = []
    for text in encoded.dictionary.to_pylist():
        names = text.split(",") if text else []
        if not bits.keys() >= set(names):
            raise NotExact
        found.append(sum(bits[name] for name in set(names)))
    numbers = np.array([*found, 0], np.uint64)
    return _part(_little(numbers[encoded.indices.fill_null(-1).to_numpy()], size), values)


def _texts(values: pa.Array, how: How) -> list[Part]:
    """Return texts after their lengths. how: bytes of a length, maximum characters and bytes."""
    size, characters_max, bytes_max = how
    data = text_of(values)
    lengths = pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False)
    longest = int(lengths.max()) if len(lengths) else 0
    if longest > bytes_max:
        raise NotExact
    if longest > characters_max:
        characters = pc.utf8_length(data.cast(pa.large_string()))
        if pc.max(characters).as_py() > characters_max:
            raise NotExact
    return [*_part(_little(lengths, size), values), data]


def _documents(values: pa.Array, how: How) -> list[Part]:
    """Return texts after checking that the server's json_valid() would accept them."""
    text = values.cast(pa.large_string())
    brackets = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
    if (pc.max(brackets).as_py() or 0) > _DOCUMENT_DEPTH_MAX:
        raise NotExact
    documents = text.drop_null().cast(pa.large_binary()).to_pylist()
    try:
        if any(b"\n" in document for document in documents):
            count = len([_JSON.decode(document) for document in documents])
        else:  # several times as fast; an empty text would not be a line
            count = len(_JSON.decode_lines(b"\n".join(documents)))
    except msgspec.DecodeError as error:
        raise NotExact from error
    if count != len(documents):
        raise NotExact
    return _texts(values, how)


# --- types ----------------------------------------------------------------------------------------

Made = tuple[int, bytes, Callable[[pa.Array, How], list[Part]], How]


def _integer(match: re.Match[str], _charset: str) -> Made:
    size = _INTEGER_BYTES[match[1]]
    return _INTEGER_CODES[match[1]], b"", _integers, (size, int(not match[2]))


def _decimal(match: re.Match[str], _charset: str) -> Made | None:
    precision, scale = int(match[1]), int(match[2])
    if precision > _DIGITS_MAX:
        return None
    return 246, bytes((precision, scale)), _decimals, (precision, scale)


def _float(match: re.Match[str], _charset: str) -> Made:
    code, size = (4, 4) if match[0] == "float" else (5, 8)
    return code, bytes((size,)), _floats, (size,)


def _date(_match: re.Match[str], _charset: str) -> Made:
    return 10, b"", _dates, ()


def _moment(match: re.Match[str], _charset: str) -> Made:
    digits = int(match[2] or 0)
    if match[1] == "datetime":
        return 18, bytes((digits,)), _datetimes, (digits,)
    return 17, bytes((digits,)), _timestamps, (digits,)


def _time(match: re.Match[str], _charset: str) -> Made:
    digits = int(match[1] or 0)
    return 19, bytes((digits,)), _times, (digits,)


def _year(_match: re.Match[str], _charset: str) -> Made:
    return 13, b"", _years, ()


def _choice(match: re.Match[str], _charset: str) -> Made | None:
    parsed = parse_type(match[0])
    if parsed is None or "\\" in match[0] or len(set(parsed.labels)) < len(parsed.labels):
        return None
    count = len(parsed.labels)
    if parsed.base == "enum":
        size = 1 if count < 256 else 2
        return 254, bytes((247, size)), _labels, (size, parsed.labels, False)
    size = -(-count // 8)
    size = size if size <= 4 else 8
    return 254, bytes((248, size)), _members, (size, parsed.labels)


def _string(match: re.Match[str], charset: str) -> Made | None:
    if charset not in ("", "utf8mb4"):
        return None
    characters = int(match[3])
    size = characters * (_UTF8MB4_BYTES if charset else 1)
    how = (1 if size < 256 else 2, characters, size)
    if match[1]:
        return 15, struct.pack("<H", size), _texts, how
    return 254, bytes((254 ^ (size & 0x300) >> 4, size & 0xFF)), _texts, how


def _blob(match: re.Match[str], charset: str) -> Made | None:
    if charset not in ("", "utf8mb4"):
        return None
    size = _BLOB_BYTES[match[1]]
    most = 2 ** (8 * size) - 1
    return 252, bytes((size,)), _texts, (size, most, most)


_MAKERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Made | None]], ...] = (
    (_INTEGER, _integer),
    (_DECIMAL, _decimal),
    (re.compile(r"(?:float|double)\Z"), _float),
    (re.compile(r"date\Z"), _date),
    (_MOMENT, _moment),
    (_TIME, _time),
    (re.compile(r"year(?:\(4\))?\Z"), _year),
    (re.compile(r"(?:enum|set)\(.*\)\Z", re.DOTALL), _choice),
    (_STRING, _string),
    (_BLOB, _blob),
)
