"""`penstock resend` beside the load: neither the target nor a consumer misses or repeats a row."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.bank_engines import NothingThere, Session, open_session, session, transaction
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import ENGINES, Place, insert, new_place
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TABLES = ("item", "bare", "parts")
NOTE = "x" * 600  # item takes several blocks to read
ITEMS, PARTS = 4000, 300
# Killed once at each: rows are being read; rows are durable but not reported; rows are reported.
KILLS = ("extract.resend.rows:2", "extract.resend.before:1", "extract.resend.after:2")
RANGES = {"low": "100", "middle": "200", "high": "1000"}
# All rows in SQLite, once each: the position is stored in the transaction of the rows.
CLASS = """
import json, sqlite3
from penstock.consume import CdcConsumer


class View(CdcConsumer):
    def __init__(self, file):
        self.file = file

    def start(self, metrics):
        self.data = sqlite3.connect(self.file, isolation_level=None, timeout=60)
        self.data.executescript(
            "pragma journal_mode = wal;"
            "create table if not exists line (name text, key text, value text);"
            "create index if not exists line_key on line (name, key);"
            "create table if not exists seen (gsn integer);"
            "create table if not exists reload (name text)"
        )

    def on_events(self, events):
        self.data.execute("begin immediate")
        seen = self.data.execute("select coalesce(max(gsn), 0) from seen").fetchone()[0]
        for event in events:
            if event.gsn <= seen:
                continue
            seen, name, key = event.gsn, event.table.partition(".")[2], json.dumps(event.key)
            if event.op != "I":
                self.data.execute(
                    "delete from line where rowid ="
                    " (select rowid from line where name = ? and key = ? limit 1)",
                    (name, key),
                )
            if event.value is not None:
                value = json.dumps(list(dict(event.value).values()))
                self.data.execute("insert into line values (?, ?, ?)", (name, key, value))
        self.data.execute("delete from seen")
        self.data.execute("insert into seen values (?)", (seen,))
        self.data.execute("commit")
        return True

    def on_reload(self, table):
        name = table.partition(".")[2]
        self.data.execute("delete from line where name = ?", (name,))
        self.data.execute("insert into reload values (?)", (name,))

    def stop(self):
        self.data.close()
"""


class Shop:
    """Three kinds of tables at a source, a pipeline into a target, and a consumer beside it.

    Customers change neither the sum of n over item and parts, nor the two rows of bare whose a is
    0.
    """

    def __init__(self, source: Place, target: Place, folder: Path) -> None:
        self.source, self.target, self.folder = source, target, folder
        self._fences = itertools.count(1)
        source.run("create table fence (id int primary key)")
        source.run("create table item (id int primary key, n int, note varchar(700))")
        source.make_keyless("bare", "a int, b varchar(20)")
        _make_parts(source)
        insert(source, "item", ((number, 0, NOTE) for number in range(1, ITEMS + 1)))
        insert(source, "parts", ((number, 0) for number in range(1, PARTS + 1)))
        insert(source, "bare", [(number // 2, "x") for number in range(14)])
        (folder / "line_view.py").write_text(CLASS)
        sections: dict[str, dict[str, Any]] = {
            "changeExtractor": LIVELY,
            "changeLoader": {"maxFilesPerBatch": 3},
            "spark": {"master": "local[2]"},
            "consumers.view": {
                "class": "line_view:View",
                "keepBinary": False,
                "start": "beginning",
            },
            "consumers.view.options": {"file": str(folder / "view.db")},
        }
        if source.namespace != target.namespace:
            sections["target.map"] = {source.namespace: target.namespace}
            sections["target.types"] = {"*": "error"}
        self.path = write_pipeline(
            folder, source.url, target.url, tables=[f"{source.namespace}.*"], sections=sections
        )

    def settle(self, run: Process) -> None:
        """Wait until everything committed at the source is in the target."""
        number = next(self._fences)
        self.source.run(f"insert into fence values ({number})")
        with session(self.target.url, self.target.namespace) as target:
            run.until(lambda: (number,) in rows_of(target, "fence"), f"fence {number} has come")

    def start(self, run: Process) -> None:
        """Wait until the existing rows are in the target: the first fence may be one of them."""
        self.settle(run)
        self.settle(run)

    def resend(self) -> None:
        """Resend all tables by the command."""
        names = ",".join(f"{self.source.namespace}.{table}" for table in TABLES)
        ran = penstock("resend", self.path, "--tables", names)
        assert ran.code == 0, ran

    def lines(self, table: str) -> list[str]:
        """Return a table of the consumer, each row as a line, sorted."""
        found = self._query_view("select value from line where name = ?", table)
        return sorted(row[0] for row in found)

    def reloads(self, table: str) -> int:
        """Return how often the consumer was told that a table is resent."""
        return len(self._query_view("select 1 from reload where name = ?", table))

    def _query_view(self, query: str, table: str) -> list[Any]:
        data = sqlite3.connect(self.folder / "view.db", timeout=60)
        try:
            return data.execute(query, (table,)).fetchall()
        finally:
            data.close()

    def check(self, run: Process) -> None:
        """Check that target and consumer have the source's rows."""
        self.settle(run)
        with (
            session(self.source.url, self.source.namespace) as source,
            session(self.target.url, self.target.namespace) as target,
        ):
            for table in TABLES:
                wanted = sorted(json.dumps(row) for row in rows_of(source, table))
                assert sorted(json.dumps(row) for row in rows_of(target, table)) == wanted, table
                run.until(
                    lambda table=table, wanted=wanted: self.lines(table) == wanted,
                    f"the view of {table} equals the source",
                )


