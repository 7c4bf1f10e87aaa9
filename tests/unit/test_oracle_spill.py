"""The side file of Oracle's transactions: every row returns, and small ones need few calls."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.engines.oracle.source import entries as entries_module
from penstock.engines.oracle.source.assembly import Assembly, Limits
from penstock.engines.oracle.source.entries import Entry, Spill
from penstock.engines.oracle.source.errors import SpillBroken
from penstock.host.files import REAL_FILES

TIME = datetime(2026, 3, 1)  # noqa: DTZ001 - DATE has no zone
START, INSERT, COMMIT = 6, 1, 7


def make_entries(dice: random.Random, count: int) -> list[Entry]:
    """Return changes with texts of any length."""
    return [
        Entry(at, "x" * dice.randrange(900), dice.randrange(9), "0A", " 0x1.1.1 ", 1, f"row{at}")
        for at in range(count)
    ]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often files are written and read from here on."""
    calls: Counter[str] = Counter()
    real = {"pwritev": os.pwritev, "pread": os.pread}
    for name in real:

        def call(*given: Any, name: str = name) -> Any:
            calls[name] += 1
            return real[name](*given)

        monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("block_bytes", [1, 700, 5000, 1024 * 1024])
@pytest.mark.parametrize("seed", range(3))
def test_entries_return_in_any_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int, block_bytes: int
) -> None:
    """Frames are read between writes, in order and out of it, and after a new begin."""
    monkeypatch.setattr(entries_module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(entries_module, "FRAME_ROWS", 8)
    dice = random.Random(seed)
    spill = Spill(tmp_path, REAL_FILES)
    for _ in range(2):
        kept = []
        for _ in range(120):
            entries = make_entries(dice, dice.choice((0, 1, 3, 30)))
            kept.append((spill.append(entries), entries))
            if dice.random() < 0.3:
                first = dice.randrange(len(kept))
                for frames, expected in kept[first : first + dice.randrange(1, 9)]:
                    assert [one for frame in frames for one in spill.read(frame)] == expected
        dice.shuffle(kept)
        for frames, expected in kept:
            assert [one for frame in frames for one in spill.read(frame)] == expected
        spill.close()
        assert spill.size_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_side_file(tmp_path: Path) -> None:
    """A frame that is not as it was written is refused, and so is one whose end is missing."""
    dice = random.Random(1)
    with closing(Spill(tmp_path, REAL_FILES)) as spill:
        (first,) = spill.append(make_entries(dice, 3))
        (last,) = spill.append(make_entries(dice, 3))
        spill.read(first)
        for frame in ((first[0] + 1, first[1]), (last[0], last[1] + 1)):
            with pytest.raises(SpillBroken, match="not as it was written"):
                spill.read(frame)
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:-1])
        spill.read(first)
        with pytest.raises(SpillBroken, match="not as it was written"):
            spill.read(last)


def row(number: int, code: int, text: str | None = None) -> tuple[Any, ...]:
    """Return a row of V$LOGMNR_CONTENTS of the transaction with a number."""
    xid = number.to_bytes(8, "big")
    scn = 1000 + number
    return (
        scn, xid, xid, code, 0, 0, 0, 1, "S", "T", "AAAV+RAAHAAAACjAAA",
        f" 0x000001.{number:08x}.0001 ", 5, 1, None, TIME, text,
    )  # fmt: skip


def test_small_transactions_need_few_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many small ones are written and read in blocks, though a large one is open among them."""
    calls = count_calls(monkeypatch)
    text = 'insert into "S"."T"("ID") values (\'1\')' + " " * 300
    count, large = 3000, 9999
    with closing(Spill(tmp_path, REAL_FILES)) as spill:
        assembly = Assembly(
            0, number_of=lambda *_: 0, spill=spill, limits=Limits(), spill_bytes=400_000
        )
        assembly.add([row(large, START)])
        for number in range(1, count + 1):
            rows = [row(number, INSERT, text)] * (1 + number % 5)
            assembly.add([row(number, START), *rows, row(large, INSERT, text), row(number, COMMIT)])
        assembly.add([row(large, COMMIT)])
        assembly.finish()
        committed = sorted(assembly.committed, key=lambda one: one.position)
        assert [int.from_bytes(one.xid) for one in committed] == [*range(1, count + 1), large]
        for one in committed:
            number = int.from_bytes(one.xid)
            found = [entry for part in one.frames() for entry in part]
            assert len(found) == (count if number == large else 1 + number % 5)
            assert {entry.xid for entry in found} == {one.name}
            assembly.release(one)
        assert spill.size_bytes > 4_000_000
        assert calls["pwritev"] <= 12
        assert calls["pread"] <= 80
