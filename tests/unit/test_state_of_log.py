"""State files with their log's id inside, which is checked when they are opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.host.state_file import CheckpointCorrupt, StateFile
from penstock.host.state_of_log import StateOfLog, StateOfOtherLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A state."""

    log_id: str
    count: int


class OtherCode(StateOfOtherLog):
    """A room's error."""

    code = "XX01"


def file_in(folder: Path) -> StateFile[Saved]:
    """Return a file in a folder."""
    return StateFile(folder / "state.json", Saved, name="state of the slots", hint="Run this.")


def state_in(folder: Path) -> StateOfLog[Saved]:
    """Return a state file in a folder."""
    return StateOfLog(file_in(folder), hint="Run this.")


def test_a_saved_state_is_loaded_for_its_own_log(tmp_path: Path) -> None:
    """Before the first save there is none."""
    state = state_in(tmp_path)
    assert state.load("a") is None
    state.save(Saved(log_id="a", count=3))
    assert state.load("a") == Saved(log_id="a", count=3)


def test_a_state_of_another_log_is_refused_with_place_cause_and_next_command(
    tmp_path: Path,
) -> None:
    """The file stays as it is."""
    state = state_in(tmp_path)
    state.save(Saved(log_id="a", count=3))
    before = state.file.path.read_bytes()
    with pytest.raises(StateOfOtherLog) as caught:
        state.load("b")
    assert caught.value.message == (
        f"the state of the slots in {state.file.path} belongs to change log a, and this one is b"
    )
    assert caught.value.hint == "Run this."
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("a", "b")
    assert state.file.path.read_bytes() == before


def test_a_state_from_before_there_was_a_log_belongs_to_every_log(tmp_path: Path) -> None:
    """The log id of such a state is empty."""
    state = state_in(tmp_path)
    state.save(Saved(log_id="", count=0))
    assert state.load("b") == Saved(log_id="", count=0)


def test_a_room_can_raise_an_error_of_its_own(tmp_path: Path) -> None:
    """The error's code differs, the check does not."""
    state = StateOfLog(file_in(tmp_path), hint="Run this.", error=OtherCode)
    state.save(Saved(log_id="a", count=3))
    with pytest.raises(OtherCode):
        state.load("b")


def test_a_disposable_state_of_another_log_is_forgotten_and_one_of_this_log_is_not(
    tmp_path: Path,
) -> None:
    """The room says which state may be forgotten."""
    state = StateOfLog(
        file_in(tmp_path), hint="Run this.", is_disposable=lambda saved: saved.count == 0
    )
    state.save(Saved(log_id="a", count=0))
    assert state.load("b") is None
    assert state.load("a") == Saved(log_id="a", count=0)
    state.save(Saved(log_id="a", count=1))
    with pytest.raises(StateOfOtherLog):
        state.load("b")


def test_a_damaged_file_names_itself_and_what_to_do(tmp_path: Path) -> None:
    """The checksum shows the damage."""
    state = state_in(tmp_path)
    state.save(Saved(log_id="a", count=3))
    state.file.path.write_bytes(state.file.path.read_bytes().replace(b"3", b"4"))
    with pytest.raises(CheckpointCorrupt) as caught:
        state.load("a")
    assert caught.value.hint == f"Put {state.file.path} back from a copy. Without one: Run this."
