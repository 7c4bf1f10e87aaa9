"""The command that undoes what a pipeline made: reset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments import any_config, common, diagnostics, pipeline_config, pipeline_file
from penstock.cli.output import ask, say, say_json, say_text

if TYPE_CHECKING:
    from penstock.control.run.reset import Reset


@click.command()
@pipeline_file
@click.option(
    "--target", "with_tables", is_flag=True, help="Empty the target's tables, too: for a new load."
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@common
def reset(file: Path, with_tables: bool, yes: bool, as_json: bool, verbose: bool) -> None:
    """Undo what a pipeline made, so that it can begin from the beginning or be forgotten.

    Shows everything first, with the SQL that it runs, and asks. The pipeline must not run.
    Safe to repeat, also after it was killed. With --target, `penstock run` then loads everything
    again: use that if changes are lost for good.

    \b
    What it changes:
      source   PostgreSQL: drops the pipeline's slot and publication; a pause is
               ended
      target   drops schema (MySQL, MariaDB: database) wirekite; with --target
               drops the tables that penstock made, and empties those that it
               found
      disk     removes the pipeline's directory, with the change log and links of
               consumers

    For a file with [stage]: everything that is staged is applied again; with --target the staged
    rows are deleted and the target's tables emptied, and the feeds send all rows again.

    \b
    Example:     penstock reset shop.toml --target
    Exit codes:  0 done, or nothing to do; 1 an error, or the answer was no;
                 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.pipeline.running import check_not_running
    from penstock.control.run.reset import ResetUnsure, at_rest, carry_out, look

    if as_json and not yes:
        raise click.UsageError("--json needs --yes: no question can be asked")
    if any_config(file).stage is not None:
        diagnostics(verbose)
        _reset_stage(file, with_tables=with_tables, yes=yes, as_json=as_json)
        return
    config = pipeline_config(file, takes_merge=True)
    diagnostics(verbose)
    check_not_running(config, "run", "extract", "load")
    found = look(config, with_tables=with_tables)
    if as_json:
        say_json(found.as_dict())
    else:
        _show(found)
    if found.is_empty:
        say(as_json, "nothing to take back", done=True)
        return
    if yes and found.unsure:
        raise ResetUnsure(
            found.unsure,
            hint=f"Look at what it shows, and answer yourself: penstock reset {file}"
            f"{' --target' if with_tables else ''}",
        )
    ask("Remove all this?", yes, as_json)
    with at_rest(config):
        carry_out(config, found, on_done=lambda what: say(as_json, f"gone: {what}", gone=what))
    if with_tables or not config.pipeline.mode.has_data:
        following = f"begin afresh with: penstock run {file}"
    else:
        following = "the target's tables keep their rows"
    say(as_json, f"done; {following}", done=True)


def _reset_stage(file: Path, *, with_tables: bool, yes: bool, as_json: bool) -> None:
    from penstock.control.feeds.feed_rewind import carry_out, look
    from penstock.control.run.reset import at_rest

    config = any_config(file)
    found = look(config, with_tables=with_tables)
    if as_json:
        say_json(found.shown.as_dict())
    else:
        _show(found.shown)
    if found.shown.is_empty:
        say(as_json, "nothing to take back", done=True)
        return
    ask("Remove all this?", yes, as_json)
    with at_rest(config):
        carry_out(config, found, on_done=lambda what: say(as_json, f"gone: {what}", gone=what))
    say(as_json, f"done; begin afresh with: penstock stage {file}", done=True)


def _show(found: Reset) -> None:
    for removal in (*found.source, *found.target):
        say_text(f"{removal.what}{': ' + removal.by_hand if removal.by_hand else ''}")
        for statement in removal.statements:
            say_text(f"    {statement}")
    for path in found.paths:
        say_text(f"on disk: {path}")
    for note in (*found.notes, *([found.unsure] if found.unsure else [])):
        say_text(f"note: {note}")
