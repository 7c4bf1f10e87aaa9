"""Several nodes of a cluster as one source, without a running node: the content of the log."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.ignite.cluster import CACHE_NAME, Cluster, Directories, Record, segment_of
from harness.ignite.recordings import cdc_of
from harness.ignite.source import (
    Row,
    extract,
    fold_rows,
    make_work_directory,
    rows_of,
    source_pipeline,
)
from penstock.codec.ignite.wal import Version
from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigUrlInvalid, ConfigValueInvalid
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import extract_options
from penstock.engines.ignite.directory import CdcDirectoryMissing
from penstock.engines.ignite.lag import IgniteLag
from penstock.engines.ignite.source.several import CommonLives, Nodes
from penstock.engines.ignite.source.versions import (
    FILE_NAME,
    SLACK_MS,
    RecentVersions,
    VersionsBroken,
    VersionsLost,
)
from penstock.engines.ignite.state import CdcState
from penstock.host.files import FileMissing
from penstock.model import FlushPoint
from penstock.ports.checks import Severity
from penstock.ports.direct import LogPlace
from penstock.ports.lag import LogEnd
from penstock.ports.registry import joined_urls, split_urls
from penstock.ports.source import EnginePlace, extraction_of


def pipeline(folder: Path, url: str, source: str = "") -> Path:
    """Return a pipeline file without a target over these nodes."""
    file = folder / "nodes.toml"
    urls = ", ".join(f'"{one}"' for one in split_urls(url))
    file.write_text(
        f'[pipeline]\nname = "nodes"\ndirectory = "{folder / "pipeline"}"\n[source]\n'
        f'url = [{urls}]\ntables = ["*"]\n{source}\n'
    )
    return file


class World:
    """A cluster, its directories and a pipeline."""

    def __init__(
        self, folder: Path, node_count: int = 2, backups: int = 1, source: str = ""
    ) -> None:
        self.cluster = Cluster(node_count, backups)
        self.directories = Directories(folder / "nodes", self.cluster)
        self.file = pipeline(folder, self.directories.url, source)
        self.folder = folder

    def archive(self, *nodes: int) -> None:
        """Make readable what these nodes have logged."""
        for node in nodes:
            self.cluster.archive(node)
        self.directories.write()

    def extract(self, **more: Any) -> list[Row]:
        """Extract all changes and return the rows of the log."""
        extract(self.file, **more)
        return rows_of(load_config(self.file))

    def check(self, rows: list[Row]) -> None:
        """Check that the log has the cluster's values, and none after a newer one of its key."""
        values = {
            key: value for key, (_, value) in self.cluster.values.items() if value is not None
        }
        found = fold_rows(rows).get(CACHE_NAME, {})
        assert {key: row["_val"] for (key,), row in found.items()} == values
        last: dict[int, int] = {}
        for row in rows:  # values increase; a resend repeats one
            if row.op == "U":
                assert last.get(row.values["_key"], -1) <= row.values["_val"]
                last[row.values["_key"]] = row.values["_val"]


def test_each_change_is_given_once(tmp_path: Path) -> None:
    """Whichever copy is read first, the other one is skipped, in this run or a later one."""
    world = World(tmp_path)
    for key in range(6):
        world.cluster.change(key, key)
    world.cluster.settle()
    world.archive(1)
    rows = world.extract()
    world.check(rows)
    assert len(rows) == 6
    world.archive(0)
    assert world.extract() == rows
    assert sorted(path.name for path in world.directories.cdc(0).glob("*.wal")) == [f"{0:016}.wal"]


def test_all_copies_where_they_are_asked_for(tmp_path: Path) -> None:
    """Each copy has its node's word on whether it is primary; no older one follows a newer one."""
    world = World(tmp_path, source="includeBackups = true")
    world.cluster.change(1, 10)
    world.cluster.settle()
    world.archive(0)
    world.cluster.change(1, 11)
    world.cluster.settle()
    world.archive(0, 1)
    rows = world.extract()
    assert [row.values["_val"] for row in rows].count(11) == 2
    assert "_primary" in rows[0].values
    world.directories.cdc(1).joinpath(f"{1:016}.wal").exists()


def test_a_node_that_died_before_it_archived(tmp_path: Path) -> None:
    """Changes are read from backups; its own old records are skipped when the node is back."""
    world = World(tmp_path)
    for key in range(6):
        world.cluster.change(key, key)
    world.cluster.settle()
    world.cluster.kill(0)
    for key in range(3):
        world.cluster.change(key, 10 + key)
    world.cluster.change(4, None)
    world.cluster.wait(100 * SLACK_MS)
    world.archive(1)
    rows = world.extract()
    world.check(rows)
    world.cluster.start(0)
    world.cluster.change(5, 50)
    world.cluster.settle()
    world.archive(0, 1)
    rows = world.extract()
    world.check(rows)
    assert len(rows) == 11


