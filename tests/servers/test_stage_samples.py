"""Every sample of a changefeed, posted and applied: its statements on the target's rows are true.

The staging database is a real one, the target is PostgreSQL, MySQL and MariaDB. Not here: samples
that are only answered (tests/unit/test_stage_receiver.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from harness.feeds.sequencer import log_id_of, module
from penstock.control.pipeline.config import load_config
from penstock.engines.postgres.feeds.database import PostgresStaging
from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
from penstock.feeds.metrics import ApplyMetrics, Metrics
from penstock.feeds.position import TakenOver, take_over
from penstock.feeds.receiver.access import Everybody
from penstock.feeds.receiver.app import Receiver
from penstock.feeds.receiver.targets import TargetSchemas, TargetTables
from penstock.feeds.sessions import Sessions
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import Group, StagedTable
from penstock.ports.progress import open_shared_progress
from penstock.ports.row_apply import row_target_at
from plugins.postgres import Server
from plugins.row_apply import Rows

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/changefeed/samples.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]
BY_NUMBER = {one["n"]: one for one in SAMPLES}
KEYS = {
    "customers": ("id",),
    "orders": ("region", "order_no"),
    "order_lines": ("region", "order_no", "line_no"),
    "all_types": ("id",),
    "blob_keys": ("k",),
    "accounts": ("id",),
    "audit-log": ("id",),
}
APPLIED = [
    name
    for name in dict.fromkeys(one["scenario"] for one in SAMPLES)
    if name not in ("apply_error", "cas_merge", "routing")
]
POSTGRES = """
    create type tier as enum ('bronze', 'silver', 'gold');
    create type state as enum ('open', 'on-hold', 'done');
    create table customers (id uuid primary key, email text, tier tier, prefs jsonb, tags text[],
        avatar bytea, created_at timestamptz);
    create table orders (region text, order_no int8, customer_id uuid, total decimal(12,2),
        placed_at timestamp, due date, ship_window interval, primary key (region, order_no));
    create table order_lines (region text, order_no int8, line_no int8, sku text, qty int8,
        primary key (region, order_no, line_no),
        foreign key (region, order_no) references orders (region, order_no));
    create table all_types (id int8 primary key, b bool, i2 int2, i8 int8, f8 float8, d decimal,
        s text, col text, "by" bytea, dt date, tm time, ts timestamp, tstz timestamptz,
        iv interval, u uuid, ip inet, ar int8[], sar text[], j jsonb, en state, bits varbit,
        geo jsonb);
    create table blob_keys (k bytea primary key, v int8);
    create table accounts (id int8 primary key, balance int8, note text, version int8);
    create table "audit-log" (id int8 primary key, msg text);
    create table replicator_dlq (event serial primary key, dlq_name text, source_nanos int8,
        source_logical int8, data_after jsonb, data_before jsonb)
"""
MYSQL = """
    create table customers (id char(36) primary key, email varchar(99),
        tier enum('bronze', 'silver', 'gold'), prefs json, tags json, avatar blob,
        created_at datetime(6));
    create table orders (region varchar(20), order_no bigint, customer_id char(36),
        total decimal(12,2), placed_at datetime(6), due date, ship_window varchar(40),
        primary key (region, order_no));
    create table order_lines (region varchar(20), order_no bigint, line_no bigint,
        sku varchar(20), qty bigint, primary key (region, order_no, line_no),
        foreign key (region, order_no) references orders (region, order_no));
    create table all_types (id bigint primary key, b bool, i2 smallint, i8 bigint, f8 double,
        d decimal(60,20), s text, col text, `by` blob, dt date, tm time(6), ts datetime(6),
        tstz datetime(6), iv varchar(60), u char(36), ip varchar(40), ar json, sar json, j json,
        en enum('open', 'on-hold', 'done'), bits bit(8), geo geometry);
    create table blob_keys (k varbinary(20) primary key, v bigint);
    create table accounts (id bigint primary key, balance bigint, note text, version bigint);
    create table `audit-log` (id bigint primary key, msg text);
    create table replicator_dlq (event bigint auto_increment primary key, dlq_name text,
        source_nanos bigint, source_logical bigint, data_after json, data_before json)
