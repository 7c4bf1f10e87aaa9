"""Changes by SQL: they run in SQLite on copies of the tables, and the model applies the difference.

So a client's statements write redo and meet the model's constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlglot import exp

from sim_oracle.cells import RowIdText, column_name, decode, encode
from sim_oracle.columns import Row
from sim_oracle.conversions import convert_value
from sim_oracle.errors import Blocked, OraError
from sim_oracle.grammar import Prepared, prepare
from sim_oracle.lobs import is_piece
from sim_oracle.query import (
    alias_of,
    check_lob_use,
    convert,
    expand_stars,
    open_store,
    run_in_store,
    visible_names,
)
from sim_oracle.tables import Table

if TYPE_CHECKING:
    from sim_oracle.session import Session
    from sim_oracle.transactions import Done

_ACTIONS = ((exp.Insert, "INSERT"), (exp.Update, "UPDATE"), (exp.Delete, "DELETE"))


def run(session: Session, text: str, binds: dict[str, Any]) -> int:
    """Run an INSERT, UPDATE, DELETE or MERGE; return how many rows it changed."""
    plan = _plan_of_values(text)
    if plan is not None:
        return _insert_binds(session, plan, binds)
    prepared = prepare(text)
    tree = prepared.tree
    action = next((name for kind, name in _ACTIONS if isinstance(tree, kind)), "UPDATE")
    if action == "UPDATE" and not isinstance(tree, exp.Update | exp.Merge):
        raise OraError(900)
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    table = _table_of(session, target, action)
    if isinstance(tree, exp.Insert):
        return _insert(session, table, prepared, binds)
    _refuse_long(session, binds, is_assigned=isinstance(tree, exp.Update))
    if isinstance(tree, exp.Merge):
        return _merge(session, table, tree.copy(), binds)
    return _change(session, table, tree.copy(), binds)


def _refuse_long(session: Session, binds: Mapping[str, Any], *, is_assigned: bool) -> None:
    """Raise OraError 1461 for texts that a server takes for LONG outside of assignments."""
    is_extended = session.database.settings.parameters["max_string_size"] == "EXTENDED"
    limit = 32_767 if is_extended else 4000
    if not is_assigned and any(
        isinstance(one, str) and len(one) * 4 > limit and len(one.encode()) > limit
        for one in binds.values()
    ):
        raise OraError(1461)


def evaluate(session: Session, expression: str) -> Any:
    """Return the value of an expression without columns."""
    work = _Work(session)
    tree = prepare(f"SELECT {expression} FROM DUAL").tree.copy()
    return decode(work.fetch(tree, {})[0][0], {})


def _table_of(session: Session, node: Any, action: str = "SELECT") -> Table:
    owner = node.args.get("db")
    owner_name = session.schema if owner is None else _spelling(owner)
    return session.find_table(owner_name, _spelling(node.this), action)


def _spelling(node: Any) -> str:
    return str(node.name if node.args.get("quoted") else node.name.upper())


class _Work:
    """Copies of the tables that one statement reads."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.store = open_store(session.context())
        self._copied: set[str] = set()
        self._visible: dict[str, list[str]] = {}

    def fetch(self, tree: exp.Expr, binds: Mapping[str, Any]) -> list[Any]:
        """Return the rows of a query on the copies; the tree is changed."""
        check_lob_use(tree, self._tables_of(tree))
        self._load(tree)
        expand_stars(tree, self._visible)
        return run_in_store(self.store, convert(tree), binds).fetchall()

    def _tables_of(self, tree: exp.Expr) -> dict[str, Table | None]:
        out: dict[str, Table | None] = {}
        for node in tree.find_all(exp.Table):
            name = _spelling(node.this)
            if (name == "DUAL") or name in self._copied:
                continue
            try:
                out[name] = _table_of(self.session, node)
            except OraError:
                out[name] = None  # a common table expression, or an error of the query itself
        return out

    def _load(self, tree: exp.Expr) -> None:
        ctes = {one.alias_or_name.upper() for one in tree.find_all(exp.CTE)}
        for node in list(tree.find_all(exp.Table)):
            name = _spelling(node.this)
            if node.args.get("db") is None and name in ctes:
                continue
            alias = alias_of(node) or name
            copied = "DUAL" if name == "DUAL" else self._copy(node)
            if name == "DUAL" and "DUAL" not in self._copied:
                self.store.execute('CREATE TABLE "DUAL" ("DUMMY")')
                self.store.execute("""INSERT INTO "DUAL" VALUES ('X')""")
                self._copied.add("DUAL")
            node.set("db", None)
            node.set("partition", None)
            node.set("this", exp.to_identifier(copied, quoted=True))
            node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))

    def _copy(self, node: Any) -> str:
        table = _table_of(self.session, node)
        name = f"{table.version.owner}.{table.name}"
        if name in self._copied:
            return name
        self._copied.add(name)
        self._visible[name] = visible_names(table)
        columns = [column for column in table.version.columns if not column.is_virtual]
        quoted = (f'"{column_name(column.name)}"' for column in columns)
        listed = ", ".join(("ROWID", *quoted))
        stored = column_name(name)
        self.store.execute(f'CREATE TABLE "{stored}" ({listed})')
        marks = ", ".join("?" * (len(columns) + 1))
        scn = self.session.database.scn
        rows = (
            [encode(RowIdText(row_id)), *(encode(row[one.name], one.kind) for one in columns)]
            for row_id, row in table.visible(scn, self.session.transaction)
        )
        self.store.executemany(f'INSERT INTO "{stored}" VALUES ({marks})', rows)
        return name


