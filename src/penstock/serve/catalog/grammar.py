"""SQL read with sqlglot: statements, their trees, and names of types.

The dialect is sqlglot's own for this server, with functions and array subscripts kept as they are
written: sqlglot changes them for translation between databases. A part of a tree that `only` does
not list is refused: it may mean something that would be lost.
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

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # its warnings are refusals here


class CatalogSql(Postgres):
    """Dialect whose trees keep the written form."""

    INDEX_OFFSET = 0

    class Tokenizer(Postgres.Tokenizer):
        """Tokenizer in which oid and regclass are ordinary types, so arrays of them work."""

        KEYWORDS = {  # noqa: RUF012 - as sqlglot declares it
            word: token
            for word, token in Postgres.Tokenizer.KEYWORDS.items()
            if token is not TokenType.OBJECT_IDENTIFIER
        }
        COMMANDS: ClassVar[set[TokenType]] = set()  # their rest would be one token

    class Parser(PostgresParser):
        """Parser without knowledge of functions."""

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
        """Set text and tokens, which are never empty and have no semicolon."""
        self.text, self.tokens = text, tokens

    def words(self, count: int) -> tuple[str, ...]:
        """Return the first `count` tokens, in capitals."""
        return tuple(token.text.upper() for token in self.tokens[:count])


def split(sql: str) -> list[Statement]:
    """Return the statements of a query string. Raises Refused: 42601, 54000."""
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
    """Return the tree of a SELECT, VALUES or TABLE. Raises Refused: 42601, 0A000."""
    tree = _parse(text)
    if not isinstance(tree, exp.Query):
        raise make_unsupported(f"{type(tree).__name__} as a query")
    return tree


def parse_condition(text: str) -> exp.Expr:
    """Return the tree of an expression alone, as in WHERE. Raises Refused: 42601."""
    tree = _parse(f"select ({text})")
    alone = isinstance(tree, exp.Select) and set(parts_of(tree)) == {"expressions"}
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


def make_unsupported(what: str) -> Refused:
    """Return the refusal of something that the catalogue cannot do."""
    return Refused("0A000", f"not supported by this server's catalogue: {what}")


def parts_of(node: exp.Expr) -> dict[str, Any]:
    """Return the parts of a node that were written."""
    return {
        name: value
        for name, value in node.args.items()
        if value is not None and value is not False and value != []
    }


def only(node: exp.Expr, *names: str) -> dict[str, Any]:
    """Return the parts of a node, which may have no others than these. Raises Refused: 0A000."""
    found = parts_of(node)
    for name in found:
        if name not in names:
            raise make_unsupported(f"{name.rstrip('_')} in {type(node).__name__}")
    return found


def name_of(identifier: exp.Expr) -> str:
    """Return a name: in lower case unless it is quoted, cut to 63 bytes."""
    text = str(identifier.this)
    if not identifier.args.get("quoted"):
        text = text.lower()
    return text.encode()[:63].decode(errors="ignore")


def type_name(node: exp.Expr) -> tuple[str | None, str, tuple[int, ...]]:
    """Return schema, name (with `[]` for arrays) and modifiers of a type. Raises Refused: 0A000."""
    if not isinstance(node, exp.DataType):
        raise make_unsupported(f"type {node.sql()}")
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
        raise make_unsupported("a cast to real or float")
    return None, _SPECIAL.get(node.this, node.this.value.lower()), modifiers


def _modifier(node: exp.Expr) -> int:
    value = node.this
    if isinstance(value, exp.Literal) and not value.is_string:
        number = parse_whole(str(value.this), 2**31 - 1)
        if number is not None:
            return number
    raise make_unsupported("a type's modifier that is not a number")


# sqlglot's names of types that differ from the server's.
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
