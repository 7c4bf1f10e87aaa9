"""Feed mutated messages to the server's parsers, and mutated sessions to a running server.

`python tests/fuzz_serve.py --for 10m [--seed 1]`. A parser returns a value, asks for more or
refuses with an SQLSTATE; anything else, and a server that does not answer the next client, ends the
run with exit code 1 and leaves the input in build/fuzz/. The parsers are plain Python, so no
sanitizer is needed. Both protocols are covered: simple queries and replication commands, Parse to
Close.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz_run import INTERESTING, WORK, parse_time
from harness.pipelines.log import inserts, number_rows
from harness.servers.serve import PASSWORD, Patterns, Running, answer_of, write_log
from harness.servers.serve_client import START, Raw
from penstock.codec.postgres import pgwire_extended as extended
from penstock.codec.postgres import replication_commands as commands
from penstock.codec.postgres.pgwire_server import (
    Refused,
    frame_at,
    query_text,
    sasl_initial,
    standby_status,
    start_packet,
)
from penstock.codec.postgres.scram import ScramServer, Verifier
from penstock.serve.forms import stream_options

SESSION_EVERY = 200  # so many inputs of the parsers take as long as one session

WORDS = [
    *(b"START_REPLICATION", b"SLOT", b"LOGICAL", b"CREATE_REPLICATION_SLOT", b"IDENTIFY_SYSTEM"),
    *(b"DROP_REPLICATION_SLOT", b"WAIT", b"TEMPORARY", b"pgoutput", b"wal2json", b"0/0", b"SHOW"),
    *(b"FFFFFFFF/FFFFFFFF", b"(", b")", b",", b"'", b'"', b"proto_version", b"publication_names"),
    *(b"select 1", b"begin", b"commit", b"\0", b"\xff", "ä".encode(), b";", b"--", b"/*", b"1e9"),
    *(b"add-tables", b"public.*", b"format-version", b"n,,", b"SCRAM-SHA-256", b"r=x,s=y,i=1"),
]
TEXTS = [
    START.encode(),
    b"CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE false)",
    b'CREATE_REPLICATION_SLOT "t" LOGICAL wal2json NOEXPORT_SNAPSHOT',
    b"ALTER_REPLICATION_SLOT s ( FAILOVER false )",
    b"DROP_REPLICATION_SLOT s WAIT",
    b"START_REPLICATION SLOT t LOGICAL 0/0 (\"add-tables\" 'public.*', \"format-version\" '2')",
    b"IDENTIFY_SYSTEM",
    b"TIMELINE_HISTORY 1",
    b"READ_REPLICATION_SLOT s",
    b"SHOW wal_level",
    b"select 1",
    b"begin",
]
BODIES = [
    b"\0select 1\0\0\0",
    b"a\0select $1\0\0\1\0\0\0\x17",
    b"p\0a\0\0\1\0\0\0\1\0\0\0\1" + b"1" + b"\0\1\0\1",
    b"S\0",
    b"Pp\0",
    b"p\0\0\0\0\0",
    struct.pack(">cQQQqB", b"r", 1, 2, 3, 4, 1),
    b"h" + b"\0" * 20,
    b"n,,n=,r=abc",
    b"c=biws,r=abcn,p=" + b"A" * 43 + b"=",
    b"SCRAM-SHA-256\0\0\0\0\x0bn,,n=,r=abc",
    struct.pack(">ii", 8, 80877103),
    struct.pack(">iii", 16, 80877102, 5) + b"\0\0\0\1",
    struct.pack(">ii", 41, 196608) + b"user\0repl\0database\0shop\0\0".ljust(33, b"\0"),
    *(text + b"\0" for text in TEXTS),
]
LETTERS = b"QPBDECHSFdcfXpR\0"


def parsers() -> Sequence[Callable[[bytes], Any]]:
    """Return everything that reads a client's bytes."""
    verifier = Verifier.of(PASSWORD, salt=b"0123456789abcdef", iterations=2)

    def options(data: bytes) -> None:
        command = commands.parse(query_text(data + b"\0"))
        if isinstance(command, commands.StartReplication):
            for plugin in ("pgoutput", "wal2json", "test_decoding"):
                with suppress(Refused):
                    stream_options(plugin, command.options)

    def scram(data: bytes) -> None:
        server = ScramServer(verifier, nonce="n")
        with suppress(Refused):
            server.challenge(data)
        server.challenge(b"n,,n=,r=abc")
        server.finish(data)

    def frames(data: bytes) -> None:
        found = frame_at(data, 0, len(data), 1000)
        for size in range(len(data)):
            # A parser asks for more of a shorter one, or refuses it too, but never misreads it.
            with suppress(Refused):
                part = frame_at(data[:size], 0, size, 1000)
                assert part is None or part == found

    return (
        *(start_packet, query_text, sasl_initial, standby_status, frames, options, scram),
        *(extended.parse, extended.bind, extended.target, extended.execute),
        lambda data: extended.parameter_text(data[2:], data[:1] == b"\1", sum(data[:2])),
    )


