"""SQL that stock clients type: cursors, COPY in its forms, PREPARE, aggregates, slot functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import generators

from harness.pipelines.log import inserts, number_rows
from harness.servers.serve import Running, source_log, write_base, write_log
from harness.servers.serve_client import START, Raw, wait_until
from penstock.model import Column, Identity, Relation

KINDS = Relation(
    schema="public",
    name="kinds",
    columns=(
        Column(name="id", source_type="integer", neutral="int32", type_oid=23, nullable=False),
        Column(name="note", source_type="text", neutral="string", type_oid=25),
        Column(name="d", source_type="double precision", neutral="float64", type_oid=701),
        Column(name="ok", source_type="boolean", neutral="bool", type_oid=16),
        Column(name="day", source_type="date", neutral="date", type_oid=1082),
        Column(
            name="at", source_type="timestamp with time zone", neutral="timestamptz", type_oid=1184
        ),
        Column(name="u", source_type="uuid", neutral="uuid", type_oid=2950),
        Column(name="c", source_type="character(3)", neutral="string", type_oid=1042, typmod=7),
    ),
    key=(0,),
    before=(0,),
    identity=Identity.DEFAULT,
)
DAY = date(2024, 2, 29)
AT = datetime(2024, 2, 29, 10, 0, tzinfo=UTC)
KEY = UUID(int=1)
ROWS = [
    (1, "a,b", 1.5, True, DAY, AT, KEY.bytes, "x  "),
    (2, 'say "x"', float("nan"), False, None, None, None, "x\t "),
    (3, None, None, None, date(1999, 1, 1), None, UUID(int=2).bytes, None),
    (4, "", float("inf"), True, None, None, None, "y  "),
    (5, "tab\t\\;", -2.0, None, None, None, None, "   "),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a log with a base of one table."""
    root = tmp_path_factory.mktemp("sql")
    write_log(root / "log", number_rows([inserts(3)]))
    with closing(source_log(root)) as log:
        write_base(root, {KINDS: ROWS}, log.head().log_id)
    with Running(root, relations=[KINDS]) as found:
        yield found


@pytest.fixture
def session(running: Running) -> Iterator[psycopg.Connection]:
    """A connection for SQL, each statement a transaction."""
    with psycopg.connect(running.url(), autocommit=True) as found:
        yield found


def rows(session: psycopg.Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return session.execute(query, values or None).fetchall()  # type: ignore[arg-type]


def catch_refusal(session: psycopg.Connection, query: str, *values: Any) -> str:
    """Return the SQLSTATE of a refusal."""
    with pytest.raises(psycopg.Error) as caught:
        session.execute(query, values or None)  # type: ignore[arg-type]
    return str(caught.value.sqlstate)


def copy_out(session: psycopg.Connection, query: str) -> str:
    """Return what a COPY sends."""
    with session.cursor().copy(query) as copy:  # type: ignore[arg-type]
        return b"".join(bytes(data) for data in copy).decode()


# -- SELECT of a table ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select id from kinds order by d", [(5,), (1,), (4,), (2,), (3,)]),
        ("select id from kinds order by d desc", [(3,), (2,), (4,), (1,), (5,)]),
        ("select id from kinds order by d desc nulls last", [(2,), (4,), (1,), (5,), (3,)]),
        ("select id from kinds order by d nulls first", [(3,), (5,), (1,), (4,), (2,)]),
        ("select id from kinds order by ok, id", [(2,), (1,), (4,), (3,), (5,)]),
        ("select id from kinds order by note desc nulls last limit 2", [(5,), (2,)]),
        ("select id from kinds order by c, id", [(5,), (1,), (2,), (4,), (3,)]),
        ("select id as x from kinds order by x desc limit 1", [(5,)]),
        ("select d, id from kinds order by 2 desc limit 1 offset 4", [(1.5, 1)]),
        ("select x.id from kinds as x where x.id = 4", [(4,)]),
        ("select x.* from kinds x where id = 9", []),
        ("select id from kinds where id < 3 order by id fetch first 1 rows only", [(1,)]),
        ("select id from kinds order by id limit all offset 4", [(5,)]),
        ("select id from kinds order by id limit null offset 4", [(5,)]),
        ("select 1 from kinds limit 2", [(1,), (1,)]),
        ("select 'x' as a, null, true, id from kinds where id = 1", [("x", None, True, 1)]),
        ("select count(*) from kinds", [(5,)]),
        ("select count(*) from kinds limit 0", []),
        ("select count(*) from kinds offset 1", []),
        ("select count(note), count(1), count(d) from kinds", [(4, 5, 4)]),
        ("select max(id), min(id), count(*) from kinds where id > 1", [(5, 2, 4)]),
        ("select max(note), min(note) from kinds", [("tab\t\\;", "")]),
        ("select max(d) = 'NaN' from (values (1)) v(d)", None),
        ("select min(d) from kinds", [(-2.0,)]),
        ("select max(day), min(at) from kinds", [(DAY, AT)]),
        ("select max(id) as top from kinds where id > 100", [(None,)]),
        ("select exists(select 1 from kinds where id = 3)", [(True,)]),
        ("select exists (select * from kinds where id = 30) as there", [(False,)]),
        ("select exists(select 1 from kinds limit 0)", [(False,)]),
        ("select exists(select 1 from kinds offset 4)", [(True,)]),
        ("select exists(select 1 from kinds offset 5)", [(False,)]),
    ],
)
def test_queries(
    session: psycopg.Connection, query: str, found: list[tuple[Any, ...]] | None
) -> None:
    """NaN is above all numbers, NULL is where it is requested, ORDER BY has places and names."""
    if found is not None:
        assert rows(session, query) == found


