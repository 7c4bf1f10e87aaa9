"""Shards on other machines: each is served there, followed here, and merged from there."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock as python
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.pipelines.shards import ACCOUNTS, LIVELY, Shards, Transfers, wait_until
from penstock.engines.postgres.connect import connect

PASSWORD = "s3cret"
QUICK = {"flushIntervalSeconds": LIVELY["flushIntervalSeconds"]}


class Far:
    """A server of a shard's log, and the pipeline that follows it on another machine."""

    def __init__(self, shards: Shards, number: int) -> None:
        self.shards, self.name = shards, f"f{number}"
        self.lsn_type = ("SEQUENCE", "HYBRID_TIME")[number % 2]
        self.file = shards.files[number]
        text = (
            '\n[serve]\nlisten = "127.0.0.1:0"\ndialect = "yugabyte"\n'
            'users = { repl = "${SERVE_PASSWORD}" }\n'
            '[serve.publications.p]\ntables = ["public.*"]\n'
        )
        self.file.write_text(self.file.read_text() + text)
        self.port = 0
        self.server: Process | None = None
        self.follower: Process | None = None
        self.path = Path()

    def serve(self) -> None:
        """Start the server at its previous port."""
        if self.port:
            text = self.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{self.port}")
            self.file.write_text(text)
        self.server = Process(self.file, "serve")
        self.server.until(lambda: self.server and self.server.out, "it listens")
        self.port = int(self.server.events_of("address")[0].rpartition(":")[2])

    def follow(self) -> None:
        """Start the following pipeline."""
        if not self.path.name:
            self.path = write_pipeline(
                self.shards.folder,
                f"yugabytedb://repl:{PASSWORD}@127.0.0.1:{self.port}/{self.file.stem}"
                f"?lsn_type={self.lsn_type}",
                None,
                name=self.name,
                directory=self.name,
                file=f"{self.name}.toml",
                sections={"changeExtractor": {**QUICK, "publication": "p"}},
            )
        self.follower = Process(self.path, "extract")
        log = self.shards.folder / self.name / "log" / "LOG.json"
        self.follower.until(log.exists, f"{self.name} has a log")

    def kill(self, which: str) -> None:
        """Kill the server or the follower, and start it again."""
        process = self.server if which == "serve" else self.follower
        assert process is not None
        process.send(signal.SIGKILL)
        assert process.wait_for_end() != 0
        getattr(self, which)()

    def close(self) -> None:
        """End both processes."""
        for process in (self.follower, self.server):
            if process is not None:
                process.__exit__()


def transactions(directory: Path) -> list[tuple[Any, ...]]:
    """Return the transactions with rows in a merged log, in order, each with its time and rows."""
    found = []
    for _, changes in itertools.groupby(python.read_log(directory), lambda one: one.trx):
        rows = list(changes)
        said = tuple((str(one.table), one.op, repr(one.row), repr(one.before)) for one in rows)
        found.append((rows[0].commit_time, said))
    return found


@pytest.fixture
def far_merge(tmp_path: Path) -> Iterator[tuple[Shards, list[Far]]]:
    """Two shards, extracted, served and followed, without rows yet."""
    os.environ["SERVE_PASSWORD"] = PASSWORD
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(tmp_path, 2, has_target=False))
        fars = [Far(shards, number) for number in range(2)]
        for number, far in enumerate(fars):
            stack.callback(far.close)
            shards.extract(number)
        shards.until_extracted()
        for far in fars:
            far.serve()
            far.follow()
        yield shards, fars


@pytest.mark.promise
def test_shards_that_are_served_merge_as_they_would_here(
    far_merge: tuple[Shards, list[Far]],
) -> None:
    """Joined transfers, order and times equal those of a merge of the logs themselves.

    Servers and followers are killed; heartbeats are passed on, so that an idle shard delays no
    other.
    """
    shards, fars = far_merge
    there = shards.folder / "far.toml"
    text = shards.merged.read_text().replace('"all"', '"far"')
    there.write_text(text.replace('"s0.toml", "s1.toml"', '"f0.toml", "f1.toml"'))
    with Process(shards.merged, "merge") as here, Process(there, "merge") as merging:
        for one in ("all", "far"):
            log = shards.folder / one / "log" / "LOG.json"
            here.until(log.exists, f"the log {one} has begun: heartbeats come")
        for number in range(2):
            shards.fill(number)
        transfers = Transfers(shards, (0, 1), 1)
        transfers.start()
        for far, which in itertools.product(fars, ("serve", "follow")):
            before = transfers.count
            wait_until(lambda n=before: transfers.count > n + 20, "transfers go on")
            far.kill(which)
        before = transfers.count
        wait_until(lambda: transfers.count > before + 20, "transfers go on")
        transfers.end()
        # Only the first shard continues: without heartbeats of the second nothing would be merged.
        insert(shards.urls[0])
        for one in ("all", "far"):
            here.until(lambda d=one: is_over(shards.folder / d), f"{one} has all")
        status = [penstock("status", file, "--json").result["merge"] for file in (there,)]
        merging.stop()
        here.stop()
    wanted = transactions(shards.folder / "all")
    assert len(wanted) > 2 * ACCOUNTS
    assert transactions(shards.folder / "far") == wanted
    assert status[0]["joined_count"] == transfers.count
    assert status[0]["unjoined_count"] == 0
    for process in shards.extractors:
        process.stop()


def insert(url: str) -> None:
    """Insert the last row."""
    with connect(url, application_name="test") as sql:
        sql.execute("insert into account values (-1, 0, 'over')")
        sql.commit()


def is_over(directory: Path) -> bool:
    """Return whether a log has the last row."""
    return any(one.row and one.row["id"] == -1 for one in python.read_log(directory))
