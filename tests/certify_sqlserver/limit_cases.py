"""Cases of limits and locks: parameters, keys, bulk copy, waiting, deadlocks."""

from __future__ import annotations

import threading

import pyarrow as pa

from certify_sqlserver.case import Bench, case, operations

ITEM = "id int NOT NULL PRIMARY KEY, n int, v varchar(20)"


@case("parameters")
def many_parameters(bench: Bench) -> None:
    """A statement with 2,000 parameters, and one with 2,101."""

    def make_query(count: int) -> str:
        return f"SELECT COUNT(*) FROM dbo.c_params WHERE id IN ({', '.join('?' * count)})"

    bench.table("c_params", ITEM, is_captured=False)
    bench.sql("INSERT INTO dbo.c_params VALUES (5, 1, 'a')")
    few = bench.value(make_query(2000), *range(2000))
    number = bench.error_number(make_query(2101), *range(2101))
    bench.holds("parameters", few == 1 and number, (few, number))


@case("long-keys")
def long_keys(bench: Bench) -> None:
    """A clustered key of 900 bytes, and a row with a longer one."""
    bench.table("c_long", "k varchar(1000) NOT NULL PRIMARY KEY", is_captured=False)
    fits = bench.error_number("INSERT INTO dbo.c_long VALUES (REPLICATE('x', 900))")
    number = bench.error_number("INSERT INTO dbo.c_long VALUES (REPLICATE('y', 901))")
    bench.holds("long-keys", (fits, number) == (0, 1946), (fits, number))


@case("bulk-copy", "bulk-session", "row-order")
def bulk_copy(bench: Bench) -> None:
    """The driver's bulk copy, beside an open transaction that is rolled back."""
    bench.table("c_bulk", ITEM)
    data = pa.table(
        {
            "id": pa.array(range(100), pa.int32()),
            "n": pa.array([1] * 100, pa.int32()),
            "v": pa.array(["a"] * 100, pa.string()),
        }
    )
    session = bench.open()
    session.begin()
    copied = session.bulk_copy("[dbo].[c_bulk]", data)
    session.rollback()
    rows = bench.changes("c_bulk")
    left = bench.value("SELECT COUNT(*) FROM dbo.c_bulk")
    bench.holds("bulk-session", (copied, left) == (100, 100), (copied, left))
    bench.holds(
        "bulk-copy",
        operations(rows) == [2] * 100 and sorted(row["id"] for row in rows) == list(range(100)),
        operations(rows)[:5],
    )
    places = {(row["__$start_lsn"], row["__$seqval"]) for row in rows}
    bench.holds("row-order", len(places) == 100, len(places))


@case("lock-timeout")
def lock_timeout(bench: Bench) -> None:
    """A session waits for a row that another one has changed."""
    bench.table("c_locked", ITEM, is_captured=False)
    bench.sql("INSERT INTO dbo.c_locked VALUES (1, 1, 'a')")
    holder, waiter = bench.open(), bench.open()
    holder.execute("BEGIN TRAN; UPDATE dbo.c_locked SET n = 2")
    waiter.execute("SET LOCK_TIMEOUT 300")
    number = bench.error_number("UPDATE dbo.c_locked SET n = 3", session=waiter)
    holder.rollback()
    bench.holds("lock-timeout", number == 1222, number)


@case("deadlock")
def deadlock(bench: Bench) -> None:
    """Two sessions wait for each other."""
    bench.table("c_dead", ITEM, is_captured=False)
    bench.sql("INSERT INTO dbo.c_dead VALUES (1, 1, 'a'), (2, 1, 'a')")
    sessions = bench.open(), bench.open()
    seen: list[int] = []

    def update(at: int, number: int) -> None:
        text = f"UPDATE dbo.c_dead SET n = n + 1 WHERE id = {number}"
        seen.append(bench.error_number(text, session=sessions[at]))

    for at, session in enumerate(sessions):
        session.begin()
        update(at, at + 1)
    waiting = threading.Thread(target=update, args=(0, 2))
    waiting.start()
    update(1, 1)
    waiting.join(60)
    for session in sessions:
        session.rollback()
    bench.holds("deadlock", sorted(seen) == [0, 0, 0, 1205], seen)
