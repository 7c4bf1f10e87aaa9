"""The extractor is killed at every kind of moment; after a restart the log is as without a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.pipelines.stream import changes_of, run_sql
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import (
    PositionGone,
    create_slot,
    ensure_publication,
    read_slot,
)
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.log import check, list_segments, open_chain, open_segment
from penstock.model import MarkerKind, Run

pytestmark = pytest.mark.faults
CHILD = Path(__file__).with_name("extract_child.py")
MOMENTS = [
    "extract.write.after:3",
    "extract.flush.before:2",
    "extract.flush.after:2",
    "extract.acknowledge.after:3",
    "extract.rotate.before:2",
    "extract.rotate.after:1",
    "extract.record.before:1",
    "extract.record.after:2",
    "extract.relations.before:1",
    "extract.done.before:1",
    "stream.start.before:1",
    "stream.acknowledge.before:2",
    "stream.acknowledge.after:1",
    "spill.append.before:2",
    "spill.append.after:3",
    "spill.remove.before:1",
    "catchup.advance.before:1",
    "catchup.advance.after:2",
    "log.create.before:2",
    "log.create.after:1",
    "log.flush.before:3",
    "log.flush.after:1",
]


def _child(url: str, directory: Path, fault: str = "") -> int:
    environment = {**os.environ, "PENSTOCK_FAULT": f"{fault}:kill" if fault else ""}
    done = subprocess.run(
        [sys.executable, str(CHILD), url, str(directory), "1" if "catchup" in fault else "0"],
        env=environment,
        timeout=120,
        capture_output=True,
        check=False,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        pytest.fail(done.stderr.decode()[-3000:])
    return done.returncode


def _set_up(url: str) -> None:
    with connect(url, application_name="test") as sql:
        name = sql.info.dbname
        run_sql(
            sql,
            f"""alter database "{name}" set logical_decoding_work_mem = '64kB';;
            create table t (id int primary key, v text)""",
        )
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
        ensure_publication(catalog, "p", [table.name for table in tables])
    with open_replication(url, application_name="test") as replication:
        create_slot(replication, url, "penstock_kill", snapshot=False)


def _work(url: str, directory: Path) -> None:
    """Run small transactions for a while, and one that is streamed and partly rolled back.

    Begins once the extractor runs, so that it reads them one by one.
    """
    deadline = time.monotonic() + 20
    while not (directory / "spill").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with connect(url, application_name="work", autocommit=False) as sql:
        for number in range(40):
            sql.execute("insert into t values (%s, 'a')", (number,))
            sql.execute("update t set v = 'b' where id = %s", (number,))
            sql.commit()
            time.sleep(0.01)
        sql.execute("insert into t select i, repeat('x', 100) from generate_series(100, 1500) i")
        sql.execute("savepoint s")
        sql.execute("insert into t select i, repeat('y', 100) from generate_series(2000, 3000) i")
        sql.execute("rollback to s")
        sql.execute("delete from t where id < 20")
        sql.commit()
        for number in range(4000, 4040):
            sql.execute("insert into t values (%s, 'c')", (number,))
            sql.commit()
            time.sleep(0.01)


def _replay_log(directory: Path) -> dict[int, str]:
    """Return the table by applying the log's rows in order; fails on anything unexpected."""
    table: dict[int, str] = {}
    last_gsn = last_trx = 0
    for segment in open_chain(list_segments(directory / "log")):
        with segment:
            changes = changes_of(Run(rows=tuple(segment.rows())))
            assert not [m for m in segment.markers() if m.kind is MarkerKind.RELOAD]
        for change in changes:
            assert change.gsn == last_gsn + 1
            assert change.trx in (last_trx, last_trx + 1)
            last_gsn, last_trx = change.gsn, change.trx
            if change.op == "D":
                assert change.before is not None
                del table[change.before["id"]]
                continue
            assert change.after is not None
            key = change.after["id"]
            assert (key in table) is (change.op == "U")
            table[key] = change.after["v"]
    return table


