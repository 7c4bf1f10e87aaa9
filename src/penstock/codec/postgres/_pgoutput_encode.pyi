from collections.abc import Sequence
from typing import Any

Buffers = tuple[int, ...]

def encode(
    op: Buffers,
    absent: Buffers,
    has_before: Buffers,
    new: Sequence[Buffers],
    old: Sequence[Buffers | None],
    positions: Any,
    ends: Any,
    head: tuple[int, int | None, bool, int],
) -> tuple[bytes, int, int]: ...
