"""The command that receives changefeeds: stage."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from penstock.cli.arguments import common, diagnostics, pipeline_file
from penstock.cli.output import say, say_json


@click.command()
@pipeline_file
@click.option(
    "--create", is_flag=True, help="Create the staging database first; its tables always are."
)
@click.option(
    "--rewind",
    default="",
    metavar="TIME",
    help="Have everything after this time applied again, and end: as feeds write times, or 0.",
)
@click.option("--half", type=click.Choice(["load", "extract", "feed"]), hidden=True)
@click.option(
    "--group",
    default="",
    metavar="SCHEMA",
    help="With --rewind: the target schema, if there are several.",
)
@common
def stage(
    file: Path,
    create: bool,
    rewind: str,
    half: str | None,
    group: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Receive changefeeds over HTTP, stage them in a database and apply them, until stopped.

    Its messages go to run/stage.log in the pipeline's directory. While a target schema is far
    behind, a bar shows rows, rate and time to go; an error that holds a schema is printed.

    \b
    What it changes:  staging database: mutation tables, checkpoints; target: the rows
    Example:          penstock stage cockroach.toml
                      penstock stage cockroach.toml --rewind 1700000000000000000.0000000000
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.feeds.feed_process import stage as receive
    from penstock.control.feeds.feed_show import BackfillView, backfills_shown
    from penstock.control.pipeline.config import load_config
    from penstock.control.pipeline.diagnostics import diagnostics_to

    config = load_config(file)
    if half is not None:
        # This is one of the processes that this command starts for a target schema.
        diagnostics(verbose)
        from penstock.control.feeds.feed_groups import run_half

        run_half(config, half, group)
        return
    if rewind:
        diagnostics(verbose)
        from penstock.control.feeds.feed_rewind import rewind as rewind_schema
        from penstock.model.hlc import ZERO, Hlc

        time = ZERO if rewind == "0" else Hlc.parse(rewind)
        schema = rewind_schema(config, group, time)
        say(
            as_json,
            f"{schema} is back at {time}; what is staged after it is applied again, and the feed "
            "may send the rest",
            schema=schema,
            time=str(time),
        )
        return
    log = config.layout.run / "stage.log"
    with (
        errors_kept(config, "stage"),
        diagnostics_to(log, verbose=verbose),
        ExitStack() as stack,
    ):

        def report_address(url: str) -> None:
            say(as_json, f"receiving changefeeds at {url}", url=url)
            view = BackfillView(say_json if as_json else None)
            stack.enter_context(backfills_shown(config, view))

        receive(config, create=create, on_served=report_address)
    say(as_json, "stopped", stopped=True)
