"""Points and chunks of a SQL Server source, on the simulated server with change data capture."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.planner import SQLServerPlanner, make_planner
from penstock.engines.sqlserver.reading.bulk_reader import open_reader, snapshot_alive
from penstock.model import TableName
from penstock.ports.bulk import Point, TableRead
from penstock.ports.config import Config
from plugins.sqlserver import as_test

KEYED, HEAP = TableName("dbo", "keyed"), TableName("dbo", "heap")


@pytest.fixture
def shop(sqlserver_url: str) -> Iterator[Connection]:
    """A session of a database whose two tables are captured."""
    with connect(as_test(sqlserver_url)) as session:
        session.run("EXEC sys.sp_cdc_enable_db")
        session.run("CREATE TABLE dbo.keyed (id int NOT NULL PRIMARY KEY, v nvarchar(20) NULL)")
        session.run("CREATE TABLE dbo.heap (a int NULL)")
        for name in ("keyed", "heap"):
            session.run(
                "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', "
                f"@source_name = N'{name}', @role_name = NULL"
            )
        for number in range(20):
            session.run(f"INSERT INTO dbo.keyed VALUES ({number}, N'v{number}')")
        session.run("INSERT INTO dbo.heap VALUES (1)")
        yield session


def last_change(session: Connection, name: str) -> int:
    """Return the position of a table's last captured change."""
    ((lsn,),) = session.execute(
        f"SELECT TOP (1) [__$start_lsn] FROM cdc.[dbo_{name}_CT] ORDER BY [__$start_lsn] DESC"
    )
    return int.from_bytes(lsn)


def config_of(directory: Path, url: str, *, mode: str = "data+change", tables: str = "*") -> Config:
    """Return a pipeline from the database."""
    file = directory / "p.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "plan"
        mode = "{mode}"
        directory = "p"
        [source]
        url = "{url}"
        tables = ["dbo.{tables}"]
        [target]
        url = "postgresql://x@localhost/x"
        """
    )
    return load_config(file)


def reads(planner: SQLServerPlanner) -> list[TableRead]:
    """Return what a load wants to read."""
    return [
        TableRead(definition=one, columns=tuple(f"[{c.name}]" for c in one.columns))
        for one in planner.define([KEYED, HEAP])
    ]


def test_tables_with_a_key_are_read_without_a_lock(
    shop: Connection, sqlserver_url: str, tmp_path: Path
) -> None:
    """The point is a captured commit; its rows can be read at any time, and writers go on."""
    with make_planner(
        config_of(tmp_path, sqlserver_url, tables="keyed"), first=lambda: None
    ) as one:
        assert one.first_point() is None
        point = one.fresh_point()
        assert snapshot_alive(sqlserver_url, point.snapshot_id, point.snapshot_text)
        shop.run("INSERT INTO dbo.keyed VALUES (100, N'later')")
        chunks = one.chunks(point, reads(one))
        (chunk,) = chunks[KEYED]
        assert len(shop.execute(chunk.copy_out)) == 21
        reader = open_reader(sqlserver_url, point.snapshot_id, point.snapshot_text)
        assert reader is not None
        reader.close()
        end = one.release()
    assert end is not None
    assert end.ordinal > last_change(shop, "keyed") > point.position.ordinal


def test_a_table_without_a_key_needs_a_point_of_its_own(
    shop: Connection, sqlserver_url: str, tmp_path: Path
) -> None:
    """Leave it out at the handover's point; writers wait from its own point on."""
    config = config_of(tmp_path, sqlserver_url)
    with make_planner(config, first=lambda: None) as planner:
        handover = Point(
            position=planner.positions.parse("00000001:00000001:0001"),
            snapshot_id="00000001:00000001:0001",
            snapshot_text="change tables",
        )
        assert set(planner.chunks(handover, reads(planner))) == {KEYED}
        point = planner.fresh_point()
        assert set(planner.chunks(point, reads(planner))) == {KEYED, HEAP}
        assert point.position.ordinal > last_change(shop, "heap"), "the rows have all changes"
        writer = threading.Thread(target=_insert, args=(sqlserver_url,), daemon=True)
        writer.start()
        writer.join(2.0)
        assert writer.is_alive(), "the writer waits"
        assert snapshot_alive(sqlserver_url, point.snapshot_id, point.snapshot_text)
        reader = open_reader(sqlserver_url, point.snapshot_id, point.snapshot_text)
        assert reader is not None
        reader.close()
        planner.release()
        writer.join(20.0)
        assert not writer.is_alive()
    assert not snapshot_alive(sqlserver_url, point.snapshot_id, point.snapshot_text)
    assert open_reader(sqlserver_url, point.snapshot_id, point.snapshot_text) is None
    assert shop.execute("SELECT COUNT(*) FROM dbo.heap") == [(2,)]


def _insert(url: str) -> None:
    with connect(as_test(url)) as session:
        session.run("INSERT INTO dbo.heap VALUES (2)")


def test_a_load_without_changes(sqlserver_url: str, tmp_path: Path) -> None:
    """Without change data capture rows can be copied; there is no position to wait for."""
    with connect(as_test(sqlserver_url)) as session:
        session.run("CREATE TABLE dbo.heap (a int NULL)")
    with make_planner(config_of(tmp_path, sqlserver_url, mode="data"), first=lambda: None) as one:
        point = one.fresh_point()
        assert point.position.ordinal == 0
        assert set(one.chunks(point, reads(one))) == {HEAP}
        assert one.release() is None


def test_a_table_that_was_dropped(shop: Connection, sqlserver_url: str, tmp_path: Path) -> None:
    """A table that is gone when it is cut is left out; the others are planned."""
    with make_planner(config_of(tmp_path, sqlserver_url), first=lambda: None) as planner:
        wanted = reads(planner)
        point = planner.fresh_point()
        planner.release()
        shop.run("DROP TABLE dbo.keyed")
        later = planner.fresh_point()
        assert set(planner.chunks(later, wanted)) == {HEAP}
        assert later.position.ordinal >= point.position.ordinal
