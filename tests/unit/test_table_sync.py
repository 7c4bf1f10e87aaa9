"""Table syncs: the sequence of states, and what batches leave out."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from penstock.load.table_sync import (
    TableSyncFlow,
    has_met,
    isolate,
    left_out,
    moves,
    next_state,
    segment_needed,
)
from penstock.model import TableName
from penstock.model.table_requests import (
    Capture,
    CaptureAnswer,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.target import Applied, SyncState, TableSync

T = TableName("public", "t")
NO_ANSWERS = CaptureAnswers()
HERE = Applied(segment=7, gsn=700, trx=70, position=7000)


def row(state: SyncState, **more: object) -> TableSync:
    """Return a row of the target's table."""
    return replace(TableSync(table=T, state=state), **more)  # type: ignore[arg-type]


def request(**more: object) -> TableRequest:
    """Return a request."""
    return replace(TableRequest(table=T), **more)  # type: ignore[arg-type]


def make_answer(number: int) -> CaptureAnswers:
    """Return the answer that the extractor has captured it."""
    return CaptureAnswers(tables=(CaptureAnswer(table=T, capture_id=number),))


ADDED = request(capture=Capture.ADDED, capture_id=3, copy_id=3)
REMOVED = request(capture=Capture.REMOVED, capture_id=4)


@pytest.mark.parametrize(
    ("before", "wanted", "answers", "after"),
    [
        (None, request(), NO_ANSWERS, None),
        (None, request(paused=True), NO_ANSWERS, SyncState.PAUSED),
        (row(SyncState.PAUSED), request(paused=True), NO_ANSWERS, None),
        (row(SyncState.PAUSED), request(), NO_ANSWERS, SyncState.CATCHING_UP),
        (row(SyncState.CATCHING_UP), request(paused=True), NO_ANSWERS, SyncState.PAUSED),
        (row(SyncState.CATCHING_UP), request(), NO_ANSWERS, None),
        (None, request(copy_id=2, replaces=True), NO_ANSWERS, SyncState.COPYING),
        (row(SyncState.PAUSED), request(copy_id=2, paused=True), NO_ANSWERS, SyncState.COPYING),
        (row(SyncState.COPYING, copy_id=2), request(copy_id=2, paused=True), NO_ANSWERS, None),
        (row(SyncState.COPYING, copy_id=2), request(copy_id=5), NO_ANSWERS, SyncState.COPYING),
        (row(SyncState.FOLLOWING, copy_id=2), request(copy_id=2), NO_ANSWERS, None),
        (None, ADDED, NO_ANSWERS, None),
        (None, ADDED, make_answer(2), None),
        (None, ADDED, make_answer(3), SyncState.COPYING),
        (row(SyncState.REMOVED), ADDED, make_answer(3), SyncState.COPYING),
        (row(SyncState.REMOVED), ADDED, NO_ANSWERS, None),
        (row(SyncState.COPYING, copy_id=2), REMOVED, NO_ANSWERS, SyncState.REMOVED),
        (row(SyncState.REMOVED), REMOVED, NO_ANSWERS, None),
        (row(SyncState.ISOLATED), request(), NO_ANSWERS, None),
        (row(SyncState.ISOLATED), request(paused=True), NO_ANSWERS, None),
        (row(SyncState.ISOLATED, copy_id=2), request(copy_id=5), NO_ANSWERS, SyncState.COPYING),
        (row(SyncState.ISOLATED), REMOVED, NO_ANSWERS, SyncState.REMOVED),
        (None, request(capture=Capture.LEFT), NO_ANSWERS, None),
    ],
)
def test_what_is_requested_decides(
    before: TableSync | None, wanted: TableRequest, answers: CaptureAnswers, after: SyncState | None
) -> None:
    """This covers every state and every request."""
    assert next_state(before, wanted, answers) is after


def test_a_refused_capture_begins_nothing() -> None:
    """The extractor has answered with an error."""
    refused = CaptureAnswers(tables=(CaptureAnswer(table=T, capture_id=3, error="no"),))
    assert next_state(None, ADDED, refused) is None


def find_move(
    before: TableSync | None, wanted: TableRequest, at: Applied = HERE, **more: object
) -> TableSync | None:
    """Return the one move that is due, or None."""
    rows = {} if before is None else {T: before}
    found = moves(
        rows, TableRequests(serial=9, tables=(wanted,)), make_answer(3), at, copied={}, **more
    )  # type: ignore[arg-type]
    return found[0] if found else None


def test_a_paused_table_keeps_its_place() -> None:
    """The table continues where it was paused, whatever happened in between."""
    paused = find_move(None, request(paused=True))
    assert paused is not None
    assert (paused.state, paused.applied) == (SyncState.PAUSED, HERE)
    later = Applied(segment=9, gsn=900, position=9000)
    joining = find_move(paused, request(), later)
    assert joining is not None
    assert (joining.state, joining.applied) == (SyncState.CATCHING_UP, HERE)
    again = find_move(joining, request(paused=True), later)
    assert again is not None
    assert again.applied == HERE


