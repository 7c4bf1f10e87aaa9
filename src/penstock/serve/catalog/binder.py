"""Binding of queries: SELECT, VALUES and set operations with their clauses, as SQL of SQLite."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from sqlglot import exp

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.coercions import Coercions
from penstock.serve.catalog.expressions import Expressions
from penstock.serve.catalog.facts import SystemRelation
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.grammar import make_unsupported, name_of, only
from penstock.serve.catalog.scope import Bound, Query, Scope
from penstock.serve.catalog.store import Store
from penstock.serve.catalog.tables import Tables, parse_view
from penstock.serve.catalog.types import INT8, INTERVAL, TEXT, UNKNOWN

_SET_OPERATIONS: dict[type[exp.Expr], str] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}
_PLAIN = re.compile(r't\d+[.]("[a-z_]+"|c\d+)')
_YUGABYTE_SLOTS = (
    ("yb_stream_id", TEXT, -1),
    ("yb_restart_commit_ht", INT8, -1),
    ("yb_lsn_type", TEXT, -1),
)


class Binder:
    """Binds one statement.

    Attributes:
        reads: the tables whose rows are read again.
        parameters: types of the parameters.
    """

    def __init__(self, context: Context, store: Store, parameters: dict[int, int]) -> None:
        """Start a statement; `parameters` are the types that the client gave, by number."""
        self.context, self.store = context, store
        self.parameters = parameters
        self.seen_parameters: set[int] = set()
        self.reads: set[str] = set()
        self.expressions = Expressions(self, Coercions(context.types, parameters))
        self._tables = Tables(self)
        self._numbers = itertools.count(1)
        self._common: list[dict[str, Query]] = []

    def fresh(self) -> str:
        """Return a new name for a table."""
        return f"t{next(self._numbers)}"

    def common_table(self, name: str) -> Query | None:
        """Return a query of WITH."""
        for names in reversed(self._common):
            if name in names:
                return names[name]
        return None

    def is_table(self, name: str, scope: Scope) -> bool:
        """Return whether a table of this name is visible."""
        found: Scope | None = scope
        while found is not None:
            if any(item.alias == name for item in found.items):
                return True
            found = found.parent
        return False

    def extra_columns(self, relation: SystemRelation) -> Sequence[tuple[str, int, int]]:
        """Return the columns that the dialect adds to a system relation."""
        if self.context.dialect == "yugabyte" and relation.name == "pg_replication_slots":
            return _YUGABYTE_SLOTS
        return ()

    def view(self, relation: SystemRelation) -> Query:
        """Return the query of a system view."""
        text = self.context.facts.views[relation.schema, relation.name]
        outer, self._common = self._common, []
        try:
            found = self.query(parse_view(text), Scope())
        finally:
            self._common = outer
        return found

    def inner(self, node: exp.Expr, scope: Scope) -> Query:
        """Return a query inside an expression."""
        while isinstance(node, exp.Subquery | exp.Paren):
            if isinstance(node, exp.Subquery):
                only(node, "this")
            node = node.this
        return self.query(node, Scope(parent=scope))

    def query(self, node: exp.Expr, scope: Scope) -> Query:
        """Return any query; `scope` is empty, with the enclosing queries as parents."""
        names: dict[str, Query] = {}
        self._common.append(names)
        try:
            self._with(node, names, scope)
            if isinstance(node, exp.Select):
                return self._select(node, scope)
            if isinstance(node, exp.SetOperation):
                return self._set_operation(node, scope)
            if isinstance(node, exp.Values):
                return self.values(node, scope)
            if isinstance(node, exp.Subquery):
                only(node, "this")
                return self.query(node.this, scope)
            raise make_unsupported(type(node).__name__)
        finally:
            self._common.pop()

    def _with(self, node: exp.Expr, names: dict[str, Query], scope: Scope) -> None:
        clause = node.args.get("with_")
        if clause is None:
            return
        only(clause, "expressions", "recursive")
        for common in clause.expressions:
            only(common, "this", "alias", "materialized")
            alias = common.args["alias"]
            name = name_of(alias.this)
            if clause.args.get("recursive") and any(
                name_of(table.this) == name
                for table in common.this.find_all(exp.Table)
                if isinstance(table.this, exp.Identifier)
            ):
                raise make_unsupported("WITH RECURSIVE")
            query = self.query(common.this, Scope(parent=scope.parent))
            given = [name_of(column) for column in alias.args.get("columns") or []]
            columns = tuple(
                replace(column, name=given[n] if n < len(given) else column.name)
                for n, column in enumerate(query.columns)
            )
            names[name] = replace(query, columns=columns)

    # -- SELECT -------------------------------------------------------------------------------

    def _select(self, node: exp.Select, scope: Scope) -> Query:
        parts = only(
            node,
            *("expressions", "from_", "joins", "where", "group", "having", "order", "limit"),
            *("offset", "distinct", "with_"),
        )
        scope.may_aggregate = False
        source = self._tables.bind(node, scope)
        where = ""
        if "where" in parts:
            where = self.expressions.condition(parts["where"].this, scope, "WHERE")
        scope.may_aggregate = True
        scope.bare.clear()
        groups = self._groups(node, scope)
        scope.bare.clear()
        targets = self._targets(node, scope, groups)
        having = ""
        if "having" in parts:
            having = self.expressions.condition(parts["having"].this, scope, "HAVING")
        first_of = self._first_of(node, targets, scope)
        distinct = "" if first_of else self._distinct(node)
        order = self._order(node, targets, scope, only_targets=bool(distinct))
        if groups or scope.has_aggregate or having:
            self._check_groups(scope, groups)
        cells = ", ".join(f"{target.sql} AS c{n}" for n, target in enumerate(targets, 1))
        tail = f" WHERE {where}" if where else ""
        if groups:
            tail += f" GROUP BY {', '.join(_no_place(sql) for _, sql in groups)}"
        if having:
            tail += f" HAVING {having}"
        body = self._body(scope, source, tail, cells, aggregated=bool(groups))
        end = f"{order}{self._limit(node, scope)}"
        sql = f"SELECT {distinct}{body}{end}"
        if first_of:
            sql = self._first_rows(node, targets, scope, (source, tail, cells), first_of)
            end = "DISTINCT ON"
        single = scope.has_aggregate and not groups and not scope.set_calls
        form = "ordered" if end else "select"
        return Query(sql=sql, columns=tuple(targets), single=single, form=form)

    def _body(self, scope: Scope, source: str, tail: str, cells: str, *, aggregated: bool) -> str:
        """Return the text after SELECT, with the functions in the list that return sets."""
        calls = scope.set_calls
        if not calls:
            return f"{cells}{f' FROM {source}' if source else ''}{tail}"
        if len(calls) > 1:
            raise make_unsupported("several functions that return sets in one list")
        if not scope.has_aggregate and not aggregated:
            each = f"json_each({calls[0]}) AS set0"
            return f"{cells} FROM {f'{source}, {each}' if source else each}{tail}"
        if any(sql in cells for _, sql in scope.bare if sql):
            raise make_unsupported("columns beside a function that returns sets of aggregates")
        inner = f"SELECT {calls[0]} AS v{f' FROM {source}' if source else ''}{tail}"
        return f"{cells} FROM ({inner}) AS whole, json_each(whole.v) AS set0"

    def _groups(self, node: exp.Select, scope: Scope) -> list[tuple[exp.Expr, str]]:
        """Return the expressions of GROUP BY: as written, and in SQLite's SQL."""
        clause = node.args.get("group")
        if clause is None:
            return []
        only(clause, "expressions")
        found = []
        for one in clause.expressions:
            target = self._named_target(node, one)
            if isinstance(one, exp.Column) and one.args.get("table") is None:
                try:
                    bound = self.expressions.bind(one, scope)
                except Refused:
                    if target is None:
                        raise
                    bound = self.expressions.bind(target, scope)
            else:
                bound = self.expressions.bind(one if target is None else target, scope)
            node_of = one if target is None else target
            found.append((node_of, bound.sql))
        return found

    @staticmethod
    def _named_target(node: exp.Select, one: exp.Expr) -> exp.Expr | None:
        """Return the select-list entry for a number or name in GROUP BY."""
        targets = node.expressions
        if isinstance(one, exp.Literal) and not one.is_string:
            number = _position(one, "GROUP BY", len(targets))
            target = targets[number - 1]
            return cast("exp.Expr", target.this if isinstance(target, exp.Alias) else target)
        if isinstance(one, exp.Column) and one.args.get("table") is None:
            for target in targets:
                if isinstance(target, exp.Alias) and name_of(target.args["alias"]) == name_of(
                    one.this
                ):
                    return cast("exp.Expr", target.this)
        return None

    def _targets(
        self, node: exp.Select, scope: Scope, groups: Sequence[tuple[exp.Expr, str]]
    ) -> list[Bound]:
        found: list[Bound] = []
        scope.may_return_sets = True
        for target in node.expressions:
            before = len(scope.bare)
            made = self._target(target, scope)
            written = target.this if isinstance(target, exp.Alias) else target
            if any(written == one or made[0].sql == sql for one, sql in groups):
                del scope.bare[before:]
            found += made
        scope.may_return_sets = False
        return found

    def _target(self, target: exp.Expr, scope: Scope) -> list[Bound]:
        if isinstance(target, exp.Star):
            only(target)
            return list(scope.star(None))
        if isinstance(target, exp.Column) and isinstance(target.this, exp.Star):
            parts = only(target, "this", "table")
            return list(scope.star(name_of(parts["table"])))
        if isinstance(target, exp.Dot) and isinstance(target.expression, exp.Star):
            row = self.expressions.bind(target.this, scope)
            if not row.fields:
                raise make_unsupported("all fields of a value that is not a row of a function")
            return [self.expressions.field(row, name) for name, _ in row.fields]
        if isinstance(target, exp.Alias):
            only(target, "this", "alias")
            bound = self.expressions.bind(target.this, scope)
            return [replace(bound, name=name_of(target.args["alias"]), strength=2)]
        return [self.expressions.bind(target, scope)]

    def _check_groups(self, scope: Scope, groups: Sequence[tuple[exp.Expr, str]]) -> None:
        grouped = {sql for _, sql in groups}
        for key, sql in scope.bare:
            if sql not in grouped and not (key and key in grouped):
                shown = sql.rpartition(".")[2].strip('"')
                raise Refused(
                    "42803",
                    f'column "{shown}" must appear in the GROUP BY clause or be used in an '
                    "aggregate function",
                )

    @staticmethod
    def _distinct(node: exp.Select) -> str:
        clause = node.args.get("distinct")
        if clause is None:
            return ""
        only(clause)
        return "DISTINCT "

    def _first_of(self, node: exp.Select, targets: Sequence[Bound], scope: Scope) -> list[str]:
        """Return the expressions of DISTINCT ON."""
        clause = node.args.get("distinct")
        if clause is None or not clause.args.get("on"):
            return []
        only(clause, "on")
        found = []
        for one in _cells(clause.args["on"]):
            place = self._order_key(one, targets, scope, only_targets=False)
            found.append(targets[int(place) - 1].sql if place.isdecimal() else place)
        return found

    def _first_rows(
        self,
        node: exp.Select,
        targets: Sequence[Bound],
        scope: Scope,
        parts: tuple[str, str, str],
        first_of: list[str],
    ) -> str:
        """Return DISTINCT ON: of equal rows the first one in the order, which begins with them."""
        if scope.set_calls or scope.has_aggregate or node.args.get("group"):
            raise make_unsupported("DISTINCT ON with aggregates or functions that return sets")
        source, tail, cells = parts
        keys = self._order_keys(node, targets, scope, only_targets=False)
        named = [
            (targets[int(key) - 1].sql if key.isdecimal() else key, direction)
            for key, direction in keys
        ]
        if {key for key, _ in named[: len(first_of)]} != set(first_of) and named:
            raise Refused(
                "42P10",
                "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            )
        by = ", ".join(f"{key} {direction}" for key, direction in named) or "1"
        over = f"PARTITION BY {', '.join(first_of)} ORDER BY {by}"
        kept = "".join(f", {key} AS k{n}" for n, (key, _) in enumerate(named, 1))
        inner = f"SELECT {cells}{kept}, row_number() OVER ({over}) AS n"
        inner += f"{f' FROM {source}' if source else ''}{tail}"
        names = ", ".join(f"c{n}" for n in range(1, len(targets) + 1))
        outer = ", ".join(f"k{n} {direction}" for n, (_, direction) in enumerate(named, 1))
        order = f" ORDER BY {outer}" if outer else ""
        return f"SELECT {names} FROM ({inner}) WHERE n = 1{order}{self._limit(node, scope)}"

    def _order(
        self, node: exp.Expr, targets: Sequence[Bound], scope: Scope | None, *, only_targets: bool
    ) -> str:
        keys = self._order_keys(node, targets, scope, only_targets=only_targets)
        if not keys:
            return ""
        return f" ORDER BY {', '.join(f'{key} {direction}' for key, direction in keys)}"

    def _order_keys(
        self, node: exp.Expr, targets: Sequence[Bound], scope: Scope | None, *, only_targets: bool
    ) -> list[tuple[str, str]]:
        """Return the keys of ORDER BY, each an expression or a place, with their directions."""
        clause = node.args.get("order")
        if clause is None:
            return []
        only(clause, "expressions")
        keys = []
        for one in clause.expressions:
            only(one, "this", "desc", "nulls_first")
            direction = "DESC" if one.args.get("desc") else "ASC"
            nulls = "FIRST" if one.args.get("nulls_first") else "LAST"
            key = self._order_key(one.this, targets, scope, only_targets=only_targets)
            keys.append((key, f"{direction} NULLS {nulls}"))
        return keys

    def _order_key(
        self, node: exp.Expr, targets: Sequence[Bound], scope: Scope | None, *, only_targets: bool
    ) -> str:
        if isinstance(node, exp.Literal) and not node.is_string:
            number = _position(node, "ORDER BY", len(targets))
            _check_sortable(targets[number - 1])
            return str(number)
        if isinstance(node, exp.Column) and node.args.get("table") is None:
            name = name_of(node.this)
            places = [n for n, target in enumerate(targets, 1) if target.name == name]
            if places and len({targets[n - 1].sql for n in places}) == 1:
                _check_sortable(targets[places[0] - 1])
                return str(places[0])
        if scope is None:
            raise make_unsupported("ORDER BY an expression behind UNION")
        bound = self.expressions.bind(node, scope)
        if self.context.types.element_of(bound.type):
            raise make_unsupported("ORDER BY an array")
        _check_sortable(bound)
        for place, target in enumerate(targets, 1):
            if target.sql == bound.sql:
                return str(place)
        if only_targets:
            raise Refused(
                "42P10", "for SELECT DISTINCT, ORDER BY expressions must appear in select list"
            )
        return _no_place(bound.sql)

    def _limit(self, node: exp.Expr, scope: Scope) -> str:
        sql = ""
        for name, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
            clause = node.args.get(name)
            if clause is None:
                continue
            only(clause, "expression", "count")
            value = clause.args.get("expression") or clause.args.get("count")
            if isinstance(value, exp.Var | exp.Null) or (
                isinstance(value, exp.Column) and name_of(value.this) == "all"
            ):
                continue
            bound = self.expressions.coercions.to(
                self.expressions.bind(value, Scope(parent=scope)), INT8
            )
            if word == "OFFSET" and not sql:
                sql = " LIMIT -1"
            sql += f" {word} {bound.sql}"
        return sql

    # -- set operations and VALUES ------------------------------------------------------------

    def _set_operation(self, node: exp.SetOperation, scope: Scope) -> Query:
        parts = only(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
        sides = [
            self.query(parts[side], Scope(parent=scope.parent)) for side in ("this", "expression")
        ]
        if len(sides[0].columns) != len(sides[1].columns):
            raise Refused("42601", "each UNION query must have the same number of columns")
        columns, selects = self._unify(sides)
        word = _SET_OPERATIONS.get(type(node))
        if word is None:
            raise make_unsupported(type(node).__name__)
        if not node.args.get("distinct"):
            if word != "UNION":
                raise make_unsupported(f"{word} ALL")
            word = "UNION ALL"
        order = self._order(node, columns, None, only_targets=True)
        end = f"{order}{self._limit(node, scope)}"
        sql = f"{selects[0]} {word} {selects[1]}{end}"
        return Query(sql=sql, columns=columns, form="ordered" if end else "compound")

    def _unify(self, sides: Sequence[Query]) -> tuple[tuple[Bound, ...], list[str]]:
        """Return columns of one type for all sides, and the sides converted to it."""
        oids = [
            self.context.types.common([column.type for column in pair], "UNION")
            for pair in zip(*(side.columns for side in sides), strict=True)
        ]
        selects = []
        for place, side in enumerate(sides):
            cells = [
                self.expressions.coercions.to(
                    replace(column, sql=f"c{n}", literal=None), oid, explicit=True
                ).sql
                for n, (column, oid) in enumerate(zip(side.columns, oids, strict=True), 1)
            ]
            as_it_is = cells == [f"c{n}" for n in range(1, len(cells) + 1)]
            if as_it_is and (side.form == "select" or (side.form, place) == ("compound", 0)):
                selects.append(side.sql)
                continue
            named = ", ".join(f"{cell} AS c{n}" for n, cell in enumerate(cells, 1))
            selects.append(f"SELECT {named} FROM ({side.sql})")
        columns = tuple(
            Bound(sql=f"c{n}", type=oid, name=column.name, strength=2)
            for n, (column, oid) in enumerate(zip(sides[0].columns, oids, strict=True), 1)
        )
        return columns, selects

    def values(self, node: exp.Values, scope: Scope) -> Query:
        """Return VALUES, whose columns are column1, column2, ..."""
        only(node, "expressions", "alias", "order", "limit", "offset", "with_")
        rows = [
            [self.expressions.bind(cell, Scope(parent=scope)) for cell in _cells(row)]
            for row in node.expressions
        ]
        if len({len(row) for row in rows}) != 1:
            raise Refused("42601", "VALUES lists must all be the same length")
        oids = [
            self.context.types.common([cell.type for cell in column], "VALUES")
            for column in zip(*rows, strict=True)
        ]
        selects = []
        for row in rows:
            cells = [
                self.expressions.coercions.to(cell, oid, explicit=True).sql
                for cell, oid in zip(row, oids, strict=True)
            ]
            named = ", ".join(f"{cell} AS c{n}" for n, cell in enumerate(cells, 1))
            selects.append(f"SELECT {named}")
        columns = tuple(
            Bound(sql=f"c{n}", type=oid, name=f"column{n}", strength=2)
            for n, oid in enumerate(oids, 1)
        )
        order = self._order(node, columns, None, only_targets=True)
        sql = f"SELECT * FROM ({' UNION ALL '.join(selects)}){order}{self._limit(node, scope)}"
        return Query(sql=sql, columns=columns)


def _no_place(sql: str) -> str:
    """Return an expression for GROUP BY or ORDER BY that SQLite cannot take for a place in the
    list.

    SQLite takes numbers for places, and turns conditions that are always false into numbers.
    """
    return sql if _PLAIN.fullmatch(sql) else f"coalesce({sql}, NULL)"


def _position(node: exp.Literal, clause: str, count: int) -> int:
    """Return the place in a list of `count` that a number names. Raises Refused: 42601, 42P10."""
    text = str(node.this)
    if not text.isdecimal():
        raise Refused("42601", f"non-integer constant in {clause}")
    number = parse_whole(text)
    if number is None or not 1 <= number <= count:
        raise Refused("42P10", f"{clause} position {text[:20]} is not in select list")
    return number


def _check_sortable(bound: Bound) -> None:
    if bound.type == INTERVAL:  # its texts sort in another order
        raise make_unsupported("ORDER BY an interval")


def _cells(row: exp.Expr) -> Sequence[exp.Expr]:
    return row.expressions if isinstance(row, exp.Tuple) else [row]


def finish_columns(columns: Sequence[Bound]) -> list[Bound]:
    """Return the columns of an answer: columns without a type become text."""
    return [replace(column, type=TEXT) if column.type == UNKNOWN else column for column in columns]
