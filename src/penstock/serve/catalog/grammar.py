"""SQL read with sqlglot: split into statements, parsed into its trees, and how types are named.

The dialect is sqlglot's own for this server, with every function kept as it is written and array
subscripts as they are: its usual tree has them for translation between databases. A part of a tree
that `only` has not been told of is refused: it may mean something that would be lost.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, cast

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole

STATEMENT_LETTERS_MAX = 1 << 19
TOKENS_MAX = 100_000  # about a second to parse
_SYNTAX_KEPT = ("CAST", "EXTRACT", "SUBSTRING", "TRIM", "POSITION")

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it warns of is refused here


class CatalogSql(Postgres):
    """The dialect whose trees keep what was written."""

    INDEX_OFFSET = 0

    class Tokenizer(Postgres.Tokenizer):
        """The tokenizer for which oid and regclass are types as others are, so arrays of them."""

        KEYWORDS = {  # noqa: RUF012 - as sqlglot declares it
            word: token
            for word, token in Postgres.Tokenizer.KEYWORDS.items()
            if token is not TokenType.OBJECT_IDENTIFIER
        }
        COMMANDS: ClassVar[set[TokenType]] = set()  # whose rest would be one token

    class Parser(PostgresParser):
        """The parser without knowledge of functions."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parser
            for name, parser in PostgresParser.FUNCTION_PARSERS.items()
            if name in _SYNTAX_KEPT
        }


_DIALECT = CatalogSql()


class Statement:
    """One statement: its text and its tokens."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        """tokens: never empty, without the semicolon."""
        self.text, self.tokens = text, tokens

    def words(self, count: int) -> tuple[str, ...]:
        """The first so many tokens, in capitals."""
        return tuple(token.text.upper() for token in self.tokens[:count])


def split(sql: str) -> list[Statement]:
    """The statements of a query string. Raises Refused: 42601, 54000."""
    if len(sql) > STATEMENT_LETTERS_MAX:
        raise Refused("54000", f"a query has more than {STATEMENT_LETTERS_MAX} letters")
    try:
        tokens = _DIALECT.tokenize(sql)
    except SqlglotError as error:
        raise Refused("42601", f"syntax error: {_first_line(error)}") from None
    if len(tokens) > TOKENS_MAX:
        raise Refused("54000", f"a query has more than {TOKENS_MAX} words and signs")
    found: list[Statement] = []
    current: list[Token] = []
    for token in tokens:
        if token.token_type is not TokenType.SEMICOLON:
            current.append(token)
        elif current:
            found.append(_statement(sql, current))
            current = []
    if current:
        found.append(_statement(sql, current))
    return found


def _statement(sql: str, tokens: list[Token]) -> Statement:
    return Statement(sql[tokens[0].start : tokens[-1].end + 1], tokens)


def parse_query(text: str) -> exp.Query:
    """The tree of a SELECT, VALUES or TABLE. Raises Refused: 42601, 0A000."""
    tree = _parse(text)
    if not isinstance(tree, exp.Query):
        raise unsupported(f"{type(tree).__name__} as a query")
    return tree


def parse_condition(text: str) -> exp.Expr:
    """The tree of an expression alone, as in WHERE. Raises Refused: 42601."""
    tree = _parse(f"select ({text})")
    alone = isinstance(tree, exp.Select) and set(given(tree)) == {"expressions"}
    if not alone or len(tree.expressions) != 1:
        raise Refused("42601", "syntax error in an expression")
    return cast("exp.Expr", tree.expressions[0])


def _parse(text: str) -> exp.Expr:
    try:
        trees = sqlglot.parse(text, dialect=_DIALECT)
    except SqlglotError as error:
        raise Refused("42601", f"syntax error: {_first_line(error)}") from None
    except RecursionError:
        raise Refused("54001", "stack depth limit exceeded") from None
    if len(trees) != 1 or trees[0] is None:
        raise Refused("42601", "syntax error at end of input")
    return trees[0]


def _first_line(error: SqlglotError) -> str:
    return str(error).partition("\n")[0].replace("\x1b[4m", "").replace("\x1b[0m", "")


def unsupported(what: str) -> Refused:
    """The refusal of what the catalogue cannot do."""
    return Refused("0A000", f"not supported by this server's catalogue: {what}")


def given(node: exp.Expr) -> dict[str, Any]:
    """The parts of a node that were written."""
    return {
        name: value
        for name, value in node.args.items()
        if value is not None and value is not False and value != []
    }


def only(node: exp.Expr, *names: str) -> dict[str, Any]:
    """The parts of a node, which may have no others than these. Raises Refused: 0A000."""
    found = given(node)
    for name in found:
        if name not in names:
            raise unsupported(f"{name.rstrip('_')} in {type(node).__name__}")
    return found


def name_of(identifier: exp.Expr) -> str:
    """A name: folded to small letters unless it is quoted, cut to 63 bytes."""
    text = str(identifier.this)
    if not identifier.args.get("quoted"):
        text = text.lower()
    return text.encode()[:63].decode(errors="ignore")


def type_name(node: exp.Expr) -> tuple[str | None, str, tuple[int, ...]]:
    """Schema, name (with `[]` for arrays) and modifiers of a type. Raises Refused: 0A000."""
    if not isinstance(node, exp.DataType):
        raise unsupported(f"type {node.sql()}")
    if node.this is exp.DType.ARRAY:
        only(node, "this", "expressions", "nested")
        schema, name, modifiers = type_name(node.expressions[0])
        return schema, name + "[]", modifiers
    modifiers = tuple(_modifier(part) for part in node.expressions)
    kind = node.args.get("kind")
    if node.this is exp.DType.USERDEFINED and kind is not None:
        if isinstance(kind, exp.Dot):
            return name_of(kind.this), name_of(kind.expression), modifiers
        if isinstance(kind, exp.Identifier):
            return (
                "pg_catalog" if kind.args.get("quoted") else None,
                name_of(kind),
                modifiers,
            )
        return None, str(kind).lower(), modifiers
    only(node, "this", "expressions", "nested")
    if node.this is exp.DType.FLOAT:  # real and float alike
        raise unsupported("a cast to real or float")
    return None, _SPECIAL.get(node.this, node.this.value.lower()), modifiers


def _modifier(node: exp.Expr) -> int:
    value = node.this
    if isinstance(value, exp.Literal) and not value.is_string:
        number = parse_whole(str(value.this), 2**31 - 1)
        if number is not None:
            return number
    raise unsupported("a type's modifier that is not a number")


# sqlglot's own names of types where they are not the server's.
_SPECIAL = {
    exp.DType.INT: "int4",
    exp.DType.SMALLINT: "int2",
    exp.DType.BIGINT: "int8",
    exp.DType.DOUBLE: "float8",
    exp.DType.DECIMAL: "numeric",
    exp.DType.TIMESTAMPTZ: "timestamptz",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp",
    exp.DType.VARBINARY: "bytea",
    exp.DType.CHAR: "char",
    exp.DType.BPCHAR: "bpchar",
}
