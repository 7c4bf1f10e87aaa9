"""Repairs by verify --repair of SQL Server's tables with triggers and foreign keys to them.

Both rest until the end of the repair's transaction, on the simulated server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.verify.verify import verify
from penstock.engines.sqlserver.connect import connect
from penstock.host import faults
from penstock.host.files import REAL_FILES
from penstock.load.ledger import Ledger, write_ledger
from penstock.ports.config import Config
from penstock.ports.target import ForeignKeyBlocked
from penstock.ports.verify import RepairRefused
from plugins.sqlserver import SimServer, as_test

TABLES = (
    "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
    "CREATE TABLE dbo.parent (id int NOT NULL PRIMARY KEY, name varchar(20) NULL, "
    "boss int NULL CONSTRAINT own REFERENCES dbo.parent (id))",
    "CREATE TABLE dbo.child (id int NOT NULL PRIMARY KEY, parent int NULL "
    "CONSTRAINT held REFERENCES dbo.parent (id) ON DELETE CASCADE)",
    "INSERT INTO dbo.parent VALUES (1, 'a', NULL), (2, 'b', 1), (3, 'c', 2), (4, 'd', 1)",
    "INSERT INTO dbo.child VALUES (1, 1), (2, 2), (3, 3), (4, 3)",
)
OF_TARGET = (
    "CREATE SCHEMA wirekite",  # a loaded target has it
    "CREATE TABLE dbo.note (id int NOT NULL PRIMARY KEY, parent int NULL "
    "CONSTRAINT noted REFERENCES dbo.parent (id) ON DELETE SET NULL)",
    "INSERT INTO dbo.note VALUES (1, 1), (2, 3)",
    "CREATE TABLE dbo.audit (n int NOT NULL)",
    "CREATE TRIGGER dbo.watch ON dbo.parent AFTER INSERT, DELETE AS "
    "INSERT INTO dbo.audit VALUES (1)",
)
KEYS = "SELECT name, is_disabled, is_not_trusted FROM sys.foreign_keys ORDER BY name"
TRIGGERS = "SELECT name, is_disabled FROM sys.triggers WHERE parent_class = 1"
AS_BEFORE = [("held", False, False), ("noted", False, False), ("own", False, False)]


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as a test; return the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    with connect(as_test(url)) as session:
        for statement in statements:
            rows = session.execute(statement)
    return rows


@pytest.fixture
def config(sqlserver: SimServer, tmp_path: Path) -> Iterator[Config]:
    """Loaded pipeline of mode data whose sides differ in parents that rows refer to."""
    names = [sqlserver.make_database(), sqlserver.make_database()]
    source, target = (sqlserver.url(name) for name in names)
    run(source, *TABLES, "EXEC sys.sp_cdc_enable_db")
    run(target, *TABLES, *OF_TARGET)
    run(
        target,
        "UPDATE dbo.parent SET name = 'x' WHERE id IN (1, 3)",
        "DELETE FROM dbo.child WHERE id = 2",
    )
    config = pipeline(tmp_path, source, target, mode="data", tables=["dbo.parent", "dbo.child"])
    REAL_FILES.make_directory(config.layout.state)
    write_ledger(config.layout.state, Ledger(finished=True))
    yield config
    for name in names:
        sqlserver.drop_database(name)


def read_referring(config: Config) -> tuple[list[tuple[Any, ...]], ...]:
    """Return the rows that refer to parents, the foreign keys, and what triggers did."""
    url = config.target.url
    return (
        run(url, "SELECT id, parent FROM dbo.note ORDER BY id"),
        run(url, KEYS),
        run(url, TRIGGERS),
        run(url, "SELECT n FROM dbo.audit"),
    )


def test_rows_that_others_refer_to_are_repaired(config: Config) -> None:
    """No cascade and no trigger acts; keys and triggers are enabled and trusted afterwards."""
    result = verify(config, repair=True)
    done = {one.table.name: (one.deleted, one.written) for one in result.repaired}
    assert done == {"parent": (2, 2), "child": (0, 1)}
    assert verify(config).equal
    notes, keys, triggers, audit = read_referring(config)
    assert notes == [(1, 1), (2, 3)]
    assert keys == AS_BEFORE
    assert triggers == [("watch", False)]
    assert audit == []


def test_a_failed_repair_leaves_keys_and_triggers(config: Config) -> None:
    """All of it is one transaction, the altered keys too."""
    before = read_referring(config)
    with faults.arming("verify.repair.written:1:error"), pytest.raises(faults.FaultInjected):
        verify(config, repair=True)
    assert read_referring(config) == before
    assert not verify(config).equal


def test_a_key_that_would_not_hold_refuses_the_repair(config: Config) -> None:
    """A row that is not compared refers to one that the source does not have."""
    run(
        config.target.url,
        "INSERT INTO dbo.parent VALUES (9, 'surplus', NULL)",
        "INSERT INTO dbo.note VALUES (3, 9)",
        "DELETE FROM dbo.audit",
    )
    before = read_referring(config)
    with pytest.raises(ForeignKeyBlocked, match="noted"):
        verify(config, repair=True)
    assert read_referring(config) == before


@pytest.mark.parametrize("text", ["NOCHECK CONSTRAINT", "DISABLE TRIGGER"])
def test_without_the_right_to_alter(sqlserver: SimServer, config: Config, text: str) -> None:
    """The error names the table and the right, and nothing is changed."""
    before = read_referring(config)
    run(config.target.url, f"EXEC sim.fail_next @number = 1088, @like = N'{text}', @times = 1")
    with pytest.raises(RepairRefused, match="may not alter the table") as raised:
        verify(config, repair=True)
    assert raised.value.hint.startswith("Run: GRANT ALTER ON [dbo].[")
    assert read_referring(config) == before