@pytest.mark.promise
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again(source_url: str, tmp_path: Path, moment: str) -> None:
    """Every row comes once and in order, whatever the moment, and the log passes its own
    examination.
    """
    _set_up(source_url)
    worker = threading.Thread(target=_work, args=(source_url, tmp_path))
    worker.start()
    if "catchup" in moment:  # there must be something to catch up with
        (tmp_path / "spill").mkdir()
        worker.join()
    killed = _child(source_url, tmp_path, moment)
    worker.join()
    assert killed == -signal.SIGKILL, f"{moment} was not reached"
    assert _child(source_url, tmp_path) == 0
    with connect(source_url, application_name="test") as sql:
        rows = dict(sql.execute("select id, v from t").fetchall())
    assert _replay_log(tmp_path) == rows
    assert [f for f in check(tmp_path / "log") if f.severity == "error"] == []


def _insert(url: str, count: int) -> None:
    """Insert rows in transactions that are finished before the extraction begins."""
    with connect(url, application_name="work") as sql:
        for number in range(count):
            sql.execute("insert into t values (%s, 'a')", (number,))


def _lose_last_flush_point(directory: Path) -> None:
    """Truncate the open segment by its last byte, so that its last flush point is torn."""
    (path,) = (directory / "log").glob("*.ckt_")
    os.truncate(path, path.stat().st_size - 1)


def _read_confirmed(url: str) -> int:
    with open_replication(url, application_name="test") as replication:
        state = read_slot(replication, "penstock_kill")
    assert state is not None
    return state.confirmed_flush


def test_what_the_server_forgot_is_kept_when_it_is_cut_off(source_url: str, tmp_path: Path) -> None:
    """The last copy of an acknowledged change is never deleted; the error says where it is."""
    _set_up(source_url)
    _insert(source_url, 10)
    assert _child(source_url, tmp_path, "log.footer.before:1") == -signal.SIGKILL
    (path,) = (tmp_path / "log").glob("*.ckt_")
    with open_segment(path) as segment:
        end = segment.end
    deadline = time.monotonic() + 20
    while _read_confirmed(source_url) < end.position:
        assert time.monotonic() < deadline, "the server does not hear the acknowledgement"
        time.sleep(0.05)
    _lose_last_flush_point(tmp_path)
    with open_catalog(source_url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
    options = ExtractOptions(slot="penstock_kill", publication="p", exit_when_idle=True)
    for _ in range(2):
        engine = PostgresEngine(source_url, tables=tables, options=options)
        with pytest.raises(PositionGone) as gone:
            Extractor(engine, tmp_path, options=options).run()
        (kept,) = (tmp_path / "log").glob("*.cut-*")
        assert kept.name in gone.value.hint
    (finding,) = [f for f in check(tmp_path / "log") if f.code == "LG25"]
    assert f"rows up to gsn {end.gsn}" in finding.message


def test_what_the_server_still_has_is_not_kept(source_url: str, tmp_path: Path) -> None:
    """A cut tail is not kept as a file if the server still has its changes; they are read again."""
    _set_up(source_url)
    _insert(source_url, 10)
    assert _child(source_url, tmp_path, "log.fdatasync.after:1") == -signal.SIGKILL
    _lose_last_flush_point(tmp_path)
    assert _child(source_url, tmp_path) == 0
    assert not list((tmp_path / "log").glob("*.cut-*"))
    with connect(source_url, application_name="test") as sql:
        rows = dict(sql.execute("select id, v from t").fetchall())
    assert _replay_log(tmp_path) == rows


def test_killed_again_and_again(source_url: str, tmp_path: Path) -> None:
    """Ten kills in a row come at ever later moments, while rows are written to the source."""
    _set_up(source_url)
    worker = threading.Thread(target=_work, args=(source_url, tmp_path))
    worker.start()
    points = ("extract.write.after", "extract.flush.after", "extract.rotate.before")
    for number in range(9):
        _child(source_url, tmp_path, f"{points[number % 3]}:{1 + number // 3}")
    worker.join()
    assert _child(source_url, tmp_path) == 0
    with connect(source_url, application_name="test") as sql:
        rows = dict(sql.execute("select id, v from t").fetchall())
    assert _replay_log(tmp_path) == rows
