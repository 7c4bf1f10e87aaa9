"""When a cache was made again, where several nodes say so: rows of the life before go, once.

Each node makes its files of a new cache, and so does a node that gets its first partition of an old
one. A life begins with the first node that makes files of a cache of which it had changes; what the
others make then is of the same life. Not here: whether a node's files began anew (`lives.py`).
"""

from __future__ import annotations

import msgspec
import structlog

from penstock.engines.ignite.source.versions import SLACK_MS

AFTER_MS = 1000  # clocks that differ by less make nothing of a change look like one behind

logger = structlog.get_logger(__name__)


class CacheLives(msgspec.Struct):
    """Of one cache. began_ms: of its lives, in order. nodes: the life that each node has made last.

    newest_ms: of each node's changes.
    """

    began_ms: list[int] = []
    nodes: dict[str, int] = {}
    newest_ms: dict[str, int] = {}


class CommonLives:
    """Of all caches, by name."""

    def __init__(self, kept: dict[str, CacheLives] | None = None) -> None:
        """kept: of the flush point to go on from."""
        self.kept = {} if kept is None else kept

    def saw(self, cache: str, node: str, time_ms: int) -> None:
        """A node has changes of a cache up to this time."""
        one = self._of(cache)
        one.nodes.setdefault(node, len(one.began_ms))
        one.newest_ms[node] = max(time_ms, one.newest_ms.get(node, 0))

    def ended_ms(self, cache: str, node: str) -> int:
        """Changes of a node before this time are of a life that is over; 0: none is."""
        one = self.kept.get(cache)
        is_behind = one is not None and one.nodes.get(node, len(one.began_ms)) < len(one.began_ms)
        return one.began_ms[-1] if one is not None and is_behind else 0

    def forget(self, node: str) -> None:
        """A node begins anew: what it makes is not new."""
        for one in self.kept.values():
            one.nodes.pop(node, None)

    def begins(self, cache: str, node: str, time_ms: int) -> bool:
        """A node has made its files: whether the cache begins a life, and rows of before go."""
        one = self._of(cache)
        is_first = not one.nodes
        if not is_first and node not in one.nodes:
            one.nodes[node] = len(one.began_ms)  # it joins
            return False
        made = one.nodes.get(node, 0)
        for life in range(made, len(one.began_ms)):
            if abs(one.began_ms[life] - time_ms) <= SLACK_MS:
                one.nodes[node] = life + 1
                return False
        if made < len(one.began_ms):
            one.nodes[node] = len(one.began_ms)  # it was away when the others made theirs
            return False
        one.began_ms.append(time_ms)
        one.nodes[node] = len(one.began_ms)
        others = [ms for name, ms in one.newest_ms.items() if name != node]
        if max(others, default=0) > time_ms + AFTER_MS:
            logger.warning(
                "a cache was made again, and changes behind that came first: rows of before stay",
                cache=cache,
                node=node,
            )
            return False
        return True

    def _of(self, cache: str) -> CacheLives:
        return self.kept.setdefault(cache, CacheLives())
