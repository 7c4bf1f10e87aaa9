"""A staging database on a real server, and short ways to write a feed's rows."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.model.hlc import Hlc
from penstock.ports.feeds import Mutation, StagedTable, batch_of

ORDERS = StagedTable(("shop", "public"), "orders")
LINES = StagedTable(("shop", "public"), "order_lines")
GROUP = ("shop", "public")
START_NS = 1_700_000_000_000_000_000


def at(number: int, logical: int = 0) -> Hlc:
    """Return the time so many seconds after the start."""
    return Hlc(START_NS + number * 1_000_000_000, logical)


def change(number: int, key: int = 1, logical: int = 0, **more: Any) -> Mutation:
    """Return a change of row `key` at a time."""
    after = more.pop("after", b'{"id": %d, "n": %d}' % (key, number))
    return Mutation(time=at(number, logical), key=f"[{key}]", after=after, **more)


def batch(*mutations: Mutation) -> Any:
    """Return the batch of mutations."""
    return batch_of(mutations)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the result of a DBA's query."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []
