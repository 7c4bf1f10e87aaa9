"""Requirements of resent rows for the servers under test: they are in the log at one exact
position, and consumers end equal.

Not here: what one engine alone does (`tests/servers/test_resend.py` and others of that name).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines import extract, mysql_extract
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.extract import Stop, running, until
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.pipelines.resend import View, answers, ask
from harness.servers.engines import ENGINES, MySQLPlace, Place, new_place
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.host import faults
from plugins.shared import SharedServers

ROW_COUNT = 2000
COLUMNS = ("id", "n", "note")


class Source:
    """A table `t` with rows that the log never had, beside an empty table `u`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.table, self.other = f"{place.namespace}.t", f"{place.namespace}.u"
        values = ", ".join(f"({n}, {n}, 'row {n}')" for n in range(1, ROW_COUNT + 1))
        tables = (
            "create table t (id int primary key, n int, note varchar(40))",
            "create table u (id int primary key)",
        )
        if isinstance(place, MySQLPlace):
            place.run(*tables)
        else:
            extract.set_up(place.url, ";;".join(tables))
        place.run(f"insert into t values {values}")

    def read_rows(self) -> dict[Any, dict[str, Any]]:
        """Return the rows of `t` by key."""
        rows = self.place.run("select id, n, note from t")
        return {(row[0],): dict(zip(COLUMNS, row, strict=True)) for row in rows}

    def switch_log(self) -> None:
        """Let the server's log continue in another file."""
        is_mysql = isinstance(self.place, MySQLPlace)
        self.place.run("flush binary logs" if is_mysql else "select pg_switch_wal()")

    def make_extractor(self, directory: Path, **more: Any) -> Any:
        """Return an extractor of both tables."""
        part = mysql_extract if isinstance(self.place, MySQLPlace) else extract
        return part.extractor_of(self.place.url, directory, **more)

    @contextmanager
    def extracting(self, directory: Path) -> Iterator[Any]:
        """Run an extractor for a with block."""
        is_mysql = isinstance(self.place, MySQLPlace)
        quick = mysql_extract.OPTIONS if is_mysql else extract.QUICK
        options = replace(quick, exit_when_idle=False, table_interval_s=0.2)
        stop = Stop()
        extractor = self.make_extractor(directory, options=options, stop=stop)
        with running(extractor):
            try:
                until(lambda: extractor.progress.state == "streaming")
                yield extractor
            finally:
                stop.asked.set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Change rows of all kinds in a thread for a with block."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def write() -> None:
            try:
                for first in itertools.count(1, 10):
                    if ended.is_set():
                        return
                    # Together, because each run is a new connection.
                    self.place.run("; ".join(map(_change, range(first, first + 10))))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(60)
        assert errors == []


def _change(number: int) -> str:
    """Return statements of all kinds."""
    return (
        f"update t set n = n + 1 where id = {number % 1900 + 1}; "
        f"insert into t values ({10_000 + number}, 0, 'new'); "
        f"delete from t where id = {10_000 + number - 40}; "
        f"update t set id = -id where id = {1900 + number % 100}"
    )


@pytest.fixture(params=ENGINES)
def source(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Source]:
    """A source of each engine."""
    with new_place(shared_servers, request.param) as place:
        yield Source(place)
        place.forget_log()


def read_answered(directory: Path, table: str) -> int:
    """Return the number of the last request that was answered; 0 if none was."""
    answer = answers(directory).get(table)
    return answer.resend_id if answer is not None else 0


@pytest.mark.promise
def test_after_resend_with_updates_meanwhile_the_view_equals_the_source(
    source: Source, tmp_path: Path
) -> None:
    """Rows that the log never had are there, and each later change overrides them."""
    with source.extracting(tmp_path) as extractor:
        with source.writing():
            until(lambda: extractor.progress.row_count > 200)
            for number in (1, 2, 3):
                if number == 2:
                    source.switch_log()
                ask(tmp_path, source.table, number=number)
                until(lambda n=number: read_answered(tmp_path, source.table) == n)
                assert not answers(tmp_path)[source.table].error
            behind = extractor.progress.row_count
            until(lambda: extractor.progress.row_count > behind + 200)
        expected = source.read_rows()
        source.place.run("insert into u values (1)")
        until(lambda: View(source.other).read(tmp_path).rows)
    view = View(source.table).read(tmp_path)
    assert view.reloads == 3
    assert len(view.resent) > 5500
    assert view.rows == expected
    assert len(expected) > 1900


@pytest.mark.parametrize("point", ["extract.resend.before", "extract.flush.before"])
def test_a_failure_meanwhile_leaves_a_request_that_is_carried_out(
    source: Source, tmp_path: Path, point: str
) -> None:
    """The next attempt carries a request out: sent twice at worst, and never answered before."""
    source.make_extractor(tmp_path).run()
    ask(tmp_path, source.table)
    with faults.arming(f"{point}:1:error"), source.extracting(tmp_path):
        until(lambda: read_answered(tmp_path, source.table))
    view = View(source.table).read(tmp_path)
    assert view.rows == source.read_rows()
    count = 2 if point == "extract.resend.before" else 1
    assert view.reloads in ({1, 2} if isinstance(source.place, MySQLPlace) else {count})


def test_the_command_returns_when_the_rows_are_in_the_log(source: Source, tmp_path: Path) -> None:
    """The command works beside an extractor; refusals have published words and a next command."""
    table = source.table
    path = write_pipeline(
        tmp_path, source.place.url, None, tables=[table], sections={"changeExtractor": LIVELY}
    )

    def read_refusal(*options: str) -> str:
        ran = penstock("resend", path, *options, "--json")
        assert ran.code == 1
        assert ran.error["hint"]
        return f"{ran.error['code']} {ran.error['error']}"

    def is_extracting() -> bool:
        return any(one.name == "extract" for one in processes(load_config(path)))

    assert read_refusal() == "PS20 no table is named"
    assert read_refusal("--tables", table) == (
        "PS21 the resend was cancelled: no extractor of pipeline shop runs"
    )
    with Process(path, "extract") as process:
        process.until(is_extracting, "it extracts")
        assert read_refusal("--tables", f"{table},{table}t") == f"PS20 there is no table {table}t"
        said = read_refusal("--tables", source.other)
        assert said.startswith(f"PS20 {source.other} is not captured by ")
        ran = penstock("resend", path, "--tables", table)
        assert (ran.code, ran.out) == (0, "The rows are in the change log again.\n")
        process.stop()
    view = View(table).read(tmp_path / "shop")
    assert (view.reloads, len(view.rows), len(view.resent)) == (1, ROW_COUNT, ROW_COUNT)
