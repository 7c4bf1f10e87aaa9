"""The examples of docs/examples run as by users, on a real source, and each after a crash."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from harness.servers.engines import PostgresPlace
from penstock.consume import run
from penstock.host import faults
from plugins.postgres import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
WITHIN_S = 60


class Example:
    """A copied example: its pipeline file, its consumer's name, and its source."""

    def __init__(self, name: str, consumer: str, place: PostgresPlace, folder: Path) -> None:
        self.place, self.consumer, self.folder = place, consumer, folder
        shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True)
        self.path = folder / "shop.toml"

    @contextmanager
    def running(self, command: str) -> Iterator[Process]:
        """Run `penstock run` or `extract`; the block begins once the log gets changes."""
        with Process(self.path, command) as process:
            begun = self.folder / "shop" / "run" / "extract.json"
            if command == "run":
                process.until(lambda: self.line()["pid"], "the consumer runs")
            process.until(begun.exists, "it extracts")
            try:
                yield process
            finally:
                process.stop()

    def line(self) -> dict[str, Any]:
        """Return the consumer's line of `penstock consumers ls`."""
        lines = penstock("consumers", "ls", self.path, "--json").out.splitlines()
        found = [json.loads(line) for line in lines]
        return next(one for one in found if one["consumer"] == self.consumer)

    def crash(self, is_done: Callable[[], bool]) -> None:
        """Crash the consumer's process after its work and before its state is saved."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:  # at first only earlier events may come again
            with (
                faults.arming("consume.state.before:1:error"),
                pytest.raises(faults.FaultInjected),
            ):
                run(self.path, self.consumer)
            if is_done():
                return
        raise AssertionError("it does nothing")

    def go_on(self, is_done: Callable[[], bool]) -> None:
        """Run the consumer until a condition holds."""
        deadline = time.monotonic() + WITHIN_S

        def stop() -> bool:
            assert time.monotonic() < deadline, "not in time"
            return is_done()

        run(self.path, self.consumer, stop=stop)


@pytest.fixture
def example(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Example]]:
    """Copier of an example, with a database of its own; the test then is in its folder."""
    place = PostgresPlace(postgres)
    monkeypatch.setenv("SHOP_URL", place.url)
    monkeypatch.chdir(tmp_path)
    yield lambda name, consumer: Example(name, consumer, place, tmp_path)
    place.forget_log()
    place.drop()


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return a SQLite file's answer, without rows if there is no file."""
    if not path.exists():
        return []
    connection = sqlite3.connect(path)
    try:
        made = connection.execute("select count(*) from sqlite_master").fetchone() != (0,)
        return connection.execute(query).fetchall() if made else []
    finally:
        connection.close()


BIG = "external " * 500


def test_search_index(example: Callable[[str, str], Example]) -> None:
    """The search finds existing and new rows, even by text that was not sent."""
    shop = example("search-index", "search")
    run_sql = shop.place.run
    run_sql("create table article (id int primary key, title text, body text)")
    run_sql("alter table article alter body set storage external")
    run_sql(f"insert into article values (1, 'one', '{BIG} whale'), (2, 'two', 'small')")

    def read_articles() -> list[tuple[Any, ...]]:
        return rows(
            shop.folder / "search.db", "select rowid, title, body from article order by rowid"
        )

    def equal() -> bool:
        return read_articles() == run_sql("select id, title, body from article order by id")

    with shop.running("run") as process:
        process.until(equal, "rows that were there")
        run_sql(
            "update article set title = 'uno' where id = 1",  # body is not sent
            "insert into article values (3, 'three', null)",
            "delete from article where id = 2",
            "update article set id = 2 where id = 1",  # nor here
        )
        process.until(equal, "what came")
    whales = "select rowid from article where article match 'whale'"
    assert rows(shop.folder / "search.db", whales) == [(2,)]
    with shop.running("extract"):
        run_sql(
            f"insert into article values (9, 'other', '{BIG} shark')",
            "update article set id = 8 where id = 2",  # they swap places without their bodies:
            "update article set id = 2 where id = 9",  # applied again, they would swap back
            "update article set id = 9 where id = 8",
        )
        shop.crash(equal)
        run_sql("insert into article values (30, 'c', 'd')")  # otherwise nothing has to come again
        shop.go_on(equal)
        run_sql("truncate article", "insert into article values (1, 'a', 'b')")
        shop.go_on(equal)


