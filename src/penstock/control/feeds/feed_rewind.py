"""`penstock stage --rewind`: applies everything after a time again.

It works under the lease of the target schema, and takes the schema over first, so that late commits
of the last holder are refused. The staging database is rewound before the target.
If only that was done, no instance applies anything until the command is repeated (`PositionAhead`).
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime

from penstock.control.feeds.feed_process import checked_sections
from penstock.control.feeds.feed_target import TargetSchemas
from penstock.host import faults
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.model.sections import StageSection
from penstock.ports.config import Config
from penstock.ports.progress import open_shared_progress
from penstock.ports.row_apply import row_target_at
from penstock.ports.staging import (
    Group,
    StagingDatabase,
    StagingSession,
    group_name,
    leases_of,
    log_id_of,
    position_behind,
    time_through,
)
from penstock.stage.consistent.lease import hold_lease
from penstock.stage.position import TakenOver, check_fence

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
