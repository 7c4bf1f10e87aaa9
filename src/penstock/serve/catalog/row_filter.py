"""Row filters of publications: WHERE conditions as trees, printed as the server prints them.

Allowed are columns, constants, comparisons, IN, BETWEEN, IS, AND, OR, NOT. All else is refused
when the publication is created. The stream evaluates a tree on the columns of a batch
(`row_filter_arrow.py`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.coercions import Coercions
from penstock.serve.catalog.grammar import (
    make_unsupported,
    name_of,
    only,
    parse_condition,
    type_name,
)
from penstock.serve.catalog.model import CatalogTable
from penstock.serve.catalog.types import (
    BOOL,
    INT2,
    INT4,
    INT8,
    NUMBERS,
    NUMERIC,
    TEXT,
    TEXTS,
    TIMES,
    UNKNOWN,
    VARCHAR,
    Types,
    read_value,
)

OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
SYSTEM_COLUMNS = ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid")
_COMPARED = frozenset((BOOL, INT2, INT4, INT8, NUMERIC, 700, 701, 2950, *TEXTS, *TIMES))


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """Column with its announced type."""

    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant: its text, None for NULL, and its type."""

    text: str | None
    type_oid: int


Value = ColumnValue | Constant


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison `left operator right`; `is` and `is not` stand for IS [NOT] DISTINCT FROM, `~~`
    for LIKE.
    """

    operator: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Test:
    """Test `value IS NULL`, `IS TRUE`, `IS FALSE`; wanted: None, True, False."""

    value: Value
    wanted: bool | None
    negated: bool


@dataclass(frozen=True, slots=True)
class OneOf:
    """Test `value IN (...)`, or NOT IN."""

    value: Value
    constants: tuple[Constant, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """Boolean column or constant as a condition."""

    value: Value


@dataclass(frozen=True, slots=True)
class Not:
    """Negation of a condition."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Logic:
    """Conjunction or disjunction of two or more conditions."""

    word: str
    conditions: tuple[Condition, ...]


