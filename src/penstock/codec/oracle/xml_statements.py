"""Read the statements by which LogMiner shows XML documents.

    XML DOC BEGIN:  select "C" from "O"."T" where "ID" = '1'
    update "O"."T" a set a."C" = XMLType(:1)  where a."ID" = '1'
    XML_REDO := '<a/>'
     amount: 4
    XML_REDO := HEXTORAW('3c612f3e'):4

A document is not put together: its column is refused (`types.REFUSED`), or absent. The begin tells
which row has another document. Follows the reference, section 8. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.codec.oracle.lob_statements import parse_condition
from penstock.codec.oracle.redo_outcome import Defect, Reason
from penstock.codec.oracle.statements import Statement, ValueKind, scan_statement

_SELECT = re.compile(rb'\s*XML DOC BEGIN:\s*select "([^"]+)" from (?=")')
_UPDATE = re.compile(rb"\s*update\s")
_WRITE = re.compile(
    rb"\s*XML_REDO := (?:'((?:[^']|'')*+)'\s*amount:\s*([0-9]{1,19})"
    rb"|HEXTORAW\('([0-9A-Fa-f]*)'?\):\s*([0-9]{1,19}))\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlBegin:
    """Begin of a document.

    Attributes:
        column: name of its column.
        statement: the row: owner, table, cells of the condition and row id.
    """

    column: str
    statement: Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlWrite:
    """A part of a document.

    Attributes:
        is_binary: whether the part is in the server's binary form.
        amount: characters or bytes, as the server says.
    """

    is_binary: bool
    amount: int


def parse_xml_statement(text: str) -> XmlBegin | XmlWrite:
    """Return what a statement says of a document. Raises Defect."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Defect(Reason.TEXT, 0) from error
    if match := _SELECT.match(data):
        statement, _ = parse_condition(data[match.end() :], match.end())
        return XmlBegin(column=match[1].decode(), statement=statement)
    if _UPDATE.match(data):
        statement = scan_statement(data)
        if len(statement.new) != 1 or statement.new[0].value.kind is not ValueKind.UNKNOWN:
            raise Defect(Reason.LOB, 0)
        return XmlBegin(column=statement.new[0].name.decode(), statement=statement)
    if match := _WRITE.fullmatch(data):
        is_binary = match[3] is not None
        return XmlWrite(is_binary=is_binary, amount=int(match[4] if is_binary else match[2]))
    raise Defect(Reason.LOB, 0)
