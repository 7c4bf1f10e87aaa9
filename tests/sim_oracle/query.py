"""Queries: views and tables become tables of SQLite, and the query runs there."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlglot import exp

from sim_oracle.catalog import CATALOG
from sim_oracle.cells import (
    MARK,
    Lob,
    Months,
    RowIdText,
    column_name,
    decode,
    encode,
    plain_name,
)
from sim_oracle.columns import Column, NanoTime
from sim_oracle.errors import OraError
from sim_oracle.functions import Functions
from sim_oracle.grammar import prepare
from sim_oracle.literals import format_time, number_text
from sim_oracle.redo import OPEN_END
from sim_oracle.rowids import RowId, parse_rowid
from sim_oracle.statements import COLUMNS as CONTENTS_COLUMNS
from sim_oracle.tables import Table
from sim_oracle.transactions import Transaction
from sim_oracle.views import VIEWS, Context, View

CONTENTS = "V$LOGMNR_CONTENTS"
_STORED = (str, bytes, type(None))  # SQLite stores them as they are
_MAX = 2**63
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)\"""")
_BIG = {float(OPEN_END): OPEN_END}


class OutputColumn(NamedTuple):
    """A column of a result.

    Attributes:
        name: Name of the column.
        column: Declaration of the table's column that it shows; None of other expressions.
        is_row_id: Whether it is ROWID.
    """

    name: str
    column: Column | None
    is_row_id: bool = False


class Result(NamedTuple):
    """Result of a query."""

    columns: list[OutputColumn]
    rows: Iterator[tuple[Any, ...]]


class Source(NamedTuple):
    """A view or table that a query reads.

    Attributes:
        name: Name in SQLite.
        columns: Names of its columns.
        rows: Returns the cells of the columns that are asked for, given their places.
        table: Table of the model; None for a view.
    """

    name: str
    columns: tuple[str, ...]
    rows: Callable[[list[int]], Iterable[tuple[Any, ...]]]
    table: Table | None = None


def find_view(name: str, context: Context) -> View | None:
    """Return a view by name: V_$LOG is V$LOG."""
    plain = name.replace("V_$", "V$")
    if plain == CONTENTS:
        return CONTENTS_COLUMNS, lambda one: one.mining()
    return VIEWS.get(plain) or CATALOG.get(plain)