def test_a_node_that_cannot_be_reached(tmp_path: Path) -> None:
    """The others continue; its own changes are read when it is back, also in a later run."""
    world = World(tmp_path, backups=0)
    for key in range(6):
        world.cluster.change(key, key)
    world.archive(0, 1)
    world.directories.away(1)
    rows = world.extract()
    assert 0 < len(rows) < 6
    world.directories.away(1)
    world.check(world.extract())
    world.directories.away(0)
    world.directories.away(1)
    with pytest.raises(CdcDirectoryMissing):
        world.extract()


def test_a_list_of_one_gets_a_second(tmp_path: Path) -> None:
    """One log has the changes of both, and it is not the log of one node alone."""
    world = World(tmp_path)
    everyone = world.directories.url
    world.file = pipeline(tmp_path, joined_urls(split_urls(everyone)[:1]))
    for key in range(6):
        world.cluster.change(key, key)
    world.cluster.settle()
    world.archive(0, 1)
    world.check(world.extract())
    world.file = pipeline(tmp_path, everyone)
    world.cluster.wait(10 * SLACK_MS)
    world.cluster.change(1, 11)
    world.cluster.settle()
    world.archive(0, 1)
    world.check(world.extract())


def test_a_node_that_joins(tmp_path: Path) -> None:
    """Without its URL its partitions' backups are read; with it, its own later changes."""
    world = World(tmp_path, node_count=3)
    everyone = world.directories.url
    world.file = pipeline(tmp_path, joined_urls(split_urls(everyone)[:2]))
    for key in range(6):
        world.cluster.change(key, key)
    world.cluster.settle()
    world.archive(0, 1, 2)
    world.check(world.extract())
    world.cluster.wait(10 * SLACK_MS)
    for key in range(6):
        world.cluster.change(key, 10 + key)
    world.cluster.settle()
    world.archive(0, 1, 2)
    world.check(world.extract())
    world.file = pipeline(tmp_path, everyone)
    world.cluster.wait(10 * SLACK_MS)
    world.cluster.change(2, 22)
    world.cluster.settle()
    world.archive(0, 1, 2)
    rows = world.extract()
    world.check(rows)
    assert len(rows) == 13


def test_a_node_is_taken_out_and_joins_again(tmp_path: Path) -> None:
    """Changes that it logged meanwhile are older than the others' logs: they are all skipped."""
    world = World(tmp_path)
    everyone = world.directories.url
    for value in range(4):
        both = everyone if value in (0, 3) else joined_urls(split_urls(everyone)[:1])
        world.file = pipeline(tmp_path, both)
        for key in range(3):
            world.cluster.change(key, 10 * value + key)
            world.cluster.settle()
            world.cluster.wait(10 * SLACK_MS)
            world.archive(0, 1)
            world.check(world.extract())
    assert len(world.extract()) == 12


def test_a_node_whose_disk_was_replaced(tmp_path: Path) -> None:
    """The node begins with segment 0 again: its changes are not mistaken for read ones."""
    world = World(tmp_path)
    for number in range(3):
        world.cluster.change(0, number)
        world.cluster.settle()
        world.archive(0, 1)
    rows = world.extract()
    world.check(rows)
    for path in world.directories.cdc(0).glob("*.wal"):
        path.unlink()
    (world.directories.cdc(0) / "state/cdc-wal-state.bin").unlink()
    world.cluster.archived[0].clear()
    world.directories.written[0] = 0
    world.cluster.change(3, 33)
    world.cluster.settle()
    world.archive(0)
    world.check(world.extract())


def test_a_replaced_disk_whose_state_another_reader_has_saved(tmp_path: Path) -> None:
    """Ignite's own utility has begun with it: its place is in the new segments, and is kept."""
    world = World(tmp_path)
    for number in range(3):
        world.cluster.change(0, number)
        world.cluster.settle()
        world.archive(0, 1)
    world.check(world.extract())
    cdc = world.directories.cdc(0)
    for path in (*cdc.glob("*.wal"), *cdc.glob("state/penstock-log.json")):
        path.unlink()
    world.cluster.archived[0].clear()
    world.directories.written[0] = 0
    CdcState(cdc).save_place(LogPlace(0, 0, 0))
    world.cluster.change(3, 33)
    world.cluster.settle()
    world.archive(0)
    world.check(world.extract())


