"""`penstock flexcdc`: FlexCDC's programs as commands, with its own file or a pipeline file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.arguments import CONTEXT, InOrder, checked_option, common, diagnostics
from penstock.cli.output import say, say_error_line, say_text
from penstock.model import TableName
from penstock.model.words import count_words

SCHEMA = click.option(
    "--schema", required=True, metavar="S", help="The table's database or schema."
)
TABLE = click.option("--table", required=True, metavar="T", help="The table's name.")


@click.group(cls=InOrder, context_settings=CONTEXT)
@click.option(
    "--ini",
    type=click.Path(path_type=Path),
    default=Path("consumer.ini"),
    show_default=True,
    metavar="FILE",
    help="FlexCDC's file; or a pipeline file (.toml) with a section [flexcdc].",
)
@click.pass_context
def flexcdc(context: click.Context, ini: Path) -> None:
    """Keep changelog tables of captured tables, or call plugins, as FlexCDC does.

    \b
      penstock flexcdc setup                           make the state tables
      penstock flexcdc add-table --schema s --table t  capture a table
      penstock flexcdc run                             follow the source
    """  # noqa: D301 - click wants the character
    context.obj = ini


@flexcdc.command()
@click.option("--force", is_flag=True, help="Recreate existing state tables.")
@common
@click.pass_obj
def setup(ini: Path, force: bool, as_json: bool, verbose: bool) -> None:
    """Create the state tables in the destination; changes count from the source's position now.

    \b
    What it changes:  dest: database `flexviews` with its state tables
                      disk: the change log begins; with consumer.ini in a
                      folder beside it
                      source: with a pipeline file, the slot that
                      `penstock extract` creates
    Example:          penstock flexcdc --ini consumer.ini setup
    Exit codes:       0 done, 1 an error (state tables are there already, without
                      --force)
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.flexcdc import setup as make

    diagnostics(verbose)
    position = make(ini, force=force)
    where = position or "the begin of the change log"
    say(as_json, f"setup complete: changes count from {where} on", position=position)


@flexcdc.command("add-table")
@SCHEMA
@TABLE
@common
@click.pass_obj
def add_table(ini: Path, schema: str, table: str, as_json: bool, verbose: bool) -> None:
    """Capture a table: its changelog is created; an existing one is recreated.

    With consumer.ini, changes are captured from the running consumer's position, within a second;
    if no consumer runs, from its next start on, or before its first start from `setup` on.

    \b
    What it changes:  dest: the changelog, a row of mvlogs
    Example:          penstock flexcdc add-table --schema shop --table item
    Exit codes:       0 success, 1 failure
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.flexcdc import add_table as add

    diagnostics(verbose)
    name = add(ini, TableName(schema, table))
    say(as_json, "success", changelog=name)


@flexcdc.command("drop-table")
@SCHEMA
@TABLE
@common
@click.pass_obj
def drop_table(ini: Path, schema: str, table: str, as_json: bool, verbose: bool) -> None:
    """Stop capturing a table, and drop its changelog.

    \b
    What it changes:  dest: the changelog, a row of mvlogs
    Example:          penstock flexcdc drop-table --schema shop --table item
    Exit codes:       0 success, 1 failure (it was not captured)
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.flexcdc import drop_table as drop

    diagnostics(verbose)
    drop(ini, TableName(schema, table))
    say(as_json, "success", dropped=f"{schema}.{table}")


@flexcdc.command()
@common
@click.pass_obj
def cleanup(ini: Path, as_json: bool, verbose: bool) -> None:
    """Remove changes older than log_retention_interval from all changelogs, once.

    Run it from cron. The newest unit of work always stays: it carries the last number.

    \b
    What it changes:  dest: rows of changelogs and of mview_uow
    Example:          penstock flexcdc cleanup
    Exit codes:       0 done, 1 an error
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.flexcdc import cleanup as clean

    diagnostics(verbose)
    found = clean(ini)
    total = sum(found.rows.values())
    text = (
        f"removed {count_words(total, 'row')}, up to unit of work {found.uow_id}"
        if found.uow_id
        else ("nothing is old enough")
    )
    say(as_json, text, uow_id=found.uow_id, rows=found.rows)


@flexcdc.command()
@click.option("--pid", type=click.Path(path_type=Path), metavar="FILE", help="Keep the id here.")
@click.option("--daemon", is_flag=True, help="Go on in the background, without a terminal.")
@click.option("--safe", is_flag=True, help="Start again after a failure: see failure_sleep_time.")
@common
@checked_option
@click.pass_obj
def run(
    ini: Path,
    pid: Path | None,
    daemon: bool,
    safe: bool,
    as_json: bool,
    verbose: bool,
    checked: bool,
) -> None:
    """Follow the source until stopped, and write changelogs or call plugins.

    Extracts into a change log in a child process, unless the pipeline is already extracted.
    SIGTERM, SIGINT and SIGHUP end it in order; however it ended, it continues at its position.

    \b
    What it changes:  dest: changelogs and state tables; disk: the change log
    Example:          penstock flexcdc --ini shop.toml run
    Exit codes:       0 stopped as asked, 1 an error, printed with its code and
                      what to do
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.flexcdc import (
        as_daemon,
        error_log,
        pid_file,
        run_flexcdc,
        run_safely,
    )

    diagnostics(verbose)
    tell: Callable[[str], Any] = say_error_line if as_json else say_text
    with pid_file(pid, tell):
        if daemon:
            as_daemon(pid)
        if safe:
            run_safely(ini, [*["--json"] * as_json, *["--verbose"] * verbose])
            return
        with error_log(ini):
            run_flexcdc(ini, say=tell, warn=say_error_line, follows_only=checked)
    say(as_json, "stopped", stopped=True, pid=os.getpid())
