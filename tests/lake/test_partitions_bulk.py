"""The bulk load into a partitioned table, with the format in memory, from PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from harness.lake.copying import Copying
from harness.pipelines.bulk import ORDERS, rows, run
from penstock.control.pipeline.servers import source_tables
from penstock.control.run.bulk_load import bulk_options
from penstock.engines.lake.partitions import PartitionUnfit, show_terms, terms_of
from penstock.load.bulk import load_in_bulk
from penstock.ports.bulk import open_planner

COUNT = 3_000


def query_of(*terms: str) -> str:
    """Return the query of a URL with these terms."""
    return f"?partition={quote(json.dumps({str(ORDERS): terms}))}"


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch, source_url: str, tmp_path: Path) -> Copying:
    """Return a pipeline with one table whose rows are in five partitions."""
    run(
        source_url,
        "create table public.orders (id bigint primary key, region text, day date, note text)",
        "insert into public.orders select i, case i % 5 when 0 then null else 'é/' || i % 5 end, "
        f"date '1969-12-31' + i % 3, 'x' from generate_series(1, {COUNT}) as i",
    )
    return Copying(monkeypatch, source_url, tmp_path, query_of("region"))


def check(copying: Copying, source_url: str, terms: str) -> None:
    """Fail unless the lake has the source's rows, each in a file of its partition."""
    expected = rows(source_url, "select id, region, day, note from public.orders order by id")
    names = ("id", "region", "day", "note")
    found = [tuple(row[name] for name in names) for row in copying.store.rows(ORDERS)]
    assert sorted(found, key=lambda row: row[0]) == expected
    snapshot = copying.store.newest(ORDERS)
    assert show_terms(terms_of(snapshot.partition)) == terms
    for file in snapshot.files:
        column = pq.read_table(file.location).column(terms).to_pylist()
        assert {None if one is None else str(one) for one in column} == set(file.partition)


def resync(copying: Copying, query: str) -> None:
    """Copy again with another `[target] partition`, as `penstock table resync` does."""
    target = copying.config.target
    url = target.url.partition("?")[0] + query
    copying.config = replace(copying.config, target=replace(target, url=url))
    config = copying.config
    options = replace(
        bulk_options(config),
        state_directory=config.layout.copies / "7",
        run_directory=config.layout.run / "copies" / "7",
        replaces=True,
        adds_foreign_keys=False,
        beside=True,
    )
    session: Any = copying.session
    with open_planner(config) as planner:
        load_in_bulk(session, options, source_tables(config), planner)


def test_chunks_are_written_by_partition(copying: Copying, source_url: str) -> None:
    """The rows of each chunk are in files of one partition each."""
    assert copying.load().rows == {ORDERS: COUNT}
    check(copying, source_url, "region")
    assert len({file.partition for file in copying.store.newest(ORDERS).files}) == 5


def test_a_copy_has_the_partitions_that_the_file_says_then(
    copying: Copying, source_url: str
) -> None:
    """The same ones: the table stays. Others: it is created again."""
    copying.load()
    run(source_url, "update public.orders set region = 'moved' where id < 100")
    resync(copying, query_of("region"))
    check(copying, source_url, "region")
    assert copying.store.tables[ORDERS].operations == ["create", "copy", "copy"]
    resync_directory = copying.config.layout.copies / "7"
    for path in sorted(resync_directory.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    resync(copying, query_of("day"))
    check(copying, source_url, "day")
    assert copying.store.tables[ORDERS].operations == ["create", "copy"]


def test_a_table_stays_if_it_cannot_have_the_partitions(copying: Copying, source_url: str) -> None:
    """An unknown column is named before the table is dropped."""
    copying.load()
    with pytest.raises(PartitionUnfit, match="column gone, which the table does not have"):
        resync(copying, query_of("gone"))
    check(copying, source_url, "region")
