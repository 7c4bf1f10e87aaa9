"""Events: the compiled classes and their readable twins say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given

from harness.pipelines.consume import write_segment
from harness.pipelines.log import EVENT, ITEM_2, transactions
from penstock.consume import event
from penstock.consume.events import EventReader
from penstock.consume.images import KeyNotSent
from penstock.log import Segment

ALL_COLUMNS = [column.name for column in (*ITEM_2.columns, *EVENT.columns)]
TWINS = (event.Cursor, event.EventCore, event.Row)


def walk_events(kinds: Any, segment: Segment, *, keep_binary: bool) -> list[Any]:
    """Return all that a walk over the events gives."""
    reader = EventReader(segment, lambda _: True, keep_binary=keep_binary)
    groups = iter([reader.group(place) for place in reader.groups.between(0, segment.end.gsn)])

    def more() -> bool:
        group = next(groups, None)
        if group is not None:
            cursor.begin(group.frames, group.rows, group.halves, 0, len(group.rows))
        return group is not None

    cursor = kinds[0](kinds[1], more)
    return [
        [*_describe_event(found), repr(found.value) if not keep_binary else None]
        for found in cursor
    ]


def _describe_event(found: Any) -> list[Any]:
    try:
        key = found.key
    except KeyNotSent as error:
        key = error.message
    value = found.value
    said = [found.row, found.half, found.is_gone, key, found.frame.table]
    if value is None:
        return [*said, None]
    assert isinstance(value, Mapping)
    names = [*value, "no such column"]
    assert [name in value for name in names] == [True] * len(value) + [False]
    assert dict(value) == value
    assert value != 3
    with pytest.raises(KeyError):
        value["no such column"]
    with pytest.raises(TypeError):
        hash(value)
    cells = [(name, value.get(name, "missing")) for name in ALL_COLUMNS]
    assert [name for name, cell in cells if cell != "missing"] == [
        name for name in ALL_COLUMNS if name in value
    ]
    return [
        *said,
        cells,
        list(value.items()),
        list(value.keys()),
        list(value.values()),
    ]


@given(transactions(max_size=4))
def test_twin_and_kernel_say_the_same(tmp_path_factory: Any, groups: Any) -> None:
    """Twin and kernel return equal events, with values of both kinds."""
    assert event.COMPILED
    assert event.event_kernel() != TWINS
    with write_segment(tmp_path_factory.mktemp("log"), groups) as segment:
        for keep_binary in (False, True):
            compiled = walk_events(event.event_kernel(), segment, keep_binary=keep_binary)
            assert compiled == walk_events(TWINS, segment, keep_binary=keep_binary)


def test_the_twin_can_be_asked_for() -> None:
    """PENSTOCK_PURE=1 forbids the kernel."""
    code = "from penstock.consume import event, events; print(events.Cursor is event.Cursor)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "True\n"


def test_a_cursor_stays_in_its_group() -> None:
    """A place after the end of the lists is refused, not read."""
    for cursor_kind, core, _ in (event.event_kernel(), TWINS):
        cursor = cursor_kind(core, lambda: False)
        assert list(cursor) == []
        with pytest.raises(ValueError):
            cursor.begin([], [], [], 0, 1)