def test_a_copy_begins_where_the_others_are() -> None:
    """Everything that it left out until then is in the copy."""
    paused = row(SyncState.PAUSED, applied=HERE)
    later = Applied(segment=9, gsn=900, position=9000)
    copying = find_move(paused, request(copy_id=5, paused=True), later)
    assert copying is not None
    assert (copying.state, copying.applied, copying.copy_id) == (SyncState.COPYING, later, 5)


@pytest.mark.parametrize(
    ("paused", "state"), [(False, SyncState.CATCHING_UP), (True, SyncState.PAUSED)]
)
def test_a_copy_that_has_ended_says_from_where_changes_count(
    paused: bool, state: SyncState
) -> None:
    """The position of the copy is kept permanently."""
    copying = row(SyncState.COPYING, copy_id=5, applied=HERE)
    requests = TableRequests(serial=9, tables=(request(copy_id=5, paused=paused),))
    (found,) = moves({T: copying}, requests, NO_ANSWERS, HERE, copied={T: 8888})
    assert (found.state, found.start, found.applied) == (state, 8888, HERE)
    assert moves({T: copying}, requests, NO_ANSWERS, HERE, copied={}) == []


def test_a_table_is_back_when_it_has_met_the_others() -> None:
    """Both are in the same segment and at the same row; the table's start stays."""
    joining = row(SyncState.CATCHING_UP, applied=HERE, start=5)
    assert not has_met(joining, Applied(segment=7, gsn=750))  # they are inside the next segment
    assert not has_met(joining, Applied(segment=8, gsn=700))
    back = find_move(joining, request())
    assert back is not None
    assert (back.state, back.start, back.applied) == (SyncState.FOLLOWING, 5, Applied())


def test_a_table_is_left_behind_where_its_changes_end() -> None:
    """The table stops at the place of the others if it is with them; else where it has arrived."""
    assert isolate(None, T, HERE) == row(SyncState.ISOLATED, applied=HERE)
    back = Applied(segment=3)
    joining = row(SyncState.CATCHING_UP, applied=back, start=5, copy_id=2)
    assert isolate(joining, T, HERE) == replace(joining, state=SyncState.ISOLATED)


@pytest.mark.parametrize(
    ("starts", "copied"), [(None, None), ({}, set()), ({T: 5}, {T})], ids=["no load", "none", "t"]
)
def test_only_copied_tables_count(
    tmp_path: Path, starts: dict[TableName, int] | None, copied: set[TableName] | None
) -> None:
    """After a bulk load in which every table went, no change counts until a table is added."""
    assert TableSyncFlow(tmp_path, starts, None).copied_tables == copied


def test_what_batches_leave_out() -> None:
    """Batches omit tables with a table sync, and added ones that may be missing in the target."""
    requests = TableRequests(serial=3, tables=(ADDED,))
    assert left_out([], requests) == {T}
    assert left_out([row(SyncState.FOLLOWING, copy_id=3)], requests) == frozenset()
    assert left_out([row(SyncState.FOLLOWING, copy_id=2)], requests) == {T}
    syncing = [state for state in SyncState if state is not SyncState.FOLLOWING]
    assert all(left_out([row(state)], TableRequests()) == {T} for state in syncing)


def test_segments_are_kept_for_whoever_waits() -> None:
    """A removed table needs none."""
    back = Applied(segment=3)
    for state in (SyncState.PAUSED, SyncState.COPYING, SyncState.CATCHING_UP):
        assert segment_needed([row(state, applied=back)], HERE) == 3
    for state in (SyncState.REMOVED, SyncState.FOLLOWING, SyncState.ISOLATED):
        assert segment_needed([row(state, applied=back)], HERE) == 7


def test_moves_settle() -> None:
    """The execution of any request comes to an end, and then no more moves are due."""
    numbers = count(3)
    last = None
    for wanted in (request(paused=True), request(), ADDED, REMOVED, request(copy_id=9), REMOVED):
        for _ in range(4):
            rows = {} if last is None else {T: last}
            copied = {T: next(numbers)}
            found = moves(
                rows, TableRequests(serial=9, tables=(wanted,)), make_answer(3), HERE, copied=copied
            )
            if not found:
                break
            last = found[0]
        else:
            raise AssertionError(f"{wanted} comes to no end")


class _Asked:
    """Stager that is asked for a batch."""

    is_asked = True

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("distance", "batch", "waits"),
    [(3, 0, True), (4, 0, False), (26, 26, True), (27, 26, False), (4, 1, False)],
)
def test_the_others_wait_for_a_table_no_longer_than_for_a_batch(
    tmp_path: Path, distance: int, batch: int, waits: bool
) -> None:
    """Slow batches leave many segments between a table and the others, which must meet once."""
    flow = TableSyncFlow(tmp_path, None, None)
    flow.set_rows({T: row(SyncState.CATCHING_UP, applied=Applied(segment=7))})
    flow._ahead, flow._joining = _Asked(), T  # type: ignore[assignment]
    flow.note_batch(batch)
    applied = Applied(segment=7 + distance)
    assert flow.is_near(applied) is waits
    assert flow.is_meeting(applied) is waits
