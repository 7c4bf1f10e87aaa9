"""Address of a snapshot's sessions for executors, and the bulk load if they cannot reach it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.host.listen import SnapshotAddress, split_address
from penstock.load import bulk, chunk
from penstock.load.bulk import BulkOptions
from penstock.load.ledger import Step
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import ChunkOutcome, ChunkStatus, SnapshotUnreachable, TablePlan
from penstock.ports.config import SparkSection, snapshot_address

A, B = TableName("s", "a"), TableName("s", "b")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("spark", "host", "bind", "port"),
    [
        ({}, "127.0.0.1", "127.0.0.1", 0),
        ({"snapshot_address": "10.0.0.5"}, "127.0.0.1", "127.0.0.1", 0),
        ({"master": "local-cluster[2,1,512]"}, "127.0.0.1", "127.0.0.1", 0),
        (
            {"master": "local-cluster[2,1,512]", "snapshot_address": "10.0.0.5"},
            *("10.0.0.5", "10.0.0.5", 0),
        ),
        (
            {"master": "spark://m:7077", "snapshot_address": "driver:5010"},
            *("driver", "driver", 5010),
        ),
        (
            {"master": "yarn", "conf": {"spark.driver.host": "10.0.0.6"}},
            *("10.0.0.6", "10.0.0.6", 0),
        ),
        (
            {
                "master": "k8s://https://h:6443",
                "snapshot_address": "out:5010",
                "conf": {"spark.driver.host": "in", "spark.driver.bindAddress": "0.0.0.0"},
            },
            *("out", "0.0.0.0", 5010),
        ),
        ({"master": "spark://127.0.0.1:7077,other:7077"}, "127.0.0.1", "127.0.0.1", 0),
    ],
)
def test_where_it_is(spark: dict[str, Any], host: str, bind: str, port: int) -> None:
    """The address is loopback with a local driver; else as the file says, or as Spark's driver."""
    assert snapshot_address(SparkSection(**spark)) == SnapshotAddress(
        host=host, bind=bind, port=port
    )


def test_without_a_word_it_is_where_spark_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's environment is used first; then the address from which this machine sends."""
    found = snapshot_address(SparkSection(master="yarn"))
    assert found.host == found.bind
    assert socket.getaddrinfo(found.host, 0)
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    assert snapshot_address(SparkSection(master="yarn")).host == "10.0.0.7"
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "driver")
    assert snapshot_address(SparkSection(master="yarn")).host == "driver"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", ("h", 0)),
        ("h:1", ("h", 1)),
        ("[fd00::2]:5", ("fd00::2", 5)),
        ("fd00::2", ("fd00::2", 0)),
        ("[::1]", ("::1", 0)),
    ],
)
def test_how_it_is_written(text: str, found: tuple[str, int]) -> None:
    """The text has host and port."""
    assert split_address(text) == found


@pytest.mark.parametrize("text", ["h:65536", "h:x", "h:", ":5", "http://h", "[h]:5", "a b"])
def test_what_is_no_address(text: str) -> None:
    """A text that is not an address is refused."""
    with pytest.raises(ValueError, match="not a"):
        split_address(text)


# -- the bulk load -------------------------------------------------------------------------------


def unreachable() -> SnapshotUnreachable:
    """Return a worker's error."""
    return SnapshotUnreachable("w cannot reach h:1", hint="Set it.", address="h:1", cause="cut")


def outcome(table: TableName, error: PenstockError | None = None) -> ChunkOutcome:
    """Return the outcome of a chunk that failed, or whose snapshot is gone."""
    status = ChunkStatus.FAILED if error else ChunkStatus.SNAPSHOT_GONE
    return ChunkOutcome(table=table, number=1, status=status, error=error)


def loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, alive: bool) -> Any:
    """Return a bulk load whose tables have a chunk left; the driver finds their snapshot or not."""
    options = BulkOptions(
        source_url="x", target_url="x", state_directory=tmp_path, run_directory=tmp_path
    )
    load = bulk._Load(
        *(cast(Any, SimpleNamespace()), options, [], cast(Any, None)),
        cast(Any, SimpleNamespace(marks=dict)),
        *(None, lambda: False),
    )
    plans = [
        cast(
            Any,
            SimpleNamespace(
                source=name, position="0/1", snapshot_id="one", snapshot_text="t", chunks=()
            ),
        )
        for name in (A, B)
    ]
    load.ledger.plans = cast(list[TablePlan], plans)
    asked: list[str] = []

    def is_alive(plan: Any) -> bool:
        asked.append(plan.snapshot_id)
        return alive

    monkeypatch.setattr(load, "is_alive", is_alive)
    monkeypatch.setattr(load, "chunks_left", lambda *_: ["one"])
    return SimpleNamespace(load=load, asked=asked)


def settle_round(found: Any, outcomes: Sequence[ChunkOutcome]) -> dict[TableName, Step]:
    """Return the remaining steps after a round."""
    done: dict[TableName, Step] = found.load.settle(dict.fromkeys((A, B), Step.GO_ON), outcomes)
    return done


def test_a_living_snapshot_that_workers_do_not_reach_ends_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker's error is raised; the driver looks once, however many chunks report it."""
    found = loading(monkeypatch, tmp_path, alive=True)
    with pytest.raises(SnapshotUnreachable):
        settle_round(found, [outcome(A, unreachable()), outcome(B, unreachable()), outcome(B)])
    assert found.asked == ["one"]


def test_one_that_is_gone_for_the_driver_too_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The snapshot's process died meanwhile: the tables are read at another point."""
    found = loading(monkeypatch, tmp_path, alive=False)
    assert settle_round(found, [outcome(A, unreachable())]) == {A: Step.AFRESH, B: Step.GO_ON}
    assert settle_round(found, [outcome(B)]) == {A: Step.GO_ON, B: Step.AFRESH}
    for note, table in zip(found.load.result.notes, (A, B), strict=True):
        assert note.startswith(f"{table} is loaded again from the start: the snapshot at 0/1")
    with pytest.raises(PenstockError, match="real"):
        settle_round(found, [outcome(A, unreachable()), outcome(A, PenstockError("real"))])


def test_if_that_happens_at_every_point_it_is_said_instead_of_ld47(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No table was rewritten."""
    load = loading(monkeypatch, tmp_path, alive=False).load
    for name in ("mark_lost_snapshots", "plan_afresh"):
        monkeypatch.setattr(load, name, lambda *_, **__: None)
    monkeypatch.setattr(load, "copy_round", lambda _: [outcome(A, unreachable())])
    with pytest.raises(SnapshotUnreachable):
        load.copy_all({A: Step.AFRESH})


def test_a_worker_asks_an_unreachable_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many chunks does not wait for as many timeouts."""
    asked: list[str] = []

    def open_reader(_url: str, snapshot_id: str, _text: str) -> None:
        asked.append(snapshot_id)
        raise unreachable()

    monkeypatch.setattr(chunk, "bulk_source", lambda _: SimpleNamespace(open_reader=open_reader))
    writer = SimpleNamespace(read_action=lambda: "RUN", close=lambda: None)
    monkeypatch.setattr(chunk, "open_writer", lambda _: writer)
    tasks: list[Any] = [
        SimpleNamespace(
            source_url="x",
            snapshot_id=snapshot,
            snapshot_text="t",
            table=A,
            chunk=SimpleNamespace(number=number),
        )
        for number, snapshot in enumerate(("one", "one", "two", "one"))
    ]
    found = list(chunk.copy_chunks(iter(tasks)))
    assert asked == ["one", "two"]
    assert [one.status for one in found] == [ChunkStatus.FAILED] * 4
    assert all(isinstance(one.error, SnapshotUnreachable) for one in found)
