"""A pause is not a stall: how long a pipeline needs after its processes stood still.

All processes of a running pipeline (or one half's, or the source's sender) are stopped by SIGSTOP,
as a moved virtual machine or a suspended laptop stops them. Meanwhile W's changes are committed;
then the processes continue. The time runs from there until the last change is visible. Beside it:
the same changes and a pipeline that was not stopped, from the last commit on.

Estimate: 500,000 changes of W are a backlog of some 4 s on two cores (docs/performance.md), and a
pause adds nothing to that. The first round of each kind, and one that takes more than twice the
fastest, is printed with the states of extractor and loader.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg

from bench.bench_end_to_end import LAST_ID, SERVER, Live, fill, mark, wait_for_mark
from bench.harness import arguments
from bench.pipeline import Running, write_config
from bench.workload import Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

PAUSE_S = 10.0
LOOK_S = 0.2
STALLED = 2.0  # times the fastest round of its kind
NOTHING, SENDER = "nothing", "sender"
KINDS = (NOTHING, "all", "extract", "load", SENDER)


class States:
    """Lines about the states of extractor and loader in a with block: one at each change."""

    def __init__(self, run: Path) -> None:
        """Store the folder of the reports."""
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.lines: list[str] = []

    def __enter__(self) -> States:
        """Begin to look."""
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        before = ""
        while not self._stop.wait(LOOK_S):
            facts = {half: self._read(half) for half in ("extract", "load")}
            line = ", ".join(f"{half}: {text}" for half, text in facts.items())
            if line != before:
                self.lines.append(f"      {time.monotonic() - self._began:6.1f} s  {line}")
            before = line

    def _read(self, half: str) -> str:
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self._run / f"{half}.json").read_text())
            words = (facts.get("state"), facts.get("row_count"), facts.get("last_error"))
            return " ".join(str(word) for word in words if word is not None)
        return "?"


def find_processes(kind: str, run: int, sender: int) -> list[psutil.Process]:
    """Return the processes to stop, of `penstock run` and the source's sender with these pids."""
    root = psutil.Process(run)
    if kind == SENDER:
        return [psutil.Process(sender)]
    if kind == "all":
        return [root, *root.children(recursive=True)]
    for child in root.children():
        if kind in child.cmdline():
            return [child, *child.children(recursive=True)]
    raise RuntimeError(f"penstock run has no process {kind}")


def measure(workload: Workload, kind: str) -> tuple[float, list[str]]:
    """Return the seconds from the end of the pause until the last row, and the states."""
    with (
        EmbeddedPostgres(settings=SERVER) as origin,
        EmbeddedPostgres(settings=SERVER) as destination,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        urls = origin.url("postgres"), destination.url("postgres")
        fill(workload, *urls)
        file = write_config(
            Path(scratch), *urls, mode="change", exit_when_idle=False, flush_interval_s=1
        )
        with Running(file) as running, States(file.parent / "pipeline" / "run") as states:
            Live(workload).warm(*urls)
            with pause(kind, running.pid, urls[0]):
                began = time.monotonic()
                workload.change(urls[0])
                mark(urls[0], workload, LAST_ID)
                if kind != NOTHING:
                    time.sleep(max(0.0, began + PAUSE_S - time.monotonic()))
            began = time.monotonic()
            states.lines.append("      continued")
            wait_for_mark(urls[1], workload, LAST_ID)
            return time.monotonic() - began, states.lines


@contextlib.contextmanager
def pause(kind: str, pid: int, url: str) -> Iterator[None]:
    """Stop the processes of a kind for the time of a with block."""
    if kind == NOTHING:
        yield
        return
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("select active_pid from pg_replication_slots").fetchone()
    assert found is not None
    stopped = [process.pid for process in find_processes(kind, pid, found[0])]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in stopped:
            os.kill(one, signal.SIGCONT)


def main() -> None:
    """Run every kind in turn, several rounds."""
    flags = arguments(__doc__ or "", changes=500_000, kinds=",".join(KINDS))
    workload = Workload(change_count=flags.changes)
    kinds = [kind for kind in KINDS if kind in flags.kinds.split(",")]
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(flags.rounds):
        for kind in kinds:
            seconds, lines = measure(workload, kind)
            found[kind].append(seconds)
            print(f"{kind:<16}{seconds:6.1f} s", flush=True)
            if seconds > STALLED * min(found[kind]) or len(found[kind]) == 1:
                print("\n".join(lines), flush=True)
    for kind, rounds in found.items():
        print(f"{kind:<16} fastest {min(rounds):.1f} s, slowest {max(rounds):.1f} s")


if __name__ == "__main__":
    main()
