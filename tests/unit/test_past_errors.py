"""Errors that ended processes, kept to be read afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.faults.turned_clock import Hands
from harness.pipelines.pipeline import pipeline
from penstock.control.doctor import past_errors as module
from penstock.control.doctor.past_errors import errors_kept, past_errors
from penstock.host.errors import ServerUnreachable
from penstock.ports.config import Config

URL = "postgresql://u@127.0.0.1:1/d"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A pipeline that was begun: its directory exists."""
    made = pipeline(tmp_path, URL, URL)
    made.directory.mkdir()
    return made


def fail(config: Config, error: BaseException, hands: Hands | None = None) -> None:
    """Let a command end with an error."""
    with (
        pytest.raises(type(error)),
        errors_kept(config, "load", clock=hands or Hands(1_700_000_000.0)),
    ):
        raise error


def test_errors_are_kept_the_newest_first(config: Config) -> None:
    """Entries have code, time, command and hint; the error itself is raised further."""
    fail(config, ServerUnreachable("no connection", hint="Start it."))
    fail(config, ValueError("row values stay out"))
    newest, oldest = past_errors(config)
    assert (oldest.code, oldest.error, oldest.hint) == ("HS22", "no connection", "Start it.")
    assert (oldest.command, oldest.at) == ("load", "2023-11-14T22:13:20+00:00")
    assert (newest.code, newest.error) == ("PS99", "unexpected ValueError")


def test_an_end_that_was_asked_for_is_no_error(config: Config) -> None:
    """Ctrl-C and exit codes leave no entry, nor does a good end."""
    fail(config, SystemExit(0))
    fail(config, KeyboardInterrupt())
    with errors_kept(config, "run"):
        pass
    assert past_errors(config) == ()


def test_a_terminal_that_was_closed_is_no_error(config: Config) -> None:
    """The reader of our output has gone, as in `penstock run ... | head`; a socket's end is an
    error.
    """
    reads, writes = os.pipe()
    os.close(reads)
    kept = os.dup(1)
    try:
        os.dup2(writes, 1)
        fail(config, BrokenPipeError())
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writes)
    assert past_errors(config) == ()
    fail(config, BrokenPipeError())
    assert [error.error for error in past_errors(config)] == ["unexpected BrokenPipeError"]


def test_a_pipeline_that_was_never_begun_is_left_alone(tmp_path: Path) -> None:
    """A refused start creates no directory."""
    made = pipeline(tmp_path, URL, URL)
    fail(made, ServerUnreachable("no connection"))
    assert not made.directory.exists()
    assert past_errors(made) == ()


def test_a_line_that_was_cut_is_passed_over(config: Config) -> None:
    """A full disk may leave half a line."""
    fail(config, ServerUnreachable("first"))
    path = config.layout.run / module.ERRORS_FILE
    path.write_bytes(path.read_bytes() + b'{"at": "20\n')
    fail(config, ServerUnreachable("last"))
    assert [error.error for error in past_errors(config)] == ["last", "first"]


def test_the_file_does_not_grow_without_end(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above its size it is rotated, and only the newest errors are shown."""
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    for number in range(30):
        fail(config, ServerUnreachable(f"number {number}"))
    assert (config.layout.run / module.ERRORS_FILE).stat().st_size < 1500
    assert past_errors(config, count=2)[0].error == "number 29"
    assert len(past_errors(config, count=2)) == 2


def test_an_error_comes_out_also_where_it_cannot_be_kept(config: Config) -> None:
    """A file in place of the folder hides no error."""
    config.layout.run.write_text("in the way")
    fail(config, ServerUnreachable("the real one"))
