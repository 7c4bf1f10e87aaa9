"""`penstock stage` with a feed that tests post, viewed in a browser."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from plugins.postgres import Server

TABLES = """
    create table orders (id int primary key, note text);
    create table parent (id int primary key, n int);
    create table child (id int primary key, parent_id int references parent (id), n int);
    create table replicator_dlq (dlq_name text, source_nanos int8, source_logical int8,
                                 data_after json, data_before json);
    insert into replicator_dlq values ('late', 1, 1, '{}', 'null')
"""
FILE = """
[pipeline]
name = "shop"
directory = "{name}"
[staging]
url = "{staging}"
[stage]
listen = "127.0.0.1:0"
authentication = "off"
mode = "{mode}"
leaseSeconds = 5
[target]
url = "{target}"
"""


class StagedShop:
    """A staging database, a target, and files of instances between them."""

    def __init__(self, folder: Path, server: Server) -> None:
        """Create both databases."""
        self._folder, self._server = folder, server
        self.staging = server.make_database("staging")
        self.target = server.make_database("shop")
        self.database = urlsplit(self.target).path.lstrip("/")
        self.schema = f"{self.database}.public"
        self.run(TABLES)

    def file(self, name: str, mode: str = "bestEffort") -> Path:
        """Write the file of an instance, with a directory of its own."""
        path = self._folder / f"{name}.toml"
        text = FILE.format(name=name, staging=self.staging, target=self.target, mode=mode)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL in the target."""
        with psycopg.connect(self.target, autocommit=True) as connection:
            cursor = connection.execute(sql)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def post(self, url: str, body: dict[str, Any]) -> None:
        """Send a request of the feed; it must be accepted."""
        place = f"{url}/{self.database}/public"
        request = urllib.request.Request(place, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def rows(
        self, url: str, table: str, rows: Sequence[dict[str, Any]], *, age_s: float = 0
    ) -> None:
        """Send rows of a table, committed so long ago, each a nanosecond after the previous one."""
        first = time.time_ns() - round(age_s * 1e9)
        payload = [
            {
                "after": row,
                "key": [row["id"]],
                "topic": table,
                "updated": f"{first + number}.0000000000",
            }
            for number, row in enumerate(rows)
        ]
        self.post(url, {"payload": payload, "length": len(payload)})

    def resolve(self, url: str, *, age_s: float = 0) -> None:
        """Resolve everything up to so long ago."""
        self.post(url, {"resolved": f"{time.time_ns() - round(age_s * 1e9)}.0000000000"})

    def close(self) -> None:
        """Drop both databases."""
        self._server.drop_database(self.staging)
        self._server.drop_database(self.target)
