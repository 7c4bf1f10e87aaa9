"""Pipelines from live Ignite nodes into PostgreSQL, and the content of their tables there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from harness.pipelines.end_to_end import LIVELY
from harness.pipelines.pipeline import write_pipeline
from plugins.ignite_live import LiveNode

CHOICES = {
    "nanoseconds": "text",
    "nul characters": "remove",
    "long keys": "error",
    "blanks in keys": "error",
    "not a number": "null",
    "dates out of range": "error",
    "digits": "error",
}


def node_url(node: LiveNode) -> str:
    """Return the URL of a node that can be asked for rows, too."""
    return f"{node.url}&address={node.address}"


def pipeline(folder: Path, source: str, target: str, **options: Any) -> Path:
    """Write a pipeline file that flushes often and needs little of Spark."""
    sections = {
        "changeExtractor": {**LIVELY, **options.pop("extractor", {})},
        "spark": {"master": "local[2]"},
        "target.types": CHOICES,
        **options.pop("sections", {}),
    }
    options.setdefault("tables", ["*", "!place"])  # a key of it lacks a field
    return write_pipeline(folder, source, target, sections=sections, **options)


def people_of(node: LiveNode, cache: str) -> list[tuple[str, str, str]]:
    """Return key, name and age, by a scan of the node."""
    return sorted(
        (str(key[1]), value[3]["name"][1], str(value[3]["age"][1]))
        for key, value, _ in node.scan(cache)
    )


def people_in(url: str, cache: str) -> list[tuple[str | None, ...]]:
    """Return key, name and age in PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as sql:
        if sql.execute("select to_regclass(%s)", (f'public."{cache}"',)).fetchone() == (None,):
            return []
        found = sql.execute(f'select _key::text, name, age::text from public."{cache}"')
        return sorted(found.fetchall())


def rows_in(url: str, table: str) -> int | None:
    """Return the number of rows; None without the table."""
    with psycopg.connect(url, autocommit=True) as sql:
        if sql.execute("select to_regclass(%s)", (f"public.{table}",)).fetchone() == (None,):
            return None
        (found,) = sql.execute(f"select count(*) from public.{table}").fetchone() or (0,)
        return int(found)


@contextmanager
def written_to(node: LiveNode, cache: str, keys: int) -> Iterator[Callable[[], None]]:
    """Put and remove keys of a cache during the block; yield a function that stops this."""
    ended = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        number = 0
        try:
            while not ended.is_set():
                number += 1
                key = number * 7919 % keys
                if number % 3:
                    node.ask("person", cache, key, f"written {number}", number)
                else:
                    node.ask("remove", cache, key)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()

    def end() -> None:
        ended.set()
        writer.join()
        assert not failed

    try:
        yield end
    finally:
        ended.set()
        writer.join()
