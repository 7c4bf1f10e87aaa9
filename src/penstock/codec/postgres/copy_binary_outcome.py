"""Forms, stops and the error of decoding a binary COPY, shared by the twin and the kernel.

Both report an error as (reason, row, column), and the exception is created here, so messages
cannot differ between them.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.model import PenstockError, Relation


class Form(IntEnum):
    """Binary form of a column's values, as the server's send functions write them. The kernel has
    the same numbers.

    Attributes:
        TEXT: text in UTF-8; also every type that the statement casts to text.
        JSONB: the version of the form, then text.
    """

    BOOL = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT32 = 5
    UINT64 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    NUMERIC = 9
    DATE = 10
    TIME = 11
    TIMESTAMP = 12
    TIMESTAMPTZ = 13
    UUID = 14
    BYTES = 15
    TEXT = 16
    JSONB = 17


class Stop(IntEnum):
    """Reason why `feed` returned. The kernel has the same numbers."""

    MORE = 0  # the rest of the block is not a whole frame of CopyData
    LIMIT = 1  # before a row, because enough rows or bytes are buffered
    UNFIT = 2  # before a row with a value that its neutral type cannot hold; see `unfit`


class Reason(IntEnum):
    """Defect of the bytes. The kernel has the same numbers."""

    HEADER = 1
    TRUNCATED = 2
    COLUMN_COUNT = 3
    LENGTH = 4
    VALUE = 5
    UTF8 = 6
    TRAILING = 7


_PHRASES: dict[Reason, str] = {
    Reason.HEADER: "the copy does not begin with the header of the binary format",
    Reason.TRUNCATED: "the row ends early",
    Reason.COLUMN_COUNT: "the row has another number of columns than its table",
    Reason.LENGTH: "a value has an impossible length",
    Reason.VALUE: "a malformed value",
    Reason.UTF8: "text that is not UTF-8",
    Reason.TRAILING: "bytes after the end of the copy",
}

# Neutral types (without their arguments) that values of a form are decoded to.
NEUTRALS: dict[Form, tuple[str, ...]] = {
    Form.BOOL: ("bool",),
    Form.INT16: ("int16",),
    Form.INT32: ("int32",),
    Form.INT64: ("int64",),
    Form.UINT32: ("uint32",),
    Form.UINT64: ("uint64",),
    Form.FLOAT32: ("float32",),
    Form.FLOAT64: ("float64",),
    Form.NUMERIC: ("decimal", "string"),
    Form.DATE: ("date", "string"),
    Form.TIME: ("time", "string"),
    Form.TIMESTAMP: ("timestamp", "string"),
    Form.TIMESTAMPTZ: ("timestamptz", "string"),
    Form.UUID: ("uuid",),
    Form.BYTES: ("binary",),
    Form.TEXT: ("string",),
    Form.JSONB: ("string",),
}
_FORMS: dict[int, Form] = {
    16: Form.BOOL,
    17: Form.BYTES,
    19: Form.TEXT,  # name
    20: Form.INT64,
    21: Form.INT16,
    23: Form.INT32,
    25: Form.TEXT,
    26: Form.UINT32,  # oid
    28: Form.UINT32,  # xid
    29: Form.UINT32,  # cid
    114: Form.TEXT,  # json
    700: Form.FLOAT32,
    701: Form.FLOAT64,
    1042: Form.TEXT,  # char(n): its own form has the blanks at the end, its cast to text has not
    1043: Form.TEXT,
    1082: Form.DATE,
    1083: Form.TIME,
    1114: Form.TIMESTAMP,
    1184: Form.TIMESTAMPTZ,
    1700: Form.NUMERIC,
    2950: Form.UUID,
    3802: Form.JSONB,
    5069: Form.UINT64,  # xid8
}


class BinaryCopyBroken(PenstockError):
    """A server sent bytes that are not rows of a binary COPY; nothing is skipped or guessed.

    Fields: table; row, counted from 1 within the copy; column, its name, if it is known; reason.
    Never holds values.
    """

    code = "DC72"
    retry = "backoff"


def is_decodable(form: Form, neutral: str) -> bool:
    """Return whether values of a form can be decoded to a neutral type."""
    return neutral.partition("(")[0] in NEUTRALS[form]


def find_form(type_oid: int, neutral: str) -> Form | None:
    """Return the form in which a type's values are read as a neutral type.

    Returns None if they can only be read as the text that the server prints.
    """
    form = _FORMS.get(type_oid)
    return form if form is not None and is_decodable(form, neutral) else None


def broken(reason: int, row: int, relation: Relation, column: int = -1) -> BinaryCopyBroken:
    """Return the error for a reason. row: from 1. column: index, negative if it is not known."""
    place = f"row {row} of a binary COPY of {relation.full_name}"
    fields: dict[str, object] = {
        "table": relation.full_name,
        "row": row,
        "reason": Reason(reason).name.lower(),
    }
    if column >= 0:
        shape = relation.columns[column]
        place += f", column {shape.name} ({shape.source_type} as {shape.neutral})"
        fields["column"] = shape.name
    return BinaryCopyBroken(
        f"{place}: {_PHRASES[Reason(reason)]}",
        hint="Check that nothing between penstock and the server changes the stream, then run "
        "`penstock doctor`.",
        **fields,
    )
