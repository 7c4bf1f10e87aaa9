"""Order of runs, checked before anything is written. Pure.

GSNs are one higher each, or two higher if an update with a before image takes one for its old key.
Transactions are dense and each is announced. Flush points never go back. A run that breaks this
would be loaded wrongly much later; here it still stops the source at the place where it happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.transactions import never_fall
from penstock.model import FlushPoint, Op, PenstockError, Rows, Run
from penstock.model.position import to_ordinal


class RunInvalid(PenstockError):
    """A run does not continue the log: numbers are missing or twice, or a position goes back."""

    code = "LG07"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Present end of the log.

    Attributes:
        gsn: number of the last row.
        trx: the highest transaction seen.
        announced: the last transaction whose commit position is known.
        end: the last end of a run.
        position: of the last announced transaction; 0 before any.
        at_commit: the last run ended where a transaction ends.
    """

    gsn: int
    trx: int
    announced: int
    end: FlushPoint
    position: int = 0
    at_commit: bool = True


def start_of(point: FlushPoint) -> Sequence:
    """Return the sequence directly after a flush point."""
    return Sequence(gsn=point.gsn, trx=point.trx, announced=point.trx, end=point)


def advance(last: Sequence, run: Run) -> Sequence:
    """Return the sequence after a run. Raises RunInvalid if the run does not follow `last`."""
    gsn = _last_number(last.gsn, run.rows)
    trx = last.trx
    for rows in run.rows:
        low, high = _bounds(rows)
        if low <= last.announced:
            raise _invalid(f"transaction {low} in {rows.relation.full_name}", last)
        trx = max(trx, high)
    for marker in run.markers:
        if not last.gsn <= marker.gsn <= gsn or marker.trx < last.end.trx:
            raise _invalid(f"{marker.kind} marker behind row {marker.gsn}", last)
        trx = max(trx, marker.trx)
    announced, position = _find_announced(last, run)
    if run.end is None:
        if trx > announced + 1:
            raise _invalid(
                f"transaction {trx} behind transaction {announced}, the last announced", last
            )
        return replace(
            last, gsn=gsn, trx=trx, announced=announced, position=position, at_commit=False
        )
    end = run.end
    if end.gsn != gsn or end.trx < trx or end.position < last.end.position:
        raise _invalid(f"flush point {end} behind row {gsn}, transaction {trx}", last)
    if end.trx != announced:
        raise _invalid(
            f"flush point {end} behind transaction {announced}, the last announced", last
        )
    return Sequence(gsn=gsn, trx=end.trx, announced=announced, end=end, position=position)


def _find_announced(last: Sequence, run: Run) -> tuple[int, int]:
    """Return the last transaction that is announced in this run, and its position."""
    if run.transactions is None or not run.transactions.num_rows:
        return last.announced, last.position
    positions = run.transactions.column(0)
    first, final = (to_ordinal(positions[at].as_py()) for at in (0, len(positions) - 1))
    if first < last.position or not never_fall(positions):
        raise _invalid(f"transaction {last.announced + 1} at a lower position", last)
    return last.announced + len(positions), final


def _last_number(last: int, batches: tuple[Rows, ...]) -> int:
    """Return the number of the last row; rows are last + 1, last + 2, ... over all batches.

    Only an update with a before image may leave one number out directly before its own: that of
    the old key's row.
    """
    columns = [rows.batch.column(0) for rows in batches]
    count = sum(len(column) for column in columns)
    if not all(len(column) for column in columns):
        raise RunInvalid("a batch without rows", hint=_HINT)
    for rows, column in zip(batches, columns, strict=True):
        steps = pc.min(pc.pairwise_diff(column)).as_py()
        if column.null_count or (steps is not None and steps < 1):
            raise RunInvalid(f"rows of {rows.relation.full_name} are not in order", hint=_HINT)
    if not count:
        return last
    numbers = columns[0] if len(columns) == 1 else _merge_numbers(columns)
    low, high = numbers[0].as_py(), numbers[count - 1].as_py()
    dense = len(columns) == 1 or count == 1 or pc.min(pc.pairwise_diff(numbers)).as_py() == 1
    dense = dense and low == last + 1 and high == last + count
    if not dense and not _only_keys_lack(last, batches):
        raise RunInvalid(
            f"rows numbered {low} to {high} ({count}) do not follow row {last}", hint=_HINT
        )
    return int(high)


def _only_keys_lack(last: int, batches: tuple[Rows, ...]) -> bool:
    """Return whether each number follows the previous one, or is the second of an update."""
    numbers = np.concatenate([rows.batch.column("gsn").to_numpy() for rows in batches])
    order = np.argsort(numbers, kind="stable")
    steps = np.diff(numbers[order], prepend=last)
    two = np.concatenate([_with_before(rows) for rows in batches])[order]
    return bool(((steps == 1) | (two & (steps == 2))).all())


def _with_before(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are updates with a before image."""
    updates = rows.batch.column("op").to_numpy() == Op.UPDATE
    found: npt.NDArray[np.bool_] = updates & np.asarray(rows.batch.column("before").is_valid())
    return found


def _merge_numbers(columns: list[Any]) -> Any:
    numbers = pa.concat_arrays(columns)
    return numbers.take(pc.array_sort_indices(numbers))


def _bounds(rows: Rows) -> tuple[int, int]:
    """Return the first and the last transaction; raise RunInvalid if they do not rise."""
    column = rows.batch.column(1)
    steps = pc.min(pc.pairwise_diff(column)).as_py()
    if column.null_count or (steps is not None and steps < 0):
        raise RunInvalid(f"transactions of {rows.relation.full_name} are not in order", hint=_HINT)
    return column[0].as_py(), column[len(column) - 1].as_py()


_HINT = "This is a defect in penstock: nothing was written; please report it with this message."


def _invalid(what: str, last: Sequence) -> RunInvalid:
    return RunInvalid(
        f"{what} does not follow row {last.gsn}, transaction {last.end.trx}, "
        f"position {last.end.position}",
        hint=_HINT,
    )
