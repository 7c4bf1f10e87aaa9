"""Tokens of T-SQL, and a batch's statements with its control flow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>[nN]?'(?:[^']|'')*')
    |(?P<name>\[(?:[^\]]|\]\])*\]|"(?:[^"]|"")*")
    |(?P<hex>0[xX][0-9a-fA-F]*)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<variable>@@?[\w$\#@]+)
    |(?P<word>[^\W\d][\w$\#@]*|\#\#?[\w$\#@]+)
    |(?P<mark><=|>=|<>|!=|!<|!>|\+=|-=|::|.)""",
    re.X | re.S,
)


@dataclass(frozen=True, slots=True)
class Token:
    """Token of a batch.

    Attributes:
        kind: text, name (quoted), hex, number, variable, word or mark.
        text: As written.
        start: Offset in the batch.
    """

    kind: str
    text: str
    start: int

    @property
    def upper(self) -> str:
        """Upper-case word, empty for other tokens."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.start + len(self.text)

    @property
    def identifier(self) -> str:
        """Name without its quotes."""
        if self.kind == "name":
            closing = self.text[-1]
            return self.text[1:-1].replace(closing * 2, closing)
        return self.text

    @property
    def literal(self) -> str:
        """Content of a text."""
        return self.text[self.text.index("'") + 1 : -1].replace("''", "'")


@lru_cache(maxsize=2048)
def tokenize(batch: str) -> tuple[Token, ...]:
    """Return the tokens without blanks and comments."""
    return tuple(
        Token(str(match.lastgroup), match.group(), match.start())
        for match in _TOKEN.finditer(batch)
        if match.lastgroup != "blank"
    )


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without control flow.

    Attributes:
        head: First word, upper case.
        text: Whole text.
    """

    head: str
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Statements between BEGIN and END."""

    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class If:
    """A condition with its branches."""

    condition: str
    then: Node
    otherwise: Node | None = None


@dataclass(frozen=True, slots=True)
class While:
    """A loop."""

    condition: str
    body: Node


@dataclass(frozen=True, slots=True)
class Try:
    """TRY and CATCH."""

    body: Block
    handler: Block


Node = Statement | Block | If | While | Try

_RIGHTS = ("GRANT", "DENY", "REVOKE")
_STARTERS = frozenset(
    [
        "SELECT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "CREATE",
        "ALTER",
        "DROP",
        "TRUNCATE",
        "EXEC",
        "EXECUTE",
        "DECLARE",
        "SET",
        "IF",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVE",
        "PRINT",
        "RAISERROR",
        "THROW",
        "WHILE",
        "USE",
        "WAITFOR",
        "RETURN",
        "GRANT",
        "REVOKE",
        "DENY",
        "END",
        "ELSE",
        "BREAK",
        "CONTINUE",
        "KILL",
        "CHECKPOINT",
        "DISABLE",
        "ENABLE",
    ]
)
_WHOLE_REST = frozenset({"TRIGGER", "PROCEDURE", "PROC", "VIEW", "FUNCTION"})


class BatchSyntaxError(Exception):
    """The batch cannot be divided into statements."""


@lru_cache(maxsize=1024)
def parse_batch(batch: str) -> tuple[Node, ...]:
    """Return a batch's statements; raises BatchSyntaxError."""
    parser = _Parser(batch, tokenize(batch))
    nodes = []
    while parser.skip_semicolons():
        nodes.append(parser.node())
    return tuple(nodes)


