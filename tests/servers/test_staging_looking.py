"""A look at a staging database: its facts about a target schema, and its cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from harness.feeds.staging_database import GROUP, LINES, ORDERS, at, batch, change, rows
from penstock.engines.postgres.feeds import looking
from penstock.engines.postgres.feeds.database import PostgresStaging, PostgresStagingSession
from penstock.model.hlc import ZERO, Hlc
from plugins.postgres import Server

NAME = "public._shop_public_orders"
LEASE = "sequtil.Lease.shop.public"
PARTITION = "shop.public"


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """A staging database with its tables."""
    made = postgres.make_database("staging")
    PostgresStaging(made).create()
    yield made
    postgres.drop_database(made)


@pytest.fixture
def session(url: str) -> Iterator[PostgresStagingSession]:
    """A session of it."""
    with PostgresStaging(url).open_session() as opened:
        yield opened


def test_a_look_says_what_is_there(session: PostgresStagingSession) -> None:
    """A look gives rows by table, the window, the lease's holder and the last checkpoint's time."""
    session.stage({ORDERS: batch(*(change(n) for n in range(1, 7))), LINES: batch(change(1))})
    for number in (1, 3, 5):
        session.advance(GROUP, PARTITION, at(number))
    session.mark_applied_through([ORDERS, LINES], at(3))
    session.mark_applied(ORDERS, batch(change(5)))
    session.commit(GROUP, at(3))
    session.acquire([LEASE], 60, "here")
    assert session.staged_groups() == (GROUP,)
    found = session.look(GROUP, LEASE)
    assert (found.window.committed, found.window.proposed) == (at(3), at(5))
    orders, lines = found.tables[ORDERS], found.tables[LINES]
    assert (orders.rows, orders.waiting, orders.oldest) == (6, 2, at(4))
    assert (lines.rows, lines.waiting, lines.oldest) == (1, 0, None)
    assert not orders.is_estimate
    assert orders.size_bytes is not None
    assert orders.size_bytes > 8192
    assert found.holder is not None
    assert found.holder.hostname == "here"
    assert timedelta(seconds=50) < found.holder.expires - datetime.now(UTC) < timedelta(seconds=61)
    assert found.applied_at is not None
    assert timedelta(0) <= found.now - found.applied_at < timedelta(minutes=5)


def test_a_group_that_nothing_came_for(session: PostgresStagingSession, url: str) -> None:
    """The group is unknown, and a look creates nothing."""
    found = session.look(GROUP, LEASE)
    assert (found.window.committed, found.window.proposed) == (ZERO, ZERO)
    assert (found.holder, found.applied_at, found.tables) == (None, None, {})
    assert rows(url, "select count(*) from pg_tables where tablename like '\\_shop%'") == [(0,)]


def test_a_large_table_is_estimated(
    session: PostgresStagingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate uses some of its pages, each time the same; exact counts stay exact."""
    count = 20_000
    session.stage({ORDERS: batch(*(change(n, key=n) for n in range(1, count + 1)))})
    session.advance(GROUP, PARTITION, at(count))
    monkeypatch.setattr(looking, "LOOK_ROWS_MAX", 100)
    monkeypatch.setattr(looking, "PAGES_MIN", 64)
    found = session.look(GROUP, LEASE).tables[ORDERS]
    assert found.is_estimate
    assert found.rows is not None
    assert count * 0.6 < found.rows < count * 1.5
    assert (found.waiting, found.oldest) == (found.rows, at(1))
    assert session.look(GROUP, LEASE).tables[ORDERS] == found
    # Applied rows among the first ones are not found among the next hundred.
    session.mark_applied_through([ORDERS], at(count // 2))
    half = session.look(GROUP, LEASE).tables[ORDERS]
    assert half.rows is not None
    assert half.waiting is not None
    assert 0.3 < half.waiting / half.rows < 0.7
    assert half.oldest is None
    session.commit(GROUP, at(count))
    done = session.look(GROUP, LEASE).tables[ORDERS]
    assert (done.waiting, done.is_estimate) == (0, True)


def test_the_part_that_is_read_does_not_grow_with_the_table() -> None:
    """The part does not change either while a table grows to less than its double size."""
    shares = {pages: looking._share(pages) for pages in (1, 4_096, 4_097, 8_192, 10**7)}
    assert shares[1] == shares[4_096] == 100
    assert shares[4_097] == shares[8_192] == 50
    assert looking.PAGES_MIN <= 10**7 * shares[10**7] / 100 <= 2 * looking.PAGES_MIN


def test_an_engine_that_cannot_sample(
    session: PostgresStagingSession, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The look says exactly what can be counted at once, and otherwise that it is not known."""
    del url
    session.stage({ORDERS: batch(*(change(n) for n in range(1, 21)))})
    found = looking._without_size(
        session._connection, NAME, looking._next(session._connection, NAME, Hlc(0))
    )
    assert (found.rows, found.waiting, found.size_bytes) == (20, 20, None)
    monkeypatch.setattr(looking, "LOOK_ROWS_MAX", 20)
    found = looking._without_size(
        session._connection, NAME, looking._next(session._connection, NAME, Hlc(0))
    )
    assert (found.rows, found.waiting, found.oldest) == (None, None, at(1))
