"""Resolved timestamps: the table `checkpoints`, which is a queue of them for each group.

Not here: what is applied when (`penstock.stage`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import psycopg

from penstock.model.hlc import ZERO, Hlc
from penstock.ports.staging import Window
from penstock.ports.staging_errors import CheckpointGoesBack

FIRST: Final = Hlc(1, 1)
"""The applied checkpoint of a partition that has none."""

# Two sessions that advance one partition take turns, so that the later one sees the other's row.
_LOCK: Final = "select pg_advisory_xact_lock(hashtext('penstock checkpoints'), hashtext(%s))"
_LAST: Final = """
    select source_hlc
      from public.checkpoints
     where group_name = %s and partition = %s
     order by source_hlc desc
     limit 1
"""
_ADD: Final = """
    insert into public.checkpoints (group_name, source_hlc, partition)
    values (%s, %s, %s)
        on conflict do nothing
"""
_ADD_FIRST: Final = """
    insert into public.checkpoints (group_name, source_hlc, partition, target_applied_at)
    select %(group)s, %(time)s, proposed, now()
      from unnest(%(partitions)s::text[]) as proposed
     where not exists (
             select from public.checkpoints
              where group_name = %(group)s and partition = proposed)
        on conflict do nothing
"""
# A partition begins with a mark that is not applied, or with the first one: both are found by an
# index. Those that were seen once are given, since their marks may all be applied.
_PARTITIONS: Final = """
    select partition from public.checkpoints where group_name = %(group)s
       and target_applied_at is null
    union
    select partition from public.checkpoints where group_name = %(group)s and source_hlc = %(time)s
"""
_ALL_PARTITIONS: Final = """
    select distinct partition from public.checkpoints where group_name = %(group)s
"""
_ENDS: Final = """
    select (select source_hlc
              from public.checkpoints
             where group_name = %(group)s and partition = known
               and target_applied_at is not null
             order by source_hlc desc
             limit 1),
           (select source_hlc
              from public.checkpoints
             where group_name = %(group)s and partition = known
             order by source_hlc desc
             limit 1)
      from unnest(%(partitions)s::text[]) as known
"""
_COMMIT: Final = """
    update public.checkpoints
       set target_applied_at = now()
     where group_name = %(group)s and source_hlc <= %(time)s and target_applied_at is null
"""
# What a group has applied is the least that a partition has: so every one gets a mark there, but
# those that have not come so far.
_COMMIT_EACH: Final = """
    insert into public.checkpoints (group_name, source_hlc, partition, target_applied_at)
    select %(group)s, %(time)s, known, now()
      from unnest(%(partitions)s::text[]) as known
     where %(time)s < (
             select max(source_hlc) from public.checkpoints
              where group_name = %(group)s and partition = known)
        on conflict do nothing
"""

# One look into the index for each group: the table has a row for each resolved timestamp.
_GROUPS: Final = """
    with recursive found as (
        select min(group_name) as group_name from public.checkpoints
         union all
        select (select min(group_name) from public.checkpoints
                 where group_name > found.group_name)
          from found
         where found.group_name is not null
    )
    select group_name from found where group_name is not null order by group_name
"""

Connection = psycopg.Connection[Any]


def group_names(connection: Connection) -> tuple[str, ...]:
    """The groups that have marks."""
    return tuple(str(name) for (name,) in connection.execute(_GROUPS).fetchall())


class Checkpoints:
    """The table as one session uses it: it remembers which partitions a group has."""

    def __init__(self) -> None:
        self._partitions: dict[str, set[str]] = {}

    def advance(self, connection: Connection, group: str, partition: str, time: Hlc) -> None:
        """Add a mark. Raises CheckpointGoesBack."""
        with connection.transaction():
            connection.execute(_LOCK, (group,))
            found = connection.execute(_LAST, (group, partition)).fetchone()
            if found is not None and time.decimal < found[0]:
                raise CheckpointGoesBack(
                    f"proposed checkpoint timestamp for group={group}, partition={partition} is "
                    f"going backwards: {time}; verify changefeed cursor or remove already-applied "
                    "checkpoint timestamp entries",
                    hint="Begin the changefeed with cursor = the last resolved timestamp: select "
                    "max(source_hlc) from public.checkpoints where group_name = GROUP;",
                    group=group,
                    partition=partition,
                )
            connection.execute(_ADD, (group, time.decimal, partition))

    def ensure(self, connection: Connection, group: str, partitions: Collection[str]) -> None:
        """Give those that have no mark the first one, applied."""
        given = {"group": group, "time": FIRST.decimal, "partitions": sorted(partitions)}
        connection.execute(_ADD_FIRST, given)

    def window(self, connection: Connection, group: str) -> Window:
        """From the least that a partition has applied to the least that one has come to."""
        given = {"group": group, "partitions": self._known(connection, group)}
        ends = connection.execute(_ENDS, given).fetchall()
        committed = [ZERO if low is None else Hlc.from_decimal(low) for low, _ in ends]
        proposed = [Hlc.from_decimal(high) for _, high in ends if high is not None]
        if len(proposed) < len(ends):  # somebody has deleted all marks of a partition
            del self._partitions[group]
            return self.window(connection, group)
        return Window(committed=min(committed, default=ZERO), proposed=min(proposed, default=ZERO))

    def commit(self, connection: Connection, group: str, through: Hlc) -> None:
        """Mark what is not later as applied."""
        given: dict[str, Any] = {"group": group, "time": through.decimal}
        with connection.transaction():
            given["partitions"] = self._known(connection, group)
            connection.execute(_COMMIT, given)
            if len(given["partitions"]) > 1:
                connection.execute(_COMMIT_EACH, given)

    def _known(self, connection: Connection, group: str) -> list[str]:
        query = _PARTITIONS if group in self._partitions else _ALL_PARTITIONS
        found = connection.execute(query, {"group": group, "time": FIRST.decimal})
        known = self._partitions.setdefault(group, set())
        known.update(partition for (partition,) in found)
        if not known:  # its first mark may be applied when it is seen, which no index finds
            del self._partitions[group]
        return sorted(known)
