"""The shipped plugins, fed from a database by a `penstock flexcdc run` that is killed repeatedly.

The rows that a plugin delivered add up to the table; a kill repeats at most one transaction and
loses none.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import make_database, make_server
from harness.pipelines.bank_engines import POSTGRES, Session, dialect_of, session, transaction
from harness.pipelines.flexcdc import WAIT_S, Command, Flex, session_at
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.receivers import Receiver, RedisServer
from penstock.consume.plugins.webhook import SIGNATURE
from penstock.control.consumers.flexcdc import open_flexcdc

SECRET = "a secret of this test, long enough"
KILLS = 4
TABLE = (
    "create table item (id int primary key, name varchar(20) not null, price decimal(9,2),"
    " stored date)"
)
Row = dict[str, Any]


class Shop:
    """A thread of small transactions over one table until it is stopped."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._random = random.Random(15)
        self._ids = itertools.count(1)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Shop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            with session(self._url, self._namespace) as connection:
                for number in itertools.count():
                    if self._stop.wait(0.01):
                        return
                    if number == 150:
                        connection.execute("truncate table item")
                    self._transact(connection)
        except BaseException as error:
            self._error = error

    def _transact(self, connection: Session) -> None:
        with transaction(connection):
            for _ in range(self._random.randint(1, 4)):
                some = f"mod(id, 9) = {self._random.randrange(9)}"
                match self._random.randrange(6):
                    case 0:
                        connection.execute(f"update item set price = price + 0.10 where {some}")
                    case 1:
                        connection.execute(f"delete from item where {some}")
                    case 2:
                        connection.execute(f"update item set id = -id where {some} and id > 0")
                    case _:
                        connection.execute(
                            "insert into item values (%s, 'Größe', %s, '2024-02-29')",
                            (next(self._ids), self._random.choice([None, "9.99", "-1.50"])),
                        )


class Fed:
    """A source with the table, and FlexCDC over it with a plugin."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.namespace = dialect_of(url).namespace
        self.connector = "postgresql" if dialect_of(url) is POSTGRES else "mariadb"
        self.database = "postgres" if dialect_of(url) is POSTGRES else self.namespace
        self._flex = Flex(url, url, folder)
        self._flex.namespace = self.namespace
        self._flex.source_sql(TABLE)
        if dialect_of(url) is POSTGRES:
            self._flex.source_sql("alter table item replica identity full")
        self.command: Command | None = None

    @property
    def out(self) -> str:
        """Output of the processes so far."""
        assert self.command is not None
        return self.command.out.read_text()

    def run(
        self, plugin: str, section: str, keys: Row, *, adds_up: Callable[[], bool]
    ) -> list[Row]:
        """Feed the plugin under load and kills until it adds up; return the table's rows then."""
        sections: dict[str, Row] = {
            "flexcdc": {"dest": self.url, "plugin": f"penstock.consume.plugins:{plugin}"},
            f"flexcdc.{section}": keys,
        }
        if dialect_of(self.url) is POSTGRES:
            sections["changeExtractor"] = {"replicationSlot": "fed", "publication": "fed"}
        file = write_pipeline(
            self.folder, self.url, None, directory=".",
            tables=[f"{self.namespace}.*"], sections=sections,
        )  # fmt: skip
        self.command = Command(file)
        self.command("setup")
        self.command("add-table", "--schema", self.namespace, "--table", "item")
        moments = random.Random(plugin)
        with Shop(self.url, self.namespace):
            for _ in range(KILLS):
                self.command.start()
                time.sleep(moments.uniform(2, 4))
                assert self.command.process.poll() is None, self.out
                self.command.process.kill()
                self.command.process.wait()
        self.command.start()
        deadline = time.monotonic() + WAIT_S
        while not adds_up():
            assert self.command.process.poll() is None, self.out
            assert time.monotonic() < deadline, self.out
            time.sleep(0.2)
        assert self.command.stop() == 0, self.out
        return self.rows()

    def rows(self) -> list[Row]:
        """Return the table's rows, with values as JSON has them."""
        with session_at(self.url) as reader:
            found = reader.rows(
                f"select * from {reader.quote(self.namespace, 'item')} order by id",
                doing="testing",
            )
        return [
            {
                "id": row["id"],
                "name": row["name"],
                "price": None if row["price"] is None else f"{row['price']:f}",
                "stored": str(row["stored"]),
            }
            for row in found
        ]

    def units(self) -> list[int]:
        """Return the numbers of the transactions that had rows."""
        units = self._flex.state_rows("mview_uow", "uow_id")
        return [
            one["uow_id"]
            for before, one in itertools.pairwise(units)
            if one["gsn_hwm"] > before["gsn_hwm"]
        ]

    def close(self) -> None:
        """End the running processes."""
        if self.command is not None:
            self.command.close()