class Reader:
    """Reader of queries for one session.

    Args:
        context: The session, as views see it.
        find_table: Returns a table by owner and name; raises OraError 942.
        schema: Schema of names without one.
        transaction: The session's open transaction, whose changes its queries see.
        read_scn: SCN that queries without AS OF see; None is the current one.
    """

    def __init__(
        self,
        context: Context,
        find_table: Callable[[str, str], Table],
        schema: str,
        transaction: Transaction | None = None,
        read_scn: int | None = None,
    ) -> None:
        self._read_scn = read_scn
        self._context = context
        self._find_table = find_table
        self._schema = schema
        self._transaction = transaction

    def run(self, text: str, binds: dict[str, Any]) -> Result:
        """Run a query; raises OraError."""
        plan = make_plan(text)
        scn = _as_of(plan, binds)
        between = None
        if plan.versions is not None:
            low, high = (_number_of(one, binds) for one in plan.versions)
            between = (low, high)
        sources = [
            self._source(owner or self._schema, name, owner, scn, between)
            for owner, name in plan.tables
        ]
        store = open_store(self._context)
        try:
            for source, (owner, name) in zip(sources, plan.tables, strict=True):
                fill(store, source._replace(name=store_name(owner, name)), plan.wanted)
        except sqlite3.OperationalError as error:  # cancelled before the statement itself
            raise _error_of(store, error) from error
        columns = _output(plan, sources)
        check_lob_use(plan.tree, {name: source.table for source, (_, name) in
                                  zip(sources, plan.tables, strict=True)})  # fmt: skip
        statement = plan.statement
        if plan.wanted is None:
            statement = self._without_stars(plan, sources)
        cursor = run_in_store(store, statement, binds)
        names = [plain_name(one[0]) for one in cursor.description]
        if len(columns) != len(names):
            declared = _find_columns(sources)
            columns = [OutputColumn(name, declared.get(name)) for name in names]
        shown = [one._replace(name=name) for one, name in zip(columns, names, strict=True)]
        return Result(shown, map(_decode_row, _rows_of(store, cursor)))

    def _without_stars(self, plan: Plan, sources: list[Source]) -> str:
        tree = _rename_tables(plan.tree.copy())
        named = {
            store_name(owner, name): visible_names(source.table)
            for source, (owner, name) in zip(sources, plan.tables, strict=True)
            if source.table is not None
        }
        expand_stars(tree, named)
        return convert(tree)

    def _source(
        self, schema: str, name: str, owner: str, scn: int | None, between: tuple[int, int] | None
    ) -> Source:
        view = find_view(name, self._context) if owner in ("", "SYS") else None
        if view is not None:
            self._check_privilege(name)
            columns, read = view
            return Source(name, columns, lambda places: _pick(read(self._context), places))
        table = self._find_table(schema, name)
        listed = [column for column in table.version.columns if not column.is_virtual]
        names = ("ROWID", *(column.name for column in listed), "ORA_ROWSCN")
        database = self._context.database
        if between is not None:
            return _versions_of(self._context, table, *between)
        if scn is None:
            rows: Iterable[tuple[str, dict[str, Any]]]
            seen = database.scn if self._read_scn is None else self._read_scn
            rows = list(table.visible(seen, self._transaction))
        else:
            rows = list(database.rows_at(table, scn))

        def read_cells(places: list[int]) -> Iterator[tuple[Any, ...]]:
            for row_id, row in rows:
                cells: list[Any] = [RowIdText(row_id)]
                cells += [encode(row[column.name], column.kind) for column in listed]
                cells.append(database.scn)
                yield tuple(cells[place] for place in places)

        return Source(f"{table.version.owner}.{name}", names, read_cells, table)

    def _check_privilege(self, name: str) -> None:
        if not name.startswith(("V$", "GV$", "DBA_", "V_$")):
            return
        grants = self._context.privileges
        view = name.replace("V$", "V_$", 1) if "V_$" not in name else name
        if not grants & {"SELECT ANY DICTIONARY", "SELECT_CATALOG_ROLE", f"SELECT ON {view}"}:
            raise OraError(942)


def _decode_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        [
            cell
            if cell is None or cell.__class__ is int or (cell.__class__ is str and cell[:1] != MARK)
            else decode(cell, _BIG)
            for cell in row
        ]
    )


class Plan(NamedTuple):
    """A query for SQLite.

    Attributes:
        tree: Query as Oracle's grammar has it.
        statement: Text for SQLite.
        tables: Owner, which may be empty, and name of each table or view.
        wanted: Names of the columns that it reads; None for all.
        as_of: Bind or number of AS OF SCN.
        output: Name, and read column or None, of each column of the result; None with a star.
        versions: Binds or numbers of VERSIONS BETWEEN SCN.
    """

    tree: Any
    statement: str
    tables: tuple[tuple[str, str], ...]
    wanted: frozenset[str] | None
    as_of: str | None
    output: tuple[tuple[str, str | None], ...] | None
    versions: tuple[str, str] | None = None


def store_name(owner: str, name: str) -> str:
    """Return the name of a table or view in SQLite."""
    return f"{owner}.{name}" if owner else name


@lru_cache(maxsize=512)
def make_plan(text: str) -> Plan:
    """Return the plan of a query; raises OraError."""
    prepared = prepare(text)
    if not isinstance(prepared.tree, exp.Query):
        raise OraError(900, text="not a query")
    tables: dict[tuple[str, str], None] = {}
    tree = _rename_tables(prepared.tree.copy(), tables)
    output = _read_output(tree)
    wanted = _find_wanted(tree)
    return Plan(
        prepared.tree,
        convert(tree),
        tuple(tables),
        wanted,
        prepared.as_of,
        output,
        prepared.versions,
    )


