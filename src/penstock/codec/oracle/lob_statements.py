"""Read the statements by which LogMiner shows writes to large objects.

There are two layouts. Up to 21c a row of SEL_LOB_LOCATOR names the column, and rows that follow
have the data; from 23ai each row is a whole block of PL/SQL with its own SELECT:

    DECLARE .. BEGIN
     select "C" into loc_c from "O"."T" where "ID" = '2' for update;

     buf_c := 'text';
      dbms_lob.write(loc_c, 4, 1, buf_c);
      dbms_lob.trim(loc_c, 4);
     e_len := 2;
      dbms_lob.erase(loc_b, e_len, 1);
    END;

Locators: `loc_c` CLOB, `loc_nc` NCLOB, `loc_b` BLOB. Offsets count from 1: characters of a CLOB or
NCLOB, bytes of a BLOB. An extended VARCHAR2 begins with a block whose statement is a text. Follows
the reference, sections 8 and 1b.16. Not here: which writes make a whole value. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.codec.oracle.literals import read_hex, read_unistr, unquote
from penstock.codec.oracle.redo_outcome import Defect, Reason
from penstock.codec.oracle.statements import (
    DELETE,
    Statement,
    Value,
    ValueKind,
    scan_statement,
    scan_value,
    unistr_texts,
)
from penstock.codec.oracle.values import Malformed, NotUnicode

_OPENING = re.compile(
    rb"\s*(?:DECLARE(?:\s+[a-z_]+\s+[A-Z0-9_]+(?:\([0-9]+\))?\s*;)*+\s*BEGIN)?\s*"
    rb'(?:select "([^"]+)" into (loc_c|loc_nc|loc_b) from (?="))?'
)
_FOR_UPDATE = re.compile(rb"\s*for update\s*;\s*")
_BUFFER = re.compile(rb"(buf_c|buf_nc|buf_b)\s*:=\s*")
_AFTER_BUFFER = re.compile(rb"\s*;\s*")
_WRITE = re.compile(
    rb"dbms_lob\.write\(\s*(loc_c|loc_nc|loc_b)\s*,\s*([0-9]{1,19})\s*,\s*([0-9]{1,19})\s*,"
    rb"\s*(buf_c|buf_nc|buf_b)\s*\)\s*;\s*"
)
_TRIM = re.compile(rb"dbms_lob\.trim\(\s*(loc_c|loc_nc|loc_b)\s*,\s*([0-9]{1,19})\s*\)\s*;\s*")
_ERASE = re.compile(
    rb"e_len\s*:=\s*([0-9]{1,19})\s*;\s*"
    rb"dbms_lob\.erase\(\s*(loc_c|loc_nc|loc_b)\s*,\s*e_len\s*,\s*([0-9]{1,19})\s*\)\s*;\s*"
)
_CLOSING = re.compile(rb"(?:END\s*;\s*)?")
_LONG_STRING = re.compile(
    rb"\s*DECLARE(?:\s+[A-Za-z_]+\s+[A-Z0-9_]+(?:\([0-9]+\))?\s*;)+\s*BEGIN\s*"
    rb"DBMS_LOB\.CreateTemporary\(TempLob, FALSE\);\s*Stmt := (?=')"
)
# A recorded statement ends with a quote that none opens.
_STRING_CLOSING = re.compile(rb"\s*;[';\s]*")
_BOUND = re.compile(rb'\s*update "[^"]+"\."[^"]+" a set a\."([^"]+)" = :("?[^"\s]+"?)(?= where )')


@dataclass(frozen=True, slots=True, kw_only=True)
class LobSelect:
    """Column and row that the statements with a locator write to.

    Attributes:
        column: name of the column.
        locator: `loc_c`, `loc_nc` or `loc_b`.
        statement: the condition as that of a delete: owner, table, cells and row id.
        condition: text of the WHERE clause without its word.
    """

    column: str
    locator: str
    statement: Statement
    condition: str

    @property
    def is_generic(self) -> bool:
        """Return whether the row's columns are named `COL n`, as those of an older version."""
        return any(cell.name.startswith(b"COL ") for cell in self.statement.old)

    def update_text(self, value: str) -> str:
        """Return an update that sets the column, which `sql_redo.Decoder` reads.

        Args:
            value: literal of the new value, see `text_literal` and `bytes_literal`.
        """
        owner, table = self.statement.owner.decode(), self.statement.table.decode()
        return f'update "{owner}"."{table}" set "{self.column}" = {value} where {self.condition}'


