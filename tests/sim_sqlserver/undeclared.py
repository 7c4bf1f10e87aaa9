"""Types of the parameters of a text that declares none, for sp_describe_undeclared_parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_sqlserver.lexer import Token, tokenize
from sim_sqlserver.metadata import type_info
from sim_sqlserver.names import literal
from sim_sqlserver.sqltypes import NUMBERS, SqlType, parse_type

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

_DEFAULT = SqlType("nvarchar", length=4000)


def describe(session: Session, text: str) -> list[list[str]]:
    """Return a row of PostgreSQL values for each parameter."""
    tokens = tokenize(text)
    names: list[str] = []
    for token in tokens:
        if token.kind == "variable" and not token.text.startswith("@@") and token.text not in names:
            names.append(token.text)
    guesses = _guess_inserted(session, tokens)
    rows = []
    for place, name in enumerate(names, 1):
        sql_type = guesses.get(name) or _guess_compared(session, tokens, name) or _DEFAULT
        rows.append(_row(place, name, sql_type))
    return rows


def _table_types(session: Session, tokens: tuple[Token, ...]) -> dict[str, SqlType]:
    """Return the types of the columns of the tables that a text names."""
    found: dict[str, SqlType] = {}
    for place, token in enumerate(tokens):
        if token.upper in ("FROM", "INTO", "UPDATE", "JOIN") and place + 1 < len(tokens):
            parts = []
            at = place + 1
            while at < len(tokens) and tokens[at].kind in ("word", "name"):
                parts.append(session.spelling(tokens[at].identifier))
                if at + 1 >= len(tokens) or tokens[at + 1].text != ".":
                    break
                at += 2
            if parts:
                schema = parts[-2] if len(parts) > 1 else ""
                for column in session.columns_of(schema, parts[-1]):
                    found.setdefault(column.name.lower(), column.type)
    return found


def _guess_inserted(session: Session, tokens: tuple[Token, ...]) -> dict[str, SqlType]:
    """Return the types of the parameters of INSERT .. VALUES."""
    words = [token.upper for token in tokens]
    if "INSERT" not in words or "VALUES" not in words:
        return {}
    types = _table_types(session, tokens)
    values = words.index("VALUES")
    names = [t.identifier.lower() for t in tokens[:values] if t.kind in ("word", "name")]
    into = words.index("INTO") if "INTO" in words else words.index("INSERT")
    opening = next((p for p in range(into, values) if tokens[p].text == "("), None)
    columns = list(types) if opening is None else []
    if opening is not None:
        columns = [
            t.identifier.lower() for t in tokens[opening:values] if t.kind in ("word", "name")
        ]
    del names
    found: dict[str, SqlType] = {}
    place = depth = 0
    for token in tokens[values + 1 :]:
        if token.text == "(":
            depth += 1
            place = 0 if depth == 1 else place
        elif token.text == ")":
            depth -= 1
        elif token.text == "," and depth == 1:
            place += 1
        elif token.kind == "variable" and depth == 1 and place < len(columns):
            sql_type = types.get(columns[place])
            if sql_type is not None:
                found[token.text] = sql_type
    return found


def _guess_compared(session: Session, tokens: tuple[Token, ...], name: str) -> SqlType | None:
    """Return the type of what a parameter is cast to or compared with."""
    types = _table_types(session, tokens)
    for place, token in enumerate(tokens):
        if token.text != name:
            continue
        if place + 2 < len(tokens) and tokens[place + 1].upper == "AS":
            closing = next(p for p in range(place, len(tokens)) if tokens[p].text == ")")
            if closing + 1 < len(tokens) and tokens[closing + 1].text == ")":
                closing += 1
            spelling = " ".join(t.text for t in tokens[place + 2 : closing])
            try:
                return parse_type(spelling, is_cast=True)
            except ValueError:
                return None
        if place >= 2 and tokens[place - 1].text in ("=", "<", ">", "<=", ">=", "<>", "!="):
            return types.get(tokens[place - 2].identifier.lower())
        if place and tokens[place - 1].upper == "TOP":
            return SqlType("bigint")
    return None


def _row(place: int, name: str, sql_type: SqlType) -> list[str]:
    system, user = NUMBERS["timestamp" if sql_type.name == "rowversion" else sql_type.name]
    nulls = ["null"] * 5
    info = type_info(sql_type)
    return [
        str(place), literal(name), str(system), literal(sql_type.text),
        str(sql_type.bytes_length), str(sql_type.precision), str(sql_type.scale),
        "null::int", *nulls[:4], "null::int", *nulls[:3], "null::int2", "null::int2", "null::int2",
        "1", "0", "null", str(info[0]), str(sql_type.bytes_length), str(user)
    ][:24]  # fmt: skip
