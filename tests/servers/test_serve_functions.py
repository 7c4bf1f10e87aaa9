"""Functions and statements of vendors' set-up pages, answered as by a PostgreSQL.

The same statements go to both servers. They return the same names and types of columns, the same
number of rows, the same values except numbers of each server (positions, processes, transactions,
times), and the same SQLSTATE of a refusal.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.serve import Running, source_log, write_base, write_log

OLD = [(n, f"note {n}") for n in range(1, 6)]
_OWN = re.compile(r"[0-9A-F]+/[0-9A-F]+|^[0-9A-F]{8}-[0-9A-F]{8}-\d+$|^[0-9A-F]{24}$")
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 5, dt.UTC)
_NUMBERS = frozenset(("xid", "pid", "active_pid", "timeline_id"))

SLOTS = (
    "select * from pg_create_logical_replication_slot('one', 'pgoutput')",
    "select * from pg_create_logical_replication_slot('one', 'pgoutput')",
    "select slot_name from pg_create_logical_replication_slot('two', 'pgoutput', true)",
    "select slot_name, plugin, slot_type, temporary, active from pg_replication_slots order by 1",
    "select pg_drop_replication_slot('two')",
    "select * from pg_create_logical_replication_slot('Bad', 'pgoutput')",
    "select * from pg_create_logical_replication_slot('', 'pgoutput')",
    "select slot_name, plugin, slot_type, temporary, active from pg_replication_slots order by 1",
    "select slot_name, pg_terminate_backend(active_pid) from pg_replication_slots"
    " where slot_name = 'one'",
    "select slot_name from pg_replication_slot_advance('one', '0/1')",
    "select pg_replication_slot_advance('one', '0/0')",
    "select pg_replication_slot_advance('none', '0/1')",
    "select pg_replication_slot_advance('one', 'x')",
    "select data from pg_logical_slot_get_changes('one', null, null)",
    "select data from pg_logical_slot_peek_changes('one', null, null)",
    "select count(*) >= 0 from pg_logical_slot_peek_binary_changes('one', null, null,"
    " 'proto_version', '1', 'publication_names', 'p')",
    "select count(*) >= 0 from pg_logical_slot_get_binary_changes('one', null, null,"
    " 'proto_version', '1', 'publication_names', 'p')",
    "select * from pg_logical_slot_get_changes('none', null, null)",
    "select * from pg_logical_slot_get_binary_changes('one', null, null, 'proto_version')",
    "select * from pg_logical_slot_get_binary_changes('one', null, null)",
    "select * from pg_logical_slot_get_changes(null, null, null)",
    "select * from pg_logical_slot_peek_changes('one', null, -1)",
    "select pg_drop_replication_slot('one')",
    "select pg_drop_replication_slot('one')",
    "select pg_drop_replication_slot(null)",
)
SESSIONS = (
    "select pg_terminate_backend(null)",
    "select pg_terminate_backend(0)",
    "select pg_terminate_backend(2147483647)",
    "select pg_terminate_backend(pid) from pg_stat_activity where false",
    "select pg_terminate_backend(4294967296)",
    "select pg_export_snapshot()",
    "select pg_export_snapshot(1)",
    "select checkpoint_lsn, redo_lsn, timeline_id from pg_control_checkpoint()",
)
STATEMENTS = (
    "declare c cursor for select 1",
    "begin",
    "declare c cursor for select id from item order by id",
    "fetch 2 from c",
    "fetch next from c",
    "fetch all in c",
    "fetch 1 from c",
    "fetch -1 from c",
    "rollback",
    "begin",
    "fetch 1 from none",
    "rollback",
    "begin",
    "declare c cursor for select 1",
    "declare c cursor for select 1",
    "rollback",
    "close none",
    "prepare p as select 1 as one",
    "prepare p as select 2",
    "execute p",
    "execute none",
    "deallocate p",
    "deallocate p",
    "prepare q (int) as select id, note from item where id = $1",
    "execute q(2)",
    "execute q(1, 2)",
    "execute q('x')",
    "deallocate all",
)
UNREAD = (
    "select date '2024-02-30'",
    "select date 'today'",
    "select timestamp '2024-2-9 1:00'",
    "select timestamp '2024-02-29 24:00:00'",
)
QUERIES = (
    "select exists(select 1 from item)",
    "select exists(select 1 from item where id > 100)",
    "select not exists(select 1 from item where id > 100)",
    "select max(id) from item",
    "select min(id), max(note) from item",
    "select max(nothing) from item",
    "select id as a from item order by a desc limit 2",
    "select id a, note b from item order by b, a",
    "select id as a from item order by a + 1",
    "select id as a from item where a = 1",
    "select id from item order by nothing",
    "select extract(epoch from timestamp '2024-02-29 12:00:00.5')",
    "select extract(epoch from date '2024-02-29'), extract(year from date '2024-02-29')",
    "select extract(dow from timestamp '2024-02-29 12:00:00')",
    "select extract(nothing from date '2024-02-29')",
    "select extract(epoch from interval '1 day 2 hours')",
    "select date_trunc('day', timestamp '2024-02-29 12:34:56')",
    "select date_trunc('month', timestamp '2024-02-29 12:34:56')",
    "select timestamp '2024-02-29T12:00', timestamp '2024-02-29 12:00:00.500', date '2024-02-29'",
    "select timestamp '2024-02-29 12:00:00+05', date '2024-02-29 12:00:00'",
    "select timestamptz '2024-02-29 12:00:00', timestamptz '2024-02-29 12:00:00.1+05:30'",
    "select timestamptz '2024-02-29T12:00:00Z', timestamptz '2024-02-29', timestamp '2024-02-29'",
    "select date '0044-03-15 BC' is null, timestamp '12024-01-01 00:00:00' is null",
    "select date 'hello'",
    *UNREAD,
    "select date_trunc('nothing', timestamp '2024-02-29 12:34:56')",
)
PARAMETERS = (
    ("select id from item order by id limit %b", (2,)),
    ("select id from item order by id limit %s offset %s", (2, 1)),
    ("select id from item order by id limit %s", (None,)),
    ("select id from item order by id limit %s", (-1,)),
    ("select id from item where id = %b", (3,)),
    ("select %b::date", (dt.date(2024, 2, 29),)),
    ("select %b::date", (dt.date(1, 1, 1),)),
    ("select %b::timestamp", (NOON.replace(tzinfo=None),)),
    ("select %b::timestamptz", (NOON,)),
    ("select %b::uuid", (uuid.UUID(int=7),)),
    ("select %b::uuid is null", (None,)),
    ("select '{A0EEBC99-9c0b4ef8-bb6d6bb9-bd380a11}'::uuid", None),
    ("select '{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11'::uuid", None),
    ("select 'a0eebc99-9c0b4ef8-bb6d6bb9-bd380a1'::uuid", None),
    ("select %b::text", ("ä",)),
    ("select %b::int8", (2**62,)),
    ("select %b::bool", (True,)),
)


def run(connection: psycopg.Connection, query: str, values: Any = None) -> Any:
    """Return a server's answer: columns and rows, a tag, or a SQLSTATE."""
    try:
        found = connection.execute(query, values)  # type: ignore[arg-type]
    except psycopg.Error as error:
        return str(error.sqlstate)
    if found.description is None:
        return found.statusmessage
    names = [(column.name, column.type_code) for column in found.description]
    rows = [
        tuple(_show_cell(name, cell) for (name, _), cell in zip(names, row, strict=True))
        for row in found.fetchall()
    ]
    return names, rows