class Mutator:
    """A maker of inputs from other inputs."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def body(self) -> bytes:
        """Return the body of a message, changed a few times or not at all."""
        data = bytearray(self.dice.choice(BODIES))
        for _ in range(self.dice.choice((0, 1, 1, 2, 5))):
            self._change(data)
        return bytes(data)

    def _change(self, data: bytearray) -> None:
        dice = self.dice
        at = dice.randint(0, len(data))
        roll = dice.randrange(6)
        if roll == 0:
            data[at:at] = dice.choice(WORDS)
        elif roll == 1 and data:
            del data[at : at + dice.choice((1, 1, 2, 4, 8))]
        elif roll == 2 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif roll == 3:
            size = dice.choice((1, 2, 4, 8))
            data[at : at + size] = (dice.choice(INTERESTING) % 256**size).to_bytes(size)
        elif roll == 4:
            data[at:at] = data[at : at + dice.randint(1, 40)] * dice.choice((1, 2, 50))
        else:
            data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 6)))

    def session(self) -> list[bytes]:
        """Return the messages of a client that has logged in."""
        found = []
        for _ in range(self.dice.randint(1, 12)):
            body = self.body()
            length = len(body) + 4
            if self.dice.random() < 0.1:
                length = self.dice.choice(INTERESTING) % 2**32
            letter = self.dice.choice(LETTERS).to_bytes(1)
            if self.dice.random() < 0.5:
                letter = b"Q"
            found.append(letter + length.to_bytes(4) + body)
        return found


def send_session(running: Running, session: Sequence[bytes]) -> None:
    """Send the whole session, read for a short time, and check that the server answers the next
    client.
    """
    client = Raw(running)
    client.socket.settimeout(0.3)
    try:
        for one in session:
            client.socket.sendall(one)
        client.say(b"S")
        client.say(b"X")
        for _ in range(1000):
            client.message()
    except (EOFError, OSError, TimeoutError):
        pass
    finally:
        client.close()
    assert running.error is None
    assert not running.serving.failed.done()
    again = Raw(running)
    again.query("select 1")
    again.until(b"Z")
    again.close()


def main() -> int:
    """Run until the time is over, or a defect is found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--for", dest="seconds", type=parse_time, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mutator, every = Mutator(given.seed), parsers()
    until = time.monotonic() + given.seconds
    inputs = sessions = 0
    tried: object = b""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root / "log", number_rows([inserts(3)]))
        patterns = Patterns({"select 1": answer_of([("one", 23)], [("1",)])})
        try:
            with Running(root, patterns=patterns) as running:
                while time.monotonic() < until:
                    tried = body = mutator.body()
                    for one in every:
                        with suppress(Refused):
                            one(body)
                    inputs += 1
                    if inputs % SESSION_EVERY == 0:
                        tried = mutator.session()
                        send_session(running, tried)
                        sessions += 1
        except BaseException:
            WORK.mkdir(parents=True, exist_ok=True)
            path = WORK / f"serve-{given.seed}-{inputs}.txt"
            path.write_text(repr(tried))
            sys.stderr.write(f"failed after {inputs} inputs, {sessions} sessions: {path}\n")
            raise
    sys.stdout.write(f"{inputs} inputs, {sessions} sessions, seed {given.seed}: nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
