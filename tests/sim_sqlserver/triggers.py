"""Triggers: a body of simple changes that may read `inserted` and `deleted`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_sqlserver import ddl
from sim_sqlserver.ddl_parse import Name, Reader
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Block, Node, Statement, parse_batch
from sim_sqlserver.names import literal, quote_name

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

_TRANSITIONS = {
    "INSERT": "referencing new table as inserted",
    "UPDATE": "referencing new table as inserted old table as deleted",
    "DELETE": "referencing old table as deleted",
}


def create(session: Session, reader: Reader, statement: Statement) -> None:
    """Create an AFTER trigger."""
    while not reader.take("TRIGGER"):
        reader.at += 1
    _, name = reader.name()
    reader.need("ON")
    table = reader.name()
    if not (reader.take("AFTER") or reader.take("FOR")):
        raise SqlError(102, "The simulator knows AFTER triggers only.", severity=15)
    events = [reader.identifier().upper()]
    while reader.take(","):
        events.append(reader.identifier().upper())
    reader.take("NOT", "FOR", "REPLICATION")
    reader.need("AS")
    body = _body(session, reader.slice(reader.at, len(reader.tokens)))
    number, full = ddl.table_id(session, table), ddl.qualify(session, table)
    session.rows(f"delete from sim.triggers where table_id = {number} and name = {literal(name)}")
    for event in events:
        function = f"sim.{quote_name(f'tr${number}${name}${event}')}"
        rests = "if current_setting('sim.bulk', true) = '1' then return null; end if;"
        text = f"begin {rests} {body} return null; end"
        session.rows(
            f"create or replace function {function}() returns trigger language plpgsql "
            f"as {literal(text)}"
        )
        session.rows(
            f"create or replace trigger {quote_name(f'tr${name}${event}')} after {event.lower()} "
            f"on {full} {_TRANSITIONS[event]} for each statement execute function {function}()"
        )
    session.rows(
        f"insert into sim.triggers (table_id, name, definition) values ({number}, {literal(name)}, "
        f"{literal(statement.text)})"
    )


def _body(session: Session, text: str) -> str:
    statements: list[str] = []
    _collect(session, parse_batch(text), statements)
    return " ".join(statements)


def _collect(session: Session, nodes: tuple[Node, ...], out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, Block):
            _collect(session, node.body, out)
        elif isinstance(node, Statement) and node.head in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            out.append(session.fill(session.rewritten(node.text).sql) + ";")
        elif isinstance(node, Statement) and node.head == "SET":
            continue
        elif isinstance(node, Statement) and node.head in ("THROW", "RAISERROR"):
            said = next((t.literal for t in node.tokens if t.kind == "text"), "refused")
            out.append(f"perform sim.fail(50000, {literal(said)});")
        else:
            raise SqlError(102, "The simulator cannot run this trigger.", severity=15)


def _events(session: Session, number: int, name: str) -> list[str]:
    start = f"tr${name}$".lower()
    found = session.rows(
        f"select tgname from pg_trigger where tgrelid = {number} "
        f"and left(lower(tgname), {len(start)}) = {literal(start)}"
    )
    return [str(row[0]) for row in found]


def _find(session: Session, name: str) -> tuple[int, str]:
    found = session.rows(
        f"select table_id::int, name from sim.triggers where lower(name) = lower({literal(name)})"
    )
    if not found:
        raise SqlError(3701, f"Cannot find the trigger '{name}', because it does not exist.")
    return found[0][0], found[0][1]


def drop(session: Session, name: Name, *, if_exists: bool) -> None:
    """Drop a trigger."""
    try:
        number, spelled = _find(session, name[1])
    except SqlError:
        if if_exists:
            return
        raise
    for event in _events(session, number, spelled):
        session.rows(f"drop trigger {quote_name(event)} on {_table(session, number)}")
    session.rows(
        f"delete from sim.triggers where table_id = {number} and name = {literal(spelled)}"
    )


def _table(session: Session, number: int) -> str:
    return str(session.rows(f"select {number}::regclass::text")[0][0])


def switch(session: Session, reader: Reader) -> None:
    """Run ENABLE or DISABLE TRIGGER .. ON .."""
    is_enabled = reader.word() == "ENABLE"
    reader.at = 2
    names = [] if reader.take("ALL") else [reader.name()[1]]
    while reader.take(","):
        names.append(reader.name()[1])
    reader.need("ON")
    _switch(session, reader.name(), names, is_enabled=is_enabled)


def switch_in_table(session: Session, table: Name, reader: Reader) -> None:
    """Run the part of ALTER TABLE that enables or disables triggers."""
    is_enabled = reader.word() == "ENABLE"
    reader.at += 2
    names = [] if reader.take("ALL") else [reader.identifier()]
    while reader.take(","):
        names.append(reader.identifier())
    _switch(session, table, names, is_enabled=is_enabled)


def _switch(session: Session, table: Name, names: list[str], *, is_enabled: bool) -> None:
    number, full = ddl.table_id(session, table), ddl.qualify(session, table)
    wanted = names or [
        str(row[0])
        for row in session.rows(f"select name from sim.triggers where table_id = {number}")
    ]
    word = "enable" if is_enabled else "disable"
    for name in wanted:
        _, spelled = _find(session, name)
        for event in _events(session, number, spelled):
            session.rows(f"alter table {full} {word} trigger {quote_name(event)}")
        session.rows(
            f"update sim.triggers set is_disabled = {int(not is_enabled)} "
            f"where table_id = {number} and name = {literal(spelled)}"
        )
