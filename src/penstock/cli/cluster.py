"""The command cluster-archive: packs what the executors of a cluster need."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.arguments import common, diagnostics
from penstock.cli.output import say_json, say_text

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
