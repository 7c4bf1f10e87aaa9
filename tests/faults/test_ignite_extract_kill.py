"""The extractor of an Ignite node is killed at every point: the log is the same as without a kill.

No server is needed: the segments are from a recording, or made here.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.ignite.cluster import CACHE_NAME, Cluster, Directories
from harness.ignite.recordings import cdc_of, data_segment, entry_bytes, unpack_recording
from harness.ignite.source import extract, fold_rows, near, number, rows_of, source_pipeline, text
from penstock.codec.ignite.types import cache_id
from penstock.control.pipeline.config import load_config
from penstock.ports.registry import split_urls

POINTS = (
    "extract.write.after",
    "extract.flush.before",
    "extract.flush.after",
    "ignite.place.after",
    "ignite.remove.after",
    "extract.acknowledge.after",
    "extract.rotate.before",
    "extract.rotate.after",
    "extract.done.before",
    "log.rename.before",
    "files.replace",
    "files.replace.rename",
)
OF_SEVERAL = (
    *("extract.flush.before", "ignite.versions.after", "extract.flush.after"),
    *("ignite.place.after", "ignite.remove.after", "extract.rotate.after"),
)
LIVES_MAX = 40


def extend_recording(folder: Path) -> Path:
    """Unpack a recording and add transactions over several records and segments; return its
    directory.
    """
    work = unpack_recording("one", folder / "work")
    for segment in (5, 6):
        records = [
            [
                entry_bytes(
                    key=text(f"word {n % 5}"),
                    value=None if n % 4 == 3 else number(segment * 100 + n),
                    op=3 if n % 4 == 3 else 2,
                    near=near(n % 3 + 1) if n % 2 else b"\0",
                    cache=cache_id("words"),
                )
            ]
            for n in range(30)
        ]
        data = data_segment(records, number=segment, time_ms=1_900_000_000_000)
        (cdc_of(work) / f"{segment:016}.wal").write_bytes(data)
    return work


def read_log(path: Path) -> list[Any]:
    """Return the log's rows and transactions.

    A shape is kept before its rows are in the log: after a kill rows may have columns of later
    versions, still NULL, and versions may be left out.
    """
    rows = rows_of(load_config(path))
    versions: dict[str, int] = {}
    for row in rows:
        if row.relation is not None:
            assert row.relation.version >= versions.get(row.table, 0)
            versions[row.table] = row.relation.version
    return [
        (row.op, row.table, {n: v for n, v in row.values.items() if v is not None}, row.trx)
        for row in rows
    ]


@pytest.fixture(scope="module")
def expected_log(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The log's content without a kill."""
    folder = tmp_path_factory.mktemp("whole")
    path = source_pipeline(folder, extend_recording(folder), tables='"*", "!place"')
    extract(path, flush_rows=7)
    return read_log(path)


def extract_killed(path: Path, name: str, flush_rows: int) -> None:
    """Extract, killed at a point in each life, until one life finishes."""
    killed = 0
    program = [sys.executable, "-m", "harness.ignite.source"]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    for life in range(1, LIVES_MAX):
        done = subprocess.run(
            [*program, path, str(flush_rows)],
            env={**os.environ, **paths, "PENSTOCK_FAULT": f"{name}:{life}:kill"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        killed += 1
    assert done.returncode == 0
    assert killed, "it was never there"


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_a_killed_extractor_of_several_nodes(tmp_path: Path, name: str) -> None:
    """The log has what the cluster has: no change twice, and none after a newer one of its key."""
    chance, cluster = random.Random(3), Cluster(2, 1)
    nodes = Directories(tmp_path / "nodes", cluster)
    for value in range(60):
        cluster.change(chance.randrange(5), value if chance.random() < 0.8 else None)
        cluster.deliver(chance.randint(0, 2))
        cluster.wait(chance.choice((0, 200_000)))
        if chance.random() < 0.2:
            cluster.archive(chance.randrange(2))
    cluster.settle()
    for node in (0, 1):
        cluster.archive(node)
    nodes.write()
    path = source_pipeline(tmp_path, nodes.work(0), "n0")
    urls = ", ".join(f'"{one}"' for one in split_urls(nodes.url))
    text = path.read_text().splitlines()
    path.write_text("\n".join(f"url = [{urls}]" if one.startswith("url") else one for one in text))
    extract_killed(path, name, 8)
    rows = rows_of(load_config(path))
    wanted = {key: value for key, (_, value) in cluster.values.items() if value is not None}
    found = fold_rows(rows)[CACHE_NAME]
    assert {key: row["_val"] for (key,), row in found.items()} == wanted
    last: dict[int, int] = {}
    for row in rows:
        if row.op == "U":
            assert last.get(row.values["_key"], -1) < row.values["_val"]
            last[row.values["_key"]] = row.values["_val"]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_a_killed_extractor_leaves_the_log_as_it_is_without(
    tmp_path: Path, expected_log: list[Any], name: str
) -> None:
    """The extractor is killed in each life, a little later each time, until one life finishes."""
    path = source_pipeline(tmp_path, extend_recording(tmp_path), tables='"*", "!place"')
    extract_killed(path, name, 7)
    assert read_log(path) == expected_log
    left = sorted(one.name for one in cdc_of(tmp_path / "work").glob("*.wal"))
    assert left == [f"{6:016}.wal"]
    shutil.rmtree(tmp_path / "work")
