"""Checkpoints, leases, memo and tokens of a staging database, used by two sessions at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fix_postgres import Server
from fix_staging_database import GROUP, ORDERS, at, batch, change, rows
from penstock.engines.postgres.staging.database import PostgresStaging
from penstock.engines.postgres.staging.session import PostgresStagingSession
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.staging import Lease, Window
from penstock.ports.staging_errors import CheckpointGoesBack

NAMES = ("sequtil.Lease.shop.public.a", "sequtil.Lease.shop.public.b")
NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def now_us(self) -> int:
        """Wall time."""
        return int((self.now - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))

    def monotonic_s(self) -> float:
        """Not asked for."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Not asked for."""
        raise NotImplementedError


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """A staging database with its tables."""
    made = postgres.make_database("staging")
    PostgresStaging(made).create()
    yield made
    postgres.drop_database(made)


@pytest.fixture
def clock() -> SetClock:
    """The clock of both sessions."""
    return SetClock()


@pytest.fixture
def session(url: str, clock: SetClock) -> Iterator[PostgresStagingSession]:
    """One session."""
    with PostgresStaging(url, clock=clock).opened() as opened:
        yield opened


@pytest.fixture
def other(url: str, clock: SetClock) -> Iterator[PostgresStagingSession]:
    """Another one, as of another instance."""
    with PostgresStaging(url, clock=clock).opened() as opened:
        yield opened


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """What each returns, or the error that it raises, all begun at one moment."""
    begin = threading.Barrier(len(work))
    found: list[Any] = [None] * len(work)

    def one(number: int) -> None:
        begin.wait()
        try:
            found[number] = work[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# -- checkpoints ---------------------------------------------------------------------------------


def test_a_window_goes_from_what_is_applied_to_what_is_here(
    session: PostgresStagingSession, url: str
) -> None:
    """Equal where nothing waits; a commit marks what is not later, once."""
    assert session.window(GROUP) == Window(committed=ZERO, proposed=ZERO)
    for number in (1, 2, 3):
        session.advance(GROUP, "shop.public", at(number, 42))
    assert session.window(GROUP) == Window(committed=ZERO, proposed=at(3, 42))
    session.commit(GROUP, at(2, 42))
    assert session.window(GROUP) == Window(committed=at(2, 42), proposed=at(3, 42))
    query = "select target_applied_at from public.checkpoints order by source_hlc"
    before = rows(url, query)
    session.commit(GROUP, at(3, 42))
    assert rows(url, query)[:2] == before[:2]
    assert session.window(GROUP) == Window(committed=at(3, 42), proposed=at(3, 42))
    assert rows(url, "select distinct group_name, partition from public.checkpoints") == [
        ("shop.public", "shop.public")
    ]


def test_a_checkpoint_does_not_go_back(session: PostgresStagingSession) -> None:
    """Equal is accepted, also when it is applied; other groups and partitions are apart."""
    session.advance(GROUP, "p", at(5, 7))
    session.commit(GROUP, at(5, 7))
    session.advance(GROUP, "p", at(5, 7))
    assert session.window(GROUP).committed == at(5, 7)
    with pytest.raises(CheckpointGoesBack) as caught:
        session.advance(GROUP, "p", at(5, 6))
    assert caught.value.message == (
        "proposed checkpoint timestamp for group=shop.public, partition=p is going backwards: "
        f"{at(5, 6)}; verify changefeed cursor or remove already-applied checkpoint timestamp "
        "entries"
    )
    session.advance(GROUP, "q", at(1))
    session.advance(("other",), "p", at(1))


def test_partitions_wait_for_the_slowest(
    session: PostgresStagingSession, other: PostgresStagingSession
) -> None:
    """The end is the least of their ends, and what is committed is so for all of them."""
    session.ensure_partitions(GROUP, ["a", "b"])
    session.ensure_partitions(GROUP, ["a", "b"])
    first = Hlc(1, 1)
    assert session.window(GROUP) == Window(committed=first, proposed=first)
    session.advance(GROUP, "a", at(10))
    session.advance(GROUP, "a", at(20))
    assert session.window(GROUP) == Window(committed=first, proposed=first)
    session.advance(GROUP, "b", at(12))
    assert session.window(GROUP) == Window(committed=first, proposed=at(12))
    session.commit(GROUP, at(12))
    for one in (session, other):
        assert one.window(GROUP) == Window(committed=at(12), proposed=at(12))
    # A partition that comes later is behind: what it brings is applied before the others go on.
    other.advance(GROUP, "c", at(5))
    assert session.window(GROUP) == Window(committed=ZERO, proposed=at(5))
    session.commit(GROUP, at(5))
    other.advance(GROUP, "c", at(15))
    assert session.window(GROUP) == Window(committed=at(5), proposed=at(12))
    session.commit(GROUP, at(12))
    assert session.window(GROUP) == Window(committed=at(12), proposed=at(12))


def test_marks_that_an_operator_has_deleted_are_forgotten(
    session: PostgresStagingSession, url: str
) -> None:
    """As the error tells to do, to begin a changefeed at an earlier cursor."""
    session.advance(GROUP, "p", at(9))
    session.commit(GROUP, at(9))
    assert session.window(GROUP).proposed == at(9)
    rows(url, "delete from public.checkpoints where target_applied_at is not null")
    assert session.window(GROUP) == Window(committed=ZERO, proposed=ZERO)
    session.advance(GROUP, "p", at(2))
    assert session.window(GROUP) == Window(committed=ZERO, proposed=at(2))


def test_two_that_advance_at_once_never_go_back(
    session: PostgresStagingSession, other: PostgresStagingSession, url: str
) -> None:
    """Rows come in the order of their times, whoever wins: seen by the order of insertion."""
    rows(url, "alter table public.checkpoints add column place bigserial")
    rng = random.Random(7)
    for number in range(40):
        pair = [at(number, 1), at(number, 2)]
        rng.shuffle(pair)
        found = at_once(
            lambda time=pair[0]: session.advance(GROUP, "p", time),  # type: ignore[misc]
            lambda time=pair[1]: other.advance(GROUP, "p", time),  # type: ignore[misc]
        )
        assert all(one is None or isinstance(one, CheckpointGoesBack) for one in found)
    back = "select count(*) from public.checkpoints a, public.checkpoints b where a.place < b.place"
    assert rows(url, back + " and a.source_hlc > b.source_hlc") == [(0,)]


# -- leases --------------------------------------------------------------------------------------


def acquired(session: PostgresStagingSession, *names: str, lifetime_s: float = 60) -> Lease:
    """A lease that is free."""
    found = session.acquire(names, lifetime_s, "host")
    assert isinstance(found, Lease)
    return found


def test_a_lease_is_held_by_one_until_it_expires(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock, url: str
) -> None:
    """Times are cut to milliseconds; who waits is told until when."""
    lease = acquired(session, *NAMES)
    assert lease.expires == datetime(2026, 5, 1, 12, 1, 0, 123000, tzinfo=UTC)
    assert other.acquire(NAMES[:1], 60, "b") == lease.expires
    clock.now = lease.expires - timedelta(milliseconds=1)
    assert other.acquire(NAMES, 60, "b") == lease.expires
    clock.now = lease.expires
    taken = acquired(other, *NAMES)
    assert session.renew(lease, 60) is None
    session.release(lease)
    found = rows(url, "select name, expires, nonce, hostname from public.leases order by name")
    expires = taken.expires.replace(tzinfo=None)
    assert found == [(name, expires, taken.nonce, "host") for name in NAMES]


def test_all_names_or_none(session: PostgresStagingSession, other: PostgresStagingSession) -> None:
    """A set of which one name is held leaves no trace; released ones are free at once."""
    lease = acquired(session, NAMES[1])
    assert other.acquire(NAMES, 60, "b") == lease.expires
    acquired(session, NAMES[0])
    session.release(lease)
    acquired(other, NAMES[1])


def test_a_renewed_lease_lasts_longer(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock
) -> None:
    """Counted from now; also one that has expired and that nobody took."""
    lease = acquired(session, *NAMES)
    clock.now += timedelta(seconds=90)
    renewed = session.renew(lease, 60)
    assert renewed is not None
    assert renewed.expires == lease.expires + timedelta(seconds=90)
    assert other.acquire(NAMES, 60, "b") == renewed.expires


def test_a_hijacked_lease_is_not_renewed(session: PostgresStagingSession, url: str) -> None:
    """One name of the set is enough, and the others keep their end."""
    lease = acquired(session, *NAMES)
    rows(url, f"update public.leases set nonce = gen_random_uuid() where name = '{NAMES[0]}'")
    assert session.renew(lease, 600) is None
    assert rows(url, "select distinct expires from public.leases") == [
        (lease.expires.replace(tzinfo=None),)
    ]


def test_of_two_that_ask_at_once_one_gets_it(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock
) -> None:
    """A free lease, an expired one, and names in another order: never both, and never neither."""
    for number in range(40):
        found = at_once(
            lambda: session.acquire(NAMES, 60, "a"),
            lambda: other.acquire(tuple(reversed(NAMES)), 60, "b"),
        )
        assert sorted(type(one).__name__ for one in found) == ["Lease", "datetime"], found
        clock.now += timedelta(seconds=61)
        if number % 2:
            session.release(next(one for one in found if isinstance(one, Lease)))


# -- memo and tokens -----------------------------------------------------------------------------


def test_memo_keeps_the_last_value(
    session: PostgresStagingSession, other: PostgresStagingSession
) -> None:
    """Of each key, seen by every session."""
    assert session.get_memo("files") is None
    session.put_memo("files", b'{"position":"a"}')
    session.put_memo("files", b'{"position":"b"}')
    assert other.get_memo("files") == b'{"position":"b"}'


def test_keys_that_are_active_and_tokens_that_are_revoked(
    session: PostgresStagingSession, url: str
) -> None:
    """An operator writes them with SQL; the id and the flag have defaults."""
    rows(url, "insert into public.jwt_public_keys (public_key) values ('PEM')")
    rows(url, "insert into public.jwt_public_keys (public_key, active) values ('old', false)")
    rows(url, "insert into public.jwt_revoked_ids values ('t1'), ('t2')")
    found = session.read_keys()
    assert (found.public, found.revoked) == (("PEM",), frozenset({"t1", "t2"}))


# -- a server that goes away ---------------------------------------------------------------------


def test_a_restarted_server_is_an_error_that_may_be_tried_again(own_postgres: Server) -> None:
    """In every call of the session that met it; a session opened afterwards has what was staged."""
    url = own_postgres.make_database("staging")
    staging = PostgresStaging(url)
    staging.create()
    with staging.opened() as session:
        session.stage({ORDERS: batch(change(1))})
        own_postgres.stop()
        with pytest.raises(ConnectionLost) as caught:
            session.stage({ORDERS: batch(change(2))})
        assert caught.value.retry == "backoff"
        with pytest.raises(ConnectionLost):
            session.window(GROUP)
        with pytest.raises(ConnectFailed) as refused, staging.opened():
            pass
        assert refused.value.retry == "backoff"
        (finding,) = staging.examine()
        assert finding.code == refused.value.code
        own_postgres.start()
        with pytest.raises(ConnectionLost):
            session.advance(GROUP, "p", at(1))
    with staging.opened() as session:
        session.stage({ORDERS: batch(change(2))})
        (found,) = session.read([ORDERS], ZERO, at(9), limit=10)
        assert found.rows[ORDERS].num_rows == 2


def test_a_server_that_stops_between_two_slices(own_postgres: Server) -> None:
    """The reader gets the same error, and nothing is lost."""
    url = own_postgres.make_database("staging")
    staging = PostgresStaging(url)
    staging.create()
    with staging.opened() as session:
        session.stage({ORDERS: batch(*(change(number) for number in range(1, 7)))})
        slices = session.read([ORDERS], ZERO, at(9), limit=2)
        next(slices)
        own_postgres.stop("immediate")
        with pytest.raises(ConnectionLost):
            list(slices)
    own_postgres.start()
    with staging.opened() as session:
        (found,) = session.read([ORDERS], ZERO, at(9), limit=10)
        assert found.rows[ORDERS].num_rows == 6
