"""Findings of an executor about its machine, and the addresses that URLs say it must reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import TaskContext

from harness.pipelines.chunks import chunk_task
from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.cluster import check_cluster
from penstock.load import chunk, cluster, job
from penstock.load.cluster import (
    ClusterUnfit,
    Wanted,
    examine,
    machine_name,
    nonce_in,
    versions_here,
)
from penstock.load.job import TaskRepeated, Work, run_tasks
from penstock.load.plan import Task
from penstock.load.session import (
    ExecutorLost,
    ExecutorMissing,
    Session,
    SparkJobFailed,
    WorkerLost,
)
from penstock.model import Relation
from penstock.ports.bulk import ChunkOutcome, ChunkTask
from penstock.ports.registry import Reach, reach_of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STAY_S", 0.0)


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """A port with a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[:2]


@pytest.fixture
def wanted_state(tmp_path: Path, address: tuple[str, int]) -> Iterator[Wanted]:
    """The wanted state, which this process has."""
    with nonce_in(tmp_path) as (path, nonce):
        yield Wanted(
            nonce_path=path,
            nonce=nonce,
            addresses={"source.url": (address,)},
            files=(str(path),),
            versions=versions_here(),
            machine=machine_name(),
        )
    assert not list(tmp_path.iterdir())


def lacks(wanted_state: Wanted) -> tuple[str, ...]:
    """Return what this process says that it lacks."""
    [found] = examine(iter([wanted_state]))
    return found.lacks


def test_nothing_is_lacking_here(wanted_state: Wanted) -> None:
    """The driver's own machine has everything that it has."""
    assert lacks(wanted_state) == ()


def test_where_spark_carries_the_log_the_directory_is_not_looked_at(wanted_state: Wanted) -> None:
    """No file in it is needed there."""
    assert lacks(replace(wanted_state, nonce_path=None, nonce="other")) == ()


def test_each_lack_is_named(wanted_state: Wanted, address: tuple[str, int]) -> None:
    """A wrong version, directory, file or server is reported in a sentence of its own."""
    assert wanted_state.nonce_path is not None
    elsewhere = wanted_state.nonce_path.parent / "nowhere" / "x"
    closed = ("127.0.0.1", 1)
    for changed, said in (
        (replace(wanted_state, versions={"pyarrow": "0.1"}), "has pyarrow"),
        (replace(wanted_state, versions={"no-such": "1"}), "(not installed), the driver 1"),
        (replace(wanted_state, nonce="other"), "sees another directory"),
        (replace(wanted_state, nonce_path=elsewhere), "No such file"),
        (replace(wanted_state, files=("/no/ca.pem",)), "cannot read /no/ca.pem"),
        (
            replace(wanted_state, addresses={"target.url": (closed,)}),
            "cannot reach target.url: 127.0.0.1",
        ),
        (replace(wanted_state, machine="another"), "look for source.url on itself"),
    ):
        [found] = lacks(changed)
        assert said in found
    assert lacks(replace(wanted_state, addresses={"target.url": (closed, address)})) == ()


@pytest.mark.parametrize(
    ("url", "reach"),
    [
        ("postgresql://u@db:6000/d", Reach(addresses=(("db", 6000),))),
        ("postgresql://u@a,b/d", Reach(addresses=(("a", 5432), ("b", 5432)))),
        ("postgresql://u@a:1,b:2/d", Reach(addresses=(("a", 1), ("b", 2)))),
        ("postgresql://u@/d?host=/run/pg", Reach(socket="/run/pg")),
        ("postgresql:///d", Reach(socket="the default socket")),
        (
            "postgresql://u@db/d?sslrootcert=/ca.pem&sslkey=/k.pem",
            Reach(addresses=(("db", 5432),), files=("/ca.pem", "/k.pem")),
        ),
        ("postgresql://u@db/d?sslrootcert=system", Reach(addresses=(("db", 5432),))),
        ("mysql://u@db/d?ssl-ca=/ca.pem", Reach(addresses=(("db", 3306),), files=("/ca.pem",))),
        ("mariadb://u@x/d?socket=/run/my.sock", Reach(socket="/run/my.sock")),
    ],
)
def test_urls_say_what_must_be_reached(url: str, reach: Reach) -> None:
    """URLs name addresses, a socket, and files of certificates."""
    assert reach_of(url) == reach


