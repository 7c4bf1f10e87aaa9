"""Commands that only one engine has: `penstock ENGINE COMMAND FILE`; see `ports.commands`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments import InOrder, common, diagnostics, pipeline_config, pipeline_file
from penstock.cli.output import ask, say

if TYPE_CHECKING:
    from penstock.ports.commands import Command
    from penstock.ports.registry import Descriptor

PART = "commands"


class WithEngines(InOrder):
    """Group of all commands: ours, then one group for each engine that has commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of our commands, then those of the engines."""
        return [*super().list_commands(ctx), *_engines()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command of ours, else the group of the engine that has this name."""
        ours = super().get_command(ctx, name)
        if ours is None and name in (found := _engines()):
            return EngineGroup(found[name])
        return ours


class EngineGroup(InOrder):
    """Commands of one engine, whose module is imported when they are listed."""

    def __init__(self, engine: Descriptor) -> None:
        super().__init__(engine.name, help=f"Commands for {engine.shown} alone.")
        self._engine = engine

    def _commands(self) -> Mapping[str, Command]:
        from penstock.ports.commands import COMMANDS_PART

        return {one.name: one for one in self._engine.part(COMMANDS_PART).COMMANDS}

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands' names in the engine's order."""
        return list(self._commands())

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Return the command that is made from its description, or None."""
        found = self._commands().get(name)
        return _make_command(self._engine, found) if found is not None else None


def _engines() -> dict[str, Descriptor]:
    from penstock.ports.registry import engines

    return {engine.name: engine for engine in engines() if PART in engine.parts}


def _make_command(engine: Descriptor, command: Command) -> click.Command:
    def call(
        file: Path,
        more: tuple[str, ...] = (),
        yes: bool = False,
        *,
        as_json: bool,
        verbose: bool,
        **values: str | None,
    ) -> None:
        _run(engine, command, file, values, more, yes=yes, as_json=as_json, verbose=verbose)

    more = click.argument("more", nargs=-1, metavar="[-- MORE...]")
    function = pipeline_file(more(call) if command.more else call)
    if command.question:
        function = click.option("--yes", is_flag=True, help="Do it without asking.")(function)
    for option in reversed(command.options):
        function = click.option(
            option.name, metavar=option.metavar, help=option.help, required=option.is_required
        )(function)
    trailer = f"\n\nWhat follows -- are options {command.more}." if command.more else ""
    example = f"penstock {engine.name} {command.name} {command.example}"
    text = (
        f"{command.help}{trailer}\n\n\b\nExample:     {example}\nExit codes:  {command.exit_codes}"
    )
    return click.command(command.name, help=text)(common(function))


def _run(
    engine: Descriptor,
    command: Command,
    file: Path,
    values: Mapping[str, str | None],
    more: tuple[str, ...],
    *,
    yes: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    from penstock.ports.commands import UsageWrong
    from penstock.ports.registry import engine_at

    config = pipeline_config(file)
    diagnostics(verbose)
    if engine_at(config.source.url) is not engine:
        raise click.UsageError(f"the source of {file} is not {engine.shown}")
    if command.question:
        ask(command.question, yes, as_json)
    try:
        for done in command.run(config, values, more):
            say(as_json, done.message, **done.fields)
    except UsageWrong as error:
        raise click.UsageError(f"{error.message}. {error.hint}") from error
