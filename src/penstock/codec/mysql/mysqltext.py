"""Convert the packets of a MySQL SELECT to lines for another server's bulk reader.

The result of a text query is a packet per row, a length and a text per cell. Lines are those of
PostgreSQL's COPY or of LOAD DATA (`LineDialect`). Most cells are only copied, with escapes for
characters that would end a cell or a line, so a row is not parsed further. The expressions of the
SELECT and a `CellForm` per column determine the contents of the text. The specification of
`_mysqltext.pyx`. Not here: which columns need which form (`penstock.sql.read_plan`). Source: MySQL
Internals Manual, "Text Resultset"; PostgreSQL manual, COPY, "Text Format".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from penstock.codec.errors import TextBroken, unfit
from penstock.codec.lines import Block, CellForm, LineDialect, TextCell
from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.charsets import decoder


class RowStop(IntEnum):
    """Reason why feeding stopped. MORE: the rest is not a whole row; END: the result has ended."""

    MORE = 0
    END = 1
    ERROR = 2


class Transcoder(Protocol):
    """Interface of twin and kernel; see `RowLines`."""

    row_count: int
    message: bytes

    @property
    def stop(self) -> RowStop:
        """Reason why the last feed ended."""
        ...

    def feed(self, block: Block, start: int, end: int) -> int:
        """Write the lines of the whole rows in block[start:end]."""
        ...

    def take(self) -> bytes:
        """Return the lines since the last call."""
        ...


_SPECIAL = {
    LineDialect.COPY: {ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"},
    LineDialect.LOAD_DATA: {
        ord("\\"): b"\\\\",
        ord("\n"): b"\\n",
        ord("\r"): b"\\r",
        ord("\t"): b"\\t",
        0: b"\\0",
    },
}
_DATE = re.compile(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_NULL = 0xFB
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_NO_ZERO = "text with a zero character has no place in PostgreSQL"
_NO_CHARACTER = "bytes mean no character in"


class RowLines:
    """Converter of rows to lines: the readable form of `_mysqltext.RowLines`.

    Attributes:
        row_count: rows written so far.
        stop: reason why the last feed ended.
        message: payload of the error packet after Stop.ERROR.
    """

    def __init__(self, cells: Sequence[TextCell], dialect: LineDialect) -> None:
        """Keep one cell form for each column of the result."""
        self.row_count = 0
        self.message = b""
        self.stop = RowStop.MORE
        self._out = bytearray()
        self._special = _SPECIAL[dialect]
        self._dialect = dialect
        self._cells = tuple(cells)
        self._writers = [self._writer(cell) for cell in cells]

    def feed(self, block: Block, start: int, end: int) -> int:
        """Write the lines of the whole rows in block[start:end], which begins with a packet.

        Returns the offset after the used bytes. It stops after the packet that ends the result, or
        before a row that is not whole. Raises TextBroken or CellUnfit; then lines that were not
        taken must not be used.
        """
        if start < 0 or not start <= end <= len(block):
            raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
        self.stop = RowStop.MORE
        view = memoryview(block)
        while True:
            found = _join(view, start, end)
            if found is None:
                return start
            payload, start = found
            if payload[:1] == b"\xff":
                self.stop, self.message = RowStop.ERROR, bytes(payload)
                return start
            if payload[:1] == b"\xfe" and len(payload) <= mysqlwire.EOF_BYTES_MAX:
                self.stop = RowStop.END
                return start
            self._row(payload)

    def take(self) -> bytes:
        """Return the lines since the last call."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def _row(self, payload: bytes) -> None:
        line: list[bytes] = []
        at = 0
        for column, write in enumerate(self._writers):
            if at >= len(payload):
                raise self._broken()
            head = payload[at]
            at += 1
            if head == _NULL:
                line.append(b"\\N")
                continue
            length = head
            if head in _WIDTHS:
                width = _WIDTHS[head]
                length = int.from_bytes(payload[at : at + width], "little")
                at += width
            elif head == 0xFF:
                raise self._broken()
            if length > len(payload) - at:
                raise self._broken()
            line.append(self._write(write, payload[at : at + length], column))
            at += length
        if at != len(payload):
            raise self._broken()
        self.row_count += 1
        self._out += b"\t".join(line) + b"\n"

    def _broken(self) -> TextBroken:
        return TextBroken(f"row {self.row_count + 1} does not have {len(self._cells)} cells")

    def _write(self, write: Callable[[bytes], bytes], cell: bytes, column: int) -> bytes:
        try:
            return write(cell)
        except UnicodeDecodeError:
            reason = f"{_NO_CHARACTER} {self._cells[column].charset}"
        except _Zero:
            reason = _NO_ZERO
        raise unfit(self.row_count + 1, column, reason)

    def _writer(self, cell: TextCell) -> Callable[[bytes], bytes]:
        copy = self._dialect is LineDialect.COPY
        if cell.form is CellForm.PLAIN:
            return bytes
        if cell.form is CellForm.DATE:
            return lambda data: _date(data, copy=copy, zero_is_null=cell.zero_is_null)
        if cell.form is CellForm.BYTES and copy:
            return lambda data: b"\\\\x" + data.hex().encode()
        if cell.form is CellForm.CHARSET:
            decode = decoder(cell.charset)
            return lambda data: self._text(decode(data).encode(), cell)
        if cell.form is CellForm.UTF8:
            return lambda data: self._text(data, cell)
        return self._escape

    def _text(self, data: bytes, cell: TextCell) -> bytes:
        if cell.remove_zero:
            data = data.replace(b"\0", b"")
        if self._dialect is LineDialect.COPY and 0 in data:
            raise _Zero
        return self._escape(data)

    def _escape(self, data: bytes) -> bytes:
        special = self._special
        return b"".join(special.get(byte) or bytes((byte,)) for byte in data)


class _Zero(ValueError):
    """Error: the text has U+0000."""


def _date(data: bytes, *, copy: bool, zero_is_null: bool) -> bytes:
    """Return a date, or a date and a time. The year 0 is 1 BC."""
    match = _DATE.match(data)
    if match is None:
        return data
    year, month, day = map(int, match.groups())
    if zero_is_null and not _is_day(year, month, day):
        return b"\\N"
    if copy and year == 0 and month and day:
        return b"0001-" + data[5:] + b" BC"
    return data


def _is_day(year: int, month: int, day: int) -> bool:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return 1 <= month <= 12 and 1 <= day <= length


def _join(view: memoryview, start: int, end: int) -> tuple[bytes, int] | None:
    """Return the payload of the next packet with its continuations; None if it is incomplete."""
    parts = []
    while True:
        packet = mysqlwire.packet_at(view, start, end)
        if packet is None:
            return None
        parts.append(bytes(view[packet.start : packet.end]))
        start = packet.end
        if not packet.is_continued:
            return b"".join(parts), start


try:
    from penstock.codec.mysql._mysqltext import RowLines as _Kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.mysql._mysqltext":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True


def make_row_lines(cells: Sequence[TextCell], dialect: LineDialect) -> Transcoder:
    """Return the compiled RowLines, or the twin when it is not built or PENSTOCK_PURE=1 forbids
    it.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _Kernel(cells, dialect)
    return RowLines(cells, dialect)
