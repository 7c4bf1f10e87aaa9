"""A shop of two tables in a database of any engine, and `penstock run` to another one.

All processes are those that a user starts; rows are compared with statements of this module.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.lake.readers import LakeReader, Rows, text_of
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from harness.servers.engines import MySQLPlace, Place
from harness.servers.oracle_place import OraclePlace
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes

WITHIN_S = 600.0  # against hanging only
LOOK_S = 0.5
ROWS = 2000
LARGE = "large " * 20_000
COLUMNS = "id, n, name, body"
TABLES = ("item", "bag")


class LakePlace:
    """Lake of tables in files, as another program reads it; the target of a shop.

    Attributes:
        settings: Sections of the pipeline file.
    """

    def __init__(self, kind: str, folder: Path, namespace: str) -> None:
        """Choose the folder. kind: `delta` or `iceberg`. namespace: of the source's tables."""
        lake = folder / "lake"
        self.namespace = namespace
        self.url = f"delta+file://{lake}" if kind == "delta" else "iceberg://lake/shop"
        self.settings: dict[str, dict[str, Any]] = {
            "target": {"batchSeconds": 0.3},
            "spark.conf": {
                "spark.sql.catalog.lake.type": "hadoop",
                "spark.sql.catalog.lake.warehouse": str(lake),
            },
        }
        self._reader = LakeReader(kind, lake)

    def rows(self, table: str) -> Rows:
        """Return all rows of a table as texts, in order; none while it does not exist."""
        return self._reader.rows(self.namespace, table)


