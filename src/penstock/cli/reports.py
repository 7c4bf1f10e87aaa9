"""The commands that report: status, lag, verify, doctor, plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments import (
    any_config,
    common,
    diagnostics,
    pipeline_config,
    pipeline_file,
)
from penstock.cli.output import EXIT_FAILED, say_json, say_text

if TYPE_CHECKING:
    from penstock.ports.config import Config


@click.command()
@pipeline_file
@common
def status(file: Path, as_json: bool, verbose: bool) -> None:
    """Show what a pipeline is doing: steps, tables, positions, segments, processes, lag, readers.

    Read from the change log, the target and the state files only, never from the memory of a
    process; so it is right whether or not the pipeline runs. If a server cannot be asked, its name,
    since when, and the next try are shown, and what only it knows is shown as unknown.
    Of the log's readers it shows each consumer, the server (`penstock serve`) and its slots.
    For a file with [stage]: for each target schema mode, lease, checkpoints, waiting rows, the last
    problem. Changes nothing.

    \b
    Example:     penstock status shop.toml --json
    Exit codes:  0 shown, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Pipeline
    from penstock.control.status.show import show_status

    config = any_config(file)
    diagnostics(verbose)
    if config.stage is not None:
        _stage_status(config, as_json=as_json)
        return
    found = Pipeline(file).status()
    if as_json:
        say_json(found.as_dict())
    else:
        show_status(found)


def _stage_status(config: Config, *, as_json: bool) -> None:
    from penstock.control.feeds.feed_show import show_stage_status
    from penstock.control.feeds.feed_status import read_stage_status

    found = read_stage_status(config)
    if as_json:
        say_json(found.as_dict())
    else:
        show_stage_status(found)


@click.command()
@pipeline_file
@common
def lag(file: Path, as_json: bool, verbose: bool) -> None:
    """Show how far the target is behind the source, in seconds and in bytes.

    Seconds: the age, by the source's clock, of the oldest commit that is not visible in the
    target; 0 when nothing is outstanding; "at most" while it is unknown whether the source's latest
    writes are of a captured table.
    Bytes: what the source has written and penstock has not extracted, and the extracted changes
    that are not applied.
    An unknown value is shown as unknown (null with --json), with the reason: before the first run,
    while tables are being loaded, while a server cannot be asked.
    For a file with [stage]: the age of the committed checkpoint, for each target schema; the lag in
    all is that of the schema that is furthest behind.
    Changes nothing.

    \b
    Example:     penstock lag shop.toml
    Exit codes:  0 shown, 1 unknown or an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Pipeline
    from penstock.control.status.show import show_lag, show_no_lag

    config = any_config(file)
    diagnostics(verbose)
    if config.stage is not None:
        _stage_lag(config, as_json=as_json)
        return
    found = Pipeline(file).lag()
    if as_json:
        say_json(found.as_dict())
    elif found.lag is not None and found.seconds is not None:
        show_lag(found.lag)
    else:
        show_no_lag(found.status)
    if found.seconds is None:
        sys.exit(EXIT_FAILED)


def _stage_lag(config: Config, *, as_json: bool) -> None:
    from penstock.control.feeds.feed_show import show_stage_lag
    from penstock.control.feeds.feed_status import read_stage_status

    found = read_stage_status(config)
    if as_json:
        say_json(found.lag_dict())
    else:
        show_stage_lag(found)
    if found.lag_s is None:
        sys.exit(EXIT_FAILED)


@click.command()
@pipeline_file
@click.option(
    "--repair",
    is_flag=True,
    help="Write the rows that differ again from the source, in one transaction; asks nothing.",
)
@common
def verify(file: Path, repair: bool, as_json: bool, verbose: bool) -> None:
    """Compare source and target, row by row, at one position, while both are in use.

    Asks the loader to pause at the position at which the source is read, for as long as it
    takes to open a snapshot of the target; then reads both by range checksums, narrowing down to
    the rows that differ. Without a running pipeline everything captured must be applied.
    With --repair the loader stays paused until the rows that differ are written again.

    \b
    What it changes:  nothing, except for a temporary slot on a PostgreSQL source
                      for a moment; with --repair rows of the target, all in
                      one transaction
    Example:          penstock verify shop.toml
    Exit codes:       0 equal, or made so by --repair; 1 not equal (the differing
                      keys are named) or an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.pipeline.actions import StopRequest, stop_on_signals
    from penstock.control.run.pipeline import Pipeline
    from penstock.control.status.show import VerifyBar, show_verify

    diagnostics(verbose)
    pipeline, stop = Pipeline(file), StopRequest()
    with stop_on_signals(stop), VerifyBar(shown=not as_json) as bar:
        result = pipeline.verify(
            repair=repair, on_progress=bar.progress, on_waiting=bar.waiting, stop=stop
        )
    if as_json:
        say_json(result.as_dict())
    else:
        show_verify(result)
    if result.not_compared or not (result.equal or result.repaired):
        sys.exit(EXIT_FAILED)


@click.command()
@pipeline_file
@common
def doctor(file: Path, as_json: bool, verbose: bool) -> None:
    """Check everything that can go wrong, before the first byte moves.

    Looks at this machine, the source and the target, by using each right it needs, and prints
    for each finding what it is, why it matters and the exact SQL that fixes it. E stops a run,
    W is a risk, I is good to know. Changes nothing: each trial is rolled back. For a file with
    [stage] it looks at the staging database.

    \b
    Example:     penstock doctor shop.toml
    Exit codes:  0 no error found, 1 at least one, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.doctor import examine
    from penstock.control.status.show import show_report

    config = any_config(file)
    diagnostics(verbose)
    report = examine(config, executors=True)
    if as_json:
        say_json(report.as_dict())
    else:
        show_report(report)
    if report.errors:
        sys.exit(EXIT_FAILED)


@click.command()
@pipeline_file
@click.option(
    "--ddl",
    is_flag=True,
    help="Print the SQL that creates the tables at a subscriber of `penstock serve`, no plan.",
)
@common
def plan(file: Path, ddl: bool, as_json: bool, verbose: bool) -> None:
    """Say how each column is written to the target, before anything runs.

    Each possible loss is named, with the choices; a pipeline does not start before
    one is chosen in [target.types]. Changes nothing.

    \b
    Example:     penstock plan shop.toml
                 penstock plan shop.toml --ddl | psql SUBSCRIBER-URL
    Exit codes:  0 it may run, 1 something is refused or not chosen, or an error,
                 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.plan import make_plan, plan_lines

    config = pipeline_config(file, takes_merge=True)
    diagnostics(verbose)
    if ddl:
        _print_ddl(config, as_json=as_json)
        return
    found = make_plan(config)
    if as_json:
        say_json(found.as_dict())
    else:
        say_text("\n".join(plan_lines(found)))
    if not found.may_run:
        sys.exit(EXIT_FAILED)


def _print_ddl(config: Config, *, as_json: bool) -> None:
    from penstock.control.run.subscriber_tables import read_subscriber_tables

    found = read_subscriber_tables(config)
    if as_json:
        say_json(found.as_dict())
    else:
        say_text(found.as_sql())
