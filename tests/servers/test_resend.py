"""Resent rows come into the log at one exact position, and consumers end equal."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.extract import QUICK, Stop, extractor_of, running, set_up, until
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.pipelines.resend import View, answers, ask
from harness.pipelines.stream import run_sql
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source import table_actions
from penstock.host import faults

LIVE = replace(QUICK, exit_when_idle=False, table_interval_s=0.2)
DDL = """
    create table t (id int primary key, n int, note text);;
    create table u (id int primary key);;
    insert into t select i, i, 'row ' || i from generate_series(1, 2000) i
"""


def source_rows(sql: Any) -> dict[Any, dict[str, Any]]:
    """Return the table as the source has it."""
    rows = sql.execute("select id, n, note from t").fetchall()
    return {(row[0],): dict(zip(("id", "n", "note"), row, strict=True)) for row in rows}


@pytest.mark.promise
def test_after_resend_with_updates_meanwhile_the_view_equals_the_source(
    source_url: str, tmp_path: Path
) -> None:
    """Rows that the log never had are there, and each later change overrides them."""
    set_up(source_url, DDL)
    stop, writing = Stop(), threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            with connect(source_url, application_name="writer") as sql:
                number = 0
                while not writing.is_set():
                    number += 1
                    sql.execute("update t set n = n + 1 where id = %s", (number % 1900 + 1,))
                    sql.execute("insert into t values (%s, 0, 'new')", (10_000 + number,))
                    sql.execute("delete from t where id = %s", (10_000 + number - 40,))
                    sql.execute("update t set id = -id where id = %s", (1900 + number % 100,))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    extractor = extractor_of(source_url, tmp_path, options=LIVE, stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        thread.start()
        until(lambda: extractor.progress.row_count > 200)
        for number in (1, 2):
            ask(tmp_path, "public.t", number=number)
            until(
                lambda n=number: (
                    answers(tmp_path).get("public.t") and _read_resend_id(tmp_path) == n
                )
            )
            assert not answers(tmp_path)["public.t"].error
        behind = extractor.progress.row_count
        until(lambda: extractor.progress.row_count > behind + 200)
        writing.set()
        thread.join(30)
        expected = source_rows(sql)
        sql.execute("insert into u values (1)")
        until(lambda: View("public.u").read(tmp_path).rows, 30)
        stop.asked.set()
    assert errors == []
    view = View("public.t").read(tmp_path)
    assert view.reloads == 2
    assert len(view.resent) > 3500
    assert view.rows == expected
    assert len(expected) > 1900


def _read_resend_id(directory: Path) -> int:
    return answers(directory)["public.t"].resend_id


def test_what_cannot_be_sent_is_answered_in_the_published_words(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not captured, or its shape changes just then; the log continues."""
    set_up(source_url, DDL)
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=LIVE, stop=stop)
    original = table_actions.open_reload
    with connect(source_url, application_name="test") as sql, running(extractor):

        def alter_first(*given: Any, **more: Any) -> Any:
            monkeypatch.setattr(table_actions, "open_reload", original)
            sql.execute("alter table t add more int")
            return original(*given, **more)

        ask(tmp_path, "public.nothing")
        until(lambda: "public.nothing" in answers(tmp_path))
        assert answers(tmp_path)["public.nothing"].error == (
            "public.nothing is not captured by p: the change log has none of its changes"
        )
        monkeypatch.setattr(table_actions, "open_reload", alter_first)
        ask(tmp_path, "public.t", number=2)
        until(lambda: "public.t" in answers(tmp_path))
        said = answers(tmp_path)["public.t"]
        assert said.error.startswith(
            "the resend was cancelled: public.t changed its shape or its place"
        )
        assert said.hint
        sql.execute("update t set more = 5 where id = 7")
        ask(tmp_path, "public.t", number=3)
        until(lambda: _read_resend_id(tmp_path) == 3)
        assert not answers(tmp_path)["public.t"].error
        expected = source_rows(sql)
        sql.execute("insert into u values (1)")
        until(lambda: View("public.u").read(tmp_path).rows, 30)
        stop.asked.set()
    view = View("public.t").read(tmp_path)
    assert view.reloads == 1
    plain = {
        key: {name: row[name] for name in ("id", "n", "note")} for key, row in view.rows.items()
    }
    assert plain == expected
    assert view.rows[(7,)]["more"] == 5


@pytest.mark.parametrize("place", ["extract.resend.before", "extract.flush.before"])
def test_a_failure_meanwhile_leaves_a_request_that_is_carried_out(
    source_url: str, tmp_path: Path, place: str
) -> None:
    """The next attempt carries a request out: sent twice at worst, and never answered before."""
    set_up(source_url, DDL)
    extractor_of(source_url, tmp_path).run()
    ask(tmp_path, "public.t")
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=LIVE, stop=stop)
    with (
        connect(source_url, application_name="test") as sql,
        faults.arming(f"{place}:1:error"),
        running(extractor),
    ):
        until(lambda: "public.t" in answers(tmp_path))
        expected = source_rows(sql)
        stop.asked.set()
    view = View("public.t").read(tmp_path)
    assert view.rows == expected
    assert view.reloads == (2 if place == "extract.resend.before" else 1)


def _pid(path: Path) -> int:
    return next(one.pid for one in processes(load_config(path)) if one.name == "extract")


def test_the_command_returns_when_the_rows_are_in_the_log(source_url: str, tmp_path: Path) -> None:
    """The command works beside an extractor; refusals have published words and a next command."""
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, DDL)
    path = write_pipeline(
        tmp_path, source_url, None, tables=["public.t"], sections={"changeExtractor": LIVELY}
    )

    def read_refusal(*options: str) -> str:
        ran = penstock("resend", path, *options, "--json")
        assert ran.code == 1
        assert ran.error["hint"]
        return f"{ran.error['code']} {ran.error['error']}"

    assert read_refusal() == "PS20 no table is named"
    assert read_refusal("--tables", "public.t") == (
        "PS21 the resend was cancelled: no extractor of pipeline shop runs"
    )
    with Process(path, "extract") as extract:
        extract.until(lambda: _pid(path), "it extracts")
        assert read_refusal("--tables", "public.t,public.no") == (
            "PS20 there is no table public.no"
        )
        assert read_refusal("--tables", "public.u").startswith("PS20 public.u is not captured by ")
        ran = penstock("resend", path, "--tables", "public.t")
        assert (ran.code, ran.out) == (0, "The rows are in the change log again.\n")
        extract.stop()
    view = View("public.t").read(tmp_path / "shop")
    assert (view.reloads, len(view.rows), len(view.resent)) == (1, 2000, 2000)
