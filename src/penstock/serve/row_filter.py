"""Row filters: the condition of a publication's entry, evaluated over Arrow columns.

The catalogue reads and types a condition (`catalog/row_filter.py`); here its tree is evaluated,
with NULL as neither true nor false. A condition that the log's values cannot answer as the server
would is refused when the tree is read, never answered wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type
from penstock.codec.postgres.pgtypes import neutral_type, wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Relation
from penstock.serve.catalog import row_filter as tree
from penstock.serve.catalog.facts import VERSIONS, facts_of
from penstock.serve.catalog.model import CatalogTable, TableColumn
from penstock.serve.catalog.patterns import like_pattern
from penstock.serve.catalog.types import FLOAT8, Types
from penstock.serve.compare import FLOATS, Operand, is_comparable, make_comparison, read_constant

Columns = Mapping[str, pa.Array]
"""Values by column name, as the log's neutral types have them."""
_Node = Callable[[Columns], Any]
_EQUALITIES = ("=", "<>", "is", "is not", "~~", "!~~")
_COMPARABLE_TEXTS = (19, 25, 1043)  # name, text, character varying


class RowFilter:
    """One condition over one table's shape.

    Attributes:
        columns: the names that it needs.
    """

    def __init__(self, text: str, table: CatalogTable, neutrals: Mapping[str, str]) -> None:
        """Read the condition; `neutrals` are the log's types by column. Raises Refused."""
        found = tree.read_filter(system_types(), table, text)
        self.text, self.columns = text, found.columns
        self._types = {one.name: one.type_oid for one in table.columns}
        self._arrow = {name: arrow_type(neutral) for name, neutral in neutrals.items()}
        self._node = self._condition(found.condition)

    def keeps(self, columns: Columns) -> pa.Array:
        """Return, for each row, whether it satisfies the filter; unknown counts as false. Raises
        Refused, KeyError.
        """
        try:
            found = self._node(columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._make_unsupported(str(error)) from error
        return pc.fill_null(found, False)

    def _make_unsupported(self, what: str) -> Refused:
        return Refused("0A000", f"row filter ({self.text}): {what}")

    def _condition(self, node: tree.Condition) -> _Node:
        if isinstance(node, tree.Logic):
            parts = [self._condition(one) for one in node.conditions]
            join = pc.and_kleene if node.word == "AND" else pc.or_kleene
            return lambda columns: _join(join, parts, columns)
        if isinstance(node, tree.Not):
            inner = self._condition(node.condition)
            return lambda columns: pc.invert(inner(columns))
        if isinstance(node, tree.Truth):
            return self._truth(node.value)
        if isinstance(node, tree.Test):
            return self._test(node)
        if isinstance(node, tree.OneOf):
            equals = [self._compare("=", node.value, one) for one in node.constants]
            if node.negated:
                return lambda columns: pc.invert(_join(pc.or_kleene, equals, columns))
            return lambda columns: _join(pc.or_kleene, equals, columns)
        return self._compare(node.operator, node.left, node.right)

    def _test(self, node: tree.Test) -> _Node:
        value = self._truth(node.value)

        def test(columns: Columns) -> Any:
            values = value(columns)
            if node.wanted is None:
                found = pc.is_null(values)
            else:
                found = pc.fill_null(pc.equal(values, node.wanted), False)
            return pc.invert(found) if node.negated else found

        return test

    def _compare(self, operator: str, left: tree.Value, right: tree.Value) -> _Node:
        named = [side for side in (left, right) if isinstance(side, tree.ColumnValue)]
        for column in named:
            self._check(column, operator)
        if not named:
            raise self._make_unsupported("a comparison without a column")
        if operator in ("~~", "!~~"):
            return self._like(operator, self._operand(left).values, right)
        one, other = (self._operand(side) for side in _as_doubles(left, right))
        if not is_comparable(one, other):
            raise self._make_unsupported("a numeric is not compared with double precision here")
        return make_comparison(operator, one, other)

    def _check(self, column: tree.ColumnValue, operator: str) -> None:
        """Refuse values whose text is less precise than the server's comparison."""
        kind, oid = self._arrow[column.name], self._types[column.name]
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            if oid not in _COMPARABLE_TEXTS:
                raise self._make_unsupported(f"values of {column.name} are not compared here")
            if operator not in _EQUALITIES:
                # The order depends on the server's collation.
                raise self._make_unsupported(f"the order of {column.name} is not known here")

    def _like(self, operator: str, values: _Node, pattern: tree.Value) -> _Node:
        if not isinstance(pattern, tree.Constant) or pattern.text is None:
            raise self._make_unsupported("LIKE with a value that is not a text")
        re2 = like_pattern(pattern.text)
        if operator == "!~~":
            return lambda columns: pc.invert(pc.match_substring_regex(values(columns), re2))
        return lambda columns: pc.match_substring_regex(values(columns), re2)

    def _operand(self, value: tree.Value) -> Operand:
        if isinstance(value, tree.ColumnValue):
            name = value.name
            return Operand(value.type_oid, self._arrow[name], lambda columns: columns[name])
        scalar = self._scalar(value)
        return Operand(value.type_oid, None, lambda _: scalar)

    def _truth(self, value: tree.Value) -> _Node:
        """Return a value alone: a column, or a constant for every row."""
        if isinstance(value, tree.ColumnValue):
            name = value.name
            return lambda columns: columns[name]
        scalar = self._scalar(value)
        return lambda columns: _repeat(scalar, columns)

    def _scalar(self, value: tree.Constant) -> Any:
        """Return a constant as the server reads it."""
        if value.text is None:
            return pa.scalar(None, arrow_type(neutral_type(value.type_oid, -1)))
        try:
            return read_constant(value.text, value.type_oid)
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            raise self._make_unsupported(f"{value.text!r} is not read here") from error


def row_filter(text: str, shape: Relation) -> RowFilter:
    """Return the filter over a relation in PostgreSQL's types. Raises Refused."""
    neutrals = {column.name: column.neutral for column in shape.columns}
    return RowFilter(text, _catalog_table(shape), neutrals)


def check_filter(text: str, table: CatalogTable) -> None:
    """Refuse a filter that cannot be evaluated over a table's announced types. Raises Refused."""
    neutrals = {one.name: neutral_type(one.type_oid, one.typmod) for one in table.columns}
    RowFilter(text, table, neutrals)


def _join(join: Callable[[Any, Any], Any], parts: list[_Node], columns: Columns) -> Any:
    found = parts[0](columns)
    for part in parts[1:]:
        found = join(found, part(columns))
    return found


def _as_doubles(left: tree.Value, right: tree.Value) -> tuple[tree.Value, tree.Value]:
    """Make a constant number a double if it is beside a real or a double."""
    if not {left.type_oid, right.type_oid} & set(FLOATS):
        return left, right
    one, other = (
        tree.Constant(side.text, FLOAT8)
        if isinstance(side, tree.Constant) and side.type_oid not in FLOATS
        else side
        for side in (left, right)
    )
    return one, other


def _repeat(scalar: Any, columns: Columns) -> Any:
    count = len(next(iter(columns.values()))) if columns else 0
    return pa.array([scalar.as_py()] * count, scalar.type)


@cache
def system_types() -> Types:
    """Return the types that a server has from the beginning."""
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
