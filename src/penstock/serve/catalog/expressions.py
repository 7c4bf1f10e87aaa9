"""Expressions: sqlglot's nodes become SQL of SQLite, with the server's types.

A kind of node without a method here is refused; so is a part of a node that its method does not
know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from penstock.codec.postgres.pgwire_extended import PARAMETERS_MAX
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.calls import Calls
from penstock.serve.catalog.coercions import Coercions
from penstock.serve.catalog.grammar import make_unsupported, name_of, only, type_name
from penstock.serve.catalog.scope import Bound, Query, Scope, literal, text, whole
from penstock.serve.catalog.types import (
    BOOL,
    CHAR,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TEXTS,
    UNKNOWN,
    VECTORS,
)

if TYPE_CHECKING:
    from penstock.serve.catalog.binder import Binder

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
}
_PATTERNS: dict[type[exp.Expr], str] = {
    exp.Like: "~~",
    exp.ILike: "~~*",
    exp.RegexpLike: "~",
    exp.RegexpILike: "~*",
}
_PATTERN_OPERATORS = ("~~", "~~*", "~", "~*")
_WORDS: dict[type[exp.Expr], str] = {
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentRole: "current_role",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentSchema: "current_schema",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
}
_COLLATIONS = ("default", "C", "POSIX", "ucs_basic")


class Expressions:
    """Binds the expressions of one query."""

    def __init__(self, binder: Binder, coercions: Coercions) -> None:
        """Set the binder of queries inside expressions."""
        self.binder, self.coercions = binder, coercions
        self.types = coercions.types
        self.calls = Calls(self)
        self._methods: dict[type[exp.Expr], Callable[[Any, Scope], Bound]] = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.ByteString: lambda node, _: literal(str(node.this)),
            exp.RawString: lambda node, _: literal(str(node.this)),
            exp.Concat: self._adjacent,
            exp.Null: lambda _n, _s: Bound(sql="NULL", type=UNKNOWN),
            exp.Boolean: self._boolean,
            exp.Parameter: self._parameter,
            exp.Paren: self._paren,
            exp.Cast: self._cast,
            exp.Neg: self._negative,
            exp.And: self._logic,
            exp.Or: self._logic,
            exp.Not: self._not,
            exp.Is: self._is,
            exp.NullSafeEQ: self._distinct,
            exp.NullSafeNEQ: self._distinct,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Case: self._case,
            exp.Exists: self._exists,
            exp.Subquery: self._scalar,
            exp.Array: self._array,
            exp.Bracket: self._subscript,
            exp.Dot: self._dot,
            exp.DPipe: self._concatenate,
            exp.Collate: self._collate,
            exp.Operator: self._operator,
            exp.Escape: self._escape,
            exp.Anonymous: self.calls.call,
            exp.Filter: self.calls.bind_filter,
            exp.Window: self.calls.window,
            exp.StrPosition: self.calls.position,
            exp.Substring: self.calls.substring,
            exp.Trim: self.calls.trim,
            exp.Extract: self.calls.extract,
            **dict.fromkeys(_COMPARISONS, self._comparison),
            **dict.fromkeys(_ARITHMETIC, self._arithmetic),
            **dict.fromkeys(_PATTERNS, self._pattern),
            **dict.fromkeys(_WORDS, self._word),
        }

    def bind(self, node: exp.Expr, scope: Scope) -> Bound:
        """Return an expression that may use the tables of a scope. Raises Refused."""
        method = self._methods.get(type(node))
        if method is None:
            raise make_unsupported(type(node).__name__)
        return method(node, scope)

    def condition(self, node: exp.Expr, scope: Scope, where: str) -> str:
        """Return a condition in SQLite's SQL."""
        return self.coercions.condition(self.bind(node, scope), where).sql

    # -- values -------------------------------------------------------------------------------

    def _column(self, node: exp.Column, scope: Scope) -> Bound:
        parts = only(node, "this", "table", "db", "catalog")
        if isinstance(node.this, exp.Star):
            raise make_unsupported("a whole row as a value")
        name = name_of(node.this)
        table = name_of(parts["table"]) if "table" in parts else None
        if "catalog" in parts:  # of schema.table.column only the table's name is used
            raise make_unsupported("a column's name with a database")
        if table is None and name == "user" and not node.this.args.get("quoted"):
            return self.calls.call_function("user", (), scope)
        try:
            return scope.column(name, table)
        except Refused as refused:
            if table is None and self.binder.is_table(name, scope):
                raise make_unsupported("a whole row as a value") from None
            raise refused

    @staticmethod
    def _literal(node: exp.Literal, _: Scope) -> Bound:
        if node.is_string:
            return literal(str(node.this))
        word = str(node.this)
        if not word.isdecimal():
            return Bound(sql=repr(float(word)), type=NUMERIC)
        number = parse_whole(word)
        if number is None:
            raise make_unsupported("a number of more than 63 bits")
        return Bound(sql=str(number), type=INT4 if number < 2**31 else INT8)

    def _adjacent(self, node: exp.Concat, _: Scope) -> Bound:
        only(node, "expressions", "coalesce")
        parts = node.expressions
        if not all(isinstance(part, exp.Literal) and part.is_string for part in parts):
            raise make_unsupported("Concat")
        return literal("".join(str(part.this) for part in parts))

    @staticmethod
    def _boolean(node: exp.Boolean, _: Scope) -> Bound:
        return Bound(sql=str(int(bool(node.this))), type=BOOL, name="bool", strength=1)

    def _parameter(self, node: exp.Parameter, _: Scope) -> Bound:
        word = str(node.this.this)
        number = parse_whole(word, PARAMETERS_MAX)
        if not number:
            raise Refused("42P02", f"there is no parameter ${word[:20]}")
        self.binder.seen_parameters.add(number)
        known = self.coercions.parameters.get(number)
        if known is not None:
            return Bound(sql=f":p{number}", type=known)
        return Bound(sql=f":p{number}", type=UNKNOWN, parameter=number)

    def _paren(self, node: exp.Paren, scope: Scope) -> Bound:
        only(node, "this")
        inner = self.bind(node.this, scope)
        return inner if inner.literal is not None else replace(inner, sql=f"({inner.sql})")

    def _word(self, node: exp.Expr, scope: Scope) -> Bound:
        only(node)
        return self.calls.call_function(_WORDS[type(node)], (), scope)

    def _cast(self, node: exp.Cast, scope: Scope) -> Bound:
        only(node, "this", "to", "_type")
        schema, name, modifiers = type_name(node.args["to"])
        oid = self.types.find_oid(name, schema)
        typmod = self._typmod(oid, name, modifiers)
        inner = whole(self.bind(node.this, scope))
        made = self.coercions.to(inner, oid, typmod, explicit=True)
        if inner.strength > 1:
            return replace(made, name=inner.name, strength=inner.strength, origin=(0, 0))
        label = self.types.of(oid).name.removeprefix("_") if "[]" in name else None
        return replace(made, name=label or self.types.of(oid).name, strength=1, origin=(0, 0))

    def _typmod(self, oid: int, name: str, modifiers: tuple[int, ...]) -> int:
        if not modifiers:
            return 5 if name == "char" and oid == 1042 else -1
        if name in ("varchar", "bpchar", "char"):
            return modifiers[0] + 4
        if oid == NUMERIC:
            scale = modifiers[1] if len(modifiers) > 1 else 0
            return (modifiers[0] << 16 | scale) + 4
        raise make_unsupported(f"a modifier of {name}")

    def _negative(self, node: exp.Neg, scope: Scope) -> Bound:
        inner = self.bind(node.this, scope)
        base = self.coercions.base(inner)
        if base not in (INT2, INT4, INT8, NUMERIC, 701):
            raise make_unsupported("a minus before a value that is not a number")
        return Bound(sql=f"(-{inner.sql})", type=inner.type)

    # -- conditions ---------------------------------------------------------------------------

    def _logic(self, node: exp.Expr, scope: Scope) -> Bound:
        word = "AND" if isinstance(node, exp.And) else "OR"
        only(node, "this", "expression")
        # Long chains are nested on the left: walk them in a loop, not by recursion.
        parts: list[exp.Expr] = []
        left: exp.Expr = node
        while type(left) is type(node):
            parts.append(left.args["expression"])
            left = left.this
        parts.append(left)
        bound = [self.condition(part, scope, word) for part in reversed(parts)]
        return Bound(sql=f"({f' {word} '.join(bound)})", type=BOOL)

    def _not(self, node: exp.Not, scope: Scope) -> Bound:
        return Bound(sql=f"(NOT {self.condition(node.this, scope, 'NOT')})", type=BOOL)

    def _is(self, node: exp.Is, scope: Scope) -> Bound:
        only(node, "this", "expression", "negate")
        word = "IS NOT" if node.args.get("negate") else "IS"
        if isinstance(node.expression, exp.Null):
            inner = self.bind(node.this, scope)
            return Bound(sql=f"({inner.sql} {word} NULL)", type=BOOL)
        if not isinstance(node.expression, exp.Boolean):
            raise make_unsupported("IS with this")
        inner_sql = self.condition(node.this, scope, f"IS {node.expression.sql()}")
        wanted = int(bool(node.expression.this))
        return Bound(sql=f"({inner_sql} {word} {wanted})", type=BOOL)

    def _distinct(self, node: exp.Expr, scope: Scope) -> Bound:
        only(node, "this", "expression")
        left, right = self.coercions.same(
            self.bind(node.this, scope), self.bind(node.args["expression"], scope), "="
        )
        word = "IS" if isinstance(node, exp.NullSafeEQ) else "IS NOT"
        return Bound(sql=f"({left.sql} {word} {right.sql})", type=BOOL)

    def _between(self, node: exp.Between, scope: Scope) -> Bound:
        only(node, "this", "low", "high")
        inner = self.bind(node.this, scope)
        parts = []
        for operator, side in ((">=", "low"), ("<=", "high")):
            left, right = self.coercions.same(inner, self.bind(node.args[side], scope), operator)
            parts.append(f"{left.sql} {operator} {right.sql}")
        return Bound(sql=f"({' AND '.join(parts)})", type=BOOL)

    def compare(self, operator: str, left: Bound, right: Bound) -> Bound:
        """Return a comparison of two values."""
        left, right = self.coercions.same(left, right, operator)
        return Bound(sql=f"({left.sql} {operator} {right.sql})", type=BOOL)

    def _comparison(self, node: exp.Expr, scope: Scope) -> Bound:
        only(node, "this", "expression")
        operator = _COMPARISONS[type(node)]
        other = node.args["expression"]
        if isinstance(node.this, exp.Tuple) and isinstance(other, exp.Tuple):
            return self._rows(operator, node.this, other, scope)
        left = self.bind(node.this, scope)
        many = self._many(other)
        if many is not None:
            return self._with_array(operator, left, *many, scope)
        return self.compare(operator, left, self.bind(other, scope))

    def _rows(self, operator: str, one: exp.Tuple, other: exp.Tuple, scope: Scope) -> Bound:
        if operator != "=" or len(one.expressions) != len(other.expressions):
            raise make_unsupported("a comparison of rows other than = of the same length")
        pairs = zip(one.expressions, other.expressions, strict=True)
        parts = [self.compare("=", self.bind(a, scope), self.bind(b, scope)).sql for a, b in pairs]
        return Bound(sql=f"({' AND '.join(parts)})", type=BOOL)

    @staticmethod
    def _many(node: exp.Expr) -> tuple[str, exp.Expr] | None:
        """Return `any` or `all`, and its operand, if it is the right side of a comparison."""
        if isinstance(node, exp.Any):
            return "any", node.this
        if isinstance(node, exp.Anonymous) and str(node.this).lower() in ("any", "some", "all"):
            if len(node.expressions) != 1:
                raise make_unsupported("ANY or ALL of several values")
            word = str(node.this).lower()
            return "all" if word == "all" else "any", node.expressions[0]
        return None

    def _with_array(
        self, operator: str, left: Bound, word: str, node: exp.Expr, scope: Scope
    ) -> Bound:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Subquery | exp.Select | exp.SetOperation):
            if (operator, word) == ("=", "any"):
                return self._in_query(left, node, scope, negated=False)
            if (operator, word) == ("<>", "all"):
                return self._in_query(left, node, scope, negated=True)
            raise make_unsupported(f"{operator} {word.upper()} of a query")
        array = self.bind(node, scope)
        if self.coercions.base(array) == UNKNOWN:
            base = TEXT if self.coercions.base(left) == UNKNOWN else self.coercions.base(left)
            array = self.coercions.to(array, self.types.array_of(base))
        element = self.types.element_of(self.types.base_of(array.type)[0])
        if not element:
            raise Refused("42809", "op ANY/ALL (array) requires array on right side")
        if operator in _PATTERN_OPERATORS:
            left = self.coercions.to(left, TEXT)
        else:
            left, _ = self.coercions.same(left, Bound(sql="NULL", type=element), operator)
        call = f"pg_{word}({text(operator)}, {left.sql}, {array.sql})"
        return Bound(sql=call, type=BOOL)

    def _in(self, node: exp.In, scope: Scope) -> Bound:
        parts = only(node, "this", "expressions", "query")
        if "query" in parts:
            return self._in_query(None, parts["query"], scope, negated=False, node=node.this)
        values = parts.get("expressions", [])
        if len(values) == 1 and isinstance(values[0], exp.Values):
            return self._in_query(None, values[0], scope, negated=False, node=node.this)
        left = self.bind(node.this, scope)
        bound = [self.bind(value, scope) for value in values]
        oids = [self.coercions.base(value) for value in (left, *bound)]
        if self.coercions.base(left) == UNKNOWN:
            left = self.coercions.to(left, self.types.common(oids, "IN"))
        rights = [self.coercions.same(left, value, "=")[1].sql for value in bound]
        return Bound(sql=f"({left.sql} IN ({', '.join(rights)}))", type=BOOL)

    def _in_query(
        self,
        left: Bound | None,
        query: exp.Expr,
        scope: Scope,
        *,
        negated: bool,
        node: exp.Expr | None = None,
    ) -> Bound:
        found = self.binder.inner(query, scope)
        word = "NOT IN" if negated else "IN"
        if isinstance(node, exp.Tuple):
            lefts = [self.bind(part, scope) for part in node.expressions]
        else:
            lefts = [left if left is not None else self.bind(_present(node), scope)]
        if len(found.columns) != len(lefts):
            raise Refused(
                "42601",
                f"subquery has too {'many' if len(found.columns) > len(lefts) else 'few'} columns",
            )
        pairs = [
            self.coercions.same(one, replace(column, sql=f"c{number}"), "=")
            for number, (one, column) in enumerate(zip(lefts, found.columns, strict=True), 1)
        ]
        ones = ", ".join(pair[0].sql for pair in pairs)
        others = ", ".join(pair[1].sql for pair in pairs)
        row = f"({ones})" if len(pairs) > 1 else ones
        return Bound(sql=f"({row} {word} (SELECT {others} FROM ({found.sql})))", type=BOOL)

    def _pattern(self, node: exp.Expr, scope: Scope) -> Bound:
        only(node, "this", "expression", "negate")
        operator = _PATTERNS[type(node)]
        made = self._match(operator, node.this, node.args["expression"], scope)
        return replace(made, sql=f"(NOT {made.sql})") if node.args.get("negate") else made

    def _match(self, operator: str, one: exp.Expr, other: exp.Expr, scope: Scope) -> Bound:
        left = self.bind(one, scope)
        many = self._many(other)
        if many is not None:
            return self._with_array(operator, left, *many, scope)
        right = self.bind(other, scope)
        sides = []
        for side in (left, right):
            if self.coercions.base(side) not in (*TEXTS, UNKNOWN):
                raise self.coercions.no_operator(
                    operator, self.coercions.base(left), self.coercions.base(right)
                )
            sides.append(self.coercions.to(side, TEXT).sql)
        return Bound(sql=f"pg_match({text(operator)}, {sides[0]}, {sides[1]})", type=BOOL)

    def _escape(self, node: exp.Escape, scope: Scope) -> Bound:
        only(node, "this", "expression")
        inner = node.this
        if not isinstance(inner, exp.Like | exp.ILike):
            raise make_unsupported("ESCAPE without LIKE")
        only(inner, "this", "expression", "negate")
        escape = self.bind(node.args["expression"], scope)
        operator = _PATTERNS[type(inner)]
        left = self.coercions.to(self.bind(inner.this, scope), TEXT)
        right = self.coercions.to(self.bind(inner.expression, scope), TEXT)
        call = f"pg_match({text(operator)}, {left.sql}, {right.sql}, {escape.sql})"
        return Bound(sql=f"(NOT {call})" if inner.args.get("negate") else call, type=BOOL)

    def _operator(self, node: exp.Operator, scope: Scope) -> Bound:
        only(node, "this", "operator", "expression")
        schema, _, operator = str(node.args["operator"]).rpartition(".")
        if schema not in ("", "pg_catalog"):
            raise Refused("42883", f"operator does not exist: {schema}.{operator}")
        negated = operator.startswith("!")
        plain = operator.removeprefix("!")
        if plain in _PATTERN_OPERATORS:
            made = self._match(plain, node.this, node.args["expression"], scope)
            return replace(made, sql=f"(NOT {made.sql})") if negated else made
        kind = {word: found for found, word in (_COMPARISONS | _ARITHMETIC).items()}.get(operator)
        if kind is None:
            raise make_unsupported(f"OPERATOR({operator})")
        return self.bind(kind(this=node.this, expression=node.args["expression"]), scope)

    # -- the rest -----------------------------------------------------------------------------

    def _arithmetic(self, node: exp.Expr, scope: Scope) -> Bound:
        only(node, "this", "expression", "typed", "safe")
        left = self.bind(node.this, scope)
        right = self.bind(node.args["expression"], scope)
        return self.coercions.arithmetic(_ARITHMETIC[type(node)], left, right)

    def _concatenate(self, node: exp.DPipe, scope: Scope) -> Bound:
        only(node, "this", "expression", "safe")
        left, right = self.bind(node.this, scope), self.bind(node.expression, scope)
        arrays = [self.types.element_of(self.coercions.base(side)) for side in (left, right)]
        if any(arrays):
            name = "array_cat" if all(arrays) or UNKNOWN in (left.type, right.type) else None
            if name is None and arrays[0]:
                name = "array_append"
            if name is None:
                raise make_unsupported("a value before an array")
            return replace(
                self.calls.call_function(name, (left, right), scope), name="?column?", strength=0
            )
        bases = [self.coercions.base(side) for side in (left, right)]
        if not any(base in (*TEXTS, UNKNOWN) for base in bases):
            raise self.coercions.no_operator("||", *bases)
        if CHAR in bases and self.binder.context.facts.version >= 15:
            raise Refused("42725", 'operator is not unique: "char" || text')
        sides = [self.coercions.to(side, TEXT, explicit=True).sql for side in (left, right)]
        return Bound(sql=f"({sides[0]} || {sides[1]})", type=TEXT)

    def _case(self, node: exp.Case, scope: Scope) -> Bound:
        parts = only(node, "this", "ifs", "default")
        subject = self.bind(parts["this"], scope) if "this" in parts else None
        conditions, results = [], []
        for branch in node.args["ifs"]:
            only(branch, "this", "true")
            if subject is None:
                conditions.append(self.condition(branch.this, scope, "CASE/WHEN"))
            else:
                conditions.append(self.compare("=", subject, self.bind(branch.this, scope)).sql)
            results.append(self.bind(branch.args["true"], scope))
        default = self.bind(parts["default"], scope) if "default" in parts else None
        every = [*results, *([default] if default else [])]
        first = [default] if default else []  # ELSE decides first
        oid = self.types.common([value.type for value in (*first, *results)], "CASE")
        sql = "".join(
            f" WHEN {condition} THEN {self.coercions.to(result, oid).sql}"
            for condition, result in zip(conditions, results, strict=True)
        )
        if default is not None:
            sql += f" ELSE {self.coercions.to(default, oid).sql}"
        typmods = {value.typmod for value in every}
        named = default is not None and default.strength > 1
        return Bound(
            sql=f"(CASE{sql} END)",
            type=oid,
            typmod=typmods.pop() if len(typmods) == 1 else -1,
            name=default.name if named and default is not None else "case",
            strength=2 if named else 1,
        )

    def _exists(self, node: exp.Exists, scope: Scope) -> Bound:
        only(node, "this")
        found = self.binder.inner(node.this, scope)
        return Bound(sql=f"EXISTS ({found.sql})", type=BOOL, name="exists", strength=2)

    def _scalar(self, node: exp.Subquery, scope: Scope) -> Bound:
        only(node, "this", "with_")
        found = self.binder.inner(node, scope)
        if len(found.columns) != 1:
            raise Refused("42601", "subquery must return only one column")
        column = found.columns[0]
        sql = found.sql if found.single else f"SELECT pg_one(c1) FROM ({found.sql})"
        return replace(column, sql=f"({sql})", strength=2, origin=(0, 0), literal=None, parameter=0)

    def array_of_query(self, query: exp.Expr, scope: Scope) -> Bound:
        """Return `ARRAY(SELECT ...)`."""
        found: Query = self.binder.inner(query, scope)
        if len(found.columns) != 1:
            raise Refused("42601", "subquery must return only one column")
        oid = self.types.base_of(found.columns[0].type)[0]
        oid = TEXT if oid == UNKNOWN else oid
        return Bound(
            sql=f"(SELECT coalesce(pg_collect(c1), '[]') FROM ({found.sql}))",
            type=self.types.array_of(oid),
            name="array",
            strength=2,
        )

    def _array(self, node: exp.Array, scope: Scope) -> Bound:
        only(node, "expressions", "value_constructor", "bracket_notation")
        bound = [self.bind(value, scope) for value in node.expressions]
        if not bound:
            return Bound(sql="'[]'", type=UNKNOWN, literal="{}", name="array", strength=2)
        oid = self.types.common([value.type for value in bound], "ARRAY")
        values = ", ".join(self.coercions.to(value, oid).sql for value in bound)
        return Bound(
            sql=f"pg_array({values})", type=self.types.array_of(oid), name="array", strength=2
        )

    def _subscript(self, node: exp.Bracket, scope: Scope) -> Bound:
        only(node, "this", "expressions", "offset")
        array = self.bind(node.this, scope)
        base = self.coercions.base(array)
        element = self.types.element_of(base)
        if not element or len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
            raise make_unsupported(
                "a subscript of a value that is not an array, or of several dimensions"
            )
        number = self.coercions.to(self.bind(node.expressions[0], scope), INT4)
        first = 0 if base in VECTORS else 1
        return Bound(
            sql=f"pg_subscript({array.sql}, {number.sql}, {first})",
            type=element,
            name=array.name,
            strength=array.strength,
        )

    def _dot(self, node: exp.Dot, scope: Scope) -> Bound:
        only(node, "this", "expression")
        if isinstance(node.expression, exp.Anonymous) and isinstance(node.this, exp.Identifier):
            return self.calls.call(node.expression, scope, schema=name_of(node.this))
        if not isinstance(node.expression, exp.Identifier):
            raise make_unsupported("a part of a row that is not named")
        return self.field(self.bind(node.this, scope), name_of(node.expression))

    def field(self, row: Bound, name: str) -> Bound:
        """Return a field of a row. Raises Refused: 42703, 42809."""
        if not row.fields:
            raise make_unsupported("a field of a value that is not a row of a function")
        for number, (field_name, oid) in enumerate(row.fields):
            if field_name == name:
                return Bound(
                    sql=f"json_extract({row.sql}, '$[{number}]')",
                    type=oid,
                    name=name,
                    strength=2,
                )
        raise Refused("42703", f'column "{name}" not found in data type record')

    def _collate(self, node: exp.Collate, scope: Scope) -> Bound:
        only(node, "this", "expression")
        named = node.expression
        if isinstance(named, exp.Column):
            only(named, "this", "table")
            schema = named.args.get("table")
            if schema is not None and name_of(schema) != "pg_catalog":
                raise make_unsupported("a collation of another schema")
            named = named.this
        if not isinstance(named, exp.Identifier) or name_of(named) not in _COLLATIONS:
            raise make_unsupported(f"COLLATE {named.sql()}")
        return self.bind(node.this, scope)


def _present(node: exp.Expr | None) -> exp.Expr:
    if node is None:
        raise make_unsupported("IN without a left side")
    return node
