"""Statements that are not queries: transactions, settings, and clean-up statements of drivers."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot.tokenizer_core import Token, TokenType

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog import settings
from penstock.serve.catalog.answers import Answer, AnswerColumn, Notice
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.grammar import Statement, make_unsupported
from penstock.serve.catalog.types import TEXT

_READ_TIME = re.compile(r"([0-9]{1,20})(?:\s*ht)?")
_NO_TRANSACTION = Notice(
    severity="WARNING", sqlstate="25P01", message="there is no transaction in progress"
)
_IN_TRANSACTION = Notice(
    severity="WARNING",
    sqlstate="25001",
    message="there is already a transaction in progress",
)
_ISOLATION = {
    ("READ", "COMMITTED"): "read committed",
    ("READ", "UNCOMMITTED"): "read uncommitted",
    ("REPEATABLE", "READ"): "repeatable read",
    ("SERIALIZABLE",): "serializable",
}


_STATEMENTS = frozenset(
    (
        *("ALTER", "ANALYZE", "CALL", "CHECKPOINT", "CLOSE", "CLUSTER", "COMMENT", "COPY"),
        *("CREATE", "DECLARE", "DELETE", "DO", "DROP", "EXECUTE", "EXPLAIN", "FETCH", "GRANT"),
        *("IMPORT", "INSERT", "LISTEN", "LOAD", "LOCK", "MERGE", "MOVE", "NOTIFY", "PREPARE"),
        *("REASSIGN", "REFRESH", "REINDEX", "REVOKE", "SECURITY", "TRUNCATE", "UPDATE", "VACUUM"),
    )
)

_QUOTED = (TokenType.STRING, TokenType.BYTE_STRING, TokenType.IDENTIFIER)
_VALUES = (*_QUOTED, TokenType.NUMBER)


class Words:
    """Walks over a statement's tokens."""

    def __init__(self, statement: Statement) -> None:
        """Start at the statement's first token."""
        self._tokens, self._text = statement.tokens, statement.text
        self._start = statement.tokens[0].start
        self._at = 0

    def peek(self) -> str:
        """Return the next token in capitals; empty at the end."""
        return self._tokens[self._at].text.upper() if self._at < len(self._tokens) else ""

    def token(self) -> Token:
        """Take the next token. Raises Refused: 42601."""
        if self._at >= len(self._tokens):
            raise Refused("42601", "syntax error at end of input")
        self._at += 1
        return self._tokens[self._at - 1]

    def take(self, *words: str) -> bool:
        """Take these words if they are next."""
        coming = tuple(token.text.upper() for token in self._tokens[self._at :][: len(words)])
        quoted = any(
            token.token_type in _QUOTED for token in self._tokens[self._at :][: len(words)]
        )
        if coming != words or quoted:
            return False
        self._at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Raise unless these words are next; take them."""
        if not self.take(*words):
            raise self.error()

    def error(self) -> Refused:
        """Return the syntax error at this place."""
        if self._at >= len(self._tokens):
            return Refused("42601", "syntax error at end of input")
        return Refused("42601", f'syntax error at or near "{self._tokens[self._at].text}"')

    def is_last(self) -> bool:
        """Return whether the next token is the last one."""
        return self._at + 1 >= len(self._tokens)

    def rest(self) -> Statement:
        """Take the rest as a statement. Raises Refused: 42601 if there is none."""
        if self.is_done():
            raise self.error()
        tokens, self._at = self._tokens[self._at :], len(self._tokens)
        return Statement(self._text[tokens[0].start - self._start :], tokens)

    def is_done(self) -> bool:
        """Return whether all tokens were taken."""
        return self._at >= len(self._tokens)

    def end(self) -> None:
        """Raise unless all tokens were taken."""
        if not self.is_done():
            raise self.error()

    def name(self) -> str:
        """Take an identifier, folded to lower case unless it is quoted."""
        token = self.token()
        if token.token_type is TokenType.IDENTIFIER:
            return token.text
        if token.token_type is TokenType.STRING or not re.fullmatch(r"[^\W\d][\w$]*", token.text):
            self._at -= 1
            raise self.error()
        return token.text.lower()

    def name_list(self) -> list[str]:
        """Return identifiers between commas."""
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        return found

    def names(self) -> tuple[str, ...]:
        """Take identifiers in parentheses; none if no parenthesis is next."""
        if not self.take("("):
            return ()
        found = self.name_list()
        self.need(")")
        return tuple(found)

    def value(self) -> str:
        """Return a text in quotes, a word or a number."""
        token = self.token()
        is_value = token.token_type in _VALUES or re.fullmatch(r"[\w$.]+", token.text)
        if not is_value:
            self._at -= 1
            raise self.error()
        return token.text

    def is_string(self) -> bool:
        """Return whether the next token is a text."""
        strings = (TokenType.STRING, TokenType.BYTE_STRING)
        return self._at < len(self._tokens) and self._tokens[self._at].token_type in strings

    def take_parentheses(self) -> str:
        """Take the text between the next parenthesis and the one that closes it."""
        self.need("(")
        depth, first = 1, self._at
        while depth:
            token = self.token()
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        last = self._tokens[self._at - 1]
        if first == self._at - 1:
            raise self.error()
        return self._text[self._tokens[first].start - self._start : last.start - self._start]

    def values(self) -> list[str]:
        """Take the values after TO in SET: words, numbers and texts with commas."""
        found = []
        while True:
            sign = "-" if self.take("-") else ""
            found.append(sign + self.token().text)
            if not self.take(","):
                return found


def plain(context: Context, statement: Statement) -> Answer | None:
    """Return the answer to such a statement; None for one of another kind. Raises Refused."""
    words = Words(statement)
    first = words.token().text.upper()
    method = _METHODS.get(first)
    return None if method is None else method(context, words)


def allowed_when_failed(statement: Statement) -> bool:
    """Return whether a statement is allowed in a failed transaction."""
    first = statement.words(1)[0]
    return first in ("COMMIT", "END", "ROLLBACK", "ABORT")


def no_statement(statement: Statement) -> Refused:
    """Return the refusal of a statement that has no answer here, or of other text."""
    first = statement.words(1)[0]
    if first not in _STATEMENTS:
        return Words(statement).error()
    return make_unsupported(f"the statement {first}")


# -- transactions -----------------------------------------------------------------------------


def _modes(context: Context, words: Words) -> None:
    while not words.is_done():
        if words.take("ISOLATION", "LEVEL"):
            for parts, level in _ISOLATION.items():
                if words.take(*parts):
                    settings.set_value(context, "transaction_isolation", level, local=True)
                    break
            else:
                raise words.error()
        elif words.take("READ", "ONLY"):
            context.session.read_only = True
        elif words.take("READ", "WRITE"):
            context.session.read_only = False
        elif words.take("NOT", "DEFERRABLE") or words.take("DEFERRABLE"):
            pass
        else:
            raise words.error()
        words.take(",")


def _begin(context: Context, words: Words, tag: str) -> Answer:
    session = context.session
    notices = []
    if session.transaction == "I":
        session.transaction = "T"
        session.read_only = session.settings.get("default_transaction_read_only") == "on"
    else:
        notices.append(_IN_TRANSACTION)
    _modes(context, words)
    return Answer(tag=tag, notices=notices)


def _begin_work(context: Context, words: Words) -> Answer:
    words.take("WORK")
    words.take("TRANSACTION")
    return _begin(context, words, "BEGIN")


def _start(context: Context, words: Words) -> Answer:
    words.need("TRANSACTION")
    return _begin(context, words, "START TRANSACTION")


def _finish(context: Context, *, committed: bool) -> Answer:
    session = context.session
    notices = [] if session.transaction != "I" else [_NO_TRANSACTION]
    committed = committed and session.transaction != "E"
    if committed:
        context.commit_publications()
    session.pending.clear()
    settings.end_transaction(context, committed=committed)
    session.transaction, session.read_only = "I", False
    session.snapshot = session.read_time = None
    session.savepoints.clear()
    return Answer(tag="COMMIT" if committed else "ROLLBACK", notices=notices)


def _commit(context: Context, words: Words) -> Answer:
    words.take("WORK")
    words.take("TRANSACTION")
    if words.take("PREPARED"):
        raise make_unsupported("prepared transactions")
    if words.take("AND", "CHAIN"):
        raise make_unsupported("AND CHAIN")
    words.take("AND", "NO", "CHAIN")
    words.end()
    return _finish(context, committed=True)


def _rollback(context: Context, words: Words) -> Answer:
    words.take("WORK")
    words.take("TRANSACTION")
    if words.take("PREPARED"):
        raise make_unsupported("prepared transactions")
    if words.take("TO"):
        words.take("SAVEPOINT")
        return _to_savepoint(context, words.name())
    words.take("AND", "NO", "CHAIN")
    words.end()
    return _finish(context, committed=False)


def _to_savepoint(context: Context, name: str) -> Answer:
    session = context.session
    _need_savepoint(context, name)
    while session.savepoints[-1][0] != name:
        session.savepoints.pop()
    del session.pending[session.savepoints[-1][1] :]
    session.transaction = "T"
    return Answer(tag="ROLLBACK")


def _need_savepoint(context: Context, name: str) -> None:
    if name not in (known for known, _ in context.session.savepoints):
        raise Refused("3B001", f'savepoint "{name}" does not exist')


def _savepoint(context: Context, words: Words) -> Answer:
    if context.session.transaction == "I":
        raise Refused("25P01", "SAVEPOINT can only be used in transaction blocks")
    context.session.savepoints.append((words.name(), len(context.session.pending)))
    words.end()
    return Answer(tag="SAVEPOINT")


def _release(context: Context, words: Words) -> Answer:
    words.take("SAVEPOINT")
    name, session = words.name(), context.session
    _need_savepoint(context, name)
    while session.savepoints.pop()[0] != name:
        pass
    return Answer(tag="RELEASE")


# -- settings ---------------------------------------------------------------------------------


def _show(context: Context, words: Words) -> Answer:
    if words.take("TRANSACTION", "ISOLATION", "LEVEL"):
        name = "transaction_isolation"
    elif words.take("TIME", "ZONE"):
        name = "TimeZone"
    elif words.take("SESSION", "AUTHORIZATION"):
        name = "session_authorization"
    elif words.take("ALL"):
        raise make_unsupported("SHOW ALL")
    else:
        name = _read_dotted(words)
    words.end()
    value = settings.current(context, name)
    fact = context.facts.settings.get(name.lower())
    column = AnswerColumn(name=fact[0] if fact else name, type_oid=TEXT)
    return Answer(tag="SHOW", columns=(column,), rows=[(value,)])


def _read_dotted(words: Words) -> str:
    name = words.name()
    while words.take("."):
        name += "." + words.name()
    return name


def _set(context: Context, words: Words) -> Answer:
    local = words.take("LOCAL")
    is_session = not local and words.take("SESSION")
    notices = []
    if local and context.session.transaction == "I":
        notices.append(
            Notice(
                severity="WARNING",
                sqlstate="25P01",
                message="SET LOCAL can only be used in transaction blocks",
            )
        )
    if is_session and words.take("CHARACTERISTICS", "AS", "TRANSACTION"):
        return _characteristics(context, words)
    if words.take("TRANSACTION"):
        return _set_transaction(context, words)
    _set_one(context, words, local=local)
    return Answer(tag="SET", notices=notices)


def _set_one(context: Context, words: Words, *, local: bool) -> None:
    if words.take("TIME", "ZONE"):
        name, equals = "TimeZone", True
    elif words.take("NAMES"):
        name, equals = "client_encoding", True
    elif words.peek() in ("ROLE", "AUTHORIZATION"):
        raise make_unsupported("SET ROLE and SET SESSION AUTHORIZATION")
    else:
        name, equals = _read_dotted(words), False
    if not equals and not words.take("TO"):
        words.need("=")
    if not words.is_string() and words.take("DEFAULT"):
        value = None
    else:
        many = words.values()
        value = ", ".join(many)
    words.end()
    if name == "yb_read_time" and context.dialect == "yugabyte":
        _read_time(context, value, local=local)
    outside = local and context.session.transaction == "I"
    if not outside:
        settings.set_value(context, name, value, local=local)


def _read_time(context: Context, value: str | None, *, local: bool) -> None:
    match = None if value is None else _READ_TIME.fullmatch(value.strip())
    if value is not None and match is None:
        raise Refused("22023", f'invalid value for parameter "yb_read_time": "{value}"')
    time = None if match is None else match[1]
    if time is not None and int(time) and not local:
        raise Refused(
            "0A000",
            "yb_read_time is for one transaction",
            hint="BEGIN, then SET LOCAL yb_read_time TO ...",
        )
    context.session.read_time = time


def _characteristics(context: Context, words: Words) -> Answer:
    session = context.session
    while not words.is_done():
        if words.take("READ", "ONLY"):
            session.settings["default_transaction_read_only"] = "on"
        elif words.take("READ", "WRITE"):
            session.settings["default_transaction_read_only"] = "off"
        elif words.take("ISOLATION", "LEVEL"):
            for parts, level in _ISOLATION.items():
                if words.take(*parts):
                    session.settings["default_transaction_isolation"] = level
                    break
            else:
                raise words.error()
        elif not (words.take("NOT", "DEFERRABLE") or words.take("DEFERRABLE")):
            raise words.error()
        words.take(",")
    settings.report(context, "default_transaction_read_only")
    return Answer(tag="SET")


def _set_transaction(context: Context, words: Words) -> Answer:
    session = context.session
    if words.take("SNAPSHOT"):
        if session.transaction == "I":
            raise Refused("25P01", "SET TRANSACTION can only be used in transaction blocks")
        level = session.settings.get("transaction_isolation", "read committed")
        if level not in ("repeatable read", "serializable"):
            raise Refused(
                "0A000",
                "a snapshot-importing transaction must have isolation level SERIALIZABLE or "
                "REPEATABLE READ",
            )
        session.snapshot = words.token().text
        words.end()
        return Answer(tag="SET")
    if session.transaction == "I":
        return Answer(tag="SET", notices=[_NO_TRANSACTION])
    _modes(context, words)
    return Answer(tag="SET")


def _reset(context: Context, words: Words) -> Answer:
    if words.take("ALL"):
        names = list(context.session.settings)
    else:
        names = [_read_dotted(words)]
    words.end()
    for name in names:
        settings.set_value(context, name, None)
    return Answer(tag="RESET")


def _discard(context: Context, words: Words) -> Answer:
    what = words.token().text.upper()
    words.end()
    if what == "ALL":
        if context.session.transaction != "I":
            raise Refused("25001", "DISCARD ALL cannot run inside a transaction block")
        for name in list(context.session.settings):
            settings.set_value(context, name, None)
    elif what not in ("PLANS", "TEMP", "TEMPORARY", "SEQUENCES"):
        raise words.error()
    forgets = "*" if what in ("ALL", "PLANS") else ""
    return Answer(tag=f"DISCARD {what}", forgets=forgets)


def _unlisten(_: Context, words: Words) -> Answer:
    words.token()
    return Answer(tag="UNLISTEN")


def _deallocate(_: Context, words: Words) -> Answer:
    words.take("PREPARE")
    if words.take("ALL"):
        words.end()
        return Answer(tag="DEALLOCATE ALL", forgets="*")
    name = words.name()
    words.end()
    return Answer(tag="DEALLOCATE", forgets=name)


_METHODS: dict[str, Callable[[Context, Words], Answer]] = {
    "BEGIN": _begin_work,
    "START": _start,
    "COMMIT": _commit,
    "END": _commit,
    "ROLLBACK": _rollback,
    "ABORT": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _release,
    "SHOW": _show,
    "SET": _set,
    "RESET": _reset,
    "DISCARD": _discard,
    "DEALLOCATE": _deallocate,
    "UNLISTEN": _unlisten,
}
