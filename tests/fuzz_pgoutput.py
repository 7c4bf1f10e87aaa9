"""Feed mutated inputs to both pgoutput decoders, the kernel under AddressSanitizer when possible.

`python tests/fuzz_pgoutput.py --for 10m [--seed 1] [--keep]`. Twin and kernel must treat
every input alike; any difference, crash or bad memory access ends the run with exit code 1 and
leaves the input in build/fuzz/. Inputs that show new behaviour are mutated further;
--keep writes those into tests/property/corpus/pgoutput, which the property tests replay.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fuzz_run
from fuzz_run import INTERESTING

FRAME_HEAD_BYTES = 30  # wire frame, XLogData
INPUT_BYTES_MAX = 4096
IGNORED = (2, 3)  # oids whose rows are skipped when each input is run again

TEXTS = [
    b"", b"0", b"-1", b"127", b"32767", b"-32768", b"2147483648", b"9223372036854775807",
    b"-9223372036854775808", b"18446744073709551615", b"99999999999999999999", b"t", b"f",
    b"1.10", b"-0.05", b"12345678901234567890", b"1234567890123456789012345678.0123456789",
    b"NaN", b"Infinity", b"-Infinity", b"0.1", b"1e+21", b"5e-324", b"-1.7976931348623157e+308",
    b"9007199254740993", b"3.4028235e+38", b"1e-45", b"2024-02-29", b"0044-03-15 BC",
    b"5874897-12-31", b"infinity", b"23:59:59.999999", b"24:00:00", b"2024-02-29 12:34:56.789",
    b"294247-01-10 04:00:54.775808", b"2024-02-29 12:34:56+00", b"1879-12-31 19:03:58-04:56:02",
    b"0044-03-15 10:00:00.5+00 BC", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", b"\\x00ff7f",
    b"plain text", "größe 語 𝄞".encode(), b"\xff\xfe", b"\\N", b"\\\\", b"x" * 70,
]  # fmt: skip


# --- inputs


class Mutator:
    """A maker of inputs: rows of the driver's fixed relations, mutated at every level."""

    def __init__(self, seed: int) -> None:
        from harness.twins import pgoutput, pgoutput_twins

        self.dice = random.Random(seed)
        self.wire = pgoutput
        self.world = pgoutput_twins.WORLD

    def seed_input(self) -> bytes:
        """Return a fresh input: a stream of whole transactions, streamed rows or COPY lines."""
        dice = self.dice
        head = bytearray(dice.randbytes(5))
        if head[0] % 4 == 3:
            return bytes(head) + b"".join(self._line(head[1] % 4 + 1) for _ in range(4))
        xid = dice.choice([7, 9, 12]) if head[0] % 4 else None
        parts = [self._row(xid) for _ in range(dice.randint(0, 5))]
        parts.insert(dice.randint(0, len(parts)), self.wire.keepalive())
        if xid is None:
            parts = [self.wire.begin(), *parts, self.wire.commit()]
        return bytes(head) + b"".join(parts)

    def _cells(self, source_id: int, unchanged: bool = False) -> list[Any]:
        choices: list[Any] = [*TEXTS, None, None]
        if unchanged:
            choices += [self.wire.UNCHANGED] * 5
        cells = []
        for column in self.world[source_id].columns:
            if self.dice.random() < 0.8:
                cells.append(self._proper(column.neutral))
            else:
                cells.append(self.dice.choice(choices))
        return cells

    def _proper(self, neutral: str) -> bytes | None:
        patterns = {
            "int": rb"-?\d{1,5}", "uint": rb"\d{1,9}", "bool": rb"[tf]", "float": rb"-?[\d.e+-]+",
            "decimal(5": rb"-?\d{1,3}\.\d\d", "decimal(3": rb"-?\d+\.\d{10}",
            "decimal(2": rb"-?\d{1,20}", "date": rb"\d{4,7}-\d\d-\d\d( BC)?",
            "timestamptz": rb"\d{4,6}-.*[+-]\d\d.*", "timestamp": rb"\d{4,6}-\S+ [\d:.]+",
            "time": rb"\d\d:\S+", "uuid": rb".{8}-.{4}-.*", "binary": rb"\\x.*", "string": rb".*",
        }  # fmt: skip
        key = max((name for name in patterns if neutral.startswith(name)), key=len)
        fitting = [text for text in TEXTS if re.fullmatch(patterns[key], text, re.DOTALL)]
        return self.dice.choice([*fitting, None])

    def _row(self, xid: int | None) -> bytes:
        source_id = self.dice.randint(1, 4)
        kind = self.dice.randint(0, 4)
        if kind == 0:
            return self.wire.insert(source_id, self._cells(source_id), xid)
        if kind == 1:
            return self.wire.update(source_id, self._cells(source_id, unchanged=True), xid=xid)
        image = self.dice.choice(["key", "old"])
        before = {image: self._cells(source_id)}
        if kind == 2:
            return self.wire.delete(source_id, **before, xid=xid)
        return self.wire.update(
            source_id, self._cells(source_id, unchanged=True), **before, xid=xid
        )

    def _line(self, source_id: int) -> bytes:
        cells = [b"\\N" if cell is None else cell for cell in self._cells(source_id)]
        return b"\t".join(cells) + b"\n"

    def mutate(self, data: bytes) -> bytes:
        """Mutate an input a few times: raw bytes, one message in its frame, one value's text."""
        for _ in range(self.dice.randint(1, 3)):
            way = self.dice.randint(0, 3)
            if way == 0:
                data = self._bytes(data)
            elif way == 1:
                data = data[:5] + self._in_frame(data[5:])
            elif way == 2:
                data = data[:5] + self._in_value(data[5:])
            else:
                data = self.dice.randbytes(2) + data[2:]
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
            width = dice.choice([2, 4])
            number = dice.choice(INTERESTING) % 2 ** (8 * width)
            changed[at : at + width] = number.to_bytes(width, "big")
        else:
            del changed[at:]
        return bytes(changed)

    def _in_frame(self, block: bytes) -> bytes:
        """Change one message and correct its frame's length."""
        frames = self._frames(block)
        if not frames:
            return self._bytes(block)
        start, end = self.dice.choice(frames)
        message = block[start + FRAME_HEAD_BYTES : end]
        message = self._bytes(message) or b"I"
        return block[:start] + self.wire.xlog(message) + block[end:]

    def _in_value(self, block: bytes) -> bytes:
        """Change one value's text and correct all lengths."""
        frames = self._frames(block)
        if not frames:
            return self._bytes(block)
        start, end = self.dice.choice(frames)
        message = block[start + FRAME_HEAD_BYTES : end]
        cells = [
            at
            for at in range(7, len(message) - 4)
            if message[at] == ord("t")
            and at + 5 + int.from_bytes(message[at + 1 : at + 5], "big") <= len(message)
        ]
        if not cells:
            return self._bytes(block)
        at = self.dice.choice(cells)
        length = int.from_bytes(message[at + 1 : at + 5], "big")
        text = message[at + 5 : at + 5 + length]
        text = self.dice.choice(TEXTS) if self.dice.random() < 0.3 else self._text(text)
        message = (
            message[: at + 1] + len(text).to_bytes(4, "big") + text + message[at + 5 + length :]
        )
        return block[:start] + self.wire.xlog(message) + block[end:]

    def _text(self, text: bytes) -> bytes:
        at = self.dice.randint(0, len(text))
        put = bytes(self.dice.choices(b"0123456789-+:. eEBCntfx\\\x80\xc3\xa9", k=2))
        drop = self.dice.randint(0, 2)
        return text[:at] + put[: self.dice.randint(0, 2)] + text[at + drop :]

    def _frames(self, block: bytes) -> list[tuple[int, int]]:
        frames, at = [], 0
        while at + FRAME_HEAD_BYTES < len(block):
            behind = at + 1 + int.from_bytes(block[at + 1 : at + 5], "big")
            if behind <= at + FRAME_HEAD_BYTES or behind > len(block):
                break
            frames.append((at, behind))
            at = behind
        return frames


# --- the run


def behaviour(events: list[Any], batches: list[Any]) -> tuple[Any, ...]:
    """Return the kind of an input's behaviour; two inputs of one kind cover the same code."""
    stops = frozenset(event[1] for event in events if isinstance(event[0], int))
    last = next((event for event in events if isinstance(event[0], type)), None)
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
    from harness.twins.pgoutput import DECODERS
    from harness.twins.pgoutput_twins import Case, assert_same

    if "kernel" not in DECODERS:
        raise SystemExit("the kernel is not built: nothing to compare")

    def try_case(data: bytes) -> Any:
        case = Case.of(data)
        object.__setattr__(case, "block", fuzz_run.exact_block(case.block))
        seen = behaviour(*assert_same(case))
        assert_same(replace(case, ignored=IGNORED))
        return seen

    return Mutator(seed), try_case


FUZZER = fuzz_run.Fuzzer(
    name="pgoutput",
    kernels=("penstock.codec.postgres._pgoutput",),
    begin=begin,
    pool_max=400,
    kept_max=100,
    kept_bytes_max=700,
)

if __name__ == "__main__":
    raise SystemExit(fuzz_run.main(FUZZER, __doc__))
