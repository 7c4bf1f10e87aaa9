"""A log that reads a `ChangeServer`: runs of the stream, checked and decoded row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.servers.change_tables import ChangeServer
from penstock.codec.columns import bits
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.engines.sqlserver.source.instances import Book, KnownTables, instances_of
from penstock.engines.sqlserver.source.reader import ChangeReader
from penstock.engines.sqlserver.source.shapes import Shapes
from penstock.engines.sqlserver.source.stream import ChangeStream
from penstock.log.writer import advance, start_of
from penstock.model import FlushPoint, Marker, Op, Relation, Run, TableName
from penstock.model.position import to_ordinal

LACKING = "(not sent)"


@dataclass(frozen=True)
class Seen:
    """Row change of the log. before: of the columns that the log has of old rows."""

    op: str
    table: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass
class ChangeLog:
    """Log in memory. A stream is kept until `reconnect`; what was not flushed is then lost.

    Attributes:
        end: The last flush point.
        runs: All runs up to it.
    """

    server: ChangeServer
    begin: int = 0
    is_whole: bool = False
    takes: Callable[[TableName], bool] = lambda _: True
    count: int = 5000
    row_count: int = 16_384
    caught_up: CaughtUp = field(default_factory=CaughtUp)
    runs: list[Run] = field(default_factory=list)
    pending: list[Run] = field(default_factory=list)
    stream: ChangeStream | None = None
    state: KnownTables | None = None

    def __post_init__(self) -> None:
        """Begin an empty log; its tables are those that are captured now."""
        self.end = FlushPoint(position=self.begin)
        self._sequence = start_of(self.end)
        self.book = Book.load(self.state, self.takes)
        self.shapes = Shapes(self.server.definitions, is_whole=self.is_whole)
        self.reader = ChangeReader(
            self.server.open,
            self.book,
            self.shapes,
            count=self.count,
            row_count=self.row_count,
        )

        session = self.server.open()
        now = instances_of(session.execute(statements.INSTANCES))
        session.close()
        self.book.check(now, self.begin, exists=lambda _: True)
        self.server.sent.clear()

    def open(self) -> ChangeStream:
        """Return the stream; open it at the last flush point if there is none."""
        if self.stream is None:
            self.stream = ChangeStream(
                self.reader, start=self.end, caught_up=self.caught_up, poll_s=0.001
            )
        return self.stream

    def reconnect(self) -> None:
        """Lose the stream, and what was not flushed."""
        self.reader.close()
        self.stream, self.pending = None, []
        self._sequence = start_of(self.end)

    def follow(self, *, runs: int | None = None, flush: bool = True) -> None:
        """Read until nothing more comes, or so many runs. Every run is checked as by the log.

        flush: flush points become durable; if not, `reconnect` loses them.
        """
        stream = self.open()
        while runs is None or runs > 0:
            run = stream.next_run(0)
            if run is None:
                return
            self._sequence = advance(self._sequence, run)
            self.pending.append(run)
            runs = None if runs is None else runs - 1
            if run.end is not None and flush:
                self.flush()

    def flush(self) -> None:
        """Make everything durable that was read; the last run must end at a flush point."""
        end = self.pending[-1].end
        assert end is not None
        self.runs += self.pending
        self.pending, self.end = [], end
        self.open().acknowledge(end.position)

    @property
    def relations(self) -> list[Relation]:
        """Return all relations that were introduced, in order."""
        return [one for run in self.runs for one in run.relations]

    @property
    def markers(self) -> list[Marker]:
        """Return all markers."""
        return [one for run in self.runs for one in run.markers]

    def positions(self) -> list[int]:
        """Return the commit LSNs of all transactions."""
        found = []
        for run in self.runs:
            if run.transactions is not None:
                found += [to_ordinal(one) for one in run.transactions.column(0).to_pylist()]
        return found

    def transactions(self) -> list[list[Seen]]:
        """Return the changes of each transaction, in the log's order."""
        rows: list[tuple[int, int, Seen]] = []
        for run in self.runs:
            for one in run.rows:
                rows += rows_of(one.relation, one.batch)
        rows.sort(key=lambda row: row[0])
        found: list[list[Seen]] = []
        last = 0
        for _, trx, seen in rows:
            if trx != last:
                assert trx > last
                found.append([])
                last = trx
            found[-1].append(seen)
        return found


def rows_of(relation: Relation, batch: Any) -> list[tuple[int, int, Seen]]:
    """Return the rows of a batch with their numbers and transactions."""
    names = [one.name for one in relation.columns]
    told = {relation.columns[at].name for at in relation.before}
    found = []
    for row in batch.to_pylist():
        after, before = row["after"], row["before"]
        if after is not None:
            for at in bits(row["absent"]):
                after[names[at]] = LACKING
        if before is not None:
            before = {name: before[name] if name in told else LACKING for name in names}
        op = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}[Op(row["op"])]
        found.append((row["gsn"], row["trx"], Seen(op, relation.name, before, after)))
    return found
