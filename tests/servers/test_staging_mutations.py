"""Mutation tables of a staging database: staged, read, marked and retired, on a real server."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from harness.feeds.staging_database import LINES, ORDERS, at, batch, change, rows
from penstock.engines.postgres.feeds import mutations
from penstock.engines.postgres.feeds.database import PostgresStaging, PostgresStagingSession
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import (
    STUB,
    KeyEmpty,
    KeyTooLong,
    Mutation,
    MutationBroken,
    MutationTableGone,
    Slice,
    StagedTable,
    mutations_of,
)
from plugins.postgres import Server

NAME = "public._shop_public_orders"


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


def read_all(
    session: PostgresStagingSession,
    *tables: StagedTable,
    after: Hlc = ZERO,
    through: Hlc | None = None,
    limit: int = 100,
) -> list[Slice]:
    """Return the slices of tables."""
    return list(session.read(tables, after, through or at(10**6), limit=limit))


def read_one(session: PostgresStagingSession, table: StagedTable, **more: Any) -> list[Mutation]:
    """Return the unapplied mutations of a table."""
    found = read_all(session, table, **more)
    return [one for part in found if table in part.rows for one in mutations_of(part.rows[table])]


def test_what_is_staged_is_read_as_it_was_sent(session: PostgresStagingSession) -> None:
    """Long and short values, removals and before images come in order of time and key."""
    long = b'{"text": "%s"}' % (b"long " * 1000)
    sent = [
        change(1),
        change(2, logical=7, before=b'{"id": 1, "n": 1}'),
        change(2, logical=8, after=None, before=long),
        change(3, key=2, after=long),
        change(3, key=3),
    ]
    found = session.stage({ORDERS: batch(*reversed(sent))})
    assert (found[ORDERS].added, found[ORDERS].duplicates) == (5, 0)
    assert read_one(session, ORDERS) == sent


def test_values_over_a_kibibyte_are_compressed(session: PostgresStagingSession, url: str) -> None:
    """Long values are compressed by gzip if that makes them smaller; 1024 bytes are not."""
    long, exact = b'{"a": "%s"}' % (b"x" * 1016), b'{"a": "%s"}' % (b"x" * 1015)
    assert (len(long), len(exact)) == (1025, 1024)
    session.stage({ORDERS: batch(change(1, after=long, before=long), change(2, after=exact))})
    (first, before), (second, _) = rows(url, f"select mut, before from {NAME} order by nanos")
    assert gzip.decompress(first) == gzip.decompress(before) == long
    assert second == exact


def test_a_value_that_is_no_gzip_is_named(session: PostgresStagingSession, url: str) -> None:
    """The table was written by another program."""
    session.stage({ORDERS: batch(change(1))})
    rows(url, f"update {NAME} set mut = '\\x1f8b00'")
    with pytest.raises(MutationBroken, match=r"shop\.public\.orders is not a gzip file"):
        read_one(session, ORDERS)


def test_what_is_sent_again_changes_nothing(session: PostgresStagingSession, url: str) -> None:
    """Rows applied meanwhile do not change either; new ones among them are added,
    before and after.
    """
    first = session.stage({ORDERS: batch(change(1), change(2))})
    session.mark_applied_through([ORDERS], at(1))
    again = session.stage({ORDERS: batch(change(1), change(2, after=b"{}"), change(3))})
    later = session.stage({ORDERS: batch(change(4)), LINES: batch(change(4))})
    assert [(one.added, one.duplicates) for one in (first[ORDERS], again[ORDERS])] == [
        (2, 0),
        (1, 2),
    ]
    assert (later[ORDERS].added, later[LINES].added) == (1, 1)
    assert read_one(session, ORDERS) == [change(2), change(3), change(4)]
    assert rows(url, f"select count(*) from {NAME} where applied") == [(1,)]


def test_of_repeats_in_a_batch_the_last_one_counts(session: PostgresStagingSession) -> None:
    """A repeat has the same time and key; another time or key is another mutation."""
    sent = [change(2, after=b"{}"), change(1), change(2, key=2), change(2)]
    found = session.stage({ORDERS: batch(*sent)})
    assert (found[ORDERS].added, found[ORDERS].duplicates) == (3, 1)
    assert read_one(session, ORDERS) == [change(1), change(2), change(2, key=2)]


def test_a_conflict_in_one_table_leaves_none_half_staged(
    session: PostgresStagingSession, url: str
) -> None:
    """The copies of a request are one transaction, and so is the second, slower attempt."""
    session.stage({ORDERS: batch(change(1))})
    session.stage({LINES: batch(change(1)), ORDERS: batch(change(1))})
    assert len(read_one(session, LINES)) == len(read_one(session, ORDERS)) == 1
    before = rows(url, "select count(*) from public._shop_public_order_lines")
    long = Mutation(time=at(9), key=f'["{_random_text()}"]', after=b"{}")
    with pytest.raises(KeyTooLong, match="a key is too long"):
        session.stage({LINES: batch(change(2)), ORDERS: batch(long)})
    assert rows(url, "select count(*) from public._shop_public_order_lines") == before


def _random_text() -> str:
    """Return text that does not fit into a page of an index with any compression."""
    return "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(4000))


def test_an_empty_key_is_refused(session: PostgresStagingSession) -> None:
    """The whole request is refused."""
    with pytest.raises(KeyEmpty, match="empty key"):
        session.stage({ORDERS: batch(change(1), Mutation(time=at(2), key="", after=b"{}"))})
    assert read_one(session, ORDERS) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_slices_are_whole_times_in_order(session: PostgresStagingSession, limit: int) -> None:
    """No time is in two slices, missing or early, however small the pages are."""
    orders = [change(n, key) for n in range(1, 9) for key in range(n % 4)]
    lines = [change(n, key) for n in range(0, 12, 3) for key in range(3)]
    session.stage({ORDERS: batch(*orders), LINES: batch(*lines)})
    found = read_all(session, ORDERS, LINES, after=at(0), through=at(8), limit=limit)
    ends = [part.through for part in found]
    assert ends == sorted(set(ends))
    assert ends[-1] == at(8)
    for table, sent in ((ORDERS, orders), (LINES, lines)):
        seen: list[Mutation] = []
        low = at(0)
        for part in found:
            here = list(mutations_of(part.rows[table])) if table in part.rows else []
            assert all(low < one.time <= part.through for one in here)
            seen += here
            low = part.through
        assert seen == [one for one in sent if at(0) < one.time <= at(8)]
    assert sum(1 for part in found if part.rows) <= len(list(groupby(ends)))


def test_a_slice_without_rows_says_how_far_it_goes(session: PostgresStagingSession) -> None:
    """The last slice ends at the requested time, even if there are no rows."""
    (only,) = read_all(session, ORDERS, through=at(5))
    assert (only.through, only.rows) == (at(5), {})


def test_the_session_serves_between_slices(session: PostgresStagingSession) -> None:
    """Rows may be marked while others are read."""
    session.stage({ORDERS: batch(*(change(n) for n in range(1, 8)))})
    low, seen = ZERO, 0
    for part in session.read([ORDERS], ZERO, at(7), limit=2):
        seen += session.mark_applied_through([ORDERS], part.through, after=low)[ORDERS]
        low = part.through
    assert seen == 7
    assert read_one(session, ORDERS) == []


def test_marked_rows_are_marked_once(session: PostgresStagingSession, url: str) -> None:
    """The time of the first marking stays; after bounds the range begins at its lower end."""
    session.stage({ORDERS: batch(*(change(n) for n in range(1, 6)))})
    assert session.mark_applied_through([ORDERS], at(2)) == {ORDERS: 2}
    first = rows(url, f"select max(applied_at) from {NAME}")
    found = session.mark_applied_through([ORDERS], at(5), after=at(3))
    assert found == {ORDERS: 2}
    assert rows(url, f"select nanos from {NAME} where not applied") == [(at(3).nanos,)]
    again = rows(url, f"select max(applied_at) from {NAME} where nanos <= {at(2).nanos}")
    assert again == first


def test_a_row_that_was_never_staged_is_marked_by_a_stub(
    session: PostgresStagingSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stubs are written in parts of 100,000; staged rows keep their content."""
    monkeypatch.setattr(mutations, "MARK_ROWS_MAX", 2)
    session.stage({ORDERS: batch(change(1))})
    session.mark_applied(ORDERS, batch(change(1, after=b"{}"), change(2), change(3)))
    found = rows(url, f"select mut, applied, applied_at is not null from {NAME} order by nanos")
    stub = b'{"__stub__":true}'
    assert found == [(change(1).after, True, True), (stub, True, True), (stub, True, True)]


