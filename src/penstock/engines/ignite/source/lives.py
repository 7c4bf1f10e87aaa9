"""Detection of recreated caches, by files that begin in a node's log.

Files also begin when a node returns to a cluster and has to be sent the missing changes: then
the cache is the same. Two facts distinguish the cases. The configuration of a cache is written
when it is created, so it is younger than the last change of the earlier life. And in a new life
each partition counts its changes from 1. Caches of a group share their files, so a recreated
cache of a group is not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.ports.direct import LogPlace

Mark = tuple[int, LogPlace]


@dataclass
class Lives:
    """Facts about caches.

    Attributes:
        made_ms: returns when the configuration of a cache was written, ms since 1970; None if it
        is gone.
        start_ms: time of the log's end, for caches not seen since.
    """

    made_ms: Callable[[str], int | None]
    start_ms: int = 0
    _last_ms: dict[int, int] = field(default_factory=dict)

    def saw(self, times: Mapping[int, int]) -> None:
        """Note the time of the last change of each cache, by its id."""
        self._last_ms |= times

    def find_recreated(
        self,
        marks: Sequence[Mark],
        entries: Iterator[Any],
        caches_of: Callable[[int], Mapping[int, str]],
    ) -> list[tuple[str, LogPlace]]:
        """Return the recreated caches with their places, in order.

        Args:
            marks: places where files of groups begin, in order.
            entries: entries of the segment, including copies.
            caches_of: returns the caches of a group, by id.
        """
        last = dict(self._last_ms)
        found: list[tuple[str, LogPlace]] = []
        checked: dict[int, _Begun] = {}
        waiting = list(marks)
        every: list[_Begun] = []
        for entry in entries:
            while waiting and waiting[0][1].offset < entry.offset:
                every += self._begin(waiting.pop(0), last, caches_of, checked)
            last[entry.cache_id] = entry.time_ms
            here = checked.get(entry.cache_id)
            if here is not None and entry.counter > 0:
                here.saw(entry.partition, entry.counter)
        for mark in waiting:
            every += self._begin(mark, last, caches_of, checked)
        for one in every:
            if one.is_new:
                found.append((one.name, one.place))
        return found

    def _begin(
        self,
        mark: Mark,
        last: Mapping[int, int],
        caches_of: Callable[[int], Mapping[int, str]],
        checked: dict[int, _Begun],
    ) -> list[_Begun]:
        found = []
        for number, name in caches_of(mark[0]).items():
            made_ms = self.made_ms(name)
            is_younger = made_ms is not None and made_ms > last.get(number, self.start_ms)
            checked[number] = _Begun(name=name, place=mark[1], is_younger=is_younger)
            found.append(checked[number])
        return found


@dataclass
class _Begun:
    """A cache whose files begin. is_younger: its configuration is younger than its last change."""

    name: str
    place: LogPlace
    is_younger: bool
    _least: dict[int, int] = field(default_factory=dict)

    def saw(self, partition: int, counter: int) -> None:
        self._least[partition] = min(counter, self._least.get(partition, counter))

    @property
    def is_new(self) -> bool:
        return self.is_younger and all(count == 1 for count in self._least.values())
