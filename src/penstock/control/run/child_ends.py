"""Ends of child processes: their last error, their signal, and the errors that these cause."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.model import PenstockError


class HalfFailed(PenstockError):
    """One of the two processes ended with an error, which is shown unchanged."""

    code = "CT03"
    retry = "operator"

    def as_dict(self) -> dict[str, Any]:
        """Return the child's own error, with the name of its process."""
        shown = PenstockError.as_dict(self)
        inner = shown.pop("inner", None)
        return {**shown, **inner} if inner else shown


class HalfKilled(PenstockError):
    """One of the two processes was killed again and again."""

    code = "CT04"
    retry = "operator"


def read_object(line: str) -> dict[str, Any] | None:
    """Return the object that a child has printed as a line of JSON; None for another line."""
    if not line.startswith("{"):
        return None
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def read_error(line: str) -> dict[str, Any] | None:
    """Return the error in a child's line, as `--json` prints errors; None for another line."""
    found = read_object(line)
    return found if found is not None and {"code", "error"} <= found.keys() else None


def describe_end(process: str, code: int | None) -> str:
    """Return how a process without an error of its own ended.

    Args:
        process: Its name; empty if the reader knows which one it is.
        code: The exit code; negative for the number of the signal that killed it.
    """
    subject = f"the process {process}".rstrip()
    if code is not None and code < 0:
        return f"{subject} was killed by {name_signal(code)}"
    return f"{subject} ended with exit code {code}"


def name_signal(code: int) -> str:
    """Return the name of the signal that gave a process its negative exit code."""
    return signal.Signals(-code).name


def make_failure(process: str, code: int | None, lines: Iterable[str]) -> HalfFailed:
    """Return the error that ended a process: the last one among its last lines.

    Args:
        process: Its name, such as `extract`.
        code: Its exit code.
        lines: What it printed last, oldest line first.
    """
    for line in reversed(list(lines)):
        found = read_error(line)
        if found is not None:
            hint = str(found.get("hint", ""))
            return HalfFailed(str(found["error"]), hint=hint, process=process, inner=found)
    return HalfFailed(
        f"{describe_end(process, code)} and left no message",
        hint=f"Read run/{process}.log in the pipeline's directory.",
        process=process,
    )


def make_killed(process: str, code: int, times: int) -> HalfKilled:
    """Return the error for a process that was killed too often, the last time with this code."""
    return HalfKilled(
        f"the process {process} was killed {times} times, the last time by {name_signal(code)}",
        hint=f"Read run/{process}.log in the pipeline's directory, and the kernel's log for the "
        "OOM killer: dmesg.",
        process=process,
    )
