"""Tables that stand apart: which state follows which, and what batches leave out."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from penstock.model import TableName
from penstock.model.wishes import Capture, CaptureAnswer, CaptureAnswers, TableWish, TableWishes
from penstock.ports.table_sync import (
    Apart,
    ApartState,
    has_met,
    isolated,
    left_out,
    moves,
    next_state,
    segment_needed,
)
from penstock.ports.target import Applied

T = TableName("public", "t")
NOBODY = CaptureAnswers()
HERE = Applied(segment=7, gsn=700, trx=70, position=7000)


def row(state: ApartState, **more: object) -> Apart:
    """A row of the target's."""
    return replace(Apart(table=T, state=state), **more)  # type: ignore[arg-type]


def wish(**more: object) -> TableWish:
    """A wish."""
    return replace(TableWish(table=T), **more)  # type: ignore[arg-type]


def done(number: int) -> CaptureAnswers:
    """The extractor has captured it."""
    return CaptureAnswers(tables=(CaptureAnswer(table=T, capture_id=number),))


ADDED = wish(capture=Capture.ADDED, capture_id=3, copy_id=3)
REMOVED = wish(capture=Capture.REMOVED, capture_id=4)


@pytest.mark.parametrize(
    ("before", "wanted", "answers", "after"),
    [
        (None, wish(), NOBODY, None),
        (None, wish(paused=True), NOBODY, ApartState.PAUSED),
        (row(ApartState.PAUSED), wish(paused=True), NOBODY, None),
        (row(ApartState.PAUSED), wish(), NOBODY, ApartState.JOINING),
        (row(ApartState.JOINING), wish(paused=True), NOBODY, ApartState.PAUSED),
        (row(ApartState.JOINING), wish(), NOBODY, None),
        (None, wish(copy_id=2, replaces=True), NOBODY, ApartState.COPYING),
        (row(ApartState.PAUSED), wish(copy_id=2, paused=True), NOBODY, ApartState.COPYING),
        (row(ApartState.COPYING, copy_id=2), wish(copy_id=2, paused=True), NOBODY, None),
        (row(ApartState.COPYING, copy_id=2), wish(copy_id=5), NOBODY, ApartState.COPYING),
        (row(ApartState.FOLLOWING, copy_id=2), wish(copy_id=2), NOBODY, None),
        (None, ADDED, NOBODY, None),
        (None, ADDED, done(2), None),
        (None, ADDED, done(3), ApartState.COPYING),
        (row(ApartState.REMOVED), ADDED, done(3), ApartState.COPYING),
        (row(ApartState.REMOVED), ADDED, NOBODY, None),
        (row(ApartState.COPYING, copy_id=2), REMOVED, NOBODY, ApartState.REMOVED),
        (row(ApartState.REMOVED), REMOVED, NOBODY, None),
        (row(ApartState.ISOLATED), wish(), NOBODY, None),
        (row(ApartState.ISOLATED), wish(paused=True), NOBODY, None),
        (row(ApartState.ISOLATED, copy_id=2), wish(copy_id=5), NOBODY, ApartState.COPYING),
        (row(ApartState.ISOLATED), REMOVED, NOBODY, ApartState.REMOVED),
        (None, wish(capture=Capture.LEFT), NOBODY, None),
    ],
)
def test_what_is_wished_decides(
    before: Apart | None, wanted: TableWish, answers: CaptureAnswers, after: ApartState | None
) -> None:
    """Every state and every wish."""
    assert next_state(before, wanted, answers) is after


def test_a_refused_capture_begins_nothing() -> None:
    """The extractor has answered, with an error."""
    refused = CaptureAnswers(tables=(CaptureAnswer(table=T, capture_id=3, error="no"),))
    assert next_state(None, ADDED, refused) is None


def moved(
    before: Apart | None, wanted: TableWish, at: Applied = HERE, **more: object
) -> Apart | None:
    """The one move that is due, if any."""
    rows = {} if before is None else {T: before}
    found = moves(rows, TableWishes(serial=9, tables=(wanted,)), done(3), at, copied={}, **more)  # type: ignore[arg-type]
    return found[0] if found else None


