"""Format of the lines of text in which a bulk load moves rows.

Lines are those of COPY or of LOAD DATA. Most cells are only copied, and characters that would end a
cell or a line are escaped. The contents of a cell depend on the expressions that the source
selects, and on a form for each column: a `CellForm` if rows are the result of a SELECT, a
`LineForm` if they are lines of COPY. Not here: the walk over the bytes (each engine's), which
columns need which form (`penstock.sql.read_plan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

Block = bytes | bytearray | memoryview


class LineDialect(StrEnum):
    """Statement that reads the lines."""

    COPY = "copy"
    LOAD_DATA = "load data"


class CellForm(IntEnum):
    """Form of a cell's text and of its output. The kernel has the same numbers.

    Attributes:
        PLAIN: ASCII without anything to escape: numbers, times.
        UTF8: text.
        RAW: bytes of the server's that are written as they are, escaped.
        CHARSET: text of another character set, written as UTF-8.
        BYTES: bytes, for a bytea.
        DATE: begins with a date; COPY has no name for the year 0.
    """

    PLAIN = 1
    UTF8 = 2
    RAW = 3
    CHARSET = 4
    BYTES = 5
    DATE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCell:
    """Form of one column's output.

    Attributes:
        charset: of CellForm.CHARSET.
        zero_is_null: dates that no calendar has (0000-00-00, 2024-02-31) become NULL.
        remove_zero: zero characters of text are left out.
    """

    form: CellForm
    charset: str = ""
    zero_is_null: bool = False
    remove_zero: bool = False


class LineForm(IntEnum):
    """Form of a cell's text. The kernel has the same numbers.

    Attributes:
        PLAIN: nothing to change.
        TEXT: with escapes.
        NUMBER: digits, or a name that LOAD DATA does not know.
        DATE: a date, or a date and a time, without a zone.
        ZONED: the same in UTC.
        BOOL: t or f.
        BYTES: of a bytea.
    """

    PLAIN = 1
    TEXT = 2
    NUMBER = 3
    DATE = 4
    ZONED = 5
    BOOL = 6
    BYTES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCell:
    """Form of one column's output. With unfit_is_null, values outside LOAD DATA's range become
    NULL.
    """

    form: LineForm
    unfit_is_null: bool = False