def test_the_greatest_number_is_none(session: psycopg.Connection) -> None:
    """NaN is above infinity."""
    ((found,),) = rows(session, "select max(d) from kinds")
    assert found != found


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("select s from kinds as x(s, id)", "0A000"),
        ("select kinds.id from kinds x", "42P01"),
        ("select id from kinds where other.id = 1", "42P01"),
        ("select id from kinds x where kinds.id = 1", "42P01"),
        ("select ctid from kinds", "0A000"),
        ("select id from kinds where ctid = '(0,1)'", "0A000"),
        ("select id from kinds order by ctid", "0A000"),
        ("select id from kinds order by 2", "42P10"),
        ("select id as x, d as x from kinds order by x", "42702"),
        ("select id from kinds order by nothing", "42703"),
        ("select id from kinds order by id + 1", "0A000"),
        ("select id, count(*) from kinds", "42803"),
        ("select max(ok) from kinds", "42883"),
        ("select max(u) from kinds", "42883"),
        ("select max(id + 1) from kinds", "0A000"),
        ("select count(distinct id) from kinds", "0A000"),
        ("select distinct id from kinds", "0A000"),
        ("select id from kinds limit -1", "2201W"),
        ("select id from kinds offset -1", "2201X"),
        ("select id from kinds fetch first 1 rows with ties", "0A000"),
        ("select id from kinds for update", "0A000"),
        ("select extract(epoch from at) from kinds", "0A000"),
        ("select date_trunc('day', at) from kinds", "0A000"),
        ("select id from kinds group by id", "0A000"),
        ("select *, id from kinds", "0A000"),
        ("selec id from kinds", "42601"),
        ("select id from kinds limit $1", "42P02"),
    ],
)
def test_queries_that_are_refused(session: psycopg.Connection, query: str, state: str) -> None:
    """Queries have a server's SQLSTATE, or are not supported; no other answer is given."""
    assert catch_refusal(session, query) == state


def test_parameters(session: psycopg.Connection) -> None:
    """Parameters are in conditions and limits, as text and binary, typed by their context."""
    assert rows(session, "select id from kinds where id = %s", 2) == [(2,)]
    assert rows(session, "select id from kinds order by id limit %s offset %s", 1, 2) == [(3,)]
    assert rows(session, "select id from kinds where note = %s", 'say "x"') == [(2,)]
    assert rows(session, "select id from kinds where note = %s or id = %s", "$1 '", 1) == [(1,)]
    for form in ("%s", "%b", "%t"):
        for column, value in (("day", DAY), ("at", AT), ("u", KEY), ("id", 1), ("d", 1.5)):
            assert rows(session, f"select id from kinds where {column} = {form}", value) == [(1,)]
    assert rows(session, "select id from kinds where ok = %b order by id", True) == [(1,), (4,)]
    assert rows(session, "select id from kinds where note = %s", None) == []
    assert catch_refusal(session, "select id from kinds where day = %s::text", "2024-02-29") != ""
    assert catch_refusal(session, "select id from kinds limit %s", -1) == "2201W"


def test_the_types_of_parameters_are_told(session: psycopg.Connection) -> None:
    """A driver that asks for them sends values in these types."""
    query = b"select id from kinds where day = $1 and note = $2 and u in ($3) limit $4"
    session.pgconn.send_prepare(b"p", query)
    session.wait(generators.execute(session.pgconn))
    session.pgconn.send_describe_prepared(b"p")
    (told,) = session.wait(generators.execute(session.pgconn))
    assert [told.param_type(at) for at in range(told.nparams)] == [1082, 25, 2950, 20]


