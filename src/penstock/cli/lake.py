"""The commands for lakes: lake status, compact, expire."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import (
    InOrder,
    any_config,
    common,
    diagnostics,
    pipeline_file,
    table_name,
)
from penstock.cli.output import say, say_json

VACUUM_HOURS_MIN = 24

names_argument = click.argument("names", metavar="[NAME]...", nargs=-1)


@click.group(cls=InOrder)
def lake() -> None:
    """Look after the tables of a target in Delta Lake or Iceberg by hand.

    The loader does all of this between its batches. These commands start Java of their own, which
    takes some seconds. NAME is schema.table, as it is named in the lake.
    """


@lake.command("status")
@pipeline_file
@common
def lake_status(file: Path, as_json: bool, verbose: bool) -> None:
    """Show files, rows, size and versions of each table of the lake.

    \b
    dead rows   deleted in a file that still has them, until it is rewritten
    versions    that can be read, such as by versionAsOf or a snapshot id
    missing     rows that the log changed and the table lacked: see
                `penstock verify`
    Example:     penstock lake status shop.toml --json
    Exit codes:  0 shown, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.status.show import show_lake
    from penstock.control.tables.lake_upkeep import facts_dict, read_lake

    config = any_config(file)
    diagnostics(verbose)
    tables = read_lake(config)
    if as_json:
        say_json({"tables": facts_dict(tables)})
    else:
        show_lake(tables)


@lake.command("compact")
@pipeline_file
@names_argument
@common
def lake_compact(file: Path, names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Join small files, and rewrite files with many deleted rows.

    Readers see the same rows before and after. The loader may run: if it commits to the table
    meanwhile, the work is repeated, up to 8 times.

    \b
    Example:     penstock lake compact shop.toml public.orders
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.tables.lake_upkeep import compact

    config = any_config(file)
    diagnostics(verbose)
    for done in compact(config, [table_name(text, "NAME") for text in names]):
        say(as_json, f"{done['table']}: {done['files_replaced']} files replaced", **done)


@lake.command("expire")
@pipeline_file
@names_argument
@click.option(
    "--hours",
    type=click.FloatRange(min=VACUUM_HOURS_MIN),
    default=None,
    help="Delta Lake: age at which removed files are deleted; [target] vacuumHours by default.",
)
@common
def lake_expire(
    file: Path, names: tuple[str, ...], hours: float | None, as_json: bool, verbose: bool
) -> None:
    """Remove earlier versions, and the files that no version needs any more.

    Versions that penstock.batches names are kept: [target] versionHours says for how long it does.
    The files of Iceberg's versions are deleted with them.

    \b
    Example:     penstock lake expire shop.toml --hours 48
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.pipeline.display import human_bytes
    from penstock.control.tables.lake_upkeep import expire

    config = any_config(file)
    diagnostics(verbose)
    for done in expire(config, [table_name(text, "NAME") for text in names], hours):
        files = f", {done['files_removed']} files of {human_bytes(done['bytes_removed'])}"
        text = f"{done['table']}: {done['versions_removed']} versions"
        say(as_json, text + (files if done["files_removed"] else ""), **done)
