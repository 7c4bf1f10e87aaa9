"""Commands of a replication connection, read as PostgreSQL's own grammar reads them. Pure.

`parse` gives one frozen dataclass, or None where the text is no such command and so is SQL. Both
spellings of options are read: words (before PostgreSQL 15) and a list in parentheses. Positions are
LSNs as numbers.
Source: PostgreSQL manual, "Streaming Replication Protocol"; repl_gram.y, repl_scanner.l.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.position import PositionInvalid

_SYNTAX_ERROR, _INVALID_NAME, _UNSUPPORTED = "42601", "42602", "0A000"
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")+")
    | (?P<lsn>[0-9A-Fa-f]+/[0-9A-Fa-f]+)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    | (?P<number>[0-9]+)
    | (?P<sign>[(),;.])
    )""",
    re.VERBOSE,
)
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
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
    """SHOW. name: of the setting, as it was written."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSlot:
    """CREATE_REPLICATION_SLOT, of a logical slot. snapshot: one of SNAPSHOTS.

    lsn_type: SEQUENCE or HYBRID_TIME, words of YugabyteDB's; empty where it was not said.
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
    """ALTER_REPLICATION_SLOT. None: not said."""

    slot: str
    two_phase: bool | None = None
    failover: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSlot:
    """DROP_REPLICATION_SLOT. wait: until nobody streams from it."""

    slot: str
    wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlot:
    """READ_REPLICATION_SLOT."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplication:
    """START_REPLICATION of a logical slot. options: of the plugin; empty text where it has none."""

    slot: str
    position: int
    options: dict[str, str] = field(default_factory=dict)


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
    | TimelineHistory
)


def parse(text: str) -> Command | None:
    """A command, None for SQL. Raises Refused: 42601, 42602, 0A000."""
    first = _TOKEN.match(text)
    word = (first["word"] or "").upper() if first else ""
    read = _COMMANDS.get(word)
    if read is None or first is None:
        return None
    tokens = _Tokens(text, first.end())
    command = read(tokens)
    tokens.end()
    return command


class _Tokens:
    """Walks over a command; whatever is not where the grammar wants it is a syntax error."""

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
        """The next one, which must be of this kind."""
        found, text = self._peek()
        if found != kind:
            raise _syntax(text)
        self._at += 1
        return text

    def word(self, *words: str) -> str:
        """The next one where it is one of these words, in capitals; else empty, and it stays."""
        kind, text = self._peek()
        if kind != "word" or text.upper() not in words:
            return ""
        self._at += 1
        return text.upper()

    def need(self, word: str) -> None:
        """This word must be next."""
        if not self.word(word):
            raise _syntax(self._peek()[1])

    def sign(self, sign: str) -> bool:
        """Whether this sign was next; then it is taken."""
        if self._peek() != ("sign", sign):
            return False
        self._at += 1
        return True

    def name(self) -> str:
        """An identifier: in quotes as it is, else in small letters."""
        kind, text = self._peek()
        if kind not in ("name", "word"):
            raise _syntax(text)
        self._at += 1
        return text[1:-1].replace('""', '"') if kind == "name" else text.lower()

    def value(self) -> str:
        """What an option is set to; empty for nothing."""
        kind, text = self._peek()
        if kind not in ("string", "word", "name", "number"):
            return ""
        self._at += 1
        if kind == "string":
            return text[1:-1].replace("''", "'")
        return text[1:-1].replace('""', '"') if kind == "name" else text

    def options(self) -> dict[str, str]:
        """A list in parentheses, by name in small letters unless it is quoted."""
        found: dict[str, str] = {}
        if not self.sign("("):
            raise _syntax(self._peek()[1])
        while True:
            name = self.name()
            if name in found:
                raise Refused(_SYNTAX_ERROR, "conflicting or redundant options")
            found[name] = self.value()
            if self.sign(")"):
                return found
            if not self.sign(","):
                raise _syntax(self._peek()[1])

    def has_options(self) -> bool:
        """Whether a list comes."""
        return self._peek() == ("sign", "(")

    def end(self) -> None:
        """Nothing may follow but one semicolon."""
        self.sign(";")
        if self._at < len(self._found):
            raise _syntax(self._peek()[1])


def _syntax(near: str) -> Refused:
    where = f'at or near "{near}"' if near else "at end of input"
    return Refused(_SYNTAX_ERROR, f"syntax error {where}")


def _slot(tokens: _Tokens, *, new: bool = False) -> str:
    name = tokens.name()
    if new and not _SLOT_NAME.fullmatch(name):
        raise Refused(
            _INVALID_NAME,
            f'replication slot name "{name}" is not 1 to 63 letters',
            hint="Replication slot names may only contain lower case letters, numbers, and the "
            "underscore character.",
        )
    return name


def _boolean(name: str, value: str) -> bool:
    if value.lower() in ("", *_TRUE):
        return True
    if value.lower() in _FALSE:
        return False
    raise Refused(_SYNTAX_ERROR, f"{name} requires a Boolean value")


def _known(options: dict[str, str], names: tuple[str, ...]) -> None:
    for name in options:
        if name not in names:
            raise Refused(_SYNTAX_ERROR, f"unrecognized option: {name}")


def _show(tokens: _Tokens) -> Show:
    name = tokens.name()
    while tokens.sign("."):
        name += "." + tokens.name()
    return Show(name=name)


def _create(tokens: _Tokens) -> CreateSlot:
    slot = _slot(tokens, new=True)
    temporary = bool(tokens.word("TEMPORARY"))
    if tokens.word("PHYSICAL"):
        raise Refused(_UNSUPPORTED, "physical replication is not supported")
    tokens.need("LOGICAL")
    plugin = tokens.name()
    options: dict[str, str] = {}
    if tokens.has_options():
        options = tokens.options()
    words: dict[str, str] = {}
    while word := tokens.word(*_SNAPSHOT_WORDS, *LSN_TYPES, "TWO_PHASE"):
        name = "lsn_type" if word in LSN_TYPES else "snapshot"
        name = "two_phase" if word == "TWO_PHASE" else name
        if name in options or name in words:
            raise Refused(_SYNTAX_ERROR, "conflicting or redundant options")
        if name == "lsn_type":
            words[name] = word
        else:
            options[name] = _SNAPSHOT_WORDS.get(word, "")
    _known(options, ("snapshot", "two_phase", "failover"))
    snapshot = options.get("snapshot", "export")
    if snapshot not in SNAPSHOTS:
        raise Refused(
            _SYNTAX_ERROR,
            f'unrecognized value for CREATE_REPLICATION_SLOT option "snapshot": "{snapshot}"',
        )
    return CreateSlot(
        slot=slot,
        plugin=plugin,
        temporary=temporary,
        snapshot=snapshot,
        two_phase="two_phase" in options and _boolean("two_phase", options["two_phase"]),
        failover="failover" in options and _boolean("failover", options["failover"]),
        lsn_type=words.get("lsn_type", ""),
    )


def _alter(tokens: _Tokens) -> AlterSlot:
    slot, options = _slot(tokens), tokens.options()
    _known(options, ("two_phase", "failover"))
    said = {name: _boolean(name, value) for name, value in options.items()}
    return AlterSlot(slot=slot, two_phase=said.get("two_phase"), failover=said.get("failover"))


def _drop(tokens: _Tokens) -> DropSlot:
    return DropSlot(slot=_slot(tokens), wait=bool(tokens.word("WAIT")))


def _start(tokens: _Tokens) -> StartReplication:
    if not tokens.word("SLOT"):
        raise Refused(_UNSUPPORTED, "physical replication is not supported")
    slot = _slot(tokens)
    if not tokens.word("LOGICAL"):
        raise Refused(_UNSUPPORTED, "physical replication is not supported")
    place = tokens.take("lsn")
    try:
        position = Lsn.parse(place).ordinal
    except PositionInvalid:
        raise _syntax(place) from None
    options = tokens.options() if tokens.has_options() else {}
    return StartReplication(slot=slot, position=position, options=options)


def _timeline(tokens: _Tokens) -> TimelineHistory:
    timeline = int(tokens.take("number"))
    if not 1 <= timeline < 2**32:
        raise Refused(_SYNTAX_ERROR, f"invalid timeline {timeline}")
    return TimelineHistory(timeline=timeline)


_COMMANDS: dict[str, Callable[[_Tokens], Command]] = {
    "IDENTIFY_SYSTEM": lambda _: IdentifySystem(),
    "SHOW": _show,
    "CREATE_REPLICATION_SLOT": _create,
    "ALTER_REPLICATION_SLOT": _alter,
    "DROP_REPLICATION_SLOT": _drop,
    "READ_REPLICATION_SLOT": lambda tokens: ReadSlot(slot=_slot(tokens)),
    "START_REPLICATION": _start,
    "TIMELINE_HISTORY": _timeline,
}
