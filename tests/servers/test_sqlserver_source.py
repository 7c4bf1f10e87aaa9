"""Change tables of the simulated SQL Server in the log, read with Microsoft's driver over TCP.

The simulator is by another hand than the engine (`tests/sim_sqlserver/README.md`). Not here: cases
that need rows that no server would write (`tests/unit/test_sqlserver_source.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import write_pipeline
from harness.servers.change_table_log import LACKING, Seen, rows_of
from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.pipeline.table_requests import make_add_request, put_request
from penstock.control.run.extract_process import extract_options
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.errors import (
    CdcDisabled,
    ChangesLost,
    DatabaseReplaced,
    InstanceMissing,
    InstanceRecreated,
)
from penstock.extract.extractor import Extractor, Outcome
from penstock.host.errors import (
    DatabaseRefused,
    LoginRefused,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
)
from penstock.log import list_segments, open_chain
from penstock.model import MarkerKind, TableName
from penstock.model.position import to_ordinal
from penstock.ports.config import Config
from penstock.ports.source import extraction_of
from plugins.sqlserver import SimServer, as_test

QUICK = {"flushIntervalSeconds": 0.2, "idleWaitSeconds": 0.2}
TABLE = (
    "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL, "
    "body nvarchar(max) NULL, twice AS (id * 2))"
)
ENABLE = (
    "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{name}', "
    "@role_name = NULL, @supports_net_changes = 0"
)
CAPTURE_WAIT_S = 30.0


@dataclass
class Source:
    """A database of the simulator with change data capture, and a pipeline of mode change.

    has_target: without one, later tables are captured at once.
    """

    server: SimServer
    database: str
    folder: Path
    has_target: bool = True

    @property
    def url(self) -> str:
        """URL of the database."""
        return self.server.url(self.database)

    def sql(self, *texts: str) -> None:
        """Run statements, each in a transaction of its own."""
        with connect(as_test(self.url)) as connection:
            for text in texts:
                connection.run(text)

    def commit(self, *texts: str) -> None:
        """Run statements in one transaction."""
        with connect(as_test(self.url)) as connection:
            connection.begin()
            for text in texts:
                connection.run(text)
            connection.commit()

    def config(self, **extractor: Any) -> Config:
        """Write the pipeline's file and read it."""
        path = write_pipeline(
            self.folder,
            self.url,
            "postgresql://u:p@127.0.0.1:1/t" if self.has_target else None,
            mode="change",
            tables=["dbo.*"],
            sections={
                "source": {"newTables": "add"},
                "changeExtractor": {**QUICK, **extractor},
            },
        )
        return load_config(path, {})

    def extract(self, **extractor: Any) -> Outcome:
        """Extract until the source is idle."""
        config = self.config(**extractor)
        options = replace(extract_options(config), exit_when_idle=True)
        with extraction_of(config).open_engine(
            pipeline_of(config),
            options,
            tables=lambda: source_tables(config),
            stop=lambda: False,
        ) as engine:
            return Extractor(engine, config.directory, options=options).run()

    def transactions(self) -> list[list[Seen]]:
        """Return the changes of the log, by transaction."""
        rows = []
        for segment in open_chain(list_segments(self.config().layout.log)):
            with segment:
                for entry in segment.row_frames():
                    frame = segment.read_rows(entry)
                    rows += rows_of(frame.relation, frame.batch)
        found: dict[int, list[Seen]] = {}
        for _, trx, seen in sorted(rows, key=lambda row: row[0]):
            found.setdefault(trx, []).append(seen)
        return list(found.values())

    def markers(self) -> list[MarkerKind]:
        """Return the kinds of the log's markers."""
        found = []
        for segment in open_chain(list_segments(self.config().layout.log)):
            with segment:
                found += [one.kind for one in segment.markers()]
        return found


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    ends_s = time.monotonic() + CAPTURE_WAIT_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.1)


