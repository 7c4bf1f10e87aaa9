"""Time from commit to visible, with the defaults: 1, 10, 100 and 1,000 transactions a second."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from bench import contenders
from bench.harness import arguments, describe_machine
from bench.pipeline import Running, write_config
from bench.roles import RoleSampler
from bench.svg import Curve, distribution
from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from penstock.engines.mysql import connect as mysql
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

RATES = (1, 10, 100, 1000)
TABLES = 20
LOOK_S = 0.001
DRAIN_S = 120.0
SUBSCRIPTION = "create subscription"
PENSTOCK = "penstock run"


class Session(Protocol):
    """A connection that commits each statement."""

    def run(self, statement: str) -> None:
        """Execute it."""
        ...

    def number(self, query: str) -> int:
        """Return the one number that a query gives; -1 for NULL."""
        ...


class PostgresSession(Session):
    """Session of a PostgreSQL server."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, application_name="bench")
        self._connection.execute("set synchronous_commit = on")

    def run(self, statement: str) -> None:
        self._connection.execute(statement.encode())

    def number(self, query: str) -> int:
        row = self._connection.execute(query.encode()).fetchone()
        return -1 if row is None or row[0] is None else int(row[0])


class MySQLSession(Session):
    """Session of a MySQL or MariaDB server."""

    def __init__(self, url: str) -> None:
        self._connection = mysql.connect(url, application_name="bench")

    def run(self, statement: str) -> None:
        for one in statement.split(";"):
            with self._connection.cursor() as cursor:
                cursor.execute(one)
        self._connection.commit()

    def number(self, query: str) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
        self._connection.commit()  # or the snapshot stays
        return -1 if row is None or row[0] is None else int(row[0])


@dataclass(frozen=True, slots=True)
class Side:
    """A server: its start, its sessions, the name of the database that is copied."""

    server: Any
    session: Any
    database: str
    settings: dict[str, str] = field(default_factory=dict)


SIDES = {
    "postgres": Side(EmbeddedPostgres, PostgresSession, "postgres", {"wal_level": "logical"}),
    "mysql": Side(EmbeddedMySQL, MySQLSession, "shop"),
    "mariadb": Side(EmbeddedMariaDB, MySQLSession, "shop"),
}


def create(side: Side, url: str) -> None:
    """Create the empty tables."""
    session = side.session(url)
    for name in ("ping", *(f"t{number}" for number in range(TABLES))):
        session.run(f"create table {name} (id int primary key, payload varchar(100))")


