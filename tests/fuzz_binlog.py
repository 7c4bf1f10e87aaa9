"""Feed mutated inputs to both binlog decoders, the kernel under AddressSanitizer when possible.

`python tests/fuzz_binlog.py --for 10m [--seed 1] [--keep]`. Twin and kernel must treat every input
alike; any difference, crash or bad memory access ends the run with exit code 1 and leaves the input
in build/fuzz/. Inputs are groups of events, recorded or generated, mutated at every level. Inputs
that show new behaviour are mutated further; --keep writes them into tests/property/corpus/binlog,
which the property tests replay.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import fuzz_run
from fuzz_run import INTERESTING

INPUT_BYTES_MAX = 8192
HEAD_BYTES = 19


def without_checksum(event: bytes, sealed: bool) -> bytes:
    """Return an event as a server without checksums sends it."""
    if event[4] == 15:  # the format description always has one
        body = event[:-5] + b"\0"
        return body + struct.pack("<I", zlib.crc32(body))
    if not sealed:
        return event
    return event[:9] + struct.pack("<I", len(event) - 4) + event[13:-4]


class Mutator:
    """A maker of inputs: recorded and generated events, mutated at every level."""

    def __init__(self, seed: int) -> None:
        from harness.twins import binlog, binlog_events, binlog_twins

        self.dice = random.Random(seed)
        self.made = binlog_events
        self.packet = binlog.packet
        self.world = list(binlog_twins.WORLD.values())
        self.files: list[list[bytes]] = []
        for name in ("mysql-8.0", "mysql-9.7", "mariadb-10.11", "mariadb-11.4"):
            for _, data in binlog.recorded_files(name):
                events = binlog.file_events(data)
                sealed = events[0][-5] == 1
                self.files.append([without_checksum(event, sealed) for event in events])

    def seed_input(self) -> bytes:
        """Return a fresh input: a recorded group of events, or rows of any bytes."""
        events = self._pick_recorded() if self.dice.random() < 0.7 else self._build_log()
        if self.dice.random() < 0.1:
            events = self._in_payload(events)
        return self.dice.randbytes(5) + self._packets(events)

    def _in_payload(self, events: list[bytes]) -> list[bytes]:
        """Return the same events inside a TRANSACTION_PAYLOAD, including those that are not allowed
        there.
        """
        while events and self.dice.random() < 0.9 and events[0][4] in (15, 33):
            events = events[1:]
        inside = [self.made.bare(event[4], event[HEAD_BYTES:]) for event in events]
        body = self.made.payload_body(*inside, zstd=self.dice.random() < 0.7)
        log = self.made.Log(checksums=False).add(33, self.made.gtid_body(1))
        return list(log.add(40, body).commit().events)

    def _pick_recorded(self) -> list[bytes]:
        events = self.dice.choice(self.files)
        starts = [at for at, event in enumerate(events) if event[4] in (33, 34, 42, 162)]
        start = self.dice.choice(starts)
        run = events[start : start + self.dice.randint(2, 9)]
        return [events[0], *(event for event in run if len(event) < INPUT_BYTES_MAX // 2)]

    def _build_log(self) -> list[bytes]:
        log = self.made.Log(checksums=False).begin()
        for _ in range(self.dice.randint(1, 3)):
            table = self.dice.choice(self.world)
            log.table(table)
            kind = self.dice.choice([23, 24, 25, 30, 31, 32, 39])
            rows = b"".join(
                self.made.image(table, self._cells(table)) for _ in range(self.dice.randint(1, 4))
            )
            log.add(kind, self.made.rows_body(table, kind, rows))
        return list(log.commit().events)

    def _cells(self, table: Any) -> list[bytes | None]:
        cells: list[bytes | None] = []
        for name in table.kinds:
            kind = self.made.KINDS[name]
            size = self.dice.randint(0, 12) if kind.prefix else kind.size
            data = self.dice.randbytes(size)
            if self.dice.random() < 0.5:
                data = bytes(byte & 0x0F for byte in data)
            cells.append(None if self.dice.random() < 0.2 else data)
        return cells

    def _packets(self, events: list[bytes]) -> bytes:
        return b"".join(self.packet(b"\0" + event) for event in events)

    def mutate(self, data: bytes) -> bytes:
        """Mutate an input a few times: raw bytes, one event in its packet, the events' order."""
        for _ in range(self.dice.randint(1, 3)):
            way = self.dice.randint(0, 5)
            if way == 0:
                data = self._bytes(data)
            elif way <= 3:
                data = data[:5] + self._in_event(data[5:])
            elif way == 4:
                data = data[:5] + self._shuffle(data[5:])
            else:
                data = self.dice.randbytes(3) + data[3:]
        return data[:INPUT_BYTES_MAX]

    def _bytes(self, data: bytes) -> bytes:
        dice, changed = self.dice, bytearray(data)
        at = dice.randint(0, len(changed))
        way = dice.randint(0, 4)
        if way == 0 and at < len(changed):
            changed[at] ^= 1 << dice.randint(0, 7)
        elif way == 1:
            del changed[at : at + dice.randint(1, 6)]
        elif way == 2:
            changed[at:at] = dice.randbytes(dice.randint(1, 4))
        elif way == 3:
            width = dice.choice([1, 2, 3, 4, 8])
            number = dice.choice(INTERESTING) % 2 ** (8 * width)
            changed[at : at + width] = number.to_bytes(width, "little")
        else:
            del changed[at:]
        return bytes(changed)

    def _events(self, block: bytes) -> list[bytes]:
        events, at = [], 0
        while at + 4 < len(block):
            length = int.from_bytes(block[at : at + 3], "little")
            if length < HEAD_BYTES + 1 or at + 4 + length > len(block):
                break
            events.append(block[at + 5 : at + 4 + length])
            at += 4 + length
        return events

    def _in_event(self, block: bytes) -> bytes:
        """Change one event's body and correct its lengths."""
        events = self._events(block)
        if not events:
            return self._bytes(block)
        where = self.dice.randrange(len(events))
        event = events[where]
        head, body = bytearray(event[:HEAD_BYTES]), self._bytes(event[HEAD_BYTES:])
        if self.dice.random() < 0.05:
            head[4] = self.dice.choice([2, 16, 19, 23, 24, 25, 30, 31, 32, 39, 40, 162, 166, 171])
        head[9:13] = struct.pack("<I", HEAD_BYTES + len(body))
        events[where] = bytes(head) + body
        if head[4] == 15 and len(body) > 5:
            event = events[where][:-5] + b"\0"
            events[where] = event + struct.pack("<I", zlib.crc32(event))
        return self._packets(events)

    def _shuffle(self, block: bytes) -> bytes:
        """Leave an event out, repeat one, or insert one of another input."""
        events = self._events(block)
        if not events:
            return self._bytes(block)
        where = self.dice.randrange(len(events))
        way = self.dice.randint(0, 2)
        if way == 0:
            del events[where]
        elif way == 1:
            events.insert(where, self.dice.choice(events))
        else:
            events[where:where] = self._pick_recorded()[1:3]
        return self._packets(events)


