"""Row filters: the condition of a publication's entry, evaluated over Arrow columns.

The catalogue reads and types a condition (`catalog/row_filter.py`); here its tree is evaluated with
NULL as neither true nor false. What the log's values cannot answer as the server would is refused
when the tree is taken, never answered wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type
from penstock.codec.exact_cast import cast_exactly
from penstock.codec.postgres.pgtypes import neutral_type, wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Relation
from penstock.serve.catalog import row_filter as tree
from penstock.serve.catalog.facts import VERSIONS, facts_of
from penstock.serve.catalog.model import CatalogTable, TableColumn
from penstock.serve.catalog.types import Types

Columns = Mapping[str, pa.Array]
"""Values by column name, as the log's neutral types have them."""
_Node = Callable[[Columns], Any]
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_EQUALITIES = ("=", "<>", "is", "is not", "~~", "!~~")
_COMPARABLE_TEXTS = (19, 25, 1043)  # name, text, character varying
_WHOLE_DIGITS = 18


class RowFilter:
    """One condition over one table's shape. columns: the names that it asks for."""

    def __init__(self, text: str, table: CatalogTable, neutrals: Mapping[str, str]) -> None:
        """neutrals: how the log keeps the values, by column. Raises Refused."""
        found = tree.read_filter(_types(), table, text)
        self.text, self.columns = text, found.columns
        self._types = {one.name: one.type_oid for one in table.columns}
        self._arrow = {name: arrow_type(neutral) for name, neutral in neutrals.items()}
        self._node = self._condition(found.condition)

    def keeps(self, columns: Columns) -> pa.Array:
        """Which rows fulfil it: true, false; unknown is false. Raises Refused, KeyError."""
        try:
            found = self._node(columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._unsupported(str(error)) from error
        return pc.fill_null(found, False)

    def _unsupported(self, what: str) -> Refused:
        return Refused("0A000", f"row filter ({self.text}): {what}")

    def _condition(self, node: tree.Condition) -> _Node:
        if isinstance(node, tree.Logic):
            parts = [self._condition(one) for one in node.conditions]
            join = pc.and_kleene if node.word == "AND" else pc.or_kleene
            return lambda columns: _joined(join, parts, columns)
        if isinstance(node, tree.Not):
            inner = self._condition(node.condition)
            return lambda columns: pc.invert(inner(columns))
        if isinstance(node, tree.Truth):
            return self._value(node.value, None)
        if isinstance(node, tree.Test):
            return self._test(node)
        if isinstance(node, tree.OneOf):
            equals = [self._compared("=", node.value, one) for one in node.constants]
            if node.negated:
                return lambda columns: pc.invert(_joined(pc.or_kleene, equals, columns))
            return lambda columns: _joined(pc.or_kleene, equals, columns)
        return self._compared(node.operator, node.left, node.right)

    def _test(self, node: tree.Test) -> _Node:
        value = self._value(node.value, None)

        def test(columns: Columns) -> Any:
            values = value(columns)
            if node.wanted is None:
                found = pc.is_null(values)
            else:
                found = pc.fill_null(pc.equal(values, node.wanted), False)
            return pc.invert(found) if node.negated else found

        return test

    def _compared(self, operator: str, left: tree.Value, right: tree.Value) -> _Node:
        named = [side for side in (left, right) if isinstance(side, tree.ColumnValue)]
        for column in named:
            self._check(column, operator)
        if not named:
            raise self._unsupported("a comparison without a column")
        one, other = self._value(left, right), self._value(right, left)
        if operator in ("~~", "!~~"):
            return self._like(operator, one, right)
        if operator in ("is", "is not"):
            return lambda columns: _distinct(operator, one(columns), other(columns))
        compare = _COMPARE[operator]
        return lambda columns: compare(one(columns), other(columns))

    def _check(self, column: tree.ColumnValue, operator: str) -> None:
        """Refuse values whose text says less than the server would compare."""
        kind, oid = self._arrow[column.name], self._types[column.name]
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            if oid not in _COMPARABLE_TEXTS:
                raise self._unsupported(f"values of {column.name} are not compared here")
            if operator not in _EQUALITIES:
                # What is greater depends on the server's collation.
                raise self._unsupported(f"the order of {column.name} is not known here")

    def _like(self, operator: str, values: _Node, pattern: tree.Value) -> _Node:
        if not isinstance(pattern, tree.Constant) or pattern.text is None:
            raise self._unsupported("LIKE with what is no text")
        text = pattern.text
        if operator == "!~~":
            return lambda columns: pc.invert(pc.match_like(values(columns), text))
        return lambda columns: pc.match_like(values(columns), text)

    def _value(self, value: tree.Value, beside: tree.Value | None) -> _Node:
        if isinstance(value, tree.ColumnValue):
            name = value.name
            return lambda columns: columns[name]
        kind = pa.bool_()
        if isinstance(beside, tree.ColumnValue):
            kind = self._arrow[beside.name]
        scalar = self._scalar(value.text, kind)
        if beside is None:
            return lambda columns: _repeated(scalar, columns)
        return lambda _: scalar

    def _scalar(self, text: str | None, kind: pa.DataType) -> Any:
        """A constant as the column's values are; the server reads it in the same way."""
        if text is None:
            return pa.scalar(None, kind)
        try:
            if pa.types.is_floating(kind):
                return pa.scalar(float(text))
            if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
                whole = text.lstrip("-").isdigit() and len(text) < _WHOLE_DIGITS
                return pa.scalar(int(text)) if whole else pa.scalar(Decimal(text))
            if pa.types.is_boolean(kind):
                return pa.scalar(text.lower() in ("t", "true", "on", "yes", "1"), kind)
            if pa.types.is_fixed_size_binary(kind):
                return pa.scalar(bytes.fromhex(text.replace("-", "")), kind)
            return cast_exactly(pa.scalar(text), kind)
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            raise self._unsupported(f"{text!r} is not read here") from error


def row_filter(text: str, shape: Relation) -> RowFilter:
    """The filter over a relation in PostgreSQL's types. Raises Refused."""
    neutrals = {column.name: column.neutral for column in shape.columns}
    return RowFilter(text, _catalog_table(shape), neutrals)


def check_filter(text: str, table: CatalogTable) -> None:
    """Refuse what cannot be evaluated over the types that a table announces. Raises Refused."""
    neutrals = {one.name: neutral_type(one.type_oid, one.typmod) for one in table.columns}
    RowFilter(text, table, neutrals)


def _joined(join: Callable[[Any, Any], Any], parts: list[_Node], columns: Columns) -> Any:
    found = parts[0](columns)
    for part in parts[1:]:
        found = join(found, part(columns))
    return found


def _distinct(operator: str, left: Any, right: Any) -> Any:
    nulls = pc.and_(pc.is_null(left), pc.is_null(right))
    same = pc.or_(nulls, pc.fill_null(pc.equal(left, right), False))
    return same if operator == "is" else pc.invert(same)


def _repeated(scalar: Any, columns: Columns) -> Any:
    count = len(next(iter(columns.values()))) if columns else 0
    return pa.array([scalar.as_py()] * count, scalar.type)


@cache
def _types() -> Types:
    return Types(facts_of(VERSIONS[-1]))


def _catalog_table(shape: Relation) -> CatalogTable:
    columns = []
    for column in shape.columns:
        oid, typmod = wire_type(column)
        columns.append(
            TableColumn(name=column.name, type_oid=oid, typmod=typmod, not_null=not column.nullable)
        )
    return CatalogTable(
        oid=0,
        schema=shape.schema,
        name=shape.name,
        columns=tuple(columns),
        key=shape.key,
        primary=True,
        identity=shape.identity,
    )
