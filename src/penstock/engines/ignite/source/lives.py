"""Whether a cache was made again, where its files begin anew in a node's log.

They also begin anew when a node comes back to a cluster and has to be sent what it missed: then the
cache is the one that it was. Two things tell the two from each other. The configuration of a cache
is written when it is made, so it is younger than the last change of the life before. And in a new
life each partition counts its changes from 1. Caches of a group with others share its files, and
are not seen to be made again by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.ports.direct import LogPlace

Mark = tuple[int, LogPlace]


@dataclass
class Lives:
    """What is remembered of caches. start_ms: of the log's end, for caches not seen since.

    made_ms: when the configuration of a cache was written, ms since 1970; None where it is gone.
    """

    made_ms: Callable[[str], int | None]
    start_ms: int = 0
    _last_ms: dict[int, int] = field(default_factory=dict)

    def saw(self, times: Mapping[int, int]) -> None:
        """When the last change of each cache was, by its id."""
        self._last_ms |= times

    def begun(
        self,
        marks: Sequence[Mark],
        entries: Iterator[Any],
        caches_of: Callable[[int], Mapping[int, str]],
    ) -> list[tuple[str, LogPlace]]:
        """Which caches were made again, and where, in order.

        marks: where files of groups begin, in order. entries: of the segment, copies too. caches_of
        gives the caches of a group, by id.
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
    """A cache whose files begin anew. is_younger: its configuration, than its last change."""

    name: str
    place: LogPlace
    is_younger: bool
    _least: dict[int, int] = field(default_factory=dict)

    def saw(self, partition: int, counter: int) -> None:
        self._least[partition] = min(counter, self._least.get(partition, counter))

    @property
    def is_new(self) -> bool:
        return self.is_younger and all(count == 1 for count in self._least.values())
