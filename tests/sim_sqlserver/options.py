"""SET options of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_sqlserver.errors import SqlError
from sim_sqlserver.names import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim_sqlserver.lexer import Token
    from sim_sqlserver.session import Session

_SWITCHES = frozenset(
    [
        "NOCOUNT",
        "XACT_ABORT",
        "IMPLICIT_TRANSACTIONS",
        "QUOTED_IDENTIFIER",
        "ANSI_NULLS",
        "ANSI_PADDING",
        "ANSI_WARNINGS",
        "ANSI_NULL_DFLT_ON",
        "ANSI_NULL_DFLT_OFF",
        "ANSI_DEFAULTS",
        "ARITHABORT",
        "ARITHIGNORE",
        "CONCAT_NULL_YIELDS_NULL",
        "CURSOR_CLOSE_ON_COMMIT",
        "NUMERIC_ROUNDABORT",
        "FMTONLY",
        "NOEXEC",
        "PARSEONLY",
        "STATISTICS",
        "REMOTE_PROC_TRANSACTIONS",
        "NO_BROWSETABLE",
        "FORCEPLAN",
    ]
)
_VALUES = frozenset(
    [
        "LOCK_TIMEOUT",
        "TEXTSIZE",
        "DATEFORMAT",
        "LANGUAGE",
        "ROWCOUNT",
        "DATEFIRST",
        "DEADLOCK_PRIORITY",
    ]
)


def set_option(session: Session, tokens: Sequence[Token]) -> None:
    """Run SET with an option."""
    word = tokens[0].upper
    if word == "TRANSACTION":
        _isolation(session, " ".join(token.upper for token in tokens[3:]))
    elif word == "IDENTITY_INSERT":
        _identity(session, tokens)
    elif word in _VALUES:
        _value(session, word, tokens)
    elif word in _SWITCHES:
        state = tokens[-1].upper
        names = [token.upper for token in tokens[:-1] if token.upper]
        for name in names:
            session.options[name.lower()] = state
    else:
        raise SqlError(195, f"'{tokens[0].text}' is not a recognized SET option.", severity=15)


def _isolation(session: Session, level: str) -> None:
    if session.trancount and level == "SNAPSHOT" and session.options.get("isolation") != level:
        said = "Transaction failed because the transaction isolation level cannot be switched to "
        raise SqlError(3951, said + "snapshot inside a transaction.")
    session.options["isolation"] = level


def _identity(session: Session, tokens: Sequence[Token]) -> None:
    from sim_sqlserver.ddl import table_id
    from sim_sqlserver.ddl_parse import Reader

    reader = Reader("", tokens)
    reader.at = 1
    name = reader.name()
    state = reader.word()
    try:
        number = table_id(session, name)
    except SqlError as error:
        shown = ".".join(part for part in name if part)
        raise SqlError(1088, f'Cannot find the object "{shown}".') from error
    if state == "OFF":
        if session.identity_table == number:
            session.identity_table = 0
        return
    if session.identity_table not in (0, number):
        said = "IDENTITY_INSERT is already ON for another table. Cannot perform SET operation for "
        raise SqlError(8107, f"{said}table '{name[1]}'.")
    found = session.rows(
        f"select 1 from pg_attribute where attrelid = {number} and attidentity <> ''"
    )
    if not found:
        said = f"Table '{name[1]}' does not have the identity property. Cannot perform SET "
        raise SqlError(8106, said + "operation.")
    session.identity_table = number


def _value(session: Session, word: str, tokens: Sequence[Token]) -> None:
    text = "".join(token.text for token in tokens[1:])
    if tokens[1].kind == "variable":
        text = str(session.variables[tokens[1].text.lstrip("@").lower()].value)
    session.options[word.lower()] = text
    if word == "LOCK_TIMEOUT":
        wait = int(text)
        shown = "0" if wait < 0 else f"{max(wait, 1)}ms"
        session.backend.run(f"set lock_timeout = {literal(shown)}")
