"""The commands for single tables of a pipeline: table ls, add, ..., resync, and resend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.arguments import (
    InOrder,
    common,
    diagnostics,
    pipeline_config,
    pipeline_file,
    table_name,
)
from penstock.cli.output import say_json, say_text

if TYPE_CHECKING:
    from penstock.control.run.pipeline import Tables
    from penstock.control.tables.table_commands import AskedTable
    from penstock.model import TableName


def take_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments FILE NAME... and the common options to a command."""
    names = click.argument("names", metavar="NAME...", nargs=-1, required=True)
    return common(pipeline_file(names(function)))


@click.group(cls=InOrder)
def table() -> None:
    """Add, remove, pause, resume or copy again single tables while the others flow on.

    Nothing is restarted. A request is kept in the pipeline's directory and carried out within a
    second or two, or at the next start if nothing runs. NAME is schema.table.
    """


@table.command("ls")
@pipeline_file
@common
def table_ls(file: Path, as_json: bool, verbose: bool) -> None:
    """List the tables of a pipeline, and the state of each.

    \b
    following   with all others            paused    its changes wait in the log
    waiting     for the extractor          copying   its rows are being copied
    joining     catches up with the others removed   not captured, not applied
    loading     bulk load not done yet     loaded    mode data: its rows are there
    dropped     at the source
    refused     cannot be captured         left out  new, not followed (newTables)
    isolated    cannot be applied, and left behind (onTableError)
    The last three are printed with the reason and the next command.
    Example:     penstock table ls shop.toml --json
    Exit codes:  0 listed, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Pipeline
    from penstock.control.status.show import show_tables

    diagnostics(verbose)
    lines = Pipeline(file).tables.list()
    if as_json:
        for line in lines:
            say_json(line.as_dict())
    else:
        show_tables(lines)


@table.command("add")
@click.option("--enable", is_flag=True, help="let the source record the table's changes first")
@take_names
def table_add(
    file: Path, names: tuple[str, ...], enable: bool, as_json: bool, verbose: bool
) -> None:
    """Capture one more table: its rows are copied, then its changes followed.

    On PostgreSQL the publication is altered. A missing target table is created; one that holds
    foreign rows is refused (`table resync` replaces them). The copy is of one moment and runs
    beside the stream; changes after that moment wait in the log meanwhile and are applied after it,
    in their order. The file's [source] tables need not be changed.

    Some sources record the changes of enabled tables only. There --enable first enables the table,
    with the rights of the user in the source's URL.

    \b
    Example:     penstock table add shop.toml public.coupon
    Exit codes:  0 asked for, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Tables

    _request(file, names, as_json, verbose, partial(Tables.add, enable=enable), "is being added")


@table.command("remove")
@take_names
def table_remove(file: Path, names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Stop capturing and applying a table's changes; its table in the target stays.

    On PostgreSQL the publication is altered. If it is added again, its rows are copied again.

    \b
    Example:     penstock table remove shop.toml public.audit
    Exit codes:  0 asked for, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Tables

    _request(file, names, as_json, verbose, Tables.remove, "is being removed")


@table.command("pause")
@take_names
def table_pause(file: Path, names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Stop applying a table's changes; they are still written to the log and wait there.

    Segments that hold them are kept, also with removeFiles: the log grows while a table is paused.

    \b
    Example:     penstock table pause shop.toml public.item
    Exit codes:  0 asked for, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Tables

    _request(file, names, as_json, verbose, Tables.pause, "is being paused")


@table.command("resume")
@take_names
def table_resume(file: Path, names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Apply the changes that have waited since `table pause`, once and in order.

    \b
    Example:     penstock table resume shop.toml public.item
    Exit codes:  0 asked for, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Tables

    _request(file, names, as_json, verbose, Tables.resume, "goes on")


@table.command("resync")
@take_names
def table_resync(file: Path, names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Empty a table in the target and copy its rows again, then follow its changes.

    The copy is of one moment of the source and runs beside the stream; the other tables flow on.
    A reader of the table meanwhile sees it fill.

    \b
    Example:     penstock table resync shop.toml public.item
    Exit codes:  0 asked for, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.pipeline import Tables

    _request(file, names, as_json, verbose, Tables.resync, "is being copied again")


def _request(
    file: Path,
    names: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    request: Callable[[Tables, TableName], AskedTable],
    said: str,
) -> None:
    """Send the same request for each table, and say when it will be carried out."""
    from penstock.control.run.pipeline import Pipeline

    diagnostics(verbose)
    tables = Pipeline(file).tables
    for name in [table_name(text, "NAME") for text in names]:
        asked = request(tables, name)
        if as_json:
            say_json(asked.as_dict())
        else:
            say_text(f"{name} {said}{'' if asked.is_running else LATER}")
    if not as_json:
        say_text(f"see: penstock table ls {file}")


LATER = "; the pipeline does not run: it is carried out at its next start"
DONE = "The rows are in the change log again."


@click.command()
@pipeline_file
@click.option("--tables", metavar="A,B", default="", help="schema.table, several with commas")
@common
def resend(file: Path, tables: str, as_json: bool, verbose: bool) -> None:
    """Put the rows of tables into the change log again, for consumers that missed some.

    The extractor reads them at one moment and puts them into the log after a reload marker, in log
    order: a change after that moment has the higher version. Consumers get on_reload(table) and
    then the rows, with event.resent; the load replaces the rows that the target has. Rows that were
    deleted meanwhile are not reported: in on_reload, forget the rows that do not arrive again.

    \b
    Example:     penstock resend shop.toml --tables public.item,public.sale
    Exit codes:  0 the rows are in the log, 1 refused or cancelled, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.resend import resend as ask

    config = pipeline_config(file)
    diagnostics(verbose)
    names = [table_name(text.strip(), "--tables") for text in tables.split(",") if text.strip()]
    ask(config, names)
    if as_json:
        say_json({"resent": [str(name) for name in names]})
    else:
        say_text(DONE)
