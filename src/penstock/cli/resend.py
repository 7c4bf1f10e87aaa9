"""The command resend."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import common, diagnostics, pipeline_config, pipeline_file, table_name
from penstock.cli.output import say_json, say_text

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
