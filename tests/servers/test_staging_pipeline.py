"""`[staging]` in a pipeline of any source: a database keeps changes until the target has them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import ENGINES, Place, new_place
from penstock.log.layout import load_state
from penstock.ports.progress import open_progress
from plugins.shared import SharedServers

Row = tuple[str, Any, Any, bool, bool]
QUERY = """
    select key, convert_from(mut, 'utf8')::json, convert_from(before, 'utf8')::json,
           applied, deletion
      from {table} order by nanos, logical, key
"""


class Staged:
    """A source, a pipeline that stages its changes, and a target that only reports its position.

    Nothing is loaded: the test writes the target's progress row.
    """

    def __init__(self, source: Place, target: Place, staging: Place, folder: Path) -> None:
        self.source, self.target, self.staging, self.folder = source, target, staging, folder
        self.path = write_pipeline(
            folder,
            source.url,
            target.url,
            mode="change",
            tables=[f"{source.namespace}.*"],
            sections={
                "changeExtractor": LIVELY,
                "staging": {"url": staging.url},
                "target.map": {source.namespace: "public"},
            },
        )
        self.database = target.url.rpartition("/")[2].partition("?")[0]

    def table(self, name: str) -> str:
        """Return the name of a mutation table in SQL."""
        return f'public."_{self.database}_public_{name}"'

    def rows(self, name: str) -> list[Row]:
        """Return the staged rows of a table, in order of time."""
        try:
            return [(row[0], *row[1:]) for row in self.staging.run(QUERY.format(
                table=self.table(name)))]  # fmt: skip
        except psycopg.errors.UndefinedTable:
            return []

    def applies(self, gsn: int) -> None:
        """Record that the target has everything up to a change."""
        state = load_state(self.folder / "shop" / "log")
        log_id = "other" if state is None else state.log_id
        self.target.run(
            f"insert into wirekite.wirekite_log (log_id, applied_gsn) values ('{log_id}', {gsn})"
            " on conflict (only_row) do update set applied_gsn = excluded.applied_gsn"
        )

    def waiting(self) -> list[bool]:
        """Return whether each checkpoint waits, without a partition's first one."""
        found = self.staging.run(
            "select target_applied_at is null from checkpoints where source_hlc > 2"
            " order by source_hlc"
        )
        return [row[0] for row in found]

    def extracting(self) -> Process:
        """Start `penstock extract`."""
        run = Process(self.path, "extract")
        report = self.folder / "shop" / "run" / "extract.json"
        run.until(report.exists, "it extracts")
        return run

    def consuming(self) -> Process:
        """Return the process that `penstock run` starts for [staging]."""
        return Process(self.path, "consume", "staging")


@pytest.fixture(params=ENGINES)
def staged_source(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Staged]:
    """Staging with a source of each engine."""
    yield from staged_of(request.param, shared_servers, tmp_path)


@pytest.fixture
def staged_postgres(shared_servers: SharedServers, tmp_path: Path) -> Iterator[Staged]:
    """Staging with a source of one engine."""
    yield from staged_of(ENGINES[0], shared_servers, tmp_path)


def staged_of(engine: str, servers: SharedServers, folder: Path) -> Iterator[Staged]:
    """Make source, target and staging database, which are dropped afterwards."""
    with ExitStack() as stack:
        source, target, staging = (
            stack.enter_context(new_place(servers, one)) for one in (engine, ENGINES[0], ENGINES[0])
        )
        yield Staged(source, target, staging, folder)
        source.forget_log()


