"""pg_recvlogical follows a served log: no row is lost or repeated."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.servers.engines import Place, insert, new_place
from harness.servers.subscribers import PASSWORD, Served
from plugins.postgres import Server
from plugins.shared import SharedServers


@pytest.fixture
def place(postgres: Server, shared_servers: SharedServers) -> Iterator[Place]:
    """A source of the version under test."""
    with new_place(shared_servers, f"pg{postgres.version}") as found:
        yield found


def start_serving(place: Place, folder: Path) -> Served:
    """Extract and serve a source."""
    made = Served(place, folder)
    made.extract()
    made.serve()
    return made


class Receiver:
    """pg_recvlogical with a slot of a served log."""

    def __init__(self, postgres: Server, served: Served) -> None:
        self.program = postgres.bindir / "pg_recvlogical"
        if not self.program.exists():
            found = shutil.which("pg_recvlogical")
            assert found is not None, "no pg_recvlogical"
            self.program = Path(found)
        self.served = served

    def command(self, *what: str) -> list[str]:
        """Return its command line; what: more arguments."""
        return [str(self.program), "-d", self.served.connection(), "--slot=rl", *what]

    def run(self, *what: str) -> None:
        """Run it until it ends without an error."""
        done = subprocess.run(self.command(*what), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def start(self, file: Path) -> subprocess.Popen[bytes]:
        """Receive into a file until it is interrupted."""
        return subprocess.Popen(
            self.command(
                *("--start", "-o", "proto_version=1", "-o", "publication_names=p"),
                *("-F", "1", "-s", "1", "-f", str(file), "--plugin=pgoutput", "--no-loop"),
            )
        )


def read_inserts(file: Path) -> list[bytes]:
    """Return the first cells of the received inserts: each message ends with a newline."""
    found = []
    data = file.read_bytes() if file.exists() else b""
    at = 0
    while (at := data.find(b"N\0\2t", at)) >= 0:
        (length,) = struct.unpack_from(">I", data, at + 4)
        found.append(data[at + 8 : at + 8 + length])
        at += 8
    return found


def until(what: Any, within_s: float = 60) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_pg_recvlogical(place: Place, postgres: Server, tmp_path: Path) -> None:
    """The client receives, is interrupted, continues, drops: no row is lost or repeated."""
    place.run("create table item (id int primary key, note varchar(200))")
    served = start_serving(place, tmp_path)
    try:
        receiver = Receiver(postgres, served)
        receiver.run("--create-slot", "--plugin=pgoutput")
        wanted: list[bytes] = []
        for at in range(3):
            rows = [(n, f"n{n}") for n in range(1 + 50 * at, 51 + 50 * at)]
            file = tmp_path / f"received{at}"
            running = receiver.start(file)
            insert(place, "item", rows)
            until(lambda f=file: len(read_inserts(f)) == 50)
            time.sleep(2.5)  # longer than its interval of confirmations
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
            wanted += [str(n).encode() for n, _ in rows]
        found = [cell for at in range(3) for cell in read_inserts(tmp_path / f"received{at}")]
        assert found == wanted
        receiver.run("--drop-slot")
        assert served.query_catalog("select count(*) from pg_replication_slots") == [(0,)]
    finally:
        served.close()
        place.forget_log()
    assert PASSWORD not in served.path.read_text()
