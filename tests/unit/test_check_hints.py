"""Hints of checks that failed with an error."""

from __future__ import annotations

import pytest

from penstock.host.errors import StatementFailed
from penstock.ports.checks import fix_of


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
        ("Run `penstock doctor` again.", "what to do instead"),
    ],
)
def test_a_check_is_not_repeated_automatically(hint: str, command: str) -> None:
    """Of an error that a running pipeline handles, the user repeats the command."""
    assert fix_of(StatementFailed("it failed", hint=hint), "what to do instead") == command
