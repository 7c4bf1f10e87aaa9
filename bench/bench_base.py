"""The base's compaction beside the flow: does a row reach a client later while it works?

A PostgreSQL source with one table of so many rows, all of them in the base; rows are updated at
random, and a beat is written every tenth of a second, which a client of `penstock serve` reads back
out of its stream. The output is the seconds from before a beat's commit to its arrival: before the
base exists, while it is read, and during several steps of compaction.

Estimate: a step reads and writes the whole base where updates are random: 10 M rows of 100 bytes
are 1 GB in memory, 0.4 GB with lz4; reading, joining and writing them costs a core about 30 s, in
workers of low priority. The flow needs a few per cent of a core at this rate, so it waits for time
slices: some milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psycopg

from bench.bench_serve import PASSWORD, Drain, Server
from bench.harness import describe_machine
from penstock.base.manifest import Manifest, load_manifest
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

BEAT_S = 0.1
UPDATED_PER_TRANSACTION = 200
_BEAT = re.compile(rb"beat-(\d+);")


class Beats(Drain):
    """A client that notes when beats arrive. found: moments of arrival and seconds since sent."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.found: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self.socket.settimeout(1.0)

    def follow(self, slot: str) -> None:
        """Read until `end`."""
        options = "(proto_version '1', publication_names 'p')"
        self._say(b"Q", f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode() + b"\0")
        tail, told = b"", 0.0
        while not self._ended.is_set():
            with suppress(TimeoutError):
                count = self.socket.recv_into(self.buffer)
                if not count and self._ended.is_set():
                    return
                assert count, "the server has gone"
                data = tail + bytes(self.buffer[:count])
                for beat in _BEAT.finditer(data):
                    now = time.time()
                    self.found.append((now, now - int(beat[1]) / 1e6))
                    tail = b""
                tail = data[-32:] if not _BEAT.search(data[-32:]) else b""
            if time.time() - told > 5:
                told = time.time()
                self._say(b"d", b"r" + struct.pack(">QQQqB", 0, 0, 0, 0, 0))

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()


class Pipeline(Server):
    """The served pipeline: extractor, load process, server."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.file = root, root / "shop.toml"
        self.file.write_text(
            '[pipeline]\nname = "shop"\nmode = "data+change"\ndirectory = "."\n'
            f'[source]\nurl = "{url}"\ntables = ["public.*"]\n'
            "[changeExtractor]\nflushIntervalSeconds = 2\n"
            '[spark]\nmaster = "local[2]"\n'
            '[serve]\nlisten = "127.0.0.1:0"\nusers = { repl = "${BENCH_PASSWORD}" }\n'
            '[serve.publications.p]\ntables = ["public.*"]\n'
        )
        self._others: list[subprocess.Popen[bytes]] = []
        self.start("extract")
        wait_for((root / "log" / "LOG.json").exists)
        self.process = self.start("serve")
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.port, self.pid = int(told["address"].rpartition(":")[2]), self.process.pid

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start one of its processes."""
        found = subprocess.Popen(
            [sys.executable, "-m", "penstock", command, str(self.file), "--json"],
            stdout=subprocess.PIPE if command == "serve" else subprocess.DEVNULL,
            env={**os.environ, "BENCH_PASSWORD": PASSWORD},
        )
        self._others.append(found)
        return found

    def base(self) -> Manifest | None:
        """Return the base as it is."""
        return load_manifest(self.root / "base")

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._others):
            process.terminate()
        for process in self._others:
            process.wait()


def wait_for(condition: object) -> None:
    """Wait for a condition."""
    assert callable(condition)
    while not condition():
        time.sleep(0.1)


@contextmanager
def write_meanwhile(url: str, rows: int) -> Iterator[None]:
    """Write random updates and beats during a block."""
    ended = threading.Event()

    def update() -> None:
        numbers = np.random.default_rng(1)
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(0.05):
                keys = numbers.integers(1, rows, UPDATED_PER_TRANSACTION).tolist()
                connection.execute("update bulk set n = n + 1 where id = any(%s)", (keys,))

    def beat() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(BEAT_S):
                text = f"beat-{time.time_ns() // 1000};"
                connection.execute("update beat set at = %s", (text,))

    threads = [threading.Thread(target=work) for work in (update, beat)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def print_lags(what: str, lags: list[float], **more: float) -> None:
    """Print a line about lags."""
    line = {
        "measure": what,
        "beats": len(lags),
        "median_s": round(statistics.median(lags), 3),
        "p99_s": round(float(np.quantile(lags, 0.99)), 3),
        "max_s": round(max(lags), 3),
        **more,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Print a line for each phase."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="steps of compaction")
    parser.add_argument("--rows", type=int, default=0)
    given = parser.parse_args()
    rows = given.rows or (50_000 if given.quick else 10_000_000)
    print(json.dumps(describe_machine()))
    with EmbeddedPostgres() as source, tempfile.TemporaryDirectory() as folder:
        url = source.url("postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table bulk (id bigint primary key, n int, note text)")
            connection.execute("create table beat (id int primary key, at text)")
            connection.execute("insert into beat values (1, '')")
            connection.execute(
                "insert into bulk select n, 0, 'note of row ' || n || repeat('.', 60) "
                "from generate_series(1, %s) n",
                (rows,),
            )
        pipeline = Pipeline(Path(folder), url)
        try:
            measure(pipeline, url, rows, 1 if given.quick else given.rounds)
        finally:
            pipeline.stop()


def measure(pipeline: Pipeline, url: str, rows: int, steps: int) -> None:
    """Measure lags before there is a base, while it is read, and while it moves on."""
    pipeline.command("CREATE_REPLICATION_SLOT beats LOGICAL pgoutput (SNAPSHOT 'nothing')")
    beats = Beats(pipeline)
    follower = threading.Thread(target=beats.follow, args=("beats",))
    follower.start()
    try:
        with write_meanwhile(url, rows):
            time.sleep(15)
            until = time.time()
            print_lags("flow alone", [lag for _, lag in beats.found])
            pipeline.start("load")
            wait_for(lambda: pipeline.base() is not None)
            read = time.time()
            lags = [lag for at, lag in beats.found if at > until]
            print_lags("base is read", lags, seconds=round(read - until, 1))
            base = pipeline.base()
            assert base is not None
            first = base.number
            wait_for(lambda: (now := pipeline.base()) is not None and now.number >= first + steps)
            lags = [lag for at, lag in beats.found if at > read]
            size = base.size_bytes
            print_lags(
                "base moves on", lags, steps=steps, seconds=round(time.time() - read, 1), bytes=size
            )
    finally:
        beats.end()
        with suppress(OSError):
            beats.socket.shutdown(socket.SHUT_RD)
        follower.join()


if __name__ == "__main__":
    main()
