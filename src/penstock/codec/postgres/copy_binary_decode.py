"""Decode the rows of a binary COPY to Arrow batches: the twin of `_copy_binary_decode.pyx`.

The twin is the specification, the oracle of the tests and the fallback without a compiler;
`make_copy_decoder` selects one. Values are those that text COPY gives under
`engines.postgres.connect.EXACT_TEXT_SETTINGS`. A column that is kept as text gets the text that the
server would print; types whose text only the server can print are cast to text by the statement.
Not here: which column has which form (`copy_binary_outcome.py`, the engine's `binary_rows.py`), and
the reverse (`copy_binary.py`). Source: PostgreSQL manual, "COPY", Binary Format;
src/backend/utils/adt: numeric.c, numeric_send, get_str_from_var; date.c; timestamp.c; jsonb.c.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from penstock.codec.columns import after_type, arrow_type
from penstock.codec.exact_text import date_text, time_text, timestamp_text
from penstock.codec.lines import Block
from penstock.codec.postgres.copy_binary import HEADER
from penstock.codec.postgres.copy_binary_outcome import (
    Form,
    Reason,
    Stop,
    broken,
    is_decodable,
)
from penstock.codec.postgres.pgbinary import DAYS, EPOCH_DAYS, EPOCH_US, MICROSECONDS
from penstock.codec.postgres.pgtext import Malformed, Unfit
from penstock.model import Relation

try:
    from penstock.codec.postgres._copy_binary_decode import CopyDecoder as _Kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._copy_binary_decode":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

ROW_LIMIT = 1 << 17
BYTE_LIMIT = 8 << 20
_FRAME_HEAD_BYTES = 5
_COPY_DATA = ord("d")
_LENGTH_MIN = 4
_SIGNATURE = HEADER[:11]
_CRITICAL_FLAGS = 0xFFFF0000  # a reader that does not know one of them must not go on
_TRAILER = -1
_NULL_LENGTH = -1
_DAY_US = 86_400_000_000
_NUMERIC_HEAD = struct.Struct(">HhHH")
_GROUP_END = 10_000
_SCALE_MAX = 0x3FFF
_NEGATIVE = 0x4000
_NUMERIC_NAMES = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_JSONB_VERSION = b"\1"
_INT32_ENDS = {-(2**31): "-infinity", 2**31 - 1: "infinity"}
_INT64_ENDS = {-(2**63): "-infinity", 2**63 - 1: "infinity"}


class RowDecoder(Protocol):
    """Interface of twin and kernel; see `CopyDecoder`."""

    relation: Relation
    stop: Stop
    unfit: int
    row_count: int
    buffered: int
    byte_count: int
    ended: bool

    def feed(self, block: Block, start: int, end: int) -> int:
        """Decode the rows of whole frames in block[start:end]."""
        ...

    def take(self) -> pa.RecordBatch | None:
        """Return the buffered rows."""
        ...

    def keep_as_text(self, column: int) -> None:
        """Decode a column to text from now on."""
        ...


class CopyDecoder:
    """Decoder of the rows of one binary COPY: the readable form of the kernel.

    Attributes:
        relation: Shape of the rows; a new version after `keep_as_text`.
        stop: Reason why `feed` returned.
        unfit: Index of the column that `Stop.UNFIT` is about, else -1.
        row_count: Rows decoded so far.
        buffered: Those of them that were not taken.
        byte_count: Bytes of the buffered rows as sent, and of the texts made for them.
        ended: Whether the copy's trailer was read.
    """

    def __init__(
        self,
        relation: Relation,
        forms: Sequence[Form],
        *,
        row_limit: int = ROW_LIMIT,
        byte_limit: int = BYTE_LIMIT,
    ) -> None:
        """Keep the forms of the relation's columns, in order. A batch ends at one of the limits.

        Raises ValueError if a column cannot be decoded from its form, or if there is no column.
        """
        if len(forms) != len(relation.columns) or not forms:
            raise ValueError(f"{len(forms)} forms for {len(relation.columns)} columns")
        if row_limit < 1 or byte_limit < 1:
            raise ValueError("a limit must be at least 1")
        self.relation = relation
        self.stop = Stop.MORE
        self.unfit = -1
        self.row_count = self.buffered = self.byte_count = 0
        self.ended = False
        self._forms = tuple(forms)
        self._row_limit = row_limit
        self._byte_limit = byte_limit
        self._has_begun = False
        self._inside = 0  # bytes of the next frame's payload that are used already
        self._rows: list[list[Any]] = []
        self._readers = [
            _reader(form, column.neutral)
            for form, column in zip(self._forms, relation.columns, strict=True)
        ]

    def feed(self, block: Block, start: int, end: int) -> int:
        """Decode the rows of the whole CopyData frames in block[start:end].

        Returns the offset of the first frame that is not used up; the next call begins with it. It
        stops before a frame that is not whole, before another message, and as `stop` says: then the
        rows must be taken, or the column be kept as text, before the next call. Raises
        BinaryCopyBroken; then the decoder must not be used any more.
        """
        if start < 0 or not start <= end <= len(block):
            raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
        self.stop, self.unfit = Stop.MORE, -1
        while end - start >= _FRAME_HEAD_BYTES and block[start] == _COPY_DATA:
            length = int.from_bytes(
                block[start + 1 : start + _FRAME_HEAD_BYTES], "big", signed=True
            )
            if length < _LENGTH_MIN or start + 1 + length > end:
                break
            self._frame(bytes(block[start + _FRAME_HEAD_BYTES : start + 1 + length]))
            if self.stop is not Stop.MORE:
                break
            self._inside = 0
            start += 1 + length
        return start

    def take(self) -> pa.RecordBatch | None:
        """Return the buffered rows as one batch of the relation's columns; None without any."""
        if not self._rows:
            return None
        arrays = [
            _array(values, column.neutral)
            for values, column in zip(
                zip(*self._rows, strict=True), self.relation.columns, strict=True
            )
        ]
        self._rows = []
        self.buffered = self.byte_count = 0
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(after_type(self.relation))))

    def keep_as_text(self, column: int) -> None:
        """Decode a column to text from now on, in a new version of the relation.

        Raises ValueError if rows are buffered, or if the form has no text.
        """
        if self._rows:
            raise ValueError("rows are not taken")
        self._readers[column] = _reader(self._forms[column], "string")
        self.relation = self.relation.with_text_column(column)

    def _frame(self, payload: bytes) -> None:
        if self.ended:
            raise self._broken(Reason.TRAILING)
        if not self._has_begun:
            self._inside = self._skip_header(payload)
            self._has_begun = True
        self._take_rows(payload)

    def _take_rows(self, payload: bytes) -> None:
        while self._inside < len(payload):
            behind = self._row(payload, self._inside)
            if self.stop is not Stop.MORE:
                return
            self._inside = behind
            if self.ended and behind < len(payload):
                raise self._broken(Reason.TRAILING)

    def _skip_header(self, payload: bytes) -> int:
        if len(payload) < len(HEADER) or payload[: len(_SIGNATURE)] != _SIGNATURE:
            raise self._broken(Reason.HEADER)
        flags, extension = struct.unpack_from(">II", payload, len(_SIGNATURE))
        if flags & _CRITICAL_FLAGS or extension > len(payload) - len(HEADER):
            raise self._broken(Reason.HEADER)
        return len(HEADER) + int(extension)

    def _row(self, payload: bytes, at: int) -> int:
        """Decode the row at an offset; return the offset after it."""
        start = at
        if len(payload) - at < 2:
            raise self._broken(Reason.TRUNCATED)
        count = int.from_bytes(payload[at : at + 2], "big", signed=True)
        at += 2
        if count == _TRAILER:
            self.ended = True
            return at
        if len(self._rows) >= self._row_limit or self.byte_count >= self._byte_limit:
            self.stop = Stop.LIMIT
            return start
        if count != len(self._readers):
            raise self._broken(Reason.COLUMN_COUNT)
        values: list[Any] = []
        for column in range(len(self._readers)):
            cell, at = self._cell(payload, at, column)
            try:
                values.append(None if cell is None else self._value(column, cell))
            except Unfit:
                self.stop, self.unfit = Stop.UNFIT, column
                return start
        self._rows.append(values)
        self.row_count += 1
        self.buffered += 1
        self.byte_count += (
            at
            - start
            + sum(
                len(value)
                for value, form in zip(values, self._forms, strict=True)
                if isinstance(value, str) and form not in (Form.TEXT, Form.JSONB)
            )
        )
        return at

    def _cell(self, payload: bytes, at: int, column: int) -> tuple[bytes | None, int]:
        """Return the bytes of the value at an offset, None for NULL, and the offset after it."""
        if len(payload) - at < 4:
            raise self._broken(Reason.TRUNCATED, column)
        length = int.from_bytes(payload[at : at + 4], "big", signed=True)
        at += 4
        if length == _NULL_LENGTH:
            return None, at
        if length < 0:
            raise self._broken(Reason.LENGTH, column)
        if length > len(payload) - at:
            raise self._broken(Reason.TRUNCATED, column)
        return payload[at : at + length], at + length

    def _value(self, column: int, cell: bytes) -> Any:
        try:
            return self._readers[column](cell)
        except Malformed:
            raise self._broken(Reason.VALUE, column) from None
        except UnicodeDecodeError:
            raise self._broken(Reason.UTF8, column) from None

    def _broken(self, reason: Reason, column: int = -1) -> Exception:
        return broken(reason, self.row_count + 1, self.relation, column)


