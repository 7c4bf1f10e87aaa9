"""The command that receives changefeeds: stage."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import common, diagnostics, pipeline_file
from penstock.cli.output import say


@click.command()
@pipeline_file
@click.option("--create", is_flag=True, help="Make the staging database and its tables first.")
@common
def stage(file: Path, create: bool, as_json: bool, verbose: bool) -> None:
    """Receive changefeeds over HTTP and stage them in a database, until stopped.

    \b
    What it changes:  staging database: mutation tables, checkpoints
    Example:          penstock stage cockroach.toml --create
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.config import load_config
    from penstock.control.past_errors import errors_kept
    from penstock.control.stage_process import stage as receive

    config = load_config(file)
    diagnostics(verbose)
    with errors_kept(config, "stage"):
        receive(
            config,
            create=create,
            on_served=lambda url: say(as_json, f"receiving changefeeds at {url}", url=url),
        )
    say(as_json, "stopped", stopped=True)