def current(folder: Path) -> list[tuple[Any, ...]]:
    """Return a table's rows from its changes as docs/uses/warehouse.md says."""
    files = sorted(folder.glob("*.parquet"), key=lambda path: int(path.stem))
    ends = [int(path.stem) for path in folder.glob("*.end")]
    found: dict[int, dict[str, Any]] = {}
    gsns: list[int] = []
    for file in files:
        if int(file.stem) <= max(ends, default=-(2**63)):
            continue
        for row in pq.read_table(file).to_pylist():
            gsns.append(row["gsn"])
            if chr(row["op"]) != "I":
                found.pop((row["before"] or row["after"])["id"])
            if chr(row["op"]) != "D":
                found[row["after"]["id"]] = row["after"]
    assert gsns == sorted(set(gsns)), "each change is in one file"
    return [tuple(found[key].values()) for key in sorted(found)]


def test_warehouse(example: Callable[[str, str], Example]) -> None:
    """Files hold each change once; together they are the tables."""
    shop = example("warehouse", "warehouse")
    run_sql = shop.place.run
    for table in ("item", '"a/b"'):
        run_sql(f"create table {table} (id int primary key, n numeric(10, 2), note text)")
        run_sql(f"alter table {table} replica identity full")
        run_sql(f"insert into {table} values (1, 1.5, 'one'), (2, 2.5, null)")
    folder = shop.folder / "warehouse"

    def equal() -> bool:
        return all(
            current(folder / name) == run_sql(f"select * from {table} order by id")
            for table, name in (("item", "public.item"), ('"a/b"', "public.a%2Fb"))
        )

    with shop.running("run") as process:
        process.until(equal, "rows that were there")
        run_sql(
            "update item set n = n + 1; insert into item values (3, 3, 'x')",
            'delete from "a/b" where id = 1',
            "update item set id = 7 where id = 1",
        )
        process.until(equal, "what came")
    with shop.running("extract"):
        run_sql("insert into item select n, n, 'many' from generate_series(10, 99) n")
        shop.crash(equal)
        run_sql("delete from item where id > 50")
        shop.go_on(equal)
        run_sql("truncate item", "alter table item add more int")
        run_sql("insert into item values (1, 1, 'a', 5)")
        shop.go_on(equal)
    assert [path.suffix for path in folder.rglob("*.tmp")] == []


def test_statistics(example: Callable[[str, str], Example]) -> None:
    """Counts are those of the source, and Prometheus gets them."""
    shop = example("statistics", "counts")
    run_sql = shop.place.run
    run_sql("create table orders (id int primary key, status text, amount numeric(10, 2))")
    run_sql("alter table orders replica identity full")
    run_sql("insert into orders values (1, 'open', 10), (2, 'open', 20.5), (3, 'paid', 1)")

    def equal() -> bool:
        path = shop.folder / "counts.json"
        saved = json.loads(path.read_text()) if path.exists() else {"orders": {}, "worth": {}}
        counted = {
            status: (orders, float(saved["worth"][status]))
            for status, orders in saved["orders"].items()
            if orders
        }
        asked = run_sql("select status, count(*), sum(amount) from orders group by status")
        return counted == {status: (count, float(total)) for status, count, total in asked}

    with shop.running("run") as process:
        process.until(equal, "rows that were there")
        run_sql(
            "update orders set status = 'paid', amount = amount + 1 where id = 1",
            "delete from orders where id = 3",
            "insert into orders values (4, 'open', 7)",
            "update orders set id = 5, status = 'sent' where id = 4",
        )
        process.until(equal, "what came")
    with shop.running("extract"):
        run_sql("insert into orders select n, 'open', n from generate_series(10, 19) n")
        shop.crash(equal)
        run_sql("insert into orders values (20, 'open', 1)")  # otherwise nothing has to come again
        shop.go_on(equal)
        run_sql("truncate orders", "insert into orders values (1, 'open', 1)")
        shop.go_on(equal)


