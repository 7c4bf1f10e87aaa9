"""The demo's shop and its customers: a seeded stream of transactions on the source.

The same seed gives the same transactions in the same order; only how many of them fit into the
time given depends on the machine.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import psycopg

from penstock.engines.postgres.connect import connect, quote, server_errors, statement
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.model import TableName
from penstock.ports.demo import DemoServer, DemoWorkload, WorkloadCounts, WorkloadOptions

DATABASE = "shop"
EXAMPLE = TableName("public", "purchase")
LAKE_CHOICES = {"public.Gift Card.valid_to dates out of range": "text"}  # some are infinity
SEED = 20_240_229
FIRST_PURCHASE = 1_000_000
PRODUCT_COUNT = 400
CUSTOMER_COUNT = 5_000
COUPON_COUNT = 1_000
LARGE_TRANSACTION_ROWS = 20_000
RATE_WINDOW_S = 0.05  # the pace is kept over stretches of this length

OPENED_AT = datetime(2025, 1, 1, tzinfo=UTC)

NEW_PURCHASE = """
    insert into purchase (id, customer_id, state, placed_at, gift, note)
    values (%(id)s, %(customer)s, 'new', %(at)s, %(gift)s, %(note)s)
"""
NEW_LINE = """
    insert into purchase_line (purchase_id, line, sku, quantity, unit_price)
    select %(id)s, %(line)s, sku, %(quantity)s, price
      from product
     where sku = %(sku)s
"""
TAKE_FROM_STOCK = """
    update stock
       set quantity = case when quantity < %(quantity)s then 1000 else quantity - %(quantity)s end
     where warehouse = %(warehouse)s and sku = %(sku)s
"""
NEW_PAYMENT = """
    insert into payment (id, paid_on, purchase_id, amount, method)
    select %(id)s, %(on)s, %(id)s, coalesce(sum(total), 0), %(method)s
      from purchase_line
     where purchase_id = %(id)s
"""
VIEW_PAGE = """
    insert into page_view (address, page, viewed_at, stayed)
    values (%(address)s, %(page)s, %(at)s, make_interval(secs => %(seconds)s))
"""
FORGET_VIEWS = """
    delete from page_view
     where ctid = (select ctid from page_view where page = %(page)s limit 1)
"""
LENGTHEN_VIEWS = """
    update page_view
       set stayed = coalesce(stayed, interval '0') + interval '1 second'
     where ctid in (select ctid from page_view where page = %(page)s limit 2)
"""
NEW_DESCRIPTION = """
    update product
       set description = (select string_agg(md5(sku || %(salt)s || part), '')
                            from generate_series(1, 400) part)
     where sku = %(sku)s
"""
NEW_RATES = """
    insert into exchange_rate
    select currency, 0.5 + n * %(factor)s, %(at)s
      from unnest(array['EUR', 'USD', 'GBP', 'JPY', 'CHF', 'SEK', 'PLN', 'NOK'])
           with ordinality as c (currency, n)
"""
IMPORT_VIEWS = """
    insert into page_view
    select '172.16.0.1', '/import/' || n %% 100, timestamp '2025-01-01' + n * interval '1 second',
           null
      from generate_series(1, %(count)s) n
"""
ADD_POINTS = "alter table customer add column points integer not null default 100"


@dataclass(slots=True)
class _State:
    """Facts that customers remember between transactions."""

    chance: random.Random = field(default_factory=lambda: random.Random(SEED))  # noqa: S311 - a plot, not a secret
    next_purchase: int = FIRST_PURCHASE
    step: int = 0
    renamed: dict[int, str] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the shop's own clock: a second for each transaction."""
        return OPENED_AT + timedelta(seconds=self.step)

    def sku(self) -> str:
        return f"sku-{self.chance.randint(1, PRODUCT_COUNT):04d}"

    def recent_purchase(self) -> int:
        return self.chance.randint(FIRST_PURCHASE, max(FIRST_PURCHASE, self.next_purchase - 1))


Shop = psycopg.Connection[Any]
Action = Callable[["_Customer"], None]


class _Customer:
    """Connection on which the actions below run. It counts the rows that they change."""

    def __init__(self, connection: Shop, counts: WorkloadCounts, state: _State) -> None:
        self.connection = connection
        self.counts = counts
        self.state = state

    def run(self, text: str, values: Mapping[str, Any] | None = None) -> None:
        cursor = self.connection.execute(statement(text), values)
        self.counts.rows += max(cursor.rowcount, 0)