@pytest.mark.promise
def test_changes_wait_until_the_target_has_them(staged_source: Staged) -> None:
    """Each change has its key, its row and the old row; removals and changed keys are included."""
    source = staged_source.source
    source.run("create table item (id int primary key, name varchar(20), price decimal(8,2))")
    source.make_keyless("note", "line varchar(20)")
    with staged_source.extracting() as extract, staged_source.consuming() as consume:
        source.run("insert into item values (1, 'ä', 2.50)")  # gsn 1
        source.run("update item set price = 3 where id = 1")
        source.run("insert into note values ('x')")
        source.run("update item set id = 7 where id = 1")  # gsn 4 and 5
        source.run("delete from item where id = 7")
        consume.until(lambda: len(staged_source.rows("item")) == 5, "all is staged")
        found = staged_source.rows("item")
        assert [(key, after, deletion) for key, after, _, _, deletion in found] == [
            ("[1]", {"id": 1, "name": "ä", "price": 2.5}, False),
            ("[1]", {"id": 1, "name": "ä", "price": 3.0}, False),
            ("[1]", None, True),
            ("[7]", {"id": 7, "name": "ä", "price": 3.0}, False),
            ("[7]", None, True),
        ]
        before = found[3][2]
        assert before is not None
        assert before["id"] == 1
        consume.until(lambda: staged_source.rows("note") != [], "the table without a key, too")
        assert [row[:2] for row in staged_source.rows("note")] == [("[]", {"line": "x"})]
        assert not any(row[3] for row in staged_source.rows("item"))
        consume.until(lambda: len(staged_source.waiting()) > 1, "checkpoints come")
        assert all(staged_source.waiting())
        staged_source.applies(3)
        consume.until(lambda: staged_source.rows("item")[1][3], "what is applied is marked")
        time.sleep(1)
        assert [row[3] for row in staged_source.rows("item")] == [True, True, False, False, False]
        assert staged_source.rows("note")[0][3]
        staged_source.applies(6)
        consume.until(lambda: all(row[3] for row in staged_source.rows("item")), "the rest")
        consume.until(lambda: not any(staged_source.waiting()), "and the checkpoints")
        consume.stop()
        extract.stop()


@pytest.mark.promise
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_run_stages_what_its_load_has_not_applied(staged_source: Staged) -> None:
    """Changes of a paused table wait in the staging database; later they are marked."""
    source, target, path = staged_source.source, staged_source.target, staged_source.path
    source.run("create table item (id int primary key, n int)", "insert into item values (1, 0)")
    text = path.read_text().replace('mode = "change"', 'mode = "data+change"')
    path.write_text(text + '[spark]\nmaster = "local[2]"\n')
    table = f"{source.namespace}.item"
    with Process(path) as run:
        run.until(lambda: read_copied(target) == [(1, 0)], "the table is copied", 240)
        source.run("update item set n = 1 where id = 1")
        run.until(lambda: staged_source.rows("item") != [], "it is staged")
        run.until(lambda: staged_source.rows("item")[0][3], "and marked", 120)
        assert read_copied(target) == [(1, 1)]
        assert penstock("table", "pause", path, table).code == 0
        source.run("update item set n = 2 where id = 1", "insert into item values (2, 0)")
        run.until(lambda: len(staged_source.rows("item")) == 3, "they wait")
        time.sleep(3)
        assert [row[3] for row in staged_source.rows("item")] == [True, False, False]
        assert read_copied(target) == [(1, 1)]
        assert penstock("table", "resume", path, table).code == 0
        run.until(lambda: all(row[3] for row in staged_source.rows("item")), "they are marked", 120)
        assert read_copied(target) == [(1, 2), (2, 0)]
        run.until(lambda: not any(staged_source.waiting()), "the checkpoints, too")
        run.stop()


def read_copied(target: Place) -> list[Any]:
    """Return the rows of the target; none if it has no table yet."""
    try:
        return target.run("select id, n from item order by id")
    except psycopg.errors.UndefinedTable:
        return []


