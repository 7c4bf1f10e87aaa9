"""Segments of a log of a few transactions, for tests of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.pipelines.log import ITEM, SOURCE, Change, number_rows, run_of
from penstock.log import Segment, Writer, open_segment
from penstock.model import Identity, Marker, Run, TableName

FULL = replace(ITEM, name="full", before=(0, 1), identity=Identity.FULL, source_id=7)


def anything(_: TableName) -> bool:
    """Accept every table."""
    return True


def is_full(table: TableName) -> bool:
    """Return whether this is the one table of the filter."""
    return table.name == "full"


def write(folder: Path, *runs: Run) -> Segment:
    """Write these runs as the only segment of a log, and return it, open for reading."""
    with Writer.open(folder / "log", log_id=None, source=SOURCE) as log:
        for run in runs:
            log.write(run)
        log.rotate()
    return open_segment(folder / "log" / "0.ckt")


def write_segment(
    folder: Path,
    groups: Sequence[Sequence[Change]],
    *markers: Marker,
    keys_have_two: bool = False,
) -> Segment:
    """Write transactions as one run each, the markers in the first. keys_have_two:
    see `number_rows`.
    """
    first, *rest = number_rows(groups, keys_have_two=keys_have_two)
    return write(folder, run_of(first, markers=markers), *(run_of(group) for group in rest))
