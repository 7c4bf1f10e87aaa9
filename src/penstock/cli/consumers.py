"""The commands for a pipeline's consumers: consumers ls, add, ..., delete-lost-segment-links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.arguments import (
    InOrder,
    common,
    consumed_config,
    diagnostics,
    group_option,
    pipeline_file,
)
from penstock.cli.output import ask, say, say_json
from penstock.model.segment_order import QUESTION

if TYPE_CHECKING:
    from penstock.ports.config import Config

NAME = click.argument("name", metavar="NAME")
YES = click.option("--yes", is_flag=True, help="Do it without asking.")
ALL = click.option("--all", "with_all", is_flag=True, help="All consumers: cdc.disabled.")


@click.group(cls=InOrder)
def consumers() -> None:
    """List, register, remove, enable, disable, pause and resume a pipeline's consumers.

    `penstock consume FILE NAME` runs one. NAME is that of its section [consumers.NAME].
    """


@consumers.command("ls")
@pipeline_file
@group_option
@common
def consumers_ls(file: Path, group: str, as_json: bool, verbose: bool) -> None:
    """List the consumers: position of each, how far behind it is, and the disk space it holds.

    `target` is the load: the segments in log/ are its links, the target's progress is its state.
    saved and read are numbers of row changes; behind counts those from saved to the end of the log.
    "held back" is the size of segments that have no other name any more.

    \b
    Example:     penstock consumers ls shop.toml --json
    Exit codes:  0 listed, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.status.consumer_list import consumer_lines
    from penstock.control.status.show import show_consumers

    config = consumed_config(file, group)
    diagnostics(verbose)
    lines = consumer_lines(config)
    if as_json:
        for line in lines:
            say_json(line.as_dict())
    else:
        show_consumers(lines)


@consumers.command("add")
@pipeline_file
@NAME
@group_option
@common
def consumers_add(file: Path, name: str, group: str, as_json: bool, verbose: bool) -> None:
    """Register a consumer of the file while the pipeline runs: it has links from the next rotation.

    Its key `start` says where it begins. `penstock run`, `extract` and `consume` register all
    consumers of the file when they start.

    \b
    Example:     penstock consumers add shop.toml search
    Exit codes:  0 registered, or known already; 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.consumer_process import add

    config = consumed_config(file, group)
    diagnostics(verbose)
    is_new = add(config, name)
    text = f"{name} is registered" if is_new else f"{name} was registered already"
    say(
        as_json,
        f"{text}; run it with: penstock consume {file} {name}",
        consumer=name,
        registered=True,
        new=is_new,
    )


@consumers.command("remove")
@pipeline_file
@NAME
@YES
@group_option
@common
def consumers_remove(
    file: Path, name: str, yes: bool, group: str, as_json: bool, verbose: bool
) -> None:
    """Remove a consumer with its links and its saved state. It must not run.

    If it is added again, it begins as a new one.

    \b
    What it changes:  disk: cdc/NAME/ is deleted, with the segments that only this
                      consumer holds
    Example:          penstock consumers remove shop.toml search
    Exit codes:       0 removed; 1 an error, or the answer was no; 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.consumer_process import remove

    config = consumed_config(file, group)
    diagnostics(verbose)
    ask(f"Remove the consumer {name} with its saved state?", yes, as_json)
    remove(config, name)
    say(as_json, f"{name} is removed", consumer=name, removed=True)


def _take_one_or_all(function: Callable[..., Any]) -> Callable[..., Any]:
    name = click.argument("name", metavar="[NAME]", required=False)
    return pipeline_file(name(ALL(group_option(common(function)))))


@consumers.command("enable")
@_take_one_or_all
def consumers_enable(
    file: Path, name: str | None, with_all: bool, group: str, as_json: bool, verbose: bool
) -> None:
    """Give a consumer links again, from the next rotation on.

    The segments written meanwhile are a hole, which the consumer reports: `penstock
    delete-lost-segment-links` lets it continue. --all undoes `disable --all`.

    \b
    Example:     penstock consumers enable shop.toml search
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers import consumer_process as commands

    _switch(
        file,
        name,
        with_all,
        group,
        as_json,
        verbose,
        commands.enable,
        commands.enable_all,
        "enabled",
    )


@consumers.command("disable")
@_take_one_or_all
def consumers_disable(
    file: Path, name: str | None, with_all: bool, group: str, as_json: bool, verbose: bool
) -> None:
    """Give a consumer no further links: it holds no more of the disk, and misses the changes.

    For a consumer that is down for a long time. It keeps the links that it has.

    \b
    Example:     penstock consumers disable shop.toml --all
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers import consumer_process as commands

    _switch(
        file,
        name,
        with_all,
        group,
        as_json,
        verbose,
        commands.disable,
        commands.disable_all,
        "disabled",
    )


@consumers.command("pause")
@pipeline_file
@NAME
@group_option
@common
def consumers_pause(file: Path, name: str, group: str, as_json: bool, verbose: bool) -> None:
    """Give a consumer no events for now; its process stays, and its links are kept.

    \b
    Example:     penstock consumers pause shop.toml search
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.consumer_process import pause

    pause(_config(file, group, verbose), name)
    say(as_json, f"{name} is paused", consumer=name, paused=True)


@consumers.command("resume")
@pipeline_file
@NAME
@group_option
@common
def consumers_resume(file: Path, name: str, group: str, as_json: bool, verbose: bool) -> None:
    """Let a paused consumer continue after the last event that it was given.

    \b
    Example:     penstock consumers resume shop.toml search
    Exit codes:  0 done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.consumer_process import resume

    resume(_config(file, group, verbose), name)
    say(as_json, f"{name} goes on", consumer=name, paused=False)


@click.command("delete-lost-segment-links")
@pipeline_file
@click.option("--consumer", "name", metavar="NAME", help="This one only; else all.")
@YES
@group_option
@common
def delete_lost_segment_links(
    file: Path, name: str | None, yes: bool, group: str, as_json: bool, verbose: bool
) -> None:
    """Let consumers continue after a hole: remove all links before it, and their saved state.

    If a consumer has links 2, 3, 8, 10 and 11, then 2, 3 and 8 are removed, and it begins with 10.
    It misses the changes of the hole: `penstock resend` puts the rows of tables into the log again.
    Refused while the consumer runs.

    \b
    What it changes:  disk: cdc/NAME/
    Example:          penstock delete-lost-segment-links shop.toml \\
                        --consumer search
    Exit codes:       0 done; 1 an error, or the answer was no; 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers.consumer_process import delete_lost

    config = _config(file, group, verbose)
    ask(QUESTION, yes, as_json)
    for lost in delete_lost(config, name):
        say(
            as_json,
            f"{lost.consumer}: {lost.message}",
            consumer=lost.consumer,
            segments=lost.segments,
            message=lost.message,
        )


def _config(file: Path, group: str, verbose: bool) -> Config:
    config = consumed_config(file, group)
    diagnostics(verbose)
    return config


def _switch(
    file: Path,
    name: str | None,
    with_all: bool,
    group: str,
    as_json: bool,
    verbose: bool,
    one: Callable[[Config, str], None],
    every: Callable[[Config], None],
    word: str,
) -> None:
    if (name is None) != with_all:
        raise click.UsageError("name one consumer, or say --all")
    config = _config(file, group, verbose)
    if name is None:
        every(config)
    else:
        one(config, name)
    shown = "all consumers are" if name is None else f"{name} is"
    say(as_json, f"{shown} {word}", consumer=name, state=word)
