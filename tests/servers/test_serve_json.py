"""Every engine's changes as wal2json's objects in pg_recvlogical: they equal the written rows."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.servers.engines import ENGINES, Place, insert, new_place
from harness.servers.subscribers import Served
from plugins.shared import SharedServers


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with a table."""
    with new_place(shared_servers, request.param) as found:
        found.run("create table item (id int primary key, n bigint, note varchar(200))")
        found.run("create table other (id int primary key)")
        yield found


def receive_objects(served: Served, slot: str, end: str, *options: str) -> list[dict[str, object]]:
    """Return the objects up to an LSN."""
    program = shutil.which("pg_recvlogical")
    assert program is not None, "no pg_recvlogical"
    command = [
        *(program, "-d", served.connection(), f"--slot={slot}", "--start", "-f", "-"),
        *(f"--endpos={end}", "--no-loop"),
        *(word for option in options for word in ("-o", option)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_of_every_engine(place: Place, tmp_path: Path) -> None:
    """Both formats have names, numbers and texts of one table, and nothing of another."""
    served = Served(place, tmp_path)
    try:
        served.extract()
        served.serve()
        for slot in ("one", "two"):
            served.run_command(
                f"CREATE_REPLICATION_SLOT {slot} LOGICAL wal2json (SNAPSHOT 'nothing')"
            )
        insert(place, "other", [(1,)])
        insert(place, "item", [(1, 10_000_000_000, 'say "ä"'), (2, None, None)])
        place.run("update item set id = 3 where id = 2", "delete from item where id = 1")
        position = "select pg_current_wal_lsn()::text from pg_replication_slots limit 1"
        count = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/1000000')::text"
        assert served.extractor is not None
        # Four transactions have three boundaries each, and five rows: the log has more than that.
        served.extractor.until(
            lambda: int(served.query_catalog(count)[0][0]) >= 4 * 3 + 5, "all is extracted"
        )
        ((end,),) = served.query_catalog(position)
        only = f"add-tables={place.namespace}.item"
        rows = receive_objects(served, "two", end, "format-version=2", only)
        changes = [one for one in rows if one["action"] not in "BC"]
        assert "".join(str(one["action"]) for one in changes) == "IIUD"
        values = [[cell["value"] for cell in one.get("columns", ())] for one in changes]  # type: ignore[attr-defined]
        assert values == [[1, 10_000_000_000, 'say "ä"'], [2, None, None], [3, None, None], []]
        assert [one["identity"][0]["value"] for one in changes if "identity" in one] == [2, 1]  # type: ignore[index]
        whole = receive_objects(served, "one", end, only)
        kinds = [one["kind"] for found in whole for one in found["change"]]  # type: ignore[attr-defined]
        assert kinds == ["insert", "insert", "update", "delete"]
    finally:
        served.close()
        place.forget_log()