@pytest.mark.parametrize("seed", range(12))
def test_histories(tmp_path: Path, seed: int) -> None:
    """Nodes die and return, partitions move, the extraction ends anywhere and resumes."""
    chance = random.Random(seed)
    world = World(tmp_path, chance.randint(2, 3), chance.randint(0, 2))
    cluster, nodes = world.cluster, range(world.cluster.node_count)
    values = iter(range(1 << 30))
    for _ in range(chance.randint(3, 6)):
        for _ in range(chance.randint(5, 40)):
            cluster.change(chance.randrange(6), next(values) if chance.random() < 0.8 else None)
            cluster.wait(chance.choice((0, 10, 5_000)))
            cluster.deliver(chance.randint(0, 3))
            if chance.random() < 0.1:
                chance.choice((cluster.kill, cluster.start))(chance.choice(nodes))
            if chance.random() < 0.1:
                cluster.resend()
            cluster.log_resent(chance.randint(0, 3))
            if chance.random() < 0.1:
                cluster.wait(3 * SLACK_MS)
            if chance.random() < 0.4:
                world.archive(chance.choice(nodes))
        calls = iter(range(chance.randint(1, 12)))
        extract(world.file, stop=lambda: next(calls, None) is None, flush_rows=3)  # noqa: B023
    for node in nodes:
        cluster.start(node)
    cluster.settle()
    world.archive(*nodes)
    world.check(world.extract(flush_rows=5))


def test_another_attempt_begins_at_the_flush_point(tmp_path: Path) -> None:
    """Changes that were read and did not become durable are returned again."""
    world = World(tmp_path)
    for key in range(6):
        world.cluster.change(key, key)
    world.cluster.settle()
    world.archive(0, 1)
    config = load_config(world.file)
    options, start = extract_options(config), FlushPoint(position=0)
    place = EnginePlace(state=NoState(), spill=tmp_path, run=tmp_path, log_id=lambda: "log")
    opened = extraction_of(config).open_engine
    with opened(pipeline_of(config), options, tables=list, stop=lambda: False) as engine:
        engine.begin(place)
        given = []
        for _ in range(2):
            with engine.attempt(), engine.stream(start) as stream:
                runs = iter(lambda: stream.next_run(0), None)
                given.append(sum(rows.batch.num_rows for run in runs for rows in run.rows))
    assert given == [6, 6]


class NoState:
    """State files that keep nothing."""

    def load(self, _name: str, _kind: Any) -> None:
        """Return None, because nothing was kept."""

    def save(self, name: str, state: Any) -> None:
        """Ignore the state."""


@pytest.mark.parametrize("flush_rows", [1, 100])
@pytest.mark.parametrize("segments", [1, 2])
def test_one_node_resends_behind_a_newer_change(
    tmp_path: Path, flush_rows: int, segments: int
) -> None:
    """A row that was being sent when its key changed is skipped, also after a start."""
    newer = [Record(1, Version(1, 3, 1, 0), 13), Record(2, Version(1, 4, 1, 0), None)]
    resent = [
        Record(1, Version(1, 2, 1, 0), 12, resent=True),
        Record(2, Version(1, 1, 1, 0), 21, resent=True),
        Record(3, Version(1, 1, 1, 0), 31, resent=True),
    ]
    new = [Record(1, Version(2, 1, 1, 0), 14)]
    every = [[*newer, *resent, *new]] if segments == 1 else [newer, [*resent, *new]]
    work = make_work_directory(tmp_path, {0: segment_of(every[0], 0)}, CACHE_NAME)
    file = source_pipeline(tmp_path, work, "n")
    extract(file, flush_rows=flush_rows)
    if segments == 2:
        cdc_of(work, "n").joinpath(f"{1:016}.wal").write_bytes(segment_of(every[1], 1))
        extract(file, flush_rows=flush_rows)
    rows = rows_of(load_config(file))
    assert [row.values["_key"] for row in rows] == [1, 2, 3, 1]
    found = fold_rows(rows)[CACHE_NAME]
    assert {key: row["_val"] for (key,), row in found.items()} == {1: 14, 3: 31}


def test_what_one_node_remembers_is_bounded() -> None:
    """The most recent keys are remembered; of other keys every version is taken."""
    recent = RecentVersions(key_count=10)
    for key in range(100):
        assert recent.accepts(1, bytes([key]), Version(1, 5, 1, 0), 0)
    assert not recent.accepts(1, bytes([95]), Version(1, 4, 9, 0), 0)
    assert recent.accepts(1, bytes([95]), Version(1, 5, 1, 0), 0)
    assert recent.accepts(1, bytes([95]), None, 0)
    assert recent.accepts(1, bytes([3]), Version(1, 4, 1, 0), 0)


