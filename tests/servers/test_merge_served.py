"""Three servers as shards of one table, merged into one log, and that served to a subscriber."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from fix_end_to_end import Process
from fix_shards import (
    ACCOUNTS,
    CONTINUE,
    CREDIT,
    KILL,
    STOP,
    Shards,
    TotalReader,
    Transfers,
    wait_until,
)

PASSWORD = "s3cret"
SERVE = (
    '\n[serve]\nlisten = "127.0.0.1:{}"\nusers = {{ repl = "${{SERVE_PASSWORD}}" }}\n'
    '[serve.publications.p]\ntables = ["public.*"]\n'
)
STALL_S = 5.0


class ServedMerge:
    """`penstock run` of a merged file that is served, and a subscription to it."""

    def __init__(self, shards: Shards) -> None:
        os.environ["SERVE_PASSWORD"] = PASSWORD
        self.shards = shards
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = shards.folder / "all" / "run" / "serve.log"

    def file(self) -> Path:
        """The merged file with what is served, at the port that it had."""
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
        """At the place of the merged copy, without a copy of what there is unless it copies."""
        self.shards.servers[0].execute(
            f"create subscription merged connection 'host=127.0.0.1 port={self.port} user=repl "
            f"dbname=all password={PASSWORD}' publication p with (copy_data = {copies})",
            self.shards.target_url.rpartition("/")[2],
        )

    def drop(self) -> None:
        """The subscription."""
        database = self.shards.target_url.rpartition("/")[2]
        self.shards.servers[0].execute("alter subscription merged disable", database)
        self.shards.servers[0].execute("drop subscription merged", database)


def kill_part(run: Process, word: str) -> None:
    """SIGKILL of one of the processes that a run has started."""
    children = psutil.Process(run._process.pid).children(recursive=True)
    (found,) = [one for one in children if word in one.cmdline()]
    found.send_signal(signal.SIGKILL)


@pytest.mark.long
def test_a_subscriber_never_sees_a_total_that_was_not_true(tmp_path: Path) -> None:
    """Shards killed, stalled and split, the merge and the server killed: transfers stay whole."""
    with Shards(tmp_path, 3, has_target=False) as shards:
        served = ServedMerge(shards)
        for number in range(3):
            shards.extract(number)
        shards.until_extracted()
        run = served.start()
        reader = TotalReader(shards.target_url)
        try:
            served.subscribe()
            for number in range(3):
                shards.fill(number)
            reader.start()
            whole = (3 * ACCOUNTS, 3 * ACCOUNTS * CREDIT)
            run.until(lambda: shards.total(shards.target_url) == whole, "the accounts are there")
            transfers = Transfers(shards, (0, 1, 2), 1)
            transfers.start()

            def goes_on(what: str) -> None:
                before = len(reader.versions)
                wait_until(lambda: len(reader.versions) > before + 20, what)

            goes_on("transfers arrive")
            kill_and_stall(shards, transfers)
            goes_on("it goes on behind a kill and a stall")
            kill_part(run, "serve")
            goes_on("it goes on with another server")
            kill_part(run, "extract")
            goes_on("it goes on with another merge")
            transfers.end()
            run.until(
                lambda: shards.rows([shards.target_url]) == shards.rows(shards.urls),
                "the subscriber has what the shards have",
            )
            run.stop()
            run = split(shards, served)
            again = Transfers(shards, (0, 1, 3, 4), 2)
            again.start()
            goes_on("transfers behind the split arrive")
            again.end()
            now = [url for number, url in enumerate(shards.urls) if number != 2]
            run.until(
                lambda: shards.rows([shards.target_url]) == shards.rows(now),
                "the subscriber has what the shards of now have",
            )
            reader.end()
            served.drop()
            run.stop()
        finally:
            run.__exit__()
        partial = {n * ACCOUNTS for n in range(4)}
        assert {count for count, _ in reader.seen} <= partial
        assert all(total == count * CREDIT for count, total in reader.seen), reader.seen
        assert len(reader.versions) > 80


def kill_and_stall(shards: Shards, transfers: Transfers) -> None:
    """A shard's extractor is killed, another says nothing for a while."""
    shards.extractors[1].send(KILL)
    shards.extractors[1].ended()
    shards.extractors[2].send(STOP)
    count = transfers.count
    time.sleep(STALL_S)
    assert transfers.count > count
    shards.extractors[2].send(CONTINUE)
    shards.extract(1)


def split(shards: Shards, served: ServedMerge) -> Process:
    """The third shard goes on as two; nothing writes to it any more, and its log has everything."""
    shards.split(2)
    for number in (3, 4):
        shards.extract(number)
    shards.until_extracted()
    shards.extractors[2].stop()
    shards.write_merged(split={"s2.toml": ["s3.toml", "s4.toml"]})
    return served.start()
