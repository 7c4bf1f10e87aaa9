"""Feed mutated inputs to both binlog decoders, the kernel under AddressSanitizer when possible.

`python tests/fuzz_binlog.py --for 10m [--seed 1] [--keep]`. Twin and kernel must do the same with
every input; any difference, crash or bad memory access ends the run with exit code 1 and leaves
the input in build/fuzz/. Inputs are groups of events of recorded binlogs and made ones, changed at
every level. Those that show a behaviour not seen before breed further ones; --keep writes them
into tests/property/corpus/binlog, which the property tests replay.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from typing import Any

from fuzz_pgoutput import (
    CHILD,
    INTERESTING,
    ROOT,
    WORK,
    build_sanitized,
    exact_block,
    parse_time,
    sanitizer_library,
)

CORPUS = ROOT / "tests" / "property" / "corpus" / "binlog"
KERNEL = "penstock.codec.mysql._binlog"
CORPUS_COUNT_MAX = 400
INPUT_BYTES_MAX = 8192
KEPT_COUNT_MAX = 60
KEPT_BYTES_MAX = 900
HEAD_BYTES = 19


def load_kernel(path: str) -> None:
    """Make the sanitized extension the one that `penstock` imports."""
    loader = importlib.machinery.ExtensionFileLoader(KERNEL, path)
    spec = importlib.util.spec_from_file_location(KERNEL, path, loader=loader)
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[KERNEL] = module
    spec.loader.exec_module(module)


def without_checksum(event: bytes, sealed: bool) -> bytes:
    """An event as a server without checksums sends it."""
    if event[4] == 15:  # the format description always has one
        body = event[:-5] + b"\0"
        return body + struct.pack("<I", zlib.crc32(body))
    if not sealed:
        return event
    return event[:9] + struct.pack("<I", len(event) - 4) + event[13:-4]


class Mutator:
    """Makes inputs: events of recordings and of the driver's tables, mutated at every level."""

    def __init__(self, seed: int) -> None:
        import fix_binlog
        import fix_binlog_events
        import fix_binlog_twins

        self.dice = random.Random(seed)
        self.made = fix_binlog_events
        self.packet = fix_binlog.packet
        self.world = list(fix_binlog_twins.WORLD.values())
        self.files: list[list[bytes]] = []
        for name in ("mysql-8.0", "mysql-9.7", "mariadb-10.11", "mariadb-11.4"):
            for _, data in fix_binlog.recorded_files(name):
                events = fix_binlog.file_events(data)
                sealed = events[0][-5] == 1
                self.files.append([without_checksum(event, sealed) for event in events])

    def seed_input(self) -> bytes:
        """A fresh input: a recorded group of events, or rows of any bytes."""
        events = self._recorded() if self.dice.random() < 0.7 else self._made()
        if self.dice.random() < 0.1:
            events = self._in_payload(events)
        return self.dice.randbytes(5) + self._packets(events)

    def _in_payload(self, events: list[bytes]) -> list[bytes]:
        """The same events inside a TRANSACTION_PAYLOAD, those too that have no place there."""
        while events and self.dice.random() < 0.9 and events[0][4] in (15, 33):
            events = events[1:]
        inside = [self.made.bare(event[4], event[HEAD_BYTES:]) for event in events]
        body = self.made.payload_body(*inside, zstd=self.dice.random() < 0.7)
        log = self.made.Log(checksums=False).add(33, self.made.gtid_body(1))
        return list(log.add(40, body).commit().events)

    def _recorded(self) -> list[bytes]:
        events = self.dice.choice(self.files)
        starts = [at for at, event in enumerate(events) if event[4] in (33, 34, 42, 162)]
        start = self.dice.choice(starts)
        run = events[start : start + self.dice.randint(2, 9)]
        return [events[0], *(event for event in run if len(event) < INPUT_BYTES_MAX // 2)]

    def _made(self) -> list[bytes]:
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
        """A few changes: of raw bytes, of an event inside its packet, of the order of events."""
        for _ in range(self.dice.randint(1, 3)):
            way = self.dice.randint(0, 5)
            if way == 0:
                data = self._bytes(data)
            elif way <= 3:
                data = data[:5] + self._in_event(data[5:])
            elif way == 4:
                data = data[:5] + self._shuffled(data[5:])
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
        """Change one event's body and set its lengths right again."""
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

    def _shuffled(self, block: bytes) -> bytes:
        """Leave an event out, repeat one, or put one of another input in."""
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
            events[where:where] = self._recorded()[1:3]
        return self._packets(events)


def behaviour(events: list[Any], batches: list[Any]) -> tuple[Any, ...]:
    """What kind of thing an input did: two inputs of one kind teach the same."""
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


def fuzz(seconds: float, seed: int, keep: bool) -> dict[str, Any]:
    """Run until the time is up; raises AssertionError on the first difference."""
    from fix_binlog import DECODERS
    from fix_binlog_twins import Case, assert_same

    if "kernel" not in DECODERS:
        raise SystemExit("the kernel is not built: nothing to compare")
    mutator = Mutator(seed)
    pool = [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    known: set[Any] = set()
    current = WORK / "current-binlog.bin"
    end = time.monotonic() + seconds
    count, kept = 0, len(pool)
    backlog = list(pool)
    while time.monotonic() < end:
        if backlog:
            data = backlog.pop()
        elif not pool or mutator.dice.random() < 0.2:
            data = mutator.seed_input()
        else:
            data = mutator.mutate(mutator.dice.choice(pool))
        current.write_bytes(data)
        case = Case.of(data)
        object.__setattr__(case, "block", exact_block(case.block))
        seen = behaviour(*assert_same(case))
        count += 1
        if seen not in known:
            known.add(seen)
            if data not in pool and len(pool) < CORPUS_COUNT_MAX:
                pool.append(data)
                if keep and len(data) < KEPT_BYTES_MAX and kept < KEPT_COUNT_MAX:
                    kept += 1
                    name = hashlib.sha256(data).hexdigest()[:16]
                    (CORPUS / f"{name}.bin").write_bytes(data)
    current.unlink(missing_ok=True)
    return {"inputs": count, "behaviours": len(known), "corpus": len(pool)}


def parent(arguments: argparse.Namespace) -> int:
    """Build, start the child with the sanitizer loaded, keep the input it died on."""
    WORK.mkdir(parents=True, exist_ok=True)
    CORPUS.mkdir(parents=True, exist_ok=True)
    library = sanitizer_library()
    environment = os.environ | {CHILD: "-", "PYTHONMALLOC": "malloc"}
    if library:
        build_sanitized()
        kernel = next((WORK / "lib").rglob("_binlog*.so"))
        environment |= {
            CHILD: str(kernel),
            "LD_PRELOAD": library,
            # The interpreter itself leaks at exit, and may start programs.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
    if done.returncode:
        current = WORK / "current-binlog.bin"
        name = "nothing: it failed before the first input"
        if current.exists():
            digest = hashlib.sha256(current.read_bytes()).hexdigest()[:16]
            name = str(current.rename(WORK / f"failed-{digest}.bin"))
        sys.stderr.write(f"failed with seed {arguments.seed}; the input is {name}\n")
    return 1 if done.returncode else 0


def child(arguments: argparse.Namespace, kernel: str) -> int:
    """Fuzz in this process."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    if kernel != "-":
        load_kernel(kernel)
    result = fuzz(arguments.time, arguments.seed, arguments.keep)
    line = {"fuzz": "binlog", "sanitizers": kernel != "-", "seed": arguments.seed} | result
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--for", dest="time", type=parse_time, default=60.0, help="90, 90s, 10m or 1h"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", action="store_true", help="write new inputs to the corpus")
    arguments = parser.parse_args()
    if CHILD not in os.environ:
        sys.argv += ["--seed", str(arguments.seed)]
        return parent(arguments)
    return child(arguments, os.environ[CHILD])


if __name__ == "__main__":
    raise SystemExit(main())
