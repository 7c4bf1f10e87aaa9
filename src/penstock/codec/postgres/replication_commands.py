"""Parse commands of a replication connection as PostgreSQL's own grammar does. Pure.

`parse` returns a frozen dataclass, or None if the text is not a command and so is SQL. It reads
both spellings of options: words (before PostgreSQL 15) and a list in parentheses. Positions are
LSNs as numbers. Source: PostgreSQL manual, "Streaming Replication Protocol"; repl_gram.y,
repl_scanner.l.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.position import PositionInvalid

_SYNTAX_ERROR, _INVALID_NAME, _UNSUPPORTED, _INTERNAL = "42601", "42602", "0A000", "XX000"
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")*")
    | (?P<lsn>[0-9A-Fa-f]+/[0-9A-Fa-f]+)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    | (?P<number>[0-9]+)
    | (?P<sign>[(),;.])
    )""",
    re.VERBOSE,
)
_SLOT_NAME = re.compile(r"[a-z0-9_]+")
_NAME_BYTES = 63
_LONG_DIGITS, _LONG_MAX = 20, 2**64 - 1
_KEYWORDS = frozenset(  # in capitals alone, and then no names of slots
    (
        *("BASE_BACKUP", "IDENTIFY_SYSTEM", "READ_REPLICATION_SLOT", "SHOW", "TIMELINE"),
        *("START_REPLICATION", "CREATE_REPLICATION_SLOT", "DROP_REPLICATION_SLOT"),
        *("TIMELINE_HISTORY", "PHYSICAL", "RESERVE_WAL", "LOGICAL", "SLOT", "TEMPORARY"),
        *("TWO_PHASE", "EXPORT_SNAPSHOT", "NOEXPORT_SNAPSHOT", "USE_SNAPSHOT", "WAIT"),
    )
)
_LIST_ONLY = ("TWO_PHASE", "RESERVE_WAL")  # keywords that name options, too
_SNAPSHOT_WORDS = {
    "EXPORT_SNAPSHOT": "export",
    "NOEXPORT_SNAPSHOT": "nothing",
    "USE_SNAPSHOT": "use",
}
LSN_TYPES = ("SEQUENCE", "HYBRID_TIME")
SNAPSHOTS = ("export", "use", "nothing")
_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """IDENTIFY_SYSTEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """SHOW. name: the setting's name as it was written."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSlot:
    """CREATE_REPLICATION_SLOT, of a logical slot. snapshot: one of SNAPSHOTS.

    lsn_type: SEQUENCE or HYBRID_TIME, YugabyteDB's words; empty if not given.
    """

    slot: str
    plugin: str
    temporary: bool = False
    snapshot: str = "export"
    two_phase: bool = False
    failover: bool = False
    lsn_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSlot:
    """ALTER_REPLICATION_SLOT. None means not given."""

    slot: str
    two_phase: bool | None = None
    failover: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSlot:
    """DROP_REPLICATION_SLOT. wait: whether to wait until no connection streams from it."""

    slot: str
    wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlot:
    """READ_REPLICATION_SLOT."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplication:
    """START_REPLICATION of a logical slot.

    Attributes:
        options: Options of the plugin; an empty text where one has no value.
        repeated: Names of options that are given twice; the last value counts.
    """

    slot: str
    position: int
    options: dict[str, str] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPhysical:
    """START_REPLICATION of a whole server. slot: None if none is named."""

    slot: str | None


@dataclass(frozen=True, slots=True)
class BaseBackup:
    """BASE_BACKUP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineHistory:
    """TIMELINE_HISTORY."""

    timeline: int


Command = (
    IdentifySystem
    | Show
    | CreateSlot
    | AlterSlot
    | DropSlot
    | ReadSlot
    | StartReplication
    | StartPhysical
    | BaseBackup
    | TimelineHistory
)


def parse(text: str) -> Command | None:
    """Return a command; None for SQL. Raises Refused: 42601, 42602, 0A000, 22023, XX000.

    Keywords are in capitals: `identify_system` is SQL, and a syntax error there.
    """
    first = _TOKEN.match(text)
    word = (first["word"] or "") if first else ""
    read = _COMMANDS.get(word)
    if read is None or first is None:
        return None
    tokens = _Tokens(text, first.end())
    command = read(tokens)
    tokens.end()
    return command