def _buy(customer: _Customer) -> None:
    state, chance = customer.state, customer.state.chance
    purchase, state.next_purchase = state.next_purchase, state.next_purchase + 1
    customer.run(
        NEW_PURCHASE,
        {
            "id": purchase,
            "customer": chance.randint(1, CUSTOMER_COUNT),
            "at": state.now(),
            "gift": chance.choice([True, False, None]),
            "note": chance.choice([None, "", "leave it at the door", "tab\there, 'quotes' too"]),
        },
    )
    for line in range(1, chance.randint(2, 5)):
        sku, quantity = state.sku(), chance.randint(1, 6)
        customer.run(NEW_LINE, {"id": purchase, "line": line, "sku": sku, "quantity": quantity})
        where = {"warehouse": chance.randint(1, 4), "sku": sku, "quantity": quantity}
        customer.run(TAKE_FROM_STOCK, where)


def _pay(customer: _Customer) -> None:
    state = customer.state
    purchase = {"id": state.recent_purchase()}
    customer.run("update purchase set state = 'paid' where id = %(id)s", purchase)
    customer.run("delete from payment where id = %(id)s", purchase)
    paid = {"on": state.now().date(), "method": state.chance.choice(["card", "transfer"])}
    customer.run(NEW_PAYMENT, {**purchase, **paid})
    change = {
        "change": state.chance.randint(-500, 500) / 100,
        "id": purchase["id"] % CUSTOMER_COUNT,
    }
    customer.run("update customer set balance = balance + %(change)s where id = %(id)s", change)


def _cancel(customer: _Customer) -> None:
    purchase = {"id": customer.state.recent_purchase()}
    customer.run("delete from payment where id = %(id)s", purchase)
    customer.run("delete from purchase where id = %(id)s", purchase)


def _browse(customer: _Customer) -> None:
    chance = customer.state.chance
    for _ in range(chance.randint(1, 4)):
        view = {
            "address": f"10.0.{chance.randint(0, 3)}.{chance.randint(1, 9)}",
            "page": f"/product/{chance.randint(1, 30)}",
            "at": customer.state.now().replace(tzinfo=None),
            "seconds": chance.randint(0, 5),
        }
        customer.run(VIEW_PAGE, view)
    page = {"page": f"/product/{chance.randint(1, 30)}"}
    customer.run(chance.choice([FORGET_VIEWS, LENGTHEN_VIEWS]), page)


def _reprice(customer: _Customer) -> None:
    """Change a price. The long description in the same row does not change, so it is not sent."""
    change = {
        "sku": customer.state.sku(),
        "price": customer.state.chance.randint(100, 90_000) / 100,
    }
    customer.run("update product set price = %(price)s where sku = %(sku)s", change)


def _rewrite(customer: _Customer) -> None:
    salt = f"/{customer.state.step}/"
    customer.run(NEW_DESCRIPTION, {"sku": customer.state.sku(), "salt": salt})


def _rename_coupon(customer: _Customer) -> None:
    """Change a primary key, and use the coupon under its new name in the same transaction."""
    state = customer.state
    number = state.chance.randint(1, COUPON_COUNT)
    before = state.renamed.get(number, f"WELCOME-{number}")
    after = f"AGAIN-{number}-{state.step}"
    state.renamed[number] = after
    names = {"before": before, "after": after}
    customer.run("update coupon set code = %(after)s where code = %(before)s", names)
    customer.run("update coupon set uses = uses + 1 where code = %(after)s", names)


def _swap_cards(customer: _Customer) -> None:
    """Exchange the numbers of two gift cards by way of a third number."""
    first = customer.state.chance.randint(1, 999)
    for before, after in ((first, 0), (first + 1, first), (0, first + 1)):
        numbers = {"before": before, "after": after}
        customer.run(
            'update "Gift Card" set "Nummer" = %(after)s where "Nummer" = %(before)s', numbers
        )


def _review(customer: _Customer) -> None:
    state = customer.state
    values = {
        "sku": state.sku(),
        "customer": state.chance.randint(1, CUSTOMER_COUNT),
        "stars": state.chance.randint(1, 5),
    }
    customer.run("delete from review where customer_id = %(customer)s", values)
    customer.run("insert into review values (%(sku)s, %(customer)s, %(stars)s)", values)


