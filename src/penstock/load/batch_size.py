"""How large a batch is, so that the next one is staged by the time the current one is applied.

One connection applies, batch after batch; while it waits for rows nothing is applied. So a batch
that is staged meanwhile is about as large as what can be staged in that time, and the first one
after a pause is small. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_BYTES = 8 * 2**20  # of segments; a batch may always have so many
MAX_BYTES = 512 * 2**20
# Part of a batch's cost is fixed: its size may grow a little faster than its cost.
GROWTH = 1.25


def next_batch_bytes(size_bytes: int, seconds: Mapping[str, float]) -> int:
    """Bytes of segments that the next batch may have.

    size_bytes: of the last batch that was applied, 0 for none. seconds: what its steps took;
    staging and applying the next one are expected to take as long for a byte.
    """
    stage_s, apply_s = seconds.get("stage", 0.0), seconds.get("apply", 0.0)
    if not size_bytes or stage_s <= 0:
        return FIRST_BYTES
    return min(MAX_BYTES, max(FIRST_BYTES, int(size_bytes * GROWTH * apply_s / stage_s)))
