"""The demo's shop opens on every server version, and its customers do everything they should."""

from __future__ import annotations

import psycopg
import pytest

from penstock.engines.postgres.server.shop import Workload, open_shop
from penstock.host.errors import StatementFailed
from penstock.ports.demo import WorkloadOptions

CONTENT = """
    select count(*), md5(string_agg(row_text, '' order by row_text))
      from (select 'purchase ' || t::text as row_text from purchase t
            union all select 'line ' || t::text from purchase_line t
            union all select 'coupon ' || t::text from coupon t
            union all select 'product ' || t::text from product t) as everything
"""


def test_shop_has_the_traits_that_the_demo_shows(source_url: str) -> None:
    """The shop has mixed types, a composite key, no key, partitions, TOAST and foreign keys."""
    open_shop(source_url)
    with psycopg.connect(source_url) as connection:

        def value(query: str) -> int:
            row = connection.execute(query).fetchone()  # type: ignore[arg-type]
            assert row is not None
            return int(row[0])

        assert value("select count(*) from pg_tables where schemaname = 'public'") >= 8
        assert value("select count(*) from pg_constraint where contype = 'f'") >= 5
        assert (
            value(
                "select max(cardinality(conkey)) from pg_constraint "
                "where contype = 'p' and connamespace = 'public'::regnamespace"
            )
            == 2
        )
        assert value("select count(*) from pg_class where relkind = 'p'") == 1
        assert value("select count(*) from pg_class where relreplident = 'f'") == 1
        # The descriptions are out of line: the main fork could not hold them.
        assert (
            value(
                "select pg_relation_size(reltoastrelid) from pg_class "
                "where oid = 'product'::regclass"
            )
            > 4_000_000
        )


NEVER = 9.0  # a share of the time that is never reached
CALM = {"column_added_at": NEVER, "large_transaction_at": NEVER, "transactions_per_s_max": 100_000}


def work(url: str, options: WorkloadOptions) -> Workload:
    """Run a whole workload and return it."""
    with Workload(url, options) as workload:
        workload.join()
    return workload


def test_same_seed_gives_the_same_transactions(source_url: str, target_url: str) -> None:
    """Two runs of as many transactions left the same rows."""
    contents = []
    for url in (source_url, target_url):
        open_shop(url)
        workload = work(url, WorkloadOptions(transaction_count_max=900, **CALM))
        assert workload.counts.transactions == 900
        with psycopg.connect(url) as connection:
            contents.append(connection.execute(CONTENT).fetchone())
    assert contents[0] == contents[1]


def test_every_kind_of_change_happens(source_url: str) -> None:
    """The column is added, the large transaction comes, keys change, the small table is created."""
    open_shop(source_url)
    options = WorkloadOptions(
        duration_s=120,
        transaction_count_max=700,  # reached much earlier
        transactions_per_s_max=250,
        column_added_at=0.005,
        large_transaction_at=0.01,
    )
    counts = work(source_url, options).counts
    assert counts.transactions == 700
    assert counts.rows > 20_000
    with psycopg.connect(source_url) as connection:

        def one(query: str) -> object:
            row = connection.execute(query).fetchone()  # type: ignore[arg-type]
            return row[0] if row else None

        assert one("select min(points) from customer") == 100
        assert one("select count(*) from page_view where page like '/import/%'") == 17_800
        assert one("select bool_or(code like 'AGAIN-%') from coupon")
        assert one("select min(updated_at) > '2025-01-01' from exchange_rate")
        assert one("select count(*) from purchase where id >= 1000000 and state = 'paid'")


def test_what_breaks_the_workload_is_raised_by_join(source_url: str) -> None:
    """Customers who cannot work raise an error: a stuck demo must not look healthy."""
    with (
        Workload(source_url, WorkloadOptions(duration_s=5)) as workload,
        pytest.raises(StatementFailed, match="does not exist"),
    ):
        workload.join()
