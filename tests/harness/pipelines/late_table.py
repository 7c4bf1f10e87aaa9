"""Table that is created while a pipeline runs, and added to it by `penstock table add --enable`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import Place

WITHIN_S = 300.0


def is_following(path: Path, name: str) -> bool:
    """Return whether `penstock table ls` calls the table following."""
    ran = penstock("table", "ls", path, "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    return any(one["table"] == name and one["state"] == "following" for one in lines)


def follow_late(folder: Path, source: Place, target: Place, make_late: Callable[[], None]) -> None:
    """Run a pipeline of the source's table item to PostgreSQL, add `late`, and wait for its rows.

    make_late: creates the table `late` (id, n), whose changes the source does not record yet.
    """
    name = f"{source.namespace}.late"
    path = write_pipeline(
        folder,
        source.url,
        target.url,
        tables=[f"{source.namespace}.item"],
        sections={
            "target.map": {source.namespace: target.namespace},
            "changeExtractor": LIVELY,
            "spark": {"master": "local[2]"},
        },
    )

    def rows(table: str) -> list[tuple[Any, ...]]:
        return sorted(target.run(f"select * from {table}"))

    source.run("create table item (id int primary key, n int)", "insert into item values (1, 1)")
    with Process(path) as run:
        has_item = "select count(*) from pg_class where relname = 'item'"
        run.until(lambda: target.run(has_item)[0][0] > 0, "the target table exists", WITHIN_S)
        run.until(lambda: rows("item") == [(1, 1)], "the first rows are there", WITHIN_S)
        make_late()
        source.run("insert into late values (1, 1), (2, 2), (3, 3)")
        ran = penstock("table", "add", "--enable", path, name, "--json")
        assert ran.code == 0, ran.err
        source.run("insert into late values (4, 4)", "update late set n = 9 where id = 1")
        run.until(lambda: is_following(path, name), "it is followed", WITHIN_S)
        source.run("delete from late where id = 2", "update item set n = 5")
        wanted = [(1, 9), (3, 3), (4, 4)]
        run.until(lambda: rows("late") == wanted, "all its rows are there", WITHIN_S)
        run.until(lambda: rows("item") == [(1, 5)], "the other table goes on", WITHIN_S)
        run.stop()
