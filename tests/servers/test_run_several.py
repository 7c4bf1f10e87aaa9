"""Several pipelines in one `penstock run`: one Spark, and what happens to one disturbs no other."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.pipelines.end_to_end import LIVELY, Pair, Process
from harness.pipelines.pipeline import penstock
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = "create table work (id int primary key, n int, t text)"


class Shop(Pair):
    """A pair with names of its own, to which rows are written."""

    def __init__(self, folder: Path, server: Server, name: str) -> None:
        folder = folder / name
        folder.mkdir()
        own = {"replicationSlot": f"{name}_slot", "publication": f"{name}_pub", **LIVELY}
        super().__init__(folder, server, sections={"changeExtractor": own})
        self.path = self.write(name=name, file=f"{name}.toml")
        self.run(TABLE)
        self.run("insert into work select g, g, 'bulk' from generate_series(1, 2000) g")
        self._last = 2000

    def work(self) -> None:
        """Commit changes of all kinds."""
        for _ in range(5):
            self._last += 100
            self.run(
                f"insert into work select g, g, 'new' from generate_series({self._last - 99}, "
                f"{self._last}) g; update work set n = n + 1 where id % 7 = {self._last // 100 % 7}"
                f"; delete from work where id = {self._last - 1500}"
            )

    def pid_of(self, name: str) -> int:
        """Return the process id of one of its processes, 0 if it does not run."""
        every = {one.name: one.pid for one in processes(load_config(self.path))}
        return every[name]

    def pids(self) -> list[int]:
        """Return the process ids of run, extract and load."""
        return [self.pid_of(name) for name in ("run", "extract", "load")]


@pytest.fixture
def shops(tmp_path: Path, postgres: Server) -> Iterator[tuple[Shop, Shop]]:
    """Two pipelines that do not run yet."""
    first, second = Shop(tmp_path, postgres, "first"), Shop(tmp_path, postgres, "second")
    yield first, second
    first.close()
    second.close()


def start(shops: tuple[Shop, Shop], *more: Path) -> Process:
    """Run the pipelines, and wait until each has its rows."""
    first, second = shops
    process = Process(first.path, "run", str(second.path), *map(str, more))
    first.process = second.process = process
    for shop in shops:
        shop.check("work")
    return process


def javas(process: Process) -> list[psutil.Process]:
    """Return the JVMs of a run."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [one for one in below if one.name() == "java"]


def work_on(shops: tuple[Shop, Shop], stop: threading.Event) -> threading.Thread:
    """Write to both sources in a thread until stopped."""

    def work() -> None:
        while not stop.wait(0.05):
            for shop in shops:
                shop.work()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def kill(pid: int) -> None:
    """Kill a process at once."""
    assert pid
    os.kill(pid, signal.SIGKILL)


def test_what_is_killed_disturbs_no_other(shops: tuple[Shop, Shop]) -> None:
    """A loader, a run, the JVM and the process that owns it die; rows are exact, and the processes
    of the other pipeline are the same ones.
    """
    first, second = shops
    with start(shops) as process:
        (java,) = javas(process)
        others, stop = second.pids(), threading.Event()
        thread = work_on(shops, stop)
        try:
            for name in ("load", "load", "run"):
                old = first.pid_of(name)
                kill(old)
                process.until(
                    lambda name=name, old=old: first.pid_of(name) not in (0, old),
                    f"another {name} of the first pipeline",
                )
                time.sleep(2.0)
            assert second.pids() == others
            assert javas(process) == [java]
            java.kill()
            process.until(lambda: javas(process) not in ([], [java]), "another JVM")
            time.sleep(2.0)
            owner = javas(process)[0].parent()
            assert owner is not None
            kill(owner.pid)
            time.sleep(2.0)
        finally:
            stop.set()
            thread.join()
        for shop in shops:
            shop.check("work")
        assert second.pids() == others
        assert len(javas(process)) == 1
        process.stop()


def test_one_is_stopped_reset_and_started_again(shops: tuple[Shop, Shop], tmp_path: Path) -> None:
    """A file with an error stops no other; SIGHUP starts what does not run, by its file of now."""
    first, second = shops
    third = tmp_path / "third.toml"
    third.write_text("[pipelin]\n")
    with start(shops, third) as process:
        others = second.pids()
        process.until(
            lambda: any("third needs attention" in text for text in process.events), "the error"
        )
        os.kill(first.pid_of("run"), signal.SIGTERM)
        process.until(lambda: first.pids() == [0, 0, 0], "the end of the first pipeline")
        assert penstock("reset", first.path, "--target", "--yes").code == 0
        first.work()
        second.work()
        second.check("work")
        third.unlink()
        process.send(signal.SIGHUP)
        process.until(lambda: 0 not in first.pids(), "the first pipeline again")
        first.check("work")
        second.check("work")
        assert second.pids() == others
        # Not while it is being started again: its end would be one that was asked for.
        process.until(
            lambda: [text for text in process.events if "pipelines run" in text][-1].endswith(
                "third needs attention"
            ),
            "another failure of the third one",
        )
        process.send(signal.SIGTERM)
        assert process.wait_for_end() == 1  # the third one
        assert process.error["code"] == "CT05"