def _make_parts(place: Place) -> None:
    table = "create table parts (id int not null, n int, primary key (id)) partition by range (id)"
    if place.namespace != "public":
        below = ", ".join(f"partition {p} values less than ({end})" for p, end in RANGES.items())
        place.run(f"{table} ({below}, partition rest values less than maxvalue)")
        return
    ends = ["minvalue", *RANGES.values(), "maxvalue"]
    place.run(table)
    for name, (begin, end) in zip([*RANGES, "rest"], itertools.pairwise(ends), strict=True):
        place.run(
            f"create table parts_{name} partition of parts for values from ({begin}) to ({end})"
        )


def rows_of(place: Session, table: str) -> list[tuple[Any, ...]]:
    """Return all rows; none if the table does not exist yet."""
    try:
        return place.execute(f"select * from {table}")
    except NothingThere:
        return []


class Beside:
    """A thread that repeats something with one session, for a with block."""

    def __init__(self, place: Place) -> None:
        self.count = 0
        self._session = open_session(place.url, place.namespace)
        self._ended = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        self._session.close()
        assert self._errors == []

    def _work(self) -> None:
        try:
            while not self._ended.wait(0.01):
                self.count += 1
                self.once(self._session, self.count)
        except BaseException as error:
            self._errors.append(error)

    def once(self, place: Session, number: int) -> None:
        """Do it once; number: how often so far, from 1."""
        raise NotImplementedError


class Customers(Beside):
    """A thread with changes of all kinds in all tables."""

    def once(self, place: Session, number: int) -> None:
        """Insert, update and delete rows; move rows to other keys and partitions."""
        with transaction(place):
            place.execute(f"update item set n = n - 1 where id = {number % 2000 + 1}")
            place.execute(f"update parts set n = n + 1 where id = {number % 199 + 1}")
        place.execute(f"insert into item values ({10_000 + number}, 0, 'new')")
        place.execute(f"delete from item where id = {10_000 + number - 40}")
        place.execute(f"update item set id = -id where abs(id) = {2500 + number % 500}")
        moved = 200 + number % 90  # into another partition and back
        place.execute(f"update parts set id = 10000 - id where id in ({moved}, {10_000 - moved})")
        a = 1 + number % 6
        place.execute(f"insert into bare values ({a}, 'y'), ({a}, 'y'), ({a}, null)")
        place.execute(f"update bare set b = 'z{number % 3}' where a = {a} and b = 'y'")
        place.execute(f"delete from bare where a = {1 + (number + 1) % 6}")


class Guests(Beside):
    """A thread that checks that the target equals the source at some moment."""

    def once(self, place: Session, number: int) -> None:
        """Check a total and a count that are the same in every state of the source."""
        looked = "select (select sum(n) from item) + (select sum(n) from parts)"
        looked += ", (select count(*) from bare where a = 0 and b = 'x')"
        (found,) = place.execute(looked)
        assert (int(found[0]), int(found[1])) == (0, 2)


@pytest.fixture(params=ENGINES)
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """Shop between two databases of a server of each engine."""
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(new_place(shared_servers, request.param)) for _ in range(2)
        )
        drop = "drop schema if exists wirekite"  # servers have one for all databases
        target.run(drop)
        yield Shop(source, target, tmp_path)
        source.forget_log()
        if source.namespace != "public":
            target.run(drop)


def test_the_target_stays_and_a_consumer_becomes_what_the_source_is(shop: Shop) -> None:
    """Customers write all the time. The consumer never had the rows of the bulk load."""
    with Process(shop.path) as run:
        shop.start(run)
        with Guests(shop.target) as guests, Customers(shop.source) as customers:
            for _ in range(2):
                before = customers.count
                shop.resend()
                run.until(lambda n=before: customers.count > n + 50, "there is more to load")
            shop.settle(run)
        shop.check(run)
        assert guests.count > 20
        assert {table: shop.reloads(table) for table in TABLES} == dict.fromkeys(TABLES, 2)
        run.stop()


@pytest.mark.promise
def test_an_extractor_that_is_killed_meanwhile_carries_it_out(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extractor is killed while it reads, before its report and after; then all is equal."""
    once = shop.folder / "once"
    once.mkdir()
    monkeypatch.setenv("PENSTOCK_FAULT", ",".join(f"{kill}:kill" for kill in KILLS))
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    with Process(shop.path) as run:
        monkeypatch.undo()
        shop.start(run)
        with Guests(shop.target), Customers(shop.source) as customers:
            shop.resend()
            assert sorted(path.name for path in once.iterdir()) == sorted(KILLS)
            before = customers.count
            run.until(lambda: customers.count > before + 50, "there is more to load")
            shop.settle(run)
        shop.check(run)
        assert all(shop.reloads(table) for table in TABLES)
        assert max(map(shop.reloads, TABLES)) > 1, "what was durable, and not said, is sent again"
        run.stop()
