"""The load process is killed while it reads the base or moves it forward; afterwards
all is equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.based import ITEM, OTHER, Based, fill, rows
from harness.pipelines.end_to_end import Process
from harness.servers.engines import ENGINES, new_place
from plugins.shared import SharedServers

WAIT_S = 240.0
KEYLESS = "create table {}plain (a int, b varchar(20))"


@pytest.fixture(params=[kind for kind in ENGINES if kind.startswith("pg")])
def based_source(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Based]:
    """A source with rows, already extracted."""
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


def change(based_source: Based, first: int) -> None:
    """Change rows of all tables, including the one without a key."""
    fill(based_source.place, first, 20)
    based_source.place.run(
        "insert into plain values (7, null)",
        "delete from plain where ctid in (select ctid from plain where a = 1 limit 1)",
        "update plain set b = 'y' where ctid in (select ctid from plain where a = 2 limit 2)",
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        "base.read.chunk:1:kill",
        "base.file.written:2:kill",
        "base.manifest.before:1:kill",
        "base.manifest.after:1:kill",
        "base.compacted.before:1:kill",
        "base.compact.task:2:kill",
        "base.manifest.before:2:kill",
        "base.compacted.after:1:kill",
        "base.others.removed:2:kill",
        "base.links.before:1:kill",
    ],
)
def test_killed_at(
    based_source: Based, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old or the new base is left: files that no manifest names are removed; no row is lost."""
    once = once_at(fault, tmp_path, monkeypatch)
    with Process(based_source.path, "load") as first:
        first_rows = 1000
        while not list(once.iterdir()):
            change(based_source, first_rows)
            first_rows += 20
            first.until(
                lambda: list(once.iterdir()) or based_source.manifest.exists(), "a base", 240
            )
        monkeypatch.delenv("PENSTOCK_FAULT")
    based_source.load()
    change(based_source, 30_000)
    based_source.serve()
    based_source.equal("item", "other", "plain")
    moved_on(based_source, 40_000)
    based_source.equal("item", "other", "plain")
    tidy(based_source)


def tidy(based_source: Based) -> None:
    """Wait until the base has only the files that it names, and no links of earlier segments."""
    links = based_source.folder / "shop" / "cdc" / "base"

    def is_tidy() -> bool:
        manifest = based_source.read_manifest()
        named = {file.name for table in manifest.tables for file in table.files}
        there = {path.name for path in based_source.manifest.parent.glob("*.arrow")}
        behind = [path for path in links.glob("*.ckt") if int(path.stem) < manifest.segment]
        return there == named and not behind

    assert based_source.loader is not None
    based_source.loader.until(is_tidy, "what has no reader is removed")


def moved_on(based_source: Based, first: int) -> None:
    """Write rows until the base moves forward."""
    segment, until = based_source.read_manifest().segment, time.monotonic() + WAIT_S
    while based_source.read_manifest().segment <= segment:
        assert time.monotonic() < until, "the base does not move on"
        change(based_source, first)
        first += 20
        time.sleep(0.2)


def once_at(fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make processes started after this die once at a point; return a directory that has a file
    then.
    """
    once = folder / "once"
    once.mkdir()
    monkeypatch.setenv("PENSTOCK_FAULT", fault)
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    return once


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", ["base.manifest.before:1:kill", "base.manifest.after:1:kill", "base.read.chunk:1:kill"]
)
def test_killed_while_the_base_is_read_anew(
    based_source: Based, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables are read again if a link that the base needs is missing; none continues."""
    loader = based_source.load()
    change(based_source, 1000)
    loader.__exit__()
    assert based_source.extractor is not None
    links = based_source.folder / "shop" / "cdc" / "base"
    behind = based_source.read_manifest().segment
    for first in (2000, 3000):
        change(based_source, first)
        count = len(list(links.glob("*.ckt")))
        based_source.extractor.until(
            lambda n=count: len(list(links.glob("*.ckt"))) > n, "a segment"
        )
    taken = links / f"{behind}.ckt"
    assert taken.exists()
    taken.unlink()
    once = once_at(fault, tmp_path, monkeypatch)
    with Process(based_source.path, "load") as process:
        until = time.monotonic() + WAIT_S
        while not list(once.iterdir()):
            assert time.monotonic() < until, "not killed"
            time.sleep(0.1)
        monkeypatch.delenv("PENSTOCK_FAULT")
        assert process is not None
    based_source.load().until(
        lambda: based_source.read_manifest().tables, "the tables are read", WAIT_S
    )
    based_source.serve()
    based_source.equal("item", "other", "plain")
    moved_on(based_source, 4000)
    based_source.equal("item", "other", "plain")
    tidy(based_source)


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    ["base.manifest.after:1:kill", "base.others.removed:2:kill", "base.links.before:1:kill"],
)
def test_a_snapshot_stays_while_the_base_that_moves_is_killed(
    based_source: Based, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot reads files and segments of an old base; a later snapshot reads those of the new
    one.
    """
    based_source.load()
    change(based_source, 1000)
    based_source.serve()
    based_source.equal("item", "other", "plain")
    expected = {table: rows(based_source.place, table) for table in ("item", "other", "plain")}
    options = based_source.connection(replication="database")
    with (
        psycopg.connect(options, autocommit=True) as walsender,
        psycopg.connect(based_source.connection(), autocommit=True) as reader,
    ):
        made = walsender.pgconn.exec_(
            b"CREATE_REPLICATION_SLOT held LOGICAL pgoutput (SNAPSHOT 'export')"
        )
        name = (made.get_value(0, 2) or b"").decode()
        reader.execute("begin isolation level repeatable read")
        reader.execute(f"set transaction snapshot '{name}'".encode())
        assert based_source.loader is not None
        based_source.loader.__exit__()
        once = once_at(fault, tmp_path, monkeypatch)
        with Process(based_source.path, "load"):
            first, until = 2000, time.monotonic() + WAIT_S
            while not list(once.iterdir()):
                assert time.monotonic() < until, "not killed"
                change(based_source, first)
                first += 20
            monkeypatch.delenv("PENSTOCK_FAULT")
        based_source.load()
        moved_on(based_source, 20_000)
        tidy(based_source)
        for table, found in expected.items():
            query = f"select * from {based_source.place.namespace}.{table}".encode()
            assert sorted(reader.execute(query).fetchall(), key=repr) == found
        reader.execute("rollback")
    based_source.equal("item", "other", "plain")


@pytest.mark.long
def test_a_server_that_is_killed_while_it_holds_a_state(
    based_source: Based, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server removes the state that a killed one held, and its snapshots are whole."""
    based_source.load()
    change(based_source, 1000)
    once = once_at("base.held.linked:2:kill", tmp_path, monkeypatch)
    first = based_source.serve()
    with suppress(psycopg.OperationalError):
        based_source.query_catalog(f"select count(*) from {based_source.place.namespace}.item")
    assert first.wait_for_end() < 0
    assert list(once.iterdir())
    monkeypatch.delenv("PENSTOCK_FAULT")
    held = based_source.manifest.parent / "held" / "serve"
    left = set(held.iterdir())
    assert left
    based_source.serve()
    based_source.equal("item", "other", "plain")
    assert not left & set(held.iterdir() if held.exists() else ())
