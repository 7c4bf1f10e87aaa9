"""A `penstock table add` that a MySQL or MariaDB source refuses, and its repetition."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLE = "create table {} (id int primary key, n int)"


def test_an_addition_that_was_refused_can_be_repeated(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The table does not exist when the extractor looks at it; this is reported, and others
    continue.
    """
    place = database_of(mysql_url)
    late = f"{place}.late"
    for name in ("item", "late"):
        mysql.execute(f"{TABLE.format(name)}; insert into {name} values (1, 1)", place)
    path = write_pipeline(
        tmp_path,
        mysql_url,
        target_url,
        tables=[f"{place}.item"],
        sections={
            "changeExtractor": {"flushIntervalSeconds": 0.3},
            "target.map": {place: "public"},
            "spark": {"master": "local[2]"},
        },
    )

    def command(what: str, name: str) -> Any:
        ran = penstock("table", what, path, name, "--json")
        return ran.error["code"] if ran.code else ""

    def line() -> dict[str, Any]:
        ran = penstock("table", "ls", path, "--json")
        assert ran.code == 0, ran.err
        found = [json.loads(text) for text in ran.out.splitlines()]
        return next((one for one in found if one["table"] == late), {})

    def rows(name: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(target_url) as connection:
            return connection.execute(f"select * from {name} order by id").fetchall()  # type: ignore[call-overload, no-any-return, arg-type]

    assert command("add", f"{place}.nowhere")
    assert command("add", f"{place}.item") == "CT61"
    assert command("pause", f"{place}.nowhere") == "CT60"
    with Process(path, "extract") as extract, Process(path, "load") as load:

        def until(condition: Callable[[], bool], what: str) -> None:
            load.until(lambda: extract.running and condition(), what)

        until(
            lambda: load_config(path).layout.run.joinpath("load.json").exists(),
            "changes are loaded",
        )
        extract.send(signal.SIGSTOP)
        assert command("add", late) == ""
        mysql.execute("drop table late", place)
        extract.send(signal.SIGCONT)
        until(lambda: line().get("state") == "refused", "the refusal is shown")
        assert line()["code"], line()
        mysql.execute("insert into item values (2, 2)", place)
        until(lambda: rows("item") == [(1, 1), (2, 2)], "others flow")
        mysql.execute(f"{TABLE.format('late')}; insert into late values (7, 7)", place)
        assert command("add", late) == ""
        until(lambda: line().get("state") == "following", "late follows")
        assert command("add", late) == "CT61"
        mysql.execute("update late set n = 8", place)
        until(lambda: rows("late") == [(7, 8)], "late is equal")