@pytest.fixture
def source(sqlserver: SimServer, sqlserver_database: str, tmp_path: Path) -> Source:
    """A database with one captured table."""
    found = Source(sqlserver, sqlserver_database, tmp_path)
    found.sql("EXEC sys.sp_cdc_enable_db", TABLE, ENABLE.format(name="t"))
    return found


def row(number: int, **values: Any) -> dict[str, Any]:
    """Return a row of the log."""
    return {"id": number, "name": None, "body": None, **values}


def key(number: int) -> dict[str, Any]:
    """Return an old row of the log, which has the key."""
    return {"id": number, "name": LACKING, "body": LACKING}


def test_every_kind_of_change_arrives_in_order(source: Source) -> None:
    """Inserts, updates, updates of keys and deletes, in whole transactions."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id, name, body) VALUES (1, N'a', N'long')")
    source.commit(
        "UPDATE dbo.t SET name = N'b' WHERE id = 1",
        "UPDATE dbo.t SET id = 2 WHERE id = 1",
        "INSERT INTO dbo.t (id, name) VALUES (3, N'\N{SNOWMAN}')",
    )
    source.sql("UPDATE dbo.t SET body = NULL WHERE id = 2", "DELETE FROM dbo.t WHERE id = 2")
    source.extract()
    first, second, third, fourth = source.transactions()
    assert first == [Seen("c", "t", None, row(1, name="a", body="long"))]
    assert second[0] == Seen("u", "t", None, row(1, name="b", body=LACKING))
    moved = second[1]
    assert (moved.op, moved.before) == ("u", key(1))
    assert moved.after is not None
    assert (moved.after["id"], moved.after["name"]) == (2, "b")
    assert second[2] == Seen("c", "t", None, row(3, name="\N{SNOWMAN}"))
    assert third == [Seen("u", "t", None, row(2, name="b"))]
    assert fourth == [Seen("d", "t", key(2), None)]


def test_a_restart_continues_and_a_log_begins_where_it_is_told(source: Source) -> None:
    """Several runs miss and repeat nothing; startLsn names a commit."""
    source.extract()
    for number in range(5):
        source.sql(f"INSERT INTO dbo.t (id) VALUES ({number})")
        source.extract()
    ids = [one.after and one.after["id"] for (one,) in source.transactions()]
    assert ids == [0, 1, 2, 3, 4]
    with connect(as_test(source.url)) as connection:
        rows = connection.execute("SELECT start_lsn FROM cdc.lsn_time_mapping ORDER BY start_lsn")
        changed = connection.execute(
            "SELECT [__$start_lsn] FROM cdc.[dbo_t_CT] ORDER BY [__$start_lsn]"
        )
    assert changed[2][0] in [one for (one,) in rows]
    other = replace(source, folder=source.folder / "other")
    other.folder.mkdir()
    other.extract(startLsn=str(SqlServerLsn.of_bytes(changed[2][0])))
    assert [one.after and one.after["id"] for (one,) in other.transactions()] == [3, 4]


def test_changes_of_several_tables_are_merged(source: Source) -> None:
    """Each instance is read over a session of its own; order is that of the statements."""
    for name in ("u", "v"):
        source.sql(
            f"CREATE TABLE dbo.{name} (id int NOT NULL PRIMARY KEY, n int NULL)",
            ENABLE.format(name=name),
        )
    source.extract()
    texts = []
    for number in range(12):
        texts.append(f"INSERT INTO dbo.{'uvt'[number % 3]} (id) VALUES ({number})")
    source.commit(*texts)
    source.extract()
    (seen,) = source.transactions()
    assert [one.after and one.after["id"] for one in seen] == list(range(12))
    assert [one.table for one in seen] == ["u", "v", "t"] * 4


def test_a_large_transaction_arrives_whole(source: Source) -> None:
    """The driver gives its rows in batches."""
    source.extract()
    texts = [
        "INSERT INTO dbo.t (id, name) VALUES "
        + ", ".join(f"({at}, N'n{at}')" for at in range(first, first + 500))
        for first in range(0, 20_000, 500)
    ]
    source.commit(*texts, "UPDATE dbo.t SET name = N'x'")
    source.extract()
    (seen,) = source.transactions()
    assert len(seen) == 40_000
    assert {one.op for one in seen[:20_000]} == {"c"}
    assert {one.after and one.after["name"] for one in seen[20_000:]} == {"x"}


def test_a_second_instance_brings_the_new_column(source: Source) -> None:
    """The log has the column from the second instance's start on."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)")
    source.sql("ALTER TABLE dbo.t ADD phone varchar(20) NULL")
    source.sql(ENABLE.format(name="t") + ", @capture_instance = N'dbo_t_2'")
    source.sql("INSERT INTO dbo.t (id, phone) VALUES (2, '555')")
    source.extract()
    (first,), (second,) = source.transactions()
    assert first.after == row(1)
    assert second.after == {**row(2), "phone": "555"}


