"""Which transactions of which input come next in a merged log. Pure: no I/O, no clock.

Each input's transactions keep their own order: one counts as committed at the latest commit time up
to it. Of all inputs the earliest comes next, of equal times that of the first input, and only when
no input can bring an earlier one any more. So the order follows from the inputs alone, whenever
they are read. Parts of a global transaction wait at the head of their inputs until the last one is
the earliest of all; then they are one. Where the parts of two would wait for each other, one of
them is not joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.model import PenstockError

Ints = npt.NDArray[np.int64]
NEVER = 2**62  # later than any commit


class TransactionLate(PenstockError):
    """A log to merge brought a commit that is earlier than what it had said to be its time.

    fields: input, trx, late_us.
    """

    code = "MG01"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """What makes transactions of several inputs one. parts: of how many; 0: not known."""

    id: str
    parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far one input was given out: what goes on from there behaves as before.

    trx: the last one, by the input's own numbers. floor_us: nothing behind it counts as earlier.
    seen_us: the latest commit time up to it. skips_us: the input joined when everything up to then
    was merged; what it has of that time is left out; 0: there is no more of it.
    """

    trx: int = 0
    floor_us: int = 0
    seen_us: int = 0
    skips_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Transactions that come next. which: the input of each, each input's in its own order.

    group: which merged transaction each is of, from 0; parts of one are side by side. times_us:
    when each was committed. weight: about how many rows they have.
    """

    which: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    times_us: Ints
    weight: float

    @property
    def is_one(self) -> bool:
        """Whether it is one merged transaction."""
        return bool(self.group[-1] == 0)


def _concatenated(rounds: list[Round]) -> Round:
    """Rounds that follow each other as one."""
    groups, count = [], 0
    for one in rounds:
        groups.append(one.group + count)
        count += int(one.group[-1]) + 1
    return Round(
        which=np.concatenate([one.which for one in rounds]),
        group=np.concatenate(groups),
        times_us=np.concatenate([one.times_us for one in rounds]),
        weight=sum(one.weight for one in rounds),
    )


class InputQueue:
    """Transactions of one input that were read and not given out.

    is_ended: nothing more comes, as far as is known.
    """

    def __init__(self, name: str, reached: Reached, *, skew_us: int) -> None:
        self.name = name
        self.trx = reached.trx
        self.floor_us = max(reached.floor_us, reached.skips_us)
        self.seen_us = self._given_us = max(reached.seen_us, reached.skips_us)
        self.is_ended = False
        self._skips_us = reached.skips_us
        self._skew_us = skew_us
        self._raw = np.zeros(0, np.int64)
        self._high = np.zeros(0, np.int64)
        self._at = np.zeros(0, np.int64)
        self._weights = np.zeros(0, np.float64)
        self._head = 0
        self._globals: dict[int, Global] = {}
        self._by_id: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._raw) - self._head

    @property
    def read_trx(self) -> int:
        """The last transaction that was read."""
        return self.trx + len(self)

    @property
    def resolved_us(self) -> int:
        """Nothing that comes counts as earlier than this."""
        return NEVER if self.is_ended else max(self.seen_us, self.floor_us)

    @property
    def at(self) -> Ints:
        """When the pending ones count as committed, rising."""
        return self._at[self._head :]

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """About how many rows the pending ones have."""
        return self._weights[self._head :]

    @property
    def reached(self) -> Reached:
        """How far it was given out."""
        return Reached(
            trx=self.trx, floor_us=self.floor_us, seen_us=self._given_us, skips_us=self._skips_us
        )

    def append(
        self, times_us: Ints, weights: npt.NDArray[np.float64], found: dict[int, Global]
    ) -> int:
        """Add those behind the last read one; how many of the first are left out.

        found: by number, those that are parts of global ones. Raises TransactionLate.
        """
        self.is_ended = False
        high = np.maximum.accumulate(np.maximum(times_us, self.seen_us))
        left_out = int(np.searchsorted(high, self._skips_us, "right")) if self._skips_us else 0
        late = left_out + np.flatnonzero((high - times_us)[left_out:] > self._skew_us)
        if len(late):
            raise self._late(int(late[0]), int(high[late[0]] - times_us[late[0]]))
        self.trx += left_out
        if left_out < len(high):
            self._skips_us = 0
        first = self.read_trx + 1
        for trx, one in found.items():
            if trx >= first:
                self._globals[trx] = one
                self._by_id.setdefault(one.id, []).append(trx)
        kept = slice(left_out, None)
        at = np.maximum(high, max(self.floor_us, int(self.at[-1]) if len(self) else 0))
        self._raw = np.concatenate([self._raw[self._head :], times_us[kept]])
        self._high = np.concatenate([self._high[self._head :], high[kept]])
        self._at = np.concatenate([self.at, at[kept]])
        self._weights = np.concatenate([self.weights, weights[kept]])
        self._head = 0
        if len(high):
            self.seen_us = int(high[-1])
        return left_out

    def _late(self, place: int, late_us: int) -> TransactionLate:
        trx = self.read_trx + 1 + place
        return TransactionLate(
            f"transaction {trx} of {self.name} was committed {late_us / 1e6:.3f} s before one that "
            f"is in front of it; clockSkewSeconds allows {self._skew_us / 1e6:g}",
            hint="The server's clock was set back. If its order is right as it is, raise "
            "clockSkewSeconds in [merge] above that and start again: nothing was reordered.",
            input=self.name,
            trx=trx,
            late_us=late_us,
        )

    def first_global(self) -> tuple[int, Global] | None:
        """The first pending part of a global one: how many are in front of it."""
        for trx, one in self._globals.items():  # in order: they were added so
            return trx - self.trx - 1, one
        return None

    def part(self, name: str) -> tuple[int, int] | None:
        """The first pending part of this global transaction.

        How many are in front of it, and of how many parts it says that it is one.
        """
        found = self._by_id.get(name)
        return (found[0] - self.trx - 1, self._globals[found[0]].parts) if found else None

    def raw_us(self, place: int) -> int:
        """The commit time of a pending one."""
        return int(self._raw[self._head + place])

    def take(self, count: int) -> Ints:
        """Give out so many; returns their commit times."""
        taken = self._raw[self._head : self._head + count]
        if count:
            self._given_us = int(self._high[self._head + count - 1])
            self.floor_us = max(self.floor_us, int(self._at[self._head + count - 1]))
        self._head += count
        self.trx += count
        while self._globals and (first := next(iter(self._globals))) <= self.trx:
            one = self._globals.pop(first)
            left = self._by_id[one.id][1:]
            if left:
                self._by_id[one.id] = left
            else:
                del self._by_id[one.id]
        return taken

    def claim(self, at_us: int) -> None:
        """Others went on up to this time without it: what is committed before that is late."""
        self.raise_floor(at_us)
        self.seen_us = max(self.seen_us, at_us)
        self._given_us = max(self._given_us, at_us)

    def raise_floor(self, at_us: int) -> None:
        """What is left counts as committed at this time at the earliest."""
        self.floor_us = max(self.floor_us, at_us)
        end = self._head + int(np.searchsorted(self.at, self.floor_us))
        self._at[self._head : end] = self.floor_us


@dataclass
class Order:
    """Gives out the inputs' transactions, in rounds.

    holding: the inputs that had to be read on, by number, when there was no round. unjoined_count:
    parts that were given out alone although others were said or known to exist.
    """

    queues: list[InputQueue]
    join_us: int
    skew_us: int
    weight_max: float
    watermark_us: int = 0
    unjoined_count: int = 0
    joined_count: int = 0
    holding: frozenset[int] = frozenset()
    _blocked: dict[int, str] = field(default_factory=dict)
    _members: dict[str, frozenset[int]] = field(default_factory=dict)

    def next(self) -> Round | None:
        """The next round; None where an input has to be read first, see holding.

        Of weight_max at most, but for one transaction that has more.
        """
        rounds: list[Round] = []
        room = self.weight_max
        while room > 0:
            one = self._step(np.inf if not rounds else room)
            if one is None:
                break
            rounds.append(one)
            room -= one.weight
        if len(rounds) > 1:
            return _concatenated(rounds)
        return rounds[0] if rounds else None

    def _step(self, room: float) -> Round | None:
        """What comes next, if it is of no more weight than room; infinite: whatever it is."""
        self.holding = frozenset()
        while True:
            limit = self._limit()
            part = self._first_part()
            counts = [
                0 if index in self._blocked else self._count(index, limit, part)
                for index in range(len(self.queues))
            ]
            if any(counts):
                return self._plain(counts, room)
            if part is None or (part[0], part[1]) > limit:
                self.holding = frozenset({limit[1]}) if limit[0] < NEVER else frozenset()
                return None
            found = self._decide(part[1], room)
            if isinstance(found, Round) or found is None:
                return found

    def _limit(self) -> tuple[int, int]:
        """What is at or before this time and input is known in full."""
        known = [(q.resolved_us, i) for i, q in enumerate(self.queues) if i not in self._blocked]
        return min(known, default=(NEVER, 0))

    def _first_part(self) -> tuple[int, int, int] | None:
        """The earliest pending part that is not waiting: its time, input and place there."""
        found = []
        for index, queue in enumerate(self.queues):
            first = queue.first_global() if index not in self._blocked else None
            if first is not None:
                found.append((int(queue.at[first[0]]), index, first[0]))
        return min(found, default=None)

    def _count(self, index: int, limit: tuple[int, int], part: tuple[int, int, int] | None) -> int:
        """How many of an input's come before the limit, and before a part."""
        at = self.queues[index].at
        count = int(np.searchsorted(at, limit[0], "right" if index <= limit[1] else "left"))
        if part is None:
            return count
        if index == part[1]:
            return min(count, part[2])
        side = "right" if index < part[1] else "left"
        return min(count, int(np.searchsorted(at, part[0], side)))  # type: ignore[call-overload]

    def _plain(self, counts: list[int], room: float) -> Round | None:
        """So many of each input, merged, as far as there is room."""
        chosen = [(i, self.queues[i], n) for i, n in enumerate(counts) if n]
        which = np.concatenate([np.full(n, i, np.int64) for i, _, n in chosen])
        at = np.concatenate([queue.at[:n] for _, queue, n in chosen])
        weights = np.concatenate([queue.weights[:n] for _, queue, n in chosen])
        order = np.lexsort((which, at))
        reach = np.cumsum(weights[order])
        size = int(np.searchsorted(reach, min(room, self.weight_max), "right"))
        if not size and room < np.inf:
            return None
        size = max(size, 1)
        order = order[:size]
        which = which[order]
        times = np.empty(size, np.int64)
        for index, queue, _ in chosen:
            here = which == index
            times[here] = queue.take(int(here.sum()))
        self.watermark_us = max(self.watermark_us, int(at[order[-1]]))
        return Round(
            which=which, group=np.arange(size), times_us=times, weight=float(reach[size - 1])
        )

    # -- global transactions -----------------------------------------------------------------

    def _decide(self, index: int, room: float) -> Round | bool | None:
        """What becomes of the part at the head of an input, the earliest of all.

        A round of it; True: it waits for its others; None: inputs have to be read first, or there
        is no room.
        """
        queue = self.queues[index]
        first = queue.first_global()
        assert first is not None, "it is the earliest"
        name, time_us = first[1].id, queue.raw_us(0)
        others, unread, told = self._others(index, name, time_us)
        parts = max(first[1].parts, told)
        if unread and not (parts and len(others) + 1 >= parts):
            self.holding = frozenset(unread)
            return None
        if not others:
            return self._alone(index, room, lacks=parts > 1)
        if all(self._blocked.get(other) == name for other in others):
            return self._joined(sorted((*others, index)), int(queue.at[0]), room)
        self._members[name] = frozenset((*others, index))
        if self._would_wait_for_ever(index, name):
            found = self._alone(index, room, lacks=True)
            if found is not None:
                self._release(name)
            return found
        self._blocked[index] = name
        return True

    def _others(self, index: int, name: str, time_us: int) -> tuple[list[int], list[int], int]:
        """The inputs that have another part, those that may still bring one, and the number of
        parts that these parts tell.
        """
        others, unread, told = [], [], 0
        for other, queue in enumerate(self.queues):
            if other == index:
                continue
            part = queue.part(name)
            if part is not None and abs(queue.raw_us(part[0]) - time_us) <= self.join_us:
                others.append(other)
                told = max(told, part[1])
            elif not queue.is_ended and queue.seen_us <= time_us + self.join_us + self.skew_us:
                unread.append(other)
        return others, unread, told

    def _would_wait_for_ever(self, index: int, name: str) -> bool:
        """Whether a part waited for is behind one that waits, at last, for this one."""
        blocked = {**self._blocked, index: name}
        seen, left = {name}, [name]
        while left:
            one = left.pop()
            for member in self._members[one]:
                behind = blocked.get(member)
                if behind is None or behind == one:
                    continue
                if behind == name:
                    return True
                if behind not in seen:
                    seen.add(behind)
                    left.append(behind)
        return False

    def _release(self, name: str) -> None:
        self._members.pop(name, None)
        self._blocked = {at: one for at, one in self._blocked.items() if one != name}

    def _alone(self, index: int, room: float, *, lacks: bool) -> Round | None:
        queue = self.queues[index]
        weight = float(queue.weights[0])
        if weight > room:
            return None
        self.unjoined_count += lacks
        self.watermark_us = max(self.watermark_us, int(queue.at[0]))
        return Round(
            which=np.array([index], np.int64),
            group=np.zeros(1, np.int64),
            times_us=queue.take(1).copy(),
            weight=weight,
        )

    def _joined(self, indexes: list[int], at_us: int, room: float) -> Round | None:
        weight = sum(float(self.queues[index].weights[0]) for index in indexes)
        if weight > room:
            return None
        times = [self.queues[index].take(1)[0] for index in indexes]
        for index in indexes:
            self.queues[index].raise_floor(at_us)
        self._release(next(iter({self._blocked[i] for i in indexes if i in self._blocked})))
        self.watermark_us = max(self.watermark_us, at_us)
        self.joined_count += 1
        return Round(
            which=np.array(indexes, np.int64),
            group=np.zeros(len(indexes), np.int64),
            times_us=np.array(times, np.int64),
            weight=weight,
        )