# ---------------------------------------------------------------------- INSERT


class _Values(NamedTuple):
    """An INSERT whose values are binds.

    Attributes:
        names: Columns; empty if the statement does not name them.
        binds: Names of the binds.
    """

    owner: str
    table: str
    names: tuple[str, ...]
    binds: tuple[str, ...]


@lru_cache(maxsize=512)
def _plan_of_values(text: str) -> _Values | None:
    """Return the plan of `INSERT INTO .. VALUES (:1, :2)`; None of other statements."""
    if text.lstrip()[:6].upper() != "INSERT":
        return None
    tree = prepare(text).tree
    if not isinstance(tree, exp.Insert) or not isinstance(tree.expression, exp.Values):
        return None
    rows = tree.expression.expressions
    if len(rows) != 1 or not all(isinstance(one, exp.Placeholder) for one in rows[0].expressions):
        return None
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    names = tree.this.expressions if isinstance(tree.this, exp.Schema) else []
    binds = (str(one.this).upper() for one in rows[0].expressions)
    owner = target.args.get("db")
    return _Values(
        "" if owner is None else _spelling(owner),
        _spelling(target.this),
        tuple(_spelling(one) for one in names),
        tuple(one[2:] if one[:2] == "B_" and one[2:].isdigit() else one for one in binds),
    )


def _insert_binds(session: Session, plan: _Values, binds: dict[str, Any]) -> int:
    table = session.find_table(plan.owner or session.schema, plan.table, "INSERT")
    names = plan.names or _all_names(table)
    _check_count(names, plan.binds)
    row = {name: binds[one] for name, one in zip(names, plan.binds, strict=True)}
    session.begin().insert(table, with_defaults(session, table, row))
    return 1


def _all_names(table: Table) -> tuple[str, ...]:
    return tuple(
        one.name
        for one in table.version.columns
        if not (one.is_invisible or one.is_hidden or one.is_virtual)
    )


def _check_count(names: Sequence[str], values: Sequence[Any]) -> None:
    if len(names) != len(values):
        raise OraError(913 if len(values) > len(names) else 947)


def with_defaults(session: Session, table: Table, row: Row) -> Row:
    """Return a row with the types of its columns, defaults and numbers of the identity column."""
    out: Row = {}
    known = {column.name for column in table.version.columns}
    for name in row:
        if name not in known:
            raise OraError(904, f'"{name}"')
    for column in table.version.columns:
        name = column.name
        if column.is_virtual:
            if name in row:
                raise OraError(54013, text="INSERT operation disallowed on virtual columns")
            continue
        value = row.get(name)
        if column.identity == "ALWAYS" and name in row:
            raise OraError(32795)
        is_generated = column.identity is not None and (
            name not in row or (value is None and column.identity == "BY DEFAULT ON NULL")
        )
        if is_generated:
            value = table.identity_next
            table.identity_next += 1
        elif name not in row and column.default is not None:
            value = session.value_of(column)
        if value is not None or name in row or is_generated:
            out[name] = convert_value(column, value, session.nls)
        if out.get(name) is None and not column.is_nullable:
            raise OraError(1400, f'"{table.version.owner}"."{table.name}"."{name}"')
    return out


