"""Prepared parts of a batch that are left in a PostgreSQL target: their end, reset and status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from harness.pipelines.parts import count_prepared, place_for
from harness.servers.engines import Place
from penstock.engines.postgres.target import parts
from penstock.engines.postgres.target.parts import PreparedUndecided
from penstock.engines.postgres.target.progress import connect_progress, leftovers, remove
from penstock.host.errors import StatementInterrupted
from penstock.model import TableName
from plugins.shared import SharedServers

LOG_ID = "this-log"
NUMBERS = "select n from kept order by 1"


@pytest.fixture
def place(shared_servers: SharedServers) -> Iterator[Place]:
    """A target that keeps prepared transactions, bound to a log."""
    with place_for(shared_servers, "pg18 prepared") as found:
        found.run("create table kept (n int)")
        with closing(connect_progress(found.url, "test")) as progress:
            progress.ensure_ahead()
            progress.bind_log(LOG_ID)
        yield found


def prepare(place: Place, number: int, decider: str, log_id: str = LOG_ID) -> None:
    """Leave a prepared part that inserts a number."""
    with (
        psycopg.connect(place.url, autocommit=True) as connection,
        parts.prepared_transaction(connection, log_id, decider, number),
    ):
        connection.execute("insert into kept values (%s)", (number,))


def decide(place: Place, *, commits: bool) -> str:
    """Return the id of a transaction that has ended."""
    with psycopg.connect(place.url) as connection:
        decider = parts.read_transaction_id(connection)
        if not commits:
            connection.rollback()
    return decider


def settle(place: Place) -> None:
    """Settle as a loader does when it binds the target."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        parts.settle_prepared(connection, LOG_ID)


def test_parts_end_as_their_deciding_transaction_did(place: Place) -> None:
    """Parts of another log are left alone, even if its id begins with this log's."""
    yes, no = decide(place, commits=True), decide(place, commits=False)
    prepare(place, 1, yes)
    prepare(place, 2, no)
    prepare(place, 3, yes)
    prepare(place, 4, yes, f"{LOG_ID} too")
    prepare(place, 5, no, "another")
    settle(place)
    assert place.run(NUMBERS) == [(1,), (3,)]
    assert count_prepared(place) == 2
    settle(place)


def test_a_part_whose_decider_is_open_is_left(place: Place) -> None:
    """The decider may still be committed: nothing is decided for it."""
    with psycopg.connect(place.url) as open_one:
        prepare(place, 1, parts.read_transaction_id(open_one))
        with pytest.raises(PreparedUndecided, match="in progress"):
            settle(place)
        assert count_prepared(place) == 1
        open_one.commit()
    settle(place)
    assert place.run(NUMBERS) == [(1,)]


def test_a_part_that_another_process_has_committed_is_no_error(place: Place) -> None:
    """Two processes may settle at once."""
    yes = decide(place, commits=True)
    prepare(place, 1, yes)
    settle(place)
    with psycopg.connect(place.url, autocommit=True) as connection:
        parts.commit_prepared(connection, LOG_ID, yes, 1)
    assert place.run(NUMBERS) == [(1,)]


def test_reset_ends_parts_before_it_drops_what_they_lock(place: Place) -> None:
    """Parts whose commit is decided are committed, others are rolled back."""
    place.run("create table wirekite.a_wkm (n int)")
    prepare(place, 1, decide(place, commits=True))
    with psycopg.connect(place.url, autocommit=True) as connection:
        decider = decide(place, commits=False)
        with parts.prepared_transaction(connection, LOG_ID, decider, 2):
            connection.execute("lock table wirekite.a_wkm in share mode")
            connection.execute("insert into kept values (2)")
    found = leftovers(place.url, tables=None).removals
    assert found[0].what == "2 prepared transactions of a batch that was cut short"
    for removal in found:
        remove(place.url, removal)
    assert count_prepared(place) == 0
    assert place.run(NUMBERS) == [(1,)]
    assert place.run("select to_regnamespace('wirekite')") == [(None,)]
    assert [one.what for one in leftovers(place.url, tables=None).removals] == []


def test_status_tells_what_is_left(place: Place) -> None:
    """Both kinds are named, unless there is nothing."""
    with closing(connect_progress(place.url, "test")) as progress:
        assert not progress.read_unfinished()
        progress.put_ahead(log_id=LOG_ID, tables=[TableName("s", "t")], known={}, gsn=5)
        prepare(place, 1, decide(place, commits=False))
        found = progress.read_unfinished()
    assert found.tables == (TableName("s", "t"),)
    [name] = found.prepared
    assert name.startswith(f"penstock {LOG_ID} ")
    assert "s.t" in found.text
    assert name in found.text


def test_a_server_without_room_interrupts_a_part(place: Place) -> None:
    """Other programs have prepared as many as it keeps: the part is rolled back."""
    decider = decide(place, commits=True)
    for number in range(8):
        prepare(place, number, decider, "of another")
    with psycopg.connect(place.url, autocommit=True) as connection:
        assert parts.count_free(connection) == (8, 0)
        with (
            pytest.raises(StatementInterrupted, match="maximum number of prepared"),
            parts.prepared_transaction(connection, LOG_ID, decider, 9),
        ):
            connection.execute("insert into kept values (9)")
        assert connection.execute("select count(*) from kept").fetchall() == [(0,)]
