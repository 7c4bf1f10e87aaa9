"""The commands that need no pipeline file: init writes one, copy works without one, and
cluster-archive packs what the executors of a cluster need.
"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import common, diagnostics
from penstock.cli.output import say, say_json, say_text
from penstock.model.words import count_words


def _patterns(given: tuple[str, ...]) -> tuple[str, ...]:
    """Split patterns at commas and return them one by one; a quoted pattern is not split."""
    parts = [part for text in given for part in ([text] if '"' in text else text.split(","))]
    return tuple(part.strip() for part in parts if part.strip())


tables_option = click.option(
    "--tables",
    metavar="PATTERN",
    multiple=True,
    help='Tables to take: "public.*", "!public.audit", or several with commas; may be repeated. '
    "All of the source's when not given.",
)


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="[TARGET]", default="")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    help="The file to write; named after the source's database when not given.",
)
@tables_option
@common
def init(
    source: str,
    target: str,
    path: Path | None,
    tables: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Write a pipeline file from two URLs, with the choices and tasks that come first.

    Without TARGET the file is for consumers alone: changes are extracted, and nothing is loaded.

    Looks at both servers as doctor and plan do: the existing tables, values that the target cannot
    hold, with the choices, and the SQL that each server's user still lacks, all as comments in the
    file. The file names environment variables in place of passwords. Changes nothing else.

    \b
    Example:     penstock init postgresql://me:secret@db1/shop \\
                   mysql://me:secret@db2/shop
    Exit codes:  0 written, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.new_pipeline import NewPipeline, draft, pipeline_name, write_file

    diagnostics(verbose)
    file = path or Path(f"{pipeline_name(source)}.toml")
    wanted = NewPipeline(source=source, target=target, tables=_patterns(tables), file=file.name)
    found = draft(wanted)
    write_file(file, found.text)
    exports = [f"export {name}=...   # the password" for name in found.variables]
    words = ("doctor", "run", "verify") if target else ("doctor", "run", "consumers ls")
    commands = [f"penstock {word} {file}" for word in words]
    errors = found.report.errors if found.report is not None else ()
    if as_json:
        say_json(
            {
                "file": str(file),
                "tables": [str(table) for table in found.tables],
                "types": found.config.target.types,
                "variables": list(found.variables),
                "errors": [error.as_dict() for error in errors],
                "next": commands,
            }
        )
        return
    say_text(f"{file}: {count_words(len(found.tables), 'table')}; look at it, it is short")
    if errors:
        say_text(f"to do first, listed at its end with SQL: {count_words(len(errors), 'thing')}")
    say_text("next:")
    loads = ("load in bulk, then follow", "compare both sides")
    follows = ("extract changes, and run the consumers", "how far each of them is")
    meanings = ("what is still to be done", *(loads if target else follows))
    for line in exports:
        say_text(f"  {line}")
    width = max(map(len, commands))
    for command, meaning in zip(commands, meanings, strict=True):
        say_text(f"  {command.ljust(width)}   # {meaning}")


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@tables_option
@click.option(
    "--type",
    "types",
    metavar="LOSS=CHOICE",
    multiple=True,
    help='How to write values that the target cannot hold: "zero dates=null". '
    "Without it such a value is an error.",
)
@common
def copy(
    source: str,
    target: str,
    tables: tuple[str, ...],
    types: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Copy tables once from one database into another; no pipeline file is needed.

    All rows are of one moment; the source stays in use. Missing tables are created in the target.
    State is kept in a folder below the current one until the copy is done, so that the same command
    continues where it was stopped; then the folder is removed, and schema wirekite from the target.
    To follow changes as well, use `penstock init`.

    \b
    What it changes:  target: the tables
                      disk: a folder penstock-copy-... here until it is done
    Example:          penstock copy postgresql://me:secret@db1/shop \\
                        mysql://me:secret@db2/shop \\
                        --tables "public.orders,public.items"
    Exit codes:       0 copied, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.run.new_pipeline import copy_once
    from penstock.control.status.live import make_view

    diagnostics(verbose)
    choices = {}
    for text in types:
        loss, sign, choice = text.partition("=")
        if not sign:
            raise click.BadParameter(f"{text!r} is not LOSS=CHOICE", param_hint="--type")
        choices[loss.strip()] = choice.strip()
    names = copy_once(
        source,
        target,
        tables=_patterns(tables),
        choices=choices,
        folder=Path.cwd(),
        view=make_view(say_json if as_json else None),
        verbose=verbose,
    )
    say(as_json, f"copied {count_words(len(names), 'table')}: {', '.join(names)}", copied=names)


NAME_DEFAULT = "penstock-cluster.tar.gz"


@click.command("cluster-archive")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=NAME_DEFAULT)
@common
def cluster_archive(file: Path, as_json: bool, verbose: bool) -> None:
    """Pack penstock, its kernels and drivers for the executors of a Spark cluster.

    FILE is penstock-cluster.tar.gz unless it is named. The archive has the versions that are
    installed here, and neither Python nor pyspark: the cluster's machines need the same Python, and
    have pyspark with their Spark. Prints the lines to add to the pipeline file.

    \b
    What it changes:
      disk     writes FILE
    \b
    Example:     penstock cluster-archive
    Exit codes:  0 written; 1 an error; 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.load.distributions import properties, write_archive

    diagnostics(verbose)
    packages, conf = write_archive(file), properties(file)
    if as_json:
        say_json({"file": str(file), "packages": packages, "conf": conf})
        return
    size = file.stat().st_size / 2**20
    say_text(f"{file}: {len(packages)} packages, {size:.0f} MiB. In the pipeline file:\n")
    say_text("[spark.conf]")
    for name, value in conf.items():
        say_text(f'"{name}" = "{value}"')