def _rename_tables(tree: Any, tables: dict[tuple[str, str], None] | None = None) -> Any:
    """Give tables the names that they have in SQLite; collect them in `tables`."""
    tree.set("locks", None)  # the session locks the rows
    ctes = {cte.alias_or_name.upper() for cte in tree.find_all(exp.CTE)}
    for node in list(tree.find_all(exp.Table)):
        owner, name = _spelling(node.args.get("db")), _spelling(node.this)
        if not owner and name in ctes:
            continue
        if tables is not None:
            tables[(owner, name)] = None
        alias = alias_of(node) or name
        node.set("db", None)
        node.set("this", exp.to_identifier(store_name(owner, name), quoted=True))
        node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    return tree


def visible_names(table: Table) -> list[str]:
    """Return the columns that a star stands for."""
    return [
        column.name
        for column in table.version.columns
        if not (column.is_hidden or column.is_invisible or column.is_virtual)
    ]


def expand_stars(tree: Any, named: dict[str, list[str]]) -> None:
    """Replace stars by columns; a star of a subquery stays.

    Args:
        tree: Query whose tables have SQLite's names, which is changed.
        named: Columns by SQLite's name of a table.
    """
    for select in list(tree.find_all(exp.Select)):
        joined = [one.this for one in select.args.get("joins") or ()]
        begin = select.args.get("from_") or select.args.get("from")
        nodes = [*([begin.this] if begin is not None else ()), *joined]
        out: list[Any] = []
        for one in select.expressions:
            is_of_one = isinstance(one, exp.Column) and isinstance(one.this, exp.Star)
            if not isinstance(one, exp.Star) and not is_of_one:
                out.append(one)
                continue
            for node in nodes:
                alias = alias_of(node) or node.name
                if is_of_one and _spelling(one.args["table"]) != alias:
                    continue
                names = named.get(node.name) if isinstance(node, exp.Table) else None
                if names is None:
                    out.append(exp.Column(this=exp.Star(), table=exp.to_identifier(alias, True)))
                else:
                    out += [exp.column(name, table=alias, quoted=True) for name in names]
        select.set("expressions", out)


def _as_of(plan: Plan, binds: dict[str, Any]) -> int | None:
    return None if plan.as_of is None else _number_of(plan.as_of, binds)


def _number_of(text: str, binds: dict[str, Any]) -> int:
    return int(binds[text[1:].upper()]) if text.startswith(":") else int(text)


def _versions_of(context: Context, table: Table, low: int, high: int) -> Source:
    """Return the versions of a table's rows that were valid in a range of SCNs.

    Raises OraError 30052 if undo is gone, 1466 if the definition has changed since, 8181.
    """
    database = context.database
    if low < database.settings.undo_scn:
        raise OraError(30052, text="invalid lower limit snapshot expression")
    list(database.rows_at(table, low))
    listed = [column for column in table.version.columns if not column.is_virtual]
    pseudo = ("VERSIONS_STARTSCN", "VERSIONS_ENDSCN", "VERSIONS_OPERATION")
    names = ("ROWID", *(column.name for column in listed), "ORA_ROWSCN", *pseudo)

    def read_cells(places: list[int]) -> Iterator[tuple[Any, ...]]:
        for row_id, versions in table.history.items():
            previous: dict[str, Any] | None = None
            for at, (scn, row) in enumerate(versions):
                end = versions[at + 1][0] if at + 1 < len(versions) else None
                shown = row if row is not None else previous
                is_before = scn <= low
                if scn <= high and (end is None or end > low) and shown is not None:
                    kind = "D" if row is None else "I" if previous is None else "U"
                    if not (is_before and row is None):
                        cells: list[Any] = [RowIdText(row_id)]
                        cells += [encode(shown[one.name], one.kind) for one in listed]
                        cells += [scn, None if is_before else scn, end]
                        cells.append(None if is_before else kind)
                        yield tuple(cells[place] for place in places)
                previous = row

    return Source(f"{table.version.owner}.{table.name}", names, read_cells, table)


def _spelling(node: Any) -> str:
    if node is None or node == "":
        return ""
    name = node.name
    return str(name if node.args.get("quoted") else name.upper())


def alias_of(node: Any) -> str:
    """Return the alias of a table, in upper case without quotes; empty if it has none."""
    alias = node.args.get("alias")
    return "" if alias is None else _spelling(alias.this)


