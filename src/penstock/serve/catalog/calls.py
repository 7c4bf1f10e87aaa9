"""Binding of calls: functions, aggregates, windows, and syntax that looks like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog import (
    functions_catalog,
    functions_session,
    functions_values,
)
from penstock.serve.catalog.functions import Chosen, choose
from penstock.serve.catalog.grammar import make_unsupported, name_of, only
from penstock.serve.catalog.scope import Bound, Scope, literal
from penstock.serve.catalog.types import (
    ANYELEMENT,
    BOOL,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NAME,
    NUMERIC,
    OID,
    TEXT,
    TEXTS,
    UNKNOWN,
    VECTORS,
)

if TYPE_CHECKING:
    from penstock.serve.catalog.expressions import Expressions

# The import declares their functions.
DECLARED = (functions_catalog, functions_session, functions_values)

_SUMS = {INT2: INT8, INT4: INT8, INT8: NUMERIC}
_WINDOW_ONLY = {"row_number": INT8, "rank": INT8, "dense_rank": INT8}
AGGREGATES = frozenset(
    ("count", "sum", "min", "max", "array_agg", "string_agg", "bool_or", "bool_and", "every")
)


class Calls:
    """Binds the calls of one query."""

    def __init__(self, expressions: Expressions) -> None:
        """Set the binder of the arguments."""
        self._all = expressions
        self._special = {
            "coalesce": self._coalesce,
            "greatest": self._extreme,
            "least": self._extreme,
            "nullif": self._nullif,
            "concat": self._concat,
            "array_to_string": self._array_to_string,
            "array_lower": self._bounds,
            "array_upper": self._bounds,
            "generate_subscripts": self._subscripts,
            "row": self._refuse,
        }

    def call(self, node: exp.Anonymous, scope: Scope, schema: str | None = None) -> Bound:
        """Return a call, bound to the function that its name and arguments mean. Raises Refused:
        42883, 42803, 0A000.
        """
        only(node, "this", "expressions")
        name = str(node.this)
        name = name.lower() if not node.args.get("quoted") else name
        arguments: Sequence[exp.Expr] = node.expressions
        if schema in (None, "pg_catalog"):
            if name == "array" and schema is None:
                return self._all.array_of_query(arguments[0], scope)
            if name in AGGREGATES:
                return self._aggregate(name, arguments, scope)
            special = self._special.get(name)
            if special is not None:
                bound = [self._all.bind(argument, scope) for argument in arguments]
                return replace(special(name, bound), name=name, strength=2)
        if name in ("_pg_truetypid", "_pg_truetypmod") and schema == "information_schema":
            return self._true_type(name, arguments, scope)
        variadic = bool(arguments) and isinstance(arguments[-1], exp.Variadic)
        bound = [
            self._all.bind(argument.this if isinstance(argument, exp.Variadic) else argument, scope)
            for argument in arguments
        ]
        return self.call_function(name, bound, scope, schema=schema, variadic=variadic)

    def call_function(
        self,
        name: str,
        arguments: Sequence[Bound],
        scope: Scope,
        *,
        schema: str | None = None,
        variadic: bool = False,
    ) -> Bound:
        """Return a call of a function of the registry."""
        chosen, sql = self.choose(name, arguments, schema=schema, variadic=variadic)
        if not chosen.function.returns_set:
            return Bound(sql=sql, type=chosen.result, name=name, strength=2)
        if not scope.may_return_sets:
            raise Refused("0A000", "set-returning functions are not allowed here")
        if sql not in scope.set_calls:
            scope.set_calls.append(sql)
        number = scope.set_calls.index(sql)
        fields = self.fields(chosen, arguments)
        value = f"set{number}.value"
        return Bound(
            sql=value if fields else f"json_extract({value}, '$[0]')",
            type=chosen.result,
            name=name,
            strength=2,
            fields=fields,
        )

    def choose(
        self,
        name: str,
        arguments: Sequence[Bound],
        *,
        schema: str | None = None,
        variadic: bool = False,
    ) -> tuple[Chosen, str]:
        """Return the function of a call, and the call in SQLite's SQL."""
        coercions, binder = self._all.coercions, self._all.binder
        chosen = choose(
            coercions.types,
            binder.context.facts.version,
            name,
            schema,
            [coercions.base(argument) for argument in arguments],
            variadic=variadic,
        )
        values = [
            coercions.to(argument, oid).sql if oid != 2276 else argument.sql
            for argument, oid in zip(arguments, chosen.arguments, strict=True)
        ]
        if chosen.packed:
            fixed = len(chosen.function.arguments) - 1
            values[fixed:] = [f"pg_array({', '.join(values[fixed:])})"]
        return chosen, f"{chosen.function.key}({', '.join(values)})"

    def fields(self, chosen: Chosen, arguments: Sequence[Bound]) -> tuple[tuple[str, int], ...]:
        """Return the fields of the rows that a function returns."""
        types = self._all.types
        found = []
        for name, kind in chosen.function.columns:
            oid = types.find_oid(kind)
            if oid == ANYELEMENT:
                oid = types.element_of(self._all.coercions.base(arguments[0]))
            found.append((name, oid))
        return tuple(found)

    # -- functions outside the registry -------------------------------------------------------

    def _common(self, bound: Sequence[Bound], what: str) -> tuple[int, list[str]]:
        coercions = self._all.coercions
        oid = coercions.types.common([value.type for value in bound], what)
        return oid, [coercions.to(value, oid).sql for value in bound]

    def _coalesce(self, _: str, bound: Sequence[Bound]) -> Bound:
        oid, values = self._common(bound, "COALESCE")
        sql = f"coalesce({', '.join(values)})" if len(values) > 1 else values[0]
        return Bound(sql=sql, type=oid)

    def _extreme(self, name: str, bound: Sequence[Bound]) -> Bound:
        oid, values = self._common(bound, name.upper())
        return Bound(sql=f"pg_{name}({', '.join(values)})", type=oid)

    def _nullif(self, _: str, bound: Sequence[Bound]) -> Bound:
        if len(bound) != 2:
            raise Refused("42601", "syntax error in NULLIF")
        left, right = self._all.coercions.same(bound[0], bound[1], "=")
        return Bound(sql=f"nullif({left.sql}, {right.sql})", type=left.type)

    def _concat(self, _: str, bound: Sequence[Bound]) -> Bound:
        parts = [
            f"coalesce({self._all.coercions.to(value, TEXT, explicit=True).sql}, '')"
            for value in bound
        ]
        return Bound(sql=f"({' || '.join(parts)})", type=TEXT)

    def _array_to_string(self, _: str, bound: Sequence[Bound]) -> Bound:
        if len(bound) not in (2, 3):
            raise Refused("42883", "function array_to_string does not exist")
        coercions = self._all.coercions
        element = coercions.types.element_of(coercions.base(bound[0]))
        if not element:
            raise Refused("42883", "function array_to_string(unknown) does not exist")
        rest = ", ".join(coercions.to(value, TEXT).sql for value in bound[1:])
        return Bound(sql=f"pg_join({element}, {bound[0].sql}, {rest})", type=TEXT)

    def _bounds(self, name: str, bound: Sequence[Bound]) -> Bound:
        base = self._all.coercions.base(bound[0])
        if len(bound) != 2 or not self._all.types.element_of(base):
            raise Refused("42883", f"function {name} does not exist")
        first = 0 if base in VECTORS else 1
        return Bound(sql=f"pg_{name}({bound[0].sql}, {bound[1].sql}, {first})", type=INT4)

    def _subscripts(self, _: str, _bound: Sequence[Bound]) -> Bound:
        raise make_unsupported("generate_subscripts outside of FROM")

    def _refuse(self, name: str, _bound: Sequence[Bound]) -> Bound:
        raise make_unsupported(name.upper())

    def _true_type(self, name: str, arguments: Sequence[exp.Expr], scope: Scope) -> Bound:
        """Return one of the two functions of information_schema that take whole rows."""
        tables = []
        for argument in arguments:
            if not isinstance(argument, exp.Column) or not isinstance(argument.this, exp.Star):
                raise make_unsupported(f"{name} of other than rows")
            tables.append(name_of(argument.args["table"]))
        attribute, kind = tables
        typtype = scope.column("typtype", kind).sql
        below, own, oid = (
            ("typbasetype", "atttypid", OID)
            if name == "_pg_truetypid"
            else ("typtypmod", "atttypmod", INT4)
        )
        sql = (
            f"(CASE WHEN {typtype} = 'd' THEN {scope.column(below, kind).sql} "
            f"ELSE {scope.column(own, attribute).sql} END)"
        )
        return Bound(sql=sql, type=oid, name=name, strength=2)

    def position(self, node: exp.StrPosition, scope: Scope) -> Bound:
        """Return `position(a in b)`."""
        only(node, "this", "substr")
        parts = [self._all.bind(part, scope) for part in (node.this, node.args["substr"])]
        return self.call_function("position", parts, scope)

    def substring(self, node: exp.Substring, scope: Scope) -> Bound:
        """Return `substring(a from b for c)` and `substring(a, b, c)`."""
        only(node, "this", "start", "length")
        parts = [node.args[name] for name in ("this", "start", "length") if node.args.get(name)]
        return self.call_function(
            "substring", [self._all.bind(part, scope) for part in parts], scope
        )

    def extract(self, node: exp.Extract, scope: Scope) -> Bound:
        """Bind `extract(field from time)`."""
        only(node, "this", "expression")
        parts = (literal(str(node.this.this)), self._all.bind(node.expression, scope))
        return self.call_function("extract", parts, scope)

    def trim(self, node: exp.Trim, scope: Scope) -> Bound:
        """Return `trim(both a from b)`."""
        parts = only(node, "this", "position", "expression")
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(
            str(parts.get("position", "BOTH")).upper(), "btrim"
        )
        bound = [self._all.bind(node.args[p], scope) for p in ("this", "expression") if p in parts]
        return self.call_function(name, bound, scope)

    # -- aggregates and windows ---------------------------------------------------------------

    def _aggregate(
        self, name: str, arguments: Sequence[exp.Expr], scope: Scope, condition: str = ""
    ) -> Bound:
        if not scope.may_aggregate or scope.inside_aggregate:
            raise Refused("42803", "aggregate functions are not allowed here")
        scope.has_aggregate = True
        scope.inside_aggregate += 1
        may_return_sets, scope.may_return_sets = scope.may_return_sets, False
        try:
            return self._bind_aggregate(name, arguments, scope, condition)
        finally:
            scope.inside_aggregate -= 1
            scope.may_return_sets = may_return_sets

    def _bind_aggregate(
        self, name: str, arguments: Sequence[exp.Expr], scope: Scope, condition: str
    ) -> Bound:
        if name == "count" and len(arguments) == 1 and isinstance(arguments[0], exp.Star):
            return Bound(sql=f"count(*){condition}", type=INT8, name="count", strength=2)
        distinct, arguments, order = _parts(arguments)
        bound = [self._all.bind(argument, scope) for argument in arguments]
        wanted = 2 if name == "string_agg" else 1
        if len(bound) != wanted:
            raise Refused("42883", f"function {name} with {len(bound)} arguments does not exist")
        coercions, types = self._all.coercions, self._all.types
        value = bound[0]
        base = coercions.base(value)
        if base == UNKNOWN:
            value, base = coercions.to(value, TEXT), TEXT
        word = "DISTINCT " if distinct else ""
        if name in ("array_agg", "string_agg"):
            separator = coercions.to(bound[1], TEXT).sql if name == "string_agg" else "NULL"
            if name == "string_agg":
                value = coercions.to(value, TEXT)
            keys = "".join(self._sort_key(one, scope) for one in order)
            sql = f"pg_{name}({int(distinct)}, {separator}, {value.sql}{keys}){condition}"
            result = TEXT if name == "string_agg" else types.array_of(base)
            return Bound(sql=sql, type=result, name=name, strength=2)
        if order:
            raise make_unsupported(f"ORDER BY in {name}")
        call, result = self._plain_aggregate(name, base)
        if name in ("bool_or", "bool_and", "every"):
            value = coercions.condition(value, name)
        return Bound(
            sql=f"{call}({word}{value.sql}){condition}", type=result, name=name, strength=2
        )

    def _plain_aggregate(self, name: str, base: int) -> tuple[str, int]:
        if name == "count":
            return "count", INT8
        if name in ("bool_or", "bool_and", "every"):
            return ("max" if name == "bool_or" else "min"), BOOL
        if name == "sum":
            if base not in _SUMS:
                raise make_unsupported(f"sum of {self._all.types.name(base)}")
            return "sum", _SUMS[base]
        if base not in (*INTEGERS, *TEXTS, OID, NUMERIC, 3220, 1184, 1082):
            raise make_unsupported(f"{name} of {self._all.types.name(base)}")
        return name, TEXT if base in (NAME, 18, 1043) else base

    def _sort_key(self, node: exp.Expr, scope: Scope) -> str:
        only(node, "this", "desc", "nulls_first")
        flags = 2 * bool(node.args.get("desc")) + bool(node.args.get("nulls_first"))
        return f", {flags}, {self._all.bind(node.this, scope).sql}"

    def bind_filter(self, node: exp.Filter, scope: Scope) -> Bound:
        """Return an aggregate with FILTER."""
        only(node, "this", "expression")
        inner = node.this
        if not isinstance(inner, exp.Anonymous) or str(inner.this).lower() not in AGGREGATES:
            raise make_unsupported("FILTER of a value that is not an aggregate")
        scope.inside_aggregate += 1
        where = self._all.condition(node.expression.this, scope, "FILTER")
        scope.inside_aggregate -= 1
        name = str(inner.this).lower()
        return self._aggregate(name, inner.expressions, scope, f" FILTER (WHERE {where})")

    def window(self, node: exp.Window, scope: Scope) -> Bound:
        """Return a window function."""
        parts = only(node, "this", "partition_by", "order", "over")
        inner = node.this
        if isinstance(inner, exp.Dot) and name_of(inner.this) == "pg_catalog":
            inner = inner.expression
        if not isinstance(inner, exp.Anonymous):
            raise make_unsupported("a window of this")
        name = str(inner.this).lower()
        if name in _WINDOW_ONLY and not inner.expressions:
            call, result = f"{name}()", _WINDOW_ONLY[name]
        elif name in AGGREGATES - {"array_agg", "string_agg"}:
            call, result = self._window_aggregate(name, inner, scope)
        else:
            raise make_unsupported(f"{name} as a window function")
        over = []
        if "partition_by" in parts:
            keys = [self._all.bind(key, scope).sql for key in parts["partition_by"]]
            over.append(f"PARTITION BY {', '.join(keys)}")
        if "order" in parts:
            over.append(f"ORDER BY {self._window_order(parts['order'], scope)}")
        return Bound(sql=f"{call} OVER ({' '.join(over)})", type=result, name=name, strength=2)

    def _window_aggregate(self, name: str, node: exp.Anonymous, scope: Scope) -> tuple[str, int]:
        before = scope.has_aggregate
        made = self._aggregate(name, node.expressions, scope)
        scope.has_aggregate = before
        return made.sql, made.type

    def _window_order(self, order: exp.Expr, scope: Scope) -> str:
        keys = []
        for one in order.expressions:
            only(one, "this", "desc", "nulls_first")
            direction = "DESC" if one.args.get("desc") else "ASC"
            nulls = "FIRST" if one.args.get("nulls_first") else "LAST"
            keys.append(f"{self._all.bind(one.this, scope).sql} {direction} NULLS {nulls}")
        return ", ".join(keys)


def _parts(arguments: Sequence[exp.Expr]) -> tuple[bool, list[exp.Expr], list[Any]]:
    """Return whether an aggregate is of distinct values, its arguments, and their order."""
    values = list(arguments)
    order: list[Any] = []
    distinct = False
    if values and isinstance(values[-1], exp.Order):
        only(values[-1], "this", "expressions")
        order = list(values[-1].expressions)
        values[-1] = values[-1].this
    if values and isinstance(values[0], exp.Distinct):
        only(values[0], "expressions")
        distinct = True
        values[:1] = values[0].expressions
    if distinct and order:
        raise make_unsupported("DISTINCT and ORDER BY in one aggregate")
    return distinct, values, order
