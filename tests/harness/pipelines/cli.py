"""The command line in the tests' own process."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from penstock import cli


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, with its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, full)
        else:
            yield full, command


def groups(group: click.Group, path: str = "") -> Iterator[str]:
    """Yield the path of every group below this one, first its own, which is empty."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, f"{path} {name}".strip())


def call_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command line."""
    code = 0
    try:
        cli.run_guarded(list(arguments))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    out, err = capsys.readouterr()
    return code, out, err
