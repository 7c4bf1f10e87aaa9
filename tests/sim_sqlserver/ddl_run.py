"""Statements that change the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim_sqlserver import ddl, replies, triggers
from sim_sqlserver.ddl_parse import (
    Name,
    Reader,
    read_column,
    read_index,
    read_items,
)
from sim_sqlserver.errors import SqlError
from sim_sqlserver.names import literal, quote_name

if TYPE_CHECKING:
    from sim_sqlserver.lexer import Statement
    from sim_sqlserver.rewrite import Rewritten
    from sim_sqlserver.session import Session

_IGNORED = frozenset({"STATISTICS", "FULLTEXT", "PARTITION", "XML", "SPATIAL", "AUTHORIZATION"})


def run(session: Session, statement: Statement) -> None:
    """Run CREATE, ALTER, DROP, TRUNCATE, ENABLE or DISABLE."""
    reader = Reader(statement.text, statement.tokens)
    words = (reader.word(), reader.word(1))
    assert session.reply is not None
    if words[1] == "DATABASE":
        _database(session, reader)
        session.reply.add_done(0, 0, 0)
        return
    with session.statement(writes=True, needs_block=True):
        if words[0] == "TRUNCATE":
            _truncate(session, reader)
        elif words[0] in ("ENABLE", "DISABLE"):
            triggers.switch(session, reader)
        elif words[0] == "ALTER":
            _alter(session, reader, statement)
        elif words[0] == "DROP":
            _drop(session, reader)
        else:
            _create(session, reader, statement)
        session.has_ddl = True
        session.database.names_changed()
    if words[1] == "TABLE" and words[0] != "CREATE":
        session.database.note_altered(statement.text)
    if not session.trancount:
        session.database.names_changed()
        session.has_ddl = False
    session.reply.add_done(0, 0, 0)


def _create(session: Session, reader: Reader, statement: Statement) -> None:
    reader.at = 1
    kind = reader.word()
    if kind in ("UNIQUE", "CLUSTERED", "NONCLUSTERED", "INDEX", "COLUMNSTORE"):
        ddl.create_index(session, read_index(reader))
    elif reader.take("TABLE"):
        name = reader.name()
        reader.need("(")
        columns, constraints, indexes = read_items(reader)
        reader.need(")")
        ddl.create_table(session, name, columns, constraints, indexes)
    elif reader.take("SCHEMA"):
        name_ = reader.identifier()
        found = f"select 1 from pg_namespace where lower(nspname) = lower({literal(name_)})"
        if session.rows(found):
            said = f"There is already an object named '{name_}' in the database."
            raise SqlError(2714, said, state=6)
        session.rows(f"create schema {quote_name(name_)}")
    elif reader.take("VIEW") or reader.take("OR", "ALTER", "VIEW"):
        _view(session, reader)
    elif kind == "TRIGGER" or (kind == "OR" and reader.word(2) == "TRIGGER"):
        triggers.create(session, reader, statement)
    elif kind in ("LOGIN", "USER", "ROLE"):
        _principal(session, reader, statement)
    elif kind not in _IGNORED:
        raise SqlError(102, f"The simulator does not know CREATE {kind}.", severity=15)


def _view(session: Session, reader: Reader) -> None:
    schema, name = reader.name()
    columns = ""
    if reader.mark() == "(":
        columns = f" ({', '.join(quote_name(c) for c in reader.names())})"
    while not reader.take("AS"):
        reader.at += 1
    done = session.rewritten(reader.slice(reader.at, len(reader.tokens)))
    full = f"{quote_name(session.spelling(schema or 'dbo'))}.{quote_name(name)}"
    session.rows(f"create or replace view {full}{columns} as {session.fill(done.sql)}")


def _principal(session: Session, reader: Reader, statement: Statement) -> None:
    kind = reader.word()
    reader.at += 1
    name = reader.identifier()
    if kind == "LOGIN":
        password = next(t.literal for t in statement.tokens if t.kind == "text")
        session.server.logins[name] = password
    else:
        session.rows(
            f"insert into sim.rights values ({literal(name)}, 'user', '') on conflict do nothing"
        )


def _alter(session: Session, reader: Reader, statement: Statement) -> None:
    reader.at = 1
    if reader.take("TABLE"):
        _alter_table(session, reader)
    elif reader.take("ROLE") or reader.take("SERVER", "ROLE"):
        role = reader.identifier().lower()
        is_added = reader.take("ADD", "MEMBER")
        if not is_added:
            reader.need("DROP", "MEMBER")
        _member(session, role, reader.identifier(), is_added=is_added)
    elif reader.word() in ("VIEW", "TRIGGER"):
        if reader.take("VIEW"):
            _view(session, reader)
        else:
            triggers.create(session, reader, statement)
    elif reader.take("SCHEMA"):
        target = reader.identifier()
        reader.need("TRANSFER")
        name = reader.name()
        session.rows(
            f"alter table {ddl.qualify(session, name)} "
            f"set schema {quote_name(session.spelling(target))}"
        )
    elif reader.word() not in ("INDEX", "AUTHORIZATION", "LOGIN", "USER"):
        raise SqlError(102, f"The simulator does not know ALTER {reader.word()}.", severity=15)


def _member(session: Session, role: str, name: str, *, is_added: bool) -> None:
    row = f"({literal(name)}, 'role', {literal(role)})"
    if is_added:
        session.rows(f"insert into sim.rights values {row} on conflict do nothing")
    else:
        session.rows(f"delete from sim.rights where (login, kind, name) = {row}")


def _alter_table(session: Session, reader: Reader) -> None:
    name = reader.name()
    checks: bool | None = None
    if reader.take("WITH"):
        checks = reader.take("CHECK")
        if not checks:
            reader.need("NOCHECK")
    session.database.check_alter(session, name, reader)
    if reader.take("ADD"):
        _add(session, name, reader, checks=checks)
    elif reader.take("ALTER", "COLUMN"):
        column, _ = read_column(reader)
        ddl.alter_column(session, name, column)
    elif reader.take("DROP"):
        _drop_from(session, name, reader)
    elif reader.take("CHECK", "CONSTRAINT"):
        for constraint in _constraint_names(session, name, reader):
            enable_constraint(session, name, constraint, is_checked=bool(checks))
    elif reader.take("NOCHECK", "CONSTRAINT"):
        for constraint in _constraint_names(session, name, reader):
            disable_constraint(session, name, constraint)
    elif reader.word() in ("ENABLE", "DISABLE"):
        triggers.switch_in_table(session, name, reader)
    elif reader.word() == "SWITCH":
        raise SqlError(102, "The simulator does not know SWITCH.", severity=15)
    session.database.note_ddl(session, name, reader.text)


def _add(session: Session, name: Name, reader: Reader, *, checks: bool | None) -> None:
    columns, constraints, _ = read_items(reader)
    ddl.add_columns(session, name, columns)
    for constraint in constraints:
        ddl.add_constraint(session, name, constraint, is_checked=checks is not False)


def _drop_from(session: Session, name: Name, reader: Reader) -> None:
    is_column = False
    if_exists = False
    while not reader.is_done:
        if reader.take("COLUMN"):
            is_column = True
        elif reader.take("CONSTRAINT"):
            is_column = False
        if reader.take("IF", "EXISTS"):
            if_exists = True
        what = reader.identifier()
        if is_column:
            ddl.drop_columns(session, name, [what], if_exists=if_exists)
        else:
            drop_constraint(session, name, what, if_exists=if_exists)
        reader.skip_options()
        if not reader.take(","):
            return


def drop_constraint(session: Session, name: Name, what: str, *, if_exists: bool) -> None:
    """Drop a constraint of a table; raises SqlError 3728."""
    number, table = ddl.table_id(session, name), ddl.qualify(session, name)
    default = session.rows(
        f"delete from sim.defaults where table_id = {number} and lower(name) = "
        f"lower({literal(what)}) returning column_number"
    )
    if default:
        column = session.rows(
            f"select attname from pg_attribute where attrelid = {number} "
            f"and attnum = {default[0][0]}"
        )
        session.rows(f"alter table {table} alter {quote_name(column[0][0])} drop default")
        return
    found = session.rows(
        f"select conname from pg_constraint where conrelid = {number} "
        f"and lower(conname) = lower({literal(what)})"
    )
    gone = session.rows(
        f"delete from sim.disabled where table_id = {number} and lower(name) = "
        f"lower({literal(what)}) returning name"
    )
    if not found and not gone:
        if if_exists:
            return
        raise SqlError(3728, f"'{what}' is not a constraint.")
    session.rows(
        f"delete from sim.checks where table_id = {number} and lower(name) = lower({literal(what)})"
    )
    if found:
        session.rows(f"alter table {table} drop constraint {quote_name(found[0][0])}")


def _constraint_names(session: Session, name: Name, reader: Reader) -> list[str]:
    number = ddl.table_id(session, name)
    if reader.take("ALL"):
        found = session.rows(
            f"select conname from pg_constraint where conrelid = {number} "
            "and contype in ('f', 'c') "
            f"union select name from sim.disabled where table_id = {number}"
        )
        return [str(row[0]) for row in found]
    names = [reader.identifier()]
    while reader.take(","):
        names.append(reader.identifier())
    return names


def disable_constraint(session: Session, name: Name, constraint: str) -> None:
    """Stop checking a foreign key or check: it is dropped, and its definition kept."""
    number, table = ddl.table_id(session, name), ddl.qualify(session, name)
    found = session.rows(
        "select conname, contype::text, pg_get_constraintdef(oid), "
        "json_build_object('id', oid::int, "
        "'confrelid', confrelid::int, 'conkey', conkey, 'confkey', confkey, "
        "'deletes', confdeltype, "
        f"'updates', confupdtype)::text from pg_constraint where conrelid = {number} "
        f"and lower(conname) = lower({literal(constraint)})"
    )
    if not found:
        known = session.rows(
            f"select 1 from sim.disabled where table_id = {number} and lower(name) = "
            f"lower({literal(constraint)})"
        )
        if known:
            return
        raise SqlError(4917, f"Constraint '{constraint}' does not exist.")
    conname, kind, definition, details = found[0]
    json.loads(details)
    session.rows(
        f"insert into sim.disabled values ({number}, {literal(conname)}, {literal(kind)}, "
        f"{literal(definition)}, {literal(details)})"
    )
    session.rows(f"alter table {table} drop constraint {quote_name(conname)}")


def enable_constraint(session: Session, name: Name, constraint: str, *, is_checked: bool) -> None:
    """Check a constraint again; without WITH CHECK it stays not trusted."""
    number, table = ddl.table_id(session, name), ddl.qualify(session, name)
    found = session.rows(
        f"delete from sim.disabled where table_id = {number} and lower(name) = "
        f"lower({literal(constraint)}) returning name, definition"
    )
    if not found:
        _trust(session, number, table, constraint, is_checked=is_checked)
        return
    conname, definition = found[0]
    valid = "" if is_checked else " not valid"
    plain = str(definition).removesuffix(" NOT VALID")
    session.rows(f"alter table {table} add constraint {quote_name(conname)} {plain}{valid}")


def _trust(session: Session, number: int, table: str, name: str, *, is_checked: bool) -> None:
    found = session.rows(
        f"select conname from pg_constraint where conrelid = {number} "
        f"and lower(conname) = lower({literal(name)})"
    )
    if not found:
        raise SqlError(4917, f"Constraint '{name}' does not exist.")
    if is_checked:
        session.rows(f"alter table {table} validate constraint {quote_name(found[0][0])}")
        session.rows(
            f"delete from sim.untrusted where table_id = {number} and name = {literal(found[0][0])}"
        )


def _drop(session: Session, reader: Reader) -> None:
    reader.at = 1
    kind = reader.word()
    reader.at += 1
    if_exists = reader.take("IF", "EXISTS")
    drops: dict[str, Callable[..., None]] = {
        "TABLE": ddl.drop_table, "VIEW": _drop_view, "SCHEMA": _drop_schema,
        "INDEX": _drop_index, "TRIGGER": triggers.drop,
    }  # fmt: skip
    if kind not in drops:
        if kind == "LOGIN":
            session.server.logins.pop(reader.identifier(), None)
        if kind in ("LOGIN", "USER", "ROLE", "STATISTICS", "PROCEDURE", "FUNCTION"):
            return
        raise SqlError(102, f"The simulator does not know DROP {kind}.", severity=15)
    while True:
        name: Any = reader.name()
        if kind == "INDEX" and reader.take("ON"):
            name = ("", name[1], reader.name())
        if kind == "TABLE":
            session.database.check_drop(session, name)
        drops[kind](session, name, if_exists=if_exists)
        if not reader.take(","):
            return


def _drop_view(session: Session, name: Name, *, if_exists: bool) -> None:
    shown = "if exists " if if_exists else ""
    session.rows(f"drop view {shown}{ddl.qualify(session, name)}")


def _drop_schema(session: Session, name: Name, *, if_exists: bool) -> None:
    shown = "if exists " if if_exists else ""
    try:
        session.rows(f"drop schema {shown}{quote_name(session.spelling(name[1]))}")
    except SqlError as error:
        if error.number != 3726:
            raise
        said = f"Cannot drop schema '{name[1]}' because it is being referenced by an object."
        raise SqlError(3729, said) from error


def _drop_index(session: Session, name: Any, *, if_exists: bool) -> None:
    if len(name) == 3:
        _, index, table = name
    else:
        table, index = ("", name[0]), name[1]
    number = ddl.table_id(session, table)
    found = session.rows(
        f"select c.oid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid "
        f"where i.indrelid = {number} "
        f"and lower(sim.index_name(c.relname)) = lower({literal(index)})"
    )
    if not found:
        if if_exists:
            return
        raise SqlError(3701, f"Cannot drop the index '{index}', because it does not exist.")
    session.rows(f"drop index {found[0][0]}")


def _truncate(session: Session, reader: Reader) -> None:
    reader.need("TRUNCATE", "TABLE")
    name = reader.name()
    number = ddl.table_id(session, name)
    referring = session.rows(
        f"select 1 from pg_constraint where contype = 'f' and confrelid = {number} "
        f"and conrelid <> {number} union all select 1 from sim.disabled where kind = 'f' "
        f"and (details ->> 'confrelid')::int = {number}"
    )
    shown = f"{name[0] or 'dbo'}.{name[1]}"
    if referring:
        said = f"Cannot truncate table '{shown}' because it is being referenced by a FOREIGN KEY "
        raise SqlError(4712, said + "constraint.")
    session.database.check_truncate(session, number, shown)
    session.rows(f"truncate table {ddl.qualify(session, name)} restart identity")


def select_into(session: Session, done: Rewritten, sql: str) -> None:
    """Run SELECT .. INTO."""
    assert done.into is not None
    schema, name = done.into
    is_temporary = name.startswith("#")
    full = (
        quote_name(name)
        if is_temporary
        else f"{quote_name(session.spelling(schema or 'dbo'))}.{quote_name(name)}"
    )
    kind = "temporary table" if is_temporary else "table"
    with session.statement(writes=True, needs_block=True):
        session.rows(f"create {kind} {full} as {sql}")
        number = session.rows(
            f"insert into sim.tables (id) values ({literal(full)}::regclass) returning id::int"
        )[0][0]
        rows = session.rows(f"select sim.row_count({number}::oid)")[0][0]
        session.has_ddl = True
        session.database.names_changed()
    session.rowcount = rows
    assert session.reply is not None
    session.reply.add_done(replies.COUNT, replies.SELECT, rows)


def grant(session: Session, statement: Statement) -> None:
    """Record GRANT, REVOKE and DENY of a permission."""
    words = [token.upper for token in statement.tokens]
    split = "TO" if "TO" in words else "FROM"
    place = words.index(split)
    on = words.index("ON") if "ON" in words[:place] else place
    names = " ".join(t.text for t in statement.tokens[1:on]).lower()
    target = "".join(t.text for t in statement.tokens[on + 1 : place]).lower()
    login = statement.tokens[place + 1].identifier
    for name in names.split(" , "):
        full = f"{name} on {target}" if target else name
        row = f"({literal(login)}, 'permission', {literal(full)})"
        if statement.head == "GRANT":
            session.rows(f"insert into sim.rights values {row} on conflict do nothing")
        else:
            session.rows(f"delete from sim.rights where (login, kind, name) = {row}")
    assert session.reply is not None
    session.reply.add_done(0, 0, 0)


_DATABASE_OPTIONS = {
    "ALLOW_SNAPSHOT_ISOLATION": "snapshot_isolation_state",
    "READ_COMMITTED_SNAPSHOT": "is_read_committed_snapshot_on",
    "RECOVERY": "recovery_model",
    "ACCELERATED_DATABASE_RECOVERY": "is_accelerated_database_recovery_on",
    "DELAYED_DURABILITY": "delayed_durability_desc",
    "COMPATIBILITY_LEVEL": "compatibility_level",
}


def _database(session: Session, reader: Reader) -> None:
    head = reader.word()
    reader.at = 2
    if_exists = reader.take("IF", "EXISTS")
    name = reader.identifier()
    if head == "CREATE":
        session.server.create_database(name)
    elif head == "DROP":
        _drop_database(session, name, if_exists=if_exists)
    elif reader.take("SET"):
        option = reader.identifier().upper()
        reader.take("=")
        value = reader.mark().upper()
        stored = {"ON": "1", "OFF": "0"}.get(value, value)
        setting = _DATABASE_OPTIONS.get(option)
        if setting is not None:
            state = session.server.database(session.database.name if name == "CURRENT" else name)
            state.set(setting, stored)


def _drop_database(session: Session, name: str, *, if_exists: bool) -> None:
    try:
        state = session.server.database(name)
    except SqlError as error:
        if if_exists:
            return
        raise SqlError(
            3701, f"Cannot drop the database '{name}', because it does not exist."
        ) from error
    state.drop()
    session.server.forget_database(name)
