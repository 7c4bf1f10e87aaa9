"""The command that serves the change log: serve."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import (
    checked_option,
    common,
    diagnostics,
    pipeline_config,
    pipeline_file,
)
from penstock.cli.output import say


@click.command()
@pipeline_file
@common
@checked_option
def serve(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Serve the change log over PostgreSQL's protocol, until stopped: see docs/serve.md.

    Subscribers, pg_recvlogical and drivers follow it like a PostgreSQL server, whatever the source
    is. It runs beside the extractor, or without it. Its messages go to run/serve.log in the
    pipeline's directory.

    \b
    What it changes:  disk: cdc/serve/: links of segments that its slots need;
                      state/: slots, publications, shapes of tables
    Example:          penstock serve shop.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from contextlib import ExitStack

    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.pipeline.diagnostics import diagnostics_to
    from penstock.control.run.serve_process import serve as serve_log

    config = pipeline_config(file, takes_merge=True)
    diagnostics(verbose)
    with errors_kept(config, "serve"), ExitStack() as stack:
        if not checked:
            stack.enter_context(diagnostics_to(config.layout.run / "serve.log", verbose=verbose))
        name = config.pipeline.name

        def report_address(address: str) -> None:
            say(as_json, f"serving {name} at {address}", database=name, address=address)

        serve_log(config, on_served=report_address)
    say(as_json, "stopped", stopped=True)
