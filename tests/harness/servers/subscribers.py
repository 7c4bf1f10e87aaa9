"""A pipeline that is served to real subscribers: extractor and server are processes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from harness.servers.engines import Place
from plugins.postgres import Server

PASSWORD = "s3cret"
WAIT_S = 90.0
_numbers = itertools.count(1)


class Served:
    """A source, its pipeline file, and its running processes."""

    def __init__(self, place: Place, folder: Path, *, publications: str = "", **more: Any) -> None:
        os.environ["SERVE_PASSWORD"] = PASSWORD
        self.place, self.folder = place, folder
        self.path = write_pipeline(
            folder,
            place.url,
            None,
            tables=[f"{place.namespace}.*"],
            sections={"changeExtractor": {**LIVELY, **more}},
        )
        entries = publications or f'[serve.publications.p]\ntables = ["{place.namespace}.*"]\n'
        text = '\n[serve]\nlisten = "127.0.0.1:0"\nusers = { repl = "${SERVE_PASSWORD}" }\n'
        self.path.write_text(self.path.read_text() + text + entries)
        self.extractor: Process | None = None
        self.server: Process | None = None
        self.port = 0

    def extract(self) -> Process:
        """Start the extractor, and wait until it has begun."""
        self.extractor = Process(self.path, "extract")
        state = self.folder / "shop" / "log" / "LOG.json"
        self.extractor.until(state.exists, "the log begins")
        return self.extractor

    def serve(self) -> Process:
        """Start the server at its earlier port."""
        if self.port:
            text = self.path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{self.port}")
            self.path.write_text(text)
        server = self.server = Process(self.path, "serve")
        server.until(lambda: server.out, "it listens")
        address = server.events_of("address")[0]
        self.port = int(address.rpartition(":")[2])
        return server

    def connection(self, **more: str) -> str:
        """Return a connection string for libpq."""
        parts = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": "repl",
            "dbname": "shop",
            "password": PASSWORD,
            **more,
        }
        return " ".join(f"{key}={value}" for key, value in parts.items())

    def query_catalog(self, query: str) -> list[tuple[Any, ...]]:
        """Return the catalogue's answer."""
        with psycopg.connect(self.connection(), autocommit=True) as connection:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

    def run_command(self, text: str) -> None:
        """Run a replication command."""
        with psycopg.connect(
            self.connection(replication="database"), autocommit=True
        ) as connection:
            result = connection.pgconn.exec_(text.encode())
            assert result.status != psycopg.pq.ExecStatus.FATAL_ERROR, result.error_message

    def close(self) -> None:
        """End both processes."""
        for process in (self.server, self.extractor):
            if process is not None:
                process.__exit__()


class Subscriber:
    """A database with a subscription to the served log."""

    def __init__(self, server: Server, served: Served, *tables: str) -> None:
        """Make the database; tables are statements that create them."""
        self.server, self.served = server, served
        self.url = server.make_database("subscriber")
        self.database = self.url.rpartition("/")[2]
        self.name = f"sub_{os.getpid()}_{next(_numbers)}"
        if served.place.namespace != "public":
            self.run(f"create schema {served.place.namespace}")
        for statement in tables:
            self.run(statement)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser."""
        return self.server.execute(statement, self.database)

    def subscribe(self, publication: str = "p", *options: str) -> None:
        """Subscribe without a copy of existing rows, unless the options say so."""
        copies = any(one.startswith("copy_data") for one in options)
        wanted = ", ".join(options if copies else ("copy_data = false", *options))
        self.run(
            f"create subscription {self.name} connection '{self.served.connection()}' "
            f"publication {publication} with ({wanted})"
        )

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(0.1)

    def drop(self) -> None:
        """Drop the subscription, which drops its slot, and the database."""
        if self.run(f"select 1 from pg_subscription where subname = '{self.name}'"):
            self.run(f"alter subscription {self.name} disable")
            self.run(f"drop subscription {self.name}")
        self.server.drop_database(self.url)
