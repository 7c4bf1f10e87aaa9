"""Questions on the terminal: without an answer nothing changes, and the message names the flag."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from penstock.cli.output import ask

PROGRAM = """
import click
from penstock.cli.output import ask
@click.command()
def command():
    ask("Remove all this?", False, False)
    print("removed")
try:
    command(standalone_mode=False)
except click.UsageError as error:
    print(error.format_message())
"""


def test_a_closed_standard_input_names_yes() -> None:
    """`penstock reset FILE </dev/null` once ended with 130 and no message."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "run the command with --yes" in done.stdout
    assert "removed" not in done.stdout.splitlines()


def test_json_names_yes() -> None:
    """A program that reads JSON is asked no question."""
    with pytest.raises(click.UsageError, match="--yes"):
        ask("Remove all this?", False, True)
    ask("Remove all this?", True, True)
