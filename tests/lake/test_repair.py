"""`penstock verify --repair` of lakes: rows that differ come from the source, by position.

Spark spoils the rows, and other readers read them afterwards; a lake in memory has neither.
Not here: the command (`tests/servers/test_lake_commands.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.lake.spark import lake_session
from harness.lake.typed import KINDS, MEMORY, TypedLake
from penstock.control.verify import hashed_rows
from penstock.control.verify.verify import verify
from penstock.host import faults
from penstock.load.session import Session
from penstock.ports.target import TargetShapeDiffers
from penstock.ports.verify import RepairRefused, TargetMoved
from plugins.shared import SharedSpark

pytestmark = pytest.mark.timeout(1200)

SETUP = (
    "create type mood as enum ('calm', 'wild')",
    "create table orders (id int, part int, name text, m mood, a int[], at timestamptz,"
    " primary key (id, part))",
    "create table bag (id int, v text)",
    "alter table bag replica identity full",
    "create table other (id int primary key, v text)",
    "insert into orders select g, g % 3, 'n' || g, 'wild', array[g], '2024-02-29 12:00+02'"
    " from generate_series(1, 300) g",
    "insert into bag select g % 10, 'v' || g % 10 from generate_series(1, 100) g",
    "insert into other select g, 'o' from generate_series(1, 20) g",
)
SPOIL = (
    "update {orders} set name = 'x', at = null where id in (1, 2)",
    "delete from {orders} where id between 100 and 110",
    "insert into {orders} select id + 1000, part, name, m, a, at from {orders} where id = 5",
    "insert into {orders} select * from {orders} where id = 7",
    "delete from {bag} where v = 'v3'",
    "insert into {bag} values (1, 'v1'), (null, null)",
)
DONE = {"orders": (5, 14), "bag": (12, 20)}


class Repaired:
    """A pipeline into a lake whose rows can be spoilt."""

    def __init__(self, lake: TypedLake, source_url: str) -> None:
        """Fill the source, and bring its rows into the lake."""
        self.lake, self._url = lake, source_url
        self.run(*SETUP)
        lake.extract()
        lake.load_rows()
        self.run("update orders set name = name || '.' where id % 10 = 0")
        self.follow()

    def run(self, *statements: str) -> None:
        """Run statements at the source."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def follow(self) -> None:
        """Bring the source's changes into the lake."""
        self.lake.extract()
        self.lake.apply()

    def is_equal(self) -> bool:
        """Return whether each reader has the source's rows."""
        found = self.lake.compare(["orders", "bag", "other"])
        return all(result.equal for result in found.values())

    def check_versions(self) -> None:
        """Check that the newest commit of the source names the newest versions."""
        named = self.lake.named_versions()
        for name in ("orders", "bag", "other"):
            assert named[f"public.{name}"] == self.lake.version(name), name


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(params=KINDS)
def one(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    source_url: str,
    tmp_path: Path,
) -> Repaired:
    """A pipeline into a lake of each kind."""
    is_memory = request.param == MEMORY
    lake = TypedLake(
        request.param,
        source_url,
        "public",
        tmp_path,
        session=None if is_memory else request.getfixturevalue("session"),
        monkeypatch=monkeypatch,
        choices={},
    )
    return Repaired(lake, source_url)


def test_every_kind_of_row_is_repaired(one: Repaired, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, surplus, doubled and different rows; later changes find what was repaired."""
    config = one.lake.follow
    one.check_versions()
    one.lake.spoil(*SPOIL)
    found = verify(config).tables
    for fault in ("verify.repair.deleted:2:error", "verify.repair.written:1:error"):
        with faults.arming(fault), pytest.raises(faults.FaultInjected):
            verify(config, repair=True)
        assert verify(config).tables == found, "nothing is half done"
        assert not one.lake.files_of_repairs()
    result = verify(config, repair=True)
    assert not result.equal
    assert {t.table.name: (t.deleted, t.written) for t in result.repaired} == DONE
    assert one.is_equal()
    one.check_versions()
    assert verify(config, repair=True).repaired == ()
    one.run(
        "update orders set name = 'later', part = part where id in (1, 100, 7)",
        "delete from orders where id in (2, 101)",
        "update bag set v = 'w' where v = 'v3'",
        "insert into orders values (1005, 2, 'n', 'calm', '{}', now())",
    )
    one.follow()
    assert one.is_equal()
    monkeypatch.setattr(hashed_rows, "KEYS_MAX", 10)
    one.lake.spoil("update {orders} set name = 'many' where id % 2 = 0")
    assert verify(config, repair=True).repaired[0].written >= 140
    assert one.is_equal()


def test_a_repair_that_is_cut_short_is_completed(one: Repaired) -> None:
    """Some tables are repaired, the others not; the next repair completes it."""
    config = one.lake.follow
    one.lake.spoil(*SPOIL)
    with faults.arming("lake.repair.commit.after:1:error"), pytest.raises(faults.FaultInjected):
        verify(config, repair=True)
    wrong = [table for table in verify(config).tables if not table.equal]
    assert len(wrong) == 1
    one.run("update other set v = 'p' where id = 1")
    one.follow()
    one.check_versions()
    assert len(verify(config, repair=True).repaired) == 1
    assert one.is_equal()
    one.check_versions()


def test_what_a_repair_cannot_do_is_refused(one: Repaired, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of the lake's own, another type, and another writer while it is repaired."""
    config = one.lake.follow
    one.lake.spoil("update {orders} set name = 'x' where id = 1")

    writes = iter(["delete from {orders} where id = 3"])

    def write(_name: str) -> None:
        one.lake.spoil(*[statement for statement in [next(writes, "")] if statement])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", write)
        with pytest.raises(TargetMoved, match="another client"):
            verify(config, repair=True)
    assert len(verify(config, repair=True).repaired) == 1
    one.lake.spoil("delete from {bag} where id = 1")
    one.run("alter table bag alter column id type bigint")
    with pytest.raises(TargetShapeDiffers, match="is int32, expected int64"):
        verify(config, repair=True)
    one.lake.add_column("bag", "own")
    with pytest.raises(RepairRefused, match="own"):
        verify(config, repair=True)