@dataclass(frozen=True, slots=True, kw_only=True)
class LobWrite:
    """A write of a piece.

    Attributes:
        select: column and row; None in the layout in which an earlier row has them.
        locator: as in LobSelect.
        data: text of a CLOB or NCLOB, bytes of a BLOB. Text may be bytes in the database's
            character set, of a CLOB whose data is HEXTORAW.
        amount: characters or bytes.
        offset: place of the first one, from 1.
    """

    select: LobSelect | None
    locator: str
    data: str | bytes
    amount: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LobTrim:
    """A cut of the value to a length.

    Attributes:
        select: as in LobWrite.
        locator: as in LobSelect.
        length: characters or bytes that remain.
    """

    select: LobSelect | None
    locator: str
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LobErase:
    """An erasure of a part, after which the value is unknown.

    Attributes:
        select: as in LobWrite.
        locator: as in LobSelect.
        amount: characters or bytes.
        offset: place of the first one, from 1.
    """

    select: LobSelect | None
    locator: str
    amount: int
    offset: int


LobStatement = LobSelect | LobWrite | LobTrim | LobErase


def parse_lob_statement(text: str) -> LobStatement:
    """Return the one action of a statement; LobSelect if it has none. Raises Defect."""
    data = _encode(text)
    match = _OPENING.match(data)
    assert match is not None, "every part of it is optional"
    at = match.end()
    select = None
    if match[1] is not None:
        select, at = _parse_select(data, at, match[1].decode(), match[2].decode())
    if select is not None and at == len(data):
        return select
    action, at = _parse_action(data, at, select)
    if select is not None and select.locator != action.locator:
        raise Defect(Reason.LOB, at)
    match = _CLOSING.match(data, at)
    if match is None or match.end() != len(data):
        raise Defect(Reason.LOB, at)
    return action


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Defect(Reason.TEXT, 0) from error


def _parse_select(data: bytes, at: int, column: str, locator: str) -> tuple[LobSelect, int]:
    """Return the column and row of a SELECT, and the offset after it. at: that of the table."""
    end = _find_outside_quotes(data, at, _FOR_UPDATE)
    if end is None:
        raise Defect(Reason.LOB, at)
    before, after = end
    statement, condition = parse_condition(data[at:before], at)
    select = LobSelect(
        column=column, locator=locator, statement=statement, condition=condition.decode()
    )
    return select, after


_QUOTED = re.compile(rb"""'[^']*+'|"[^"]*+\"""")


def _find_outside_quotes(
    data: bytes, at: int, pattern: re.Pattern[bytes]
) -> tuple[int, int] | None:
    """Return begin and end of a pattern's first match that is not inside quotes."""
    while at < len(data):
        quoted = _QUOTED.search(data, at)
        match = pattern.search(data, at, quoted.start() if quoted is not None else len(data))
        if match is not None:
            return match.span()
        if quoted is None:
            return None
        at = quoted.end()
    return None


def parse_condition(table_and_where: bytes, offset: int) -> tuple[Statement, bytes]:
    """Return a table and condition as a delete, and the condition's text.

    Args:
        table_and_where: `"O"."T" where ..`.
        offset: of these in the whole statement, for errors.
    """
    prefix = b"delete from "
    text = prefix + table_and_where
    try:
        statement = scan_statement(text)
    except Defect as defect:
        raise Defect(defect.reason, max(0, defect.offset - len(prefix)) + offset) from defect
    assert statement.op == DELETE, "the prefix says so"
    return statement, text[statement.where :].rstrip(b"; \t\r\n")