class _Tokens:
    """Reader of a command's tokens. A token that the grammar does not expect is a syntax error."""

    def __init__(self, text: str, at: int) -> None:
        self._found: list[tuple[str, str]] = []
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _syntax(text[at:].split()[0])
            kind = match.lastgroup or ""
            self._found.append((kind, match[kind]))
            at = match.end()
        self._at = 0

    def _peek(self) -> tuple[str, str]:
        return self._found[self._at] if self._at < len(self._found) else ("", "")

    def take(self, kind: str) -> str:
        """Take the next token, which must be of this kind."""
        found, text = self._peek()
        if found != kind:
            raise _syntax(text)
        self._at += 1
        return text

    def word(self, *words: str) -> str:
        """Take the next token if it is one of these words; return it in capitals, or ""."""
        kind, text = self._peek()
        if kind != "word" or text not in words:
            return ""
        self._at += 1
        return text

    def need(self, word: str) -> None:
        """Take this word, which must be next."""
        if not self.word(word):
            raise _syntax(self._peek()[1])

    def sign(self, sign: str) -> bool:
        """Take this sign if it is next; return whether it was there."""
        if self._peek() != ("sign", sign):
            return False
        self._at += 1
        return True

    def name(self, *keywords: str) -> str:
        """Return an identifier: unchanged in quotes, else in lower case; at most 63 bytes.

        keywords: keywords that may be used as a name.
        """
        kind, text = self._peek()
        is_keyword = kind == "word" and text in _KEYWORDS and text not in keywords
        if kind not in ("name", "word") or is_keyword:
            raise _syntax(text)
        self._at += 1
        found = text[1:-1].replace('""', '"') if kind == "name" else text.lower()
        return found.encode()[:_NAME_BYTES].decode(errors="ignore")

    def value(self) -> str:
        """Return the value of an option; empty if it has none."""
        kind, text = self._peek()
        if kind not in ("string", "word", "name", "number"):
            return ""
        self._at += 1
        if kind == "string":
            return text[1:-1].replace("''", "'")
        return text[1:-1].replace('""', '"') if kind == "name" else text

    def quoted_value(self) -> str:
        """Return the quoted value of a plugin's option; empty if it has none."""
        return self.value() if self._peek()[0] == "string" else ""

    def options(self, value: Callable[[], str]) -> list[tuple[str, str]]:
        """Return a list in parentheses. value: reads one value."""
        found: list[tuple[str, str]] = []
        if not self.sign("("):
            raise _syntax(self._peek()[1])
        while True:
            name = self.name(*_LIST_ONLY)
            found.append((name, value()))
            if self.sign(")"):
                return found
            if not self.sign(","):
                raise _syntax(self._peek()[1])

    def own_options(self, command: str, known: tuple[str, ...]) -> dict[str, str]:
        """Return the options of a command. Raises Refused: 42601, XX000."""
        found: dict[str, str] = {}
        for name, value in self.options(self.value):
            if name not in known:
                raise Refused(_INTERNAL, f"unrecognized option: {name}")
            if name in found:
                raise Refused(_SYNTAX_ERROR, "conflicting or redundant options")
            if name == "snapshot" and not value:
                raise Refused(_SYNTAX_ERROR, f"{name} requires a parameter")
            found[name] = value
        if "snapshot" in found and found["snapshot"] not in SNAPSHOTS:
            raise Refused(
                "22023",
                f'unrecognized value for {command} option "snapshot": "{found["snapshot"]}"',
            )
        return found

    def has_options(self) -> bool:
        """Return whether a list follows."""
        return self._peek() == ("sign", "(")

    def end(self) -> None:
        """Raise unless only a semicolon or nothing remains."""
        self.sign(";")
        if self._at < len(self._found):
            raise _syntax(self._peek()[1])


def _syntax(near: str) -> Refused:
    where = f'at or near "{near}"' if near else "at end of input"
    return Refused(_SYNTAX_ERROR, f"syntax error {where}")


def check_slot_name(name: str) -> None:
    """Refuse a name that no new slot may have. Raises Refused: 42602."""
    if _SLOT_NAME.fullmatch(name):
        return
    what = "contains invalid character" if name else "is too short"
    raise Refused(
        _INVALID_NAME,
        f'replication slot name "{name}" {what}',
        hint="Replication slot names may only contain lower case letters, numbers, and the "
        "underscore character.",
    )


def _slot(tokens: _Tokens, *, new: bool = False) -> str:
    name = tokens.name()
    if new:
        check_slot_name(name)
    return name


def _boolean(name: str, value: str) -> bool:
    if value.lower() in ("", *_TRUE):
        return True
    if value.lower() in _FALSE:
        return False
    raise Refused(_SYNTAX_ERROR, f"{name} requires a Boolean value")


def _show(tokens: _Tokens) -> Show:
    name = tokens.name()
    while tokens.sign("."):
        name += "." + tokens.name()
    return Show(name=name)


