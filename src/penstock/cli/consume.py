"""The command that runs a consumer: consume."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import (
    checked_option,
    common,
    consumed_config,
    diagnostics,
    group_option,
    pipeline_file,
)
from penstock.cli.output import say

NAME = click.argument("name", metavar="NAME")


@click.command()
@pipeline_file
@NAME
@click.option(
    "--standby", is_flag=True, help="Wait while another process runs it; take over when it ends."
)
@group_option
@common
@checked_option
def consume(
    file: Path,
    name: str,
    standby: bool,
    group: str,
    as_json: bool,
    verbose: bool,
    checked: bool,
) -> None:
    """Run one consumer: pass every change of the log to the class of [consumers.NAME].

    It continues after its saved state, at its own pace, independently of the load and of other
    consumers. One process at a time runs a consumer: a second one gives up after lockTimeout. Its
    messages go to standard error and to run/consume-NAME.log in the pipeline's directory.

    \b
    What it changes:  disk: cdc/NAME/: its state; links of segments that it has read are removed
    Example:          penstock consume shop.toml search
    Exit codes:       0 stopped as asked, 1 an error (the saved state is unchanged), 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers import consumer_process
    from penstock.control.doctor.past_errors import errors_kept

    config = consumed_config(file, group)
    diagnostics(verbose)
    with errors_kept(config, f"consume {name}"):
        consumer_process.consume(config, name, standby=standby, checked=checked)
    say(as_json, f"stopped: {name} continues after its saved state", stopped=True)