# --- values


def _reader(form: Form, neutral: str) -> Callable[[bytes], Any]:
    """Return the reader of a form's values as a neutral type. Raises ValueError."""
    if not is_decodable(form, neutral):
        raise ValueError(f"values of the form {form.name} are not decoded to {neutral}")
    if form is Form.NUMERIC and neutral != "string":
        kind = arrow_type(neutral)
        return _decimal_reader(kind.precision, kind.scale)
    return (_AS_TEXT if neutral == "string" else _READERS)[form]


def _number(kind: str) -> Callable[[bytes], Any]:
    packed = struct.Struct(kind)

    def read(value: bytes) -> Any:
        if len(value) != packed.size:
            raise Malformed
        return packed.unpack(value)[0]

    return read


_read_int32, _read_int64 = _number(">i"), _number(">q")


def _bool(value: bytes) -> bool:
    if value not in (b"\0", b"\1"):
        raise Malformed
    return value == b"\1"


def _float(kind: str) -> Callable[[bytes], float]:
    read = _number(kind)

    def read_float(value: bytes) -> float:
        # Every NaN has the same text, so it has the same bits.
        found = read(value)
        return math.nan if math.isnan(found) else float(found)

    return read_float


def _uuid(value: bytes) -> bytes:
    if len(value) != 16:
        raise Malformed
    return value