def test_a_dropped_table_is_noted(source: Source) -> None:
    """The server drops its instance too."""
    source.sql("CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY)", ENABLE.format(name="u"))
    source.extract()
    source.sql("DROP TABLE dbo.u", "INSERT INTO dbo.t (id) VALUES (1)")
    source.extract()
    assert source.markers() == [MarkerKind.DDL]


def test_a_renamed_table_is_another_one(source: Source) -> None:
    """The capture instance goes on; all rows and later changes have the new name."""
    source.has_target = False
    source.extract()
    source.sql(
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        "INSERT INTO dbo.t (id) VALUES (1)",
        "EXEC sp_rename N'dbo.t', N'later'",
    )
    source.extract()
    source.sql("INSERT INTO dbo.later (id) VALUES (2)")
    source.extract()
    assert source.markers() == [MarkerKind.DDL, MarkerKind.RELOAD]
    found = [
        (seen.table, seen.after["id"])
        for transaction in source.transactions()
        for seen in transaction
        if seen.after is not None
    ]
    assert found[0] == ("t", 1)
    assert [row for row in found if row[0] == "later"][-2:] == [("later", 1), ("later", 2)]


def test_a_renamed_table_is_captured_again_once_that_is_requested(source: Source) -> None:
    """The new name waits for a request, because a target needs a copy of the rows first."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)", "EXEC sp_rename N'dbo.t', N'later'")
    source.extract()
    source.sql("INSERT INTO dbo.later (id) VALUES (2)")
    source.extract()
    config = source.config()
    table = TableName("dbo", "later")
    put_request(
        config, table, lambda _, number: make_add_request(config, table, number, replaces=False)
    )
    source.extract()
    source.sql("INSERT INTO dbo.later (id) VALUES (3)")
    source.extract()
    assert source.markers() == [MarkerKind.DDL]
    found = [(seen.table, seen.after and seen.after["id"]) for (seen,) in source.transactions()]
    assert found == [("t", 1), ("later", 3)]


def test_capture_that_is_not_enabled_is_refused(source: Source) -> None:
    """The hints are the statements that enable it, and they work."""
    source.sql("CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY)")
    with pytest.raises(InstanceMissing) as missing:
        source.extract()
    text = str(missing.value.hint)
    source.sql(text[text.index("EXEC") : text.rindex(";") + 1])
    source.extract()
    source.sql("EXEC sys.sp_cdc_disable_db")
    with pytest.raises(CdcDisabled):
        extraction_of(source.config()).identity(source.config())


def test_an_instance_that_was_created_again_is_loss(source: Source) -> None:
    """S9: what another tool does around a change of a column."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)")
    source.sql(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N't', "
        "@capture_instance = N'dbo_t'",
        ENABLE.format(name="t"),
        "INSERT INTO dbo.t (id) VALUES (2)",
    )
    with pytest.raises(InstanceRecreated):
        source.extract()


