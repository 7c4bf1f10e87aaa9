"""Checkpoints, leases, memo and tokens of a staging database, used by two sessions at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from harness.feeds.staging_database import GROUP, ORDERS, at, batch, change, rows
from penstock.engines.postgres.feeds.checkpoints import Checkpoints
from penstock.engines.postgres.feeds.database import PostgresStaging, PostgresStagingSession
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.model.hlc import ZERO
from penstock.ports.feeds import (
    STUB,
    CheckpointGoesBack,
    CheckpointMoved,
    FeedState,
    Lease,
    RowState,
    Window,
)
from plugins.postgres import Server

NAMES = ("sequtil.Lease.shop.public.a", "sequtil.Lease.shop.public.b")
NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def now_us(self) -> int:
        """Return the wall time."""
        return int((self.now - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))

    def monotonic_s(self) -> float:
        """Fail, as it is not used."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Fail, as it is not used."""
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
    """Clock of both sessions."""
    return SetClock()


@pytest.fixture
def session(url: str, clock: SetClock) -> Iterator[PostgresStagingSession]:
    """Session of an instance."""
    with PostgresStaging(url, clock=clock).open_session() as opened:
        yield opened


@pytest.fixture
def other(url: str, clock: SetClock) -> Iterator[PostgresStagingSession]:
    """Session of another instance."""
    with PostgresStaging(url, clock=clock).open_session() as opened:
        yield opened


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Return the result or the error of each function, all started at one moment."""
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
    """Both are equal if nothing waits; a commit marks those that are not later, once."""
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
    """An equal one is accepted, even if it is applied; other groups and partitions are separate."""
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
    """The end is the least of their ends, and a commit holds for all of them."""
    for name in ("a", "b"):
        session.advance(GROUP, name, at(1))
    session.advance(GROUP, "a", at(10))
    session.advance(GROUP, "a", at(20))
    assert session.window(GROUP) == Window(committed=ZERO, proposed=at(1))
    session.advance(GROUP, "b", at(12))
    assert session.window(GROUP) == Window(committed=ZERO, proposed=at(12))
    session.commit(GROUP, at(12))
    for one in (session, other):
        assert one.window(GROUP) == Window(committed=at(12), proposed=at(12))


def test_a_feed_that_joins_holds_the_window_where_it_is(
    session: PostgresStagingSession, other: PostgresStagingSession
) -> None:
    """Earlier times that it resolves change nothing, until it resolves a later one."""
    session.advance(GROUP, "a", at(12))
    session.commit(GROUP, at(12))
    session.advance(GROUP, "a", at(14))
    window = Window(committed=at(12), proposed=at(14))
    joining = FeedState(resolved=at(14), is_joining=True, window=window)
    assert other.feed_state(GROUP, "c") == joining
    other.advance(GROUP, "c", at(5))
    assert other.feed_state(GROUP, "c") == joining
    session.advance(GROUP, "a", at(30))
    for one in (session, other):
        assert one.window(GROUP) == window
    session.commit(GROUP, at(14))
    other.advance(GROUP, "c", at(20))
    for one in (session, other):
        assert one.window(GROUP) == Window(committed=at(14), proposed=at(20))
        assert not one.feed_state(GROUP, "c").is_joining
    with pytest.raises(CheckpointGoesBack):
        other.advance(GROUP, "c", at(19))
    session.commit(GROUP, at(20))
    assert not session.feed_state(GROUP, "a").is_joining
    assert session.window(GROUP) == Window(committed=at(20), proposed=at(20))


def test_a_window_that_is_proposed_gets_no_more_rows(
    session: PostgresStagingSession, other: PostgresStagingSession
) -> None:
    """A session that stages rows of a feed sees what the feed has resolved; other feeds are
    separate.
    """
    session.stage({ORDERS: batch(change(3))}, partition="p")
    other.advance(GROUP, "p", at(3))
    with pytest.raises(CheckpointMoved):
        session.stage({ORDERS: batch(change(4), change(3, 2))}, partition="p")
    with pytest.raises(CheckpointMoved):
        session.stage_if_exists(ORDERS, batch(change(3, 2)), partition="p")
    with pytest.raises(CheckpointMoved):
        session.stage({ORDERS: batch(change(3, 7))}, partition="unknown")
    assert rows_of(session, 9) == 1
    session.stage({ORDERS: batch(change(4))}, partition="p")
    session.stage({ORDERS: batch(change(2, 5))})
    assert rows_of(session, 9) == 3


def rows_of(session: PostgresStagingSession, number: int) -> int:
    """Return how many rows are staged up to a time."""
    slices = session.read([ORDERS], ZERO, at(number), limit=100)
    return sum(one.num_rows for part in slices for one in part.rows.values())


def test_a_feed_that_resolves_waits_for_rows_that_are_being_staged(
    session: PostgresStagingSession, url: str
) -> None:
    """The rows are then in the window."""
    with psycopg.connect(url) as staging, PostgresStaging(url).open_session() as other:
        Checkpoints().check_unresolved(staging, "shop.public", "p", at(3))
        thread = threading.Thread(target=other.advance, args=(GROUP, "p", at(3)))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert session.window(GROUP).proposed == ZERO
        staging.commit()
        thread.join()
    assert session.window(GROUP).proposed == at(3)


def test_old_checkpoints_are_forgotten(
    session: PostgresStagingSession, other: PostgresStagingSession, url: str
) -> None:
    """All applied ones are deleted except the last of each partition, and the one that it begins
    with.
    """
    session.advance(GROUP, "b", at(1))
    for number in range(1, 6):
        session.advance(GROUP, "a", at(number))
    session.advance(GROUP, "b", at(4))
    session.commit(GROUP, at(4))
    window = session.window(GROUP)
    assert session.forget_checkpoints(GROUP, at(4)) == 4
    assert session.forget_checkpoints(GROUP, at(9)) == 0
    assert session.window(GROUP) == other.window(GROUP) == window
    query = "select partition, source_nanos from public.checkpoints order by 1, 2"
    kept = [(one, number) for one, number in rows(url, query) if number > 1]
    assert kept == [("a", at(4).nanos), ("a", at(5).nanos), ("b", at(4).nanos)]


def test_a_group_goes_back(
    session: PostgresStagingSession, other: PostgresStagingSession, url: str
) -> None:
    """Later rows are unapplied again, stubs are deleted, and each feed continues from there."""
    session.stage({ORDERS: batch(change(1), change(3), change(5, 2))})
    session.mark_applied(ORDERS, batch(change(4, 3)))
    session.mark_applied(ORDERS, batch(change(2, 4)))
    for name, number in (("a", 4), ("a", 6), ("b", 5)):
        session.advance(GROUP, name, at(number))
    session.mark_applied_through([ORDERS], at(5))
    session.commit(GROUP, at(5))
    session.rewind(GROUP, at(2))
    for one in (session, other):
        assert one.window(GROUP) == Window(committed=at(2), proposed=at(2))
        assert not one.feed_state(GROUP, "a").is_joining
    name = "_shop_public_orders"
    query = f"select nanos, applied, applied_at is null from public.{name} order by nanos"
    assert rows(url, query) == [
        (at(1).nanos, True, False),
        (at(2).nanos, True, False),
        (at(3).nanos, False, True),
        (at(5).nanos, False, True),
    ]
    session.advance(GROUP, "a", at(3))
    other.advance(GROUP, "b", at(9))
    assert session.window(GROUP) == Window(committed=at(2), proposed=at(3))


def test_a_group_is_forgotten(
    session: PostgresStagingSession, other: PostgresStagingSession, url: str
) -> None:
    """A group's rows and checkpoints are deleted, others stay, and its feeds begin again."""
    session.stage({ORDERS: batch(change(1), change(3))})
    for group in (GROUP, ("shop", "other")):
        session.advance(group, "a", at(4))
    session.forget(GROUP)
    for one in (session, other):
        assert one.window(GROUP) == Window(committed=ZERO, proposed=ZERO)
        assert one.window(("shop", "other")).proposed == at(4)
    assert rows(url, "select nanos from public._shop_public_orders") == []
    session.advance(GROUP, "a", at(2))
    assert session.window(GROUP).proposed == at(2)


