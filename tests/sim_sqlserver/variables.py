"""Variables of a batch, parameters included, and their values in PostgreSQL statements."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sim_sqlserver.decode import Value
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Token, tokenize
from sim_sqlserver.names import literal
from sim_sqlserver.sqltypes import SqlType, parse_type

PARAMETERS_MAX = 2100


@dataclass(slots=True)
class Variable:
    """A variable or parameter.

    Attributes:
        type: Type of its declaration.
        value: Python value.
        is_output: Whether the caller gets it back.
    """

    type: SqlType
    value: Value = None
    is_output: bool = False

    def text(self) -> str:
        """Return the value as part of a PostgreSQL statement."""
        return value_text(self.value, self.type)


def value_text(value: Value, sql_type: SqlType) -> str:
    """Return a value as part of a PostgreSQL statement."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if isinstance(value, Decimal):
        return f"'{value:f}'::numeric"
    if isinstance(value, float):
        return f"'{value!r}'::float8"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"'\\x{bytes(value).hex()}'::bytea"
    if sql_type.name == "uniqueidentifier":
        return f"{literal(value)}::sim.uniqueidentifier"
    if sql_type.name == "date":
        return f"{literal(value)}::date"
    if "\0" in value:
        raise SqlError(2628, "The simulator cannot store the character 0.")
    return literal(value)


def parse_declarations(text: str) -> list[tuple[str, SqlType, bool]]:
    """Return name, type and whether it is output of `@a int, @b nvarchar(10) OUTPUT`."""
    return [declaration for declaration, _ in split_declarations(tokenize(text))]


def split_declarations(
    tokens: tuple[Token, ...],
) -> list[tuple[tuple[str, SqlType, bool], tuple[Token, ...]]]:
    """Return the declarations with the tokens of their values."""
    found = []
    for part in split_at_commas(tokens):
        name = part[0].text.lstrip("@").lower()
        rest = list(part[1:])
        if rest and rest[0].upper == "AS":
            rest.pop(0)
        value: tuple[Token, ...] = ()
        equals = [place for place, token in enumerate(rest) if token.text == "="]
        is_output = any(token.upper in ("OUTPUT", "OUT") for token in rest)
        if equals:
            value = tuple(t for t in rest[equals[0] + 1 :] if t.upper not in ("OUTPUT", "OUT"))
            rest = rest[: equals[0]]
        spelling = " ".join(t.text for t in rest if t.upper not in ("OUTPUT", "OUT"))
        try:
            sql_type = parse_type(spelling)
        except ValueError as error:
            raise SqlError(2715, f"Cannot find data type {spelling}.") from error
        found.append(((name, sql_type, is_output), value))
    return found


def split_at_commas(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """Return the parts between commas outside parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]