# -- COPY ----------------------------------------------------------------------------------------

FIRST = "copy (select id, note, ok from kinds where id {}) to stdout"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("copy (select id, note from kinds where id < 4 order by id) to stdout (format csv)",
         '1,"a,b"\n2,"say ""x"""\n3,\n'),
        ("copy (select id, note from kinds where id > 3 order by id) to stdout csv header",
         'id,note\n4,""\n5,tab\t\\;\n'),
        ("copy (select id, note from kinds where id > 3 order by id) to stdout "
         "with (format csv, delimiter ';', null 'NIX', header)",
         'id;note\n4;\n5;"tab\t\\;"\n'),
        ("copy (select id, note from kinds where id = 2) to stdout "
         "(format csv, escape '\\', force_quote (id))", '"2","say \\"x\\""\n'),
        ("copy (select id, note from kinds where id = 1) to stdout (format csv, force_quote *)",
         '"1","a,b"\n'),
        ("copy (select id, note from kinds where id = 3) to stdout (format csv, force_quote *)",
         '"3",\n'),
        ("copy (select id, note from kinds where id = 5) to stdout (delimiter ';')",
         "5;tab\\t\\\\\\;\n"),
        ("copy (select id, note from kinds where id = 3) to stdout with (null '', header true)",
         "id\tnote\n3\t\n"),
        ("copy (select id, note from kinds where id = 3) to stdout with delimiter ',' null 'x'",
         "3,x\n"),
        ("copy kinds (id, ok) to stdout (format csv, encoding 'UTF8')",
         "1,t\n2,f\n3,\n4,t\n5,\n"),
        ("copy (select count(*) from kinds) to stdout", "5\n"),
    ],
)  # fmt: skip
def test_copies(session: psycopg.Connection, query: str, text: str) -> None:
    """Copies are in CSV and text, with the options of both spellings."""
    assert copy_out(session, query) == text


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ("(format xml)", "22023"),
        ("(format csv, format csv)", "42601"),
        ("(colour 'red')", "42601"),
        ("(delimiter 'ab')", "0A000"),
        ("(delimiter 'a')", "22023"),
        ("(delimiter E'\\n')", "22023"),
        ("(quote 'x')", "0A000"),
        ("(format csv, quote ',')", "22023"),
        ("(format csv, null ',')", "0A000"),
        ("(format csv, null '\"')", "0A000"),
        ("(null E'a\\n')", "22023"),
        ("(format binary, header)", "42601"),
        ("(format csv, header maybe)", "42601"),
        ("(format csv, header match)", "0A000"),
        ("(format csv, force_null (id))", "0A000"),
        ("(format csv, force_quote (other))", "42P10"),
        ("(encoding 'latin1')", "0A000"),
        ("csv colour", "42601"),
        ("(format csv", "42601"),
    ],
)
def test_copies_that_are_refused(session: psycopg.Connection, options: str, state: str) -> None:
    """Their options contradict each other, or are unknown."""
    assert catch_refusal(session, f"copy kinds (id) to stdout {options}") == state


# -- cursors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_binary", [False, True])
def test_named_cursors(running: Running, is_binary: bool) -> None:
    """Cursors are declared, described, fetched, moved and closed, some with parameters."""
    with psycopg.connect(running.url()) as connection:
        with connection.cursor(name="c", binary=is_binary) as cursor:
            cursor.itersize = 2
            cursor.execute("select id, note from kinds where id > %s order by id", (1,))
            assert [one[0] for one in cursor] == [2, 3, 4, 5]
        with connection.cursor(name="c", binary=is_binary) as cursor:
            cursor.execute("select id from kinds order by id")
            assert cursor.description
            assert cursor.fetchone() == (1,)
            cursor.scroll(2)
            assert cursor.fetchmany(2) == [(4,), (5,)]
            assert cursor.fetchone() is None
        with connection.cursor(name="slots") as cursor:
            cursor.execute("select nspname from pg_namespace where nspname = 'public'")
            assert cursor.fetchall() == [("public",)]