@pytest.fixture(params=["mariadb", "postgres"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fed]:
    """Feed from a server of the test's own."""
    with make_server(request.param) as server:
        name = dialect_of(server.url("x")).namespace
        made = Fed(make_database(server, name), tmp_path)
        yield made
        made.close()


class Replica:
    """A consumer's copy of the table, made from row images in order."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def apply(self, action: str, row: Row) -> None:
        """Apply one image; the old row must exist as the image has it."""
        if action == "T":
            self._rows.clear()
        elif action in ("D", "UB"):
            assert self._rows.pop(row["id"]) == row
        else:
            assert row["id"] not in self._rows
            self._rows[row["id"]] = row

    def rows(self) -> list[Row]:
        """Return the rows, ordered by id."""
        return [self._rows[number] for number in sorted(self._rows)]


def json_lines(path: Path) -> list[Row]:
    """Return the whole lines of a file that may be written to at this moment."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def adding_up(replayed: Callable[[], list[Row]], feed: Fed) -> Callable[[], bool]:
    """Return a function that tells whether the delivered rows are those of the table."""
    return lambda: replayed() == feed.rows()


@pytest.mark.promise
@pytest.mark.timeout(240)
def test_json_lines(feed: Fed) -> None:
    """Every image comes once, in the order of its numbers."""
    path = feed.folder / "changes.json"

    def replay_rows() -> list[Row]:
        replica = Replica()
        for line in json_lines(path):
            row = {name: value for name, value in line.items() if not name.startswith("MYSQL_")}
            replica.apply(line["MYSQL_ACTION"], row)
        return replica.rows()

    rows = feed.run(
        "JsonFile", "json_file", {"path": "changes.json"}, adds_up=adding_up(replay_rows, feed)
    )
    assert replay_rows() == rows
    lines = [line for line in json_lines(path) if line["MYSQL_ACTION"] != "T"]
    assert [line["MYSQL_SEQ"] for line in lines] == [*range(2, len(lines) + 2)]
    assert sorted({line["MYSQL_TRX"] for line in lines}) == feed.units()


@pytest.mark.timeout(240)
def test_debezium(feed: Fed) -> None:
    """Every event comes once, with the connector's source block, and a tombstone per delete."""
    path = feed.folder / "events.json"
    dates = {"2024-02-29": 19782}  # days since 1970

    def replay_rows() -> list[Row]:
        replica = Replica()
        for event in json_lines(path):
            value = event["value"]
            if value is None:
                continue
            if value["op"] == "t":
                replica.apply("T", {})
            for action, row in (("D", value["before"]), ("I", value["after"])):
                if row is not None:
                    assert event["key"] == {"id": row["id"]}
                    replica.apply(action, row)
        return replica.rows()

    def expect_rows() -> list[Row]:
        return [{**row, "stored": dates[row["stored"]]} for row in feed.rows()]

    keys = {"path": "events.json", "topic_prefix": "shop1"}
    feed.run("DebeziumFile", "debezium_file", keys, adds_up=lambda: replay_rows() == expect_rows())
    events = json_lines(path)
    orders = []
    for event, following in itertools.pairwise([*events, {"value": {}}]):
        value = event["value"]
        if value is None:
            continue
        assert event["destination"] == f"shop1.{feed.namespace}.item"
        assert (following["value"] is None) == (value["op"] == "d")
        source = value["source"]
        assert (source["connector"], source["name"]) == (feed.connector, "shop1")
        assert (source["db"], source["table"]) == (feed.database, "item")
        assert source["ts_us"] == source["ts_ms"] * 1000
        assert source.keys() == SOURCE | OF_CONNECTOR[feed.connector]
        own = value["transaction"]
        place = (
            (source["lsn"], own["total_order"])
            if feed.connector == "postgresql"
            else (source["file"], source["pos"], source["row"])
        )
        orders.append((place, int(own["id"]), own["total_order"]))
    assert orders == sorted(set(orders))
    assert {unit for _, unit, _ in orders} >= {*feed.units()}


SOURCE = {"version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence"}
SOURCE |= {"table"}
OF_CONNECTOR = {
    "postgresql": {"schema", "txId", "lsn", "xmin"},
    "mariadb": {"server_id", "gtid", "file", "pos", "row", "thread", "query"},
}


@pytest.mark.timeout(240)
def test_webhook(feed: Fed) -> None:
    """A receiver that fails now and then gets every transaction in order; a repeated one is equal.

    Only a transaction that it answered with 2xx counts as delivered.
    """
    receiver = Receiver()
    refusals = [(503, {}, "later"), None, (429, {"Retry-After": "0"}, "")]
    receiver.answers = [
        refusals[place // 7 % 3] if place % 7 == 3 else (204, {}, "") for place in range(10_000)
    ]
    planned = list(receiver.answers)

    def take_transactions() -> list[Row]:
        """Return the transactions that the receiver has, in order, each once."""
        found: dict[int, Row] = {}
        keys: dict[str, int] = {}
        for (headers, body), answer in zip(list(receiver.requests), planned, strict=False):
            digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
            assert headers[SIGNATURE] == f"sha256={digest}"
            sent = json.loads(body)
            assert keys.setdefault(headers["Idempotency-Key"], sent["trx"]) == sent["trx"]
            if answer is not None and answer[0] == 204:
                last = max(found, default=0)
                assert sent["trx"] >= last, "in order"
                assert found.get(sent["trx"], sent) == sent
                found[sent["trx"]] = sent
        return [*found.values()]

    def replay_rows() -> list[Row]:
        replica = Replica()
        for sent in take_transactions():
            for change in sent["changes"]:
                replica.apply(change["action"], change["row"])
        return replica.rows()

    keys = {"url": receiver.url, "secret": SECRET, "backoff": 0.02}
    try:
        rows = feed.run("Webhook", "webhook", keys, adds_up=adding_up(replay_rows, feed))
    finally:
        receiver.close()
    assert replay_rows() == rows
    assert {sent["trx"] for sent in take_transactions()} >= {*feed.units()}
    again = [trx for trx, more in itertools.pairwise(receiver.trx()) if trx == more]
    assert again, "some were refused"
    assert SECRET not in everything_shown(feed)


@pytest.mark.timeout(240)
def test_redis(feed: Fed) -> None:
    """The cache has the table's rows at the end, and nothing else."""
    folder = feed.folder / "redis"
    folder.mkdir()
    server = RedisServer(folder, password="a-password")

    def read_cache() -> list[Row]:
        found = server.rows()
        assert all(key == f"c:{feed.namespace}.item:{row['id']}" for key, row in found.items())
        return sorted(found.values(), key=lambda row: int(row["id"]))

    try:
        rows = feed.run(
            "RedisCache", "redis_cache", {"url": server.url, "prefix": "c:"},
            adds_up=adding_up(read_cache, feed),
        )  # fmt: skip
        assert read_cache() == rows
    finally:
        server.stop()
    # It ends with an error that names the cache when that is down.
    assert feed.command is not None
    feed.command.start()
    with session(feed.url, feed.namespace) as connection:
        connection.execute("insert into item values (100000, 'x', null, null)")
    assert feed.command.process.wait(WAIT_S) == 1
    assert "error FX18" in feed.out
    assert "a-password" not in everything_shown(feed)


@pytest.mark.timeout(240)
def test_the_example(feed: Fed) -> None:
    """Every transaction is printed in order; one that a kill interrupted is printed again."""

    def read_committed() -> list[int]:
        if feed.command is None or not feed.command.out.exists():
            return []
        return [int(text) for text in re.findall(r"COMMIT: trx_id: (\d+), Last", feed.out)]

    def replay_rows() -> list[int]:
        rows: set[int] = set()
        units: dict[str, list[tuple[str, int]]] = {}
        for unit, dml, number in re.findall(
            r"TRX_ID: (\d+), Schema:\w+, Table: item, DML: ([A-Z ()]+), A(?:T|FTER): \d+"
            r"(?:\nArray\n\(\n    \[id\] => (-?\d+))?",
            feed.out,
        ):
            units.setdefault(unit, []).append((dml, int(number or 0)))
        for unit in sorted(units, key=int):
            # Only the last print of a repeated one counts.
            for dml, number in units[unit]:
                if dml == "TRUNCATE":
                    rows.clear()
                elif dml in ("DELETE", "UPDATE (OLD)"):
                    rows.discard(number)
                else:
                    rows.add(number)
        return sorted(rows)

    def adds_up() -> bool:
        return bool(read_committed()) and replay_rows() == [row["id"] for row in feed.rows()]

    feed.run("Example", "example", {}, adds_up=adds_up)
    found = read_committed()
    assert found == sorted(found)
    assert {*found} >= {*feed.units()}
    assert len(found) - len({*found}) <= KILLS


def everything_shown(feed: Fed) -> str:
    """Return what the process printed and wrote, and what commands show of the pipeline."""
    assert feed.command is not None
    shown = [feed.out, repr(open_flexcdc(feed.command.file))]
    for folder in ("run", "state"):
        shown += [path.read_bytes().decode("latin-1") for path in (feed.folder / folder).iterdir()]
    shown.append((feed.folder / "flexcdc.err").read_text())
    for words in (("doctor",), ("doctor", "--json"), ("status",), ("status", "--json")):
        done = penstock(words[0], feed.command.file, *words[1:])
        shown += [done.out, done.err]
    return "\n".join(shown)