def _pick(rows: Iterable[tuple[Any, ...]], places: list[int]) -> Iterable[tuple[Any, ...]]:
    if len(places) == 1:
        return ((row[places[0]],) for row in rows)
    return map(itemgetter(*places), rows)


def _find_wanted(tree: exp.Expr) -> frozenset[str] | None:
    """Return the names of all columns that a query reads; None if it has a star."""
    for star in tree.find_all(exp.Star):
        if not isinstance(star.parent, exp.Count):
            return None
    nodes = [*tree.find_all(exp.Column), *tree.find_all(exp.Pseudocolumn)]
    return frozenset(node.name.upper() for node in nodes)


def bind_name(name: str) -> str:
    """Return the name of a bind in SQLite."""
    return f"B_{name}" if name[0].isdigit() else name


def convert(tree: exp.Expr) -> str:
    """Return SQLite's text of a tree, which is changed."""
    for rownum in [one for one in tree.find_all(exp.Column) if one.name.upper() == "ROWNUM"]:
        _limit(rownum)
    # Views have plain numbers only, and their queries have to be fast.
    is_plain = any("$" in one.name for one in tree.find_all(exp.Table))
    for node in reversed(list(tree.walk())):
        name = _call_of(node, is_plain=is_plain)
        if name is not None and node.parent is not None:
            node.replace(_call(name, node))
    converted = tree.transform(_convert_node)
    return _QUOTED.sub(_requote, str(converted.sql(dialect="sqlite")))


def _requote(match: re.Match[str]) -> str:
    """Quote a name by backticks: SQLite reads an unknown name in double quotes as a text."""
    if match[1] is None:
        return match[0]
    name = match[1].replace('""', '"').replace("`", "``")
    return f"`{name}`"


def _limit(rownum: exp.Expr) -> None:
    parent = rownum.parent
    select = rownum.find_ancestor(exp.Select)
    if select is None or not isinstance(parent, exp.LT | exp.LTE | exp.EQ):
        raise OraError(900, text="the simulator knows ROWNUM in a comparison with a number only")
    number = int(parent.expression.name) - isinstance(parent, exp.LT)
    select.limit(number, copy=False)
    parent.replace(exp.true())


def _convert_node(node: Any) -> Any:
    if isinstance(node, exp.Identifier):
        spelling = node.this if node.args.get("quoted") else node.this.upper()
        return exp.to_identifier(column_name(spelling), quoted=True)
    if isinstance(node, exp.Pseudocolumn):
        return exp.column(
            exp.to_identifier(node.name.upper(), quoted=True), table=node.args.get("table")
        )
    if isinstance(node, exp.Placeholder) and node.this:
        return exp.Placeholder(this=str(node.this).upper())
    if isinstance(node, exp.Binary | exp.Between | exp.In):
        return _compare_row_ids(node)
    if isinstance(node, exp.DateStrToDate | exp.StrToTime) and node.this.is_string:
        return exp.Anonymous(this="ORA_TIME_LITERAL", expressions=[node.this])
    if isinstance(node, exp.Column) and node.name.upper() == "SESSIONTIMEZONE":
        return exp.Anonymous(this="ORA_SESSIONTIMEZONE", expressions=[])
    if isinstance(node, exp.Anonymous):
        node.set("this", str(node.this).upper())
    return node


_CALLS: dict[type[Any], str] = {
    exp.DPipe: "CONCAT",
    exp.Neg: "NEG",
    exp.Add: "ADD",
    exp.Sub: "SUB",
    exp.Mul: "MUL",
    exp.Div: "DIV",
    exp.LT: "LT",
    exp.LTE: "LTE",
    exp.GT: "GT",
    exp.GTE: "GTE",
    exp.Max: "MAX",
    exp.Min: "MIN",
    exp.Sum: "SUM",
    exp.Avg: "AVG",
}
_ALWAYS = (exp.DPipe, exp.Cast, exp.CurrentTimestamp, exp.Interval)


