"""Hints of checks that failed with an error."""

from __future__ import annotations

import pytest

from penstock.host.errors import StatementFailed
from penstock.ports.checks import Side, unreachable


@pytest.mark.parametrize(
    ("hint", "command"),
    [
        ("penstock retries automatically.", "Run the command again."),
        (
            "penstock retries automatically. If this repeats, read the server's log.",
            "Run the command again. If this repeats, read the server's log.",
        ),
        (
            "penstock retries automatically; start the node if it is down.",
            "Run the command again. Start the node if it is down.",
        ),
        ("Do nothing: the table is planned again automatically.", "Run the command again."),
        ("Grant it: `grant select on t to u`.", "Grant it: `grant select on t to u`."),
    ],
)
def test_a_check_is_not_repeated_automatically(hint: str, command: str) -> None:
    """The user repeats the command after an error that a running pipeline would handle."""
    error = StatementFailed("it failed", hint=hint)
    assert unreachable(error, Side.SOURCE).command == command
