"""State that belongs to one change log: slots, saved positions, known shapes.

The number of a segment, row or transaction means nothing in another log. So each state holds the
id of its log, and the id is checked when the state is opened, before a reader deletes, moves
or skips anything because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from penstock.host import checkpoint
from penstock.host.checkpoint import CheckpointCorrupt
from penstock.host.files import REAL_FILES, Files
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOfLog(Generic[_State]):
    """JSON state file of one log, replaced whole and durably.

    Attributes:
        path: The file.
        kind: Type of the state, a dataclass or Struct with an attribute `log_id`.
        name: The state in one word or two, for messages: "state of the slots".
        hint: How to continue if the state cannot be used; a sentence with the next command.
        error: Class to raise for a state of another log.
        is_disposable: Returns whether a state of another log may be forgotten, because no client
            needs it. By default none may.
    """

    path: Path
    kind: type[_State]
    name: str
    hint: str
    error: type[StateOfOtherLog] = StateOfOtherLog
    is_disposable: Callable[[_State], bool] = lambda _: False
    files: Files = REAL_FILES

    def load(self, log_id: str) -> _State | None:
        """Return the saved state of this log, or None if nothing was saved.

        Raises:
            StateOfOtherLog: it was saved for another log.
            CheckpointCorrupt: the file is damaged.
        """
        try:
            state = checkpoint.load(self.path, self.kind, self.files)
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(
                error.message,
                hint=f"Put {self.path} back from a copy. Without one: {self.hint}",
                path=str(self.path),
            ) from error
        if state is None or (state.log_id != log_id and self.is_disposable(state)):
            return None
        check_log_id(
            state.log_id,
            log_id,
            place=f"the {self.name} in {self.path}",
            hint=self.hint,
            error=self.error,
        )
        return state

    def save(self, state: _State) -> None:
        """Replace the file, durably. Raises DiskFull, FileFailed."""
        checkpoint.save(self.path, state, self.files)