def _call_of(node: Any, *, is_plain: bool) -> str | None:
    """Return the function that stands for a node; None if SQLite has the same."""
    if isinstance(node, exp.Literal):
        if node.is_string:
            return None if node.this else "NULL"
        return None if node.this.isdigit() and len(node.this) < 19 else "DEC"
    if is_plain and not isinstance(node, _ALWAYS):
        return None
    if isinstance(node, exp.Cast):
        return "CAST"
    if isinstance(node, exp.Interval):
        return "NUMTODSINTERVAL"
    if isinstance(node, exp.CurrentTimestamp):
        return "NOW_DATE" if node.args.get("sysdate") else "NOW"
    if type(node).__name__ in ("Systimestamp", "Localtimestamp"):
        return "NOW"
    if isinstance(node, exp.LT | exp.LTE | exp.GT | exp.GTE) and (
        _is_row_id(node.this) or _is_row_id(node.expression)
    ):
        return None
    if isinstance(node, exp.Max | exp.Min) and node.expressions:
        return None
    return _CALLS.get(type(node))


def _call(name: str, node: Any) -> Any:
    if name == "NULL":
        return exp.null()
    if name == "DEC":
        return exp.Anonymous(this="ORA_DEC", expressions=[exp.Literal.string(node.this)])
    if name == "CAST":
        kind = node.to.sql(dialect="oracle").replace("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE")
        arguments = [node.this, exp.Literal.string(kind)]
    elif name in ("NOW", "NOW_DATE"):
        arguments = []
    elif name == "NUMTODSINTERVAL":
        arguments = [node.this, exp.Literal.string(str(node.unit))]
    else:
        arguments = [node.this, node.expression] if isinstance(node, exp.Binary) else [node.this]
    return exp.Anonymous(this=f"ORA_{name}", expressions=[one.copy() for one in arguments])


def check_lob_use(tree: Any, tables: dict[str, Table | None]) -> None:
    """Raise OraError 932 for a comparison, order or group of a LOB column."""
    kinds: dict[str, dict[str, str]] = {}
    for node in tree.find_all(exp.Table):
        table = tables.get(_spelling(node.this))
        if table is not None:
            named = {column.name: column.kind for column in table.version.columns}
            kinds[alias_of(node) or _spelling(node.this)] = named
    lobs = {"CLOB", "NCLOB", "BLOB", "JSON", "XMLTYPE"}
    if not any(lobs & set(named.values()) for named in kinds.values()):
        return
    for column in tree.find_all(exp.Column):
        parent = column.parent
        if isinstance(parent, exp.Ordered | exp.Group | exp.Between | exp.In) or (
            isinstance(parent, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE)
            and not isinstance(parent.parent, exp.Update | exp.When)
            and not _is_assignment(parent)
        ):
            owner = _spelling(column.args.get("table"))
            listed = [kinds.get(owner, {})] if owner else list(kinds.values())
            found = [named.get(_spelling(column.this)) for named in listed]
            if lobs & set(found):
                raise OraError(932, "-", next(one for one in found if one in lobs))


def _is_assignment(node: Any) -> bool:
    parent = node.parent
    return isinstance(parent, exp.Update) and any(one is node for one in parent.expressions)


def _is_row_id(node: Any) -> bool:
    return isinstance(node, exp.Column | exp.Pseudocolumn) and node.name.upper() == "ROWID"


def _compare_row_ids(node: Any) -> Any:
    """Convert texts to row ids where a comparison has ROWID."""
    parts = [key for key in ("this", "expression", "low", "high") if node.args.get(key)]
    if not any(_is_row_id(node.args[key]) for key in parts):
        return node
    for key in parts:
        value = node.args[key]
        if isinstance(value, exp.Literal | exp.Placeholder):
            node.set(key, exp.Anonymous(this="ORA_CHARTOROWID", expressions=[value]))
    if node.args.get("expressions"):
        listed = [
            exp.Anonymous(this="ORA_CHARTOROWID", expressions=[one]) for one in node.expressions
        ]
        node.set("expressions", listed)
    return node