def _insert(session: Session, table: Table, prepared: Prepared, binds: dict[str, Any]) -> int:
    tree = prepared.tree
    names = (
        tuple(_spelling(one) for one in tree.this.expressions)
        if isinstance(tree.this, exp.Schema)
        else _all_names(table)
    )
    source = tree.expression.copy()
    work = _Work(session)
    if isinstance(source, exp.Values):
        rows = []
        for one in source.expressions:
            _check_count(names, one.expressions)
            rows += work.fetch(
                exp.Select().select(*(part.copy() for part in one.expressions)), binds
            )
    else:
        _refuse_long(session, binds, is_assigned=False)
        rows = work.fetch(source, binds)
    for values in rows:
        _check_count(names, values)
        row: Row = {name: decode(value, {}) for name, value in zip(names, values, strict=True)}
        session.begin().insert(table, with_defaults(session, table, row))
    return len(rows)


# ---------------------------------------------------------------------- UPDATE, DELETE


def _change(session: Session, table: Table, tree: exp.Expr, binds: dict[str, Any]) -> int:
    """Run an UPDATE or a DELETE: a query finds row ids and new values."""
    alias = alias_of(tree.this) or _spelling(tree.this.this)
    select = exp.Select().from_(tree.this.copy())
    wanted: list[Any] = [exp.column("ROWID", table=alias, quoted=True)]
    names: list[str] = []
    if isinstance(tree, exp.Update):
        names, expressions = _assignments(tree.expressions)
        wanted += expressions
    select = select.select(*wanted)
    where = tree.args.get("where")
    if where is not None:
        select.set("where", where.copy())
    rows = _Work(session).fetch(select, binds)
    if rows:
        _write(session, table, names, rows)
    return len(rows)


def _assignments(nodes: Iterable[Any]) -> tuple[list[str], list[Any]]:
    """Return columns and expressions of a SET list; `(a, b) = (SELECT ..)` is divided."""
    names: list[str] = []
    wanted: list[Any] = []
    for one in nodes:
        if not isinstance(one.this, exp.Tuple):
            names.append(_spelling(one.this.this if isinstance(one.this, exp.Column) else one.this))
            wanted.append(one.expression.copy())
            continue
        query = one.expression.this if isinstance(one.expression, exp.Subquery) else one.expression
        for place, column in enumerate(one.this.expressions):
            names.append(_spelling(column.this if isinstance(column, exp.Column) else column))
            part = query.copy()
            part.set("expressions", [query.expressions[place].copy()])
            wanted.append(exp.Subquery(this=part))
    if len(set(names)) < len(names):
        raise OraError(957)
    return names, wanted


def _write(session: Session, table: Table, names: list[str], rows: list[Any]) -> None:
    transaction = session.begin()
    ids = [str(decode(row[0], {})) for row in rows]
    _refuse_newer(session, table, ids)
    if not names:
        transaction.delete_many(table, ids)
        return
    columns = []
    for name in names:
        column = next((one for one in table.version.columns if one.name == name), None)
        if column is None:
            raise OraError(904, f'"{name}"')
        if column.is_virtual:
            raise OraError(54017, text="UPDATE operation disallowed on virtual columns")
        if column.identity == "ALWAYS":
            raise OraError(32796, text="cannot update a generated always identity column")
        columns.append(column)
    changes: list[tuple[str, Row]] = [
        (
            row_id,
            {
                column.name: convert_value(column, decode(cell, {}), session.nls)
                for column, cell in zip(columns, row[1:], strict=True)
            },
        )
        for row_id, row in zip(ids, rows, strict=True)
    ]
    has_pieces = any(
        is_piece(table, name, value) for _, given in changes for name, value in given.items()
    )
    is_simple = not has_pieces and table.partition_by is None
    if is_simple and len(changes) > 1:
        transaction.update_many(table, changes)
        return
    for row_id, values in changes:
        transaction.update(table, row_id, values)


def _refuse_newer(session: Session, table: Table, ids: list[str]) -> None:
    """Raise OraError 8177 if a serializable transaction would change a row that is newer."""
    if not session.is_serializable or session.read_scn is None:
        return
    for row_id in ids:
        versions = table.history.get(row_id)
        if versions and versions[-1][0] > session.read_scn:
            raise OraError(8177)


