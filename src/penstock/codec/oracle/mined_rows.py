"""Operations of V$LOGMNR_CONTENTS, and what a row of each is for a reader of the log. Pure.

The codes are those of OPERATION_CODE; the text in OPERATION may differ (a direct-path insert is
`DIRECT INSERT` with code 1), so it is not used. Follows the reference, sections 5, 8 and 9.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from penstock.codec.oracle.redo_outcome import Reason


class Operation(IntEnum):
    """OPERATION_CODE of a row."""

    INTERNAL = 0
    INSERT = 1
    DELETE = 2
    UPDATE = 3
    DDL = 5
    START = 6
    COMMIT = 7
    SEL_LOB_LOCATOR = 9
    LOB_WRITE = 10
    LOB_TRIM = 11
    SELECT_FOR_UPDATE = 25
    REPLICATION_MARKER = 27
    LOB_ERASE = 28
    LOB_ERASE_OBSERVED = 29
    MISSING_SCN = 34
    ROLLBACK = 36
    XML_BEGIN = 68
    XML_WRITE = 70
    XML_END = 71
    LONG_STRING_BEGIN = 91
    LONG_STRING_WRITE = 92
    LONG_STRING_END = 93
    UNSUPPORTED = 255


class RowKind(Enum):
    """Use of a row for a reader of the log."""

    BEGIN = "the transaction begins"
    COMMIT = "the transaction is committed"
    ROLLBACK = "the transaction is rolled back"
    CHANGE = "an insert, update or delete, for `sql_redo.Decoder`"
    UNDO = "the undoing of an earlier row of the transaction"
    DDL = "a statement of a user that alters the schema"
    LOB = "a part of a large object, for `lob_statements`"
    XML = "a part of an XML document, for `xml_statements`"
    LONG_STRING = "a part of an extended VARCHAR2, for `lob_statements`"
    UNREADABLE = "a change that cannot be read; `unreadable_reason` says why"
    GAP = "a part of the log that LogMiner could not read"
    PASSED = "nothing that is captured"
    UNKNOWN = "an operation that penstock does not know"


_PLAIN: dict[int, RowKind] = {
    Operation.INTERNAL: RowKind.PASSED,
    Operation.START: RowKind.BEGIN,
    Operation.COMMIT: RowKind.COMMIT,
    Operation.SELECT_FOR_UPDATE: RowKind.PASSED,
    Operation.REPLICATION_MARKER: RowKind.PASSED,
    Operation.MISSING_SCN: RowKind.GAP,
    Operation.ROLLBACK: RowKind.ROLLBACK,
    Operation.SEL_LOB_LOCATOR: RowKind.LOB,
    Operation.LOB_WRITE: RowKind.LOB,
    Operation.LOB_TRIM: RowKind.LOB,
    Operation.LOB_ERASE: RowKind.LOB,
    Operation.LOB_ERASE_OBSERVED: RowKind.LOB,
    Operation.XML_BEGIN: RowKind.XML,
    Operation.XML_WRITE: RowKind.XML,
    Operation.XML_END: RowKind.XML,
    Operation.LONG_STRING_BEGIN: RowKind.LONG_STRING,
    Operation.LONG_STRING_WRITE: RowKind.LONG_STRING,
    Operation.LONG_STRING_END: RowKind.LONG_STRING,
    Operation.UNSUPPORTED: RowKind.UNREADABLE,
}
_CHANGES = frozenset((Operation.INSERT, Operation.UPDATE, Operation.DELETE))
_TEMPORARY = "/* No SQL_REDO for temporary tables */"
_MISMATCH = "Dictionary"
_CORRUPT_STATUS = 1343
_NOT_LOGGED_STATUS = 3
_USER_DDL = "USER DDL"


def row_kind(
    operation: int, *, is_undo: bool, status: int, info: str | None, text: str | None
) -> RowKind:
    """Return what a row is.

    Args:
        operation: OPERATION_CODE.
        is_undo: whether ROLLBACK is 1.
        status: STATUS.
        info: INFO.
        text: SQL_REDO, at least its first piece.
    """
    if status == _CORRUPT_STATUS:
        return RowKind.GAP
    if operation == Operation.DDL:
        return RowKind.DDL if (info or "").startswith(_USER_DDL) else RowKind.PASSED
    if operation in _CHANGES:
        if is_undo:
            return RowKind.UNDO
        if not text or text.startswith(_TEMPORARY):
            return RowKind.PASSED
        if unreadable_reason(status=status, info=info) is not None:
            return RowKind.UNREADABLE
        return RowKind.CHANGE
    if operation == Operation.SEL_LOB_LOCATOR and not text:
        return RowKind.PASSED
    return _PLAIN.get(operation, RowKind.UNKNOWN)


def unreadable_reason(*, status: int, info: str | None) -> Reason | None:
    """Return why a change cannot be read by its statement; None if its statement may be read.

    STATUS 2 without INFO is usual for tables with a LONG, whose statements can be read.
    """
    if (info or "").startswith(_MISMATCH):
        return Reason.DICTIONARY
    if status == _NOT_LOGGED_STATUS:
        return Reason.UNLOGGED
    if status and "nsupported" in (info or ""):
        return Reason.UNSUPPORTED
    return None
