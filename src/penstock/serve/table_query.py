"""Questions for the rows of one table: COPY TO STDOUT, and SELECT of columns, counts, conditions.

Read here, answered in `table_rows.py`. What is not of this form is refused, never answered wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.grammar import (
    Statement,
    name_of,
    only,
    parse_query,
    split,
    unsupported,
)
from penstock.serve.catalog.statements import Words

_BEHIND_WHERE = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR", "WINDOW", "UNION")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One column to sort by."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """What is asked of a table.

    schema: empty where it is found by search_path. columns: name and name in the answer, None for
    all. condition: of rows, as SQL; empty for all. counts: the number of rows is asked, under this
    name. is_copy, binary: how rows are sent.
    """

    schema: str
    name: str
    columns: tuple[tuple[str, str], ...] | None = None
    condition: str = ""
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    counts: str = ""
    is_copy: bool = False
    binary: bool = False


def is_copy(statement: object) -> bool:
    """Whether a statement is a COPY."""
    return isinstance(statement, Statement) and statement.words(1) == ("COPY",)


def read_copy(statement: Statement) -> TableQuery:
    """COPY of a table or of a query to the client. Raises Refused."""
    words = Words(statement)
    words.need("COPY")
    if words.peek() == "(":
        (inner,) = split(words.parenthesised())
        found = read_select(inner)
    else:
        first = words.name()
        schema, name = (first, words.name()) if words.take(".") else ("", first)
        columns = None
        if words.peek() == "(":
            columns = _names(words)
        found = TableQuery(schema=schema, name=name, columns=columns)
    if words.take("FROM"):
        raise unsupported("COPY FROM")
    words.need("TO")
    if not words.take("STDOUT"):
        raise unsupported("COPY but TO STDOUT")
    return TableQuery(
        schema=found.schema,
        name=found.name,
        columns=found.columns,
        condition=found.condition,
        order=found.order,
        limit=found.limit,
        offset=found.offset,
        counts=found.counts,
        is_copy=True,
        binary=_format(words) == "binary",
    )


def _names(words: Words) -> tuple[tuple[str, str], ...]:
    words.need("(")
    found = []
    while True:
        name = words.name()
        found.append((name, name))
        if not words.take(","):
            break
    words.need(")")
    return tuple(found)


def _format(words: Words) -> str:
    words.take("WITH")
    if words.take("BINARY"):
        words.end()
        return "binary"
    found = "text"
    if words.take("("):
        while True:
            option = words.name()
            value = words.token().text.lower()
            if option != "format" or value not in ("text", "binary"):
                raise unsupported(f"COPY with {option} {value}")
            found = value
            if not words.take(","):
                break
        words.need(")")
    words.end()
    return found


def read_select(statement: Statement) -> TableQuery:
    """A SELECT of one table. Raises Refused: 0A000 for any other."""
    tree = parse_query(statement.text)
    if not isinstance(tree, exp.Select):
        raise unsupported("this query of a table")
    parts = only(tree, "expressions", "from_", "where", "order", "limit", "offset")
    start = parts.get("from_")
    if start is None or not isinstance(start.this, exp.Table):
        raise unsupported("this query of a table")
    table = start.this
    given = only(table, "this", "db", "catalog", "alias", "only")
    alias = given.get("alias")
    name = name_of(table.this)
    known = {name, name_of(alias.this)} if alias is not None and alias.this else {name}
    counts, columns = _selected(tree.expressions, known)
    limit, offset = parts.get("limit"), parts.get("offset")
    return TableQuery(
        schema=name_of(given["db"]) if "db" in given else "",
        name=name,
        columns=columns,
        counts=counts,
        condition=_where(statement) if "where" in parts else "",
        order=_order(parts["order"], known) if "order" in parts else (),
        limit=None if limit is None else _number(limit),
        offset=0 if offset is None else _number(offset),
    )


def _selected(
    expressions: Sequence[exp.Expr], known: set[str]
) -> tuple[str, tuple[tuple[str, str], ...] | None]:
    if len(expressions) == 1 and isinstance(expressions[0], exp.Star):
        only(expressions[0])
        return "", None
    if len(expressions) == 1 and (count := _counted(expressions[0])):
        return count, None
    return "", tuple(_column(one, known) for one in expressions)


def _counted(node: exp.Expr) -> str:
    """The name of a count in the answer; empty: it is none."""
    name = "count"
    if isinstance(node, exp.Alias):
        name, node = name_of(node.args["alias"]), node.this
    if not isinstance(node, exp.Anonymous) or str(node.this).lower() != "count":
        if not isinstance(node, exp.Count):
            return ""
        arguments = [node.this]
    else:
        arguments = node.expressions
    is_all = len(arguments) == 1 and isinstance(arguments[0], exp.Star | exp.Literal)
    if not is_all:
        raise unsupported("a count of anything but rows")
    return name


def _column(node: exp.Expr, known: set[str]) -> tuple[str, str]:
    alias = ""
    if isinstance(node, exp.Alias):
        alias, node = name_of(node.args["alias"]), node.this
    if not isinstance(node, exp.Column):
        raise unsupported("an expression over a table's columns")
    parts = only(node, "this", "table", "db")
    if "table" in parts and name_of(parts["table"]) not in known:
        raise Refused("42P01", f'missing FROM-clause entry for table "{name_of(parts["table"])}"')
    if isinstance(node.this, exp.Star):
        raise unsupported("a star beside other columns")
    name = name_of(node.this)
    return name, alias or name


def _order(node: exp.Expr, known: set[str]) -> tuple[Order, ...]:
    found = []
    for one in node.expressions:
        if not isinstance(one, exp.Ordered) or not isinstance(one.this, exp.Column):
            raise unsupported("ORDER BY what is no column")
        if one.args.get("nulls_first") and not one.args.get("desc"):
            raise unsupported("NULLS FIRST")
        name, _ = _column(one.this, known)
        found.append(Order(column=name, descending=bool(one.args.get("desc"))))
    return tuple(found)


def _number(node: exp.Expr) -> int:
    value = node.args.get("expression")
    if isinstance(value, exp.Literal) and re.fullmatch(r"\d{1,18}", str(value.this)):
        return int(value.this)
    raise unsupported("LIMIT and OFFSET but with a number")


def _where(statement: Statement) -> str:
    """What stands behind WHERE, as it was written."""
    depth, first = 0, -1
    last = len(statement.tokens)
    for place, token in enumerate(statement.tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        word = token.text.upper().partition(" ")[0]
        if first < 0 and word == "WHERE":
            first = place + 1
        elif first >= 0 and word in _BEHIND_WHERE:
            last = place
            break
    start = statement.tokens[0].start
    tokens = statement.tokens
    return statement.text[tokens[first].start - start : tokens[last - 1].end + 1 - start]
