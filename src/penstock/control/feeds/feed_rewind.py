"""Applying everything after a time again, and from the beginning: for `stage --rewind` and `reset`.

Either works under the lease of the target schema. A rewind takes the schema over first, so that
late commits of the last holder are refused. The staging database is rewound before the target.
If only that was done, no instance applies anything until the command is repeated (`PositionAhead`).

The source knows nothing of a reset. Without --target everything that is staged is applied again,
as after `penstock stage --rewind 0`; with it the staged rows and the target's rows of these tables
are deleted, and the changefeeds must be created again. Not here: showing and asking
(`penstock.cli.reset`), other pipelines (`run/reset.py`).
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.control.feeds.feed_process import checked_sections
from penstock.control.run.reset import Reset, as_administrator, paths_of, remove_directory
from penstock.feeds.position import TakenOver, check_fence, hold_lease
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.host import faults
from penstock.model import PenstockError, TableName
from penstock.model.hlc import ZERO, Hlc
from penstock.model.removal import Removal
from penstock.model.sections import StageSection
from penstock.ports import reset as at_target
from penstock.ports.config import Config
from penstock.ports.feeds import (
    Group,
    StagingDatabase,
    StagingMissing,
    StagingSession,
    group_name,
    leases_of,
    log_id_of,
    position_behind,
    time_through,
)
from penstock.ports.progress import open_shared_progress
from penstock.ports.row_apply import row_target_at

faults.declare("stage.rewind.staged")


class RewindRefused(PenstockError):
    """A target schema cannot be rewound to this time, or not now."""

    code = "ST48"
    retry = "operator"


def rewind(config: Config, schema: str, time: Hlc) -> str:
    """Apply everything after a time again; return the name of the target schema.

    Args:
        config: Pipeline with [stage].
        schema: The target schema; empty if there is only one.
        time: Time of the source; not later than the applied time.

    Raises:
        RewindRefused: There is no such schema, it is in use, or the time is too late.
    """
    section, database = checked_sections(config)
    with database.open_session() as session:
        group = _group_of(config, session, schema)
    name = group_name(group)
    with held_alone(config, section, database, group):
        go_back(config, database, group, time)
    return name


@contextmanager
def held_alone(
    config: Config, section: StageSection, database: StagingDatabase, group: Group
) -> Iterator[None]:
    """Hold the leases of a target schema for a with block. Raises RewindRefused."""
    with row_target_at(config.target.url).open_session() as rows:
        names = leases_of(group, rows.tables(group))
    with hold_lease(database, names, section.lease_seconds, socket.gethostname()) as lease:
        if isinstance(lease, datetime):
            raise RewindRefused(
                f"an instance works on {group_name(group)}, until {lease:%H:%M:%S} UTC at least",
                hint="Stop all instances of `penstock stage`, then run the command again.",
                group=group_name(group),
            )
        yield


def groups_of(config: Config, names: Iterable[str]) -> dict[str, Group]:
    """Return those of these names that are schemas of the target, by name."""
    schemas = TargetSchemas(config)
    found = [(name, schemas.group_of(name)) for name in sorted(names)]
    return {name: group for name, group in found if group is not None}


def _group_of(config: Config, session: StagingSession, schema: str) -> Group:
    groups = groups_of(config, session.group_names())
    names = [schema] if schema else list(groups)
    if len(names) == 1 and names[0] in groups:
        return groups[names[0]]
    raise RewindRefused(
        f"no feed of target schema {schema} has come" if schema else "which target schema?",
        hint=f"Name one of these with --group: {', '.join(groups) or 'there is none'}",
    )


def go_back(config: Config, database: StagingDatabase, group: Group, time: Hlc) -> None:
    """Rewind a target schema whose leases are held. Raises RewindRefused: the time is too late."""
    log_id = log_id_of(config, group)
    url = config.target.url
    with closing(open_shared_progress(url, application_name="penstock stage")) as progress:
        there = progress.take_over(log_id, str(uuid.uuid4()))
    with database.open_session() as session:
        applied = max(session.window(group).committed, time_through(there.position))
        if time > applied:
            raise RewindRefused(
                f"{group_name(group)} is applied up to {applied}, which is before {time}",
                hint="Name an earlier time.",
                group=group_name(group),
            )
        session.rewind(group, time)
    faults.point("stage.rewind.staged")
    with row_target_at(url).open_session() as rows, rows.transaction():
        before = rows.locked_position(log_id)
        check_fence(group, before, TakenOver(log_id, there.segment))
        if before.position > position_behind(time):
            after = replace(before, position=position_behind(time))
            rows.advance(log_id, before=before, after=after)


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
