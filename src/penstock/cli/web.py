"""The command that serves pages: web."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import PIPELINE_FILE, PORT, any_config, common, diagnostics
from penstock.cli.output import say_web


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PIPELINE_FILE)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=PORT, default=8765, show_default=True, help="Port; 0: any free one.")
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME", help="A name it is called by, too."
)
@common
def web(
    files: tuple[Path, ...],
    host: str,
    port: int,
    allowed: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Show pipelines in a browser, with metrics for Prometheus, until stopped.

    Each has a page: bulk load, replication with the lag as a moving plot, tables, errors, doctor
    and verify with a button, a pause, and buttons for single tables. It is read from the change
    log, the state files and the two databases, whether or not the pipeline runs.
    For a file with [stage]: staged and applied changes, how far those are behind, bars for
    backfills. /metrics and /api/pipelines are for programs.

    \b
    Who has access:   on 127.0.0.1, the default, every user of this machine; with any other
                      --host only those with the token that is printed, or PENSTOCK_WEB_TOKEN
    What it changes:  nothing, unless a button is pressed: the buttons pause and resume the
                      pipeline, and do what `penstock table` does
    Example:          penstock web shop.toml bank.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.web.command import serve

    configs = [any_config(file) for file in files]
    diagnostics(verbose)
    serve(configs, host, port, allowed, say=say_web(as_json))
