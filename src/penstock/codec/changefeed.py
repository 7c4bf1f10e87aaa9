"""The JSON of changefeeds: where in a request each line's time, key and images lie.

Strict: what is not JSON, an unknown or repeated field, or a wrong type refuses the whole request,
and the images are checked to their ends, so that nothing broken is found only when it is applied.
Their bytes are never changed: numbers stay text. The specification of `_changefeed.pyx`. Not here:
which table a line belongs to, and what is done with it (`penstock.feeds.receiver`).
Source: CockroachDB documentation, "Changefeed Messages"; RFC 8259.
"""

from __future__ import annotations

import os
import re
from array import array
from enum import IntEnum
from typing import Protocol

from penstock.model import PenstockError
from penstock.model.hlc import Hlc, HlcInvalid, parse_time

# The same limits as where the rows are applied: what is taken here can be read there.
DEPTH_MAX = 500  # of arrays and objects within each other; msgspec reads twice as many
EXPONENT_MAX = 16_383
"""The largest exponent of a number: PostgreSQL's numeric has as many digits after the point."""
SHOWN_MAX = 80  # characters of a number
FIELDS = 10
NANOS, LOGICAL, KEY, KEY_END, AFTER, AFTER_END, BEFORE, BEFORE_END, TOPIC, TOPIC_END = range(FIELDS)
"""The numbers of one line: its time, then begin and end of what it has; -1 of what it has not.

The topic is without its quotes, everything else is the raw JSON.
"""


class PayloadInvalid(PenstockError):
    """A request is not what a changefeed sends: broken JSON, unknown fields, wrong types."""

    code = "ST02"


class BareEnvelope(PenstockError):
    """A changefeed with a query was made without envelope=wrapped."""

    code = "ST03"


class UpdatedMissing(PenstockError):
    """Lines without the time when they were committed."""

    code = "ST04"


class LineTooLong(PenstockError):
    """A line of a file has more bytes than ndjsonBufferSize."""

    code = "ST05"


class Trouble(IntEnum):
    """Why a request is refused."""

    SYNTAX = 1
    ENDS = 2
    UNKNOWN = 3
    TYPE = 4
    TWICE = 5
    TIME = 6
    NO_TIME = 7
    BEHIND = 8
    DEEP = 9
    BOTH = 10
    BARE = 11
    LONG = 12
    HALF = 13
    HUGE = 14


class Refused(ValueError):
    """Trouble that twin and kernel raise, with the bytes start to end that it is about."""

    def __init__(self, trouble: int, start: int, end: int) -> None:
        super().__init__(trouble, start, end)
        self.trouble, self.start, self.end = Trouble(trouble), start, end


class Scanner(Protocol):
    """Interface of twin and kernel."""

    def scan_batch(self, body: bytes, strict: bool, /) -> tuple[bytes, int, int]:
        """Scan a batch as `scan_batch` does."""
        ...

    def scan_lines(self, body: bytes, line_bytes_max: int, /) -> bytes:
        """Scan lines as `scan_lines` does."""
        ...


_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(
    rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u(?:'
    rb"[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
    rb"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb'))[^"\\\x00-\x1f]*)*'
)  # without the last quote
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?0*([0-9]+))?")
_EMPTY_ARRAY = re.compile(rb"\[[ \t\n\r]*\]")
_INTEGER = re.compile(rb"-?[0-9]+")
_LITERALS = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
_CLOSES = {ord("{"): ord("}"), ord("["): ord("]")}
_BARE = b"__crdb__"
# Name to its place in a line, and the byte that its value begins with.
_TOLERANT = {
    b"after": (AFTER, ord("{")),
    b"before": (BEFORE, ord("{")),
    b"key": (KEY, ord("[")),
    b"updated": (NANOS, ord('"')),
}
_STRICT = {**_TOLERANT, b"topic": (TOPIC, ord('"'))}


