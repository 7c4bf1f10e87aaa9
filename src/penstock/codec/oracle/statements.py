r"""Scan SQL_REDO: one walk from left to right that knows quotes, without reading the values.

    insert into "S"."T"("A","B") values (v,v)
    update "S"."T" set "A" = v, "B" = v where "A" = v and "B" IS NULL and ROWID = 'AAAV9c..'
    delete from "S"."T" where "A" = v

Blanks and line ends may be between any two tokens. Tables may have the alias `a`, and statements
end with a semicolon; both depend on the server's options. A value is one of:

    'it''s'  NULL  7  1.79E+100  HEXTORAW('0aff')  EMPTY_CLOB()  EMPTY_BLOB()
    UNISTR('\00E9') || UNISTR('t')  TO_DATE('..', 'mask')  TO_TIMESTAMP('..')
    TO_TIMESTAMP_TZ('..')  TO_YMINTERVAL('..')  TO_DSINTERVAL('..')
    LM_EMPTY_STRING  Unsupported Type  XMLType(:1)  /* JSON */ v

The last line has the values that the statement does not tell; whether a column may have one depends
on its type (`sql_redo`). The specification of the kernel's scan; offsets are bytes of the statement
in UTF-8. Follows the reference, sections 6 and 1a O6. Not here: the values (`literals`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from penstock.codec.oracle.redo_outcome import Defect, Reason

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")


class ValueKind(IntEnum):
    """Form of a value. The kernel has the same numbers."""

    NULL = 1
    QUOTED = 2
    NUMBER = 3
    UNISTR = 4
    DATE = 5
    TIMESTAMP = 6
    ZONED = 7
    MONTHS = 8
    SECONDS = 9
    HEX = 10
    EMPTY_CLOB = 11
    EMPTY_BLOB = 12
    UNKNOWN = 13  # the statement does not tell the value
    UNSUPPORTED = 14  # the server does not show it


UNTOLD = frozenset((ValueKind.UNKNOWN, ValueKind.UNSUPPORTED))
"""Forms of values that are not in the statement."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """A value's place in the statement.

    Attributes:
        kind: its form.
        start: of the whole value, UNISTR chain included.
        end: of the whole value.
        first: of the text inside the quotes, or of a number; that of the first UNISTR of a chain.
        last: end of that text.
        mask: format, the second argument of TO_DATE and its like; None without one.
    """

    kind: ValueKind
    start: int
    end: int
    first: int = 0
    last: int = 0
    mask: bytes | None = None


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A column's name, its offset, and its value."""

    name: bytes
    offset: int
    value: Value


@dataclass(slots=True)
class Statement:
    """A statement's parts.

    Attributes:
        op: ASCII I, U or D.
        owner: schema of the table.
        table: its name.
        new: columns of an insert, or of SET.
        old: columns of WHERE, without ROWID.
        row_id: that of WHERE; empty without one.
        where: offset of the first condition; -1 without a WHERE clause.
    """

    op: int
    owner: bytes = b""
    table: bytes = b""
    new: list[Cell] = field(default_factory=list)
    old: list[Cell] = field(default_factory=list)
    row_id: bytes = b""
    where: int = -1


_SPACE = re.compile(rb"[ \t\r\n]*")
_WORD_END = frozenset(b" \t\r\n")
# Signs and words with the blanks around them: one match in place of several calls.
_NAME_IN_LIST = re.compile(rb'(?:a\.)?"([^"]+)"[ \t\r\n]*(,[ \t\r\n]*)?')
_NAME_OF_VALUE = re.compile(rb'(?:a\.)?"([^"]+)"[ \t\r\n]*(=[ \t\r\n]*)?')
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_AND = re.compile(rb"[ \t\r\n]*and[ \t\r\n]+")
_TABLE = re.compile(rb'"([^"]+)"\."([^"]+)"')
# Possessive: a text whose last quote is missing is not a shorter text.
_STRING = re.compile(rb"'([^']*+(?:''[^']*+)*+)'")
_ARGUMENT = re.compile(rb"[ \t\r\n]*'([^']*+(?:''[^']*+)*+)'[ \t\r\n]*")
_BARE_NUMBER = re.compile(rb"[-.0-9][-+.E0-9]*")
_OPENING = re.compile(rb"([A-Z_]+)\(")
_FUNCTIONS = {
    b"UNISTR": ValueKind.UNISTR,
    b"TO_DATE": ValueKind.DATE,
    b"TO_TIMESTAMP": ValueKind.TIMESTAMP,
    b"TO_TIMESTAMP_TZ": ValueKind.ZONED,
    b"TO_YMINTERVAL": ValueKind.MONTHS,
    b"TO_DSINTERVAL": ValueKind.SECONDS,
    b"HEXTORAW": ValueKind.HEX,
}
# Members by names of their own: to find one in its class takes longer than a match.
_QUOTED, _NUMBER, _UNISTR = ValueKind.QUOTED, ValueKind.NUMBER, ValueKind.UNISTR
_FUNCTION_LEADS = frozenset((b"T", b"U", b"H"))
_MASKED = frozenset((ValueKind.DATE, ValueKind.TIMESTAMP, ValueKind.ZONED))
_WORDS = (
    (b"NULL", ValueKind.NULL),
    (b"EMPTY_CLOB()", ValueKind.EMPTY_CLOB),
    (b"EMPTY_BLOB()", ValueKind.EMPTY_BLOB),
    (b"LM_EMPTY_STRING", ValueKind.UNKNOWN),
    (b"Unsupported Type", ValueKind.UNSUPPORTED),
    (b"XMLType(:1)", ValueKind.UNKNOWN),
)
_JSON = b"/* JSON */"
_NOT_STATEMENTS = (
    (b"Dictionary Version Mismatch", Reason.DICTIONARY),
    (b"/* No SQL_REDO for temporary tables */", Reason.TEMPORARY),
)
_UNSUPPORTED = b"Unsupported"
_ROW_IDS = (b"ROWID", b"a.ROWID")


