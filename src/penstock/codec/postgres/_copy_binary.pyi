from collections.abc import Sequence
from typing import Any

def encode(
    plans: Sequence[tuple[Any, ...]], row: int, stop: int, block_bytes: int, field_max: int
) -> tuple[bytes, int, int, int]: ...