def _show_cell(name: str, cell: Any) -> Any:
    """Return a value, or only its type if each server has its own."""
    is_own = name in _NUMBERS or (isinstance(cell, str) and _OWN.search(cell))
    return type(cell).__name__ if is_own else cell


@pytest.fixture
def real(source_url: str) -> Iterator[psycopg.Connection]:
    """PostgreSQL server with the table and the publication."""
    with closing(psycopg.connect(source_url, autocommit=True)) as connection:
        connection.execute("set search_path = public")
        connection.execute("set timezone = 'UTC'")
        connection.execute("create table item (id integer primary key, note text)")
        for row in OLD:
            connection.execute("insert into item values (%s, %s)", row)
        connection.execute("create publication p for all tables")
        yield connection
        connection.execute("rollback")
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name in ('one', 'two')"
        )


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[psycopg.Connection]:
    """Server of penstock whose table has the same rows."""
    write_log(tmp_path / "log", number_rows([inserts(1, first=6)]))
    with closing(source_log(tmp_path)) as log:
        write_base(tmp_path, {ITEM: OLD}, log.head().log_id)
    with (
        Running(tmp_path, relations=[ITEM]) as running,
        closing(psycopg.connect(running.url(), autocommit=True)) as connection,
    ):
        connection.execute("set timezone = 'UTC'")
        yield connection


NOT_ANSWERED = {
    *UNREAD,
    "fetch -1 from c",
    "select not exists(select 1 from item where id > 100)",
    "select id as a from item order by a + 1",
    "select extract(dow from timestamp '2024-02-29 12:00:00')",
    "select extract(nothing from date '2024-02-29')",
    "select extract(epoch from interval '1 day 2 hours')",
    "select date_trunc('nothing', timestamp '2024-02-29 12:34:56')",
}
"""Statements that are refused as not supported, and never answered otherwise."""


@pytest.mark.parametrize("postgres_version", [15], indirect=True)  # the imitated server
@pytest.mark.parametrize("of", ["slots", "sessions", "statements", "queries", "parameters"])
def test_answers_are_those_of_a_server(
    of: str, ours: psycopg.Connection, real: psycopg.Connection
) -> None:
    """Both servers get the statements in the same order, on one connection each."""
    real.execute("insert into item values (6, 'note 6')")
    statements: list[tuple[str, Any]] = {
        "slots": [(one, None) for one in SLOTS],
        "sessions": [(one, None) for one in SESSIONS],
        "statements": [(one, None) for one in STATEMENTS],
        "queries": [(one, None) for one in QUERIES],
        "parameters": list(PARAMETERS),
    }[of]
    different = []
    for query, values in statements:
        wanted, found = run(real, query, values), run(ours, query, values)
        if query in NOT_ANSWERED:
            wanted = "0A000"
        if found != wanted:
            different.append((query, values, found, wanted))
    assert not different