def _create(tokens: _Tokens) -> CreateSlot:
    command = "CREATE_REPLICATION_SLOT"
    slot = _slot(tokens, new=True)
    temporary = bool(tokens.word("TEMPORARY"))
    if tokens.word("PHYSICAL"):
        if tokens.has_options():
            tokens.own_options(command, ("reserve_wal",))
        else:
            tokens.word("RESERVE_WAL")
        tokens.end()
        raise Refused(_UNSUPPORTED, "physical replication is not supported")
    tokens.need("LOGICAL")
    plugin = tokens.name()
    words: dict[str, str] = {}
    if tokens.has_options():
        known = ("snapshot", "two_phase", "failover", "reserve_wal")
        words = tokens.own_options(command, known)
        _create_words(tokens, words, LSN_TYPES)
    else:
        _create_words(tokens, words, (*_SNAPSHOT_WORDS, *LSN_TYPES, "TWO_PHASE", "RESERVE_WAL"))
    if "reserve_wal" in words:
        raise Refused(_SYNTAX_ERROR, "conflicting or redundant options")
    return CreateSlot(
        slot=slot,
        plugin=plugin,
        temporary=temporary,
        snapshot=words.get("snapshot", "export"),
        two_phase="two_phase" in words and _boolean("two_phase", words["two_phase"]),
        failover="failover" in words and _boolean("failover", words["failover"]),
        lsn_type=words.get("lsn_type", ""),
    )


def _create_words(tokens: _Tokens, found: dict[str, str], known: tuple[str, ...]) -> None:
    """Add the options that are words after the plugin: those before PostgreSQL 15 and
    Yugabyte's.
    """
    while word := tokens.word(*known):
        name = "snapshot" if word in _SNAPSHOT_WORDS else word.lower()
        name = "lsn_type" if word in LSN_TYPES else name
        if name in found:
            raise Refused(_SYNTAX_ERROR, "conflicting or redundant options")
        found[name] = word if word in LSN_TYPES else _SNAPSHOT_WORDS.get(word, "")


def _alter(tokens: _Tokens) -> AlterSlot:
    slot = _slot(tokens)
    options = tokens.own_options("ALTER_REPLICATION_SLOT", ("two_phase", "failover"))
    said = {name: _boolean(name, value) for name, value in options.items()}
    return AlterSlot(slot=slot, two_phase=said.get("two_phase"), failover=said.get("failover"))


def _drop(tokens: _Tokens) -> DropSlot:
    return DropSlot(slot=_slot(tokens), wait=bool(tokens.word("WAIT")))


def _start(tokens: _Tokens) -> StartReplication | StartPhysical:
    slot = _slot(tokens) if tokens.word("SLOT") else None
    if slot is None or not tokens.word("LOGICAL"):
        tokens.word("PHYSICAL")
        _position(tokens)
        if tokens.word("TIMELINE"):
            _timeline(tokens)
        return StartPhysical(slot=slot)
    position = _position(tokens)
    options = tokens.options(tokens.quoted_value) if tokens.has_options() else []
    counts = Counter(name for name, _ in options)
    return StartReplication(
        slot=slot,
        position=position,
        options=dict(options),
        repeated=frozenset(name for name, count in counts.items() if count > 1),
    )


def _position(tokens: _Tokens) -> int:
    place = tokens.take("lsn")
    try:
        return Lsn.parse(place).ordinal
    except PositionInvalid:
        raise _syntax(place) from None


def _timeline(tokens: _Tokens) -> TimelineHistory:
    digits = tokens.take("number").lstrip("0") or "0"
    number = int(digits) if len(digits) <= _LONG_DIGITS else _LONG_MAX
    timeline = min(number, _LONG_MAX) % 2**32  # as C reads it
    if not timeline:
        raise Refused(_SYNTAX_ERROR, "invalid timeline 0")
    return TimelineHistory(timeline=timeline)


def _base_backup(tokens: _Tokens) -> BaseBackup:
    if tokens.has_options():
        tokens.options(tokens.value)
    return BaseBackup()


_COMMANDS: dict[str, Callable[[_Tokens], Command]] = {
    "IDENTIFY_SYSTEM": lambda _: IdentifySystem(),
    "SHOW": _show,
    "CREATE_REPLICATION_SLOT": _create,
    "ALTER_REPLICATION_SLOT": _alter,
    "DROP_REPLICATION_SLOT": _drop,
    "READ_REPLICATION_SLOT": lambda tokens: ReadSlot(slot=_slot(tokens)),
    "START_REPLICATION": _start,
    "TIMELINE_HISTORY": _timeline,
    "BASE_BACKUP": _base_backup,
}
