"""Ends of child processes: the error that a parent raises, and the words for exit codes."""

from __future__ import annotations

import signal

import pytest

from penstock.control.run.child_ends import describe_end, make_failure, make_killed, read_error

ERROR = '{"code": "TG03", "error": "said", "hint": "do"}'


@pytest.mark.parametrize(
    ("process", "code", "text"),
    [
        ("", 1, "the process ended with exit code 1"),
        ("load", 2, "the process load ended with exit code 2"),
        ("", -signal.SIGKILL, "the process was killed by SIGKILL"),
        ("load", -signal.SIGSEGV, "the process load was killed by SIGSEGV"),
    ],
)
def test_an_end_is_described(process: str, code: int, text: str) -> None:
    """A negative exit code is a signal, which has its name."""
    assert describe_end(process, code) == text


def test_the_last_error_is_shown() -> None:
    """Other lines, and objects that are no errors, are skipped."""
    lines = ['{"code": "TG01", "error": "earlier"}', ERROR, '{"code": 1}', "{", "Traceback"]
    failure = make_failure("load", 1, lines)
    assert (failure.message, failure.hint) == ("said", "do")
    assert failure.as_dict()["code"] == "TG03"
    assert failure.as_dict()["process"] == "load"


def test_an_end_without_an_error_names_the_log() -> None:
    """A process that was killed, or that printed no error, has only its log."""
    failure = make_failure("load", -signal.SIGKILL, ["noise"])
    assert failure.message == "the process load was killed by SIGKILL and left no message"
    assert "run/load.log" in failure.hint


def test_a_process_that_was_killed_too_often() -> None:
    """The error has the number of times and the last signal."""
    killed = make_killed("extract", -signal.SIGKILL, 6)
    assert killed.message == "the process extract was killed 6 times, the last time by SIGKILL"
    assert "run/extract.log" in killed.hint


@pytest.mark.parametrize("line", ["", "text", "{", "[]", '{"code": "PS99"}', '{"error": "x"}'])
def test_other_lines_are_no_errors(line: str) -> None:
    """An error is an object with a code and a text."""
    assert read_error(line) is None
