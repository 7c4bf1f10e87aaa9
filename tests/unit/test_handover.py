"""Decisions of the handover, without a server."""

from __future__ import annotations

import itertools

import pytest

from penstock.ports.config import HandoverMode
from penstock.ports.handover import STEPS, Do, Handover, HandoverPhase, Seen, decide

POSITION = "0/16B3740"


def make_paused(phase: HandoverPhase, *, slot_position: str = POSITION) -> Handover:
    """Return a handover in mode pause."""
    return Handover(mode=HandoverMode.PAUSE, phase=phase, slot_position=slot_position)


def test_snapshot_mode_makes_the_slot_and_lets_the_extractor_begin() -> None:
    """The handover waits for nothing: changes are extracted during the bulk load."""
    assert decide(Handover(), Seen()) is Do.MAKE_SLOT
    captured = Handover(phase=HandoverPhase.CAPTURED, slot_position=POSITION)
    assert decide(captured, Seen(slot_exists=True, snapshot_held=True)) is Do.LET_EXTRACT
    assert decide(captured, Seen(slot_exists=True, slot_active=True)) is Do.NOTE_START
    assert decide(Handover(phase=HandoverPhase.STARTED), Seen(slot_active=True)) is Do.RESUME


def test_a_slot_left_by_a_killed_run_is_used_where_it_stands() -> None:
    """The check whether it is ours comes afterwards."""
    assert decide(Handover(), Seen(slot_exists=True)) is Do.ADOPT_SLOT
    assert (
        decide(make_paused(HandoverPhase.NEW, slot_position=""), Seen(slot_exists=True))
        is Do.ADOPT_SLOT
    )


def test_a_lost_slot_is_not_made_again_after_the_position_was_captured() -> None:
    """The extractor reports the loss; a new one would silently skip changes."""
    captured = Handover(phase=HandoverPhase.CAPTURED, slot_position=POSITION)
    assert decide(captured, Seen(slot_exists=False)) is Do.LET_EXTRACT


def test_the_snapshot_is_released_when_the_bulk_load_is_done() -> None:
    """The release is not earlier: a load that was killed continues with the snapshot."""
    done = Handover(phase=HandoverPhase.DONE)
    assert decide(done, Seen(snapshot_held=True)) is Do.WAIT
    assert decide(done, Seen(snapshot_held=True, bulk_finished=True)) is Do.RELEASE
    assert decide(done, Seen(bulk_finished=True)) is Do.WAIT


def test_pause_mode_goes_through_the_four_steps_in_the_documents_order() -> None:
    """The slot is created while replaying; then come pause, capture, bulk load, start, resume."""
    new = make_paused(HandoverPhase.NEW, slot_position="")
    assert decide(new, Seen()) is Do.MAKE_SLOT
    assert decide(make_paused(HandoverPhase.NEW), Seen(slot_exists=True)) is Do.PAUSE
    assert (
        decide(make_paused(HandoverPhase.STOPPED), Seen(slot_exists=True, paused=True))
        is Do.CAPTURE
    )
    captured = make_paused(HandoverPhase.CAPTURED)
    held = Seen(slot_exists=True, paused=True, snapshot_held=True)
    assert decide(captured, held) is Do.WAIT
    loaded = Seen(slot_exists=True, paused=True, snapshot_held=True, bulk_finished=True)
    assert decide(captured, loaded) is Do.LET_EXTRACT
    started = Seen(slot_exists=True, slot_active=True, paused=True, bulk_finished=True)
    assert decide(captured, started) is Do.NOTE_START
    assert decide(make_paused(HandoverPhase.STARTED), started) is Do.RESUME


def test_pause_mode_after_a_kill() -> None:
    """The snapshot is created again if still paused; all is repeated if replaying again."""
    captured = make_paused(HandoverPhase.CAPTURED)
    assert decide(captured, Seen(slot_exists=True, paused=True)) is Do.CAPTURE
    assert decide(captured, Seen(slot_exists=True, paused=False)) is Do.PAUSE
    assert decide(make_paused(HandoverPhase.NEW, slot_position=""), Seen(paused=True)) is Do.UNPAUSE


@pytest.mark.parametrize("mode", list(HandoverMode))
@pytest.mark.parametrize("phase", list(HandoverPhase))
def test_every_state_has_an_answer(mode: HandoverMode, phase: HandoverPhase) -> None:
    """Each phase and each set of facts has a decision, and mode snapshot never pauses."""
    for facts in itertools.product((False, True), repeat=5):
        seen = Seen(
            slot_exists=facts[0],
            slot_active=facts[1],
            paused=facts[2],
            snapshot_held=facts[3],
            bulk_finished=facts[4],
        )
        for slot_position in ("", POSITION):
            state = Handover(mode=mode, phase=phase, slot_position=slot_position)
            do = decide(state, seen)
            assert isinstance(do, Do)
            if mode is HandoverMode.SNAPSHOT:
                assert do not in (Do.PAUSE, Do.UNPAUSE, Do.CAPTURE)


def test_a_step_done_again_replaces_itself_and_those_behind_it() -> None:
    """After a kill the shown steps are those of the handover that counts."""
    state = Handover()
    for number in (1, 2, 3):
        state = state.with_step(number, f"{STEPS[number - 1]}: first time")
    state = state.with_step(2, "Capture Position: again")
    assert [(s.number, s.name) for s in state.steps] == [
        (1, "Stop Replication"),
        (2, "Capture Position"),
    ]
    assert state.steps[1].text == "Capture Position: again"
    assert state.steps[1].at.endswith("+00:00")