def test_statistics_say_what_they_need(example: Callable[[str, str], Example]) -> None:
    """A table that does not send the row before a change stops it, and the message
    says what to do.
    """
    shop = example("statistics", "counts")
    shop.place.run("create table orders (id int primary key, status text, amount numeric(10, 2))")
    shop.place.run("insert into orders values (1, 'open', 10)")
    with shop.running("extract"), Process(shop.path, "consume", "counts") as consumer:
        consumer.until((shop.folder / "counts.json").exists, "rows that were there")
        shop.place.run("update orders set status = 'paid'")
        assert consumer.wait_for_end() == 1
    assert consumer.error["code"] == "CN05"
    assert "alter table public.orders replica identity full" in consumer.error["error"]


AUDIT = "select gsn, op, table_name, key, old, new from audit order by gsn, op"


def test_audit_log(example: Callable[[str, str], Example]) -> None:
    """Every change is one row, whatever ended the consumer in between."""
    shop = example("audit-log", "audit")
    run_sql = shop.place.run
    run_sql("create table item (id int primary key, n int)")
    run_sql("alter table item replica identity full")

    def audit() -> list[tuple[Any, ...]]:
        return rows(shop.folder / "audit.db", AUDIT)

    expected: list[tuple[Any, ...]] = []
    with shop.running("run") as process:
        run_sql("insert into item values (1, 10)", "update item set n = 11")
        run_sql("update item set id = 2", "truncate item")
        old, new = '{"id": 1, "n": 11}', '{"id": 2, "n": 11}'
        expected = [
            (1, "I", "public.item", "[1]", None, '{"id": 1, "n": 10}'),
            (2, "U", "public.item", "[1]", '{"id": 1, "n": 10}', old),
            (3, "D", "public.item", "[1]", old, None),
            (4, "I", "public.item", "[2]", old, new),
            (4, "T", "public.item", None, None, None),
        ]
        process.until(lambda: audit() == expected, "all changes came")
    with shop.running("extract"):
        for number in range(4, 9):
            run_sql(f"insert into item values ({number}, 0)")
            row = f'{{"id": {number}, "n": 0}}'
            expected.append((number + 1, "I", "public.item", f"[{number}]", None, row))
            shop.crash(lambda: audit() == expected)
        shop.go_on(lambda: audit() == expected)
    facts = "select distinct commit_time like '20%', source_xid <> '' from audit where op <> 'T'"
    assert rows(shop.folder / "audit.db", facts) == [(1, 1)]


class Service:
    """A shipping service on this machine: the requests it got, and those that it refuses."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.refusals = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.refusals:
                    outer.refusals -= 1
                    self.send_error(503)
                    return
                outer.sent.append((self.headers["Idempotency-Key"], body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/orders"


@pytest.fixture
def service() -> Iterator[Service]:
    """A running service."""
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_business_process(
    example: Callable[[str, str], Example], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each paid order is sent once, again only after a crash; a refusal loses none."""
    monkeypatch.setenv("SHIPPING_URL", service.url)
    shop = example("business-process", "shipping")
    run_sql = shop.place.run
    run_sql("create table orders (id int primary key, status text, address text)")
    run_sql("alter table orders replica identity full")

    def build_process(number: int) -> tuple[str, dict[str, Any]]:
        return f"ship-order-{number}", {"order": number, "address": f"{number} Main Street"}

    def build_insert(number: int, status: str) -> str:
        return f"insert into orders values ({number}, '{status}', '{number} Main Street')"

    with shop.running("run") as process:
        run_sql(build_insert(1, "open"), build_insert(2, "paid"))
        process.until(lambda: service.sent == [build_process(2)], "the paid one is sent")
        service.refusals = 2
        run_sql(
            "update orders set status = 'paid'",  # 1 becomes paid, 2 is paid
            "update orders set address = 'elsewhere' where id = 1",
            "update orders set id = 11 where id = 1",
            build_insert(3, "paid"),
        )
        process.until(lambda: len(service.sent) >= 3, "tried again until it is taken")
    assert service.sent == [build_process(2), build_process(1), build_process(3)]
    service.sent.clear()
    with shop.running("extract"):
        run_sql(build_insert(4, "paid"))
        shop.crash(lambda: service.sent == [build_process(4)])
        run_sql("truncate orders", build_insert(5, "paid"))
        shop.go_on(lambda: build_process(5) in service.sent)
    assert service.sent == [build_process(4), build_process(4), build_process(5)]
