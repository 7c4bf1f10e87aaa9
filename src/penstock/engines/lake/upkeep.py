"""Upkeep of a lake's tables by the loader, between two batches: small files are joined.

Each batch adds a file and marks rows of others as deleted. Files of one size are joined once there
are eight of them, so a row is written again only a few times, and a table has few files. A file
with many deleted rows is rewritten without them. Readers see the same rows before and after. Not
here: removal of earlier versions and of their files (`expiry.py`).
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from penstock.engines.lake.apply_files import rewrite_groups
from penstock.engines.lake.format import Commit, CommitRefused, LiveFile, Partition
from penstock.engines.lake.opened import OpenLake
from penstock.host import faults
from penstock.model import TableName

logger = structlog.get_logger(__name__)

faults.declare(
    "lake.compact.before", "lake.compact.written", "lake.compact.committed", "lake.compact.after"
)

COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits by which files are chosen.

    Attributes:
        count: Files of one tier that are joined.
        tier_bytes: Size below which a file is of the first tier; each next one is `count` times as
            large.
        tiers: Number of tiers; larger files are not joined.
        dead_part: Part of a file's rows that may be deleted before it is rewritten.
        dead_rows_min: Fewer deleted rows are never a reason.
        run_bytes_max: Bytes that are rewritten between two batches.
    """

    count: int = 8
    tier_bytes: int = 128 * 2**10
    tiers: int = 4
    dead_part: float = 0.25
    dead_rows_min: int = 10_000
    run_bytes_max: int = 256 * 2**20


DEFAULT_LIMITS = Limits()


def choose_files(files: Iterable[LiveFile], limits: Limits) -> list[tuple[LiveFile, ...]]:
    """Return groups of live files, each to be replaced by one file or by none.

    The files of a group are of one partition.
    """
    tiers: defaultdict[tuple[Partition, int], list[LiveFile]] = defaultdict(list)
    groups: list[tuple[LiveFile, ...]] = []
    for file in files:
        live_bytes = file.size_bytes * (file.row_count - file.dead_count) // max(file.row_count, 1)
        is_sparse = (
            file.dead_count >= limits.dead_rows_min
            and file.dead_count > file.row_count * limits.dead_part
        )
        tier = next(
            (n for n in range(limits.tiers) if live_bytes < limits.tier_bytes * limits.count**n),
            None,
        )
        if file.dead_count >= file.row_count or is_sparse:
            groups.append((file,))
        elif tier is not None:
            tiers[file.partition, tier].append(file)
    groups += [tuple(tier) for tier in tiers.values() if len(tier) >= limits.count]
    return groups


def keep_up(lake: OpenLake, names: Iterable[TableName], limits: Limits = DEFAULT_LIMITS) -> int:
    """Join files of these tables, as many as one run may; return the number of files replaced.

    Another writer that is faster is let be: the files are chosen again after a later batch.

    Raises the errors of the workers, of the session and of the format.
    """
    due: dict[TableName, list[tuple[LiveFile, ...]]] = {}
    left = limits.run_bytes_max
    for name in sorted(set(names)):
        for group in choose_files(lake.snapshot(name).files, limits):
            size = sum(file.size_bytes for file in group)
            if size <= left:
                left -= size
                due.setdefault(name, []).append(group)
    return sum(replace_files(lake, due).values())


def replace_files(
    lake: OpenLake, due: Mapping[TableName, Sequence[tuple[LiveFile, ...]]]
) -> dict[TableName, int]:
    """Rewrite groups of files of each table as one file each; return how many were replaced.

    It is 0 for a table whose commit was refused, because another writer was faster.

    Raises the errors of the workers, of the session and of the format.
    """
    if not due:
        return {}
    token = secrets.token_hex(8)
    staged = lake.new_staged(token, [(name, lake.folders_of(name)) for name in due])
    faults.point("lake.compact.before")
    replaced = {
        name: _replace(lake, name, groups, f"{token}-{number}")
        for number, (name, groups) in enumerate(due.items())
    }
    faults.point("lake.compact.after")
    if all(replaced.values()):
        lake.state.remove_staged(token)
    else:
        lake.remove_files(staged, is_begun=True)
    return replaced


def _replace(
    lake: OpenLake, name: TableName, groups: Sequence[tuple[LiveFile, ...]], token: str
) -> int:
    """Rewrite groups of a table's files, and commit; return the number of files replaced.

    It is 0 if another writer was faster.
    """
    snapshot = lake.snapshot(name)
    removed = [file for group in groups for file in group]
    columns = snapshot.columns
    try:
        adds = rewrite_groups(lake, name, groups, before=columns, columns=columns, token=token)
        faults.point("lake.compact.written")
        lake.commit(
            name,
            Commit(
                base_version=snapshot.version,
                adds=adds,
                removes=tuple(file.name for file in removed),
                operation=COMPACT,
            ),
        )
    except CommitRefused as error:
        logger.info("files are joined later", table=str(name), reason=error.message)
        lake.snapshot(name, refresh=True)
        return 0
    faults.point("lake.compact.committed")
    return len(removed)