class Shop:
    """A source with rows, an empty target, and a pipeline between them."""

    def __init__(
        self,
        folder: Path,
        source: Place,
        target: Place | LakePlace,
        settings: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Create and fill the tables. settings: more sections of the pipeline file."""
        self.source, self.target = source, target
        # Oracle has no empty text: a pipeline needs a choice for one.
        self._empty = "null" if isinstance(target, OraclePlace) else "''"
        text = "longtext" if isinstance(source, MySQLPlace) else "text"  # LARGE is over 64 KB
        source.run(
            f"create table item (id int primary key, n int, name varchar(40), body {text})",
            *_fill("item", lambda n: f"({n}, {n % 7}, 'row {n}', null)"),
        )
        source.make_keyless("bag", "a int, v varchar(40)")
        source.run(
            *_fill("bag", lambda n: f"({n % 50}, 'of {n}')"), "insert into bag values (1, null)"
        )
        self.path = write_pipeline(
            folder,
            source.url,
            target.url,
            tables=[f"{source.namespace}.{name}" for name in TABLES],
            sections={
                "changeExtractor": LIVELY,
                "spark": {"master": "local[2]"},
                "target.types": {"*": "error"},
                **(
                    target.settings
                    if isinstance(target, LakePlace)
                    else {"target.map": {source.namespace: target.namespace}}
                ),
                **(settings or {}),
            },
        )

    def rows(self, place: Place, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """Return a table's rows, in order."""
        return sorted(place.run(f"select {columns} from {table}"), key=repr)

    def is_equal(self, columns: str = COLUMNS) -> bool:
        """Return whether both tables have the same rows, each as often. Looks have a pause."""
        time.sleep(LOOK_S)
        tables = {"item": columns, "bag": "a, v"}
        if isinstance(self.target, LakePlace):
            return all(
                as_texts(self.rows(self.source, table, listed)) == self.target.rows(table)
                for table, listed in tables.items()
            )
        target = self.target
        if _count_columns(target) != sum(len(one.split(",")) for one in tables.values()):
            return False
        return all(
            self.rows(self.source, table, listed) == self.rows(target, table, listed)
            for table, listed in tables.items()
        )

    def change(self, first: int) -> None:
        """Change many rows in several transactions; `first`: a number that no row has."""
        run = self.source.run
        run(
            f"insert into item (id, n, name, body) values ({first}, 1, 'new', null), "
            f"({first + 1}, null, null, {self._empty})"
        )
        run(f"update item set id = {first + 2} where id = {first}")
        run(f"update item set n = null, name = null where id = {first % ROWS}")
        run(f"update item set body = '{LARGE}' where id = {first + 1}")
        run(f"update item set n = 5 where id = {first + 1}")
        run(f"delete from item where id = {first % ROWS + 1}")
        run(f"insert into bag values ({first}, 'twice'), ({first}, 'twice'), ({first}, null)")
        run(f"update bag set v = 'changed' where a = {first % 50}")
        run(f"delete from bag where a = {first % 50 + 1}")

    def pids(self) -> dict[str, int]:
        """Return the process ids of run, extract and load; 0 for one that does not run."""
        return {process.name: process.pid for process in processes(load_config(self.path))}

    def command(self, *arguments: object) -> Ran:
        """Run a command that must succeed."""
        first, *more = arguments
        done = penstock(first, self.path, *more, "--json", timeout_s=WITHIN_S)
        assert done.code == 0, (done.out, done.err)
        return done

    def copy_again(self, table: str) -> None:
        """Let a table's rows be read again."""
        self.command("resend", "--tables", f"{self.source.namespace}.{table}")


def _count_columns(target: Place) -> int:
    """Return how many columns the target's tables have, as far as they exist."""
    if isinstance(target, OraclePlace):
        found = target.run_unchanged(
            "SELECT COUNT(*) FROM ALL_TAB_COLS WHERE TABLE_NAME IN ('item', 'bag') "
            f"AND OWNER = '{target.namespace}'"
        )
    elif isinstance(target, SQLServerPlace):
        found = target.run(
            "select count(*) from sys.columns as c join sys.tables as t "
            "on t.object_id = c.object_id where t.name in ('item', 'bag')"
        )
    else:
        found = target.run(
            "select count(*) from information_schema.columns where "
            f"table_name in ('item', 'bag') and table_schema = '{target.namespace}'"
        )
    return int(found[0][0])


def as_texts(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """Return rows as `LakePlace.rows` has them."""
    return sorted(tuple(map(text_of, row)) for row in rows)


def _fill(table: str, row: Callable[[int], str]) -> list[str]:
    """Return the statements that insert ROWS rows."""
    numbers = range(ROWS)
    return [
        f"insert into {table} values " + ", ".join(map(row, numbers[at : at + 500]))
        for at in range(0, ROWS, 500)
    ]


def run_again(shop: Shop, columns: str) -> None:
    """Run it again, twice: with changes, and without any since it ended."""
    shop.change(60_000)
    text = shop.path.read_text()
    shop.path.write_text(
        text.replace("[changeExtractor]", "[changeExtractor]\nexitWhenIdle = true")
    )
    for _ in range(2):
        shop.command("run")
        assert shop.is_equal(columns)


def add_column(source: Place) -> None:
    """Add a column; SQL Server captures it by a second instance."""
    if isinstance(source, SQLServerPlace):
        source.run("alter table item add more int")
        source.capture("item", "dbo_item_2")
    else:
        source.run("alter table item add column more int")


def errors_of(shop: Shop) -> list[dict[str, Any]]:
    """Return what doctor finds that must be fixed."""
    found = penstock("doctor", shop.path, "--json", timeout_s=WITHIN_S)
    assert found.out, found.err
    result = found.result
    assert result["checks_skipped"] == 0, result
    return [one for one in result["findings"] if one["severity"] == "E"]


def check_through_kills(shop: Shop) -> None:
    """Copy rows and changes; kill the loader and the extractor; add a column; copy a table again.

    Both sides are compared after each step.
    """
    assert errors_of(shop) == []
    with Process(shop.path) as run:

        def until_equal(what: str) -> None:
            run.until(shop.is_equal, what, WITHIN_S)

        until_equal("existing rows are there")
        shop.change(10_000)
        until_equal("changes are there")
        for at, name in enumerate(("load", "extract")):
            before = shop.pids()[name]
            shop.change(20_000 + 100 * at)
            os.kill(before, signal.SIGKILL)
            shop.change(30_000 + 100 * at)
            run.until(
                lambda name=name, before=before: shop.pids()[name] not in (0, before),
                f"another {name} runs",
                WITHIN_S,
            )
            until_equal(f"all changes are there after the end of {name}")
        add_column(shop.source)
        shop.source.run(
            "insert into item (id, n, more) values (50000, 1, 7)",
            "update item set more = 8 where id = 5",
        )
        columns = f"{COLUMNS}, more"
        run.until(lambda: shop.is_equal(columns), "the new column is there", WITHIN_S)
        shop.copy_again("item")
        shop.change(55_000)
        run.until(
            lambda: shop.is_equal(columns), "the rows that were sent again are there", WITHIN_S
        )
        verified = shop.command("verify").result
        assert verified["equal"], verified
        assert errors_of(shop) == []
        status = shop.command("status").result
        assert status["bulk"]["phase"] == "done"
        assert status["applied"] is not None
        run.stop()
    run_again(shop, columns)
