"""A pipeline's log that a test writes step by step, with links for its consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.pipelines.log import (
    SOURCE,
    Change,
    announced_batch,
    end_point,
    number_rows,
    run_of,
    truncate,
)
from penstock.log import Writer, links, list_segments
from penstock.model import Run


class Log:
    """A pipeline's log that is written step by step. Consumers get links as from the extractor."""

    def __init__(self, root: Path, writer: Any) -> None:
        self.root, self._writer = root, writer
        self._gsn = self._trx = 0

    def write(self, *transactions: list[Change], is_durable: bool = True) -> None:
        """Write transactions, by default durably; the segment stays open."""
        for group in number_rows(list(transactions)):
            rows = [replace(row, gsn=row.gsn + self._gsn, trx=row.trx + self._trx) for row in group]
            self._writer.write(run_of(rows))
            last = rows[-1]
        self._gsn, self._trx = last.gsn, last.trx
        if is_durable:
            self._writer.flush()

    def truncate(self) -> None:
        """Write a transaction that only empties the table."""
        self._trx += 1
        self._writer.write(
            Run(
                end=end_point(self._trx, self._gsn),
                transactions=announced_batch([self._trx]),
                markers=(truncate(self._gsn, self._trx, "item"),),
            )
        )
        self._writer.flush()

    def rotate(self) -> None:
        """Close the segment; the consumers get their links."""
        self._writer.rotate()
        (*_, last) = list_segments(self.root / "log")
        for name in links.registered_consumers(self.root / "cdc"):
            links.link_segment(self.root / "cdc" / name, last.path)

    def remove(self) -> None:
        """Remove all closed segments, as a loader that has applied them."""
        for file in list_segments(self.root / "log"):
            file.path.unlink()


@contextmanager
def log_at(root: Path) -> Iterator[Log]:
    """Yield a new log."""
    with Writer.open(root / "log", log_id=None, source=SOURCE) as writer:
        yield Log(root, writer)
