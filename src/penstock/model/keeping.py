"""Limits for segments that the log keeps although nothing needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Limits for keeping segments that nothing needs.

    Attributes:
        age_s: maximum age in seconds, counted from the end of the segment.
        size_bytes: maximum total size; the oldest segments are removed first.
    """

    age_s: float = math.inf
    size_bytes: float = math.inf

    @property
    def is_limited(self) -> bool:
        """Return whether a segment is ever removed."""
        return math.isfinite(self.age_s) or math.isfinite(self.size_bytes)


KEEP_NONE = Keeping(age_s=0.0, size_bytes=0)
