"""Single tables of a running pipeline: customers who never stop writing, and the commands.

Not here: the pipeline itself (`harness/pipelines/end_to_end.py`).
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import psycopg

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import Ran, penstock

NUMBERS = itertools.count(1)  # keys of new rows, over all tests of a process
SETUP = """
    create table item (id int primary key, n int not null, t text);
    insert into item select g, 0, 'item ' || g from generate_series(1, 3000) as g;
    create table bag (v int, t text);
    alter table bag replica identity full;
    insert into bag select g % 100, 'bag' from generate_series(1, 500) as g;
    create table other (id int generated always as identity primary key, at timestamptz);
"""
LATE = """
    create table {name} (id int primary key, n int not null, t text);
    insert into {name} select g, 0, 'late ' || g from generate_series(1, 3000) as g;
    create index on {name} (n);
"""


class Customers:
    """A thread that writes to these tables all the time."""

    def __init__(self, pair: Pair, *tables: str) -> None:
        self._url = pair.source_url
        self.tables = list(tables)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with psycopg.connect(self._url) as connection:
            while not self._stop.wait(0.01):
                number = next(NUMBERS)
                connection.execute("insert into other (at) values (now())")
                connection.execute(f"insert into bag values ({number % 7}, 'new')".encode())
                connection.execute(
                    f"delete from bag where ctid in (select ctid from bag where v = {number % 9} "
                    "limit 1)".encode()
                )
                for table in list(self.tables):
                    key = number * 7 % 3000 + 1
                    connection.execute(f"update {table} set n = n + 1 where id = {key}".encode())
                    connection.execute(
                        f"insert into {table} values ({10_000 + number}, 1, 'new')".encode()
                    )
                    connection.execute(f"delete from {table} where id = {key + 1}".encode())
                connection.commit()

    def __enter__(self) -> Customers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


def request(pair: Pair, what: str, *names: str) -> Ran:
    """Run one of the commands."""
    ran = penstock("table", what, pair.path, *names, "--json")
    assert ran.code == 0, ran.err
    return ran


def line(pair: Pair, name: str) -> dict[str, Any]:
    """Return a table's line of `penstock table ls`."""
    ran = penstock("table", "ls", pair.path, "--json")
    assert ran.code == 0, ran.err
    lines = [json.loads(text) for text in ran.out.splitlines()]
    return next((one for one in lines if one["table"] == name), {})


def reach(pair: Pair, name: str, state: str) -> None:
    """Wait until a table has reached a state, and is not changing to another one."""
    assert pair.process is not None

    def there() -> bool:
        found = line(pair, name)
        assert not found.get("error"), found
        return found.get("state") == state and not found["wanted"]

    pair.process.until(there, f"{name} is {state}")


def count(pair: Pair, query: str) -> int:
    """Return a number from the target."""
    row = pair.target.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