@dataclass
class _Parser:
    batch: str
    tokens: Sequence[Token]
    at: int = 0
    _open_cases: int = field(default=0, init=False)

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].upper if place < len(self.tokens) else ""

    def skip_semicolons(self) -> bool:
        while self.at < len(self.tokens) and self.tokens[self.at].text == ";":
            self.at += 1
        return self.at < len(self.tokens)

    def node(self) -> Node:
        head = self.peek()
        if head == "IF":
            return self._if()
        if head == "WHILE":
            self.at += 1
            condition = self._condition()
            return While(condition, self.node())
        if head == "BEGIN" and self.peek(1) == "TRY":
            return self._try()
        if head == "BEGIN" and self.peek(1) not in ("TRAN", "TRANSACTION", "DISTRIBUTED"):
            self.at += 1
            return self._block("END")
        return self._statement()

    def _if(self) -> If:
        self.at += 1
        condition = self._condition()
        then = self.node()
        before = self.at
        self.skip_semicolons()
        if self.peek() == "ELSE":
            self.at += 1
            return If(condition, then, self.node())
        self.at = before
        return If(condition, then)

    def _block(self, end: str) -> Block:
        body = []
        while self.skip_semicolons() and self.peek() != end:
            body.append(self.node())
        if self.peek() != end:
            raise BatchSyntaxError("BEGIN without END")
        self.at += 1
        return Block(tuple(body))

    def _try(self) -> Try:
        self.at += 2
        body = self._block("END")
        self.at += 1  # TRY
        self.skip_semicolons()
        if (self.peek(), self.peek(1)) != ("BEGIN", "CATCH"):
            raise BatchSyntaxError("TRY without CATCH")
        self.at += 2
        handler = self._block("END")
        self.at += 1  # CATCH
        return Try(body, handler)

    def _condition(self) -> str:
        """Return the text up to the statement that depends on it."""
        start, depth, cases = self.at, 0, 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            cases += {"CASE": 1}.get(token.upper, 0)
            if cases and token.upper == "END":
                cases -= 1
            elif depth == 0 and self.at > start and token.upper in _STARTERS and not cases:
                break
            self.at += 1
        return self._slice(start)

    def _slice(self, start: int) -> str:
        if self.at <= start:
            raise BatchSyntaxError("a statement is missing")
        return self.batch[self.tokens[start].start : self.tokens[self.at - 1].end]

    def _statement(self) -> Statement:
        start = self.at
        head = self.peek() or self.tokens[start].text
        scan = _Scan(head)
        if head in ("CREATE", "ALTER") and self._kind() in _WHOLE_REST:
            self.at = len(self.tokens)
        else:
            self.at += 1
            while self.at < len(self.tokens):
                token = self.tokens[self.at]
                if scan.depth == 0 and token.text == ";":
                    break
                if scan.ends_before(token, self.peek(1)):
                    break
                scan.take(token)
                self.at += 1
        return Statement(head, self._slice(start), tuple(self.tokens[start : self.at]))

    def _kind(self) -> str:
        return self.peek(3) if self.peek(1) == "OR" else self.peek(1)


class _Scan:
    """State while the tokens of one statement are read."""

    def __init__(self, head: str) -> None:
        self.head = head
        self.depth = 0
        self.cases = 0
        self.words: list[str] = []
        self.has_main = head not in ("WITH", "INSERT")
        self.has_set = head not in ("UPDATE", "WITH")
        self.has_action = head != "ALTER"
        self.before = head

    def take(self, token: Token) -> None:
        self.depth += {"(": 1, ")": -1}.get(token.text, 0)
        word = token.upper
        if word == "CASE":
            self.cases += 1
        elif word == "END" and self.cases:
            self.cases -= 1
        elif self.depth == 0 and word in ("SELECT", "VALUES", "EXEC", "EXECUTE"):
            self.has_main = True
        elif self.depth == 0 and word in ("UPDATE", "DELETE", "MERGE", "INSERT"):
            if self.head == "WITH" and not self.has_main:
                self.head = word
                self.has_main = word != "INSERT"
        elif self.depth == 0 and word == "SET":
            self.has_set = self.has_action = True
        elif self.depth == 0 and word in ("ADD", "CHECK", "NOCHECK", "SWITCH", "REBUILD"):
            self.has_action = True
        self.before = word or token.text

    def ends_before(self, token: Token, following: str) -> bool:
        """Return whether a token begins the next statement."""
        word = token.upper
        if self.depth or self.cases or word not in _STARTERS or self.before == ".":
            return False
        if self.head in _RIGHTS and self.before in (*_RIGHTS, ","):
            return False
        if word in ("SELECT", "EXEC", "EXECUTE"):
            is_part = self.before in ("UNION", "ALL", "EXCEPT", "INTERSECT", "FOR", "WITH")
            return self.has_main and not is_part
        if word in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            is_part = self.before in ("ON", "THEN", "FOR", ",", "GRANT", "DENY", "REVOKE", "AFTER")
            return not is_part and not (self.head == "WITH" and not self.has_main)
        if word == "SET":
            if self.head == "ALTER" or self.before in ("DELETE", "UPDATE") or self.head == "MERGE":
                return False
            return self.has_set
        if word in ("DROP", "ALTER", "ENABLE", "DISABLE") and self.head == "ALTER":
            is_action = not self.has_action
            self.has_action = True
            return not is_action
        if word == "IF":
            return self.head not in ("DROP", "ALTER")
        if word in ("ENABLE", "DISABLE"):
            return following == "TRIGGER"
        if word == "CREATE" and self.head == "GRANT":
            return False
        return not (word == "END" and self.before == "CASE")