class _Scan:
    """One walk over body[:end]."""

    def __init__(self, body: bytes, end: int, *, strict: bool) -> None:
        self.body, self.end, self.strict = body, end, strict
        self.rows = array("q")

    def space(self, i: int) -> int:
        """Return the first byte at or after i that is not a space."""
        return _SPACE.match(self.body, i, self.end).end()  # type: ignore[union-attr]

    def at(self, i: int) -> int:
        """Return the byte at i."""
        if i >= self.end:
            raise Refused(Trouble.ENDS, self.end, self.end)
        return self.body[i]

    def need(self, i: int, byte: str) -> int:
        """Return the place after this byte, which must be at i."""
        if self.at(i) != ord(byte):
            raise Refused(Trouble.SYNTAX, i, i)
        return i + 1

    def string(self, i: int) -> int:
        """Return the end of the string that begins at i."""
        self.need(i, '"')
        i = _STRING.match(self.body, i, self.end).end()  # type: ignore[union-attr]
        if _HALF.match(self.body, i, self.end):
            raise Refused(Trouble.HALF, i, i)
        return self.need(i, '"')

    def name(self, i: int) -> tuple[int, int]:
        """Return where the name of the member at i ends, and where its value begins."""
        name_end = self.string(i)
        return name_end, self.space(self.need(self.space(name_end), ":"))

    def scalar(self, i: int) -> int:
        """Return the end of the string, number or word that begins at i."""
        first = self.at(i)
        if first == ord('"'):
            return self.string(i)
        word = _LITERALS.get(first)
        if word is not None and self.body.startswith(word, i, self.end):
            return i + len(word)
        number = _NUMBER.match(self.body, i, self.end)
        if number is None:
            raise Refused(Trouble.SYNTAX, i, i)
        exponent = number[1] or b"0"
        if len(exponent) > len(str(EXPONENT_MAX)) or int(exponent) > EXPONENT_MAX:
            raise Refused(Trouble.HUGE, i, number.end())
        return number.end()

    def value(self, i: int) -> int:
        """Return the end of the value that begins at i."""
        open_: list[int] = []
        while True:
            first = self.at(i)
            if first in _CLOSES:
                if len(open_) == DEPTH_MAX:
                    raise Refused(Trouble.DEEP, i, i)
                inside = self.space(i + 1)
                if self.at(inside) != _CLOSES[first]:
                    open_.append(_CLOSES[first])
                    i = self.name(inside)[1] if first == ord("{") else inside
                    continue
                i = inside + 1
            else:
                i = self.scalar(i)
            while open_:
                i = self.space(i)
                byte = self.at(i)
                if byte == ord(","):
                    i = self.space(i + 1)
                    if open_[-1] == ord("}"):
                        i = self.name(i)[1]
                    break
                if byte != open_[-1]:
                    raise Refused(Trouble.SYNTAX, i, i)
                open_.pop()
                i += 1
            else:
                return i

    def behind_member(self, i: int, close: str) -> tuple[int, bool]:
        """Return the place after a member or element, and whether it was the last one."""
        i = self.space(i)
        byte = self.at(i)
        if byte == ord(close):
            return i + 1, True
        if byte != ord(","):
            raise Refused(Trouble.SYNTAX, i, i)
        return self.space(i + 1), False

    def line(self, i: int) -> int:
        """Keep the numbers of the line at i; return its end."""
        begin = i
        if self.at(i) != ord("{"):
            raise Refused(Trouble.TYPE, i, i)
        row = [-1] * FIELDS
        seen: set[bytes] = set()
        i = self.space(i + 1)
        ended = self.at(i) == ord("}")
        if ended:
            i += 1
        while not ended:
            i, ended = self.behind_member(self._line_member(i, row, seen), "}")
        if row[NANOS] < 0:
            raise Refused(Trouble.NO_TIME, begin, i)
        if row[KEY] >= 0 and _EMPTY_ARRAY.fullmatch(self.body, row[KEY], row[KEY_END]):
            row[KEY] = row[KEY_END] = -1
        self.rows.extend(row)
        return i

    def _line_member(self, i: int, row: list[int], seen: set[bytes]) -> int:
        name_start = i + 1
        name_end, i = self.name(i)
        name = self.body[name_start : name_end - 1]
        known = _STRICT if self.strict else _TOLERANT
        if name not in known:
            if not self.strict and name == _BARE:
                raise Refused(Trouble.BARE, name_start, name_end - 1)
            # One that another reader would take for a known one must not pass for an unknown.
            if self.strict or b"\\" in name or name.lower() in known:
                raise Refused(Trouble.UNKNOWN, name_start, name_end - 1)
            return self.value(i)
        if name in seen:
            raise Refused(Trouble.TWICE, name_start, name_end - 1)
        seen.add(name)
        place, first = known[name]
        end = self.typed_end(i, first, name_start, name_end - 1)
        if end < 0:
            return -end
        if place == NANOS:
            row[NANOS], row[LOGICAL] = _time(self.body, i + 1, end - 1)
        else:
            quote = place == TOPIC
            row[place], row[place + 1] = i + quote, end - quote
        return end

    def typed_end(self, i: int, first: int, name_start: int, name_end: int) -> int:
        """Return the end of the value at i, which begins with this byte; for null, the
        negated end.
        """
        byte = self.at(i)
        if byte == ord("n"):
            return -self.scalar(i)
        if byte != first:
            raise Refused(Trouble.TYPE, name_start, name_end)
        return self.value(i)

    def lines(self, i: int) -> int:
        """Keep the numbers of the array of lines at i; return its end."""
        i = self.space(i + 1)
        ended = self.at(i) == ord("]")
        if ended:
            i += 1
        while not ended:
            i, ended = self.behind_member(self.line(i), "]")
        return i