def test_a_database_that_was_created_again_is_refused(source: Source) -> None:
    """Only the name and the tables are those of the log's database."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)")
    source.extract()
    source.server.drop_database(source.database)
    source.server.execute(f"CREATE DATABASE [{source.database}]", "master")
    source.sql("EXEC sys.sp_cdc_enable_db", TABLE, ENABLE.format(name="t"))
    with pytest.raises(DatabaseReplaced, match="another database has the source's name"):
        source.extract()


def test_a_database_that_was_restored_is_refused(source: Source) -> None:
    """The server has captured more than the log has, and another transaction at a commit of it."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)")
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (2)")
    source.extract()
    source.server.execute(
        "UPDATE cdc.lsn_time_mapping SET tran_end_time = DATEADD(SECOND, 7, tran_end_time)",
        source.database,
    )
    source.sql("INSERT INTO dbo.t (id) VALUES (3)")
    with pytest.raises(DatabaseReplaced, match="was restored"):
        source.extract()


def test_clean_up_of_unread_changes_is_loss(source: Source) -> None:
    """The low end of the instance has passed the log."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.t (id) VALUES (2)")
    found: list[bytes] = []

    def is_captured() -> bool:
        with connect(as_test(source.url)) as connection:
            rows = connection.execute(
                "SELECT [__$start_lsn] FROM cdc.[dbo_t_CT] ORDER BY [__$start_lsn]"
            )
        found[:] = [one for (one,) in rows]
        return len(found) == 2

    until(is_captured)
    source.sql(
        "EXEC sys.sp_cdc_cleanup_change_table @capture_instance = N'dbo_t', "
        f"@low_water_mark = 0x{found[1].hex()}"
    )
    with pytest.raises(ChangesLost):
        source.extract()


def test_errors_have_the_servers_number(source: Source) -> None:
    """The driver drops it; without it a deadlock could not be told from a syntax error."""
    with connect(as_test(source.url)) as connection:
        with pytest.raises(StatementFailed) as gone:
            connection.execute("SELECT * FROM dbo.nothing")
        assert gone.value.fields["errno"] == 208
        with pytest.raises(StatementFailed) as twice:
            connection.run("INSERT INTO dbo.t (id) VALUES (1), (1)")
        assert twice.value.fields["errno"] == 2627
        with pytest.raises(StatementFailed) as parameters:
            connection.execute("SELECT id FROM dbo.nothing WHERE id = ?", 1)
        assert parameters.value.fields["errno"] == 208
        assert connection.execute("SELECT COUNT(*) FROM dbo.t") == [(0,)]
    assert issubclass(StatementInterrupted, Exception)


def test_connections_that_cannot_be_made(source: Source) -> None:
    """Each reason has its class, and none shows the password."""
    wrong = source.server.url(source.database, password="not it")
    with pytest.raises(LoginRefused) as refused:
        connect(wrong)
    assert "not%20it" not in refused.value.message
    with pytest.raises(DatabaseRefused):
        connect(source.server.url("nowhere"))
    with pytest.raises(ServerUnreachable):
        connect(source.url.replace(f":{source.server.port}/", ":1/"))


def test_positions_in_the_log_are_commit_lsns(source: Source) -> None:
    """The log has those of the change table."""
    source.extract()
    source.sql("INSERT INTO dbo.t (id) VALUES (1)")
    source.extract()
    with connect(as_test(source.url)) as connection:
        ((start,),) = connection.execute("SELECT [__$start_lsn] FROM cdc.[dbo_t_CT]")
    found = []
    for segment in open_chain(list_segments(source.config().layout.log)):
        with segment:
            for entry in segment.row_frames():
                batch = segment.add_commit(segment.read_rows(entry).batch)
                found += [to_ordinal(one) for one in batch.column("position").to_pylist()]
    assert found == [int.from_bytes(start)]