def _read_output(tree: exp.Expr) -> tuple[tuple[str, str | None], ...] | None:
    """Return name and read column of each column of a result; None with a star."""
    select = tree if isinstance(tree, exp.Select) else tree.find(exp.Select)
    if select is None:
        return None
    out: list[tuple[str, str | None]] = []
    for one in select.expressions:
        inner = one.this if isinstance(one, exp.Alias) else one
        if isinstance(inner, exp.Star) or isinstance(inner.args.get("this"), exp.Star):
            return None
        name = None
        if isinstance(inner, exp.Column):
            name = _spelling(inner.this)
        elif isinstance(inner, exp.Pseudocolumn):
            name = inner.name.upper()
        out.append((one.alias_or_name, name))
    return tuple(out)


def _output(plan: Plan, sources: Iterable[Source]) -> list[OutputColumn]:
    """Return what is known of the columns of a result."""
    declared = _find_columns(sources)
    return [
        OutputColumn(alias, declared.get(name or ""), name == "ROWID")
        for alias, name in plan.output or ()
    ]


def _find_columns(sources: Iterable[Source]) -> dict[str, Column]:
    declared: dict[str, Column] = {}
    for source in sources:
        if source.table is not None:
            declared |= {column.name: column for column in source.table.version.columns}
    return declared


# ---------------------------------------------------------------------- SQLite


class Store(sqlite3.Connection):
    """A database in memory with Oracle's functions."""

    functions: Functions


def run_in_store(store: Store, statement: str, binds: Mapping[str, Any]) -> sqlite3.Cursor:
    """Run a statement of SQLite with encoded binds; raises OraError."""
    cells = {bind_name(name): encode(_exact(value)) for name, value in binds.items()}
    try:
        return store.execute(statement, cells)
    except sqlite3.OperationalError as error:
        raise _error_of(store, error) from error


def _exact(value: Any) -> Any:
    """Return a bind in a form that keeps its digits; views have OPEN_END as a float."""
    is_big = value.__class__ is int and abs(value) >= _MAX and value != OPEN_END
    return Decimal(value) if is_big else value


def _rows_of(store: Store, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    try:
        yield from cursor
    except sqlite3.OperationalError as error:
        raise _error_of(store, error) from error


def _error_of(store: Store, error: sqlite3.OperationalError) -> OraError:
    if store.functions.error is not None:
        return store.functions.error
    if "interrupted" in str(error):
        return OraError(1013)
    if "no such column" in str(error):
        return OraError(904, plain_name(str(error).split(": ")[-1]))
    return OraError(900, text=f"the simulator cannot run this: {error}".replace("{", "{{"))


def fill(store: sqlite3.Connection, source: Source, wanted: frozenset[str] | None) -> None:
    """Create a source's table and store its rows, in the columns that are read."""
    places = [
        place
        for place, name in enumerate(source.columns)
        if wanted is None or name.upper() in wanted
    ] or [0]
    quoted = (column_name(source.columns[place]).replace('"', '""') for place in places)
    names = ", ".join(f'"{one}"' for one in quoted)
    name = column_name(source.name)
    store.execute(f'CREATE TABLE "{name}" ({names})')
    marks = ", ".join("?" * len(places))
    rows = (
        [
            cell
            if cell.__class__ in _STORED or (cell.__class__ is int and cell < _MAX)
            else encode(cell)
            for cell in row
        ]
        for row in source.rows(places)
    )
    store.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)


def open_store(context: Context) -> Store:
    """Return an empty database with Oracle's functions."""
    store = sqlite3.connect(
        ":memory:", isolation_level=None, factory=Store, check_same_thread=False
    )
    session = context.session
    if session is not None:
        store.set_progress_handler(lambda: int(session.is_cancelled), 10_000)
    store.functions = Functions(context)
    store.functions.add_to(store)

    def add(name: str, count: int, function: Callable[..., Any]) -> None:
        store.create_function(name, count, function)

    add("ORA_CHARTOROWID", 1, _to_row_id)
    add("ORA_ROWIDTOCHAR", 1, lambda cell: cell and str(decode(cell, _BIG)))
    add("ROWID_CREATE", 5, lambda _, *parts: encode(RowIdText(str(RowId(*parts)))))
    add("ROWID_OBJECT", 1, lambda cell: parse_rowid(decode(cell, _BIG)).object)
    add("ROWID_BLOCK_NUMBER", 1, lambda cell: parse_rowid(decode(cell, _BIG)).block)
    add("ORA_TO_CHAR", -1, lambda *cells: _to_char(context, *cells))
    add("ORA_RAWTOHEX", 1, lambda cell: None if cell is None else cell.hex().upper())
    add("ORA_HEXTORAW", 1, lambda cell: None if cell is None else bytes.fromhex(cell))
    add("ORA_TIME_LITERAL", 1, _time_literal)
    add("ORA_SESSIONTIMEZONE", 0, lambda: _session_zone(context))
    add("SYS_CONTEXT", 2, lambda _, name: _sys_context(context, name))
    add("ORA_REGEXP_LIKE", 2, _regexp_like)
    add("SCN_TO_TIMESTAMP", 1, lambda scn: encode(context.database.time_of(scn)))
    return store


