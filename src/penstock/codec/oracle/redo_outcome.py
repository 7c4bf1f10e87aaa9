"""Results of decoding SQL_REDO: the rows to decode, the stops and the errors.

Twin and kernel report an error as (reason, offset, column), and the exception is created here, so
messages cannot differ between them. Not here: the decoding (`sql_redo`, `_sql_redo.pyx`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from penstock.codec.errors import DecodeError

if TYPE_CHECKING:
    from penstock.model.relation import Relation

BYTE_LIMIT_DEFAULT = 256 * 2**20
"""Bytes of statements in one batch; far below the 2 GiB that 32-bit offsets reach."""
BYTE_LIMIT_MAX = 2**30
STATEMENT_BYTES_MAX = 2**30


class Stop(IntEnum):
    """Reason why `Decoder.decode` returned. Numbers as for pgoutput."""

    MORE = 0  # all rows that were given are decoded
    LIMIT = 1  # before a row, when enough rows or bytes are buffered
    WIDEN = 5  # before a row with a value that its neutral type cannot hold; see `widen`


class Reason(IntEnum):
    """Defect of a row. The kernel has the same numbers."""

    SYNTAX = 1
    EMPTY = 2
    UNSUPPORTED = 3
    DICTIONARY = 4
    TEMPORARY = 5
    UNLOGGED = 6
    BEFORE = 7
    COLUMN = 8
    TWICE = 9
    COUNT = 10
    NO_COLUMNS = 11
    VALUE = 12
    FORMAT = 13
    TEXT = 14
    TOO_LONG = 15
    UNBOUND = 16
    PIECES = 17
    LOB = 18
    IMAGE = 19
    UNTOLD = 20


class RedoRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of V$LOGMNR_CONTENTS with its whole statement.

    The garbage collector does not look at it, since millions of them wait for their commits.

    Attributes:
        table: number under which its table is bound (`Decoder.bind`).
        text: SQL_REDO, joined from its pieces (`pieces`).
        scn: SCN of the record.
        xid: transaction, in hexadecimal digits.
        rs_id: address of the redo record.
    """

    table: int
    text: str
    scn: int
    xid: str
    rs_id: str


class RedoBroken(DecodeError):
    """A row of LogMiner has a form or a value that penstock does not know; it is not skipped.

    `offset` is a byte of the statement in UTF-8. `fields` also has `reason`, `scn`, `xid`, `rs_id`,
    and `table` and `column` if known. It never holds row values.
    """

    code = "DC80"
    retry = "operator"


class RedoUnlogged(RedoBroken):
    """A row of LogMiner lacks the values that identify it: supplemental logging is missing."""

    code = "DC81"
    retry = "operator"


class RedoUnsupported(RedoBroken):
    """LogMiner does not support the row's table or the type of a column, and hides its values."""

    code = "DC82"
    retry = "operator"


class DictionaryMismatch(RedoBroken):
    """LogMiner decoded a row by a dictionary of another version of its table.

    The statement has columns `COL 1`, `COL 2` with values in the server's internal forms:
    `column_images.name_columns` reads it if the table's columns at that time are known.
    """

    code = "DC83"
    retry = "operator"


class SessionFormats(RedoBroken):
    """A date or time has another format than penstock's sessions set.

    With the server's default formats the time of day is lost, so the text is not guessed.
    """

    code = "DC84"
    retry = "operator"