def _parse_action(
    data: bytes, at: int, select: LobSelect | None
) -> tuple[LobWrite | LobTrim | LobErase, int]:
    """Return the action at an offset, and the offset after it."""
    if match := _BUFFER.match(data, at):
        return _parse_write(data, match, select)
    if match := _TRIM.match(data, at):
        trim = LobTrim(select=select, locator=match[1].decode(), length=int(match[2]))
        return trim, match.end()
    if match := _ERASE.match(data, at):
        erase = LobErase(
            select=select, locator=match[2].decode(), amount=int(match[1]), offset=int(match[3])
        )
        return erase, match.end()
    raise Defect(Reason.LOB, at)


def _parse_write(
    data: bytes, opening: re.Match[bytes], select: LobSelect | None
) -> tuple[LobWrite, int]:
    value = scan_value(data, opening.end())
    separator = _AFTER_BUFFER.match(data, value.end)
    match = _WRITE.match(data, separator.end()) if separator is not None else None
    if match is None or match[4] != opening[1] or match[1][4:] != match[4][4:]:
        raise Defect(Reason.LOB, value.end)
    is_bytes = match[1] == b"loc_b"
    written = _read_data(data, value, is_bytes=is_bytes)
    write = LobWrite(
        select=select,
        locator=match[1].decode(),
        data=written,
        amount=int(match[2]),
        offset=int(match[3]),
    )
    is_encoded = isinstance(written, bytes) and not is_bytes  # its characters are not counted
    if not write.offset or (len(written) != write.amount and not is_encoded):
        raise Defect(Reason.LOB, value.start)
    return write, match.end()


def _read_data(data: bytes, value: Value, *, is_bytes: bool) -> str | bytes:
    text = data[value.first : value.last]
    try:
        if value.kind is ValueKind.HEX:
            return read_hex(text)
        if value.kind is ValueKind.QUOTED and not is_bytes:
            return unquote(text).decode()
        if value.kind is ValueKind.UNISTR and not is_bytes:
            return read_unistr(unistr_texts(data, value))
    except Malformed as error:
        raise Defect(Reason.VALUE, value.start) from error
    except NotUnicode as error:
        raise Defect(Reason.TEXT, value.start) from error
    raise Defect(Reason.LOB, value.start)


def parse_long_string(text: str) -> LobSelect:
    """Return the column and row of the begin of an extended VARCHAR2, NVARCHAR2 or RAW.

    Rows of unknown form with the value follow it. Raises Defect.
    """
    data = _encode(text)
    opening = _LONG_STRING.match(data)
    if opening is None:
        raise Defect(Reason.LOB, 0)
    value = scan_value(data, opening.end())
    inner = unquote(data[value.first : value.last])
    bound = _BOUND.match(inner)
    if bound is None or not _STRING_CLOSING.fullmatch(data, value.end):
        raise Defect(Reason.LOB, value.start)
    target = inner[inner.index(b'"') :].partition(b" a set ")[0]
    statement, condition = parse_condition(target + b" a" + inner[bound.end() :], value.start)
    return LobSelect(
        column=bound[1].decode(), locator="loc_c", statement=statement, condition=condition.decode()
    )


def text_literal(text: str) -> str:
    """Return the literal of a text that is the value of a CLOB or NCLOB."""
    return "'" + text.replace("'", "''") + "'" if text else "EMPTY_CLOB()"


def bytes_literal(data: bytes) -> str:
    """Return the literal of bytes that are the value of a BLOB."""
    return f"HEXTORAW('{data.hex()}')" if data else "EMPTY_BLOB()"
