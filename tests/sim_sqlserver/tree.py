"""Changes of a parsed statement where PostgreSQL's grammar differs from T-SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from sim_sqlserver import casts
from sim_sqlserver.errors import SqlError
from sim_sqlserver.names import literal, quote_name, short_name

if TYPE_CHECKING:
    from sim_sqlserver.rewrite import Prepared, Rewritten

Spelling = Callable[[str], str]
_HIDDEN = {"master", "tempdb"}


@dataclass
class Names:
    """Spelling of the names in a statement.

    Attributes:
        spelling: Returns the existing spelling of a name anywhere in the database.
        columns: Returns the columns of a table.
        database: Name of the database.
    """

    spelling: Spelling
    columns: Callable[[str, str], list[str]]
    database: str
    _aliases: dict[str, str] = field(default_factory=dict)
    _columns: dict[str, str] = field(default_factory=dict)

    def read(self, parsed: exp.Expression) -> None:
        """Read the aliases of a statement, and the columns of its tables."""
        for alias in parsed.find_all(exp.Alias):
            named = alias.args.get("alias")
            if isinstance(named, exp.Identifier):
                self._aliases[named.name.lower()] = named.name
        for table in parsed.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier):
                continue
            schema = "msdb" if table.catalog.lower() == "msdb" else table.db
            name = table.name
            if table.this.args.get("temporary"):
                name = "#" + name.lstrip("#")
            self.add_columns(self.columns(self.spelling(schema or "dbo"), self.spelling(name)))

    def add_columns(self, columns: Iterable[str]) -> None:
        """Add columns that the statement may name."""
        for column in columns:
            self._columns.setdefault(column.lower(), column)

    def find(self, node: exp.Identifier, name: str) -> str:
        """Return the spelling of an identifier."""
        folded = name.lower()
        if folded in self._aliases:
            return self._aliases[folded]
        if not isinstance(node.parent, exp.Table) and folded in self._columns:
            return self._columns[folded]
        return self.spelling(name)


def convert(parsed: Any, prepared: Prepared, names: Names) -> Rewritten:
    """Return the statement that PostgreSQL runs."""
    from sim_sqlserver.rewrite import Rewritten

    out = Rewritten("", parsed.key, locks=prepared.locks)
    if isinstance(parsed, exp.Select):
        _take_assignments(parsed, out)
        _take_into(parsed, out)
    if isinstance(parsed, exp.Query):
        _read_query(parsed, out)
    names.read(parsed)
    returning = parsed.args.get("returning")
    if returning is not None:
        out.has_output = True
        out.types = casts.result_types(returning.expressions)
        _fix_output(parsed, returning)
    if isinstance(parsed, exp.Delete | exp.Update):
        _through_query(parsed)
    if isinstance(parsed, exp.Delete):
        parsed = _delete(parsed)
    elif isinstance(parsed, exp.Update):
        parsed = _update(parsed)
    elif isinstance(parsed, exp.Merge):
        _merge(parsed)
    if prepared.top and isinstance(parsed, exp.Delete | exp.Update):
        _limit(parsed, prepared.top)
    for node in list(parsed.find_all(exp.Anonymous)):
        casts.annotate(node)
    parsed = _convert_all(parsed, lambda node: _node(node, names))
    _take_table(parsed, out)
    out.sql = parsed.sql("postgres", normalize_functions=False)
    return out


def _find_unnamed(items: list[exp.Expression]) -> frozenset[int]:
    """Return the places of results without a name."""
    if any(item.find(exp.Star) and not item.find(exp.Count) for item in items):
        return frozenset()
    named = exp.Alias | exp.Column
    return frozenset(p for p, item in enumerate(items) if not isinstance(item, named))


def _take_assignments(select: exp.Select, out: Rewritten) -> None:
    found = []
    for item in select.expressions:
        name = item.alias if isinstance(item, exp.Alias) else ""
        if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
            name = item.this.name
        if not name.startswith("ms$v$"):
            return
        value = item.this if isinstance(item, exp.Alias) else item.expression
        found.append((name.removeprefix("ms$v$"), value))
    out.targets = [name for name, _ in found]
    select.set("expressions", [value for _, value in found])


def _take_into(select: exp.Select, out: Rewritten) -> None:
    into = select.args.get("into")
    if into is None:
        return
    table = into.this
    prefix = "#" if table.this.args.get("temporary") or into.args.get("temporary") else ""
    out.into = (table.db, prefix + table.name.lstrip("#"))
    select.set("into", None)


def _fix_output(parsed: exp.Expression, returning: exp.Expression) -> None:
    """Let inserted and deleted be columns of the changed table."""
    is_update = isinstance(parsed, exp.Update)
    for column in list(returning.find_all(exp.Column)):
        if column.table.lower() not in ("inserted", "deleted"):
            continue
        if is_update and column.table.lower() == "deleted":
            raise SqlError(102, "The simulator cannot OUTPUT deleted columns of an UPDATE.")
        alias = _changed_alias(parsed)
        column.set("table", exp.to_identifier(alias, quoted=True) if alias else None)


def _changed_alias(parsed: exp.Expression) -> str:
    table = parsed.this
    if isinstance(table, exp.Schema):
        table = table.this
    if isinstance(parsed, exp.Update | exp.Delete):
        tables = parsed.args.get("tables")
        if tables:
            return str(tables[0].name)
    return str(table.alias_or_name)


def _join_parts(source: exp.Table) -> tuple[list[exp.Expression], list[exp.Expression]]:
    """Return the joined tables and their conditions; the source keeps none."""
    joins = source.args.get("joins") or []
    conditions = [join.args["on"] for join in joins if join.args.get("on") is not None]
    if any(join.side for join in joins):
        raise SqlError(102, "The simulator knows inner joins only in a change.")
    source.set("joins", None)
    return [join.this for join in joins], conditions


def _through_query(change: exp.Delete | exp.Update) -> None:
    """Let a change of a common table expression change the table that it reads."""
    name = change.this.name.lower()
    queries = change.args["with_"].expressions if change.args.get("with_") else []
    query = next((cte for cte in queries if cte.alias.lower() == name), None)
    if query is None:
        return
    source = query.this.args["from_"].this
    place = exp.column("ctid", table=exp.to_identifier(source.alias_or_name))
    query.this.append("expressions", exp.alias_(place, "ms$ctid"))
    target = exp.Table(this=source.this.copy(), db=source.args.get("db"))
    target.set("alias", exp.TableAlias(this=exp.to_identifier("ms$t")))
    same = exp.EQ(
        this=exp.column("ctid", table=exp.to_identifier("ms$t")),
        expression=exp.column("ms$ctid", table=exp.to_identifier(query.alias)),
    )
    where = change.args.get("where")
    condition = same if where is None else exp.and_(same, where.this.copy())
    change.set("where", exp.Where(this=condition))
    reads = exp.Table(this=exp.to_identifier(query.alias))
    change.set("this", target)
    if isinstance(change, exp.Delete):
        change.set("using", [reads])
    else:
        change.set("from_", exp.From(this=reads))


def _delete(delete: exp.Delete) -> exp.Delete:
    """Return DELETE x FROM a AS x JOIN b as DELETE FROM a AS x USING b."""
    tables, source = delete.args.get("tables"), delete.this
    if not tables or source is None:
        return delete
    wanted = tables[0].name.lower()
    others, conditions = _join_parts(source)
    everything = [source, *others]
    target = next((t for t in everything if t.alias_or_name.lower() == wanted), None)
    if target is None:
        raise SqlError(208, f"Invalid object name '{tables[0].name}'.")
    where = delete.args.get("where")
    if where is not None:
        conditions.append(where.this)
    rest = [table for table in everything if table is not target]
    out = exp.Delete(this=target.copy(), returning=delete.args.get("returning"))
    if rest:
        out.set("using", [table.copy() for table in rest])
    if conditions:
        out.set("where", exp.Where(this=exp.and_(*[c.copy() for c in conditions])))
    if delete.args.get("with_"):
        out.set("with_", delete.args["with_"])
    return out


def _update(update: exp.Update) -> exp.Update:
    """Return UPDATE x SET .. FROM a AS x JOIN b as UPDATE a AS x SET .. FROM b."""
    for item in update.expressions:
        _bare_target(item)
    source = update.args.get("from_")
    if source is None:
        return update
    first = source.this
    everything = [first]
    conditions: list[exp.Expression] = []
    if isinstance(first, exp.Table):
        others, conditions = _join_parts(first)
        everything += others
    wanted = update.this.name.lower()
    target = next((t for t in everything if t.alias_or_name.lower() == wanted), None)
    if target is not None:
        update.set("this", target.copy())
    rest = [table.copy() for table in everything if table is not target]
    where = update.args.get("where")
    if where is not None:
        conditions.append(where.this)
    head = rest[0] if rest else None
    if head is not None:
        head.set("joins", [exp.Join(this=table, kind="CROSS") for table in rest[1:]])
    update.set("from_", exp.From(this=head) if head is not None else None)
    if conditions:
        update.set("where", exp.Where(this=exp.and_(*[c.copy() for c in conditions])))
    return update


def _bare_target(item: exp.Expression) -> None:
    """Take the alias from the column that SET assigns."""
    if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
        item.set("this", exp.column(item.this.this.copy()))


def _merge(merge: exp.Merge) -> None:
    for when in merge.args["whens"].expressions:
        if when.args.get("source"):
            raise SqlError(102, "The simulator does not know WHEN NOT MATCHED BY SOURCE.")
        then = when.args.get("then")
        if isinstance(then, exp.Update):
            for item in then.expressions:
                _bare_target(item)


def _limit(change: exp.Expression, top: str) -> None:
    where = change.args.get("where")
    table = change.this
    name = table.alias_or_name
    inner = exp.select(exp.column("ctid")).from_(table.copy()).limit(exp.maybe_parse(top))
    if where is not None:
        inner = inner.where(where.this.copy())
    column = exp.column("ctid", table=exp.to_identifier(name))
    change.set("where", exp.Where(this=exp.In(this=column, query=exp.Subquery(this=inner))))


def _take_table(parsed: exp.Expression, out: Rewritten) -> None:
    if not isinstance(parsed, exp.DML):
        return
    table = parsed.this
    if isinstance(table, exp.Schema):
        out.columns = [column.name for column in table.expressions]
        table = table.this
    if isinstance(table, exp.Table):
        out.table = (table.db, table.name)


def _convert_all(
    node: exp.Expression, convert_one: Callable[[exp.Expression], Any]
) -> exp.Expression:
    """Convert the parts of a tree before what they are parts of."""
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expression):
            new = _convert_all(value, convert_one)
            if new is not value:
                node.set(key, new)
        elif isinstance(value, list):
            changed = [
                _convert_all(item, convert_one) if isinstance(item, exp.Expression) else item
                for item in value
            ]
            if any(new is not old for new, old in zip(changed, value, strict=True)):
                node.set(key, changed)
    converted: exp.Expression = convert_one(node)
    return converted


def _node(node: exp.Expression, names: Names) -> Any:
    if isinstance(node, exp.Identifier):
        return _identifier(node, names)
    if isinstance(node, exp.Table):
        return _table(node, names)
    if isinstance(node, exp.Anonymous):
        return casts.call(node)
    if isinstance(node, exp.HexString):
        digits = str(node.this).removeprefix("0x")
        digits = digits if len(digits) % 2 == 0 else "0" + digits
        return exp.cast(exp.Literal.string("\\x" + digits), "bytea")
    if isinstance(node, exp.National):
        return exp.Literal.string(str(node.this))
    if isinstance(node, exp.Collate):
        return _collate(node)
    if isinstance(node, exp.Escape):
        node.this.append("expressions", node.expression)
        return node.this
    if isinstance(node, exp.Exists) and isinstance(node.this, exp.Intersect):
        return _hash_same_rows(node)
    if isinstance(node, exp.Like):
        return exp.Anonymous(this="ms_like", expressions=[node.this, node.expression])
    if isinstance(node, exp.Column) and not node.table and node.name == "default":
        return node if node.this.args.get("quoted_before") else exp.Var(this="DEFAULT")
    if isinstance(node, exp.Count) and isinstance(node.parent, exp.Expression):
        node.set("big_int", None)
    return node


def _hash_same_rows(node: exp.Exists) -> exp.Expression:
    """Return EXISTS (SELECT row INTERSECT SELECT row) with an equality of hashes before it.

    PostgreSQL joins by an equality that it can hash; SQL Server does it by the values themselves.
    """
    sides = [node.this.this, node.this.expression]
    if not all(isinstance(side, exp.Select) and not side.args.get("from_") for side in sides):
        return node
    left, right = (
        exp.Anonymous(
            this="sim.hash_row",
            expressions=[
                exp.Anonymous(this="ROW", expressions=[item.copy() for item in side.expressions])
            ],
        )
        for side in sides
    )
    return exp.Paren(this=exp.and_(exp.EQ(this=left, expression=right), node))


def _identifier(node: exp.Identifier, names: Names) -> Any:
    name = str(node.this)
    if node.args.get("temporary"):
        name = "#" + name.lstrip("#")
    if not name.startswith("ms$"):
        is_own_alias = isinstance(node.parent, exp.Alias) and node.arg_key == "alias"
        if not is_own_alias:
            name = names.find(node, name)
    out = exp.Identifier(this=short_name(name), quoted=True)
    out.set("quoted_before", bool(node.args.get("quoted")))
    return out


def _read_query(parsed: Any, out: Rewritten) -> None:
    """Note what is known of a query's result, and whether its rows can be locked."""
    out.kind = "select"
    first: Any = parsed
    while isinstance(first, exp.SetOperation):
        first = first.this
    if isinstance(first, exp.Subquery):
        first = first.unnest()
    if isinstance(first, exp.Select):
        out.types = casts.result_types(first.expressions)
        out.unnamed = _find_unnamed(first.expressions)
    out.can_lock_rows = isinstance(parsed, exp.Select) and not (
        parsed.args.get("group") or parsed.args.get("distinct") or parsed.find(exp.AggFunc)
    )


