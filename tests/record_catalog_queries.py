"""Recorder of the queries that real clients send real servers: tests/data/catalog/queries.jsonl.

Clients are psql, servers that subscribe, pgjdbc and psycopg. Each line has a statement, its
parameters, and the clients with the versions of the servers that they asked. Oids of tables are
replaced by their names. Java's classes come from Maven's local repository; with a folder of jars,
made with `catalog/pom.xml`, Debezium is recorded too: `record_catalog_queries.py FOLDER`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psycopg
import psycopg.types.composite
import psycopg.types.enum
import psycopg.types.range

from harness.servers.catalog_tables import NAMES, TABLES, publications
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.postgres import Server

ROOT = Path(__file__).resolve().parent
OUT = ROOT / "data/catalog/queries.jsonl"
VERSIONS = (15, 16, 18)
REPOSITORY = Path.home() / ".m2/repository"
PGJDBC = REPOSITORY / "org/postgresql/postgresql/42.7.7/postgresql-42.7.7.jar"
ECJ = REPOSITORY / "org/eclipse/jdt/ecj/3.33.0/ecj-3.33.0.jar"
PSQL = (
    *(
        r"\d",
        r"\dt",
        r"\dt public.*",
        r"\dt *.*",
        r"\d t",
        r"\d+ t",
        r"\d+ u",
        r"\d public.nothing",
    ),
    *(r'\d+ s2."Odd Name"', r"\d+ s2.by_index", r"\d t_pkey", r"\d+ wide", r"\d s2.*"),
    *(r"\dRp", r"\dRp+", r"\dRp+ p", r"\l", r"\du", r"\dn", r"\dn+", r"\di", r"\dv", r"\ds"),
    *(r"\dg", r"\dT", r"\conninfo", r"\encoding", r"\dx", r"\df", r"\dRs", r"\drds", r"\db"),
)
PARAMETERS = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")


def statements(log: Path) -> Iterator[tuple[str, str, list[str | None]]]:
    """Yield application, statement and parameters of each line of a JSON log."""
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        message = entry.get("message", "")
        kind, _, text = message.partition(": ")
        if kind != "statement" and not kind.startswith("execute "):
            continue
        found: list[str | None] = []
        for _, value in PARAMETERS.findall(entry.get("detail", "")):
            found.append(None if value == "NULL" else value[1:-1].replace("''", "'"))
        yield entry.get("application_name", ""), text, found


class Recorder:
    """One real server whose statements are recorded."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.restart_with(
            logging_collector="on",
            log_destination="jsonlog",
            log_statement="all",
            log_directory="recorded",
            log_rotation_age="0",
            wal_level="logical",
        )
        self.url = server.make_database("shop")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(TABLES)
            for text in publications(server.version).values():
                connection.execute(text)
            self.names = {f"{oid}": name for oid, name in connection.execute(NAMES).fetchall()}
        self._marks = 0

    def record(self, client: str, run: object) -> Iterator[dict[str, object]]:
        """Yield the queries of a client while it runs."""
        self._marks += 1
        mark = f"select 'mark {self._marks}'"
        self.server.execute(mark)
        run()  # type: ignore[operator]
        self.server.execute(f"select 'end {self._marks}'")
        time.sleep(0.5)
        (log,) = (self.server.directory / "recorded").glob("*.json")
        seen, inside = set(), False
        for _, text, parameters in statements(log):
            if text == mark:
                inside = True
            elif text == f"select 'end {self._marks}'":
                inside = False
            elif inside:
                shown = re.sub(r"\b(\d{5})\b", self._replace_name, text)
                values = [
                    None if v is None else re.sub(r"^(\d{5})$", self._replace_name, v)
                    for v in parameters
                ]
                key = (shown, tuple(values))
                if key not in seen:
                    seen.add(key)
                    yield {
                        "client": client,
                        "server": self.server.version,
                        "sql": shown,
                        "parameters": values,
                    }

    def _replace_name(self, match: re.Match[str]) -> str:
        name = self.names.get(match[1])
        return match[1] if name is None else "{" + name + "}"


def psql(bindir: Path, url: str) -> None:
    """Run the backslash commands of psql."""
    commands = [word for command in PSQL for word in ("-c", command)]
    subprocess.run([str(bindir / "psql"), "-X", *commands, url], check=True, capture_output=True)


