"""Commands on a running pipeline into a lake, by position and by MERGE, on a busy source.

The rows are read by delta-rs and pyiceberg, and compared with the source's. Not here: kills and
types (`test_lake_run.py`, `tests/lake/`).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.lake.readers import LakeReader, Rows, text_of
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from harness.servers.engines import Place, new_place
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

WITHIN_S = 300.0
LOOK_S = 0.5
ITEM = "create table {} (id int primary key, n int not null, t varchar(40))"
FILL = "insert into {} values " + ", ".join(f"({n}, 0, 'row {n}')" for n in range(500))


class Shop:
    """A source, its writer, and a pipeline into a lake."""

    def __init__(self, folder: Path, place: Place, kind: str, apply: str) -> None:
        self.place, self.apply = place, apply
        lake = folder / "lake"
        self._reader = LakeReader(kind, lake)
        for name in ("item", "other", "late"):
            place.run(ITEM.format(name), FILL.format(name))
        url = f"delta+file://{lake}" if kind == "delta" else "iceberg://lake/shop"
        self.path = write_pipeline(
            folder,
            place.url,
            url,
            tables=[f"{place.namespace}.{name}" for name in ("item", "other")],
            sections={
                "target": {"batchSeconds": 0.3, "apply": apply},
                "changeExtractor": LIVELY,
                "spark": {"master": "local[2]"},
                "spark.conf": {
                    "spark.sql.catalog.lake.type": "hadoop",
                    "spark.sql.catalog.lake.warehouse": str(lake),
                },
            },
        )
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    # -- the source --------------------------------------------------------------------------------

    def begin_writing(self) -> None:
        """Write into all tables until `end_writing`."""
        self._writer.start()

    def end_writing(self) -> None:
        """End the writer; harmless if none runs."""
        self._ended.set()
        if self._writer.is_alive():
            self._writer.join()

    def _write(self) -> None:
        for number in itertools.count(1):
            # MERGE takes seconds for a few rows: a source that is faster is never caught up with.
            if self._ended.wait(0.05 if self.apply == "position" else 1.0):
                return
            key = number * 7 % 500
            for name in ("item", "other", "late"):
                self.place.run(
                    f"update {name} set n = n + 1 where id = {key}",
                    f"insert into {name} (id, n, t) values ({1000 + number}, 1, 'new')",
                    f"delete from {name} where id = {key + 1}",
                )

    # -- rows --------------------------------------------------------------------------------------

    def in_lake(self, name: str) -> Rows:
        """Return the lake's rows of a table; none while it does not exist."""
        return self._reader.rows(self.place.namespace, name)

    def is_equal(self, *names: str) -> bool:
        """Return whether tables have the source's rows. A look has a pause, because it costs."""
        time.sleep(LOOK_S)
        return all(
            self.in_lake(name)
            == sorted(tuple(map(text_of, row)) for row in self.place.run(f"select * from {name}"))
            for name in names
        )

    # -- commands ----------------------------------------------------------------------------------

    def command(self, *arguments: object) -> Ran:
        """Run a command that must succeed."""
        first, *more = arguments
        done = penstock(first, self.path, *more, "--json", timeout_s=WITHIN_S)
        assert done.code == 0, (done.out, done.err)
        return done

    def ask(self, what: str, name: str) -> None:
        """Run a `penstock table` command for a table."""
        table = f"{self.place.namespace}.{name}"
        done = penstock("table", what, self.path, table, "--json")
        assert done.code == 0, done.err

    def state_of(self, name: str) -> str:
        """Return the state in `penstock table ls`; empty while it changes."""
        done = penstock("table", "ls", self.path, "--json")
        assert done.code == 0, done.err
        lines: list[dict[str, Any]] = [json.loads(text) for text in done.out.splitlines()]
        table = f"{self.place.namespace}.{name}"
        one = next((line for line in lines if line["table"] == table), {})
        assert not one.get("error"), one
        return "" if one.get("wanted") else str(one.get("state", ""))


@pytest.fixture(
    params=[
        "pg18-delta-position",
        "mariadb-iceberg-position",
        "pg18-iceberg-merge",
        "mariadb-delta-merge",
    ]
)
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """A shop for each format."""
    engine, kind, apply = request.param.split("-")
    with new_place(shared_servers, engine) as place:
        made = Shop(tmp_path, place, kind, apply)
        try:
            yield made
        finally:
            made.end_writing()
            place.forget_log()


def test_every_command_knows_the_lake(shop: Shop) -> None:
    """Tables are added, paused, copied again and removed; the others flow on."""
    with Process(shop.path) as run:

        def until(condition: Callable[[], bool], what: str) -> None:
            run.until(condition, what, WITHIN_S)

        until(lambda: shop.is_equal("item", "other"), "existing rows are in the lake")
        shop.begin_writing()
        shop.ask("add", "late")
        shop.ask("pause", "item")
        until(lambda: shop.state_of("late") == "following", "late follows")
        until(lambda: shop.state_of("item") == "paused", "item is paused")
        stands, others = shop.in_lake("item"), shop.in_lake("other")
        until(lambda: shop.in_lake("other") != others, "others flow")
        assert shop.in_lake("item") == stands
        shop.ask("resume", "item")
        shop.ask("resync", "other")
        until(lambda: shop.state_of("item") == "following", "item follows")
        until(lambda: shop.state_of("other") == "following", "other follows")
        # MERGE gives existing rows no value.
        value = " default 1.50" if shop.apply == "position" else ""
        shop.place.run(f"alter table item add price decimal(10,2){value}")
        shop.ask("remove", "late")
        until(lambda: shop.state_of("late") == "removed", "late is removed")
        left = shop.in_lake("late")
        status = shop.command("status").result
        assert status["applied"] is not None
        assert shop.command("lag").result
        shop.end_writing()
        until(lambda: shop.is_equal("item", "other"), "both are equal")
        assert shop.in_lake("late") == left
        shop.ask("add", "late")
        until(lambda: shop.state_of("late") == "following", "late follows again")
        until(lambda: shop.is_equal("late"), "late is equal")
        assert shop.command("verify").result["equal"]
        run.stop()
    assert shop.command("doctor").result["checks_skipped"] == 0