def test_a_late_mutation_has_a_state(session: PostgresStagingSession) -> None:
    """The states are in the order of the batch."""
    session.stage({ORDERS: batch(change(1), change(2, 2), change(5, 3))})
    session.mark_applied(ORDERS, batch(change(2, 2), change(5, 3)))
    proposed = batch(
        change(4, 3), change(1), change(2, 2), change(1, 2), change(9, 3), change(1, 7)
    )
    assert session.states_of(ORDERS, proposed) == [
        RowState.SUPERSEDED, RowState.WAITING, RowState.APPLIED, RowState.SUPERSEDED,
        RowState.NEW, RowState.NEW,
    ]  # fmt: skip


def test_what_is_marked_may_be_kept_whole(session: PostgresStagingSession) -> None:
    """A marked row may be kept whole; otherwise it becomes a stub."""
    session.mark_applied(ORDERS, batch(change(1)), keep=True)
    session.mark_applied(ORDERS, batch(change(2)))
    (one,) = session.read([ORDERS], ZERO, at(9), limit=9, with_applied=True)
    assert one.rows[ORDERS].column("after").to_pylist() == [change(1).after, STUB]


def test_marks_that_an_operator_has_deleted_are_forgotten(
    session: PostgresStagingSession, url: str
) -> None:
    """The operator follows the error's hint to begin a changefeed at an earlier cursor."""
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
    """Rows come in the order of their times, whichever session wins: the order of insertion shows
    it.
    """
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


