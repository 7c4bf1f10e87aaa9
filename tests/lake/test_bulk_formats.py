"""The bulk load from PostgreSQL into Delta Lake and Iceberg, by Spark's workers, one of which dies.

Read by readers that are not Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.lake import delta, iceberg
from harness.lake.iceberg import hadoop_place
from harness.lake.spark import lake_session
from harness.pipelines.bulk import between, load, rows, run
from penstock.control.pipeline.servers import source_tables
from penstock.control.run.bulk_load import bulk_options
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.lake.chunk_records import bulk_log
from penstock.engines.lake.progress import connect_progress
from penstock.load.bulk import load_in_bulk
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config
from plugins.shared import SharedSpark

pytestmark = pytest.mark.spark

ORDERS = TableName("public", "orders")
EVENTS = TableName("public", "events")
COUNT = 40_000
Read = Callable[[TableName], dict[str, pa.Table]]


@pytest.fixture(scope="module")
def fault_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a file for each fault that has happened."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory, fault_files: Path
) -> Iterator[Session]:
    """Session of two slots; the first worker that has written its second chunk is killed."""
    shared_spark.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_FAULT", "bulk.chunk.copied:2:kill")
        patch.setenv("PENSTOCK_FAULT_ONCE", str(fault_files))
        folder = tmp_path_factory.mktemp("spark")
        with lake_session(folder, master="local[2]") as running:
            yield running


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, session: Session, source_url: str, tmp_path: Path
) -> tuple[Config, Read]:
    """Pipeline into a lake of each format, and a function that reads a table of it."""
    if request.param == "delta":
        url = f"delta+file://{tmp_path}/lake"
        return between(source_url, url, tmp_path), lambda name: delta.read_all(
            find(DELTA, url, session, name), session
        )
    place = hadoop_place(tmp_path / "warehouse")
    place.register(session)
    return between(source_url, place.url(), tmp_path), lambda name: iceberg.read_all(
        session, place, find(ICEBERG, place.url(), session, name)
    )


def find(table_format: Any, url: str, session: Session, name: TableName) -> Any:
    """Return a table as another process finds it."""
    table = table_format.open(url, session, {}).find(name)
    assert table is not None
    return table


def fill(url: str) -> None:
    """Create a table of several chunks, and one with the extremes of types."""
    run(
        url,
        "create table public.orders (id bigint primary key, note text, total numeric(12,2))",
        "insert into public.orders select i, repeat(md5(i::text), 3), i / 7.0 from "
        f"generate_series(1, {COUNT}) as i",
        "create table public.events (id int primary key, flag boolean, small smallint, "
        "amount numeric, price numeric(38,10), ratio float8, note text, raw bytea, day date, "
        "at timestamp, moment timestamptz, clock time, tag uuid, doc jsonb, list int[])",
        "insert into public.events values (1, true, -32768, 12345678901234567890.123, "
        "1234567890123456789012345678.0123456789, 'NaN', e'a\\tb\\n\\\\ü', '\\x00ff', "
        "'0001-01-01', '0001-01-01', '9999-12-31 23:59:59.999999+00', '23:59:59.5', "
        "'00000000-0000-0000-0000-00000000000f', '{\"a\": 1}', '{1,null}')",
        "insert into public.events (id, note) values (2, '')",
    )


EXPECTED = {
    "id": [1, 2],
    "flag": [True, None],
    "small": [-32768, None],
    "amount": ["12345678901234567890.123", None],
    "price": [Decimal("1234567890123456789012345678.0123456789"), None],
    "note": ["a\tb\n\\ü", ""],
    "raw": [b"\0\xff", None],
    "day": [date(1, 1, 1), None],
    "at": [datetime(1, 1, 1), None],  # noqa: DTZ001 - the column has no zone
    "moment": [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None],
    "clock": ["23:59:59.5", None],
    "tag": ["00000000-0000-0000-0000-00000000000f", None],
    "doc": ['{"a": 1}', None],
    "list": ["{1,NULL}", None],
}


def test_all_rows_are_there_once_for_every_reader(
    lake: tuple[Config, Read], session: Session, source_url: str, fault_files: Path
) -> None:
    """All rows are there once for every reader, also after a copy that replaces them."""
    config, read = lake
    fill(source_url)
    result = load(config, session)
    assert result.rows == {ORDERS: COUNT, EVENTS: 2}
    assert list(fault_files.iterdir()), "no worker was killed"
    check_orders(read, source_url)
    for reader, table in read(EVENTS).items():
        found = table.select(list(EXPECTED)).sort_by("id").to_pydict()
        assert found == EXPECTED, reader
        ratios = table.sort_by("id").column("ratio").to_pylist()
        assert str(ratios) == "[nan, None]", reader

    run(
        source_url,
        "update public.orders set total = -1 where id <= 5",
        "delete from orders where id = 9",
    )
    run(
        source_url,
        "alter table public.events drop column small, add column extra int not null default 7, "
        "alter column day type text using 'd' || day",
    )
    copy_again(config, session)
    check_orders(read, source_url)
    for reader, table in read(EVENTS).items():
        found = table.sort_by("id").to_pydict()
        assert "small" not in found, reader
        assert found["extra"] == [7, 7], reader
        assert found["day"] == ["d0001-01-01", None], reader
        assert found["price"] == EXPECTED["price"], reader
    counts = connect_progress(config.target.url, "test").read_done()
    assert sum(counts[str(ORDERS)].values()) == COUNT - 1


def check_orders(read: Read, source_url: str) -> None:
    """Fail unless each reader reads the source's orders."""
    expected = rows(source_url, "select id, note, total from public.orders order by id")
    for reader, table in read(ORDERS).items():
        found = table.select(["id", "note", "total"]).sort_by("id")
        assert list(zip(*found.to_pydict().values(), strict=True)) == expected, reader


def copy_again(config: Config, session: Session) -> None:
    """Copy all tables again, as `penstock table resync` does."""
    options = replace(
        bulk_options(config),
        state_directory=config.layout.copies / "7",
        run_directory=config.layout.run / "copies" / "7",
        replaces=True,
        adds_foreign_keys=False,
        beside=True,
    )
    with open_planner(config) as planner:
        load_in_bulk(session, options, source_tables(config), planner)


def test_the_commit_has_the_name_of_the_plan(
    lake: tuple[Config, Read], session: Session, source_url: str
) -> None:
    """The commit has the name of the plan, so it is not repeated."""
    config, _read = lake
    run(source_url, "create table public.orders (id int primary key)")
    load(config, session)
    table_format = DELTA if config.target.url.startswith("delta") else ICEBERG
    snapshot = find(table_format, config.target.url, session, ORDERS).snapshot(refresh=True)
    plan = connect_progress(config.target.url, "test")._records.read_mark(ORDERS)
    assert plan is not None
    assert snapshot.mark is not None
    assert snapshot.mark.log_id == bulk_log(plan.plan)
    assert snapshot.files == ()