def scan_statement(text: bytes) -> Statement:
    """Return the parts of a statement. Raises Defect."""
    at = skip_space(text, 0)
    if at == len(text):
        raise Defect(Reason.EMPTY, at)
    if text.startswith(b"insert into", at):
        return _scan_insert(text, _word(text, at, b"insert into"))
    if text.startswith(b"update", at):
        return _scan_update(text, _word(text, at, b"update"))
    if text.startswith(b"delete from", at):
        statement = Statement(DELETE)
        at = _scan_table(text, _word(text, at, b"delete from"), statement)
        _scan_where(text, _skip_alias(text, at), statement)
        return statement
    for words, reason in _NOT_STATEMENTS:
        if text.startswith(words, at):
            raise Defect(reason, at)
    if text.startswith(_UNSUPPORTED, at) and skip_space(text, at + len(_UNSUPPORTED)) == len(text):
        raise Defect(Reason.UNSUPPORTED, at)
    raise Defect(Reason.SYNTAX, at)


def skip_space(text: bytes, at: int) -> int:
    """Return the offset of the first byte from `at` that is not a blank."""
    if at >= len(text) or text[at] not in _WORD_END:
        return at  # which is faster than the pattern
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _word(text: bytes, at: int, word: bytes) -> int:
    """Return the offset after a word that a blank must follow."""
    end = at + len(word)
    if not text.startswith(word, at) or end == len(text) or text[end] not in _WORD_END:
        raise Defect(Reason.SYNTAX, at)
    return skip_space(text, end)


def _sign(text: bytes, at: int, sign: bytes) -> int:
    """Return the offset after a sign, and after the blanks that follow it."""
    if not text.startswith(sign, at):
        raise Defect(Reason.SYNTAX, at)
    return skip_space(text, at + len(sign))


def _scan_table(text: bytes, at: int, statement: Statement) -> int:
    match = _TABLE.match(text, at)
    if match is None:
        raise Defect(Reason.SYNTAX, at)
    statement.owner, statement.table = match.groups()
    return skip_space(text, match.end())


def _skip_alias(text: bytes, at: int) -> int:
    if text.startswith(b"a", at) and at + 1 < len(text) and text[at + 1] in _WORD_END:
        return skip_space(text, at + 1)
    return at


def _scan_name_of_value(text: bytes, at: int) -> tuple[bytes, int, bool]:
    """Return a column's name, the offset of what follows, and whether that is its value."""
    match = _NAME_OF_VALUE.match(text, at)
    if match is None:
        raise Defect(Reason.SYNTAX, at)
    return match[1], match.end(), match[2] is not None


def _scan_insert(text: bytes, at: int) -> Statement:
    statement = Statement(INSERT)
    at = _skip_alias(text, _scan_table(text, at, statement))
    if text.startswith(b"values", at):
        raise Defect(Reason.NO_COLUMNS, at)
    at = _sign(text, at, b"(")
    names: list[tuple[bytes, int]] = []
    has_next = True
    while has_next:
        match = _NAME_IN_LIST.match(text, at)
        if match is None:
            raise Defect(Reason.SYNTAX, at)
        names.append((match[1], at))
        at, has_next = match.end(), match[2] is not None
    at = _sign(text, at, b")")
    at = _sign(text, at, b"values")
    at = _sign(text, at, b"(")
    comma = None
    for name, offset in names:
        if statement.new and comma is None:
            raise Defect(Reason.COUNT if text.startswith(b")", at) else Reason.SYNTAX, at)
        value = scan_value(text, at)
        statement.new.append(Cell(name, offset, value))
        comma = _COMMA.match(text, value.end)
        at = skip_space(text, value.end) if comma is None else comma.end()
    if comma is not None:
        raise Defect(Reason.COUNT, skip_space(text, comma.start()))
    _end(text, _sign(text, at, b")"))
    return statement