def acquire_lease(session: PostgresStagingSession, *names: str, lifetime_s: float = 60) -> Lease:
    """Return a lease that is free."""
    found = session.acquire(names, lifetime_s, "host")
    assert isinstance(found, Lease)
    return found


def test_a_lease_is_held_by_one_until_it_expires(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock, url: str
) -> None:
    """Times have milliseconds; a session that waits is told until when."""
    lease = acquire_lease(session, *NAMES)
    assert lease.expires == datetime(2026, 5, 1, 12, 1, 0, 123000, tzinfo=UTC)
    assert other.acquire(NAMES[:1], 60, "b") == lease.expires
    clock.now = lease.expires - timedelta(milliseconds=1)
    assert other.acquire(NAMES, 60, "b") == lease.expires
    clock.now = lease.expires
    taken = acquire_lease(other, *NAMES)
    assert session.renew(lease, 60) is None
    session.release(lease)
    found = rows(url, "select name, expires, nonce, hostname from public.leases order by name")
    expires = taken.expires.replace(tzinfo=None)
    assert found == [(name, expires, taken.nonce, "host") for name in NAMES]


def test_all_names_or_none(session: PostgresStagingSession, other: PostgresStagingSession) -> None:
    """A set with one name that is held leaves no trace; released ones are free at once."""
    lease = acquire_lease(session, NAMES[1])
    assert other.acquire(NAMES, 60, "b") == lease.expires
    acquire_lease(session, NAMES[0])
    session.release(lease)
    acquire_lease(other, NAMES[1])


def test_a_renewed_lease_lasts_longer(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock
) -> None:
    """The lifetime counts from now; an expired lease that no session has taken is renewed, too."""
    lease = acquire_lease(session, *NAMES)
    clock.now += timedelta(seconds=90)
    renewed = session.renew(lease, 60)
    assert renewed is not None
    assert renewed.expires == lease.expires + timedelta(seconds=90)
    assert other.acquire(NAMES, 60, "b") == renewed.expires


def test_a_hijacked_lease_is_not_renewed(session: PostgresStagingSession, url: str) -> None:
    """One name of the set suffices, and the others keep their end."""
    lease = acquire_lease(session, *NAMES)
    rows(url, f"update public.leases set nonce = gen_random_uuid() where name = '{NAMES[0]}'")
    assert session.renew(lease, 600) is None
    assert rows(url, "select distinct expires from public.leases") == [
        (lease.expires.replace(tzinfo=None),)
    ]


def test_of_two_that_ask_at_once_one_gets_it(
    session: PostgresStagingSession, other: PostgresStagingSession, clock: SetClock
) -> None:
    """Exactly one session gets a lease that is free, expired, or named in another order."""
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
    """The last value of each key is seen by every session."""
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


# -- an unavailable server -----------------------------------------------------------------------


def test_a_restarted_server_is_an_error_that_may_be_tried_again(own_postgres: Server) -> None:
    """Every call of the affected session fails; a session opened afterwards has the staged rows."""
    url = own_postgres.make_database("staging")
    staging = PostgresStaging(url)
    staging.create()
    with staging.open_session() as session:
        session.stage({ORDERS: batch(change(1))})
        own_postgres.stop()
        with pytest.raises(ConnectionLost) as caught:
            session.stage({ORDERS: batch(change(2))})
        assert caught.value.retry == "backoff"
        with pytest.raises(ConnectionLost):
            session.window(GROUP)
        with pytest.raises(ConnectFailed) as refused, staging.open_session():
            pass
        assert refused.value.retry == "backoff"
        (finding,) = staging.examine()
        assert finding.code == refused.value.code
        own_postgres.start()
        with pytest.raises(ConnectionLost):
            session.advance(GROUP, "p", at(1))
    with staging.open_session() as session:
        session.stage({ORDERS: batch(change(2))})
        (found,) = session.read([ORDERS], ZERO, at(9), limit=10)
        assert found.rows[ORDERS].num_rows == 2


def test_a_server_that_stops_between_two_slices(own_postgres: Server) -> None:
    """The reader gets the same error, and nothing is lost."""
    url = own_postgres.make_database("staging")
    staging = PostgresStaging(url)
    staging.create()
    with staging.open_session() as session:
        session.stage({ORDERS: batch(*(change(number) for number in range(1, 7)))})
        slices = session.read([ORDERS], ZERO, at(9), limit=2)
        next(slices)
        own_postgres.stop("immediate")
        with pytest.raises(ConnectionLost):
            list(slices)
    own_postgres.start()
    with staging.open_session() as session:
        (found,) = session.read([ORDERS], ZERO, at(9), limit=10)
        assert found.rows[ORDERS].num_rows == 6