def _text(value: bytes) -> str:
    return value.decode("utf-8")


def _jsonb(value: bytes) -> str:
    if not value.startswith(_JSONB_VERSION):
        raise Malformed
    return value[1:].decode("utf-8")


def _date(value: bytes) -> int:
    found: int = _read_int32(value)
    if found in _INT32_ENDS:
        raise Unfit
    if found + EPOCH_DAYS not in DAYS:
        raise Malformed
    return found + EPOCH_DAYS


def _date_text(value: bytes) -> str:
    name = _INT32_ENDS.get(_read_int32(value))
    return name or date_text(_date(value))


def _time_of_day(value: bytes) -> int:
    found: int = _read_int64(value)
    if not 0 <= found <= _DAY_US:
        raise Malformed
    return found


def _time(value: bytes) -> int:
    found = _time_of_day(value)
    if found == _DAY_US:
        raise Unfit
    return found


def _moment(value: bytes) -> int:
    """Return microseconds since 1970, which may be more than 64 bits hold. Raises Unfit for
    infinity.
    """
    found: int = _read_int64(value)
    if found in _INT64_ENDS:
        raise Unfit
    # The server's last microsecond is in the year 294276, beyond that of 64 bits from 1970.
    if found + EPOCH_US < MICROSECONDS.start or found >= _TIMESTAMP_END:
        raise Malformed
    return found + EPOCH_US


_TIMESTAMP_END = 9_223_371_331_200_000_000  # 294277-01-01, from 2000


def _timestamp(value: bytes) -> int:
    found = _moment(value)
    if found >= 2**63:
        raise Unfit
    return found


