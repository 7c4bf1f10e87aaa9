"""Rows copied from server to server, whatever else the servers send: torn, cut,
refused, counted.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from harness.servers.proxy import Link, Proxy
from penstock.codec.postgres import pgwire
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.target import relay
from penstock.engines.postgres.target.relay import CopyConnectionLost, copy_rows, through_libpq
from penstock.host.errors import (
    ConnectionLost,
    PrivilegeMissing,
    StatementFailed,
    StatementInterrupted,
)
from penstock.model import PenstockError
from penstock.ports.bulk import CopyCountsDiffer
from plugins.postgres import Server

COPY_IN = "copy public.t from stdin (format binary)"
# Rows of every length up to two blocks of a server, and one far larger than a block of ours.
ROWS = (
    "select i, repeat(chr(97 + i % 26), i * 37 % 17000) from generate_series(1, {count}) as i"
    " union all select -1, repeat('long', 400000)"
)
TIMEOUT_S = 30.0
# Rows are sent while the function counts; called in FROM, it would first run to its end.
ENDLESS = "(select generate_series(1, 900000000) as i) as endless"


def copy_out(query: str) -> str:
    """Return the statement for the source."""
    return f"copy ({query}) to stdout (format binary)"


class Pair:
    """Two connections between which rows are copied, each in a transaction of its own."""

    def __init__(self, stack: ExitStack, source_url: str, target_url: str) -> None:
        self.source = stack.enter_context(closing(connect(source_url, application_name="giver")))
        self.target = stack.enter_context(closing(connect(target_url, application_name="taker")))
        self.target_url = target_url

    def copy(self, query: str, copy_in: str = COPY_IN) -> int:
        """Copy and commit."""
        self.source.execute("begin isolation level repeatable read read only")
        with self.target.transaction():
            count = copy_rows(self.source, copy_out(query), self.target, copy_in)
        return count

    def fails(self, query: str, kind: type[PenstockError], match: str) -> PenstockError:
        """Copy, and check that it fails without a row and that both connections are closed."""
        with pytest.raises(kind, match=match) as caught:
            self.copy(query)
        assert self.source.closed
        assert self.target.closed
        assert read_rows(self.target_url) == []
        return caught.value


def read_rows(
    url: str, query: str = "select a, b from public.t order by a"
) -> list[tuple[object, ...]]:
    """Return the rows of a database, once no session writes there."""
    with psycopg.connect(url) as connection:
        connection.execute("lock table public.t in share mode")
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


@pytest.fixture
def tables(target_url: str) -> str:
    """A target database with an empty table."""
    with psycopg.connect(target_url) as connection:
        connection.execute("create table public.t (a int, b text)")
    return target_url


@pytest.fixture
def pair(source_url: str, tables: str) -> Iterator[Pair]:
    """Two connections that use the protocol directly."""
    with ExitStack() as stack:
        yield Pair(stack, source_url, tables)


class Meddler(Proxy):
    """A network that changes the server's messages: `change` gets each block."""

    def __init__(self, port: int, change: Callable[[bytes], bytes]) -> None:
        self.change = change
        super().__init__(port)

    def _forward(
        self, link: Link, source: socket.socket, target: socket.socket, to_server: bool
    ) -> None:
        if to_server:
            super()._forward(link, source, target, to_server)
            return
        try:
            while data := source.recv(65536):
                target.sendall(self.change(data))
        except OSError:
            pass
        finally:
            link.reset()


@contextmanager
def meddle_with_copy(
    postgres: Server, urls: tuple[str, str], change: Callable[[bytes], bytes], *, at_target: bool
) -> Iterator[Pair]:
    """Open two connections; one server's messages are changed once a copy begins."""
    copying = threading.Event()

    def when_copying(data: bytes) -> bytes:
        # Nothing before the answer to the COPY is changed.
        if data[:1] == (b"G" if at_target else b"H"):
            copying.set()
        return change(data) if copying.is_set() else data

    with Meddler(postgres.port, when_copying) as network, ExitStack() as stack:
        source_url, target_url = urls
        pair = Pair(
            stack,
            source_url if at_target else network.url(source_url),
            network.url(target_url) if at_target else target_url,
        )
        pair.target_url = target_url
        yield pair


