"""The server is killed around its slot file: no slot moves past what its client confirmed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.pipelines.log import COMMIT_TIME_US, inserts, number_rows
from harness.pipelines.pipeline import write_pipeline
from harness.servers.serve import saved_slots, write_log
from harness.servers.serve_client import Raw, connection_at, streamed_until
from penstock.serve import numbers

pytestmark = pytest.mark.faults
PASSWORD = "pässword"
START = "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')"
FAULTS = [f"serve.slots.{side}:{nth}:kill" for side in ("before", "after") for nth in (1, 3)]
TRANSACTIONS = 40


def start_server(path: Path, fault: str = "") -> tuple[subprocess.Popen[str], int]:
    """Start the server; return its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", str(path), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SERVE_PASSWORD": PASSWORD, "PENSTOCK_FAULT": fault},
    )
    assert process.stdout is not None
    with process.stdout as out:
        line = out.readline()
    assert '"address"' in line, line
    return process, int(line.rpartition(":")[2].strip(' "}\n'))


def pipeline_file(folder: Path) -> Path:
    """Write a pipeline file whose source does not exist."""
    path = write_pipeline(folder, "postgresql://u@127.0.0.1:1/d", None)
    text = (
        '\n[serve]\nlisten = "127.0.0.1:0"\nusers = { repl = "${SERVE_PASSWORD}" }\n'
        '[serve.publications.p]\ntables = ["public.*"]\n'
    )
    path.write_text(path.read_text() + text)
    return path


class Follower:
    """A client that keeps the transactions it received, and confirms some of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.ends: list[int] = []
        self.confirmed = 0

    def follow(self, port: int, end: int) -> None:
        """Follow until the server has ended, or everything is confirmed."""
        client = None
        try:
            client = Raw(connection_at(port, PASSWORD))
            client.query(START)
            assert client.message()[0] == b"W"
            for kind, position in streamed_until(client, end, last=self.ends[-1:]):
                if kind == "C":
                    if position not in self.ends:  # if not confirmed, it may come again
                        self.ends.append(position)
                    if self.dice.random() < 0.5:
                        self.confirmed = max(self.confirmed, position)
                        client.status(position, reply=True)
            self.confirmed = end
            client.status(end, reply=True)
            client.message()
        except (EOFError, OSError):
            return
        finally:
            if client is not None:
                client.close()


@pytest.mark.parametrize("lsn_type", ["", "HYBRID_TIME"])
@pytest.mark.parametrize("fault", FAULTS)
def test_killed_around_the_slot_file(fault: str, lsn_type: str, tmp_path: Path) -> None:
    """Every transaction arrives, and the file never says more than the client did."""
    path = pipeline_file(tmp_path)
    ends = {n: numbers.end_of(2 * n, n) for n in range(1, TRANSACTIONS + 1)}
    if lsn_type:
        path.write_text(path.read_text().replace("[serve]", '[serve]\ndialect = "yugabyte"'))
        ends = {n: (COMMIT_TIME_US + n << 12) + 1 for n in ends}
    log, state = tmp_path / "shop" / "log", tmp_path / "shop" / "state"
    groups = [inserts(2, first=2 * at) for at in range(TRANSACTIONS)]
    rows = number_rows(groups)
    write_log(log, rows[:1])
    process, port = start_server(path)
    client = Raw(connection_at(port, PASSWORD))
    client.query(f"CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT {lsn_type}")
    assert client.message()[0] == b"T"
    client.close()
    process.send_signal(signal.SIGKILL)  # acknowledged is durable
    process.wait()
    write_log(log, rows[1:], per_segment=7)
    end = ends[TRANSACTIONS]
    follower = Follower(seed=FAULTS.index(fault))
    for wanted in (fault, fault, ""):
        process, port = start_server(path, wanted)
        try:
            follower.follow(port, end)
        finally:
            process.kill()
            process.wait()
        saved = saved_slots(state)
        assert saved is not None
        (slot,) = saved.slots
        assert ends[1] <= slot.lsn <= max(ends[1], follower.confirmed)
        last = max(n for n, lsn in ends.items() if lsn <= slot.lsn)
        assert slot.confirmed <= numbers.end_of(2 * last, last)
    assert follower.ends == [ends[n] for n in range(2, TRANSACTIONS + 1)]