def _timestamp_text(zone: str) -> Callable[[bytes], str]:
    def read(value: bytes) -> str:
        name = _INT64_ENDS.get(_read_int64(value))
        return name or timestamp_text(_moment(value), zone)

    return read


def _numeric(value: bytes) -> tuple[str, bool, str, int]:
    """Return the name of a number that is none, else empty; sign, digits without leading zeros,
    scale.
    """
    if len(value) < _NUMERIC_HEAD.size:
        raise Malformed
    count, weight, sign, scale = _NUMERIC_HEAD.unpack_from(value)
    if len(value) != _NUMERIC_HEAD.size + 2 * count or scale > _SCALE_MAX:
        raise Malformed
    groups = struct.unpack_from(f">{count}H", value, _NUMERIC_HEAD.size)
    if any(group >= _GROUP_END for group in groups):
        raise Malformed
    if sign in _NUMERIC_NAMES and not groups:
        return _NUMERIC_NAMES[sign], False, "", 0
    if sign not in (0, _NEGATIVE):
        raise Malformed
    digits = "".join(f"{group:04}" for group in groups)
    missing = 4 * (weight + 1 - count) + scale  # digits up to the last one that is printed
    if missing >= 0:
        digits += "0" * missing
    elif digits[missing:].strip("0"):
        raise Malformed
    else:
        digits = digits[:missing]
    digits = digits.lstrip("0")
    return "", sign == _NEGATIVE and bool(digits), digits, scale


def _numeric_text(value: bytes) -> str:
    name, is_negative, digits, scale = _numeric(value)
    if name:
        return name
    digits = digits.rjust(scale + 1, "0")
    point = len(digits) - scale
    return "-" * is_negative + digits[:point] + "." * bool(scale) + digits[point:]


def _decimal_reader(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    """Return a reader of numbers that have exactly this many digits after the point, or fewer."""

    def read(value: bytes) -> Decimal:
        name, is_negative, digits, printed = _numeric(value)
        if name:
            raise Unfit
        more = scale - printed
        if more < 0 and digits[more:].strip("0"):
            raise Unfit
        kept = digits + "0" * more if more >= 0 else digits[:more]
        kept = kept.lstrip("0")
        if len(kept) > precision:
            raise Unfit
        return Decimal((is_negative, tuple(map(int, kept)), -scale))

    return read


_READERS: dict[Form, Callable[[bytes], Any]] = {
    Form.BOOL: _bool,
    Form.INT16: _number(">h"),
    Form.INT32: _read_int32,
    Form.INT64: _read_int64,
    Form.UINT32: _number(">I"),
    Form.UINT64: _number(">Q"),
    Form.FLOAT32: _float(">f"),
    Form.FLOAT64: _float(">d"),
    Form.DATE: _date,
    Form.TIME: _time,
    Form.TIMESTAMP: _timestamp,
    Form.TIMESTAMPTZ: _timestamp,
    Form.UUID: _uuid,
    Form.BYTES: bytes,
}
_AS_TEXT: dict[Form, Callable[[bytes], str]] = {
    Form.NUMERIC: _numeric_text,
    Form.DATE: _date_text,
    Form.TIME: lambda value: time_text(_time_of_day(value)),
    Form.TIMESTAMP: _timestamp_text(""),
    Form.TIMESTAMPTZ: _timestamp_text("+00"),
    Form.TEXT: _text,
    Form.JSONB: _jsonb,
}
_PHYSICAL: dict[str, pa.DataType] = {
    "date": pa.int32(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
}


def _array(values: Sequence[Any], neutral: str) -> pa.Array:
    kind = arrow_type(neutral)
    physical = _PHYSICAL.get(neutral)
    return pa.array(values, kind) if physical is None else pa.array(values, physical).view(kind)


def make_copy_decoder(
    relation: Relation,
    forms: Sequence[Form],
    *,
    row_limit: int = ROW_LIMIT,
    byte_limit: int = BYTE_LIMIT,
) -> RowDecoder:
    """Return the compiled `CopyDecoder`, or the twin when it is not built or PENSTOCK_PURE=1
    forbids it.

    Arguments as for `CopyDecoder`.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _Kernel(relation, forms, row_limit=row_limit, byte_limit=byte_limit)
    return CopyDecoder(relation, forms, row_limit=row_limit, byte_limit=byte_limit)
