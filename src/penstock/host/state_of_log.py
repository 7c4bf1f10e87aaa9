"""State that belongs to one change log: slots, saved positions, known shapes.

The number of a segment, row or transaction means nothing in another log. So each state holds the
id of its log, and the id is checked when the state is opened, before a reader deletes, moves
or skips anything because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Protocol, TypeVar

from penstock.host.state_file import StateFile
from penstock.model import PenstockError


class StateOfOtherLog(PenstockError):
    """A saved state belongs to another change log. fields: place, expected, actual."""

    code = "LG14"
    retry = "operator"


class HasLogId(Protocol):
    """State with the id of its log; empty if it was saved before there was a log."""

    @property
    def log_id(self) -> str:
        """Id of the log."""
        ...


_State = TypeVar("_State", bound=HasLogId)


def check_log_id(
    saved: str,
    actual: str,
    *,
    place: str,
    hint: str,
    error: type[StateOfOtherLog] = StateOfOtherLog,
) -> None:
    """Check that a state belongs to the existing log.

    Args:
        saved: Log id inside the state. An empty one belongs to every log.
        actual: Id of the existing log.
        place: The state in words, with its file or table.
        hint: The next command.
        error: Class to raise, if a package has a code of its own.

    Raises:
        StateOfOtherLog: The ids differ.
    """
    if saved and saved != actual:
        raise error(
            f"{place} belongs to change log {saved}, and this one is {actual}",
            hint=hint,
            place=place,
            expected=saved,
            actual=actual,
        )


@dataclass(frozen=True, slots=True)
class StateOfLog(Generic[_State]):
    """State file of one log.

    Attributes:
        file: The file; its state has an attribute `log_id`.
        hint: How to continue with another log; a sentence with the next command.
        error: Class to raise for a state of another log.
        is_disposable: Returns whether a state of another log may be forgotten, because no client
            needs it. By default none may.
    """

    file: StateFile[_State]
    _: KW_ONLY
    hint: str
    error: type[StateOfOtherLog] = StateOfOtherLog
    is_disposable: Callable[[_State], bool] = lambda _: False

    def load(self, log_id: str) -> _State | None:
        """Return the saved state of this log, or None if nothing was saved.

        Raises:
            StateOfOtherLog: it was saved for another log.
            CheckpointCorrupt: the file is damaged.
        """
        state = self.file.load()
        if state is None or (state.log_id != log_id and self.is_disposable(state)):
            return None
        check_log_id(
            state.log_id,
            log_id,
            place=f"the {self.file.name} in {self.file.path}",
            hint=self.hint,
            error=self.error,
        )
        return state

    def save(self, state: _State) -> None:
        """Replace the file, durably. Raises DiskFull, FileFailed."""
        self.file.save(state)
