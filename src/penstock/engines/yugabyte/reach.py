"""Servers of a YugabyteDB source that executors must reach."""

from __future__ import annotations

from penstock.engines.postgres.reach import reach as postgres_reach
from penstock.engines.yugabyte.options import wire_url
from penstock.ports.registry import Reach


def reach(url: str) -> Reach:
    """See `ports.registry`."""
    return postgres_reach(wire_url(url))
