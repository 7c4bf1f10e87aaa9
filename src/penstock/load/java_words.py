"""Summarize exceptions and the message file of Spark's JVM in one line."""

from __future__ import annotations

import re
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

MESSAGES_BYTES_MAX = 65536
CAUSES_MAX = 8
_KILLED = "Application has been killed. Reason: "
_FAILURE = r"^(Exception|Error|Invalid|Unrecognized|Could not)\b"


def text_of(error: BaseException) -> str:
    """Return a Java exception's own text, even if Java no longer answers; else Python's."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return str(java.toString())
        except (Py4JError, OSError):
            # Its own text would be asked for in the same way.
            return f"{type(error).__name__}, and Java does not answer any more"
    return str(error)


def root_cause(error: BaseException) -> str:
    """Return a Java exception's root cause in one line; "" if it is its own cause."""
    java = getattr(error, "java_exception", None)
    found = ""
    try:
        for _ in range(CAUSES_MAX):
            java = java.getCause() if java is not None else None
            if java is None:
                break
            found = str(java.toString())
    except (Py4JError, OSError):
        return ""  # Java does not answer any more, and what failed is known
    return " ".join(found.split())


def first_failure(messages: Path, before: int) -> str:
    """Return the first line of a JVM's messages that names a failure; "" without one."""
    lines = _lines(messages, before)
    return next((line.strip() for line in lines if re.search(_FAILURE, line)), "")


def last_error(messages: Path, before: int) -> str:
    """Return why the cluster ended the application, else Spark's last logged error, else ""."""
    found = [line.partition(" ERROR ")[2] for line in _lines(messages, before) if " ERROR " in line]
    killed = [line.partition(_KILLED)[2] for line in found if _KILLED in line]
    return (killed or found or [""])[-1]


def _lines(messages: Path, before: int) -> list[str]:
    """Return the lines after this many bytes, as far as they are read."""
    if not messages.exists():
        return []
    with messages.open("rb") as file:
        file.seek(before)
        return file.read(MESSAGES_BYTES_MAX).decode("utf-8", errors="replace").splitlines()


def last_line(text: str) -> str:
    """Return the most informative line: the last of a Python traceback, else the first."""
    python = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]
    lines = python or [line for line in text.splitlines() if line.strip()]
    return " ".join((lines[-1] if python else lines[0]).split()) if lines else "no message"


def last_warning(messages: Path) -> str:
    """Return Spark's last warning; a sentence that says so if there is none."""
    if not messages.exists():
        return "the cluster said nothing"
    lines = messages.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.partition(" WARN ")[2] for line in lines if " WARN " in line]
    return found[-1] if found else "the cluster said nothing"