def test_a_paused_table_keeps_its_place() -> None:
    """Where it was paused it goes on, whatever came in between."""
    paused = moved(None, wish(paused=True))
    assert paused is not None
    assert (paused.state, paused.applied) == (ApartState.PAUSED, HERE)
    later = Applied(segment=9, gsn=900, position=9000)
    joining = moved(paused, wish(), later)
    assert joining is not None
    assert (joining.state, joining.applied) == (ApartState.JOINING, HERE)
    again = moved(joining, wish(paused=True), later)
    assert again is not None
    assert again.applied == HERE


def test_a_copy_begins_where_the_others_are() -> None:
    """What it had left out until then is in the copy."""
    paused = row(ApartState.PAUSED, applied=HERE)
    later = Applied(segment=9, gsn=900, position=9000)
    copying = moved(paused, wish(copy_id=5, paused=True), later)
    assert copying is not None
    assert (copying.state, copying.applied, copying.copy_id) == (ApartState.COPYING, later, 5)


@pytest.mark.parametrize(
    ("paused", "state"), [(False, ApartState.JOINING), (True, ApartState.PAUSED)]
)
def test_a_copy_that_has_ended_says_from_where_changes_count(
    paused: bool, state: ApartState
) -> None:
    """The position of the copy is kept for good."""
    copying = row(ApartState.COPYING, copy_id=5, applied=HERE)
    wishes = TableWishes(serial=9, tables=(wish(copy_id=5, paused=paused),))
    (found,) = moves({T: copying}, wishes, NOBODY, HERE, copied={T: 8888})
    assert (found.state, found.start, found.applied) == (state, 8888, HERE)
    assert moves({T: copying}, wishes, NOBODY, HERE, copied={}) == []


def test_a_table_is_back_when_it_has_met_the_others() -> None:
    """In the same segment and at the same row; its start stays."""
    joining = row(ApartState.JOINING, applied=HERE, start=5)
    assert not has_met(joining, Applied(segment=7, gsn=750))  # they are inside the next segment
    assert not has_met(joining, Applied(segment=8, gsn=700))
    back = moved(joining, wish())
    assert back is not None
    assert (back.state, back.start, back.applied) == (ApartState.FOLLOWING, 5, Applied())


def test_a_table_is_left_behind_where_its_changes_end() -> None:
    """With the others it was where they are; on its way to them, where it had come to."""
    assert isolated(None, T, HERE) == row(ApartState.ISOLATED, applied=HERE)
    back = Applied(segment=3)
    joining = row(ApartState.JOINING, applied=back, start=5, copy_id=2)
    assert isolated(joining, T, HERE) == replace(joining, state=ApartState.ISOLATED)


def test_what_batches_leave_out() -> None:
    """What is apart, and what was added and has perhaps no table in the target yet."""
    wishes = TableWishes(serial=3, tables=(ADDED,))
    assert left_out([], wishes) == {T}
    assert left_out([row(ApartState.FOLLOWING, copy_id=3)], wishes) == frozenset()
    assert left_out([row(ApartState.FOLLOWING, copy_id=2)], wishes) == {T}
    apart = [state for state in ApartState if state is not ApartState.FOLLOWING]
    assert all(left_out([row(state)], TableWishes()) == {T} for state in apart)


def test_segments_are_kept_for_whoever_waits() -> None:
    """A removed table needs none."""
    back = Applied(segment=3)
    for state in (ApartState.PAUSED, ApartState.COPYING, ApartState.JOINING):
        assert segment_needed([row(state, applied=back)], HERE) == 3
    for state in (ApartState.REMOVED, ApartState.FOLLOWING, ApartState.ISOLATED):
        assert segment_needed([row(state, applied=back)], HERE) == 7


def test_moves_settle() -> None:
    """Whatever is wished, carrying it out comes to an end, and then nothing more is due."""
    numbers = count(3)
    last = None
    for wanted in (wish(paused=True), wish(), ADDED, REMOVED, wish(copy_id=9), REMOVED):
        for _ in range(4):
            rows = {} if last is None else {T: last}
            copied = {T: next(numbers)}
            found = moves(
                rows, TableWishes(serial=9, tables=(wanted,)), done(3), HERE, copied=copied
            )
            if not found:
                break
            last = found[0]
        else:
            raise AssertionError(f"{wanted} comes to no end")
