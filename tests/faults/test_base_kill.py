"""The load process is killed while it reads the base or moves it on: afterwards all is equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_based import ITEM, OTHER, Based, fill
from fix_end_to_end import Process
from fix_engines import ENGINES, new_place
from fix_shared import SharedServers

KEYLESS = "create table {}plain (a int, b varchar(20))"


@pytest.fixture(params=[kind for kind in ENGINES if kind.startswith("pg")])
def based(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Based]:
    """A source with rows, extracted."""
    with new_place(shared_servers, request.param) as place:
        for table in (ITEM, OTHER, KEYLESS):
            place.run(table.format(""))
        place.run("alter table plain replica identity full")
        place.run("insert into plain select n % 3, 'x' from generate_series(1, 20) n")
        fill(place, 1, 50)
        made = Based(place, tmp_path)
        try:
            made.extract()
            yield made
        finally:
            made.close()
            place.forget_log()


def change(based: Based, first: int) -> None:
    """Rows of all tables, also of the one without a key."""
    fill(based.place, first, 20)
    based.place.run(
        "insert into plain values (7, null)",
        "delete from plain where ctid in (select ctid from plain where a = 1 limit 1)",
        "update plain set b = 'y' where ctid in (select ctid from plain where a = 2 limit 2)",
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        "base.file.written:2:kill",
        "base.manifest.before:1:kill",
        "base.manifest.after:1:kill",
        "base.compacted.before:1:kill",
        "base.compact.task:2:kill",
        "base.manifest.before:2:kill",
        "base.compacted.after:1:kill",
    ],
)
def test_killed_at(
    based: Based, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old base or the new one; what no manifest names is removed, and no row is lost."""
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("PENSTOCK_FAULT", fault)
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    with Process(based.path, "load") as first:
        first_rows = 1000
        while not list(once.iterdir()):
            change(based, first_rows)
            first_rows += 20
            first.until(lambda: list(once.iterdir()) or based.manifest.exists(), "a base", 240)
        monkeypatch.delenv("PENSTOCK_FAULT")
    based.load()
    change(based, 30_000)
    based.serve()
    based.equal("item", "other", "plain")
    segment = based.based().segment
    change(based, 40_000)
    based.moved_on(segment)
    based.equal("item", "other", "plain")
    manifest = based.based()
    named = {file.name for table in manifest.tables for file in table.files}

    def tidy() -> bool:
        there = {path.name for path in based.manifest.parent.glob("*.arrow")}
        return there == named or based.based() != manifest

    assert based.loader is not None
    based.loader.until(tidy, "files that nobody names are removed")
