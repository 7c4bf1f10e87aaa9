"""Histories of a lake's tables in tests: replayed, and compared with the log's changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.log.changes import ABSENT, ChangeLog
from penstock.model import Relation

Row = tuple[Any, ...]
Rows = Sequence[Mapping[str, Any]]
HEADS = ("_gsn", "_step", "_trx", "_commit_time", "_op", "_absent")


def in_order(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the rows of a history in the order of its documentation."""
    return sorted(rows, key=lambda row: (row["_gsn"], row["_step"]))


def replay(rows: Rows, key: Sequence[str]) -> list[Row]:
    """Return the table that a history leads to, as `Table.content` has it.

    key: names of the key's columns; empty for a table without one.
    """
    state: dict[Row, Row] = {}
    bag: Counter[Row] = Counter()
    for row in in_order(rows):
        values = tuple(value for name, value in row.items() if name not in HEADS)
        identity = tuple(row[name] for name in key)
        match row["_op"]:
            case "truncate":
                state.clear()
                bag.clear()
            case "delete":
                if key:
                    assert state.pop(identity, None) is not None, (identity, row)
                else:
                    assert bag[values] > 0, row
                    bag[values] -= 1
            case "insert" | "read" | "update" as op:
                assert not key or (identity in state) == (op == "update"), row
                state[identity] = values
                bag[values] += 1
            case other:
                raise AssertionError(other)
    return sorted(state.values() if key else bag.elements(), key=repr)


def check_changes(rows: Rows, log: Path, shape: Relation) -> None:
    """Compare a history with the changes of its table in the log: each is there once, whole.

    Values that the source did not send are compared by `replay`.
    """
    key = [shape.columns[index].name for index in shape.key]
    expected: list[Any] = []
    for change in ChangeLog(log, is_wide=lambda _: False):
        if change.table == shape.full_name:
            expected += _rows_of(change, key)
    found = [row for row in in_order(rows) if row["_op"] != "read"]
    told = [(row["_gsn"], row["_trx"], row["_commit_time"], row["_op"]) for row in found]
    assert told == [one[:4] for one in expected]
    for row, (*_, sent) in zip(found, expected, strict=True):
        assert row["_absent"] is None
        assert {name: row[name] for name in sent} == sent, row


def _rows_of(change: Any, key: Sequence[str]) -> list[Any]:
    """Return the rows that a change of the log becomes."""
    row, before = (
        {name: value for name, value in (image or {}).items() if value is not ABSENT}
        for image in (change.row, change.before)
    )
    head = (change.gsn, change.trx, change.commit_time)
    is_moved = (
        change.op == "update"
        and before
        and (not key or any(before[name] != row[name] for name in key))
    )
    if not is_moved:
        return [(*head, change.op, row)]
    return [(*head, "delete", before), (*head, "insert", row)]