Condition = Comparison | Test | OneOf | Truth | Not | Logic


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Condition, its columns, and its text as the server prints it."""

    condition: Condition
    columns: frozenset[str]
    text: str


def read_filter(types: Types, table: CatalogTable, text: str) -> RowFilter:
    """Return the filter of a WHERE. Raises Refused: 42601, 42703, 42883, 0A000, 22P02."""
    reader = _Reader(types, table)
    condition = reader.condition(parse_condition(text))
    return RowFilter(
        condition=condition,
        columns=frozenset(reader.columns),
        text=_print(types, condition),
    )


def shown_filter(types: Types, table: CatalogTable, text: str) -> str | None:
    """Return a filter as the server prints it; unchanged in parentheses if it cannot be read."""
    if not text:
        return None
    try:
        return read_filter(types, table, text).text
    except Refused:
        return f"({text})"


class _Reader:
    """Makes the tree of one condition."""

    def __init__(self, types: Types, table: CatalogTable) -> None:
        self._types, self._table = types, table
        self._coercions = Coercions(types, {})
        self.columns: set[str] = set()
        self._methods: dict[type[exp.Expr], Callable[[Any], Condition]] = {
            exp.Paren: lambda node: self.condition(node.this),
            exp.And: self._logic,
            exp.Or: self._logic,
            exp.Not: lambda node: _negate(self.condition(node.this)),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.NullSafeEQ: lambda node: self._compare("is", node.this, node.expression),
            exp.NullSafeNEQ: lambda node: self._compare("is not", node.this, node.expression),
            exp.Column: self._truth,
            exp.Boolean: self._truth,
        }

    def condition(self, node: exp.Expr) -> Condition:
        """Return a condition."""
        operator = OPERATORS.get(type(node))
        if operator is not None:
            only(node, "this", "expression")
            return self._compare(operator, node.this, node.args["expression"])
        method = self._methods.get(type(node))
        if method is None:
            raise make_unsupported(f"{type(node).__name__} in a row filter")
        return method(node)

    def _logic(self, node: exp.Expr) -> Condition:
        word = "AND" if isinstance(node, exp.And) else "OR"
        parts: list[exp.Expr] = []
        left: exp.Expr = node
        while type(left) is type(node):
            parts.append(left.args["expression"])
            left = left.this
        parts.append(left)
        return Logic(word, tuple(self.condition(part) for part in reversed(parts)))

    def _truth(self, node: exp.Expr) -> Condition:
        value = self._value(node)
        if value.type_oid != BOOL:
            raise Refused("42804", "argument of PUBLICATION WHERE must be type boolean")
        return Truth(value)

    def _is(self, node: exp.Is) -> Condition:
        parts = only(node, "this", "expression", "negate")
        value = self._value(node.this)
        negated = bool(parts.get("negate"))
        if isinstance(node.expression, exp.Null):
            return Test(value, None, negated)
        if not isinstance(node.expression, exp.Boolean) or value.type_oid != BOOL:
            raise make_unsupported("IS with this in a row filter")
        return Test(value, bool(node.expression.this), negated)

    def _in(self, node: exp.In) -> Condition:
        only(node, "this", "expressions")
        value = self._value(node.this)
        found = []
        for one in node.expressions:
            constant = self._pair("=", value, self._value(one))[1]
            if not isinstance(constant, Constant):
                raise make_unsupported("IN of columns in a row filter")
            found.append(constant)
        return OneOf(value, self._alike(value, found), False)

    def _alike(self, value: Value, constants: list[Constant]) -> tuple[Constant, ...]:
        """Return the constants of an array: several numbers get their common type."""
        oids = [value.type_oid, *(one.type_oid for one in constants)]
        if len(constants) < 2 or not set(oids) <= set(NUMBERS):
            return tuple(constants)
        oid = self._types.common(oids, "IN")
        return tuple(Constant(one.text, oid) for one in constants)

    def _like(self, node: exp.Like) -> Condition:
        only(node, "this", "expression", "negate")
        left, right = self._pair("~~", self._value(node.this), self._value(node.expression))
        if left.type_oid not in TEXTS or right.type_oid not in TEXTS:
            raise self._coercions.no_operator("~~", left.type_oid, right.type_oid)
        return Comparison("!~~" if node.args.get("negate") else "~~", left, right)

    def _between(self, node: exp.Between) -> Condition:
        only(node, "this", "low", "high")
        return Logic(
            "AND",
            (
                self._compare(">=", node.this, node.args["low"]),
                self._compare("<=", node.this, node.args["high"]),
            ),
        )

    def _compare(self, operator: str, one: exp.Expr, other: exp.Expr) -> Condition:
        left, right = self._pair(operator, self._value(one), self._value(other))
        return Comparison(operator, left, right)

    def _pair(self, operator: str, left: Value, right: Value) -> tuple[Value, Value]:
        """Return both sides of a comparison with their types known. Raises Refused: 42883."""
        if left.type_oid == UNKNOWN:
            left = self._give_type(left, right.type_oid)
        if right.type_oid == UNKNOWN:
            right = self._give_type(right, left.type_oid)
        one, other = left.type_oid, right.type_oid
        if one not in _COMPARED or other not in _COMPARED:
            name = self._types.name(one if one not in _COMPARED else other)
            raise make_unsupported(f"comparing {name} in a row filter")
        if not self._coercions.comparable(one, other):
            raise self._coercions.no_operator(operator, one, other)
        return left, right

    def _give_type(self, value: Value, oid: int) -> Value:
        if not isinstance(value, Constant):
            return value
        oid = TEXT if oid in (UNKNOWN, VARCHAR) else oid
        if value.text is not None and oid not in (*TEXTS, *TIMES, 2950):
            read_value(self._types, oid, value.text, _no_names)
        return Constant(value.text, oid)

    def _value(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Paren):
            return self._value(node.this)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Literal):
            return _literal(node)
        if isinstance(node, exp.ByteString | exp.RawString):
            return Constant(str(node.this), UNKNOWN)
        if isinstance(node, exp.Null):
            return Constant(None, UNKNOWN)
        if isinstance(node, exp.Boolean):
            return Constant("t" if node.this else "f", BOOL)
        if isinstance(node, exp.Neg):
            inner = self._value(node.this)
            if isinstance(inner, Constant) and inner.type_oid in (INT4, INT8, NUMERIC):
                return Constant(f"-{inner.text}", inner.type_oid)
        if isinstance(node, exp.Cast):
            return self._cast(node)
        raise make_unsupported(f"{type(node).__name__} in a row filter")

    def _column(self, node: exp.Column) -> Value:
        parts = only(node, "this", "table")
        table = name_of(parts["table"]) if "table" in parts else None
        if table is not None and table != self._table.name:
            raise Refused("42P01", f'missing FROM-clause entry for table "{table}"')
        name = name_of(node.this)
        for column in self._table.columns:
            if column.name == name:
                self.columns.add(name)
                return ColumnValue(name, column.type_oid)
        if name in SYSTEM_COLUMNS:
            raise make_unsupported(f"the system column {name}")
        raise Refused("42703", f'column "{name}" does not exist')

    def _cast(self, node: exp.Cast) -> Value:
        schema, name, modifiers = type_name(node.args["to"])
        oid = self._types.find_oid(name, schema)
        inner = self._value(node.this)
        if isinstance(inner, ColumnValue):
            if inner.type_oid == oid or (inner.type_oid in TEXTS and oid == TEXT):
                return inner
            raise make_unsupported("casts of columns in a row filter")
        if modifiers or inner.type_oid not in (UNKNOWN, oid):
            raise make_unsupported("this cast in a row filter")
        return self._give_type(Constant(inner.text, UNKNOWN), oid)


def _no_names(_oid: int, _text: str) -> int:
    raise make_unsupported("names of catalogue objects in a row filter")


def _literal(node: exp.Literal) -> Constant:
    text = str(node.this)
    if node.is_string:
        return Constant(text, UNKNOWN)
    if not text.isdecimal():
        return Constant(text, NUMERIC)
    number = parse_whole(text, otherwise=2**63)
    return Constant(text, INT4 if number < 2**31 else INT8 if number < 2**63 else NUMERIC)


def _negate(condition: Condition) -> Condition:
    if isinstance(condition, OneOf):
        return OneOf(condition.value, condition.constants, not condition.negated)
    return Not(condition)


# -- printing ---------------------------------------------------------------------------------


def _print(types: Types, node: Condition) -> str:
    """Return the text of pg_get_expr: in parentheses, constants with their types."""
    if isinstance(node, Logic):
        return f"({f' {node.word} '.join(_print(types, part) for part in node.conditions)})"
    if isinstance(node, Not):
        return f"(NOT {_print(types, node.condition)})"
    if isinstance(node, Truth):
        return _value(types, node.value)
    if isinstance(node, Test):
        wanted = "NULL" if node.wanted is None else str(node.wanted).upper()
        word = "IS NOT" if node.negated else "IS"
        return f"({_value(types, node.value)} {word} {wanted})"
    if isinstance(node, OneOf):
        return _one_of(types, node)
    operator = {"is": "IS NOT DISTINCT FROM", "is not": "IS DISTINCT FROM"}.get(
        node.operator, node.operator
    )
    left, right = _widen(types, node.left), _widen(types, node.right)
    return f"({left} {operator} {right})"


def _one_of(types: Types, node: OneOf) -> str:
    left = _widen(types, node.value)
    if len(node.constants) == 1:
        operator = "<>" if node.negated else "="
        return f"({left} {operator} {_value(types, node.constants[0])})"
    word = "<> ALL" if node.negated else "= ANY"
    values = ", ".join(_value(types, constant) for constant in node.constants)
    return f"({left} {word} (ARRAY[{values}]))"


def _widen(types: Types, value: Value) -> str:
    """Return a side of a comparison: varchar is compared as text."""
    shown = _value(types, value)
    if isinstance(value, ColumnValue) and value.type_oid == VARCHAR:
        return f"({shown})::text"
    return shown


def _value(types: Types, value: Value) -> str:
    if isinstance(value, ColumnValue):
        return quote_ident(value.name)
    if value.text is None:
        return f"NULL::{types.name(value.type_oid)}"
    if value.type_oid == BOOL:
        return "true" if value.text[:1].lower() in "ty1" else "false"
    if value.type_oid in (INT4, NUMERIC) and not value.text.startswith("-"):
        return value.text
    doubled = value.text.replace("'", "''")
    return f"'{doubled}'::{types.name(value.type_oid)}"
