r"""Convert lines of PostgreSQL's COPY in CopyData frames to lines for LOAD DATA.

Both have cells between tabs, `\N` for NULL and escapes that begin with a backslash, so most bytes
are only copied; a `LineForm` per column describes the differences. Values that MySQL cannot hold
(infinity, years before Christ, not a number) are refused or become NULL, never a near value. The
specification of `_copytext.pyx`. Not here: which columns need which form
(`penstock.sql.read_plan`). Source: PostgreSQL manual, COPY, "Text Format"; MySQL manual, LOAD DATA,
"Field and Line Handling".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.codec.errors import TextBroken, unfit
from penstock.codec.lines import Block, LineCell, LineForm

HEAD_BYTES = 5
_COPY_DATA = ord("d")
_LENGTH_MIN = 4


class LineTranscoder(Protocol):
    """Interface of twin and kernel; see `LoadLines`."""

    row_count: int

    def feed(self, block: Block, start: int, end: int) -> int:
        """Write the lines of the whole frames in block[start:end]."""
        ...

    def take(self) -> bytes:
        """Return the lines since the last call."""
        ...


NO_PLACE = "a value that MySQL has no place for (infinity, NaN, or a year outside 0 to 9999)"
_NUMBER = re.compile(rb"-?[0-9].*", re.DOTALL)
_DATE = re.compile(rb"[0-9]{4}-[^C]*", re.DOTALL)
# The shortest texts that are no digits. With less there is no NULL to be written: that is longer.
_NUMBER_NAME_BYTES_MIN = len(b"NaN")
_DATE_BYTES_MIN = len(b"infinity")
# In a line of COPY these may follow a backslash; LOAD DATA knows all but two of them.
_RAW = {ord("v"): b"\v", ord("f"): b"\f"}
_ESCAPED = {ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t", 0: b"\\0"}


class _Unfit(ValueError):
    """Error: MySQL cannot hold the value."""


class _Broken(ValueError):
    """Error: PostgreSQL would not write such a text."""


class LoadLines:
    """Converter of COPY's lines for LOAD DATA: the readable form of `_copytext.LoadLines`."""

    def __init__(self, cells: Sequence[LineCell]) -> None:
        """Keep one form for each column of the COPY."""
        self.row_count = 0
        self._out = bytearray()
        self._cells = tuple(cells)

    def feed(self, block: Block, start: int, end: int) -> int:
        """Write the lines of the whole CopyData frames in block[start:end].

        Returns the offset after the used bytes. It stops before a frame that is not whole, and
        before another message. Raises TextBroken or CellUnfit; then lines that were not taken must
        not be used.
        """
        if start < 0 or not start <= end <= len(block):
            raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
        while end - start >= HEAD_BYTES and block[start] == _COPY_DATA:
            length = int.from_bytes(block[start + 1 : start + HEAD_BYTES], "big", signed=True)
            if length < _LENGTH_MIN or start + 1 + length > end:
                break
            self._lines(bytes(block[start + HEAD_BYTES : start + 1 + length]))
            start += 1 + length
        return start

    def take(self) -> bytes:
        """Return the lines since the last call."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def _lines(self, payload: bytes) -> None:
        if not payload.endswith(b"\n") or not self._cells:
            raise self._broken()
        for line in payload[:-1].split(b"\n"):
            out = []
            rest: bytes | None = line
            for column in range(len(self._cells)):
                if rest is None:
                    raise self._broken()
                text, tab, behind = rest.partition(b"\t")
                if bool(tab) is (column == len(self._cells) - 1):
                    raise self._broken()
                out.append(self._cell(column, text))
                rest = behind if tab else None
            self._out += b"\t".join(out) + b"\n"
            self.row_count += 1

    def _broken(self) -> TextBroken:
        return TextBroken(f"row {self.row_count + 1} does not have {len(self._cells)} cells")

    def _cell(self, column: int, text: bytes) -> bytes:
        cell = self._cells[column]
        if text == b"\\N":
            return text
        try:
            return _WRITERS[cell.form](text)
        except _Broken:
            raise self._broken() from None
        except _Unfit:
            if cell.unfit_is_null:
                return b"\\N"
            raise unfit(self.row_count + 1, column, NO_PLACE) from None


def _text(text: bytes) -> bytes:
    out = bytearray()
    at = 0
    while at < len(text):
        byte = text[at]
        if byte != ord("\\"):
            out.append(byte)
            at += 1
            continue
        if at + 1 == len(text):
            raise _Broken
        after = text[at + 1]
        out += _RAW.get(after) or text[at : at + 2]
        at += 2
    return bytes(out)


def _number(text: bytes) -> bytes:
    if not _NUMBER.fullmatch(text):
        raise _Unfit if len(text) >= _NUMBER_NAME_BYTES_MIN else _Broken
    return text


def _date(text: bytes) -> bytes:
    if len(text) < _DATE_BYTES_MIN:
        raise _Broken
    if not _DATE.fullmatch(text):
        raise _Unfit
    return text


def _drop_zone(text: bytes) -> bytes:
    out = _date(text)
    if not out.endswith(b"+00"):
        raise _Broken
    return out[:-3]


def _bool(text: bytes) -> bytes:
    if text not in (b"t", b"f"):
        raise _Broken
    return b"1" if text == b"t" else b"0"


def _bytes(text: bytes) -> bytes:
    if not re.fullmatch(rb"\\\\x(?:[0-9a-f]{2})*", text):
        raise _Broken
    data = bytes.fromhex(text[3:].decode())
    return b"".join(_ESCAPED.get(byte) or bytes((byte,)) for byte in data)


_WRITERS: dict[LineForm, Callable[[bytes], bytes]] = {
    LineForm.PLAIN: bytes,
    LineForm.TEXT: _text,
    LineForm.NUMBER: _number,
    LineForm.DATE: _date,
    LineForm.ZONED: _drop_zone,
    LineForm.BOOL: _bool,
    LineForm.BYTES: _bytes,
}

try:
    from penstock.codec.postgres._copytext import LoadLines as _Kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._copytext":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True


def make_load_lines(cells: Sequence[LineCell]) -> LineTranscoder:
    """Return the compiled LoadLines, or the twin when it is not built or PENSTOCK_PURE=1 forbids
    it.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _Kernel(cells)
    return LoadLines(cells)