def test_versions_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names a file that is missing or is not a SQLite file: no version is guessed."""
    world = World(tmp_path)
    world.cluster.change(1, 1)
    world.archive(0, 1)
    world.extract()
    kept = load_config(world.file).layout.state / FILE_NAME
    kept.write_bytes(b"this is not a SQLite file, and long enough to be looked at" * 20)
    with pytest.raises(VersionsBroken):
        world.extract()
    for path in kept.parent.glob(f"{FILE_NAME}*"):
        path.unlink()
    with pytest.raises(VersionsLost):
        world.extract()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ('["ignite:///a?consistentId=n", "ignite:///b"]', ConfigUrlInvalid),
        ('["ignite:///a?consistentId=n", "ignite:///b?consistentId=n"]', ConfigUrlInvalid),
        ('["postgresql://u@h/d", "postgresql://u@i/d"]', ConfigValueInvalid),
        ('["ignite:///a?consistentId=n", "postgresql://u@i/d"]', ConfigValueInvalid),
        ("[]", ConfigValueInvalid),
        ("[1]", ConfigValueInvalid),
    ],
)
def test_lists_that_are_none_of_nodes(tmp_path: Path, url: str, error: type[Exception]) -> None:
    """Other engines have one URL; nodes are told apart by their consistentId."""
    file = tmp_path / "nodes.toml"
    file.write_text(
        f'[pipeline]\nname = "n"\ndirectory = "d"\n[source]\nurl = {url}\ntables = ["*"]\n'
    )
    with pytest.raises(error):
        load_config(file)


def test_doctor_looks_at_each_node(tmp_path: Path) -> None:
    """A missing node is a warning while another is there; if all are missing, it is an error."""
    world = World(tmp_path)
    world.archive(0, 1)
    assert severities(world) == set()
    world.directories.away(1)
    assert severities(world) == {("IG01", Severity.WARNING)}
    world.directories.away(0)
    assert severities(world) == {("IG01", Severity.ERROR)}


def severities(world: World) -> set[tuple[str, Severity]]:
    """Return the severities of doctor's findings about directories."""
    found = examine(load_config(world.file)).findings
    return {(one.code, one.severity) for one in found if one.code == "IG01"}


def test_lag_of_several(tmp_path: Path) -> None:
    """The lag counts archived, unread bytes of all nodes, and is unknown while one is missing."""
    world = World(tmp_path)
    world.cluster.change(1, 10)
    world.cluster.settle()
    world.archive(0, 1)
    world.extract()
    config = load_config(world.file)
    end = FlushPoint(position=pipeline_of(config).log_position())
    lag = IgniteLag(config, "test")
    before = lag.state(LogEnd(end=end))
    assert before.bytes_between(end.position, before.position) == 1
    world.cluster.change(2, 20)
    world.cluster.settle()
    world.archive(0, 1)
    after = lag.state(LogEnd(end=end))
    size = sum(
        world.directories.cdc(node).joinpath(f"{1:016}.wal").stat().st_size for node in (0, 1)
    )
    assert size <= after.bytes_between(end.position, after.position)
    assert after.position - before.position == 2 << 32
    assert lag.retention() is not None
    world.directories.away(1)
    with pytest.raises(FileMissing):
        lag.state(LogEnd(end=end))
    with pytest.raises(CdcDirectoryMissing):
        IgniteLag(config, "test")


def test_a_cache_that_several_nodes_make_again() -> None:
    """Rows are dropped once per life; a node that joins, or was away, begins no life."""
    lives = CommonLives()
    assert lives.begins("c", "one", 1_000)  # its first life
    assert not lives.begins("c", "two", 1_200)
    for node in ("one", "two"):
        lives.saw("c", node, 2_000)
    assert not lives.begins("c", "three", 900_000), "it has got a partition"
    assert lives.begins("c", "two", 1_000_000)
    assert not lives.begins("c", "one", 1_000_100)
    assert lives.ended_ms("c", "three") == 1_000_000
    assert lives.begins("c", "two", 1_000_300), "twice in a short time"
    assert not lives.begins("c", "one", 1_000_400)
    assert not lives.begins("c", "three", 5_000_000), "it was away"
    assert lives.ended_ms("c", "three") == 0
    lives.forget("one")
    assert not lives.begins("c", "one", 6_000_000), "its disk was replaced"
    lives.saw("c", "two", 8_000_000)
    assert not lives.begins("c", "one", 7_000_000), "changes behind it were given"


def test_a_node_joins_a_cache_of_which_no_life_is_known() -> None:
    """The cache was created before the log began."""
    lives = CommonLives()
    lives.saw("c", "one", 1_000)
    assert not lives.begins("c", "two", 900_000)
    assert lives.begins("c", "one", 2_000_000)


def test_a_life_outlasts_a_restart() -> None:
    """The known lives are kept with the flush point."""
    nodes = Nodes(["one", "two"])
    nodes.lives.saw("c", "one", 1_000)
    assert nodes.lives.begins("c", "one", 2_000)
    again = Nodes(["one", "two"], nodes.dump())
    assert not again.lives.begins("c", "two", 2_100)