"""


class Site:
    """A receiver and a sequencer over a real staging database and a real target."""

    def __init__(self, stack: ExitStack, target: Rows, staging: str, folder: Path) -> None:
        self.target, self._stack, self._folder = target, stack, folder
        target.run(*(POSTGRES if target.is_postgres else MYSQL).split(";"))
        self.group: Group = target.group
        base = PostgresStaging(staging)
        base.create()
        self.staging = stack.enter_context(base.open_session())
        self._base = base
        path = folder / "cockroach.toml"
        path.write_text(
            f'[pipeline]\nname = "shop"\ndirectory = "shop"\n[staging]\nurl = "{staging}"\n'
            f'[target]\nurl = "{target.url}"\n[stage]\nauthentication = "off"\n'
        )
        self._tables = TargetTables(TargetSchemas(load_config(path, {})))
        self.begin()

    def begin(self, rules: str = "", mode: StageMode = StageMode.CONSISTENT) -> None:
        """Continue with these rules of a user's module, in this mode."""
        sessions = self._stack.enter_context(Sessions(row_target_at(self.target.url), 4))
        self.sequencer = RowSequencer(
            sessions,
            metrics=ApplyMetrics(CollectorRegistry()),
            log_id=log_id_of,
            script=module(self._folder, rules),
            options=SequencerOptions(mode=mode),
        )
        receiver = Receiver(
            sessions=self._stack.enter_context(Sessions(self._base, 4)),
            tables=self._tables,
            access=Everybody(),
            metrics=Metrics(),
            accept=self.sequencer.accept,
        )
        self._stack.callback(receiver.close)
        self._client = TestClient(receiver.app)

    def post(self, sample: dict[str, Any]) -> None:
        """Post a sample, and check its answer."""
        path = sample["path"].replace("/shop/public", "/" + "/".join(self.group), 1)
        found = self._client.post(path, content=sample["body"], headers=sample.get("headers"))
        assert found.status_code == sample["expect"]["status"], (sample["n"], found.text)

    def resolve(self, time: Hlc) -> None:
        """Record that everything up to a time has arrived."""
        self.staging.advance(self.group, ".".join(self.group), time)

    def apply(self, holder: TakenOver) -> int:
        """Run a round; return how many staged rows it has marked."""
        before = self.applied_count()
        self.sequencer.round(self.staging, self.group, lambda: holder)
        return self.applied_count() - before

    def applied_count(self) -> int:
        """Return the number of applied rows in all mutation tables."""
        count = 0
        for table in self.staging.staged_tables(self.group):
            name = f'public."_{"_".join(self.group)}_{table.name.lower()}"'
            found = self.staging._connection.execute(
                f"select count(*) from {name} where applied".encode()
            ).fetchone()
            assert found is not None
            count += found[0]
        return count

    def keys(self) -> dict[str, list[str]]:
        """Return the keys of the target's rows, by table."""
        found = {}
        for table, columns in KEYS.items():
            names = ", ".join(self.target.session.quote(one) for one in columns)
            rows = self.target.rows(f"select {names} from {self.target.session.quote(table)}")
            if rows:
                found[table] = sorted(_key(row) for row in rows)
        return found

    def account(self, number: int) -> tuple[Any, ...]:
        """Return balance, note and version of an account."""
        sql = f"select balance, note, version from accounts where id = {number}"
        (row,) = self.target.rows(sql)
        return row


def _key(row: tuple[Any, ...]) -> str:
    values = [
        one if isinstance(one, int | str)
        else "\\x" + bytes(one).hex() if isinstance(one, bytes | memoryview)
        else str(one)
        for one in row
    ]  # fmt: skip
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture
def site(target: Rows, postgres: Server, tmp_path: Path) -> Iterator[Site]:
    """Site with empty tables on both sides."""
    staging = postgres.make_database("staging")
    with ExitStack() as stack:
        yield Site(stack, target, staging, tmp_path)
    postgres.drop_database(staging)


def holder(site: Site) -> TakenOver:
    """Return the right to apply windows."""
    with closing(open_shared_progress(site.target.url, application_name="test")) as progress:
        return take_over(log_id_of(site.group), progress)


@pytest.mark.parametrize("scenario", APPLIED)
def test_a_checkpoint_applies_what_the_sample_says(site: Site, scenario: str) -> None:
    """The stated number of rows is applied, and then these keys are in the target."""
    ours = holder(site)
    for sample in (one for one in SAMPLES if one["scenario"] == scenario):
        site.post(sample)
        expect = sample["expect"]
        if expect["action"] != "checkpoint":
            continue
        assert site.apply(ours) == expect["applied"], sample["n"]
        if expect.get("after_keys"):
            wanted = {table: sorted(keys) for table, keys in expect["after_keys"].items()}
            assert site.keys() == wanted, sample["n"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (82, r"schema drift detected in .*: .*colour"),
        (83, r"schema drift detected in .*: .*\bid\b"),
        (84, r"schema drift detected in .*: .*2 .*1"),
        (85, r"."),
    ],
)
def test_what_cannot_be_applied_stays_unapplied(site: Site, number: int, said: str) -> None:
    """The error names table and cause; the checkpoint is not committed."""
    sample = BY_NUMBER[number]
    site.post(sample)
    time = Hlc.parse(json.loads(sample["body"])["payload"][0]["updated"])
    site.resolve(time)
    ours = holder(site)
    with pytest.raises(PenstockError) as error:
        site.apply(ours)
    assert re.search(said, error.value.message)
    assert site.keys() == {}
    assert site.applied_count() == 0
    assert site.staging.window(site.group).committed < time
    if number == 85:  # it was deferred, and is applied after its parent
        assert error.value.code == "ST62"
        site.target.run("insert into orders (region, order_no) values ('zz', 9)")
        assert site.apply(ours) == 1