class Watch(threading.Thread):
    """Thread that notes when each row is first seen in the target: rows arrive in order."""

    def __init__(self, session: Session) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._stopped = threading.Event()
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Look until stopped."""
        last = -1
        while not self._stopped.wait(LOOK_S):
            highest = self._session.number("select max(id) from ping")
            if highest > last:
                last = highest
                self.seen.append((time.monotonic(), highest))

    def until(self, number: int) -> None:
        """Wait for a row, then end."""
        deadline = time.monotonic() + DRAIN_S
        while not self.seen or self.seen[-1][1] < number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"row {number} was not seen in {DRAIN_S} s")
            time.sleep(LOOK_S)
        self._stopped.set()
        self.join()


def measure(writer: Session, reader: Session, numbers: Iterator[int], rate: int, s: float) -> Any:
    """Commit at a rate for so long; return seconds from each COMMIT to its row, and the rate."""
    watch = Watch(reader)
    watch.start()
    committed: list[tuple[float, int]] = []
    began = time.monotonic()
    number = -1
    for turn in range(max(1, int(rate * s))):
        due = began + turn / rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        number = next(numbers)
        writer.run(f"insert into ping values ({number}, 'x')")
        committed.append((time.monotonic(), number))
    took = time.monotonic() - began
    watch.until(number)
    seen = iter(watch.seen)
    at, highest = next(seen)
    found = []
    for when, one in committed:
        while highest < one:
            at, highest = next(seen)
        found.append(max(at - when, 0.0))
    return found, len(committed) / took


def spread(writer: Session, reader: Session, numbers: Iterator[int], count: int) -> list[float]:
    """Commit transactions of 100 changes over 20 tables in turn; return seconds until seen."""
    found = []
    for _ in range(count):
        rows = [next(numbers) for _ in range(100)]
        statements = [
            f"insert into t{at % TABLES} values ({row}, 'x')" for at, row in enumerate(rows)
        ]
        writer.run("; ".join(["begin", *statements, "commit"]))
        began = time.monotonic()
        last = f"select max(id) from t{(len(rows) - 1) % TABLES}"
        while reader.number(last) < rows[-1]:
            time.sleep(LOOK_S)
        found.append(time.monotonic() - began)
        time.sleep(0.1)
    return found


def quantiles(found: Sequence[float]) -> dict[str, float]:
    """Return milliseconds."""
    cuts = statistics.quantiles(found, n=100) if len(found) > 1 else [found[0]] * 99
    named = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(found)}
    return {f"{name}_ms": round(value * 1000, 1) for name, value in named.items()}


def tell(contender: str, what: str, found: Sequence[float], **more: Any) -> None:
    """Print a JSON line, and one for people."""
    told = {"contender": contender, "what": what, "count": len(found), **quantiles(found), **more}
    print(json.dumps({"bench": "fresh", **told}), flush=True)
    shown = "".join(f"{name} {value:<9}" for name, value in told.items() if name.endswith("_ms"))
    print(f"{contender:<22}{what:<22}{shown}", flush=True)


@contextmanager
def print_cpu(servers: dict[str, str], pid: int | None) -> Iterator[None]:
    """Print the CPU of each process in a block, as per cent of one core. PostgreSQL only."""
    began = time.monotonic()
    with RoleSampler(servers, *([] if pid is None else [pid])) as roles:
        yield
    took = time.monotonic() - began
    for role, used in {**roles.cpu_s, "sum": sum(roles.cpu_s.values())}.items():
        if used >= 0.005 and "workload" not in role and "bench" not in role:
            print(f"    {role:<44}{used / took * 100:>7.1f} % of a core", flush=True)


class Round:
    """Both contenders on one pair of servers, each with tables of its own."""

    def __init__(self, flags: Any, kinds: tuple[str, str]) -> None:
        self._flags = flags
        self._source, self._target = (SIDES[kind] for kind in kinds)
        self._is_postgres = kinds == ("postgres", "postgres")
        self.found: dict[tuple[str, int], list[float]] = {}

    def run(self, contender: str) -> None:
        """Start fresh servers, then measure every rate."""
        with (
            self._source.server(settings=self._source.settings) as origin,
            self._target.server() as destination,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        ):
            source = self._open(self._source, origin)
            target = self._open(self._target, destination)
            create(self._source, source)
            if contender == SUBSCRIPTION:
                create(self._target, target)
                with psycopg.connect(source, autocommit=True) as connection:
                    connection.execute("create publication bench for all tables")
                options = "copy_data = false"
                with contenders.subscription(
                    source, target, publication="bench", name="bench", options=options
                ):
                    self._measure(contender, source, target, None)
                return
            tables = "public.*" if self._source is SIDES["postgres"] else "shop.*"
            file = write_config(Path(scratch), source, target, tables=tables, exit_when_idle=False)
            with Running(file) as pipeline:
                self._measure(contender, source, target, pipeline.pid)

    def _open(self, side: Side, server: Any) -> str:
        if side.session is MySQLSession:
            side.session(server.url()).run(f"create database if not exists {side.database}")
        return str(server.url(side.database))

    def _measure(self, contender: str, source: str, target: str, pid: int | None) -> None:
        writer, reader = self._source.session(source), self._target.session(target)
        numbers = itertools.count()
        servers = {"source": source, "target": target} if self._is_postgres else {}
        measure(writer, reader, numbers, 10, 2)  # everything that starts late has started then
        time.sleep(1)
        print(f"{contender}: nothing happens", flush=True)
        with print_cpu(servers, pid):
            time.sleep(self._flags.seconds)
        if self._flags.single:
            found = []
            for _ in range(self._flags.single):
                one, _ = measure(writer, reader, numbers, 1, 0)
                found += one
                time.sleep(0.02)
            self._keep(contender, 0, found)
            tell(contender, "single commits", found)
        tell(contender, "100 over 20 tables", spread(writer, reader, numbers, 15))
        for rate in RATES:
            with print_cpu(servers, pid):
                found, reached = measure(writer, reader, numbers, rate, self._flags.seconds)
            self._keep(contender, rate, found)
            tell(contender, f"{rate} a second", found, reached=round(reached, 1))

    def _keep(self, contender: str, rate: int, found: list[float]) -> None:
        self.found.setdefault((contender, rate), []).extend(found)


def main() -> None:
    """Run both contenders in turn; for servers of MySQL's family penstock alone."""
    pair = "postgres-postgres"
    if "--pair" in sys.argv:
        at = sys.argv.index("--pair")
        pair = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    picture = ""
    if "--picture" in sys.argv:
        at = sys.argv.index("--picture")
        picture = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    flags = arguments(__doc__ or "", seconds=15, single=200)
    source, target = pair.split("-")
    print(f"fresh, {pair} ({describe_machine()})", flush=True)
    rounds = Round(flags, (source, target))
    names = [SUBSCRIPTION, PENSTOCK] if pair == "postgres-postgres" else [PENSTOCK]
    for turn in range(flags.rounds):
        for name in names:
            print(f"round {turn + 1}: {name}", flush=True)
            rounds.run(name)
    print("all rounds")
    for (name, rate), found in sorted(rounds.found.items(), key=lambda item: item[0][1]):
        tell(name, f"{rate} a second" if rate else "single commits", found)
    if picture:
        curves = [
            Curve(name=f"{name}, {rate} a second", values=[one * 1000 for one in found], group=name)
            for (name, rate), found in rounds.found.items()
            if rate
        ]
        Path(picture).write_text(
            distribution(curves, title="From commit to visible", unit="ms"), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