def _new_rates(customer: _Customer) -> None:
    """Empty a small table and fill it again, in one transaction."""
    customer.run("truncate exchange_rate")
    factor = customer.state.chance.randint(1, 900) / 1000
    customer.run(NEW_RATES, {"factor": factor, "at": customer.state.now()})


def _large(customer: _Customer) -> None:
    """Write one transaction of so many rows that the server streams it before it commits."""
    customer.run(IMPORT_VIEWS, {"count": LARGE_TRANSACTION_ROWS})
    customer.run("update customer set tags = tags || '{imported}'::text[] where id % 2 = 0")
    customer.run("delete from page_view where page like '/import/1%'")


ACTIONS: dict[Action, int] = {
    _buy: 40,
    _pay: 20,
    _browse: 25,
    _reprice: 8,
    _cancel: 4,
    _rename_coupon: 4,
    _review: 4,
    _swap_cards: 2,
    _rewrite: 1,
}
RATES_EVERY = 400  # transactions from one TRUNCATE to the next


@contextmanager
def demo_server() -> Iterator[DemoServer]:
    """Start a server with an empty database."""
    # As on servers of users, a commit is in the log of the source when the client hears of it.
    with EmbeddedPostgres(settings={"synchronous_commit": "on"}) as server:
        with (
            connect(server.url(), application_name="penstock demo") as connection,
            server_errors("making the demo's database"),
        ):
            connection.execute(statement(f"create database {quote(DATABASE)}"))
        yield DemoServer(
            url=server.url(DATABASE), port=server.port, shown=f"PostgreSQL {server.version}"
        )


def open_shop(url: str) -> None:
    """Create the shop's tables and fill them, in one transaction. Raises the server's errors."""
    script = (
        resources.files("penstock.engines.postgres.server").joinpath("shop.sql").read_text("utf-8")
    )
    with connect(url, application_name="penstock demo", autocommit=False) as connection:
        with server_errors("filling the demo's shop"):
            connection.execute(statement(script))
            connection.commit()
        connection.autocommit = True
        connection.execute("analyze")


class Workload(DemoWorkload):
    """Customers who keep the shop busy, on a thread of their own, until the time is over or
    `stop()`.

    A context manager: leaving the block stops and joins the thread. `counts` may be read at any
    time. `join()` raises the error that ended the thread.
    """

    def __init__(self, url: str, options: WorkloadOptions | None = None) -> None:
        self._url = url
        self._options = options or WorkloadOptions()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run_guarded, name="demo-workload")
        self.counts = WorkloadCounts()

    def __enter__(self) -> Workload:
        """Start the customers."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send the customers home."""
        self.stop()
        self._thread.join()

    @property
    def running(self) -> bool:
        """Return whether more transactions may follow."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let the transaction in progress be the last one."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the end; raise the workload's error, if it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run_guarded(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error  # raised again by join(), on the thread of our maker

    def _work(self) -> None:
        options, state = self._options, _State()
        started = time.monotonic()
        moments = [
            (
                options.column_added_at * options.duration_s,
                lambda customer: customer.run(ADD_POINTS),
            ),
            (options.large_transaction_at * options.duration_s, _large),
        ]
        with connect(self._url, application_name="penstock demo workload") as connection:
            customer = _Customer(connection, self.counts, state)
            while not self._stop.is_set():
                elapsed_s = time.monotonic() - started
                if elapsed_s >= options.duration_s or state.step == options.transaction_count_max:
                    return
                ahead_s = state.step / options.transactions_per_s_max - elapsed_s
                if ahead_s > RATE_WINDOW_S:
                    self._stop.wait(ahead_s)
                    continue
                action = moments.pop(0)[1] if moments and elapsed_s >= moments[0][0] else None
                self._transact(customer, action or _choose(state))

    def _transact(self, customer: _Customer, action: Action) -> None:
        customer.state.step += 1
        with server_errors("running the demo's workload"), customer.connection.transaction():
            action(customer)
        self.counts.transactions += 1


def _choose(state: _State) -> Action:
    if state.step % RATES_EVERY == RATES_EVERY - 1:
        return _new_rates
    return state.chance.choices(list(ACTIONS), weights=list(ACTIONS.values()))[0]