# -- what arrives ----------------------------------------------------------------------------------


def test_rows_of_every_length_arrive(pair: Pair) -> None:
    """Both connections can be used afterwards, the source in the same snapshot."""
    assert pair.copy(ROWS.format(count=900)) == 901
    assert pair.source.info.transaction_status.name == "INTRANS"
    assert pair.target.info.transaction_status.name == "IDLE"
    source = pair.source.execute(ROWS.format(count=900) + " order by 1").fetchall()
    assert read_rows(pair.target_url) == source
    # Small answers are received at once: the sockets wake for every byte again.
    began = time.monotonic()
    for connection in (pair.source, pair.target):
        for _ in range(100):
            connection.execute("select 1")
    assert time.monotonic() - began < TIMEOUT_S / 3


def test_several_copies_on_the_same_connections(pair: Pair) -> None:
    """Several copies follow each other, including empty ones."""
    counts = []
    for count in (0, 1, 5000, 0, 3):
        pair.source.rollback()
        counts.append(pair.copy(f"select i, i::text from generate_series(1, {count}) as i"))
    assert counts == [0, 1, 5000, 0, 3]
    assert read_rows(pair.target_url, "select count(*) from public.t") == [(5004,)]


@pytest.mark.parametrize("block_bytes", [*range(1, 24), 99, 1000])
def test_frames_torn_at_every_byte(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """The same rows arrive however few bytes are read at once."""
    monkeypatch.setattr(relay, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(relay, "ANSWER_BYTES", block_bytes)
    assert pair.copy("select i, repeat('y', i) from generate_series(1, 40) as i") == 40
    assert read_rows(pair.target_url) == [(i, "y" * i) for i in range(1, 41)]


def test_the_plain_twin_does_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows arrive without a compiler, too."""
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert pair.copy(ROWS.format(count=900)) == 901
    assert read_rows(pair.target_url, "select count(*), sum(length(b)) from public.t")[0][0] == 901


def test_text_format_goes_the_same_way(pair: Pair) -> None:
    """The rows are not parsed."""
    pair.source.execute("begin")
    query = "copy (select i, E'a\\tb\\n\\\\.' from generate_series(1, 3) as i) to stdout"
    with pair.target.transaction():
        count = copy_rows(pair.source, query, pair.target, "copy public.t from stdin")
    assert count == 3
    assert read_rows(pair.target_url) == [(i, "a\tb\n\\.") for i in (1, 2, 3)]


def test_a_slow_source_and_a_slow_target_are_waited_for(pair: Pair) -> None:
    """A row arrives now and then; the target takes long for each."""
    with psycopg.connect(pair.target_url) as connection:
        connection.execute(
            "create function public.slow() returns trigger language plpgsql as $$ begin "
            "if new.a % 20000 = 0 then perform pg_sleep(0.3); end if; return new; end $$;"
            "create trigger slow before insert on public.t for each row "
            "execute function public.slow()"
        )
    query = (
        "select i, repeat('z', 500) from generate_series(1, 60000) as i "
        "where i % 25000 <> 0 or pg_sleep(0.4) is not null"
    )
    assert pair.copy(query) == 60_000


def test_what_servers_say_aside_is_heard_and_passed_by(pair: Pair, source_url: str) -> None:
    """Notices of both, a changed parameter, a notification: none of them is a row."""
    with psycopg.connect(pair.target_url) as connection:
        connection.execute(
            "create function public.loud() returns trigger language plpgsql as $$ begin "
            "raise notice '%', repeat('loud ', 100); return new; end $$;"
            "create trigger loud before insert on public.t for each row "
            "execute function public.loud()"
        )
    pair.source.execute(
        "create function public.noisy(i int) returns int language plpgsql as $$ begin "
        "raise notice 'row % %', i, repeat('x', i % 300); return i; end $$"
    )
    pair.source.execute("listen bell")
    with psycopg.connect(source_url, autocommit=True) as bell:
        bell.execute("begin")
        bell.execute("notify bell, 'ring'")
        ringer = threading.Timer(0.3, bell.commit)
        ringer.start()
        query = (
            "select public.noisy(i), set_config('application_name', 'renamed ' || i, false) "
            "from generate_series(1, 3000) as i where i <> 2000 or pg_sleep(1) is not null"
        )
        with pair.target.transaction():
            assert copy_rows(pair.source, copy_out(query), pair.target, COPY_IN) == 3000
        ringer.join()
    assert pair.source.execute("select 1").fetchone() == (1,)
    assert read_rows(pair.target_url, "select count(*) from public.t") == [(3000,)]


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [1, 2, 5000, 59_999])
def test_an_error_of_the_source_in_the_middle(pair: Pair, row: int) -> None:
    """The server's own error is raised, and no row stays."""
    error = pair.fails(
        f"select i, (1 / (i - {row}))::text from generate_series(1, 60000) as i",
        StatementFailed,
        "reading at the source: division by zero",
    )
    assert error.fields["sqlstate"] == "22012"


@pytest.mark.parametrize("row", [1, 2, 5000, 200_000])
def test_an_error_of_the_target_in_the_middle(pair: Pair, row: int) -> None:
    """The server's own error is raised at once: the remaining rows are not sent."""
    with psycopg.connect(pair.target_url) as connection:
        connection.execute(f"alter table public.t add constraint c check (a <> {row})")
    error = pair.fails(
        "select i, repeat('x', 300) from generate_series(1, 200000) as i",
        StatementFailed,
        "writing at the target: new row for relation",
    )
    assert error.fields["sqlstate"] == "23514"


def test_a_target_that_refuses_long_before_the_source_ends(pair: Pair) -> None:
    """A source that sends nothing for a long time is not waited for."""
    with psycopg.connect(pair.target_url) as connection:
        connection.execute("alter table public.t add constraint c check (a <> 1)")
    began = time.monotonic()
    pair.fails(
        "select i, 'x' from generate_series(1, 60000) as i "
        "where i <> 59999 or pg_sleep(600) is not null",
        StatementFailed,
        "check constraint",
    )
    assert time.monotonic() - began < TIMEOUT_S


def test_statements_that_are_refused(pair: Pair, postgres: Server) -> None:
    """Neither side has the table; both connections are closed then, too."""
    pair.fails("select a, b from public.nowhere", StatementFailed, "reading at the source: rel")


def test_a_target_table_that_is_not_there(pair: Pair) -> None:
    """The source has already begun to send."""
    with pytest.raises(StatementFailed, match="writing at the target: relation"):
        pair.copy(ROWS.format(count=900), "copy public.nowhere from stdin (format binary)")


def test_a_statement_that_is_no_copy(pair: Pair) -> None:
    """The server's answer is not mistaken for rows."""
    pair.source.execute("begin")
    with pytest.raises(CopyConnectionLost, match="of type 'T'"), pair.target.transaction():
        copy_rows(pair.source, "select 1", pair.target, COPY_IN)
    assert pair.source.closed


def test_missing_privileges_and_interruptions_have_their_types(
    pair: Pair, postgres: Server, source_url: str
) -> None:
    """The errors have the same classes as for any other statement."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("create table public.secret (a int, b text)")
        connection.execute("create role copy_nobody")
    try:
        pair.source.execute("set role copy_nobody")
        pair.fails("select a, b from public.secret", PrivilegeMissing, "permission denied")
    finally:
        postgres.execute("drop role copy_nobody")


def test_a_statement_timeout_may_be_tried_again(pair: Pair) -> None:
    """57014 is an interruption."""
    pair.source.execute("set statement_timeout = '200ms'")
    pair.fails("select 1, pg_sleep(5)::text", StatementInterrupted, "statement timeout")


@pytest.mark.faults
@pytest.mark.parametrize("who", ["giver", "taker"])
def test_a_terminated_backend(pair: Pair, source_url: str, who: str) -> None:
    """The server's last message is in the error, which allows a retry."""
    url = source_url if who == "giver" else pair.target_url

    def terminate() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where "
                "application_name = %s and datname = current_database()",
                (who,),
            )

    timer = threading.Timer(0.3, terminate)
    timer.start()
    query = f"select i, 'x' from {ENDLESS}"
    if who == "taker":
        query += " where i % 1000 <> 0 or pg_sleep(0.01) is not null"
    # Its last message may be lost with the connection.
    error = pair.fails(query, PenstockError, "terminating connection|at the (source|target): ")
    assert isinstance(error, ConnectionLost | CopyConnectionLost)
    timer.join()
    assert error.retry == "backoff"


@pytest.mark.faults
@pytest.mark.parametrize("at_target", [False, True], ids=["source", "target"])
@pytest.mark.parametrize("to_server", [False, True], ids=["from", "to"])
def test_a_cut_at_either_side(
    postgres: Server, source_url: str, tables: str, at_target: bool, to_server: bool
) -> None:
    """A connection that breaks in the middle leaves no row, and allows a retry."""
    with Proxy(postgres.port) as network, ExitStack() as stack:
        urls = [source_url, tables]
        urls[at_target] = network.url(urls[at_target])
        pair = Pair(stack, *urls)
        pair.target_url = tables
        patterns = {(False, False): b"q" * 50, (True, True): b"q" * 50}
        pattern = patterns.get((at_target, to_server), b"")
        if pattern:
            network.tear(pattern, to_server=to_server)
        else:
            threading.Timer(0.3, network.cut).start()
        error = pair.fails(
            f"select i, repeat(case when i = 3000 then 'q' else 'r' end, 500) from {ENDLESS}",
            CopyConnectionLost,
            "at the target|at the source",
        )
        assert error.retry == "backoff"
        assert network.cut_count


@pytest.mark.faults
@pytest.mark.parametrize("at_target", [False, True], ids=["source", "target"])
@pytest.mark.parametrize(
    ("before", "after", "kind", "match"),
    [
        (b"c\0\0\0\4", b"W\0\0\0\4", CopyConnectionLost, "of type 'W'"),
        (b"c\0\0\0\4", b"d\0\0\0\1", PenstockError, "impossible length 1"),
        (b"c\0\0\0\4", b"E\xff\0\0\4", PenstockError, "impossible length"),
        (b"COPY 40", b"COPY 4x", CopyConnectionLost, "COPY 4x"),
        (b"COPY 40", b"MOVE 40", CopyConnectionLost, "MOVE 40"),
        (b"Z\0\0\0\5T", b"Z\0\0\0\5I", CopyConnectionLost, "in transaction state b'I'"),
        (b"Z\0\0\0\5T", b"Z\0\0\0\5", CopyConnectionLost, "closed the connection|reset"),
    ],
)
def test_answers_that_no_server_gives(
    postgres: Server,
    source_url: str,
    tables: str,
    at_target: bool,
    before: bytes,
    after: bytes,
    kind: type[PenstockError],
    match: str,
) -> None:
    """A stream that is not understood ends the copy; no message is misinterpreted."""
    if at_target and before[:1] == b"c":
        before, after = b"C\0\0\0", after[:1] + after[1:4]
        if after[:1] == b"d":
            after, match = b"d\0\0\0", "of type 'd'"
    ended = after.endswith(b"\5")

    def change(data: bytes) -> bytes:
        if before not in data:
            return data
        changed = data.replace(before, after, 1)
        if ended:
            raise OSError  # nothing more comes
        return changed

    with meddle_with_copy(postgres, (source_url, tables), change, at_target=at_target) as pair:
        pair.fails("select i, repeat('y', i) from generate_series(1, 40) as i", kind, match)


@pytest.mark.parametrize("at_target", [False, True], ids=["source", "target"])
def test_a_message_behind_the_end_is_taken_whole(
    postgres: Server,
    source_url: str,
    tables: str,
    at_target: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A notice after ReadyForQuery is read completely, so that libpq begins at a message."""
    monkeypatch.setattr(relay, "BLOCK_BYTES", 64)  # its end is not in the block yet
    monkeypatch.setattr(relay, "ANSWER_BYTES", 64)
    said = b"SNOTICE\0Mhello" + b" hello" * 150 + b"\0\0"
    aside = b"N" + (4 + len(said)).to_bytes(4, "big") + said

    def change(data: bytes) -> bytes:
        return data.replace(b"Z\0\0\0\5T", b"Z\0\0\0\5T" + aside)

    with meddle_with_copy(postgres, (source_url, tables), change, at_target=at_target) as pair:
        assert pair.copy("select i, 'x' from generate_series(1, 40) as i") == 40
        assert pair.source.execute("select 1").fetchone() == (1,)
        assert pair.target.execute("select 2").fetchone() == (2,)


def test_a_target_that_drops_rows_is_noticed(pair: Pair) -> None:
    """Both servers count; a trigger that leaves out rows makes them differ."""
    with psycopg.connect(pair.target_url) as connection:
        connection.execute(
            "create function public.few() returns trigger language plpgsql as $$ begin "
            "return case when new.a > 3 then new end; end $$;"
            "create trigger few before insert on public.t for each row "
            "execute function public.few()"
        )
    with pytest.raises(CopyCountsDiffer, match="sent 10 rows and the target took 7"):
        pair.copy("select i, 'x' from generate_series(1, 10) as i")
    assert read_rows(pair.target_url) == []


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_connection_in_a_failed_transaction_is_refused(pair: Pair, which: str) -> None:
    """The server would answer with an error of its own."""
    connection = getattr(pair, which)
    connection.execute("begin")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("select 1 / 0")
    with pytest.raises(CopyConnectionLost, match="was not idle"):
        copy_rows(pair.source, copy_out("select 1, 'x'"), pair.target, COPY_IN)


@pytest.mark.faults
@pytest.mark.parametrize("who", ["source", "target"])
def test_a_connection_that_broke_before(
    pair: Pair, source_url: str, postgres: Server, who: str
) -> None:
    """The connection is reported as lost, whether libpq knows it yet or not."""
    pid = getattr(pair, who).info.backend_pid
    postgres.execute(f"select pg_terminate_backend({pid}, 5000)")
    with pytest.raises(PenstockError) as caught:
        copy_rows(pair.source, copy_out("select 1, 'x'"), pair.target, COPY_IN)
    assert caught.value.retry == "backoff"
    assert isinstance(caught.value, ConnectionLost | CopyConnectionLost)


# -- TLS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls_at", ["source", "target", "both"])
def test_tls_goes_through_libpq(
    tls_postgres: Server, source_url: str, target_url: str, tls_at: str
) -> None:
    """Encrypted data cannot be passed on directly, but the rows arrive."""
    suffix = f"?sslmode=verify-full&sslrootcert={tls_postgres.ca_certificate}"
    database = tls_postgres.make_database("tls")
    url = database + suffix
    try:
        target = url if tls_at != "source" else target_url
        with psycopg.connect(target) as connection:
            connection.execute("create table public.t (a int, b text)")
        with ExitStack() as stack:
            pair = Pair(stack, url if tls_at != "target" else source_url, target)
            assert not (relay.plain(pair.source) and relay.plain(pair.target))
            assert pair.copy(ROWS.format(count=900)) == 901
            assert pair.source.execute("select 1").fetchone() == (1,)
        with psycopg.connect(target) as connection:
            connection.execute("truncate public.t")
        with ExitStack() as stack:
            pair = Pair(stack, url if tls_at != "target" else source_url, target)
            with pytest.raises(StatementFailed, match="division by zero"):
                pair.copy("select i, (1 / (i - 700))::text from generate_series(1, 9000) as i")
        assert read_rows(target) == []
    finally:
        tls_postgres.drop_database(database)


def test_libpq_does_the_same_on_a_plain_connection(pair: Pair) -> None:
    """Copying through libpq gives the same rows and counts as copying without it."""
    pair.source.execute("begin")
    with pair.target.transaction():
        counts = through_libpq(pair.source, copy_out(ROWS.format(count=90)), pair.target, COPY_IN)
    assert counts == (91, 91)
    assert pair.source.execute(ROWS.format(count=90) + " order by 1").fetchall() == read_rows(
        pair.target_url
    )


def test_the_typed_error_holds_what_the_server_said() -> None:
    """The error has message, hint and SQLSTATE, even one that is unknown."""
    for state, kind in (("23514", psycopg.errors.CheckViolation), ("ZZ123", psycopg.DatabaseError)):
        body = f"SERROR\0VERROR\0C{state}\0Mno\0Dwhy\0Hdo this\0\0".encode()
        error = relay.server_error(body)
        assert isinstance(error, kind)
        assert (error.sqlstate, error.diag.message_primary) == (state, "no")
        assert (error.diag.message_hint, error.diag.message_detail) == ("do this", "why")
    assert pgwire.server_message(b"\0").sqlstate == ""
