"""SQL_REDO read for tests, from the reference alone: neither the model nor the codec is used."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

DOUBLED = "\x02"  # a defect writes it for a doubled quote
_CALL = re.compile(r"[A-Z_]+(?= ?\()")
_WRITE = re.compile(r"dbms_lob\.write\(\w+, (\d+), (\d+), buf_\w+\);")
_TRIM = re.compile(r"dbms_lob\.trim\(\w+, (\d+)\);")
_SELECT = re.compile(r'select "((?:[^"])+)" into')


class Statement(NamedTuple):
    """A parsed statement.

    Attributes:
        kind: insert, update or delete.
        new: Values that it sets, as tokens.
        old: Values of its condition, as tokens.
        row_id: Row id of its condition; None without one.
    """

    kind: str
    table: str
    new: dict[str, Any]
    old: dict[str, Any]
    row_id: str | None


class Scanner:
    """A scan of a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self, *words: str) -> str | None:
        """Skip blanks and one of some words; return it."""
        while self.text[self.at : self.at + 1] in (" ", "\n"):
            self.at += 1
        for word in words:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return word
        return None

    def expect(self, *words: str) -> str:
        """Skip one of some words; raises ValueError without one."""
        found = self.skip(*words)
        if found is None:
            raise ValueError(f"expected {words} at {self.text[self.at : self.at + 40]!r}")
        return found

    def name(self) -> str:
        """Return a quoted name."""
        self.expect('"')
        end = self.text.index('"', self.at)
        name = self.text[self.at : end]
        self.at = end + 1
        return name

    def literal(self) -> str:
        """Return a text literal."""
        self.expect("'")
        out = []
        while True:
            end = self.text.index("'", self.at)
            out.append(self.text[self.at : end])
            self.at = end + 1
            if self.text[self.at : self.at + 1] != "'":
                return "".join(out).replace(DOUBLED, "'")
            out.append("'")
            self.at += 1

    def value(self) -> Any:
        """Return None, a text, a tuple of a function and its text, or a number's text."""
        self.skip("/* JSON */")
        if self.skip("NULL"):
            return None
        if self.skip("Unsupported Type"):
            return ("UNSUPPORTED", "")
        self.skip()
        if self.text[self.at] == "'":
            return self.literal()
        match = _CALL.match(self.text, self.at)
        if match is not None:
            return self._call(match[0])
        match = re.compile(r"[-+.\dEe]+").match(self.text, self.at)
        if match is None:
            raise ValueError(f"unknown value at {self.text[self.at : self.at + 40]!r}")
        self.at = match.end()
        return match[0]

    def _call(self, name: str) -> tuple[str, str]:
        self.at += len(name)
        self.expect("(")
        text = ""
        if not self.skip(")"):
            text = self.literal()
            if self.skip(","):
                self.literal()
            self.expect(")")
        while name == "UNISTR" and self.skip("|| UNISTR("):
            text += self.literal()
            self.expect(")")
        return name, text


def parse(text: str) -> Statement:  # noqa: C901 - one pass
    """Return the parts of a statement of SQL_REDO; raises ValueError."""
    scan = Scanner(text)
    kind = scan.expect("insert into", "update", "delete from")
    scan.name()
    scan.expect(".")
    table = scan.name()
    new: dict[str, Any] = {}
    old: dict[str, Any] = {}
    row_id = None
    if kind == "insert into":
        scan.expect("(")
        names = [scan.name()]
        while scan.expect(",", ")") == ",":
            names.append(scan.name())
        scan.expect("values")
        scan.expect("(")
        for number, name in enumerate(names):
            if number:
                scan.expect(",")
            new[name] = scan.value()
        scan.expect(")")
        return Statement("insert", table, new, old, None)
    if kind == "update":
        scan.expect("set")
        while True:
            name = scan.name()
            scan.expect("=")
            new[name] = scan.value()
            if not scan.skip(","):
                break
    if scan.skip("where"):
        while True:
            if scan.skip("ROWID"):
                scan.expect("=")
                row_id = scan.literal()
            else:
                name = scan.name()
                old[name] = None if scan.skip("IS NULL") else _condition(scan)
            if not scan.skip("and"):
                break
    if text[scan.at :].strip(" ;"):
        raise ValueError(f"text after the statement: {text[scan.at : scan.at + 40]!r}")
    return Statement(kind.split()[0], table, new, old, row_id)


def _condition(scan: Scanner) -> Any:
    scan.expect("=")
    return scan.value()


def decode(kind: str, value: Any) -> Any:
    """Return the Python value of a token for a DATA_TYPE."""
    if value is None:
        return None
    call, text = value if isinstance(value, tuple) else ("", value)
    if call == "UNISTR":
        units = re.sub(r"\\([0-9A-F]{4})", lambda one: chr(int(one[1], 16)), text)
        units = units.replace("\\\\", "\\")
        return units.encode("utf-16", "surrogatepass").decode("utf-16")
    if call == "HEXTORAW":
        return bytes.fromhex(text)
    if call in ("EMPTY_CLOB", "EMPTY_BLOB"):
        return b"" if call == "EMPTY_BLOB" else ""
    if call == "TO_DATE":
        return datetime.fromisoformat(text)
    if call == "TO_TIMESTAMP":
        return datetime.fromisoformat(text[:26])
    if call == "TO_TIMESTAMP_TZ":
        zone = text[29:].replace(" ", "") or "+00:00"
        return datetime.fromisoformat(text[:26] + zone)
    if call == "TO_YMINTERVAL":
        years, months = text[1:].split("-")
        return (int(years) * 12 + int(months)) * (-1 if text[0] == "-" else 1)
    if call == "TO_DSINTERVAL":
        days, clock = text[1:].split()
        hours, minutes, seconds = clock.split(":")
        span = timedelta(
            days=int(days), hours=int(hours), minutes=int(minutes), seconds=float(seconds)
        )
        return -span if text[0] == "-" else span
    if kind in ("NUMBER", "FLOAT"):
        return Decimal(text)
    if kind.startswith("BINARY_"):
        return float(text)
    return text


class LobStep(NamedTuple):
    """A step of a LOB's rows.

    Attributes:
        column: Column of a locator or of a whole block; None of a piece after its locator.
        offset: First place of a write, from 1.
        data: Written data; None of other steps.
        size: Length after a trim; None of other steps.
        is_erase: Whether a part was erased.
    """

    column: str | None
    offset: int
    data: str | bytes | None
    size: int | None
    is_erase: bool


def parse_lob(text: str) -> LobStep:
    """Return the step of a LOB row."""
    match = _SELECT.search(text)
    column = match[1] if match else None
    trim = _TRIM.search(text)
    if "dbms_lob.erase" in text:
        return LobStep(column, 0, None, None, True)
    at = text.find(" := ")
    start = text.rfind("\n buf_", 0, at + 1)
    if start >= 0 and "dbms_lob.write" in text:
        scan = Scanner(text)
        scan.at = at + 4
        value = scan.value()
        data = bytes.fromhex(value[1]) if isinstance(value, tuple) else value
        write = _WRITE.search(text, scan.at)
        assert write is not None, text
        assert int(write[1]) == len(data)
        return LobStep(column, int(write[2]), data, None, False)
    return LobStep(column, 0, None, int(trim[1]) if trim else None, False)
