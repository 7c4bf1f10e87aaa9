"""Whether the compiled kernels are in use, or their plain twins."""

from __future__ import annotations

from penstock.codec import changefeed
from penstock.codec.mysql import binlog
from penstock.codec.postgres import pgoutput


def all_compiled() -> bool:
    """Whether every decoder is the compiled one."""
    return pgoutput.COMPILED and binlog.COMPILED and changefeed.COMPILED
