"""A busy shop and its pipeline, viewed in a browser."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from harness.pipelines.end_to_end import Pair
from plugins.postgres import Server

TABLES = """
    create table customer (id int primary key, name text, at timestamptz default now());
    create table product (id int primary key, title text not null, price numeric(10, 2));
    create table orders (id bigserial primary key, customer int, note text);
    create table payment (id bigserial primary key, orders bigint, amount numeric(10, 2));
    create table visit (page text, seconds int);
    alter table visit replica identity full;
    create table counted (id int primary key, note text);
    create table kept (id int primary key, note text);
    insert into customer select n, md5(n::text) from generate_series(1, 5000) as n;
    insert into product select n, 'thing ' || n, n / 7.0 from generate_series(1, 300) as n;
    insert into orders (customer, note)
    select n % 5000, repeat(md5(n::text), 4) from generate_series(1, 120000) as n;
    insert into payment (orders, amount) select n, n % 900 from generate_series(1, 40000) as n;
    insert into visit select 'page ' || n % 40, n % 300 from generate_series(1, 2000) as n;
    insert into kept select n, 'note ' || n from generate_series(1, 50) as n
"""
ROUND = """
    insert into orders (customer, note) select %(n)s %% 5000, 'new' from generate_series(1, 3);
    insert into visit values ('page ' || %(n)s %% 40, 3);
    update customer set name = 'n' || %(n)s where id = %(n)s %% 5000 + 1;
    delete from orders where id = %(n)s and %(n)s %% 4 = 0
"""
PAUSE_S = 0.05


class Shop:
    """Two databases, a pipeline between them, and customers who start on request."""

    def __init__(self, folder: Path, server: Server, *, slot: str = "web_shop") -> None:
        """Create and fill it; nothing runs yet. slot: a name that is unique on its server."""
        extractor = {"replicationSlot": slot}
        sections = {"changeExtractor": extractor}
        self.pair = Pair(folder, server, tables=["public.*"], sections=sections)
        self.pair.run(TABLES)
        self._closing = threading.Event()
        self._customers: threading.Thread | None = None

    def let_customers_in(self) -> None:
        """Write into the source, some twenty transactions a second, until the end."""
        self._customers = threading.Thread(target=self._buy, name="customers", daemon=True)
        self._customers.start()

    def _buy(self) -> None:
        with psycopg.connect(self.pair.source_url) as connection:
            number = 0
            while not self._closing.wait(PAUSE_S * (1 + (number // 200) % 3)):
                number += 1
                for statement in ROUND.split(";"):
                    connection.execute(statement.encode(), {"n": number})
                connection.commit()

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        if self._customers is not None:
            self._customers.join(30)
        self.pair.close()
