"""Queries for the rows of one table: COPY TO STDOUT, and SELECT of columns, constants, counts.

They are read here and answered in `table_rows.py`. Other forms are refused, never answered
wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.grammar import (
    Statement,
    make_unsupported,
    name_of,
    only,
    parse_query,
    split,
)
from penstock.serve.catalog.row_filter import SYSTEM_COLUMNS
from penstock.serve.catalog.statements import Words
from penstock.serve.catalog.types import BOOL, INT4, INT8, TEXT

FORMATS = ("text", "csv", "binary")
_FORBIDDEN = "\\.abcdefghijklmnopqrstuvwxyz0123456789"  # as delimiters of the text format
_SYNTAX, _UNSUPPORTED, _INVALID = "42601", "0A000", "22023"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyForm:
    """Form in which COPY prints rows.

    Attributes:
        delimiter: one character.
        quote: one character.
        escape: one character.
        null: text for NULL.
        force_quote: columns that are always in quotes; None for all.
    """

    format: str = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] | None = ()

    @property
    def is_binary(self) -> bool:
        """Return whether values are in their binary forms."""
        return self.format == "binary"


def read_copy_form(words: Words) -> CopyForm:
    """Read the rest after STDOUT, to the end. Raises Refused: 42601, 22023, 0A000."""
    words.take("WITH")
    given: dict[str, Any] = {}

    def give(name: str, value: Any) -> None:
        if name in given:
            raise Refused(_SYNTAX, "conflicting or redundant options")
        given[name] = value

    if words.take("("):
        while True:
            _read_option(words, give)
            if not words.take(","):
                break
        words.need(")")
    else:
        _read_words(words, give)
    words.end()
    return _form_of(given)


def _read_option(words: Words, give: Callable[[str, Any], None]) -> None:
    name = words.name()
    if name in ("force_not_null", "force_null"):
        raise Refused(_UNSUPPORTED, f"COPY {name} only available using COPY FROM")
    if name == "force_quote":
        give(name, None if words.take("*") else words.names())
    elif name == "header":
        give(name, _read_boolean(words))
    elif name == "format":
        value = words.value()
        if value not in FORMATS:
            raise Refused(_INVALID, f'COPY format "{value}" not recognized')
        give(name, value)
    elif name in ("delimiter", "null", "quote", "escape", "encoding"):
        give(name, words.value())
    else:
        raise Refused(_SYNTAX, f'option "{name}" not recognized')


def _read_boolean(words: Words) -> bool:
    if words.peek() in (",", ")", ""):
        return True
    value = words.value().lower()
    if value == "match":
        raise Refused(_UNSUPPORTED, 'cannot use "match" with HEADER in COPY TO')
    if value not in ("true", "on", "1", "false", "off", "0"):
        raise Refused(_SYNTAX, 'header requires a Boolean value or "match"')
    return value in ("true", "on", "1")


def _read_words(words: Words, give: Callable[[str, Any], None]) -> None:
    """Read the options of PostgreSQL 8, which drivers still write."""
    while not words.is_done():
        if words.take("BINARY"):
            give("format", "binary")
        elif words.take("CSV"):
            give("format", "csv")
        elif words.take("HEADER"):
            give("header", True)
        elif words.take("FORCE", "QUOTE"):
            give("force_quote", None if words.take("*") else tuple(words.name_list()))
        elif words.peek() in ("DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING"):
            name = words.name()
            words.take("AS")
            give(name, words.value())
        else:
            raise words.error()


def _form_of(given: dict[str, Any]) -> CopyForm:
    form = given.get("format", "text")
    if form == "binary" and {"delimiter", "null", "header"} & given.keys():
        found = [one for one in ("delimiter", "null", "header") if one in given]
        raise Refused(_SYNTAX, f"cannot specify {found[0].upper()} in BINARY mode")
    if form != "csv":
        for name in ("quote", "escape", "force_quote"):
            if name in given:
                raise Refused(_UNSUPPORTED, f"COPY {name} requires CSV mode")
    encoding = given.get("encoding", "utf8").lower().replace("-", "")
    if encoding not in ("utf8", "unicode"):
        raise make_unsupported(f"COPY with the encoding {given['encoding']}")
    is_csv = form == "csv"
    quote = given.get("quote", '"')
    made = CopyForm(
        format=form,
        delimiter=given.get("delimiter", "," if is_csv else "\t"),
        null=given.get("null", "" if is_csv else "\\N"),
        header=given.get("header", False),
        quote=quote,
        escape=given.get("escape", quote),
        force_quote=given.get("force_quote", ()),
    )
    _check(made)
    return made


def _check(form: CopyForm) -> None:
    for name, value in (
        ("delimiter", form.delimiter),
        ("quote", form.quote),
        ("escape", form.escape),
    ):
        if len(value.encode()) != 1:
            raise Refused(_UNSUPPORTED, f"COPY {name} must be a single one-byte character")
    if form.delimiter in "\r\n":
        raise Refused(_INVALID, "COPY delimiter cannot be newline or carriage return")
    if set(form.null) & set("\r\n"):
        raise Refused(_INVALID, "COPY null representation cannot use newline or carriage return")
    if form.format == "text" and form.delimiter in _FORBIDDEN:
        raise Refused(_INVALID, f'COPY delimiter cannot be "{form.delimiter}"')
    if form.format == "csv" and form.delimiter == form.quote:
        raise Refused(_INVALID, "COPY delimiter and quote must be different")
    if form.delimiter in form.null:
        raise Refused(_UNSUPPORTED, "COPY delimiter must not appear in the NULL specification")
    if form.format == "csv" and form.quote in form.null:
        raise Refused(_UNSUPPORTED, "CSV quote character must not appear in the NULL specification")


_BEHIND_WHERE = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR", "WINDOW", "UNION")
_AGGREGATES = ("count", "max", "min")
_UNNAMED = "?column?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One part of the select list.

    Attributes:
        name: its name in the answer.
        column: the column; empty for a constant and for a count of rows.
        function: `count`, `max`, `min`, `exists`; empty for a value of each row.
        text: a constant's text, None for NULL.
        type_oid: a constant's type.
    """

    name: str
    column: str = ""
    function: str = ""
    text: str | None = None
    type_oid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One column to sort by."""

    column: str
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """Query of a table.

    Attributes:
        schema: empty if search_path finds the table.
        targets: the select list; None for all columns.
        condition: of rows, as SQL; empty for all.
        copy: how COPY prints rows; None for a SELECT.
    """

    schema: str
    name: str
    targets: tuple[Target, ...] | None = None
    condition: str = ""
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    copy: CopyForm | None = None

    @property
    def is_aggregate(self) -> bool:
        """Return whether the answer is one row about all rows."""
        return self.targets is not None and any(one.function for one in self.targets)


def is_copy(statement: object) -> bool:
    """Return whether a statement is a COPY."""
    return isinstance(statement, Statement) and statement.words(1) == ("COPY",)


def read_copy(statement: Statement) -> TableQuery:
    """Read a COPY of a table or of a query to the client. Raises Refused."""
    words = Words(statement)
    words.need("COPY")
    if words.peek() == "(":
        (inner,) = split(words.take_parentheses())
        found = read_select(inner)
    else:
        first = words.name()
        schema, name = (first, words.name()) if words.take(".") else ("", first)
        targets = tuple(Target(name=one, column=one) for one in words.names())
        found = TableQuery(schema=schema, name=name, targets=targets or None)
    if words.take("FROM"):
        raise make_unsupported("COPY FROM")
    words.need("TO")
    if not words.take("STDOUT"):
        raise make_unsupported("COPY but TO STDOUT")
    return replace(found, copy=read_copy_form(words))


def read_select(statement: Statement) -> TableQuery:
    """Read a SELECT of one table. Raises Refused: 0A000 for any other."""
    exists = _read_exists(statement)
    if exists is not None:
        return exists
    tree = parse_query(statement.text)
    if not isinstance(tree, exp.Select):
        raise make_unsupported("this query of a table")
    parts = only(tree, "expressions", "from_", "where", "order", "limit", "offset")
    start = parts.get("from_")
    if start is None or not isinstance(start.this, exp.Table):
        raise make_unsupported("this query of a table")
    only(start, "this")
    table = start.this
    given = only(table, "this", "db", "catalog", "alias", "only")
    alias, name = given.get("alias"), name_of(table.this)
    known = name
    if alias is not None:
        only(alias, "this")  # names for columns would hide the table's own
        known = name_of(alias.this) if alias.this else name
    targets = _read_targets(tree.expressions, known)
    found = TableQuery(
        schema=name_of(given["db"]) if "db" in given else "",
        name=name,
        targets=targets,
        condition=_where(statement, known) if "where" in parts else "",
        limit=_limit(parts.get("limit")),
        offset=_limit(parts.get("offset")) or 0,
    )
    if "order" in parts:
        if found.is_aggregate:
            raise make_unsupported("ORDER BY beside an aggregate")
        found = replace(found, order=_order(parts["order"], known, targets))
    return found


def _read_exists(statement: Statement) -> TableQuery | None:
    """Read `SELECT EXISTS (SELECT ...)`; None for another query."""
    words = Words(statement)
    if not words.take("SELECT", "EXISTS") or words.peek() != "(":
        return None
    (inner,) = split(words.take_parentheses())
    name = "exists"
    if not words.is_done():
        words.take("AS")
        name = words.name()
    words.end()
    found = read_select(inner)
    if found.is_aggregate:  # there is a row, whatever the table has
        raise make_unsupported("EXISTS of an aggregate")
    target = Target(name=name, function="exists", type_oid=BOOL)
    # The query only asks for a row in the window, so rows are counted.
    return replace(found, targets=(target,), order=())


def _read_targets(expressions: Sequence[exp.Expr], known: str) -> tuple[Target, ...] | None:
    if len(expressions) == 1 and _is_star(expressions[0], known):
        return None
    found = tuple(_target(one, known) for one in expressions)
    if any(one.function for one in found):
        for one in found:
            if one.column and not one.function:
                raise Refused(
                    "42803",
                    f'column "{known}.{one.column}" must appear in the GROUP BY clause or be used '
                    "in an aggregate function",
                )
    return found


def _is_star(node: exp.Expr, known: str) -> bool:
    if isinstance(node, exp.Star):
        only(node)
        return True
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        parts = only(node, "this", "table")
        only(node.this)
        _check_table(parts, known)
        return True
    return False


def _target(node: exp.Expr, known: str) -> Target:
    if _is_star(node, known):
        raise make_unsupported("a star beside other columns")
    alias = ""
    if isinstance(node, exp.Alias):
        only(node, "this", "alias")
        alias, node = name_of(node.args["alias"]), node.this
    if isinstance(node, exp.Column):
        name = _column(node, known)
        return Target(name=alias or name, column=name)
    if isinstance(node, exp.Anonymous):
        return _aggregate(node, known, alias)
    return _constant(node, alias)


def _aggregate(node: exp.Anonymous, known: str, alias: str) -> Target:
    only(node, "this", "expressions")
    function = str(node.this).lower()
    arguments = node.expressions
    if function not in _AGGREGATES or len(arguments) != 1:
        raise make_unsupported("an expression over a table's columns")
    (argument,) = arguments
    name = alias or function
    if isinstance(argument, exp.Column):
        return Target(name=name, column=_column(argument, known), function=function)
    is_row = isinstance(argument, exp.Star | exp.Literal)
    if function != "count" or not is_row:
        raise make_unsupported(f"{function} of anything but a column")
    return Target(name=name, function=function)


def _constant(node: exp.Expr, alias: str) -> Target:
    if isinstance(node, exp.Literal):
        text = str(node.this)
        if node.is_string:
            return Target(name=alias or _UNNAMED, text=text, type_oid=TEXT)
        number = parse_whole(text)
        if number is not None:
            oid = INT4 if number < 2**31 else INT8
            return Target(name=alias or _UNNAMED, text=str(number), type_oid=oid)
    if isinstance(node, exp.Null):
        return Target(name=alias or _UNNAMED, text=None, type_oid=TEXT)
    if isinstance(node, exp.Boolean):
        return Target(name=alias or "bool", text="t" if node.this else "f", type_oid=BOOL)
    raise make_unsupported("an expression over a table's columns")


def _column(node: exp.Column, known: str) -> str:
    parts = only(node, "this", "table")
    _check_table(parts, known)
    name = name_of(node.this)
    if name in SYSTEM_COLUMNS:
        raise make_unsupported(f"the system column {name}")
    return name


def _check_table(parts: dict[str, exp.Expr], known: str) -> None:
    if "table" in parts and name_of(parts["table"]) != known:
        table = name_of(parts["table"])
        raise Refused("42P01", f'missing FROM-clause entry for table "{table}"')


def _order(node: exp.Expr, known: str, targets: tuple[Target, ...] | None) -> tuple[Order, ...]:
    only(node, "expressions")
    found = []
    for one in node.expressions:
        if not isinstance(one, exp.Ordered):
            raise make_unsupported("ORDER BY an expression that is not a column")
        only(one, "this", "desc", "nulls_first")
        name = _order_column(one.this, known, targets)
        if name:  # a constant sorts nothing
            found.append(
                Order(
                    column=name,
                    descending=bool(one.args.get("desc")),
                    nulls_first=bool(one.args.get("nulls_first")),
                )
            )
    return tuple(found)


def _order_column(node: exp.Expr, known: str, targets: tuple[Target, ...] | None) -> str:
    """Return the column for a place in the select list, a name in it, or a column."""
    place = None
    if isinstance(node, exp.Literal) and not node.is_string:
        place = parse_whole(str(node.this))
    if place is not None:
        if targets is None:
            raise make_unsupported("ORDER BY a place in all columns")
        if not 1 <= place <= len(targets):
            raise Refused("42P10", f"ORDER BY position {place} is not in select list")
        return targets[place - 1].column
    if not isinstance(node, exp.Column):
        raise make_unsupported("ORDER BY an expression that is not a column")
    if node.args.get("table") is None:
        name = name_of(node.this)
        columns = {one.column for one in targets or () if one.name == name}
        if len(columns) > 1:
            raise Refused("42702", f'ORDER BY "{name}" is ambiguous')
        if columns:
            return columns.pop()
    return _column(node, known)


def _limit(node: exp.Expr | None) -> int | None:
    """Return the rows of LIMIT, FETCH or OFFSET; None for all."""
    if node is None:
        return None
    if isinstance(node, exp.Fetch):
        only(node, "direction", "count", "limit_options")
        options = node.args.get("limit_options")
        if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
            raise make_unsupported("FETCH WITH TIES")
        value = node.args.get("count")
        if value is None:
            return 1
    else:
        only(node, "expression")
        value = node.args.get("expression")
    while isinstance(value, exp.Paren):
        value = value.this
    if isinstance(value, exp.Cast):
        value = value.this
    is_all = isinstance(value, exp.Var) and str(value.this).upper() == "ALL"
    if is_all or isinstance(value, exp.Null):
        return None
    number = parse_whole(str(value.this)) if isinstance(value, exp.Literal) else None
    if number is not None:
        return number
    if isinstance(value, exp.Neg) or str(getattr(value, "this", "")).startswith("-"):
        word = "OFFSET" if isinstance(node, exp.Offset) else "LIMIT"
        state = "2201X" if word == "OFFSET" else "2201W"
        raise Refused(state, f"{word} must not be negative")
    raise make_unsupported("LIMIT and OFFSET but with a number")


def _where(statement: Statement, known: str) -> str:
    """Return the text after WHERE as written, without the table's name at columns."""
    tokens = _condition_tokens(statement)
    start = statement.tokens[0].start
    pieces: list[str] = []
    at = 0
    while at < len(tokens):
        is_qualified = at + 2 < len(tokens) and tokens[at + 1].token_type is TokenType.DOT
        if is_qualified and _is_name(tokens[at]):
            if _fold(tokens[at]) != known:
                raise Refused("42P01", f'missing FROM-clause entry for table "{_fold(tokens[at])}"')
            at += 2
            continue
        token = tokens[at]
        pieces.append(statement.text[token.start - start : token.end + 1 - start])
        at += 1
    return " ".join(pieces)


def _condition_tokens(statement: Statement) -> Sequence[Token]:
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
    return statement.tokens[first:last]


def _is_name(token: Token) -> bool:
    return token.token_type is TokenType.IDENTIFIER or bool(
        token.token_type is not TokenType.STRING and re.fullmatch(r"[^\W\d][\w$]*", token.text)
    )


def _fold(token: Token) -> str:
    return token.text if token.token_type is TokenType.IDENTIFIER else token.text.lower()
