"""Size of a batch: as much as can be staged while the previous one is applied."""

from __future__ import annotations

from penstock.load.loader import FIRST_BYTES, GROWTH, MAX_BYTES, next_batch_bytes

MIB = 2**20


def test_nothing_is_known_yet() -> None:
    """The first batch is short, so that applying begins soon."""
    assert next_batch_bytes(0, {}) == FIRST_BYTES
    assert next_batch_bytes(0, {"stage": 1.0, "apply": 1.0}) == FIRST_BYTES
    assert next_batch_bytes(100 * MIB, {"apply": 1.0}) == FIRST_BYTES


def test_it_follows_what_can_be_staged_meanwhile() -> None:
    """Slow applying lets it grow, slow staging shrinks it; both stay within bounds."""
    assert next_batch_bytes(40 * MIB, {"stage": 1.0, "apply": 2.0}) == int(80 * GROWTH * MIB)
    assert next_batch_bytes(40 * MIB, {"stage": 2.0, "apply": 1.0}) == int(20 * GROWTH * MIB)
    assert next_batch_bytes(40 * MIB, {"stage": 2.0, "apply": 0.001}) == FIRST_BYTES
    assert next_batch_bytes(400 * MIB, {"stage": 1.0, "apply": 9.0}) == MAX_BYTES
    steps = {"plan": 9.0, "stage": 1.0, "apply": 0.5, "commit": 0.5, "upkeep": 1.0}
    assert next_batch_bytes(40 * MIB, steps) == int(80 * GROWTH * MIB)


def test_many_small_files_come_to_large_batches() -> None:
    """The size grows to the maximum if both steps take the same time at any size."""
    size, steps = 1 * MIB, 0
    while size < MAX_BYTES:
        size = next_batch_bytes(size, {"stage": 0.4, "apply": 0.4})
        steps += 1
    assert steps < 25
