"""Row filters: the condition of a publication's entry, evaluated over Arrow columns.

What PostgreSQL allows in a row filter and what columns of a log can answer: comparisons, IN,
BETWEEN, LIKE, IS NULL, IS TRUE, AND, OR, NOT, over columns and literals. Anything else is refused
when the condition is read, never answered wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as ex

from penstock.codec.postgres.pgwire_server import Refused

Columns = Mapping[str, pa.Array]
"""Values by column name, as the log's neutral types have them."""
_Node = Callable[[Columns], Any]
_COMPARE: dict[type[ex.Expression], Callable[[Any, Any], Any]] = {
    ex.EQ: pc.equal,
    ex.NEQ: pc.not_equal,
    ex.LT: pc.less,
    ex.LTE: pc.less_equal,
    ex.GT: pc.greater,
    ex.GTE: pc.greater_equal,
}
_WHOLE_DIGITS = 18


class RowFilter:
    """One condition. columns: the names that it asks for."""

    def __init__(self, text: str) -> None:
        """Raises Refused: 42601 for no expression, 0A000 for one that is not supported."""
        try:
            tree = sqlglot.parse_one(f"select 1 where {text}", read="postgres")
        except sqlglot.errors.SqlglotError as error:
            reason = str(error).partition(".")[0]
            raise Refused("42601", f"cannot read the row filter ({text}): {reason}") from error
        where = tree.args.get("where")
        if where is None:
            raise Refused("42601", f"cannot read the row filter ({text})")
        self.text = text
        self.columns = frozenset(_name(one) for one in where.find_all(ex.Column))
        self._node = _boolean(where.this)

    def keeps(self, columns: Columns) -> pa.Array:
        """Which rows fulfil it: true, false; unknown is false. Raises Refused, KeyError."""
        try:
            found = self._node(columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Refused("0A000", f"cannot evaluate the row filter ({self.text})") from error
        return pc.fill_null(found, False)


@lru_cache(maxsize=256)
def row_filter(text: str) -> RowFilter:
    """The filter of a condition, read once."""
    return RowFilter(text)


def _unsupported(node: ex.Expression) -> Refused:
    return Refused("0A000", f"row filter: {node.sql(dialect='postgres')} is not supported")


def _name(column: ex.Expression) -> str:
    identifier = column.this
    name: str = identifier.this
    return name if identifier.args.get("quoted") else name.lower()


_KNOWN: dict[type[ex.Expression], tuple[str, ...]] = {
    ex.Paren: ("this",),
    ex.And: ("this", "expression"),
    ex.Or: ("this", "expression"),
    ex.Not: ("this",),
    ex.Is: ("this", "expression", "negate"),
    ex.In: ("this", "expressions"),
    ex.Between: ("this", "low", "high"),
    ex.Like: ("this", "expression", "negate"),
    ex.Column: ("this",),
    **dict.fromkeys(_COMPARE, ("this", "expression")),
}


def _boolean(node: ex.Expression) -> _Node:
    """A node that is true, false or unknown. What is said of it and not known here is refused."""
    known = _KNOWN.get(type(node))
    if known is not None and any(value and key not in known for key, value in node.args.items()):
        raise _unsupported(node)
    made = _truth(node)
    if node.args.get("negate"):
        return lambda columns: pc.invert(made(columns))
    return made


def _truth(node: ex.Expression) -> _Node:
    if isinstance(node, ex.Paren):
        return _boolean(node.this)
    if isinstance(node, ex.And | ex.Or):
        left, right = _boolean(node.this), _boolean(node.expression)
        join = pc.and_kleene if isinstance(node, ex.And) else pc.or_kleene
        return lambda columns: join(left(columns), right(columns))
    if isinstance(node, ex.Not):
        inner = _boolean(node.this)
        return lambda columns: pc.invert(inner(columns))
    if isinstance(node, ex.Boolean):
        value = pa.scalar(bool(node.this))
        return lambda columns: _constant(value, columns)
    if isinstance(node, ex.Column):
        return _boolean_column(node)
    if isinstance(node, ex.Is):
        return _is(node)
    return _comparison(node)


def _boolean_column(node: ex.Expression) -> _Node:
    name = _name(node)

    def read(columns: Columns) -> Any:
        if not pa.types.is_boolean(columns[name].type):
            raise Refused("42804", f'row filter: column "{name}" is no boolean')
        return columns[name]

    return read


def _constant(value: Any, columns: Columns) -> Any:
    length = len(next(iter(columns.values()))) if columns else 0
    return pa.array([value.as_py()] * length, pa.bool_())


def _is(node: ex.Is) -> _Node:
    if isinstance(node.expression, ex.Null):
        name = _operand(node.this)
        if not isinstance(name, str):
            raise _unsupported(node)
        return lambda columns: pc.is_null(columns[name])
    if isinstance(node.expression, ex.Boolean):
        inner, wanted = _boolean(node.this), bool(node.expression.this)
        return lambda columns: pc.fill_null(pc.equal(inner(columns), wanted), False)
    raise _unsupported(node)


def _comparison(node: ex.Expression) -> _Node:
    compare = _COMPARE.get(type(node))
    if compare is not None:
        return _compared(node, compare)
    if isinstance(node, ex.In) and node.expressions and isinstance(node.this, ex.Column):
        equals = [
            _compared(ex.EQ(this=node.this.copy(), expression=one.copy()), pc.equal)
            for one in node.expressions
        ]
        return lambda columns: _any(equals, columns)
    if isinstance(node, ex.Between):
        low = _compared(ex.GTE(this=node.this, expression=node.args["low"]), pc.greater_equal)
        high = _compared(ex.LTE(this=node.this, expression=node.args["high"]), pc.less_equal)
        return lambda columns: pc.and_kleene(low(columns), high(columns))
    if isinstance(node, ex.Like) and isinstance(node.this, ex.Column) and _is_text(node.expression):
        name, pattern = _name(node.this), node.expression.this
        return lambda columns: pc.match_like(_text(columns[name], name), pattern)
    raise _unsupported(node)


def _any(nodes: list[_Node], columns: Columns) -> Any:
    found = nodes[0](columns)
    for node in nodes[1:]:
        found = pc.or_kleene(found, node(columns))
    return found


def _is_text(node: ex.Expression) -> bool:
    return isinstance(node, ex.Literal) and bool(node.is_string)


def _compared(node: ex.Expression, compare: Callable[[Any, Any], Any]) -> _Node:
    left, right = _operand(node.this), _operand(node.expression)
    ordered = not isinstance(node, ex.EQ | ex.NEQ)
    if isinstance(left, str) and isinstance(right, str):
        return lambda columns: compare(columns[left], columns[right])
    if isinstance(left, str):
        return lambda columns: compare(
            columns[left], _literal(right, columns[left].type, left, ordered=ordered)
        )
    if isinstance(right, str):
        return lambda columns: compare(
            _literal(left, columns[right].type, right, ordered=ordered), columns[right]
        )
    raise _unsupported(node)


def _operand(node: ex.Expression) -> str | ex.Expression:
    """A column's name, or a literal."""
    while isinstance(node, ex.Paren):
        node = node.this
    if isinstance(node, ex.Column) and not node.args.get("table"):
        return _name(node)
    negative = isinstance(node, ex.Neg) and isinstance(node.this, ex.Literal)
    if negative or isinstance(node, ex.Literal | ex.Boolean | ex.Null):
        return node
    raise _unsupported(node)


def _literal(node: Any, kind: pa.DataType, name: str, *, ordered: bool) -> Any:
    """A literal as the column's type has it; the server reads it in the same way."""
    if isinstance(node, ex.Null):
        return pa.scalar(None, kind)
    if isinstance(node, ex.Boolean):
        return pa.scalar(bool(node.this), pa.bool_())
    sign, literal = ("-", node.this) if isinstance(node, ex.Neg) else ("", node)
    text = sign + str(literal.this)
    if pa.types.is_floating(kind):
        return pa.scalar(float(text))
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        whole = text.lstrip("-").isdigit() and len(text) < _WHOLE_DIGITS
        return pa.scalar(int(text)) if whole else pa.scalar(Decimal(text))
    if pa.types.is_string(kind):
        if ordered:
            # What is greater depends on the server's collation, and on the type behind the text.
            raise Refused("0A000", f'row filter: the order of column "{name}" is not known here')
        return pa.scalar(text)
    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes.fromhex(text.replace("-", "")), kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(text.lower() in ("t", "true", "on", "yes", "1"), pa.bool_())
    return pc.cast(pa.scalar(text), kind)


def _text(values: Any, name: str) -> Any:
    if not pa.types.is_string(values.type):
        raise Refused("42883", f'row filter: LIKE needs text, and column "{name}" is none')
    return values
