"""A standalone cluster loses executors, workers, its network and a machine, and ends equal.

At first the remote machine is the only one, so that it has the tasks; the other one joins after
something has happened to the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import POSTGRES, BankPipeline
from harness.pipelines.bank_engines import Session, session
from penstock.load.loader_state import read_loader_state
from plugins.standalone import Standalone

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

MYSQLS = ("mariadb", "mysql")
PATIENCE_S = 400.0
# Rows without a key, which would be kept twice; they take a few seconds on a slow cable.
FREIGHT_ROWS = 20_000
FREIGHT = (
    "insert into freight select i, repeat(md5(cast(i as text)), 10) "
    f"from generate_series(1, {FREIGHT_ROWS}) i"
)
SLOW = "8mbit"
# The point that a task reaches next once it may continue.
BEHIND = {"bulk.chunk.copied": "bulk.chunk.committed", "load.copy.before": "load.copy.after"}


class ClusterBank(BankPipeline):
    """A bank's pipeline on a cluster, with a table without a key that takes long to copy."""

    def __init__(
        self,
        folder: Path,
        cluster: Standalone,
        *,
        source: str = POSTGRES,
        target: str = POSTGRES,
        conf: Mapping[str, str] | None = None,
        bulk_freight: bool = False,
    ) -> None:
        """Prepare a bank; conf adds Spark properties, bulk_freight fills freight beforehand."""
        sections: dict[str, Mapping[str, Any]] = {
            "spark": {"master": cluster.master},
            "spark.conf": {**cluster.conf, **(conf or {})},
        }
        super().__init__(
            folder,
            1910,
            source=source,
            target=target,
            sections=sections,
            host=cluster.server_address,
        )
        self.cluster = cluster
        self._bulk_freight = bulk_freight

    def __enter__(self) -> ClusterBank:
        """Start the pipeline and create the table."""
        super().__enter__()
        with self.at_source() as source:
            source.execute("create table freight (i int not null, text varchar(400) not null)")
            if self.kinds[0] == POSTGRES:
                source.execute("alter table freight replica identity full")
        if self._bulk_freight:
            self.send_freight()
        return self

    def send_freight(self) -> None:
        """Fill the table in one transaction."""
        with self.at_source() as source:
            source.execute(FREIGHT)

    def begin(self, fault: str = "") -> None:
        """Start both processes and the remote machine; the fault is only for its executors."""
        self.extract.start()
        log = self.directory / "log"  # created once the slot exists, which load checks
        self.until(lambda: log.is_dir() and any(log.iterdir()), "the log")
        faulty = {"PENSTOCK_FAULT": fault, "PENSTOCK_FAULT_ONCE": str(self.load.once)}
        self.cluster.remote.start(faulty if fault else None)
        self.load.start()

    @contextmanager
    def at_source(self) -> Iterator[Session]:
        """Open a session at the source."""
        with session(self.source_url, self.namespace) as connection:
            yield connection

    @contextmanager
    def at_target(self, namespace: str = "") -> Iterator[Session]:
        """Open a session at the target; namespace replaces the bank's, which may not exist yet."""
        with session(self.target_url, namespace or self.namespace) as connection:
            yield connection

    def sessions_apart(self, doing: str = "") -> int:
        """Return the number of its sessions at the target whose statement begins with `doing`."""
        cable = self.cluster.data
        assert cable is not None
        if self.kinds[1] == POSTGRES:
            query = (
                "select count(*) from pg_stat_activity where client_addr = cast(%s as inet)"
                " and query ilike %s"
            )
            values = (cable.there, f"{doing}%")
        else:
            query = (
                "select count(*) from information_schema.processlist"
                " where host like %s and coalesce(info, '') like %s"
            )
            values = (f"{cable.there}:%", f"{doing}%")
        with self.at_target("information_schema") as target:
            return int(target.execute(query, values)[0][0])

    def copies(self) -> bool:
        """Return whether the remote machine is sending rows to the target now."""
        return self.sessions_apart("copy" if self.kinds[1] == POSTGRES else "load data") > 0

    @property
    def batch_count(self) -> int:
        """Number of batches that the load process has applied."""
        state = read_loader_state(self.directory / "run")
        return state.batch_count if state is not None else 0

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait as every pipeline does, with the patience that a cluster needs."""
        super().until(condition, what, timeout_s)

    def goes_on(self) -> None:
        """Wait for more batches than the one that may have been at work."""
        self.transactions_go_on()
        before = self.batch_count
        self.until(lambda: self.batch_count > before + 1, "more batches")

    def end(self) -> None:
        """Check that both sides are equal, and that no table was loaded again."""
        log = (self.directory / "run" / "load.log").read_text()
        assert "bulk table copied" in log
        assert "loaded again from the start" not in log
        self.finish()
        freight = "select count(*), count(distinct i), min(text), max(text) from freight"
        with self.at_source() as source, self.at_target() as target:
            assert target.execute(freight) == source.execute(freight)


@pytest.mark.parametrize("point", ["bulk.chunk.copied", "load.copy.after"])
def test_an_executor_is_killed(tmp_path: Path, standalone: Standalone, point: str) -> None:
    """An executor is killed in the middle of a task, with another machine in the cluster or not."""
    with ClusterBank(tmp_path, standalone) as pipeline:
        pipeline.begin(f"{point}:1:sleep")
        pipeline.until(lambda: pipeline.load.has_reached, point)
        for executor in standalone.remote.executors():
            executor.kill()
        standalone.near.start()
        pipeline.goes_on()
        pipeline.end()


@pytest.mark.parametrize("point", ["bulk.chunk.committed", "load.copy.before"])
def test_a_worker_is_killed_and_another_joins(
    tmp_path: Path, standalone: Standalone, point: str
) -> None:
    """The load waits while there is no worker, and continues when another joins."""
    with ClusterBank(tmp_path, standalone) as pipeline:
        pipeline.begin(f"{point}:1:sleep")
        pipeline.until(lambda: pipeline.load.has_reached, point)
        standalone.remote.kill()
        standalone.near.start()
        pipeline.goes_on()
        pipeline.end()


@pytest.mark.parametrize("cut_s", [pytest.param(10.0, id="10s"), pytest.param(60.0, id="60s")])
def test_the_link_is_cut_in_the_middle_of_a_copy(
    tmp_path: Path, standalone: Standalone, cut_s: float
) -> None:
    """The link is restored before or after the servers gave up; the cluster does not notice."""
    _, data = standalone.cables()
    with ClusterBank(tmp_path, standalone, bulk_freight=True) as pipeline:
        data.slow(SLOW)
        pipeline.begin()
        pipeline.until(pipeline.copies, "rows on their way")
        data.cut()
        back = time.monotonic() + cut_s
        pipeline.until(lambda: time.monotonic() > back, "a while")
        data.restore()
        pipeline.until_read()
        pipeline.goes_on()
        pipeline.end()


@pytest.mark.parametrize("phase", ["bulk", "changes"])
@pytest.mark.parametrize("target", [POSTGRES, *MYSQLS])
def test_a_machine_vanishes(
    tmp_path: Path,
    standalone: Standalone,
    target: str,
    phase: str,
    record_property: Callable[[str, object], None],
) -> None:
    """A machine vanishes for good while it sends rows: its sessions end, and the load continues."""
    _, data = standalone.cables()
    with ClusterBank(tmp_path, standalone, target=target, bulk_freight=phase == "bulk") as pipeline:
        if phase == "bulk":
            data.slow(SLOW)
            pipeline.begin()
        else:
            pipeline.begin()
            pipeline.until_read()
            data.slow(SLOW)
            pipeline.send_freight()
        pipeline.until(pipeline.copies, "rows on their way")
        standalone.vanish()
        began = time.monotonic()
        standalone.near.start()
        assert pipeline.sessions_apart(), "the server does not know yet"
        pipeline.until(lambda: not pipeline.sessions_apart(), "no sessions")
        record_property("seconds to the end of its sessions", time.monotonic() - began)
        pipeline.until_read()
        pipeline.goes_on()
        record_property("seconds until all goes on", time.monotonic() - began)
        pipeline.end()


@pytest.mark.parametrize("point", ["bulk.chunk.copied", "load.copy.before"])
@pytest.mark.parametrize("target", [POSTGRES, *MYSQLS])
def test_a_task_that_was_given_up_adds_no_rows(
    tmp_path: Path, standalone: Standalone, target: str, point: str
) -> None:
    """The load completes without an executor that the cluster has lost and whose task hangs.

    Its machine still answers the target for it. Later the task resumes, and reaches the target.
    """
    spark, _ = standalone.cables()
    patient = {"spark.rpc.io.connectionTimeout": "3600s"}  # the executor does not give up
    with ClusterBank(tmp_path, standalone, target=target, conf=patient) as pipeline:
        pipeline.begin(f"{point}:1:sleep=10,{BEHIND[point]}:1:sleep=0.1")
        pipeline.until(lambda: pipeline.load.has_reached, point)
        zombies = standalone.remote.pythons()
        for one in zombies:
            one.suspend()
        spark.cut()
        standalone.near.start()
        pipeline.until_read()
        pipeline.goes_on()
        through = pipeline.load.once / f"{BEHIND[point]}:1"
        was_through = through.exists()  # as with another, concurrent chunk
        done = standalone.remote.finished_tasks
        for one in zombies:
            one.resume()
        pipeline.until(lambda: standalone.remote.finished_tasks > done, "the task's end")
        assert through.exists() == was_through, "it has committed what was done without it"
        pipeline.goes_on()
        pipeline.end()


@pytest.mark.parametrize(
    ("source", "target"),
    [(POSTGRES, "mariadb"), (POSTGRES, "mysql"), ("mariadb", POSTGRES), ("mysql", POSTGRES)],
)
def test_every_engine_is_reached_from_another_machine(
    tmp_path: Path, standalone: Standalone, source: str, target: str
) -> None:
    """The one executor, on another machine, does all of the bulk load and changes."""
    standalone.cables()
    with ClusterBank(tmp_path, standalone, source=source, target=target) as pipeline:
        pipeline.begin()
        pipeline.until_read()
        pipeline.goes_on()
        pipeline.end()