def test_applied_proposals_are_left_out(session: PostgresStagingSession) -> None:
    """A proposal is left out if time and key match; the others keep their order."""
    session.stage({ORDERS: batch(change(1), change(2))})
    session.mark_applied(ORDERS, batch(change(1), change(3, key=9)))
    proposed = [change(3), change(2), change(1), change(1, key=2), change(3, key=9)]
    left = session.unapplied_of(ORDERS, batch(*proposed))
    assert list(mutations_of(left)) == [change(3), change(2), change(1, key=2)]


def test_what_waits_is_staged_behind_what_waits(session: PostgresStagingSession) -> None:
    """Only rows whose key has an unapplied mutation are staged; the others are returned."""
    session.stage({ORDERS: batch(change(1, key=1), change(1, key=2))})
    session.mark_applied(ORDERS, batch(change(1, key=2)))
    proposed = [change(2, key=3), change(2, key=1), change(2, key=2), change(3, key=1)]
    left = session.stage_if_exists(ORDERS, batch(*proposed))
    assert list(mutations_of(left)) == [change(2, key=3), change(2, key=2)]
    assert read_one(session, ORDERS) == [change(1), change(2), change(3)]


def test_retired_rows_are_applied_and_older(
    session: PostgresStagingSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are retired part by part, even within one time; unapplied rows stay."""
    monkeypatch.setattr(mutations, "RETIRE_ROWS_MAX", 3)
    many = [change(1, key) for key in range(8)]
    session.stage({ORDERS: batch(*many, change(2), change(3), change(4))})
    session.mark_applied(ORDERS, batch(*many, change(3), change(4)))
    assert session.stale_count(ORDERS, at(4)) is None  # not before all due rows are retired
    parts = [session.retire(ORDERS, at(4)) for _ in range(5)]
    assert parts == [3, 3, 3, 0, 0]
    left = rows(url, f"select nanos, applied from {NAME} order by nanos")
    assert left == [(at(2).nanos, False), (at(4).nanos, True)]
    assert session.retire(ORDERS, at(4)) == 0
    assert session.retire(ORDERS, at(5)) == 1
    assert session.stale_count(ORDERS, at(2)) == 0
    assert session.stale_count(ORDERS, at(3)) == 1


def test_keys_that_were_applied_out_of_order_are_counted(
    session: PostgresStagingSession, url: str
) -> None:
    """The order of times is the order of application for each key; unapplied rows come last."""
    session.stage({ORDERS: batch(*(change(n, key) for n in (1, 2, 3) for key in (1, 2)))})
    session.mark_applied_through([ORDERS], at(1))
    session.mark_applied_through([ORDERS], at(2))
    assert session.inconsistent_count(ORDERS) == 0
    rows(url, f"update {NAME} set applied_at = '2001-01-01' where key = '[2]' and applied_at in"
         f" (select max(applied_at) from {NAME})")  # fmt: skip
    assert session.inconsistent_count(ORDERS) == 1
    assert session.inconsistent_count(ORDERS, after=at(0), limit=4) == 1
    assert session.inconsistent_count(ORDERS, after=at(1)) == 0
    assert session.inconsistent_count(ORDERS, limit=2) == 0


def test_a_dropped_mutation_table_is_made_again(session: PostgresStagingSession, url: str) -> None:
    """The call that finds it missing fails, and says that a retry helps."""
    session.stage({ORDERS: batch(change(1))})
    rows(url, f"drop table {NAME}")
    with pytest.raises(MutationTableGone) as caught:
        session.stage({ORDERS: batch(change(2))})
    assert caught.value.retry == "backoff"
    session.stage({ORDERS: batch(change(3))})
    assert read_one(session, ORDERS) == [change(3)]


def test_marking_writes_no_index(session: PostgresStagingSession, url: str) -> None:
    """No index has `applied`, and pages have room: the marked version stays beside the first."""
    session.stage({ORDERS: batch(*(change(1, key) for key in range(2000)))})
    session.mark_applied_through([ORDERS], at(1))
    rows(url, "select pg_stat_force_next_flush()")
    name = NAME.partition(".")[2]
    query = f"select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = '{name}'"
    updated, hot = (0, 0)
    for _ in range(100):
        ((updated, hot),) = rows(url, query)
        if updated:
            break
        rows(url, "select pg_sleep(0.1)")
    assert updated == 2000
    assert hot > 1980


def test_consumers_read_what_is_applied_and_hear_of_what_is_retired(
    session: PostgresStagingSession, url: str
) -> None:
    """Consumers read stubs, too; another session knows the deleted range, which never shrinks."""
    session.stage({ORDERS: batch(*(change(number, number) for number in range(1, 6)))})
    session.mark_applied_through([ORDERS], at(4))
    session.mark_applied(ORDERS, batch(change(6, 6)))
    for limit in (1, 100):
        found = list(session.read([ORDERS], at(1), at(9), limit=limit, with_applied=True))
        images = [
            one for part in found for some in part.rows.values() for one in mutations_of(some)
        ]
        assert [one.time for one in images] == [at(number) for number in range(2, 7)]
        assert images[-1].after == STUB
    assert session.retired_before(ORDERS) == ZERO
    session.retire(ORDERS, at(4))
    with PostgresStaging(url).open_session() as other:
        assert other.retired_before(ORDERS) == at(4)
        other.retire(ORDERS, at(3))
    assert session.retired_before(ORDERS) == at(4)
    assert session.retired_before(LINES) == ZERO
