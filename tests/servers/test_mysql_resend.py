"""Rows of MySQL and MariaDB that are resent: at one exact position, and consumers end equal.

Not here: what holds for each engine (`tests/conformance/test_resends.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.extract import Stop, running, segments_of, until
from harness.pipelines.mysql_extract import OPTIONS, extractor_of, sql
from harness.pipelines.pipeline import write_pipeline
from harness.pipelines.resend import View, answers, ask, texts_of, unequal
from harness.servers.mysql_columns import ManyColumns, columns_for
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.engines.mysql.source import reload, requests
from penstock.engines.mysql.source.assemble import Assembler
from penstock.engines.mysql.source.live_tables import LiveTables
from penstock.engines.mysql.source.reload import open_reload
from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.model import PenstockError, TableName
from plugins.mysql import MySQLServer, database_of

LIVE = replace(OPTIONS, exit_when_idle=False)
T = "create table t (id int primary key, n int, note varchar(40));; create table u (id int)"


@pytest.fixture
def table(mysql: MySQLServer, mysql_url: str) -> str:
    """Name of a table with 2000 rows that the log never had, beside an empty table u."""
    sql(mysql, mysql_url, T)
    values = ", ".join(f"({number}, {number}, 'row {number}')" for number in range(1, 2001))
    sql(mysql, mysql_url, f"insert into t values {values}")
    return f"{database_of(mysql_url)}.t"


def source_rows(mysql: MySQLServer, url: str) -> dict[Any, dict[str, Any]]:
    """Return the table as the source has it."""
    rows = mysql.execute("select id, n, note from t", database_of(url))
    return {(row[0],): dict(zip(("id", "n", "note"), row, strict=True)) for row in rows}


def read_answered(directory: Path, table: str) -> int:
    """Return the number of the last request that was answered."""
    answer = answers(directory).get(table)
    return answer.resend_id if answer is not None else 0


@contextmanager
def extracting(url: str, directory: Path, **more: Any) -> Iterator[Any]:
    """Run an extractor until the end of the with block."""
    stop = Stop()
    extractor = extractor_of(url, directory, options=LIVE, stop=stop, **more)
    with running(extractor):
        try:
            until(lambda: extractor.progress.state == "streaming")
            yield extractor
        finally:
            stop.asked.set()


def resent(directory: Path, table: str, number: int = 1) -> Any:
    """Return the answer to a new request."""
    ask(directory, table, number=number)
    until(lambda: read_answered(directory, table) == number)
    return answers(directory)[table]


def is_at(extractor: Any, mysql: MySQLServer) -> bool:
    """Return whether the stream is at the end of the binlog."""
    stream = extractor._engine._stream
    file, offset = mysql.status()
    return stream is not None and stream.known_end >= BinlogPosition.at(file, offset).ordinal


def test_a_snapshot_that_the_stream_has_overtaken_is_taken_again(
    mysql: MySQLServer,
    mysql_url: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The snapshot's rows would come after changes that they lack, and override them."""
    original = open_reload
    given: list[int] = []
    with extracting(mysql_url, tmp_path) as extractor, ExitStack() as stack:
        live = LiveTables(mysql_url, fold=False)
        stack.callback(live.close)
        definition = live.read(TableName(*table.split(".")))
        assert definition is not None
        server = extractor._engine._identity.name
        old = stack.enter_context(original(mysql_url, definition, live=live, server=server))

        @contextmanager
        def overtaken(*words: Any, **more: Any) -> Iterator[Any]:
            given.append(len(given))
            if len(given) == 1:
                yield old
                return
            with original(*words, **more) as job:
                yield job

        monkeypatch.setattr(requests, "open_reload", overtaken)
        sql(mysql, mysql_url, "update t set n = -1 where id = 7;; delete from t where id = 8")
        until(lambda: extractor.progress.row_count == 2)
        assert not resent(tmp_path, table).error
    view = View(table).read(tmp_path)
    assert len(given) == 2
    assert view.rows == source_rows(mysql, mysql_url)
    assert view.rows[(7,)]["n"] == -1


def test_an_idle_server_whose_binlog_was_rotated(
    mysql: MySQLServer, mysql_url: str, table: str, tmp_path: Path
) -> None:
    """No transaction comes any more: the stream that saw the new file answers, and so does the
    next.
    """
    sql(mysql, mysql_url, "insert into u values (1)")
    for number in (1, 2):
        with extracting(mysql_url, tmp_path) as extractor:
            mysql.execute("flush binary logs")
            until(lambda it=extractor: is_at(it, mysql))
            assert not resent(tmp_path, table, number).error
    view = View(table).read(tmp_path)
    assert (view.reloads, len(view.resent)) == (2, 4000)
    assert view.rows == source_rows(mysql, mysql_url)


