"""The output of commands, and the exit codes. This is the one module that prints."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def say_json(value: Any) -> None:
    """Print one value as a line of JSON."""
    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def say_text(text: str) -> None:
    """Print text at once."""
    print(text, flush=True)


def say_prose(text: str) -> None:
    """Print a sentence; a terminal's lines end between words."""
    if sys.stdout.isatty():
        text = click.wrap_text(text, shutil.get_terminal_size().columns)
    say_text(text)


def say_line(line: str) -> None:
    """Print one of many lines: they are flushed in blocks."""
    print(line)


def say_error_line(text: str) -> None:
    """Print a line to standard error at once."""
    print(text, file=sys.stderr, flush=True)


def say(as_json: bool, text: str, **fields: Any) -> None:
    """Print text, or with --json its fields."""
    if as_json:
        say_json(fields)
    else:
        say_text(text)


def ask(question: str, yes: bool, as_json: bool) -> None:
    """Ask, unless --yes has answered; end the command if the answer is no.

    Raises UsageError if standard input ends without an answer.
    """
    if as_json and not yes:
        raise click.UsageError("--json needs --yes: no question can be asked")
    try:
        if yes or click.confirm(question):
            return
    except click.Abort:
        if sys.stdin.isatty():  # Ctrl-C or Ctrl-D at the question
            raise
        raise click.UsageError(
            "standard input ended before the question was answered, and nothing was changed; "
            "run the command with --yes"
        ) from None
    say_text("nothing was changed")
    sys.exit(EXIT_FAILED)


def say_web(as_json: bool) -> Callable[[str, dict[str, str]], None]:
    """Return a function that prints the address of the web interface."""
    from penstock.control.status.live import event
    from penstock.host.clock import REAL_CLOCK

    return lambda text, fields: say(as_json, text, **event(REAL_CLOCK, "web interface", **fields))


def show_error(error: dict[str, Any], as_json: bool) -> None:
    """Print one error as one block to standard error, or as one JSON object."""
    if as_json:
        print(msgspec.json.encode(error, enc_hook=str).decode(), file=sys.stderr, flush=True)
        return
    colour = sys.stderr.isatty()
    head = (
        click.style(f"error {error['code']}", fg="red", bold=True)
        if colour
        else (f"error {error['code']}")
    )
    print(f"{head}: {error['error']}", file=sys.stderr)
    if error.get("hint"):
        print(f"  next: {error['hint']}", file=sys.stderr)
    sys.stderr.flush()
