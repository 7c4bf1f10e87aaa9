"""A target schema that changefeeds are applied to, as a pipeline of its own: a group.

It has a directory below that of its pipeline, a log there, and a URL by which the staging database
is its source. `log_id_of` names the row that all instances of a pipeline share: how far the target
is. Not here: the choice of the instance (`penstock.control.feeds.feed_groups`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote, unquote

from penstock.model.hlc import ZERO, Hlc
from penstock.ports.config import Config, SourceSection, TargetSection
from penstock.ports.progress import progress_beside
from penstock.ports.registry import types_at
from penstock.ports.staging import Group, StagedTable, group_name
from penstock.ports.target import SHARED_LOG

_SCHEME = "staged-"  # followed by the name of the target's types, which the rows have
DIRECTORY = "groups"
"""Folder of the groups' directories, below the pipeline's."""
FEEDS = "feeds"
"""Folder of their consumers' directories: it is independent of the instances' turns."""


def source_url(target_url: str, group: Group) -> str:
    """Return the URL that names a group as the source of its log."""
    return f"{_SCHEME}{types_at(target_url)}:///" + "/".join(quote(one, safe="") for one in group)


def group_at(url: str) -> Group:
    """Return the group of a `source_url`."""
    return tuple(unquote(one) for one in url.partition(":///")[2].split("/"))


def log_id_of(config: Config, group: Group) -> str:
    """Return the id of a group's log, the same for all instances of a pipeline."""
    return f"{SHARED_LOG}{config.pipeline.name}/{group_name(group)}"


def lease_of(group: Group) -> str:
    """Return the name of the lease under which an instance works on a group."""
    return f"sequtil.Lease.{group_name(group)}"


def leases_of(group: Group, tables: Iterable[str]) -> list[str]:
    """Return the names of all leases that an instance holds while it works on a group.

    Those of the group's tables are Replicator's, so that it and penstock never work at once.
    """
    names = [f"sequtil.Lease.{str(StagedTable(group, table)).lower()}" for table in tables]
    return [lease_of(group), *sorted(names)]


def source_identity(url: str) -> dict[str, str]:
    """Return the constants of a group's log; see `ports.source.Origin`."""
    return {
        "engine": url.partition(":")[0],
        "flavour": types_at(url),
        "group": group_name(group_at(url)),
    }


def position_behind(time: Hlc) -> int:
    """Return the position of a flush point after everything at or before this time."""
    return time.number + 1


def time_through(position: int) -> Hlc:
    """Return the time of a `position_behind`; the earliest time for the beginning of a log."""
    return Hlc.from_number(position - 1) if position else ZERO


def group_config(config: Config, group: Group) -> Config:
    """Return the pipeline of a group: its directory is below that of the whole pipeline.

    Its log is for the load alone: it begins again at the target's position.
    """
    return replace(_below(config, DIRECTORY, group), consumers={})


def feed_config(config: Config, group: Group) -> Config:
    """Return the pipeline of a group's consumers: a log of their own, which no load removes.

    Its progress is beside it. Not here: the target.
    """
    found = _below(config, FEEDS, group)
    beside = TargetSection(url=progress_beside(found.layout.state))
    return replace(found, has_target=False, target=beside)


def _directory_name(group: Group) -> str:
    """Return one path segment that `unquote` turns into the group's name; never `.` or `..`."""
    name = quote(group_name(group), safe="")
    return name.replace(".", "%2E") if name.strip(".") == "" else name


def feeds(config: Config) -> tuple[str, ...]:
    """Return the names of the groups that have a log for consumers, in order."""
    folder = config.directory / FEEDS
    found = [one for one in folder.iterdir() if one.is_dir()] if folder.exists() else []
    return tuple(sorted(unquote(one.name) for one in found))


def _below(config: Config, folder: str, group: Group) -> Config:
    directory = config.directory / folder / _directory_name(group)
    return replace(
        config,
        pipeline=replace(config.pipeline, directory=str(directory)),
        source=SourceSection(url=source_url(config.target.url, group), tables=()),
    )