def test_cursors_of_sql(session: psycopg.Connection) -> None:
    """Cursors have tags and ends, and some are refused."""
    session.execute("begin")
    session.execute("declare a no scroll cursor without hold for select id from kinds order by id")
    assert rows(session, "fetch a") == [(1,)]
    assert rows(session, "fetch forward 2 from a") == [(2,), (3,)]
    assert session.execute("move 1 in a").statusmessage == "MOVE 1"
    assert session.execute("fetch all in a").statusmessage == "FETCH 1"
    assert rows(session, "fetch next from a") == []
    session.execute("close a")
    assert catch_refusal(session, "fetch a") == "34000"
    session.execute("rollback")
    session.execute("declare kept cursor with hold for select id from kinds where id = 5")
    session.execute("begin")
    session.execute("declare gone cursor for select id from kinds")
    session.execute("declare forgotten cursor with hold for select id from kinds")
    session.execute("rollback")
    assert rows(session, "fetch kept") == [(5,)]
    assert catch_refusal(session, "fetch gone") == "34000"
    assert catch_refusal(session, "fetch forgotten") == "34000"
    assert session.execute("close all").statusmessage == "CLOSE CURSOR ALL"
    assert catch_refusal(session, "fetch kept") == "34000"


@pytest.mark.parametrize(
    ("statements", "state"),
    [
        (["declare a cursor for select 1"], "25P01"),
        (["begin", "declare a scroll cursor for select 1"], "0A000"),
        (["begin", "declare a cursor for select 1", "declare a cursor for select 1"], "42P03"),
        (["begin", "declare a cursor for select 1", "fetch backward 1 from a"], "0A000"),
        (["begin", "declare a cursor for select 1", "fetch -1 from a"], "0A000"),
        (["begin", "declare a cursor for select 1", "fetch absolute 1 from a"], "0A000"),
        (["begin", "declare a cursor for begin"], "42601"),
        (["begin", "declare a cursor"], "42601"),
        (["begin", "select 1/0", "declare a cursor for select 1"], "25P02"),
        (["close nothing"], "34000"),
        (["execute nothing"], "26000"),
        (["prepare p as select 1", "prepare p as select 1"], "42P05"),
        (["prepare p (int) as select $1", "execute p"], "42601"),
        (["prepare p (int) as select $1", "execute p(1 + 1)"], "0A000"),
        (["prepare p (nothing) as select $1"], "42704"),
        (["prepare p (int) as select id from kinds where id = $1", "execute p('x')"], "22P02"),
    ],
)
def test_statements_that_are_refused(running: Running, statements: list[str], state: str) -> None:
    """The last of several is refused, with its SQLSTATE."""
    with psycopg.connect(running.url(), autocommit=True) as asked:
        for statement in statements[:-1]:
            try:
                asked.execute(statement)  # type: ignore[arg-type]
            except psycopg.errors.DivisionByZero:
                continue
        assert catch_refusal(asked, statements[-1]) == state
        asked.execute("rollback")
        assert rows(asked, "select 1") == [(1,)]


def test_a_cursor_keeps_its_snapshot_until_it_is_closed(running: Running) -> None:
    """No snapshot is held when the connection ends."""
    held = running.root / "base" / "held" / "serve"
    with psycopg.connect(running.url(), autocommit=True) as asked:
        asked.execute("declare a cursor with hold for select id from kinds")
        assert list(held.glob("*"))
        asked.execute("close a")
        assert not list(held.glob("*"))
        asked.execute("declare a cursor with hold for select id from kinds")
    wait_until(lambda: not list(held.glob("*")))


# -- PREPARE -------------------------------------------------------------------------------------


def test_statements_are_prepared_by_sql(session: psycopg.Connection) -> None:
    """Statements are of tables and of the catalogue, and share names with the protocol's."""
    session.execute("prepare p (int, text) as select id from kinds where id = $1 or note = $2")
    assert sorted(rows(session, "execute p(1, 'tab\t\\;')")) == [(1,), (5,)]
    assert rows(session, "execute p(-1, null)") == []
    session.execute("prepare q as select $1::int + 1")
    assert rows(session, "execute q(41)") == [(42,)]
    assert session.execute("prepare s as show server_version").statusmessage == "PREPARE"
    assert rows(session, "execute s")[0][0].startswith("15")
    session.pgconn.send_query_prepared(b"q", [b"1"])
    (found,) = session.wait(generators.execute(session.pgconn))
    assert found.get_value(0, 0) == b"2"
    session.execute("deallocate p")
    assert catch_refusal(session, "execute p(1, 'x')") == "26000"
    session.execute("deallocate all")
    assert catch_refusal(session, "execute q(1)") == "26000"


# -- functions -----------------------------------------------------------------------------------


