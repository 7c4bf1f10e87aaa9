"""Debezium's PostgreSQL connector follows a served log of another engine.

Maven gets its jars once, into build/debezium (`tests/catalog/pom.xml`).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.based import Based
from harness.servers.engines import Place, insert, new_place
from harness.servers.subscribers import PASSWORD, WAIT_S, Served
from plugins.shared import SharedServers
from record_catalog_queries import ECJ

ROOT = Path(__file__).parents[2]
POM = ROOT / "tests/catalog/pom.xml"
SOURCE = ROOT / "tests/catalog/Follow.java"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Class path of Debezium's jars, and of the program that uses them."""
    jars = ROOT / "build/debezium"
    if not list(jars.glob("debezium-connector-postgres-*.jar")):
        copy = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        copy += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        subprocess.run(copy, check=True)
    out = tmp_path_factory.mktemp("classes")
    path = ":".join(map(str, sorted(jars.glob("*.jar"))))
    compiler = ["java", "-jar", str(ECJ), "-17", "-nowarn", "-cp", path, "-d", str(out)]
    subprocess.run([*compiler, str(SOURCE)], check=True)
    return f"{out}:{path}"


@pytest.fixture(params=["mysql", "pg18"])
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with a table."""
    with new_place(shared_servers, request.param) as found:
        found.run("create table item (id int primary key, n int, note varchar(200))")
        yield found


class Connector:
    """One run of the connector, which continues after the previous one and ends after so many
    events.
    """

    def __init__(
        self, classes: str, served: Served, folder: Path, count: int, mode: str = "no_data"
    ) -> None:
        arguments = ["127.0.0.1", str(served.port), "repl", PASSWORD, "shop", "made", "dbz"]
        arguments += [mode, "filtered", str(count), str(folder / "offsets")]
        arguments.append(rf"{served.place.namespace}\.item")
        self._process = subprocess.Popen(
            ["java", "-cp", classes, "Follow", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._served = served

    def wait_until_begun(self) -> None:
        """Wait until it streams: without an offset it begins at the log's end of that moment."""
        deadline = time.monotonic() + WAIT_S
        while not self._served.query_catalog("select 1 from pg_replication_slots where active"):
            assert time.monotonic() < deadline, "it does not begin"
            time.sleep(0.2)

    def events(self) -> list[dict[str, Any]]:
        """Return the change events after the connector has ended."""
        out, _ = self._process.communicate(timeout=2 * WAIT_S)
        assert self._process.returncode == 0, out[-3000:]
        lines = [line for line in out.splitlines() if line.startswith("EVENT ")]
        return [json.loads(line.split(" ", 2)[2])["payload"] for line in lines]


@pytest.mark.long
def test_debezium(classes: str, place: Place, tmp_path: Path) -> None:
    """Debezium creates its publication, and its events are the changes, over a restart of both."""
    served = Served(place, tmp_path)
    try:
        served.extract()
        served.serve()
        served.run_command("CREATE_REPLICATION_SLOT dbz LOGICAL pgoutput (SNAPSHOT 'nothing')")
        connector = Connector(classes, served, tmp_path, 3)
        connector.wait_until_begun()
        insert(place, "item", [(1, 1, "a"), (2, 2, None)])
        place.run("update item set note = 'b' where id = 1")
        events = connector.events()
        assert served.query_catalog(
            "select tablename from pg_publication_tables where pubname = 'made'"
        )
        place.run("delete from item where id = 2")
        assert served.server is not None
        served.server.__exit__()
        served.serve()
        insert(place, "item", [(3, 3, "c")])
        events += Connector(classes, served, tmp_path, 2).events()
    finally:
        served.close()
        place.forget_log()
    state: dict[int, Any] = {}
    seen = set()
    for event in events:
        seen.add(event["op"])
        if event["op"] == "d":
            del state[event["before"]["id"]]
        else:
            state[event["after"]["id"]] = event["after"]
    assert seen == {"c", "u", "d"}
    assert state == {
        1: {"id": 1, "n": 1, "note": "b"},
        3: {"id": 3, "n": 3, "note": "c"},
    }
    assert len(events) == 5


@pytest.mark.long
def test_debezium_with_a_snapshot(classes: str, place: Place, tmp_path: Path) -> None:
    """Debezium creates its slot, reads rows from the base, and continues with changes."""
    insert(place, "item", [(n, n, f"note {n}") for n in range(1, 21)])
    served = Based(place, tmp_path)
    try:
        served.extract()
        served.load()
        insert(place, "item", [(n, n, None) for n in range(21, 31)])
        place.run("update item set n = -1 where id <= 5", "delete from item where id = 6")
        served.serve()
        served.equal("item")
        connector = Connector(classes, served, tmp_path, 31, "initial")
        connector.wait_until_begun()
        place.run("update item set note = 'b' where id = 1", "delete from item where id = 2")
        events = connector.events()
    finally:
        served.close()
        place.forget_log()
    read = [event for event in events if event["op"] == "r"]
    rows = {event["after"]["id"]: event["after"] for event in read}
    wanted = {n: {"id": n, "n": n, "note": f"note {n}"} for n in range(1, 21) if n != 6}
    wanted |= {n: {"id": n, "n": n, "note": None} for n in range(21, 31)}
    for n in range(1, 6):
        wanted[n]["n"] = -1
    assert rows == wanted
    assert len(read) == len(rows)
    assert [event["op"] for event in events[len(read) :]] == ["u", "d"]
