"""Repairs by verify --repair between PostgreSQL databases: rows come from the source,
all or none.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.verify import compare
from penstock.control.verify.verify import verify
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.host import faults
from penstock.host.files import REAL_FILES
from penstock.load.ledger import Ledger, write_ledger
from penstock.ports.config import Config
from penstock.ports.target import TargetShapeDiffers
from penstock.ports.verify import RepairRefused, TargetMoved
from plugins.doctor import as_role
from plugins.postgres import Server

TABLES = (
    "create type public.mood as enum ('calm', 'wild')",
    "create table public.parent (id int primary key, name text unique)",
    "create table public.child (id int generated always as identity primary key, parent int"
    " references public.parent on delete cascade, m public.mood, a int[],"
    " n int generated always as (parent * 2) stored)",
    "create table public.bag (v text)",
    "alter table public.bag replica identity full",
    "create table public.parts (id int primary key, v text) partition by range (id)",
    "create table public.low partition of public.parts for values from (0) to (100)",
    "create table public.high partition of public.parts for values from (100) to (1000)",
    "insert into public.parent select i, 'p' || i from generate_series(1, 200) as i",
    "insert into public.child (parent, m, a) select i, 'wild', array[i]"
    "  from generate_series(1, 200) as i",
    "insert into public.bag select 'v' || i % 10 from generate_series(1, 100) as i",
    "insert into public.parts select i, 'x' from generate_series(1, 300) as i",
)


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def pipeline(folder: Path, source: str, target: str) -> Config:
    """Return a loaded pipeline of mode data."""
    file = write_pipeline(folder, source, target, mode="data", tables=["public.*"])
    config = load_config(file)
    REAL_FILES.make_directory(config.layout.state)
    write_ledger(config.layout.state, Ledger(finished=True))
    return config


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """Pipeline whose sides have the same rows."""
    for url in (source_url, target_url):
        run(url, *TABLES)
    return pipeline(tmp_path, source_url, target_url)


def spoil(config: Config) -> None:
    """Make rows differ, be missing and be surplus in every table."""
    run(
        config.target.url,
        "set session_replication_role = replica",
        "update public.parent set name = case id when 1 then 'p2' else 'p1' end || '!'"
        " where id in (1, 2)",
        "update public.parent set name = rtrim(name, '!') where id in (1, 2)",
        "delete from public.parent where id = 3",
        "insert into public.parent values (999, 'surplus')",
        "update public.child set m = 'calm' where id = 4",
        "delete from public.child where id = 5",
        "delete from public.bag where ctid in (select ctid from public.bag where v = 'v1' limit 3)",
        "insert into public.bag values ('v2'), ('V')",
        "update public.parts set v = 'y' where id in (50, 150)",
    )


def test_every_kind_of_row_is_repaired(config: Config) -> None:
    """Swapped unique values, generated columns, identities, parents and children are repaired."""
    spoil(config)
    result = verify(config, repair=True)
    assert not result.equal
    done = {one.table.name: (one.deleted, one.written) for one in result.repaired}
    assert done["parent"] == (3, 3)
    assert done["child"] == (1, 2)
    assert done["parts"] == (2, 2)
    assert verify(config).equal
    with psycopg.connect(config.target.url) as connection:
        children = connection.execute("select count(*) from public.child").fetchone()
        assert children == (200,), "no cascade took part"
    assert verify(config, repair=True).repaired == ()


def test_many_rows_are_repaired_by_buckets(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more keys than are kept one by one."""
    from penstock.control.verify import hashed_rows

    monkeypatch.setattr(hashed_rows, "KEYS_MAX", 10)
    run(config.target.url, "set session_replication_role = replica",
        "update public.parent set name = name || '.' where id % 2 = 0",
        "delete from public.parent where id % 3 = 0")  # fmt: skip
    [done] = verify(config, repair=True).repaired
    assert done.written >= 133
    assert verify(config).equal


def test_the_command_says_what_it_did(config: Config) -> None:
    """The command prints its repairs, and a second verify finds nothing."""
    spoil(config)
    before = penstock("verify", config.path)
    assert before.code == 1
    done = penstock("verify", config.path, "--repair")
    assert done.code == 0, done.err
    assert "public.parent repaired: 3 rows deleted, 3 written from the source" in done.out
    assert "are equal now" in done.out
    assert penstock("verify", config.path).code == 0


@pytest.mark.parametrize("fault", ["verify.repair.deleted:2:kill", "verify.repair.written:1:kill"])
def test_a_crash_leaves_nothing_half_done(config: Config, fault: str) -> None:
    """No session sees any of it until the transaction is committed."""
    spoil(config)
    found = verify(config).tables
    killed = penstock("verify", config.path, "--repair", environment={"PENSTOCK_FAULT": fault})
    assert killed.code < 0, killed.err
    assert verify(config).tables == found
    verify(config, repair=True)
    assert verify(config).equal


def test_an_error_leaves_nothing_half_done_either(config: Config) -> None:
    """The first table is written, and rolled back with the second one."""
    spoil(config)
    found = verify(config).tables
    with faults.arming("verify.repair.deleted:3:error"), pytest.raises(faults.FaultInjected):
        verify(config, repair=True)
    assert verify(config).tables == found


def test_another_shape_is_refused(config: Config) -> None:
    """A wider type is compared but not repaired; the target's own column would be lost."""
    run(config.target.url, "alter table public.parent add column own int",
        "delete from public.parent where id = 150")  # fmt: skip
    with pytest.raises(RepairRefused, match="own"):
        verify(config, repair=True)
    run(config.target.url, "alter table public.parent drop column own",
        "alter table public.parent alter column id type bigint")  # fmt: skip
    with pytest.raises(TargetShapeDiffers, match="id is bigint"):
        verify(config, repair=True)


def test_without_the_right_foreign_keys_would_act(
    config: Config, postgres: Server, role: str
) -> None:
    """A role that may not set session_replication_role is refused, because of cascades."""
    run(
        config.target.url,
        "update public.parent set name = 'x' where id = 1",
        f"grant all on all tables in schema public to {role}",
    )
    with pytest.raises(RepairRefused, match="foreign key"):
        verify(as_role(config, postgres, role, "target"), repair=True)
    run(config.target.url, "alter table public.child disable trigger all",
        "alter table public.parent disable trigger all")  # fmt: skip
    assert len(verify(as_role(config, postgres, role, "target"), repair=True).repaired) == 1
    assert verify(config).equal


def test_a_target_that_was_written_meanwhile_is_refused(config: Config) -> None:
    """The applied position is locked and must be the one that was compared."""
    run(config.target.url, "update public.parent set name = 'x' where id = 1")
    with psycopg.connect(config.target.url, autocommit=True) as connection:
        progress = PostgresProgress(connection)
        progress.ensure_tables()
        progress.bind_log("the log")
    moved = {"done": False}

    def move(_text: str) -> None:
        if not moved["done"]:
            run(config.target.url, "update wirekite.wirekite_log set applied_gsn = 5")
            moved["done"] = True

    original = compare.compare

    def compare_and_move(*arguments: object, **more: object) -> object:
        found = original(*arguments, **more)  # type: ignore[arg-type]
        move("")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.control.verify.verify.compare", compare_and_move)
        with pytest.raises(TargetMoved):
            verify(config, repair=True)
    assert not verify(config).equal