def test_slots_are_made_and_dropped_by_functions(running: Running) -> None:
    """The set-up pages of vendors do it."""
    with psycopg.connect(running.url(), autocommit=True) as asked:
        create = "select * from pg_create_logical_replication_slot('made', 'pgoutput')"
        ((name, lsn),) = rows(asked, create)
        assert name == "made"
        assert rows(asked, "select confirmed_flush_lsn from pg_replication_slots") == [(lsn,)]
        assert catch_refusal(asked, create) == "42710"
        query = "select (pg_create_logical_replication_slot('other', 'wal2json', true)).slot_name"
        assert rows(asked, query) == [("other",)]
        assert rows(
            asked, "select slot_name, plugin, temporary from pg_replication_slots order by 1"
        ) == [("made", "pgoutput", False), ("other", "wal2json", True)]
        for arguments, state in (
            ("'Bad', 'pgoutput'", "42602"),
            ("'x', 'nothing'", "0A000"),
            ("'x', 'pgoutput', false, true", "0A000"),
        ):
            query = f"select pg_create_logical_replication_slot({arguments})"
            assert catch_refusal(asked, query) == state
        assert catch_refusal(asked, "select pg_create_physical_replication_slot('x')") == "0A000"
        query = f"select slot_name, end_lsn from pg_replication_slot_advance('made', '{lsn}')"
        assert rows(asked, query) == [("made", lsn)]
        assert catch_refusal(asked, "select pg_replication_slot_advance('made', '0/1')") == "55000"
        assert catch_refusal(asked, "select pg_replication_slot_advance('none', '0/1')") == "42704"
        asked.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = 'made'"
        )
        assert rows(asked, "select slot_name from pg_replication_slots") == [("other",)]
        assert catch_refusal(asked, "select pg_drop_replication_slot('made')") == "42704"
    wait_until(lambda: not running.serving.slots.all())


def test_connections_are_ended_by_functions(running: Running) -> None:
    """The named one ends, whether idle or streaming; its slot is free then."""
    with psycopg.connect(running.url(), autocommit=True) as asked:
        with closing(psycopg.connect(running.url(), autocommit=True)) as other:
            pid = other.info.backend_pid
            assert rows(asked, "select pg_terminate_backend(%s)", pid) == [(True,)]
            wait_until(lambda: pid not in running.serving.clients)
            assert catch_refusal(other, "select 1") in ("57P01", "None")
        assert rows(asked, "select pg_terminate_backend(%s)", pid) == [(False,)]
        assert rows(asked, "select pg_cancel_backend(%s)", pid) == [(False,)]
        with closing(Raw(running)) as stream:
            stream.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
            stream.until(b"Z")
            stream.query(START)
            assert stream.message()[0] == b"W"
            query = (
                "select slot_name, pg_terminate_backend(active_pid) from pg_replication_slots"
                " where active_pid is not null"
            )
            assert rows(asked, query) == [("s", True)]
            assert b"C57P01\0" in stream.until(b"E")[-1][1]
            wait_until(lambda: not running.serving.senders)
            wait_until(lambda: len(running.serving.clients) == 1)
        assert rows(asked, "select pg_drop_replication_slot('s')") == [("",)]


def test_a_connection_ends_itself(running: Running) -> None:
    """The client is told so."""
    with psycopg.connect(running.url(), autocommit=True) as asked:
        assert catch_refusal(asked, "select pg_terminate_backend(pg_backend_pid())") == "57P01"


def test_a_transaction_exports_its_snapshot(running: Running) -> None:
    """Others read the same rows until it ends."""
    with (
        psycopg.connect(running.url(), autocommit=True) as one,
        psycopg.connect(running.url(), autocommit=True) as other,
    ):
        one.execute("begin isolation level repeatable read")
        ((name,),) = rows(one, "select pg_export_snapshot()")
        other.execute("begin isolation level repeatable read")
        other.execute(f"set transaction snapshot '{name}'")
        assert rows(other, "select count(*) from kinds") == [(5,)]
        one.execute("commit")
        other.execute("commit")
        other.execute("begin isolation level repeatable read")
        assert catch_refusal(other, f"set transaction snapshot '{name}'") == "42704"


@pytest.mark.parametrize("program", ["pg_dump", "pg_dumpall", "dump"])
def test_a_dump_is_refused_at_log_in(running: Running, program: str) -> None:
    """The answer to PostgreSQL's own programs names the command that prints the tables."""
    url = running.url(fallback_application_name=program)
    if program == "dump":
        psycopg.connect(url).close()
        return
    with pytest.raises(psycopg.OperationalError, match="cannot dump") as caught:
        psycopg.connect(url)
    assert "penstock plan FILE --ddl" in str(caught.value)
