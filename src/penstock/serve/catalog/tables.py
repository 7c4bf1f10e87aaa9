"""Clause FROM: tables, views, functions, queries and joins, as SQLite's SQL and as
visible tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.facts import SystemRelation
from penstock.serve.catalog.grammar import make_unsupported, name_of, only, parse_query
from penstock.serve.catalog.names import path_of
from penstock.serve.catalog.scope import Bound, Item, Query, Scope
from penstock.serve.catalog.types import INT8, OID

if TYPE_CHECKING:
    from penstock.serve.catalog.binder import Binder

_SIDES = {"": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN"}
_NO_SUCH = ("xmin", "xmax", "cmin", "cmax", "ctid")


class TableRead(Refused):
    """The query reads rows of one of our tables, which the catalogue does not have."""

    def __init__(self, schema: str, name: str) -> None:
        """Set the table's name."""
        super().__init__(
            "0A000",
            f'rows of "{schema}.{name}" are read by COPY or by a SELECT of one table alone',
        )
        self.schema, self.name = schema, name


class Tables:
    """Binds the FROM of one query."""

    def __init__(self, binder: Binder) -> None:
        """Set the binder of queries."""
        self._binder = binder

    def bind(self, select: exp.Select, scope: Scope) -> str:
        """Return the FROM clause without its word; empty if there is none."""
        start = select.args.get("from_")
        if start is None:
            return ""
        only(start, "this")
        return self._join_all(start.this, select.args.get("joins") or [], scope)

    def _join_all(self, first: exp.Expr, joins: Sequence[exp.Join], scope: Scope) -> str:
        own = first.args.get("joins") or []
        sql = self._item(first, scope, lateral=False)
        commas = False
        for join in [*own, *joins]:
            sql, commas = self._join(sql, join, scope, commas=commas)
        return sql

    def _join(self, left: str, join: exp.Join, scope: Scope, *, commas: bool) -> tuple[str, bool]:
        parts = only(join, "this", "side", "kind", "method", "on", "using")
        side, kind = str(parts.get("side", "")).upper(), str(parts.get("kind", "")).upper()
        method = str(parts.get("method", "")).upper()
        if (
            side not in _SIDES
            or kind not in ("", "INNER", "OUTER", "CROSS")
            or method
            not in (
                "",
                "NATURAL",
            )
        ):
            raise make_unsupported(f"{method} {side} {kind} JOIN")
        if side == "RIGHT" and commas:
            raise make_unsupported(f"{side} JOIN behind a comma")
        before = len(scope.items)
        lateral = isinstance(join.this, exp.Lateral)
        right = self._item(join.this, scope, lateral=lateral)
        if method == "NATURAL" or "using" in parts:
            names = (
                [name_of(name) for name in parts["using"]]
                if "using" in parts
                else self._list_shared(scope, before)
            )
            condition = self._merge(scope, before, names, side)
        elif "on" in parts:
            condition = self._binder.expressions.condition(parts["on"], scope, "JOIN/ON")
        elif side:
            raise Refused("42601", "syntax error: a join without a condition")
        else:
            return f"{left} CROSS JOIN {right}" if kind == "CROSS" else f"{left}, {right}", (
                commas or kind != "CROSS"
            )
        if side == "RIGHT":
            # SQLite 3.40 loses rows of a RIGHT JOIN of json_each, but not of a LEFT JOIN.
            inner = f"({left})" if " JOIN " in left and before > 1 else left
            return f"{right} LEFT JOIN {inner} ON {condition}", commas
        return f"{left} {_SIDES[side]} {right} ON {condition}", commas

    @staticmethod
    def _list_shared(scope: Scope, before: int) -> list[str]:
        left = [c.name for item in scope.items[:before] for c in item.columns]
        return [
            column.name
            for item in scope.items[before:]
            for column in item.columns
            if column.name in left
        ]

    def _merge(self, scope: Scope, before: int, names: list[str], side: str) -> str:
        """Merge the columns of USING into one each; return the condition."""
        conditions = []
        for name in names:
            lefts = [c for c in scope.merged if c.name == name] or [
                c
                for item in scope.items[:before]
                if name not in item.hidden
                for c in item.find_columns(name)
            ]
            rights = [c for item in scope.items[before:] for c in item.find_columns(name)]
            if len(lefts) != 1 or len(rights) != 1:
                raise Refused("42703", f'column "{name}" specified in USING clause does not exist')
            compared = self._binder.expressions.compare("=", lefts[0], rights[0])
            conditions.append(compared.sql)
            for item in scope.items:
                item.hidden.add(name)
            merged = rights[0] if side == "RIGHT" else lefts[0]
            scope.merged = [c for c in scope.merged if c.name != name] + [merged]
        return " AND ".join(conditions) or "1"

    def _item(self, node: exp.Expr, scope: Scope, *, lateral: bool) -> str:
        if isinstance(node, exp.Lateral):
            parts = only(node, "this", "alias", "ordinality")
            inner = node.this
            if isinstance(inner, exp.Subquery):
                return self._lateral_query(inner, parts.get("alias"), scope)
            if isinstance(inner, exp.Unnest):
                only(inner, "expressions")
                inner = exp.Anonymous(this="unnest", expressions=inner.expressions)
            return self._function(inner, node, scope)
        if isinstance(node, exp.Unnest):
            only(node, "expressions", "alias", "offset")
            call = exp.Anonymous(this="unnest", expressions=node.expressions)
            return self._function(call, node, scope)
        if isinstance(node, exp.Subquery):
            return self._query_or_join(node, scope)
        if isinstance(node, exp.Values):
            only(node, "expressions", "alias")
            return self._query(self._binder.values(node, scope), node.args.get("alias"), scope)
        if isinstance(node, exp.Table):
            if isinstance(node.this, exp.Anonymous | exp.Dot):
                only(node, "this", "db", "alias", "ordinality", "joins")
                return self._function(node.this, node, scope)
            return self._table(node, scope)
        if lateral:
            raise make_unsupported("LATERAL of this")
        raise make_unsupported(f"{type(node).__name__} in FROM")

    def _query_or_join(self, node: exp.Subquery, scope: Scope) -> str:
        parts = only(node, "this", "alias", "joins", "with_")
        inner = node.this
        if isinstance(inner, exp.Table | exp.Subquery) and "alias" not in parts:
            # A join in parentheses; its tables stay visible.
            inside = self._join_all(inner, [], scope)
            sql = f"({inside})"
            return sql
        query = self._binder.query(inner, Scope(parent=scope.parent))
        if "alias" not in parts and self._binder.context.facts.version < 16:
            raise Refused("42601", "subquery in FROM must have an alias")
        return self._query(query, parts.get("alias"), scope)

    # -- visible tables -----------------------------------------------------------------------

    def _alias(self, alias: exp.Expr | None, default: str) -> tuple[str, list[str]]:
        if alias is None:
            return default, []
        only(alias, "this", "columns")
        columns = alias.args.get("columns") or []
        names = [name_of(c.this if isinstance(c, exp.ColumnDef) else c) for c in columns]
        return (name_of(alias.this) if alias.this else default), names

    def _see(
        self, scope: Scope, alias: str, columns: Sequence[Bound], names: Sequence[str], **more: Any
    ) -> None:
        if len(names) > len(columns):
            raise Refused(
                "42P10",
                f'table "{alias}" has {len(columns)} columns available but {len(names)} columns '
                "specified",
            )
        renamed = [
            replace(column, name=names[n] if n < len(names) else column.name)
            for n, column in enumerate(columns)
        ]
        scope.add(Item(alias=alias, columns=renamed, **more))

    def _query(self, query: Query, alias: exp.Expr | None, scope: Scope) -> str:
        own = self._binder.fresh()
        name, names = self._alias(alias, own)
        columns = [
            replace(column, sql=f"{own}.c{n}", literal=None, parameter=0)
            for n, column in enumerate(query.columns, 1)
        ]
        self._see(scope, name, columns, names)
        return f"({query.sql}) AS {own}"

    def _lateral_query(self, node: exp.Subquery, alias: exp.Expr | None, scope: Scope) -> str:
        only(node, "this", "alias")
        query = self._binder.query(node.this, Scope(parent=scope))
        own = self._binder.fresh()
        name, names = self._alias(alias, own)
        cells = ", ".join(f"c{n}" for n in range(1, len(query.columns) + 1))
        columns = [
            replace(
                column,
                sql=f"json_extract({own}.value, '$[{n}]')",
                literal=None,
                origin=(0, 0),
            )
            for n, column in enumerate(query.columns)
        ]
        self._see(scope, name, columns, names)
        return f"json_each((SELECT pg_rows({cells}) FROM ({query.sql}))) AS {own}"

    def _function(self, call: exp.Expr, node: exp.Expr, scope: Scope) -> str:
        schema = name_of(node.args["db"]) if node.args.get("db") else None
        if isinstance(call, exp.Dot):
            schema, call = name_of(call.this), call.expression
        if not isinstance(call, exp.Anonymous):
            raise make_unsupported(f"{type(call).__name__} in FROM")
        only(call, "this", "expressions")
        name = str(call.this).lower()
        variadic = bool(call.expressions) and isinstance(call.expressions[-1], exp.Variadic)
        expressions = self._binder.expressions
        bound = [
            expressions.bind(a.this if isinstance(a, exp.Variadic) else a, scope)
            for a in call.expressions
        ]
        chosen, sql = expressions.calls.choose(name, bound, schema=schema, variadic=variadic)
        if not chosen.function.returns_set:
            sql = f"pg_rows_of({sql})"
        own = self._binder.fresh()
        alias, names = self._alias(node.args.get("alias"), name)
        fields = expressions.calls.fields(chosen, bound)
        shown = fields or ((alias if not names else name, chosen.result),)
        columns = [
            Bound(sql=f"json_extract({own}.value, '$[{n}]')", type=oid, name=field)
            for n, (field, oid) in enumerate(shown)
        ]
        if node.args.get("ordinality") or node.args.get("offset"):
            columns.append(Bound(sql=f"({own}.key + 1)", type=INT8, name="ordinality"))
        self._see(scope, alias, columns, names)
        return f"json_each({sql}) AS {own}"

    def _table(self, node: exp.Table, scope: Scope) -> str:
        parts = only(node, "this", "db", "catalog", "alias", "joins", "only")
        name = name_of(node.this)
        schema = name_of(parts["db"]) if "db" in parts else None
        if "catalog" in parts and name_of(parts["catalog"]) != self._binder.context.database:
            raise Refused("0A000", "cross-database references are not implemented")
        if schema is None and (query := self._binder.common_table(name)) is not None:
            alias, names = self._alias(parts.get("alias"), name)
            own = self._binder.fresh()
            columns = [
                replace(c, sql=f"{own}.c{n}", literal=None) for n, c in enumerate(query.columns, 1)
            ]
            self._see(scope, alias, columns, names)
            return f"({query.sql}) AS {own}"
        relation = self._find(schema, name)
        alias, names = self._alias(parts.get("alias"), name)
        return self._system(relation, alias, names, scope)

    def _find(self, schema: str | None, name: str) -> SystemRelation:
        context = self._binder.context
        for candidate in path_of(context) if schema is None else (schema,):
            relation = context.facts.relations.get((candidate, name))
            if relation is not None:
                return relation
            if context.model.table_named(candidate, name) is not None:
                raise TableRead(candidate, name)
        full = name if schema is None else f"{schema}.{name}"
        raise Refused("42P01", f'relation "{full}" does not exist')

    def _system(self, relation: SystemRelation, alias: str, names: list[str], scope: Scope) -> str:
        own = self._binder.fresh()
        store = self._binder.store
        extra = self._binder.extra_columns(relation)
        listed = [(c.name, c.type_oid, c.typmod) for c in relation.columns] + list(extra)
        if relation.name in store.held and relation.schema == "pg_catalog":
            held = store.held[relation.name]
            sql, columns = (
                f'"{relation.name}" AS {own}',
                [f'{own}."{name}"' for name, _, _ in listed],
            )
            self._binder.reads.add(relation.name)
        elif (relation.schema, relation.name) in self._binder.context.facts.views:
            view = self._binder.view(relation)
            held = frozenset(name for name, _, _ in listed)
            sql = f"({view.sql}) AS {own}"
            columns = [f"{own}.c{n}" for n in range(1, len(listed) + 1)]
        else:
            raise make_unsupported(f"{relation.schema}.{relation.name}")
        bound = [
            Bound(
                sql=place,
                type=oid,
                typmod=typmod,
                name=name,
                origin=(relation.oid, number) if number <= len(relation.columns) else (0, 0),
            )
            for number, ((name, oid, typmod), place) in enumerate(
                zip(listed, columns, strict=True), 1
            )
        ]
        refused = {
            name: make_unsupported(f"column {name} of {relation.name}")
            for name, _, _ in listed
            if name not in held
        }
        kept = [column for column in bound if column.name in held]
        if not names and relation.kind == "r":
            refused |= {name: make_unsupported(f"the system column {name}") for name in _NO_SUCH}
            key = f'{own}."oid"'
        else:
            key = ""
        self._see(scope, alias, kept, names, key=key)
        item = scope.items[-1]
        item.refused = {name: why for name, why in refused.items() if name not in _NO_SUCH}
        item.hidden_refused = {name: why for name, why in refused.items() if name in _NO_SUCH}
        item.hidden_columns = (
            {"tableoid": Bound(sql=str(relation.oid), type=OID, name="tableoid")}
            if relation.kind == "r"
            else {}
        )
        return sql


def parse_view(text: str) -> exp.Query:
    """Return the tree of a view's definition."""
    return parse_query(text)
