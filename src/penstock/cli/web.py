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

    A page for each: bulk load, replication with the lag as a moving plot, tables, errors, doctor
    and verify with a button, a pause, and buttons for single tables. It is read from the change
    log, the state files and the two databases, whether or not the pipeline runs.
    Of a file with [stage]: what is staged and applied, how far that is behind, bars for backfills.
    /metrics and /api/pipelines are for programs.

    \b
    Who may come in:  on 127.0.0.1, the default, everybody on this machine; with any other --host
                      who has the token that is printed, or that PENSTOCK_WEB_TOKEN gives
    What it changes:  nothing by itself; its buttons pause and resume the pipeline, and ask what
                      `penstock table` does: add, remove, pause, resume, resync a table
    Example:          penstock web shop.toml bank.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.web.command import serve

    configs = [any_config(file) for file in files]
    diagnostics(verbose)
    serve(configs, host, port, allowed, say=say_web(as_json))
