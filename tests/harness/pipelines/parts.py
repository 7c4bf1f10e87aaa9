"""Batches that several sessions apply: a target in each way, a log of several tables, and a loader
in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import insert, update
from harness.servers.engines import Place, PostgresPlace, new_place
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load import division
from penstock.model import Identity, Relation
from plugins.postgres import Server
from plugins.shared import SharedServers

WAYS = ("pg18 ahead", "pg18 prepared", "mysql ahead", "mariadb ahead")
NAMES = ("a", "b", "c", "d")
KEYED = {
    name: relation(("id", "integer", "int32"), ("name", "text", "string"), name=name)
    for name in NAMES
}
BAG = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")
TABLES = (
    *(f"create table {name} (id int primary key, name varchar(20))" for name in NAMES),
    "create table bag (v int)",
)
SESSIONS = 3


@contextmanager
def place_for(servers: SharedServers, way: str) -> Iterator[Place]:
    """Provide a fresh database in which batches are applied in one way of `WAYS`."""
    engine, _, how = way.partition(" ")
    if how == "prepared":
        settings = {"max_prepared_transactions": "8"}
        embedded = servers.get(way, lambda: EmbeddedPostgres(settings=settings))
        place: Place = PostgresPlace(Server(embedded=embedded))
        try:
            yield place
        finally:
            settle(place)
            place.drop()
        return
    with new_place(servers, engine) as place:
        place.forget_penstock()
        yield place


def settle(place: Place) -> None:
    """Roll back the prepared transactions that a test has left: they keep locks."""
    query = "select gid from pg_prepared_xacts where database = current_database()"
    with psycopg.connect(place.url, autocommit=True) as connection:
        for (name,) in connection.execute(query).fetchall():
            connection.execute(f"rollback prepared '{name}'")  # type: ignore[arg-type]


def write(log: LogMaker, number: int, *, name_in_c: str = "") -> int:
    """Write one transaction: a row of each table, and a change of the previous one's name.

    A row of `bag` counts twice if it is applied twice. name_in_c: the new row's name in table c.
    """
    changes: list[tuple[Relation, Change]] = []
    for name in NAMES:
        if number:
            changes.append(update(KEYED[name], number - 1, f"after {number}"))
        text = name_in_c if name == "c" and name_in_c else f"new {number}"
        changes.append(insert(KEYED[name], number, text))
    return log.transaction(*changes, insert(BAG, number))


def write_segments(log: LogMaker, count: int) -> None:
    """Write so many segments of two transactions each."""
    for number in range(2 * count):
        write(log, number)
        if number % 2:
            log.close_segment()


def rows_of(place: Place, table: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, in order."""
    return sorted(place.run(f"select * from {table}"))


def expected_rows(count: int) -> list[tuple[int, str]]:
    """Return the rows of each keyed table after so many transactions."""
    changed = [(number, f"after {number + 1}") for number in range(count - 1)]
    return [*changed, (count - 1, f"new {count - 1}")] if count else []


def check(place: Place, count: int, tables: Sequence[str] = NAMES) -> None:
    """Check that all tables hold exactly the first transactions."""
    found = {name: rows_of(place, name) for name in tables}
    assert found == dict.fromkeys(tables, expected_rows(count))
    assert rows_of(place, "bag") == [(number,) for number in range(count)]


def ahead(place: Place) -> dict[str, int]:
    """Return the tables that are ahead of the applied position."""
    found = place.run("select source_name, applied_gsn from wirekite.wirekite_ahead")
    return {name: int(gsn) for name, gsn in found}


def count_prepared(place: Place) -> int:
    """Return the number of prepared transactions."""
    if not isinstance(place, PostgresPlace):
        return 0
    query = "select count(*) from pg_prepared_xacts where database = current_database()"
    return int(place.run(query)[0][0])


def divide_always() -> None:
    """Have every batch divided, however small it is."""
    division.PART_S_MIN = 1e-9


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from harness.pipelines import parts
from harness.pipelines.loader import LocalKeeper, Word
from penstock.load.loader import Loader, LoaderOptions
parts.divide_always()
root = Path({root!r})
options = LoaderOptions(
    url={url!r}, log_directory=root / "log", state_directory=root / "state",
    run_directory=root / {run!r}, max_files_per_batch={files}, namespaces={namespaces!r},
    apply_sessions={sessions},
)
Loader(options, LocalKeeper(), stop=lambda: False, actions=Word()).run()
"""


def start_child(
    place: Place,
    root: Path,
    fault: str = "",
    *,
    files: int = 1,
    sessions: int = SESSIONS,
    run: str = "run",
) -> subprocess.Popen[str]:
    """Start a loader in a process of its own. run: its directory of diagnostics."""
    (root / "state").mkdir(exist_ok=True)
    script = CHILD.format(
        tests=str(Path(__file__).parents[2]),
        root=str(root),
        url=place.url,
        files=files,
        namespaces={"public": place.namespace},
        sessions=sessions,
        run=run,
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | ({"PENSTOCK_FAULT": fault} if fault else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_child(place: Place, root: Path, fault: str = "", **more: Any) -> tuple[int, str]:
    """Run a loader in a process of its own; return its exit code and what it printed."""
    child = start_child(place, root, fault, **more)
    said, _ = child.communicate(timeout=120)
    return child.returncode, said
