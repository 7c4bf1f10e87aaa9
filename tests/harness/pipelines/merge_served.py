"""A merged pipeline that is served, and a subscription to it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil

from harness.pipelines.end_to_end import Process
from harness.pipelines.shards import Shards

PASSWORD = "s3cret"
SERVE = (
    '\n[serve]\nlisten = "127.0.0.1:{}"\nusers = {{ repl = "${{SERVE_PASSWORD}}" }}\n'
    '[serve.publications.p]\ntables = ["public.*"]\n'
)


class ServedMerge:
    """A `penstock run` of a merged file that is served, and a subscription to it."""

    def __init__(self, shards: Shards) -> None:
        os.environ["SERVE_PASSWORD"] = PASSWORD
        self.shards = shards
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = shards.folder / "all" / "run" / "serve.log"

    def file(self) -> Path:
        """Write the merged file with its served part, at its earlier port."""
        path = self.shards.merged
        path.write_text(path.read_text() + SERVE.format(self.port))
        return path

    def start(self) -> Process:
        """Run it until it serves."""
        before = self.log.read_text().count("127.0.0.1:") if self.log.exists() else 0
        run = Process(self.file(), "run")
        run.until(
            lambda: self.log.exists() and self.log.read_text().count("127.0.0.1:") > before,
            "it serves",
        )
        return run

    def subscribe(self, *, copies: bool = False) -> None:
        """Subscribe at the merged copy's position, without existing rows unless it copies."""
        self.shards.servers[0].execute(
            f"create subscription merged connection 'host=127.0.0.1 port={self.port} user=repl "
            f"dbname=all password={PASSWORD}' publication p with (copy_data = {copies})",
            self.shards.target_url.rpartition("/")[2],
        )

    def drop(self) -> None:
        """Drop the subscription."""
        database = self.shards.target_url.rpartition("/")[2]
        self.shards.servers[0].execute("alter subscription merged disable", database)
        self.shards.servers[0].execute("drop subscription merged", database)


def kill_part(run: Process, word: str) -> None:
    """Send SIGKILL to one of the processes that a run has started."""
    children = psutil.Process(run._process.pid).children(recursive=True)
    (found,) = [one for one in children if word in _words(one)]
    found.send_signal(signal.SIGKILL)


def _words(process: psutil.Process) -> list[str]:
    """Return its command line; empty for a process that has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