def test_rows_that_break_off_are_taken_out_again(
    mysql: MySQLServer,
    mysql_url: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request is repeated after a lost connection, and answered after an error of the server."""
    original = reload.ReloadJob._blocks
    breaks: list[PenstockError] = [
        ConnectionLost("cut", hint="again"),
        StatementFailed("refused", hint="look"),
    ]

    def broken(self: Any, relation: Any) -> Iterator[bytes]:
        lines = b"".join(original(self, relation)).splitlines(keepends=True)
        yield b"".join(lines[:500])
        if breaks:
            raise breaks.pop(0)
        yield b"".join(lines[500:])

    with extracting(mysql_url, tmp_path):
        monkeypatch.setattr(reload.ReloadJob, "_blocks", broken)
        sql(mysql, mysql_url, "insert into u values (1)")
        answer = resent(tmp_path, table)
        assert (answer.error, answer.hint) == ("refused", "look")
        sql(mysql, mysql_url, "insert into u values (2)")
        assert not resent(tmp_path, table, 2).error
    view = View(table).read(tmp_path)
    assert (view.reloads, len(view.resent)) == (1, 2000)
    assert view.rows == source_rows(mysql, mysql_url)


def test_what_cannot_be_sent_is_answered_in_the_published_words(
    mysql: MySQLServer,
    mysql_url: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table is not captured, dropped, just altered, or has no snapshots; the log continues."""
    database = database_of(mysql_url)
    original = open_reload

    def after(statement: str) -> Any:
        @contextmanager
        def open_altered(*words: Any, **more: Any) -> Iterator[Any]:
            monkeypatch.setattr(requests, "open_reload", original)
            sql(mysql, mysql_url, statement)
            with original(*words, **more) as job:
                yield job

        return open_altered

    sql(mysql, mysql_url, "create table plain (id int primary key) engine = MyISAM")
    with extracting(mysql_url, tmp_path):
        said = resent(tmp_path, f"{database}.nothing").error
        assert said.startswith(f"{database}.nothing is not captured by ")
        said = resent(tmp_path, f"{database}.plain", 2)
        assert "MyISAM) has no snapshots" in said.error
        assert "engine = InnoDB" in said.hint
        monkeypatch.setattr(requests, "open_reload", after("alter table t add more int"))
        said = resent(tmp_path, table, 3)
        assert said.error.startswith(f"the resend was cancelled: {table} changed its shape")
        sql(mysql, mysql_url, "update t set more = 5 where id = 7")
        assert not resent(tmp_path, table, 4).error
        monkeypatch.setattr(requests, "open_reload", after("drop table u"))
        said = resent(tmp_path, f"{database}.u", 5)
        assert said.error == f"there is no table {database}.u"
        expected = source_rows(mysql, mysql_url)
    view = View(table).read(tmp_path)
    assert view.reloads == 1
    assert view.rows[(7,)].pop("more") == 5
    assert {
        key: {name: row[name] for name in ("id", "n", "note")} for key, row in view.rows.items()
    } == expected


def test_a_table_that_is_rewritten_behind_the_point_is_read_at_a_later_one(
    mysql: MySQLServer,
    mysql_url: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table was emptied between snapshot and lock: its rows at the point are lost."""
    original, statements = reload._hold, ["truncate table t", "insert into t values (1, 2, 'x')"]

    def empty_first(*words: Any) -> Any:
        while statements:
            sql(mysql, mysql_url, statements.pop(0))
        return original(*words)

    monkeypatch.setattr(reload, "_hold", empty_first)
    with extracting(mysql_url, tmp_path):
        assert not resent(tmp_path, table).error
    view = View(table).read(tmp_path)
    assert view.reloads == 1
    assert view.rows == {(1,): {"id": 1, "n": 2, "note": "x"}}


def test_an_account_that_gets_no_exact_position_is_told_what_to_grant(
    mysql: MySQLServer, mysql_url: str, table: str, tmp_path: Path
) -> None:
    """MySQL gives rows and position together only under a lock; MariaDB without one."""
    database = database_of(mysql_url)
    grants = ["replication client on *.*", "replication slave on *.*", f"select on {database}.*"]
    with mysql.role(*grants) as account:
        url = f"{account.rstrip('/')}/{database}"
        with extracting(url, tmp_path):
            answer = resent(tmp_path, table)
    if mysql.is_mariadb:
        assert not answer.error
    else:
        assert "cannot be read at an exact position" in answer.error
        assert "grant lock tables" in answer.hint


def test_values_of_every_type_are_those_of_the_stream(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Every column of SHOW CREATE TABLE is equal, even if a value makes its column text."""
    made = ManyColumns(mysql, mysql_url, columns_for(is_mariadb=mysql.is_mariadb))
    extractor_of(mysql_url, tmp_path).run()
    made.fill()
    extractor_of(mysql_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        count = len(segments)
    tables = sorted({table for table, _ in made.names})
    with extracting(mysql_url, tmp_path):
        for number, table in enumerate(tables, 1):
            assert not resent(tmp_path, f"{made.database}.{table}", number).error
    with segments_of(tmp_path) as segments:
        changed, read = texts_of(segments[:count]), texts_of(segments[count:])
    assert unequal(changed, read, made.names) == {}


def test_tables_without_a_key_and_in_partitions(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Each copy of a row comes; partitions come as one table."""
    ddl = """
        create table bare (a int, b varchar(9));;
        create table parts (id int primary key, v int) partition by hash (id) partitions 3
    """
    sql(mysql, mysql_url, ddl)
    sql(mysql, mysql_url, "insert into bare values (1, 'x'), (1, 'x'), (2, null)")
    sql(mysql, mysql_url, "insert into parts values (1, 1), (2, 2), (3, 3), (4, 4)")
    database = database_of(mysql_url)
    with extracting(mysql_url, tmp_path):
        assert not resent(tmp_path, f"{database}.bare").error
        assert not resent(tmp_path, f"{database}.parts", 2).error
        sql(
            mysql,
            mysql_url,
            "update parts set v = 9 where id = 4;; insert into bare values (3, '')",
        )
        until(lambda: View(f"{database}.parts").read(tmp_path).rows.get((4,), {}).get("v") == 9)
    with segments_of(tmp_path) as segments:
        rows = [
            tuple(row["after"].values())
            for segment in segments
            for found in segment.rows()
            if found.relation.name == "bare"
            for row in found.batch.to_pylist()
        ]
    assert sorted(map(str, rows)) == sorted(map(str, [(1, "x"), (1, "x"), (2, None), (3, "")]))
    view = View(f"{database}.parts").read(tmp_path)
    assert {key[0]: row["v"] for key, row in view.rows.items()} == {1: 1, 2: 2, 3: 3, 4: 9}


def test_rows_come_in_runs_of_bounded_size(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is never whole in memory, but its rows are one transaction."""
    sql(mysql, mysql_url, "create table t (id int primary key, note text)")
    for thousand in range(12):
        values = ", ".join(f"({thousand * 1000 + n}, repeat('x', 1000))" for n in range(1000))
        sql(mysql, mysql_url, f"insert into t values {values}")
    sizes: list[int] = []
    original = Assembler.give

    def note_run(self: Any, run: Any, byte_count: int = 0) -> None:
        sizes.append(sum(rows.batch.num_rows for rows in run.rows))
        original(self, run, byte_count)

    monkeypatch.setattr(Assembler, "give", note_run)
    table = f"{database_of(mysql_url)}.t"
    with extracting(mysql_url, tmp_path):
        assert not resent(tmp_path, table).error
    assert sum(sizes) == 12_000
    assert max(sizes) < 4_000
    with segments_of(tmp_path) as segments:
        trxs = {
            trx
            for segment in segments
            for rows in segment.rows()
            for trx in rows.batch.column("trx").to_pylist()
        }
    assert trxs == {1}


def _pid(path: Path) -> int:
    return next(one.pid for one in processes(load_config(path)) if one.name == "extract")


@pytest.mark.parametrize(
    "place",
    ["extract.resend.rows:4:kill", "extract.flush.before:1:kill", "extract.resend.before:1:kill"],
)
def test_killed_in_the_middle_and_started_again(
    mysql: MySQLServer,
    mysql_url: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """The log holds all rows, and the view equals the source."""
    sql(mysql, mysql_url, "alter table t modify note text;; update t set note = repeat('x', 3000)")
    path = write_pipeline(
        tmp_path, mysql_url, None, tables=[table], sections={"changeExtractor": LIVELY}
    )
    directory = tmp_path / "shop"
    with Process(path, "extract") as extract:
        extract.until(lambda: _pid(path), "it extracts")
        extract.stop()
    ask(directory, table)
    with monkeypatch.context() as faulty:
        faulty.setenv("PENSTOCK_FAULT", place)
        with Process(path, "extract") as extract:
            assert extract.wait_for_end() == -signal.SIGKILL
    assert not read_answered(directory, table)
    with Process(path, "extract") as extract:
        extract.until(lambda: read_answered(directory, table), "the rows are sent")
        extract.stop()
    view = View(table).read(directory)
    assert view.reloads == (2 if place.startswith("extract.resend.before") else 1)
    assert view.rows == source_rows(mysql, mysql_url)
    assert len(view.resent) == 2000 * view.reloads
