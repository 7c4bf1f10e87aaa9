"""Changes by SQL: they run in SQLite on copies of the tables, and the model applies the difference.

So a client's statements write redo and meet the model's constraints.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from sim_oracle.cells import Lob, Months, RowIdText, decode, encode
from sim_oracle.columns import Row
from sim_oracle.errors import OraError
from sim_oracle.grammar import Prepared, prepare
from sim_oracle.lobs import is_piece
from sim_oracle.query import bind_name, convert, open_store
from sim_oracle.tables import Table

if TYPE_CHECKING:
    from sim_oracle.session import Session

_CREATE = re.compile(r'(?is)^CREATE\s+TABLE\s+(?P<name>[\w$#".]+)\s*\((?P<body>.*)\)[^)]*$')
_NAME = re.compile(r'"([^"]+)"|([\w$#]+)')
_COLUMN_OPTIONS = re.compile(r"(?i)\s+(?:NOT\s+NULL|NULL|DEFAULT|PRIMARY|CONSTRAINT)\b")
_INLINE_KEY = re.compile(r"(?i)\bPRIMARY\s+KEY\b")


def run(session: Session, text: str, binds: dict[str, Any]) -> int:
    """Run an INSERT, UPDATE, DELETE or MERGE; return how many rows it changed."""
    prepared = prepare(text)
    tree = prepared.tree
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge):
        raise OraError(900)
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    table = _table_of(session, target)
    if isinstance(tree, exp.Insert):
        return _insert(session, table, prepared, binds)
    if isinstance(tree, exp.Merge):
        return _merge(session, table, tree.copy(), binds)
    return _change(session, table, tree.copy(), binds)


def _table_of(session: Session, node: Any) -> Table:
    owner = node.args.get("db")
    owner_name = session.schema if owner is None else _spelling(owner)
    return session.find_table(owner_name, _spelling(node.this))


def _spelling(node: Any) -> str:
    return str(node.name if node.args.get("quoted") else node.name.upper())


def _plain(value: Any) -> Any:
    if isinstance(value, Lob):
        return value.data
    return value.count if isinstance(value, Months) else value


def _insert(session: Session, table: Table, prepared: Prepared, binds: dict[str, Any]) -> int:
    tree = prepared.tree
    names = (
        [_spelling(one) for one in tree.this.expressions]
        if isinstance(tree.this, exp.Schema)
        else [column.name for column in table.version.columns]
    )
    source = tree.expression.copy()
    store = open_store(session.context())
    if isinstance(source, exp.Values):
        rows = []
        cells = {bind_name(name): encode(value) for name, value in binds.items()}
        for one in source.expressions:
            listed = ", ".join(convert(exp.Select().select(part)) for part in one.expressions)
            listed = listed.replace("SELECT ", "")
            rows.append(store.execute(f"SELECT {listed}", cells).fetchone())
    else:
        _load_sources(session, store, source)
        rows = _fetch(store, convert(source), binds)
    count = 0
    for values in rows:
        row: Row = {
            name: _plain(decode(value, {})) for name, value in zip(names, values, strict=True)
        }
        session.begin().insert(table, row)
        count += 1
    return count


def _fetch(store: sqlite3.Connection, statement: str, binds: dict[str, Any]) -> list[Any]:
    cells = {bind_name(name): encode(value) for name, value in binds.items()}
    try:
        return store.execute(statement, cells).fetchall()
    except sqlite3.OperationalError as error:
        raise OraError(900, text=f"the simulator cannot run this: {error}") from error


def _load_sources(session: Session, store: sqlite3.Connection, tree: exp.Expr) -> None:
    """Copy the tables that a tree reads into SQLite, and change their names in the tree."""
    done: set[str] = set()
    ctes = {one.alias_or_name.upper() for one in tree.find_all(exp.CTE)}
    for node in list(tree.find_all(exp.Table)):
        name = _spelling(node.this)
        if node.args.get("db") is None and name in ctes:
            continue
        alias = node.alias or name
        if name == "DUAL":
            copied = "DUAL"
            if copied not in done:
                store.execute('CREATE TABLE "DUAL" ("DUMMY")')
                store.execute("""INSERT INTO "DUAL" VALUES ('X')""")
        else:
            table = _table_of(session, node)
            copied = f"{table.version.owner}.{table.name}"
            if copied not in done:
                _copy(session, store, table, copied)
        done.add(copied)
        node.set("db", None)
        node.set("this", exp.to_identifier(copied, quoted=True))
        node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def _copy(session: Session, store: sqlite3.Connection, table: Table, name: str) -> None:
    columns = [column for column in table.version.columns if not column.is_virtual]
    listed = ", ".join(f'"{one}"' for one in ("ROWID", *(column.name for column in columns)))
    store.execute(f'CREATE TABLE "{name}" ({listed})')
    marks = ", ".join("?" * (len(columns) + 1))
    scn = session.database.scn
    rows = (
        [encode(RowIdText(row_id)), *(encode(row[one.name], one.kind) for one in columns)]
        for row_id, row in table.visible(scn, session.transaction)
    )
    store.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)


def _change(session: Session, table: Table, tree: exp.Expr, binds: dict[str, Any]) -> int:
    """Run an UPDATE or a DELETE: a query finds row ids and new values."""
    store = open_store(session.context())
    alias = tree.this.alias or _spelling(tree.this.this)
    select = exp.Select().from_(tree.this.copy())
    wanted: list[Any] = [exp.column("ROWID", table=alias, quoted=True)]
    names: list[str] = []
    if isinstance(tree, exp.Update):
        for one in tree.expressions:
            names.append(_spelling(one.this.this))
            wanted.append(one.expression.copy())
    select = select.select(*wanted)
    where = tree.args.get("where")
    if where is not None:
        select.set("where", where.copy())
    _load_sources(session, store, select)
    rows = _fetch(store, convert(select), binds)
    if rows:
        _write(session, table, names, rows)
    return len(rows)


def _write(session: Session, table: Table, names: list[str], rows: list[Any]) -> None:
    transaction = session.begin()
    ids = [str(decode(row[0], {})) for row in rows]
    if not names:
        transaction.delete_many(table, ids)
        return
    changes: list[tuple[str, Row]] = [
        (
            row_id,
            {name: _plain(decode(cell, {})) for name, cell in zip(names, row[1:], strict=True)},
        )
        for row_id, row in zip(ids, rows, strict=True)
    ]
    is_simple = not any(is_piece(table, name) for name in names) and table.partition_by is None
    if is_simple and len(changes) > 1:
        transaction.update_many(table, changes)
        return
    for row_id, values in changes:
        transaction.update(table, row_id, values)


def lock_rows(session: Session, text: str, binds: dict[str, Any]) -> None:
    """Lock the rows of a SELECT .. FOR UPDATE of one table."""
    tree = prepare(text).tree.copy()
    node = tree.find(exp.Table)
    assert isinstance(tree, exp.Select)
    assert node is not None
    table = _table_of(session, node)
    alias = node.alias or _spelling(node.this)
    select = tree.select(exp.column("ROWID", table=alias, quoted=True), append=False)
    select.set("locks", None)
    store = open_store(session.context())
    _load_sources(session, store, select)
    for row in _fetch(store, convert(select), binds):
        transaction = session.begin()
        transaction.start()
        transaction.lock(table, str(decode(row[0], {})))


def _merge(session: Session, table: Table, tree: exp.Expr, binds: dict[str, Any]) -> int:
    """Run a MERGE: one query per action, on the rows from before the statement."""
    target, using, on = tree.this, tree.args["using"], tree.args["on"]
    _check_merge(tree, on)
    plans: list[tuple[str, list[str], list[Any]]] = []
    alias = target.alias or _spelling(target.this)
    for when in tree.find_all(exp.When):
        action, condition = when.args["then"], when.args.get("condition")
        if when.args.get("matched"):
            select = exp.Select().from_(target.copy()).join(using.copy(), on=on.copy())
            wanted: list[Any] = [exp.column("ROWID", table=alias, quoted=True)]
            names: list[str] = []
            if isinstance(action, exp.Update):
                for one in action.expressions:
                    names.append(_spelling(one.this.this))
                    wanted.append(one.expression.copy())
            kind = "update" if names else "delete"
        else:
            select = exp.Select().from_(using.copy())
            inner = exp.Select().select("1").from_(target.copy()).where(on.copy())
            select = select.where(exp.Not(this=exp.Exists(this=inner)))
            wanted = [one.copy() for one in action.expression.expressions]
            names = [_spelling(one.this if isinstance(one, exp.Column) else one)
                     for one in action.this.expressions]  # fmt: skip
            kind = "insert"
        select = select.select(*wanted)
        if condition is not None:
            select = select.where(condition.copy())
        store = open_store(session.context())
        _load_sources(session, store, select)
        plans.append((kind, names, _fetch(store, convert(select), binds)))
    return _run_plans(session, table, plans)


def _check_merge(tree: exp.Expr, on: Any) -> None:
    joined = {node.name.upper() for node in on.find_all(exp.Column)}
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
                    name: _plain(decode(cell, {})) for name, cell in zip(names, row, strict=True)
                }
                session.begin().insert(table, values)
        elif rows:
            ids = [row[0] for row in rows]
            if len(set(ids)) < len(ids) or seen & set(ids):
                raise OraError(
                    30926, text="unable to get a stable set of rows in the source tables"
                )
            seen |= set(ids)
            _write(session, table, names, rows)
        count += len(rows)
    return count


# ---------------------------------------------------------------------- DDL


def run_ddl(session: Session, text: str) -> None:
    """Run a CREATE, DROP, TRUNCATE or ALTER TABLE; raises OraError."""
    plain = text.strip().rstrip(";")
    match = _CREATE.match(plain)
    if match is not None:
        owner, name = _split_name(session, match["name"])
        if (session.container, owner, name) in session.database.tables:
            raise OraError(955, text="name is already used by an existing object")
        columns, key = _definitions(match["body"])
        session.database.create_table(
            owner, name, columns, key=key, container=session.container, supplemental="NONE"
        )
        return
    match = re.match(r'(?is)^(DROP|TRUNCATE)\s+TABLE\s+([\w$#".]+)', plain)
    if match is not None:
        table = session.find_table(*_split_name(session, match[2]))
        if match[1].upper() == "DROP":
            session.database.drop_table(table, plain)
        else:
            session.database.truncate(table, plain)
        return
    match = re.match(r'(?is)^ALTER\s+TABLE\s+([\w$#".]+)\s+(ADD|DROP|RENAME)\s+(.*)$', plain)
    if match is None:
        raise OraError(900)
    table = session.find_table(*_split_name(session, match[1]))
    _alter(session, table, match[2].upper(), match[3].strip(), plain)


def _alter(session: Session, table: Table, action: str, rest: str, text: str) -> None:
    words = [one or two.upper() for one, two in _NAME.findall(rest)]
    if action == "RENAME" and words[0] == "COLUMN":
        session.database.rename_column(table, words[1], words[3], text)
    elif action == "DROP" and words[0] == "COLUMN":
        session.database.drop_column(table, words[1])
    elif action == "ADD" and words[0] not in ("CONSTRAINT", "SUPPLEMENTAL", "PRIMARY"):
        columns, _ = _definitions(rest.removeprefix("(").removesuffix(")"))
        for name, declaration in columns.items():
            session.database.add_column(table, name, declaration, text)
    else:
        raise OraError(900, text=f"the simulator does not know {text[:200]}")


def _split_name(session: Session, text: str) -> tuple[str, str]:
    parts = [one or two.upper() for one, two in _NAME.findall(text)]
    return (parts[0], parts[1]) if len(parts) == 2 else (session.schema, parts[0])


def _definitions(body: str) -> tuple[dict[str, str], list[str]]:
    """Return declarations by column and the primary key."""
    parts, depth = [""], 0
    for letter in body:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    columns: dict[str, str] = {}
    key: list[str] = []
    for part in parts:
        match = _NAME.match(part.strip())
        assert match is not None, part
        word = match[1] or match[2].upper()
        if word in ("CONSTRAINT", "PRIMARY") and not match[1]:
            inside = part[part.upper().index("KEY") :]
            key = [one or two.upper() for one, two in _NAME.findall(inside)][1:]
            continue
        declaration = part.strip()[match.end() :].strip()
        if _INLINE_KEY.search(declaration):
            key = [word]
        declaration = re.split(
            r"(?i)\s+(?:NOT\s+NULL|NULL|DEFAULT|PRIMARY|CONSTRAINT)\b", declaration
        )[0]
        columns[word] = declaration
    return columns, key