def _time(body: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the time in body[start:end]; raise for the zero time."""
    found = parse_time(body[start:end].decode("latin-1"))
    if found is None or found == (0, 0):
        raise Refused(Trouble.TIME, start, end)
    return found


def scan_batch(body: bytes, strict: bool, /) -> tuple[bytes, int, int]:
    """Return numbers that describe each line of a webhook's body, and the begin and end of
    `resolved`.

    body: UTF-8. strict: accept only lines of a feed of tables, which have a topic and no unknown
    field. The numbers are FIELDS int64 per line, in this machine's byte order. The span of
    `resolved` excludes its quotes and is -1 if there is none. An empty body has no line and no
    `resolved`. Raises Refused.
    """
    scan = _Scan(body, len(body), strict=strict)
    i = scan.space(0)
    if i == scan.end:
        return b"", -1, -1
    if scan.at(i) != ord("{"):
        raise Refused(Trouble.TYPE, i, i)
    seen: dict[bytes, tuple[int, int]] = {}
    i = scan.space(i + 1)
    ended = scan.at(i) == ord("}")
    if ended:
        i += 1
    while not ended:
        i, ended = scan.behind_member(_batch_member(scan, i, seen), "}")
    i = scan.space(i)
    if i < scan.end:
        raise Refused(Trouble.BEHIND, i, scan.end)
    start, end = seen.get(b"resolved", (-1, -1))
    if start >= 0 and seen.get(b"payload", (-1, -1))[0] >= 0:
        raise Refused(Trouble.BOTH, start, end)
    return scan.rows.tobytes(), start, end


def _batch_member(scan: _Scan, i: int, seen: dict[bytes, tuple[int, int]]) -> int:
    name_start = i + 1
    name_end, i = scan.name(i)
    name = scan.body[name_start : name_end - 1]
    if not scan.strict and name == _BARE:
        raise Refused(Trouble.BARE, name_start, name_end - 1)
    if name not in (b"payload", b"length", b"resolved"):
        raise Refused(Trouble.UNKNOWN, name_start, name_end - 1)
    if name in seen:
        raise Refused(Trouble.TWICE, name_start, name_end - 1)
    seen[name] = (-1, -1)
    if scan.at(i) == ord("n"):
        return scan.scalar(i)
    if name == b"payload":
        if scan.at(i) != ord("["):
            raise Refused(Trouble.TYPE, name_start, name_end - 1)
        end = scan.lines(i)
    elif name == b"resolved":
        end = scan.typed_end(i, ord('"'), name_start, name_end - 1)
    else:
        end = scan.value(i)
        if not _INTEGER.fullmatch(scan.body, i, end):
            raise Refused(Trouble.TYPE, name_start, name_end - 1)
    seen[name] = (i + 1, end - 1)
    return end


def scan_lines(body: bytes, line_bytes_max: int, /) -> bytes:
    """Return numbers that describe each line of a file, as `scan_batch` does.

    Blank lines and unknown fields are skipped. line_bytes_max: upper limit of a line's bytes,
    without its end. Raises Refused.
    """
    rows = array("q")
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        if end - start >= line_bytes_max:
            raise Refused(Trouble.LONG, start, end)
        scan = _Scan(body, end, strict=False)
        i = scan.space(start)
        if i < end:
            i = scan.space(scan.line(i))
            if i < end:
                raise Refused(Trouble.BEHIND, i, end)
            rows.extend(scan.rows)
        start = end + 1
    return rows.tobytes()


class Plain:
    """The readable scanner."""

    scan_batch = staticmethod(scan_batch)
    scan_lines = staticmethod(scan_lines)


try:
    from penstock.codec import _changefeed
except ImportError as missing:
    if missing.name not in ("penstock.codec", "penstock.codec._changefeed"):
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True


def make_scanner() -> Scanner:
    """Return the compiled scanner, or the twin when it is not built or PENSTOCK_PURE=1
    forbids it.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _changefeed
    return Plain()


def refusal(refused: Refused, body: bytes, *, is_file: bool = False) -> PenstockError:
    """Return the error that a feed's operator meets. is_file: lines of a file, not of a webhook."""
    text = body[refused.start : refused.end].decode("utf-8", "replace")
    if refused.trouble is Trouble.TIME:
        return bad_time(text)
    if refused.trouble is Trouble.NO_TIME:
        return _no_time(is_file)
    if refused.trouble is Trouble.BARE:
        return BareEnvelope(
            "bare envelope is not supported: use envelope=wrapped, format=json, diff",
            hint="Make the feed again: CREATE CHANGEFEED ... WITH envelope=wrapped, format=json, "
            "diff, updated, resolved AS SELECT ...",
        )
    if refused.trouble is Trouble.LONG:
        size = refused.end - refused.start
        return LineTooLong(
            f"token too long: a line of {size} bytes, from byte {refused.start} on",
            hint="Set ndjsonBufferSize in [stage] above that.",
        )
    whole = len(body)
    reasons = {
        Trouble.SYNTAX: f"byte {refused.start} of {whole} cannot be there in JSON",
        Trouble.ENDS: f"it ends in the middle of a value, after {refused.end} of {whole} bytes",
        Trouble.UNKNOWN: f'unknown field "{text}"',
        Trouble.TYPE: f"{text or 'what should be an object'} has another type",
        Trouble.TWICE: f'field "{text}" occurs twice',
        Trouble.BEHIND: f"text after the first value, from byte {refused.start} on",
        Trouble.DEEP: f"more than {DEPTH_MAX} levels at byte {refused.start}",
        Trouble.BOTH: "payload beside resolved",
        Trouble.HALF: f"half of a surrogate pair at byte {refused.start}",
        Trouble.HUGE: f"the exponent of {text[:SHOWN_MAX]} is beyond {EXPONENT_MAX}",
    }
    return invalid(reasons[refused.trouble])


def invalid(reason: str) -> PayloadInvalid:
    """Return the error for a request that cannot be decoded."""
    return PayloadInvalid(
        f"could not decode payload: {reason}",
        hint="Make the feed with format=json and envelope=wrapped, without mvcc_timestamp; "
        "docs/stage.md shows the statement.",
    )


def bad_time(text: str) -> HlcInvalid:
    """Return the refusal of a text that is not a time, or is the zero time."""
    try:
        Hlc.parse(text)
    except HlcInvalid as error:
        return error
    return HlcInvalid(
        f"can't parse timestamp {text!r}: it is zero",
        hint="No feed sends this: see what has posted it.",
    )


def _no_time(is_file: bool) -> PenstockError:
    if not is_file:
        return bad_time("")
    return UpdatedMissing(
        "CREATE CHANGEFEED must specify the 'WITH updated' option",
        hint="Make the feed again WITH updated, and resolved.",
    )