def test_a_resolved_time_behind_what_cannot_be_applied_is_not_reported(site: Site) -> None:
    """The resolved time is recorded in any mode, but it does not count as applied."""
    for mode in (StageMode.CONSISTENT, StageMode.BEST_EFFORT):
        site.begin(mode=mode)
        for number in range(82, 87):
            site.post(BY_NUMBER[number])
        with pytest.raises(PenstockError):
            site.apply(holder(site))
        window = site.staging.window(site.group)
        assert window.proposed == Hlc(1709287291000000000)
        assert window.committed < Hlc(1709287290000000000)


CAS = "configure_table('accounts', cas=['version']{more})"


def test_compare_and_set_and_merges(site: Site) -> None:
    """The samples of compare-and-set and merges give their stated results, one after the other."""
    site.begin(CAS.format(more=""))
    ours = holder(site)
    site.post(BY_NUMBER[87])
    site.post(BY_NUMBER[88])
    assert site.apply(ours) == 1
    assert site.account(50) == (100, "x", 5)
    site.post(BY_NUMBER[89])
    site.resolve(Hlc(1709287302000000000))
    assert site.apply(ours) == 1
    assert site.account(50) == (100, "x", 5)
    site.begin(CAS.format(more=", merge=standard_merge()"))
    site.post(BY_NUMBER[90])
    site.resolve(Hlc(1709287303000000000))
    assert site.apply(ours) == 1
    assert site.account(50) == (100, "y", 5)
    site.post(BY_NUMBER[91])
    site.resolve(Hlc(1709287304000000000))
    with pytest.raises(PenstockError, match=r"unmerged data conflict.*balance.*version"):
        site.apply(ours)
    site.begin(CAS.format(more=", merge=standard_merge(lambda op: {'dlq': 'accounts'})"))
    assert site.apply(ours) == 1
    assert site.account(50) == (100, "y", 5)
    (letter,) = site.target.rows(
        "select dlq_name, source_nanos, source_logical, data_after, data_before from replicator_dlq"
    )
    images = [one if isinstance(one, dict) else json.loads(one) for one in letter[3:]]
    line = json.loads(BY_NUMBER[91]["body"])["payload"][0]
    assert letter[:3] == ("accounts", 1709287304000000000, 0)
    assert images == [line["after"], line["before"]]


def test_values_of_every_type_arrive(site: Site) -> None:
    """The target prints the row that the feed has sent."""
    ours = holder(site)
    for number in (9, 10, 11):
        site.post(BY_NUMBER[number])
    site.resolve(Hlc(1709287210000000002))
    assert site.apply(ours) == 3
    query = 'select i2, i8, f8, s, "by", j, bits from all_types where id = 1'
    if not site.target.is_postgres:
        query = "select i2, i8, f8, s, `by`, j, bits from all_types where id = 1"
    (row,) = site.target.rows(query)
    i2, i8, f8, s, by, j, bits = row
    assert (i2, i8, f8, s) == (-32768, 9007199254740993, 1.5, "tab\tnl\n")
    assert bytes(by) == b"\x00\xff\x10"
    found = j if isinstance(j, dict) else json.loads(j)
    assert found == {"k": [True, None, {"n": 1.1}], "s": 'x"y'}
    assert str(bits) == "101101" or int.from_bytes(bits, "big") == 0b101101
    assert site.target.rows("select count(*) from all_types where i8 is null") == [(1,)]


@pytest.mark.parametrize("name", ["accounts", "audit-log", "order_lines"])
def test_the_target_says_which_tables_it_has(site: Site, name: str) -> None:
    """Tables have their keys in order; an unknown schema has no tables."""
    schemas = site._tables.catalog
    assert schemas.keys(site.group)[name] == KEYS[name]
    assert schemas.group_parts == len(site.group)
    assert schemas.keys((*site.group[:-1], "no such schema")) == {}
    assert schemas.keys(("other", *site.group[1:])) == {}
    table = StagedTable(site.group, name)
    assert table.target.name == name