def _to_row_id(cell: Any) -> Any:
    if cell is None or (isinstance(cell, str) and cell.startswith(MARK)):
        return cell
    try:
        return encode(RowIdText(str(parse_rowid(cell))))
    except ValueError:
        return None


def _time_literal(text: str) -> Any:
    """Return the cell of DATE '2026-02-28' or TIMESTAMP '2026-02-28 13:45:59.123456789 +05:30'."""
    moment, _, rest = text.partition(".")
    digits, _, zone = rest.partition(" ")
    if not rest:
        return encode(datetime.fromisoformat(moment))
    nanos = int(digits.ljust(9, "0"))
    time = datetime.fromisoformat(f"{moment}.{nanos // 1000:06d}{zone}")
    return encode(NanoTime(time, nanos % 1000))


def _session_zone(context: Context) -> str:
    minutes = context.nls.zone_minutes
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def _regexp_like(text: Any, pattern: str) -> bool:
    return text is not None and re.search(pattern, text) is not None


def _to_char(context: Context, cell: Any, picture: str | None = None, *rest: Any) -> Any:
    value = decode(cell, _BIG)
    if isinstance(value, Lob):
        return value.data
    if isinstance(value, int | float) or hasattr(value, "as_tuple"):
        return number_text(value, context.nls.numeric[0])
    if isinstance(value, datetime | NanoTime):
        time = value.time if isinstance(value, NanoTime) else value
        offset = time.utcoffset()
        minutes = None if offset is None else int(offset.total_seconds() // 60)
        return format_time(picture or _session_picture(context, value, minutes), value, minutes)
    if isinstance(value, Months):
        sign = "-" if value.count < 0 else "+"
        return f"{sign}{abs(value.count) // 12:02d}-{abs(value.count) % 12:02d}"
    if isinstance(value, timedelta):
        size = abs(value)
        hours, minutes = size.seconds // 3600, size.seconds // 60 % 60
        clock = f"{hours:02d}:{minutes:02d}:{size.seconds % 60:02d}.{size.microseconds:06d}"
        return f"{'-' if value < timedelta() else '+'}{size.days:02d} {clock}"
    return value if value is None or isinstance(value, str) else str(value)


def _session_picture(context: Context, value: datetime | NanoTime, minutes: int | None) -> str:
    if not isinstance(value, NanoTime):
        return context.nls.date
    return context.nls.timestamp if minutes is None else context.nls.timestamp_tz


def _sys_context(context: Context, name: str) -> str | None:
    values = {
        "CON_NAME": context.container,
        "CON_ID": "1" if context.is_root else "3",
        "DB_NAME": context.database.name,
        "SESSION_USER": context.user,
        "CURRENT_SCHEMA": context.user if context.session is None else context.session.schema,
        "CURRENT_USER": context.user,
        "CDB_NAME": context.database.name,
        "NLS_DATE_FORMAT": context.nls.date,
        "SID": None if context.session is None else str(context.session.sid),
        "INSTANCE": "1",
        "INSTANCE_NAME": f"{context.database.name}1",
        "DB_UNIQUE_NAME": context.database.name,
        "DATABASE_ROLE": context.database.settings.role,
        "MODULE": None if context.session is None else context.session.module,
        "LANGUAGE": f"AMERICAN_AMERICA.{context.database.settings.character_set}",
    }
    return values.get(name.upper())
