"""What Spark's JVM says: its exceptions, and the file of its messages, in one line."""

from __future__ import annotations

import re
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

MESSAGES_BYTES_MAX = 65536
_FAILURE = r"^(Exception|Error|Invalid|Unrecognized|Could not)\b"


def text_of(error: BaseException) -> str:
    """A Java exception's own text, also where Java does not answer any more; else Python's."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return str(java.toString())
        except (Py4JError, OSError):
            # Its own text would be asked for in the same way.
            return f"{type(error).__name__}, and Java does not answer any more"
    return str(error)


def first_failure(messages: Path, before: int) -> str:
    """Why a JVM ended before it answered: its first line that names a failure; "" without one."""
    if not messages.exists():
        return ""
    with messages.open("rb") as file:
        file.seek(before)
        text = file.read(MESSAGES_BYTES_MAX).decode("utf-8", errors="replace")
    return next((line.strip() for line in text.splitlines() if re.search(_FAILURE, line)), "")


def last_line(text: str) -> str:
    """The most informative line: the last of a Python traceback, else the first."""
    python = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]
    lines = python or [line for line in text.splitlines() if line.strip()]
    return " ".join((lines[-1] if python else lines[0]).split()) if lines else "no message"


def last_warning(messages: Path) -> str:
    """What Spark warned of last; a sentence of its own where it did not."""
    if not messages.exists():
        return "the cluster said nothing"
    lines = messages.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.partition(" WARN ")[2] for line in lines if " WARN " in line]
    return found[-1] if found else "the cluster said nothing"