def subscribe(subscriber: Server, publisher: Server, url: str, publication: str) -> None:
    """Create a subscription with its initial copy, refresh it and drop it."""
    target = subscriber.make_database("sub")
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(TABLES)
        names = ", ".join(f"{n}" for n in publication.split(","))
        connection.execute(f"create subscription s connection '{url}' publication {names}")
        for _ in range(600):
            row = connection.execute(
                "select count(*) from pg_subscription_rel where srsubstate <> 'r'"
            ).fetchone()
            if row and row[0] == 0:
                break
            time.sleep(0.1)
        connection.execute("alter subscription s refresh publication")
        connection.execute("drop subscription s")
    subscriber.drop_database(target)


def java(folder: Path, classes: str, name: str, *arguments: str) -> None:
    """Compile and run a Java program of tests/catalog."""
    source = ROOT / "catalog" / f"{name}.java"
    compiler = ["java", "-jar", str(ECJ), "-17", "-nowarn", "-cp", classes, "-d", str(folder)]
    subprocess.run([*compiler, str(source)], check=True)
    subprocess.run(
        ["java", "-cp", f"{folder}:{classes}", name, *arguments], check=True, capture_output=True
    )


def metadata(folder: Path, url: str) -> None:
    """Run JDBC's queries of a catalogue."""
    parts = urlsplit(url)
    address = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    java(
        folder,
        str(PGJDBC),
        "Metadata",
        f"{address}?user={parts.username}&password={parts.password}",
    )


def follow(folder: Path, jars: Path, url: str) -> None:
    """Run Debezium's connector: it creates a publication and a slot and takes a snapshot of three
    rows.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into t (id) values (1), (2)")
        connection.execute("insert into u (a) values (1)")
    parts = urlsplit(url)
    address = (parts.hostname, parts.port, parts.username, parts.password, parts.path[1:])
    java(
        folder,
        ":".join(map(str, sorted(jars.glob("*.jar")))),
        "Follow",
        *(str(part) for part in address),
        *("dbz_made", "dbz", "initial", "filtered", "3", str(folder / f"offsets_{parts.port}")),
        r"public\.t,public\.u,s2\..*",
    )


def driver(url: str) -> None:
    """Run the queries that psycopg itself sends."""
    with psycopg.connect(url) as connection:
        psycopg.types.TypeInfo.fetch(connection, "inet")
        psycopg.types.enum.EnumInfo.fetch(connection, "nothing_like_it")
        psycopg.types.composite.CompositeInfo.fetch(connection, "t")
        psycopg.types.range.RangeInfo.fetch(connection, "int4range")
        connection.rollback()
        connection.execute("savepoint a")
        connection.execute("rollback to savepoint a")


def main(jars: Path | None) -> None:
    """Record all clients; Debezium with its jars only."""
    lines: list[dict[str, object]] = []
    with ExitStack() as stack, TemporaryDirectory() as folder:
        servers = {
            version: Server(embedded=stack.enter_context(EmbeddedPostgres(major=version)))
            for version in VERSIONS
        }
        for server in servers.values():
            recorder = Recorder(server)
            for client in VERSIONS:
                bindir = servers[client].bindir
                lines += recorder.record(
                    f"psql {client}", lambda b=bindir, r=recorder: psql(b, r.url)
                )
            lines += recorder.record("pgjdbc", lambda r=recorder: metadata(Path(folder), r.url))
            if jars is not None:
                lines += recorder.record(
                    "Debezium", lambda r=recorder: follow(Path(folder), jars, r.url)
                )
            lines += recorder.record("psycopg", lambda r=recorder: driver(r.url))
            for client, subscriber in servers.items():
                if subscriber is server:
                    continue
                for publication in ("p, ins", "few", "part"):
                    lines += recorder.record(
                        f"subscriber {client}",
                        lambda s=subscriber, r=recorder, p=publication: subscribe(
                            s, r.server, r.url, p
                        ),
                    )
    unique: dict[str, dict[str, set[object]]] = {}
    for line in lines:
        key = json.dumps([line["sql"], line["parameters"]])
        found = unique.setdefault(key, {})
        found.setdefault(f"{line['client']}", set()).add(line["server"])
    text = "".join(
        json.dumps([*json.loads(key), {c: sorted(v) for c, v in found.items()}]) + "\n"
        for key, found in unique.items()
    )
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