def _scan_update(text: bytes, at: int) -> Statement:
    statement = Statement(UPDATE)
    at = _skip_alias(text, _scan_table(text, at, statement))
    at = _word(text, at, b"set")
    comma = None
    while not statement.new or comma is not None:
        name, start, has_value = _scan_name_of_value(text, at)
        if not has_value:
            raise Defect(Reason.SYNTAX, start)
        value = scan_value(text, start)
        statement.new.append(Cell(name, at, value))
        comma = _COMMA.match(text, value.end)
        at = skip_space(text, value.end) if comma is None else comma.end()
    _scan_where(text, at, statement)
    return statement


def _scan_where(text: bytes, at: int, statement: Statement) -> None:
    if at == len(text) or text.startswith(b";", at):
        _end(text, at)
        raise Defect(Reason.UNLOGGED, at)
    at = _word(text, at, b"where")
    statement.where = at
    link = None
    while at == statement.where or link is not None:
        end = _scan_condition(text, at, statement)
        link = _AND.match(text, end)
        at = skip_space(text, end) if link is None else link.end()
    _end(text, at)


def _scan_condition(text: bytes, at: int, statement: Statement) -> int:
    """Add a condition to a statement; return its end."""
    if text.startswith(_ROW_IDS, at):
        at += len(_ROW_IDS[text.startswith(_ROW_IDS[1], at)])
        at = _sign(text, skip_space(text, at), b"=")
        match = _STRING.match(text, at)
        if match is None:
            raise Defect(Reason.SYNTAX, at)
        statement.row_id = match[1]
        return match.end()
    name, start, has_value = _scan_name_of_value(text, at)
    if has_value:
        value = scan_value(text, start)
    elif text.startswith(b"IS NULL", start):
        value = Value(ValueKind.NULL, start, start + 7)
    elif text.startswith(b"IS NOT NULL", start):
        value = Value(ValueKind.UNKNOWN, start, start + 11)
    else:
        raise Defect(Reason.SYNTAX, start)
    statement.old.append(Cell(name, at, value))
    return value.end


def _end(text: bytes, at: int) -> None:
    if text.startswith(b";", at):
        at = skip_space(text, at + 1)
    if at != len(text):
        raise Defect(Reason.SYNTAX, at)


def scan_value(text: bytes, at: int) -> Value:
    """Return the place and form of the value at an offset. Raises Defect."""
    lead = text[at : at + 1]
    if lead == b"'":
        match = _STRING.match(text, at)
        if match is None:
            raise Defect(Reason.SYNTAX, at)
        return Value(_QUOTED, at, match.end(), *match.span(1))
    if lead in _FUNCTION_LEADS:
        match = _OPENING.match(text, at)
        kind = _FUNCTIONS.get(match[1]) if match is not None else None
        if match is not None and kind is not None:
            return _scan_function(text, at, match.end(), kind)
    match = _BARE_NUMBER.match(text, at)
    if match is not None:
        return Value(_NUMBER, at, match.end(), *match.span())
    for word, kind in _WORDS:
        if text.startswith(word, at):
            return Value(kind, at, at + len(word))
    if text.startswith(_JSON, at):
        inner = skip_space(text, at + len(_JSON))
        if text.startswith(b"/", inner):
            raise Defect(Reason.SYNTAX, inner)
        return Value(ValueKind.UNKNOWN, at, scan_value(text, inner).end)
    raise Defect(Reason.SYNTAX, at)


def _scan_function(text: bytes, start: int, at: int, kind: ValueKind) -> Value:
    """Return the value of a function's call. at: offset after the parenthesis."""
    first, last, at = _scan_argument(text, at)
    mask = None
    if kind in _MASKED and text.startswith(b",", at):
        mask_first, mask_last, at = _scan_argument(text, skip_space(text, at + 1))
        mask = text[mask_first:mask_last]
    if not text.startswith(b")", at):
        raise Defect(Reason.SYNTAX, at)
    end = at + 1
    while kind is _UNISTR:
        at = skip_space(text, end)
        if not text.startswith(b"||", at):
            break
        at = _sign(text, skip_space(text, at + 2), b"UNISTR(")
        _, _, at = _scan_argument(text, at)
        if not text.startswith(b")", at):
            raise Defect(Reason.SYNTAX, at)
        end = at + 1
    return Value(kind, start, end, first, last, mask)


def _scan_argument(text: bytes, at: int) -> tuple[int, int, int]:
    """Return begin and end of a quoted text, and the offset of what follows it."""
    match = _ARGUMENT.match(text, at)
    if match is None:
        raise Defect(Reason.SYNTAX, skip_space(text, at))
    first, last = match.span(1)
    return first, last, match.end()


def unistr_texts(text: bytes, value: Value) -> list[bytes]:
    """Return the texts inside the quotes of a chain of UNISTR."""
    return [match[1] for match in _STRING.finditer(text, value.start, value.end)]
