"""`penstock reset` of a pipeline with [stage].

The source knows nothing of it. Without --target everything that is staged is applied again, as
after `penstock stage --rewind 0`; with it the staged rows and the target's rows of these tables
are deleted, and the changefeeds must be created again. Either works under the leases of each target
schema. Not here: showing and asking (`penstock.cli.reset`), other pipelines (`run/reset.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.control.feeds.feed_process import checked_sections
from penstock.control.feeds.feed_rewind import go_back, groups_of, held_alone
from penstock.control.run.reset import Reset, as_administrator, paths_of, remove_directory
from penstock.model import TableName
from penstock.model.hlc import ZERO
from penstock.model.removal import Removal
from penstock.ports import reset as at_target
from penstock.ports.config import Config
from penstock.ports.staging import Group, StagingMissing, group_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReset:
    """Plan of a reset of staged changefeeds.

    Attributes:
        shown: The removals, for people; its `source` is the staging database.
        groups: The target schemas.
        with_tables: Whether the rows are deleted, too.
    """

    shown: Reset
    groups: tuple[Group, ...]
    with_tables: bool


def look(config: Config, *, with_tables: bool) -> StageReset:
    """Return what a reset would remove; change nothing.

    Raises the errors of the staging database and the target.
    """
    _, database = checked_sections(config)
    groups: tuple[Group, ...] = ()
    tables: list[TableName] = []
    try:
        with database.open_session() as session:
            known = {group_name(one) for one in session.staged_groups()}
            groups = tuple(groups_of(config, known.union(session.group_names())).values())
            for group in groups:
                tables += [one.target for one in session.staged_tables(group)]
    except StagingMissing:
        pass  # nothing was ever staged
    # The progress table stays: another pipeline may have its own there. Ours is rewound.
    emptied = at_target.plan_emptying(config.target.url, tables) if with_tables else ()
    what = "all staged rows and checkpoints" if with_tables else "all marks of what is applied"
    notes = "everything that is staged is applied again by `penstock stage`"
    if with_tables:
        notes = "create the changefeeds again, with their initial scan: the source sends all rows"
    return StageReset(
        shown=Reset(
            source=tuple(
                Removal(what=f"{what} of {group_name(one)} in the staging database", statements=())
                for one in groups
            ),
            target=emptied,
            paths=tuple(paths_of(config)),
            notes=(notes,) if groups else (),
        ),
        groups=groups,
        with_tables=with_tables,
    )


def carry_out(config: Config, reset: StageReset, *, on_done: Callable[[str], None]) -> None:
    """Carry the reset out, inside `at_rest`; safe to repeat.

    Args:
        config: The pipeline.
        reset: The result of `look`.
        on_done: Called with each removed thing.

    Raises:
        RewindRefused: An instance works on a target schema.
        ResetNotAllowed: The role may not empty a table.
    """
    section, database = checked_sections(config)
    with ExitStack() as leases:
        for group in reset.groups:
            leases.enter_context(held_alone(config, section, database, group))
            go_back(config, database, group, ZERO)
        for removal in reset.shown.target:
            with as_administrator(removal):
                at_target.remove(config.target.url, removal)
            on_done(removal.what)
        for group, removal in zip(reset.groups, reset.shown.source, strict=True):
            if reset.with_tables:  # last: the staged rows say which tables are to be emptied
                with database.open_session() as session:
                    session.forget(group)
            on_done(removal.what)
    remove_directory(config)
    if reset.shown.paths:
        on_done(f"directory {config.directory}")
