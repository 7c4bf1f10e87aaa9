"""Binlog files of real servers decode to the rows that these servers printed."""

from __future__ import annotations

import pytest

from harness.twins.binlog import (
    DATA,
    DECODERS,
    Recorded,
    Replica,
    Row,
    assert_same_value,
    recorded_files,
    recorded_tables,
)
from penstock.model import Relation

NAMES = sorted({path.name.removesuffix(".jsonl.xz") for path in DATA.glob("*.jsonl.xz")})


def follow(kind: str, name: str, tables: dict[str, Recorded], **more: bool) -> Replica:
    """Feed all files of a recording through one decoder."""
    replica = Replica(DECODERS[kind](partial_inserts=True), tables, **more)
    for file_name, data in recorded_files(name):
        replica.follow_file(file_name, data)
    return replica


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_recorded_changes_make_the_tables_that_the_server_has(kind: str, name: str) -> None:
    """Every type, image and kind of event is decoded, from the first event to the last."""
    tables = recorded_tables(name)
    replica = follow(kind, name, tables)
    for table, recorded in tables.items():
        content = replica.contents.get(table, [])
        assert len(content) == len(recorded.rows), table
        for relation, row in content:
            shape = relation if len(relation.columns) == len(row) else content[-1][0]
            assert_recorded(shape, row, recorded)


def assert_recorded(relation: Relation, row: Row, recorded: Recorded) -> None:
    """Remove the row from the recorded ones; if it is missing, the error shows the most similar
    row.
    """
    reasons = []
    for place, expected in enumerate(recorded.rows):
        try:
            for index, text in enumerate(expected):
                name = recorded.columns[index]["name"]
                assert_same_value(relation, index, row[name], text)
        except AssertionError as error:
            reasons.append((index, str(error)))
        else:
            del recorded.rows[place]
            return
    raise AssertionError(max(reasons))
