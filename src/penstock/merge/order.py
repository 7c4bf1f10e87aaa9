"""Order of the inputs' transactions in a merged log. Pure: no I/O, no clock.

Each input's transactions keep their own order: a transaction counts as committed at the latest
commit time up to it. The earliest of all inputs is next, with equal times that of the first input,
and only if no input can have an earlier one any more. So the order follows from the inputs alone,
whenever they are read. Parts of a global transaction wait at the head of their inputs until the
last one is the earliest of all; then they become one. If the parts of two global transactions
would wait for each other, one of them is not joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.model import PenstockError

Ints = npt.NDArray[np.int64]
NEVER = 2**62  # later than any commit


class TransactionLate(PenstockError):
    """A log to merge has a commit that is earlier than the time that the log had announced.

    Fields: input, trx, late_us.
    """

    code = "MG01"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """Global transaction, which joins transactions of several inputs.

    Attributes:
        parts: number of its transactions; 0: unknown.
    """

    id: str
    parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Position in one input: from here it continues as it would have without a restart.

    Attributes:
        trx: the last transaction, by the input's own numbers.
        floor_us: no later transaction counts as earlier than this.
        seen_us: the latest commit time up to trx.
        skips_us: the input joined when everything up to then was merged; its changes of that time
            are left out; 0: none are left.
    """

    trx: int = 0
    floor_us: int = 0
    seen_us: int = 0
    skips_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Transactions that are next.

    Attributes:
        which: the input of each; each input's are in its own order.
        group: the merged transaction of each, from 0; parts of one are side by side.
        times_us: commit time of each.
        weight: approximate number of their rows.
    """

    which: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    times_us: Ints
    weight: float

    @property
    def is_one(self) -> bool:
        """Return whether the round is a single merged transaction."""
        return bool(self.group[-1] == 0)


def _concatenate(rounds: list[Round]) -> Round:
    """Return consecutive rounds as one."""
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
    """Transactions of one input that were read and are not in a round yet.

    Attributes:
        is_ended: nothing more arrives, as far as is known.
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
        """Last transaction that was read."""
        return self.trx + len(self)

    @property
    def resolved_us(self) -> int:
        """Time from which later transactions count."""
        return NEVER if self.is_ended else max(self.seen_us, self.floor_us)

    @property
    def at(self) -> Ints:
        """Times at which the pending transactions count as committed, rising."""
        return self._at[self._head :]

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """Approximate row counts of the pending transactions."""
        return self._weights[self._head :]

    @property
    def position(self) -> Reached:
        """Position up to which its transactions were taken."""
        return Reached(
            trx=self.trx, floor_us=self.floor_us, seen_us=self._given_us, skips_us=self._skips_us
        )

    def append(
        self, times_us: Ints, weights: npt.NDArray[np.float64], found: dict[int, Global]
    ) -> int:
        """Add the transactions after the last read one; return how many are left out at the start.

        Args:
            times_us: commit times.
            weights: row counts.
            found: parts of global transactions, by number.

        Raises:
            TransactionLate: the commit time is too early.
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
            hint="The server's clock was set back. If its order is right, raise "
            "clockSkewSeconds in [merge] above that and start again: nothing was reordered.",
            input=self.name,
            trx=trx,
            late_us=late_us,
        )

    def first_global(self) -> tuple[int, Global] | None:
        """Return the first pending part of a global transaction, and how many are before it."""
        for trx, one in self._globals.items():  # in the order in which they were added
            return trx - self.trx - 1, one
        return None

    def part(self, name: str) -> tuple[int, int] | None:
        """Return the first pending part of a global transaction, as its place in the queue and the
        number of parts that it announces.

        It is how many are before it, and how many parts it announces.
        """
        found = self._by_id.get(name)
        return (found[0] - self.trx - 1, self._globals[found[0]].parts) if found else None

    def raw_us(self, place: int) -> int:
        """Return the commit time of a pending transaction."""
        return int(self._raw[self._head + place])

    def take(self, count: int) -> Ints:
        """Take the next `count` transactions; return their commit times."""
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
        """Set the time up to which others went on without this input; earlier commits are late."""
        self.raise_floor(at_us)
        self.seen_us = max(self.seen_us, at_us)
        self._given_us = max(self._given_us, at_us)

    def raise_floor(self, at_us: int) -> None:
        """Let the remaining transactions count as committed at this time at the earliest."""
        self.floor_us = max(self.floor_us, at_us)
        end = self._head + int(np.searchsorted(self.at, self.floor_us))
        self._at[self._head : end] = self.floor_us


@dataclass
class Order:
    """Returns the inputs' transactions in rounds.

    Attributes:
        holding: the inputs that must be read next, by number, if there was no round.
        unjoined_count: parts that were returned alone although others were announced or known.
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
        """Return the next round; None if an input has to be read first, see holding.

        Its weight is at most weight_max, unless one transaction has more.
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
            return _concatenate(rounds)
        return rounds[0] if rounds else None

    def _step(self, room: float) -> Round | None:
        """Return the next transactions within a weight of `room`; at infinite room, any."""
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
        """Return time and input up to which everything is known."""
        known = [(q.resolved_us, i) for i, q in enumerate(self.queues) if i not in self._blocked]
        return min(known, default=(NEVER, 0))

    def _first_part(self) -> tuple[int, int, int] | None:
        """Return the earliest pending part that does not wait: its time, input and place there."""
        found = []
        for index, queue in enumerate(self.queues):
            first = queue.first_global() if index not in self._blocked else None
            if first is not None:
                found.append((int(queue.at[first[0]]), index, first[0]))
        return min(found, default=None)

    def _count(self, index: int, limit: tuple[int, int], part: tuple[int, int, int] | None) -> int:
        """Return how many of an input's transactions are before the limit, and before a part."""
        at = self.queues[index].at
        count = int(np.searchsorted(at, limit[0], "right" if index <= limit[1] else "left"))
        if part is None:
            return count
        if index == part[1]:
            return min(count, part[2])
        side = "right" if index < part[1] else "left"
        return min(count, int(np.searchsorted(at, part[0], side)))  # type: ignore[call-overload]

    def _plain(self, counts: list[int], room: float) -> Round | None:
        """Return this many transactions of each input, merged, as far as there is room."""
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
        """Decide on the earliest part of all, which is at the head of an input.

        Returns a round with it; True if it waits for other parts; None if inputs must be read
        first, or there is no room.
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
            return self._join(sorted((*others, index)), int(queue.at[0]), room)
        self._members[name] = frozenset((*others, index))
        if self._would_wait_for_ever(index, name):
            found = self._alone(index, room, lacks=True)
            if found is not None:
                self._release(name)
            return found
        self._blocked[index] = name
        return True

    def _others(self, index: int, name: str, time_us: int) -> tuple[list[int], list[int], int]:
        """Return the inputs that have another part, those that may still have one, and the
        announced number of parts.
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
        """Return whether waiting for a part closes a circle, because that part waits, directly or
        indirectly, for this one.
        """
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

    def _join(self, indexes: list[int], at_us: int, room: float) -> Round | None:
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
