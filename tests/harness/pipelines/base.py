"""A log that begins with a base, whose tables are read at the log's end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harness.pipelines.log import (
    ITEM,
    SOURCE,
    Change,
    commit_position,
    number_rows,
    run_of,
    truncate,
)
from harness.servers.serve import holder, source_log, write_base
from penstock.base.held import HeldState
from penstock.base.manifest import BasePlace, Manifest, load_manifest, save_manifest
from penstock.load.base import Compaction
from penstock.load.session import Session
from penstock.log import Writer, WriterOptions, links
from penstock.model import Marker, Op, Relation, TableName

OLD = [(n, f"old {n}") for n in range(100, 110)]


class Inline:
    """A session that runs its tasks at once."""

    parallelism = 2

    def run(
        self,
        partitions: Sequence[Sequence[Any]],
        work: Callable[[Iterator[Any]], Iterable[Any]],
        *,
        description: str = "",
    ) -> list[Any]:
        """Run the tasks as Spark's workers do."""
        assert description
        return [one for partition in partitions for one in work(iter(partition))]


def change(op: Op, row: tuple[Any, ...] | None, relation: Relation = ITEM, **more: Any) -> Change:
    """Return one row's change."""
    return Change(relation=relation, op=op, after=row, **more)


def move_key(key: int, row: tuple[Any, ...], **more: Any) -> Change:
    """Return an update of a row's key."""
    return change(Op.UPDATE, row, before=(key,), **more)


class Log:
    """A log that begins with a base, and has links for it."""

    def __init__(self, root: Path, tables: dict[Relation, list[tuple[Any, ...]]]) -> None:
        self.root = root
        self.place = BasePlace(
            directory=root / "base", links=root / "cdc" / "base", extension="ckt"
        )
        links.enable(self.place.links)
        with self.writer() as writer:
            log_id = writer.log_id
        write_base(root, tables, log_id)
        self.compaction = Compaction(self.place)

    def writer(self) -> Writer:
        """Open the writer of its next segment."""
        options = WriterOptions(consumers=self.root / "cdc")
        return Writer.open(self.root / "log", log_id=None, source=SOURCE, options=options)

    def write(
        self,
        *groups: list[Change],
        empties: str = "",
        mark: Callable[[int, int, str], Marker] = truncate,
    ) -> None:
        """Write transactions into a segment of their own, after a table was emptied."""
        with self.writer() as writer:
            start = writer.end
            found = number_rows(groups, keys_have_two=True)
            for group in found:
                rows = [
                    replace(
                        row,
                        gsn=row.gsn + start.gsn,
                        trx=row.trx + start.trx,
                        position=commit_position(row.trx + start.trx),
                    )
                    for row in group
                ]
                marks = [mark(start.gsn, rows[0].trx, empties)] if empties else []
                writer.write(run_of(rows, markers=marks))
                empties = ""
            writer.flush()
            writer.rotate()

    @property
    def manifest(self) -> Manifest:
        """Manifest of the present base."""
        found = load_manifest(self.place.directory)
        assert found is not None
        return found

    def copied_at(self, trx: int, *, settled: int = 0) -> None:
        """Let the base's rows be those before a transaction.

        settled: or of any moment between the two.
        """
        manifest = self.manifest
        tables = tuple(
            replace(
                table,
                ordinal=str(commit_position(trx)),
                settled=str(commit_position(max(settled, trx))),
            )
            for table in manifest.tables
        )
        save_manifest(self.place.directory, replace(manifest, tables=tables))

    @contextmanager
    def hold_state(self) -> Iterator[HeldState]:
        """Hold the state at the log's end."""
        with closing(source_log(self.root)) as log:
            head = log.head()
        found = holder(self.root).hold(head.log_id, head.number, head.end, is_open=head.is_open)
        try:
            yield found
        finally:
            found.release()

    @staticmethod
    def read(held: HeldState, relation: Relation) -> Counter[tuple[Any, ...]]:
        """Return a table's rows in a state, counted."""
        pieces = held.pieces(TableName(relation.schema, relation.name))
        return Counter(tuple(row.values()) for piece in pieces for row in piece.rows.to_pylist())

    def rows(self, relation: Relation) -> Counter[tuple[Any, ...]]:
        """Return a table's rows at the log's end, counted."""
        with self.hold_state() as held:
            return self.read(held, relation)

    def step(self) -> Manifest:
        """Add all closed segments to the base."""
        manifest = self.manifest
        return self.compaction.step(
            cast("Session", Inline()), manifest, self.compaction.waiting(manifest)
        )
