"""A target schema that changefeeds are applied to, as a pipeline of its own: a group.

It has a directory below that of its pipeline, a log there, and a URL by which the staging database
is its source. What instances of one pipeline share is named by `log_id_of`: the row that says how
far the target is. Not here: who works on a group (`penstock.control.stage_groups`).
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

_SCHEME = "staged-"  # and whose types the rows have: those of the target
DIRECTORY = "groups"
"""Where the groups' directories are, below the pipeline's."""
FEEDS = "feeds"
"""Where those of their consumers are: what instances do in turn does not concern them."""


def source_url(target_url: str, group: Group) -> str:
    """What names a group as the source of its log."""
    return f"{_SCHEME}{types_at(target_url)}:///" + "/".join(quote(one, safe="") for one in group)


def group_at(url: str) -> Group:
    """The inverse of `source_url`."""
    return tuple(unquote(one) for one in url.partition(":///")[2].split("/"))


def log_id_of(config: Config, group: Group) -> str:
    """What a group's log is called by all instances of a pipeline."""
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
    """What never changes in the life of a group's log; see `ports.source.Origin`."""
    return {
        "engine": url.partition(":")[0],
        "flavour": types_at(url),
        "group": group_name(group_at(url)),
    }


def position_behind(time: Hlc) -> int:
    """The position of a flush point: everything at or before this time is in front of it."""
    return time.number + 1


def time_through(position: int) -> Hlc:
    """The inverse of `position_behind`; the earliest time for the beginning of a log."""
    return Hlc.from_number(position - 1) if position else ZERO


def group_config(config: Config, group: Group) -> Config:
    """The pipeline of a group: its directory is below that of the whole pipeline.

    Its log is for the load alone: it begins anew wherever the target is.
    """
    return replace(_below(config, DIRECTORY, group), consumers={})


def feed_config(config: Config, group: Group) -> Config:
    """The pipeline of a group's consumers: a log of their own, which no load removes.

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
    """The names of the groups that have a log for consumers, in order."""
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