_ALL_CHANGES = "fn_cdc_get_all_changes_"


def _table_function(node: exp.Table, names: Names) -> exp.Expression:
    """Return a query of the change table for cdc.fn_cdc_get_all_changes_<instance>."""
    name = str(node.this.name)
    if not name.lower().startswith(_ALL_CHANGES):
        return node
    instance = name[len(_ALL_CHANGES) :]
    table = names.spelling(f"{instance}_CT")
    listed = names.columns("cdc", table)
    if not listed:
        raise SqlError(208, f"Invalid object name 'cdc.{name}'.")
    hidden = ("__$end_lsn", "__$command_id")
    low, high, kind = (
        part.sql("postgres", normalize_functions=False) for part in node.this.expressions
    )
    low, high = f"({low})::bytea", f"({high})::bytea"
    columns = ", ".join(quote_name(column) for column in listed if column not in hidden)
    alias = quote_name(node.alias) if node.alias else quote_name(name)
    shown = literal(table.removesuffix("_CT"))
    text = (
        f"(SELECT {columns} FROM cdc.{quote_name(table)} WHERE (SELECT sim.check_range({shown}, "
        f"{low}, {high})) AND \"__$start_lsn\" >= coalesce({low}, '') "
        f"AND \"__$start_lsn\" <= coalesce({high}, '') "
        f"AND ({kind} = 'all update old' OR \"__$operation\" <> 3)) AS {alias}"
    )
    return exp.Table(this=exp.Var(this=text), joins=node.args.get("joins"))


def _table(node: exp.Table, names: Names) -> exp.Expression:
    database = names.database
    node.set("hints", None)
    if isinstance(node.this, exp.Anonymous):
        return _table_function(node, names)
    catalog = node.args.get("catalog")
    if catalog is not None:
        name = catalog.name.lower()
        if name == "msdb":
            node.set("db", exp.to_identifier("msdb", quoted=True))
        elif name not in _HIDDEN and name != database.lower():
            raise SqlError(911, f"Database '{catalog.name}' does not exist.")
        elif not node.db:
            node.set("db", exp.to_identifier("dbo", quoted=True))
        node.set("catalog", None)
    return node


def _collate(node: exp.Collate) -> Any:
    name = node.expression.name.upper()
    if name in ("DATABASE_DEFAULT", "CATALOG_DEFAULT"):
        return node.this
    kind = "C" if "BIN" in name else "cs" if "_CS_" in f"{name}_" else "default"
    collation = '"C"' if kind == "C" else f'sim."{kind}"'
    return exp.Collate(this=exp.Paren(this=node.this), expression=exp.Var(this=collation))