class Attempt:
    """Fake task context with the number of the attempt."""

    def __init__(self, number: int) -> None:
        self._number = number

    def attemptNumber(self) -> int:  # noqa: N802 - as Spark calls it
        """Return the number, which starts at 0."""
        return self._number


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_chunk_knows_that_an_executor_was_lost(
    monkeypatch: pytest.MonkeyPatch, number: int, begun: bool
) -> None:
    """The executor was lost in this job or an earlier one: the writer ends the session that is
    left.
    """
    seen: list[bool] = []

    def copy(tasks: Iterator[ChunkTask], *, streams: int) -> list[ChunkOutcome]:
        assert streams == 3
        seen.extend(task.repeated for task in tasks)
        return []

    monkeypatch.setattr(TaskContext, "get", lambda: Attempt(number))
    monkeypatch.setattr(chunk, "copy_chunks", copy)
    task = replace(chunk_task(), repeated=begun)
    assert list(job.copy_chunks(iter([task]), streams=3)) == []
    assert seen == [begun or number > 0]


def test_only_the_first_try_of_a_task_stages_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the first try may be there, from an executor that could not report them any more."""
    monkeypatch.setattr(TaskContext, "get", lambda: Attempt(1))
    relation = Relation(schema="s", name="t", columns=(), key=())
    task = Task(phase=0, relation=relation, frames=(), gsn_after=0, gsn_upto=1)
    work: Any = Work(task=task, writer=cast("Any", None))
    [outcome] = run_tasks(iter([work]))
    assert isinstance(outcome.error, TaskRepeated)
    assert outcome.error.retry == "backoff"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ExecutorLostFailure (executor 1 exited caused by one of the tasks)", ExecutorLost),
        ("ModuleNotFoundError: No module named 'penstock'", ExecutorMissing),
        ("Python worker exited unexpectedly (crashed)", WorkerLost),
        ("ValueError: 7", SparkJobFailed),
    ],
)
def test_what_spark_says_of_a_failed_job_has_a_type(said: str, kind: type[Exception]) -> None:
    """The type is chosen by Spark's words: Spark passes on nothing else."""

    class Context:
        defaultParallelism = 1  # noqa: N815 - as Spark calls it

    session = Session(cast("Any", Context()), cast("Any", None), started_s=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "is_lost", False)
        assert type(session._job_error(RuntimeError(said))) is kind


class Here:
    """Fake session that looks around in this process."""

    parallelism = 1

    def run(self, partitions: Any, work: Any, *, description: str = "") -> list[Any]:
        """Run all tasks in this process, and return their results."""
        assert description
        return [found for tasks in partitions for found in work(iter(tasks))]


@pytest.mark.parametrize(
    ("source", "bind", "said"),
    [
        ("mariadb://u@127.0.0.1:1/d", "127.0.0.3", ""),
        ("mariadb://u@127.0.0.1:1/d", "127.0.0.2", "cannot reach spark.snapshotAddress: 127.0.0.3"),
        ("postgresql://u@127.0.0.1:1/d", "127.0.0.2", ""),
    ],
)
def test_executors_look_for_the_snapshots_to_come(
    tmp_path: Path, source: str, bind: str, said: str
) -> None:
    """Executors look before there is a snapshot if its source has it read through the driver."""
    sections = {
        "spark": {"master": "local-cluster[2,1,512]", "snapshotAddress": "127.0.0.3"},
        "spark.conf": {"spark.driver.bindAddress": bind},
        "target.types": {"*": "error"},
    }
    target = "postgresql://u@127.0.0.1:1/d"
    config = pipeline(tmp_path, source, target, tables=["d.*"], sections=sections)
    session = cast("Session", Here())
    if not said:
        assert all(not one.lacks for one in check_cluster(config, session))
        return
    with pytest.raises(ClusterUnfit, match=said):
        check_cluster(config, session)
