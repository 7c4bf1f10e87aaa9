"""What commands have in common: the pipeline file, the options, the order in --help."""

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
PORT = click.IntRange(min=0, max=65535)
F = TypeVar("F", bound=Callable[..., Any])


class InOrder(click.Group):
    """A group that lists its commands in the order of use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The commands as they were added."""
        return list(self.commands)


def pipeline_file(function: F) -> F:
    """The argument FILE that most commands take."""
    return click.argument("file", metavar="FILE", type=PIPELINE_FILE)(function)


def common(function: F) -> F:
    """The options that every command has."""
    decorated = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, one object per line, errors too."
    )(function)
    return click.option(
        "-v", "--verbose", is_flag=True, help="Print diagnostics to standard error as well."
    )(decorated)


def group_option(function: F) -> F:
    """The option of commands for consumers that says which log, if there are several."""
    return click.option(
        "--group",
        metavar="SCHEMA",
        default="",
        help="Of a file with [stage]: the target schema, if there are several.",
    )(function)


# Set by `penstock run`, which has done the checks and gathers the diagnostics itself.
checked_option = click.option("--checked", is_flag=True, hidden=True)


def table_name(text: str, argument: str) -> TableName:
    """A table as `schema.table`; anything else is wrong usage of that argument."""
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name:
        raise click.BadParameter(f"{text!r} is not schema.table", param_hint=argument)
    return TableName(schema, name)


def pipeline_config(file: Path, *, takes_merge: bool = False) -> Config:
    """Read a pipeline file that has a source. Raises SourceMissing, and what reading it does.

    takes_merge: one with [merge] will do.
    """
    from penstock.control.config import load_config
    from penstock.control.config_needs import need_source

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
    from penstock.control.config import load_config

    return load_config(file)


def consumed_config(file: Path, group: str) -> Config:
    """Read a pipeline file for consumers: of a file with [stage] what `--group` says."""
    from penstock.control.config import load_config
    from penstock.control.config_needs import need_source
    from penstock.control.consumers import consumed

    config = load_config(file)
    if config.stage is None:
        need_source(config, _typed_command(), takes_merge=True)
    return consumed(config, group)


def diagnostics(verbose: bool) -> None:
    """Send diagnostics to where the caller wants them."""
    from penstock.control.diagnostics import configure_diagnostics
    from penstock.host.process import under_parent

    # A child of `penstock run` writes to its standard error: the parent gathers it in a file.
    child = under_parent()
    configure_diagnostics(verbose=verbose and not child, file=sys.stderr if child else None)
