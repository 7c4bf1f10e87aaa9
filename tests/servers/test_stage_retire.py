"""Retiring on a real server: applied rows of each mode, beside work, and after a lost session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.feeds.staging_database import GROUP, LINES, ORDERS, at, batch, change, rows
from penstock.engines.postgres.feeds import mutations
from penstock.engines.postgres.feeds.database import PostgresStaging
from penstock.feeds import retire
from penstock.feeds.retire import Retiring
from penstock.model.hlc import ZERO
from plugins.postgres import Server

NAME = "public._shop_public_orders"
KEYS = f"select key from {NAME} order by key"
WITHIN_S = 30.0


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """A staging database with its tables."""
    made = postgres.make_database("staging")
    PostgresStaging(made).create()
    yield made
    postgres.drop_database(made)


@contextmanager
def retiring(url: str, after_s: float = 10) -> Iterator[None]:
    """Retire in a thread while the block runs."""
    ended = threading.Event()
    one = Retiring(PostgresStaging(url), GROUP, after_s=after_s, check=lambda: None)
    thread = threading.Thread(target=one.run, args=(ended.wait,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def keys(url: str) -> list[str]:
    """Return the keys in the mutation table."""
    return [key for (key,) in rows(url, KEYS)]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small steps and short pauses."""
    monkeypatch.setattr(mutations, "RETIRE_ROWS_MAX", 3)
    monkeypatch.setattr(retire, "INTERVAL_S", 0.1)
    monkeypatch.setattr(retire, "AGAIN_S", 0.1)


def test_what_rows_and_windows_have_applied_is_retired(url: str) -> None:
    """Rows marked one by one, rows never staged, and rows of a window are retired; nothing else."""
    with PostgresStaging(url).open_session() as session:
        swept = [change(1, key) for key in range(1, 6)]
        window = [change(2, key) for key in range(11, 16)]
        never_staged = [change(1, 21)]
        waits = [change(1, 31)]
        session.stage({ORDERS: batch(*swept, *window, *waits), LINES: batch(change(1, 1))})
        session.mark_applied(ORDERS, batch(*swept, *never_staged))
        session.mark_applied_through([ORDERS], at(2), after=at(1))
        young = [change(15, 41)]
        session.stage({ORDERS: batch(*young)})
        session.mark_applied(ORDERS, batch(*young))
        session.advance(GROUP, "p", at(20))
        with retiring(url):
            time.sleep(0.5)
            assert len(keys(url)) == 13  # nothing is committed
            session.commit(GROUP, at(20))
            until(lambda: keys(url) == ["[31]", "[41]"])
            session.advance(GROUP, "p", at(30))
            session.commit(GROUP, at(30))
            until(lambda: keys(url) == ["[31]"])
        assert rows(url, "select count(*) from public._shop_public_order_lines") == [(1,)]


def test_retiring_outlives_its_session_and_rows_sent_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new session begins at the start, and so finds stubs of rows that were retired before."""
    monkeypatch.setattr(retire, "FROM_START_S", 0.5)
    with PostgresStaging(url).open_session() as session:
        old = [change(number, number) for number in range(1, 6)]
        session.stage({ORDERS: batch(*old)})
        session.mark_applied_through([ORDERS], at(5), after=ZERO)
        session.advance(GROUP, "p", at(20))
        session.commit(GROUP, at(20))
        with retiring(url):
            until(lambda: keys(url) == [])
            session.mark_applied(ORDERS, batch(*old))
            until(lambda: keys(url) == [])
            rows(
                url,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query like '%delete from%'"
                " and pid <> pg_backend_pid()",
            )
            session.mark_applied(ORDERS, batch(*old))
            until(lambda: keys(url) == [])


def test_work_does_not_wait_for_retiring(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are staged and marked while many are deleted; none of them is lost."""
    monkeypatch.setattr(mutations, "RETIRE_ROWS_MAX", 500)
    with PostgresStaging(url).open_session() as session:
        old = [change(1, key) for key in range(10_000)]
        session.stage({ORDERS: batch(*old)})
        session.mark_applied(ORDERS, batch(*old))
        session.advance(GROUP, "p", at(20))
        session.commit(GROUP, at(20))
        with retiring(url):
            kept = 0
            while len(rows(url, f"select 1 from {NAME} where nanos = {at(1).nanos} limit 1")):
                new = batch(*(change(15 + kept, key) for key in range(20)))
                assert session.stage({ORDERS: new})[ORDERS].added == 20
                session.mark_applied(ORDERS, new)
                kept += 1
        assert kept > 1
        assert len(keys(url)) == 20 * kept
