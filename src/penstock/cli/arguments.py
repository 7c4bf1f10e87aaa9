"""The parts that commands share: the pipeline file, the options, the order in --help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.model import TableName

if TYPE_CHECKING:
    from penstock.ports.config import Config

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
PIPELINE_FILE = click.Path(path_type=Path)
SENTENCE_MAX = 500
PORT = click.IntRange(min=0, max=65535)
F = TypeVar("F", bound=Callable[..., Any])


class InOrder(click.Group):
    """Group that lists its commands in the order of use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands' names in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help: click would cut it."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=SENTENCE_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def pipeline_file(function: F) -> F:
    """Add the argument FILE, which most commands take, to a command."""
    return click.argument("file", metavar="FILE", type=PIPELINE_FILE)(function)


def common(function: F) -> F:
    """Add the options that every command has."""
    decorated = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, one object per line, errors too."
    )(function)
    return click.option(
        "-v", "--verbose", is_flag=True, help="Print diagnostics to standard error as well."
    )(decorated)


def group_option(function: F) -> F:
    """Add the option `--group`, which names the log if there are several, to a command."""
    return click.option(
        "--group",
        metavar="SCHEMA",
        default="",
        help="Of a file with [stage]: the target schema, if there are several.",
    )(function)


# Set by `penstock run`, which has done the checks and gathers the diagnostics itself.
checked_option = click.option("--checked", is_flag=True, hidden=True)


def table_name(text: str, argument: str) -> TableName:
    """Return the table that is written as `schema.table`.

    Raises BadParameter, which names the argument, if the text has another form.
    """
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name:
        raise click.BadParameter(f"{text!r} is not schema.table", param_hint=argument)
    return TableName(schema, name)


def pipeline_config(file: Path, *, takes_merge: bool = False) -> Config:
    """Read a pipeline file that has a source.

    Raises SourceMissing, and the errors of reading the file.

    Args:
        file: The pipeline file.
        takes_merge: A file with [merge] in place of a source is accepted too.
    """
    from penstock.control.pipeline.config import load_config, need_source

    config = load_config(file)
    need_source(config, _typed_command(), takes_merge=takes_merge)
    return config


def _typed_command() -> str:
    """Return the command that runs, as typed after `penstock`, with FILE for the pipeline file."""
    context = click.get_current_context()
    words = context.command_path.split()[1:]
    return " ".join([*words, "FILE", *context.params.get("names", ())])


def any_config(file: Path) -> Config:
    """Read a pipeline file, which may have [stage] in place of a source."""
    from penstock.control.pipeline.config import load_config

    return load_config(file)


def consumed_config(file: Path, group: str) -> Config:
    """Read a pipeline file for consumers; for a file with [stage], the log that `--group` names."""
    from penstock.control.pipeline.config import load_config, need_source
    from penstock.control.pipeline.consumers import select_log

    config = load_config(file)
    if config.stage is None:
        need_source(config, _typed_command(), takes_merge=True)
    return select_log(config, group)


def diagnostics(verbose: bool) -> None:
    """Send diagnostics to the place that the caller wants."""
    from penstock.control.pipeline.diagnostics import configure_diagnostics
    from penstock.host.process import under_parent

    # A child of `penstock run` writes to its standard error: the parent gathers it in a file.
    child = under_parent()
    configure_diagnostics(verbose=verbose and not child, file=sys.stderr if child else None)