def behaviour(events: list[Any], batches: list[Any]) -> tuple[Any, ...]:
    """Return the kind of an input's behaviour; two inputs of one kind cover the same code."""
    tuples = [event for event in events if isinstance(event, tuple)]
    stops = frozenset(
        (event[1], event[2][4] if len(event[2]) > 4 else -1)
        for event in tuples
        if len(event) > 5 and isinstance(event[0], int)
    )
    last = next((event for event in tuples if isinstance(event[0], type)), None)
    error = (last[3].get("reason"), last[3].get("column"), last[3].get("table")) if last else ()
    ops = frozenset(
        (rows.relation.name, op)
        for rows in batches
        if "op" in rows.batch.schema.names
        for op in rows.batch.column("op").to_pylist()
    )
    return stops, error, ops if not error else len(ops)


def begin(seed: int) -> tuple[fuzz_run.Inputs, Callable[[bytes], Any]]:
    """Return the maker of inputs, and the function that compares the decoders on an input."""
    from harness.twins.binlog import DECODERS
    from harness.twins.binlog_twins import Case, assert_same

    if "kernel" not in DECODERS:
        raise SystemExit("the kernel is not built: nothing to compare")

    def try_case(data: bytes) -> Any:
        case = Case.of(data)
        object.__setattr__(case, "block", fuzz_run.exact_block(case.block))
        return behaviour(*assert_same(case))

    return Mutator(seed), try_case


FUZZER = fuzz_run.Fuzzer(
    name="binlog",
    kernels=("penstock.codec.mysql._binlog",),
    begin=begin,
    pool_max=400,
    kept_max=60,
    kept_bytes_max=900,
)

if __name__ == "__main__":
    raise SystemExit(fuzz_run.main(FUZZER, __doc__))
