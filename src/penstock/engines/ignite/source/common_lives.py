"""Recreated caches, as several nodes report them: the earlier life's rows are deleted once.

Each node creates its files of a new cache, and so does a node that gets its first partition of
an old one. A life begins with the first node that creates files of a cache of which it had
changes; the files that the others create then belong to the same life. Not here: detecting that
a node's files are new (`lives.py`).
"""

from __future__ import annotations

import msgspec
import structlog

from penstock.engines.ignite.source.versions import SLACK_MS

AFTER_MS = 1000  # clocks that differ by less do not turn a change into a later one

logger = structlog.get_logger(__name__)


class CacheLives(msgspec.Struct):
    """Lives of one cache.

    Attributes:
        began_ms: begins of its lives, in order.
        nodes: the life of each node's last files.
        newest_ms: time of each node's newest change.
    """

    began_ms: list[int] = []
    nodes: dict[str, int] = {}
    newest_ms: dict[str, int] = {}


class CommonLives:
    """Lives of all caches, by name."""

    def __init__(self, kept: dict[str, CacheLives] | None = None) -> None:
        """Continue from the lives of a flush point."""
        self.kept = {} if kept is None else kept

    def saw(self, cache: str, node: str, time_ms: int) -> None:
        """Note that a node has changes of a cache up to this time."""
        one = self._of(cache)
        one.nodes.setdefault(node, len(one.began_ms))
        one.newest_ms[node] = max(time_ms, one.newest_ms.get(node, 0))

    def ended_ms(self, cache: str, node: str) -> int:
        """Return the end of the earlier life, in ms: a node's changes before belong to it; 0:
        none do.
        """
        one = self.kept.get(cache)
        is_behind = one is not None and one.nodes.get(node, len(one.began_ms)) < len(one.began_ms)
        return one.began_ms[-1] if one is not None and is_behind else 0

    def forget(self, node: str) -> None:
        """Forget the files of a node that starts again: those that it creates are not new."""
        for one in self.kept.values():
            one.nodes.pop(node, None)

    def begins(self, cache: str, node: str, time_ms: int) -> bool:
        """Note new files of a node; return whether the cache begins a life and existing rows are
        deleted.
        """
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
            one.nodes[node] = len(one.began_ms)  # it was unreachable when the others created theirs
            return False
        one.began_ms.append(time_ms)
        one.nodes[node] = len(one.began_ms)
        others = [ms for name, ms in one.newest_ms.items() if name != node]
        if max(others, default=0) > time_ms + AFTER_MS:
            logger.warning(
                "a cache was made again, and later changes arrived first: existing rows stay",
                cache=cache,
                node=node,
            )
            return False
        return True

    def _of(self, cache: str) -> CacheLives:
        return self.kept.setdefault(cache, CacheLives())
