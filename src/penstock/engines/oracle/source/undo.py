"""Rows that survive in a committed transaction: those that no undo row reverses.

An undo row (ROLLBACK 1) reverses the latest surviving earlier row of its row id with the opposite
operation: DELETE an INSERT, INSERT a DELETE, UPDATE an UPDATE or the rows by which one statement
wrote one large object. Rows are read backwards: an undo row is noted, and the next row to which it
applies is the one that it reverses. So a transaction of any size needs no index of its rows.

RS_ID of an undo row is its own, and the order of undo rows between row ids is any (reference,
section 7). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.codec.oracle.mined_rows import Operation
from penstock.engines.oracle.source.entries import OPERATION, UNDO, Entry, Transaction
from penstock.engines.oracle.source.kept_rows import LOBS
from penstock.engines.oracle.source.lobs import Group

_REVERSED = {
    Operation.INSERT: Operation.DELETE,
    Operation.DELETE: Operation.INSERT,
    Operation.UPDATE: Operation.UPDATE,
}
Labels = Sequence[Mapping[int, Group]]
"""For each part of a transaction, its rows of large objects by their place."""


def find_survivors(transaction: Transaction, labels: Labels) -> list[bytearray]:
    """Return for each part of a transaction a byte per row: 1 if it survives.

    Groups of large objects that do not survive are marked. Undo rows never survive.
    """
    undone: Counter[tuple[str, int]] = Counter()
    masks: list[bytearray] = []
    for number in reversed(range(transaction.frame_count)):
        entries = transaction.frame(number)
        mask = bytearray(len(entries))
        groups = labels[number] if labels else {}
        for at in range(len(entries) - 1, -1, -1):
            group = groups.get(at)
            if group is not None:
                mask[at] = _survives(group, undone)
            else:
                mask[at] = _is_kept(entries[at], undone)
        masks.append(mask)
    masks.reverse()
    return masks


def _is_kept(entry: Entry, undone: Counter[tuple[str, int]]) -> bool:
    operation = entry.code & OPERATION
    if entry.code & UNDO:
        undone[(entry.row_id, _REVERSED[Operation(operation)])] += 1
        return False
    if operation in LOBS:
        return False  # it opens a large object, and changes nothing
    if not undone:
        return True
    key = entry.row_id, operation
    count = undone.get(key, 0)
    if not count:
        return True
    if count == 1:
        del undone[key]
    else:
        undone[key] = count - 1
    return False


def _survives(group: Group, undone: Counter[tuple[str, int]]) -> bool:
    """Return whether a group survives; decided by its last row, which comes first here."""
    if group.is_decided:
        return not group.is_undone
    group.is_decided = True
    key = group.row_id, Operation.UPDATE
    count = undone.get(key, 0) if group.has_undo else 0
    if count == 1:
        del undone[key]
    elif count:
        undone[key] = count - 1
    group.is_unborn = bool(undone.get((group.row_id, Operation.INSERT)))
    group.is_undone = bool(count) or group.is_unborn
    return not group.is_undone