_PHRASES: dict[Reason, str] = {
    Reason.SYNTAX: "statement of an unknown form",
    Reason.EMPTY: "row without a statement",
    Reason.UNSUPPORTED: "row that LogMiner does not support",
    Reason.DICTIONARY: "row that LogMiner could not decode by its dictionary",
    Reason.TEMPORARY: "row of a temporary table",
    Reason.UNLOGGED: "update or delete without a WHERE clause",
    Reason.BEFORE: "row without the values that identify it",
    Reason.COLUMN: "column that the table does not have",
    Reason.TWICE: "column that occurs twice",
    Reason.COUNT: "insert with another number of values than columns",
    Reason.NO_COLUMNS: "insert without a list of columns, as of a table of objects or XML",
    Reason.VALUE: "malformed value",
    Reason.FORMAT: "date or time in another format than that of the session",
    Reason.TEXT: "text that is not valid Unicode",
    Reason.TOO_LONG: "statement that is too long to keep",
    Reason.UNBOUND: "row of a table that was not announced",
    Reason.PIECES: "statement whose pieces do not follow each other",
    Reason.LOB: "statement for a large object of an unknown form",
    Reason.IMAGE: "value of an unknown internal form",
    Reason.UNTOLD: "value that LogMiner does not show",
}
_LOGGING_HINT = (
    "Run `ALTER TABLE OWNER.TABLE ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS`, then load the table "
    "again: the row cannot be recovered from the log."
)
_SUPPORT_HINT = (
    "Run `penstock table remove FILE OWNER.TABLE` to continue without the table. To follow it "
    "again, give the column another type, then run `penstock table add FILE OWNER.TABLE`."
)
_HINT = (
    "Report the reason with the version of the server. Select the row from V$LOGMNR_CONTENTS by "
    "SCN, XID and RS_ID to see the statement."
)
_CLASSES: dict[Reason, tuple[type[RedoBroken], str]] = {
    Reason.UNLOGGED: (RedoUnlogged, _LOGGING_HINT),
    Reason.BEFORE: (RedoUnlogged, _LOGGING_HINT),
    Reason.UNSUPPORTED: (RedoUnsupported, _SUPPORT_HINT),
    Reason.TEMPORARY: (RedoUnsupported, _SUPPORT_HINT),
    Reason.UNTOLD: (RedoUnsupported, _SUPPORT_HINT),
    Reason.NO_COLUMNS: (RedoUnsupported, _SUPPORT_HINT),
    Reason.DICTIONARY: (
        DictionaryMismatch,
        "The table was altered after this row was written and before it was read. Load the table "
        "again, and let the source read up to an ALTER TABLE before you run it.",
    ),
    Reason.FORMAT: (
        SessionFormats,
        "Report this with the version of the server: penstock sets NLS_DATE_FORMAT, "
        "NLS_TIMESTAMP_FORMAT and NLS_TIMESTAMP_TZ_FORMAT in each session that reads the log. "
        "Look for a logon trigger that changes them.",
    ),
}


def redo_error(
    reason: int,
    offset: int,
    row: RedoRow,
    *,
    relation: Relation | None = None,
    column: int = -1,
    name: str = "",
) -> RedoBroken:
    """Return the error for a reason.

    Args:
        reason: a Reason.
        offset: byte of the statement.
        row: the row of LogMiner.
        relation: its table, if known.
        column: index of the column in the relation; below 0 for none.
        name: name of the column if the relation does not have it.
    """
    place = ""
    fields: dict[str, object] = {"offset": offset, "reason": Reason(reason).name.lower()}
    if relation is not None:
        place = f" in {relation.full_name}"
        fields["table"] = relation.full_name
        if column >= 0:
            shape = relation.columns[column]
            place += f" column {shape.name} ({shape.source_type} as {shape.neutral})"
            fields["column"] = shape.name
    if name:
        place += f" column {name}"
        fields["column"] = name
    kind, hint = _CLASSES.get(Reason(reason), (RedoBroken, _HINT))
    return kind(
        f"{_PHRASES[Reason(reason)]}{place} at byte {offset} of the statement, SCN {row.scn}, "
        f"XID {row.xid}, RS_ID {row.rs_id.strip()}",
        hint=hint,
        scn=row.scn,
        xid=row.xid,
        rs_id=row.rs_id,
        **fields,
    )


class Defect(ValueError):
    """A defect at a place of a statement; the caller knows the row.

    Attributes:
        reason: a Reason.
        offset: byte of the statement in UTF-8.
        column: index of the column in the relation; -1 for none.
    """

    def __init__(self, reason: Reason, offset: int, column: int = -1) -> None:
        super().__init__(reason, offset, column)
        self.reason, self.offset, self.column = reason, offset, column
