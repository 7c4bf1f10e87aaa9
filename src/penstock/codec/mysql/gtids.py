"""Sets of global transaction ids: MySQL's intervals per server and tag, MariaDB's per domain.

Text forms are the servers' own; the stored form of MySQL is that of the binlog's PREVIOUS_GTIDS
event and of COM_BINLOG_DUMP_GTID.
"""

from __future__ import annotations

import re
import struct
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.codec.mysql.malformed import Malformed

_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_MARIA = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")
NUMBER_MAX = 2**63 - 2
_TAGGED_FORMAT = 1

Source = tuple[str, str]  # a server's uuid, and the tag or ""


@dataclass(slots=True)
class GtidSet:
    """Set of transactions by server, as MySQL has it; gaps are normal.

    Attributes:
        intervals: for each (uuid in lower case, tag), pairs (first, last + 1): sorted, disjoint,
            not touching.
    """

    intervals: dict[Source, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Read `uuid:1-5:7,uuid2:tag:1-3`. Raises Malformed."""
        made = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            words = [word.strip() for word in part.split(":")]
            if not _UUID.fullmatch(words[0]) or len(words) < 2:
                raise Malformed(f"not a GTID set: {text[:100]!r}")
            server, tag = str(uuid.UUID(words[0])), ""
            for word in words[1:]:
                match = _INTERVAL.fullmatch(word)
                if match is None:
                    tag = word.lower()
                    if not _TAG.fullmatch(tag):
                        raise Malformed(f"not a GTID set: {text[:100]!r}")
                    continue
                first, last = int(match[1]), int(match[2] or match[1])
                if not 1 <= first <= last <= NUMBER_MAX:
                    raise Malformed(f"not a GTID interval: {word!r}")
                made.add((server, tag), first, last)
        return made

    @classmethod
    def decode(cls, data: bytes) -> GtidSet:
        """Read the stored form, with or without tags. Raises Malformed."""
        return _Stored(data).whole()

    def add(self, source: Source, first: int, last: int) -> None:
        """Add the transactions from first to last."""
        runs = self.intervals.setdefault(source, [])
        low, high = first, last + 1
        start = bisect_right(runs, (low, low)) if runs else 0
        if start and runs[start - 1][1] >= low:
            start -= 1
        end = start
        while end < len(runs) and runs[end][0] <= high:
            low, high = min(low, runs[end][0]), max(high, runs[end][1])
            end += 1
        runs[start:end] = [(low, high)]

    def update(self, other: GtidSet) -> None:
        """Add all of another set."""
        for source, low, high in other:
            self.add(source, low, high - 1)

    def __iter__(self) -> Iterator[tuple[Source, int, int]]:
        """Yield each interval as (source, first, last + 1), in order."""
        for source in sorted(self.intervals):
            for low, high in self.intervals[source]:
                yield source, low, high

    def contains(self, source: Source, number: int) -> bool:
        """Return whether a transaction is in the set."""
        return any(low <= number < high for low, high in self.intervals.get(source, ()))

    def includes(self, other: GtidSet) -> bool:
        """Return whether all of another set is in this one."""
        return all(
            any(low <= first and behind <= high for low, high in self.intervals.get(source, ()))
            for source, first, behind in other
        )

    def __str__(self) -> str:
        """Return the servers' text form."""
        parts: list[str] = []
        written: tuple[str, str] | None = None
        for (server, tag), low, high in self:
            interval = str(low) if high == low + 1 else f"{low}-{high - 1}"
            if written is None or written[0] != server:
                parts.append(f"{server}:{tag}:{interval}" if tag else f"{server}:{interval}")
            elif written[1] != tag:
                parts[-1] += f":{tag}:{interval}"
            else:
                parts[-1] += f":{interval}"
            written = (server, tag)
        return ",".join(parts)

    def encode(self) -> bytes:
        """Return the stored form; with tags only where the set has any."""
        tagged = any(tag for _, tag in self.intervals)
        count = len(self.intervals)
        head = count << 8 | _TAGGED_FORMAT << 56 | _TAGGED_FORMAT if tagged else count
        parts = [struct.pack("<Q", head)]
        for server, tag in sorted(self.intervals):
            runs = self.intervals[server, tag]
            parts.append(uuid.UUID(server).bytes)
            if tagged:
                parts.append(bytes((len(tag) << 1,)) + tag.encode("ascii"))
            parts.append(struct.pack("<Q", len(runs)))
            parts += [struct.pack("<QQ", low, high) for low, high in runs]
        return b"".join(parts)


class _Stored:
    """Reader of the stored form of a set."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise Malformed
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def whole(self) -> GtidSet:
        head = self.number()
        tagged = head >> 56 == _TAGGED_FORMAT
        count = head >> 8 & 0xFFFF_FFFF_FFFF if tagged else head
        made = GtidSet()
        for _ in range(count):
            server, tag = str(uuid.UUID(bytes=self.take(16))), ""
            if tagged:
                try:
                    tag = self.take(self.take(1)[0] >> 1).decode("ascii")
                except UnicodeDecodeError as error:
                    raise Malformed from error
            for _ in range(self.number()):
                low, high = self.number(), self.number()
                if not 1 <= low < high <= NUMBER_MAX + 1:
                    raise Malformed
                made.add((server, tag), low, high - 1)
        if self.at != len(self.data):
            raise Malformed
        return made


@dataclass(slots=True)
class MariaGtids:
    """Last transaction of each domain, as MariaDB has it. last: domain -> (server id, number)."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MariaGtids:
        """Read `0-1-100,1-2-7`. Raises Malformed."""
        made = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            match = _MARIA.fullmatch(part)
            if match is None:
                raise Malformed(f"not a GTID list: {text[:100]!r}")
            made.add(int(match[1]), int(match[2]), int(match[3]))
        return made

    def add(self, domain: int, server: int, number: int) -> None:
        """Record a transaction as the last one of its domain."""
        self.last[domain] = (server, number)

    def update(self, other: MariaGtids) -> None:
        """Record all of another list."""
        self.last.update(other.last)

    def __str__(self) -> str:
        """Return the servers' text form, by domain."""
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items())
        )
