"""The commands that look into a change log: log ls, log cat, log check."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli.arguments import InOrder, common, diagnostics, table_name
from penstock.cli.output import EXIT_FAILED, say_error_line, say_json, say_line


@click.group(cls=InOrder)
def log() -> None:
    """Look into a change log: list segments, print changes, check every byte.

    These read only the files: no server is asked, and the pipeline may run meanwhile.
    """


LOG_PATH = click.Path(path_type=Path)


@log.command("ls")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@common
def log_ls(path: Path, as_json: bool, verbose: bool) -> None:
    """List the segments of a change log: rows, numbers, position, time, size, tables.

    \b
    FILE is a pipeline file, DIRECTORY one that holds segments. The open segment
    ends in _ .
    Example:     penstock log ls shop.toml
    Exit codes:  0 listed, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.status.log_view import describe, find_log, removed_note
    from penstock.control.status.show import show_segments

    diagnostics(verbose)
    place = find_log(path)
    segments = describe(place)
    if as_json:
        for segment in segments:
            say_json(segment)
    else:
        show_segments(segments)
    if note := removed_note(place):
        say_error_line(note)


@log.command("cat")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1, type=click.IntRange(min=0))
@click.option("--table", help="Only this table, as schema.table.")
@common
def log_cat(
    path: Path, numbers: tuple[int, ...], table: str | None, as_json: bool, verbose: bool
) -> None:
    """Print changes as tab-delimited lines: sequence, letter, schema, table, columns.

    \b
    Letters: I insert, U update, D delete, T truncate, B begin and C commit (with
    processCommits), R a table's shape, M another marker. Values are as COPY
    writes them: \\N is NULL, backslash escapes, bytes as hex; \\A is a column that
    was not sent.
    NUMBER picks segments; without one all are printed.
    Example:     penstock log cat shop.toml 3 --table public.orders
    Exit codes:  0 printed, 1 an error (a damaged segment is one), 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.status.log_view import as_object, find_log, format_lines, removed_note

    diagnostics(verbose)
    place = find_log(path)
    if not numbers and (note := removed_note(place)):
        say_error_line(note)
    wanted = None if table is None else table_name(table, "--table")
    for line in format_lines(place, numbers, table=wanted):
        if as_json:
            say_json(as_object(line))
        else:
            say_line(line)


@log.command("check")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@common
def log_check(path: Path, as_json: bool, verbose: bool) -> None:
    """Check every byte of a change log: checksums, numbers, chain, left-overs.

    Changes nothing; each finding says what to do about it. The pipeline may run meanwhile.

    \b
    Example:     penstock log check shop.toml
    Exit codes:  0 whole, 1 damaged or an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.status.log_view import examine_log, find_log
    from penstock.control.status.show import show_log_findings

    diagnostics(verbose)
    findings = examine_log(find_log(path))
    damaged = any(finding.severity == "error" for finding in findings)
    if as_json:
        say_json({"ok": not damaged, "findings": findings})
    else:
        show_log_findings(findings)
    if damaged:
        sys.exit(EXIT_FAILED)