def test_what_is_read_again_changes_nothing(staged_postgres: Staged) -> None:
    """The process is killed at its points and at random; each change is staged once, in order."""
    staged, chance = staged_postgres, random.Random(3)
    source = staged.source
    source.run("create table item (id int primary key, n int)")
    model: list[tuple[str, Any]] = []
    n = 0
    with staged.extracting() as extract:
        for point in ("", "staging.rows.staged", "staging.marks.saved", "consume.link.before", ""):
            os.environ["PENSTOCK_FAULT"] = f"{point}:{chance.randint(1, 3)}:kill" if point else ""
            with staged.consuming() as consume:
                deadline = time.monotonic() + 60
                for _ in range(40):
                    statements = ["begin"]
                    for _ in range(chance.randint(1, 3)):
                        n += 1
                        key = n * 100 + chance.randint(0, 99)
                        statements.append(f"insert into item values ({key}, {n})")
                        model.append((f"[{key}]", {"id": key, "n": n}))
                    source.run(*statements, "commit")
                    time.sleep(0.02)
                if point:
                    assert consume.wait_for_end(60) == -9
                else:
                    while len(staged.rows("item")) < len(model):
                        assert consume.running, consume.err
                        assert time.monotonic() < deadline
                        time.sleep(0.05)
            del os.environ["PENSTOCK_FAULT"]
        assert [row[:2] for row in staged.rows("item")] == model
        extract.stop()
    times = staged.staging.run(
        f"select nanos, logical from {staged.table('item')} order by nanos, logical, key"
    )
    assert times == sorted(set(times))


def test_a_staging_server_that_is_away_ends_only_this_process(staged_postgres: Staged) -> None:
    """`penstock run` reports the failure and restarts it; missed changes are in the log."""
    staged = staged_postgres
    staged.source.run("create table item (id int primary key)")
    with staged.extracting() as extract:
        staged.source.run("insert into item values (1)")
        text = staged.path.read_text()
        wrong = staged.staging.url.replace("postgresql://", "postgresql://nobody_")
        staged.path.write_text(text.replace(staged.staging.url, wrong))
        ran = penstock("consume", staged.path, "staging", "--json")
        assert ran.code == 1
        assert ran.error["code"] == "HS23"
        staged.path.write_text(text)
        with staged.consuming() as consume:
            consume.until(lambda: len(staged.rows("item")) == 1, "nothing is lost")
            consume.stop()
        extract.stop()


def test_the_target_is_asked_how_far_it_is(staged_postgres: Staged) -> None:
    """The loader's format is used: this file contains the name of the column, too."""
    staged_postgres.source.run("create table item (id int primary key)")
    with staged_postgres.extracting() as extract:
        staged_postgres.applies(5)
        progress = open_progress(staged_postgres.target.url, application_name="test")
        assert progress.read_applied().gsn == 5
        progress.close()
        extract.stop()


def test_a_target_of_another_log_says_nothing(staged_postgres: Staged) -> None:
    """The other log's numbers belong to other changes."""
    staged = staged_postgres
    staged.source.run("create table item (id int primary key)")
    with staged.extracting() as extract, staged.consuming() as consume:
        staged.source.run("insert into item values (1)")
        staged.applies(9)
        staged.target.run("update wirekite.wirekite_log set log_id = 'another'")
        consume.until(lambda: len(staged.rows("item")) == 1, "it is staged")
        time.sleep(2)
        assert not staged.rows("item")[0][3]
        staged.applies(9)
        staged.target.run("delete from wirekite.wirekite_log")
        staged.applies(9)
        consume.until(lambda: staged.rows("item")[0][3], "its own does")
        consume.stop()
        extract.stop()


def test_a_pipeline_without_target_has_nothing_to_wait_for(tmp_path: Path) -> None:
    """The refusal says what to do."""
    path = write_pipeline(
        tmp_path,
        "postgresql://a@localhost/shop",
        None,
        sections={"staging": {"url": "postgresql://a@localhost/_replicator"}},
    )
    ran = penstock("run", path, "--json")
    assert ran.code != 0
    assert "there is no [target]" in ran.error["error"]
    path = write_pipeline(
        tmp_path,
        "postgresql://a@localhost/shop",
        "postgresql://b@localhost/shop",
        mode="data",
        sections={"staging": {"url": "postgresql://a@localhost/_replicator"}},
    )
    ran = penstock("run", path, "--json")
    assert ran.code != 0
    assert "mode data has no changes to stage" in ran.error["error"]