def lock_rows(session: Session, text: str, binds: dict[str, Any]) -> None:
    """Lock the rows of a SELECT .. FOR UPDATE of one table."""
    tree = prepare(text).tree.copy()
    node = tree.find(exp.Table)
    assert isinstance(tree, exp.Select)
    assert node is not None
    table = _table_of(session, node)
    alias = alias_of(node) or _spelling(node.this)
    select = tree.select(exp.column("ROWID", table=alias, quoted=True), append=False)
    select.set("locks", None)
    is_skipping = " ".join(text.upper().split()).rstrip(" ;").endswith("SKIP LOCKED")
    for row in _Work(session).fetch(select, binds):
        transaction = session.begin()
        transaction.start()
        try:
            transaction.lock(table, str(decode(row[0], {})))
        except Blocked:
            if not is_skipping:
                raise


# ---------------------------------------------------------------------- MERGE


def _merge(session: Session, table: Table, tree: exp.Expr, binds: dict[str, Any]) -> int:
    """Run a MERGE: one query per action, on the rows from before the statement."""
    target, using, on = tree.this, tree.args["using"], tree.args["on"]
    alias = alias_of(target) or _spelling(target.this)
    _check_merge(tree, on, alias)
    plans: list[tuple[str, list[str], list[Any]]] = []
    work = _Work(session)
    for when in tree.find_all(exp.When):
        action, condition = when.args["then"], when.args.get("condition")
        names: list[str] = []
        if when.args.get("matched"):
            select = exp.Select().from_(target.copy()).join(using.copy(), on=on.copy())
            wanted: list[Any] = [exp.column("ROWID", table=alias, quoted=True)]
            if isinstance(action, exp.Update):
                names, expressions = _assignments(action.expressions)
                wanted += expressions
            kind = "update" if names else "delete"
        else:
            select = exp.Select().from_(using.copy())
            inner = exp.Select().select("1").from_(target.copy()).where(on.copy())
            select = select.where(exp.Not(this=exp.Exists(this=inner)))
            wanted = [one.copy() for one in action.expression.expressions]
            names = [_spelling(one.this if isinstance(one, exp.Column) else one)
                     for one in action.this.expressions]  # fmt: skip
            _check_count(names, wanted)
            kind = "insert"
        select = select.select(*wanted)
        if condition is not None:
            select = select.where(condition.copy())
        plans.append((kind, names, work.fetch(select, binds)))
    return _run_plans(session, table, plans)


def _check_merge(tree: exp.Expr, on: Any, alias: str) -> None:
    joined = {
        node.name.upper()
        for node in on.find_all(exp.Column)
        if not node.table or node.table.upper() == alias.upper()
    }
    for when in tree.find_all(exp.When):
        if isinstance(when.args["then"], exp.Update):
            for one in when.args["then"].expressions:
                if one.this.name.upper() in joined:
                    raise OraError(38104, one.this.name)


def _run_plans(
    session: Session, table: Table, plans: list[tuple[str, list[str], list[Any]]]
) -> int:
    gone = {row[0] for kind, _, rows in plans if kind == "delete" for row in rows}
    seen: set[Any] = set()
    count = 0
    for kind, names, rows in plans:
        if kind == "update":
            rows = [row for row in rows if row[0] not in gone]
        if kind == "insert":
            for row in rows:
                values: Row = {
                    name: decode(cell, {}) for name, cell in zip(names, row, strict=True)
                }
                session.begin().insert(table, with_defaults(session, table, values))
        elif rows:
            ids = [row[0] for row in rows]
            if len(set(ids)) < len(ids) or seen & set(ids):
                raise OraError(30926)
            seen |= set(ids)
            _write(session, table, names, rows)
        count += len(rows)
    return count


# ---------------------------------------------------------------------- checks


def check_conditions(session: Session, changed: Sequence[Done]) -> None:
    """Raise OraError 2290 if a changed row violates a CHECK constraint."""
    for done in changed:
        conditions = [
            one
            for one in done.table.constraints.values()
            if one.kind == "C" and one.is_enabled and one.condition is not None
        ]
        row = done.table.rows.get(done.row_id)
        if not conditions or row is None:
            continue
        store = open_store(session.context())
        columns = [one for one in done.table.version.columns if not one.is_virtual]
        listed = ", ".join(f'"{column_name(one.name)}"' for one in columns)
        store.execute(f"CREATE TABLE R ({listed})")
        marks = ", ".join("?" * len(columns))
        cells = [encode(row[one.name], one.kind) for one in columns]
        store.execute(f"INSERT INTO R VALUES ({marks})", cells)
        for constraint in conditions:
            tree = prepare(f"SELECT 1 FROM R WHERE NOT ({constraint.condition})").tree.copy()
            if run_in_store(store, convert(tree), {}).fetchall():
                raise OraError(2290, f"{done.table.version.owner}.{constraint.name}")
