"""Resolved timestamps: the table `checkpoints`, which is a queue of them for each group.

Not here: what is applied when (`penstock.feeds`).
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import CheckpointGoesBack, FeedState, Window, checkpoint_moved

FIRST: Final = Hlc(1, 1)
"""The applied checkpoint that each partition begins with."""

# Two sessions that advance one partition take turns, so that the later one sees the other's row.
# Sessions that stage rows share the lock: a window that is proposed never gets another row.
_LOCK: Final = "select pg_advisory_xact_lock(hashtext('penstock checkpoints'), hashtext(%s))"
_LOCK_SHARED: Final = (
    "select pg_advisory_xact_lock_shared(hashtext('penstock checkpoints'), hashtext(%s))"
)
# A feed that joins has checkpoints that were never unapplied: its equal times tell them.
_LAST: Final = """
    select source_hlc, coalesce(first_seen = target_applied_at, false)
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
_JOIN: Final = """
    insert into public.checkpoints
           (group_name, source_hlc, partition, first_seen, target_applied_at)
    select %(group)s, joined, %(partition)s, now(), now()
      from unnest(%(times)s::decimal[]) as joined
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
    insert into public.checkpoints
           (group_name, source_hlc, partition, first_seen, target_applied_at)
    select %(group)s, %(time)s, known, now() - interval '1 microsecond', now()
      from unnest(%(partitions)s::text[]) as known
     where %(time)s < (
             select max(source_hlc) from public.checkpoints
              where group_name = %(group)s and partition = known)
        on conflict do nothing
"""
_FORGET: Final = """
    delete from public.checkpoints old
     where group_name = %(group)s and source_hlc < %(before)s and source_hlc > %(first)s
       and target_applied_at is not null
       and exists (
             select from public.checkpoints later
              where later.group_name = old.group_name and later.partition = old.partition
                and later.source_hlc > old.source_hlc and later.target_applied_at is not null)
"""
_DELETE_LATER: Final = """
    delete from public.checkpoints where group_name = %(group)s and source_hlc > %(time)s
"""
_REWIND: Final = """
    insert into public.checkpoints
           (group_name, source_hlc, partition, first_seen, target_applied_at)
    select %(group)s, %(time)s, known, now() - interval '1 microsecond', now()
      from unnest(%(partitions)s::text[]) as known
        on conflict (group_name, source_hlc, partition)
        do update set target_applied_at = excluded.target_applied_at
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
    """Return the groups that have marks."""
    return tuple(str(name) for (name,) in connection.execute(_GROUPS).fetchall())


class Checkpoints:
    """Table of checkpoints in one session, which remembers the partitions of each group."""

    def __init__(self) -> None:
        self._partitions: dict[str, set[str]] = {}

    def advance(self, connection: Connection, group: str, partition: str, time: Hlc) -> None:
        """Add a mark. Raises CheckpointGoesBack."""
        with connection.transaction():
            connection.execute(_LOCK, (group,))
            last, is_joining = self._last(connection, group, partition)
            if time < last and is_joining:
                return
            if time < last:
                raise CheckpointGoesBack(
                    f"proposed checkpoint timestamp for group={group}, partition={partition} is "
                    f"going backwards: {time}; verify changefeed cursor or remove already-applied "
                    "checkpoint timestamp entries",
                    hint="Begin the changefeed with cursor = the last resolved timestamp: select "
                    "max(source_hlc) from public.checkpoints where group_name = GROUP; or, to "
                    "apply earlier changes again: penstock stage FILE --rewind TIME",
                    group=group,
                    partition=partition,
                )
            connection.execute(_ADD, (group, time.decimal, partition))

    def feed_state(self, connection: Connection, group: str, partition: str) -> FeedState:
        """Return the state of a group's feed, for `StagingSession`."""
        found = connection.execute(_LAST, (group, partition)).fetchone()
        window = self.window(connection, group)
        if found is None:
            return FeedState(resolved=window.proposed, is_joining=True, window=window)
        resolved, is_joining = _time(found[0]), bool(found[1])
        return FeedState(resolved=resolved, is_joining=is_joining, window=window)

    def _last(self, connection: Connection, group: str, partition: str) -> tuple[Hlc, bool]:
        """Return a partition's last mark and whether it is joining. Call under the lock."""
        found = connection.execute(_LAST, (group, partition)).fetchone()
        if found is not None:
            return _time(found[0]), bool(found[1])
        joined = self.window(connection, group).proposed
        times = sorted({FIRST.decimal, max(FIRST, joined).decimal})
        given = {"group": group, "partition": partition, "times": times}
        connection.execute(_JOIN, given)
        self._partitions.setdefault(group, set()).add(partition)
        return joined, True

    def check_unresolved(
        self, connection: Connection, group: str, partition: str, first: Hlc
    ) -> None:
        """Let no feed resolve anything until the transaction ends.

        first: time of the earliest row that it stages. Raises CheckpointMoved if the feed has
        resolved that, or, before it has resolved anything, the others have.
        """
        connection.execute(_LOCK_SHARED, (group,))
        if first <= self.feed_state(connection, group, partition).resolved:
            raise checkpoint_moved(partition)

    def forget(self, connection: Connection, group: str, before: Hlc) -> int:
        """Remove checkpoints, for `StagingSession.forget_checkpoints`."""
        given = {"group": group, "before": before.decimal, "first": FIRST.decimal}
        return connection.execute(_FORGET, given).rowcount

    def forget_all(self, connection: Connection, group: str) -> None:
        """Delete all marks of a group."""
        connection.execute(_LOCK, (group,))
        connection.execute("delete from public.checkpoints where group_name = %s", (group,))
        self._partitions.pop(group, None)

    def rewind(self, connection: Connection, group: str, time: Hlc) -> None:
        """Delete the marks later than a time; give each partition an applied mark at that time."""
        connection.execute(_LOCK, (group,))
        partitions = self._load_partitions(connection, group)
        given = {"group": group, "time": time.decimal, "partitions": partitions}
        connection.execute(_DELETE_LATER, given)
        connection.execute(_REWIND, given)

    def window(self, connection: Connection, group: str) -> Window:
        """Return the least times that a partition has applied and has received."""
        given = {"group": group, "partitions": self._load_partitions(connection, group)}
        ends = connection.execute(_ENDS, given).fetchall()
        committed = [ZERO if low is None else _time(low) for low, _ in ends]
        proposed = [_time(high) for _, high in ends if high is not None]
        if len(proposed) < len(ends):  # all marks of a partition were deleted
            del self._partitions[group]
            return self.window(connection, group)
        return Window(committed=min(committed, default=ZERO), proposed=min(proposed, default=ZERO))

    def commit(self, connection: Connection, group: str, through: Hlc) -> None:
        """Mark the checkpoints up to a time as applied."""
        given: dict[str, Any] = {"group": group, "time": through.decimal}
        with connection.transaction():
            given["partitions"] = self._load_partitions(connection, group)
            connection.execute(_COMMIT, given)
            if len(given["partitions"]) > 1:
                connection.execute(_COMMIT_EACH, given)

    def _load_partitions(self, connection: Connection, group: str) -> list[str]:
        query = _PARTITIONS if group in self._partitions else _ALL_PARTITIONS
        found = connection.execute(query, {"group": group, "time": FIRST.decimal})
        known = self._partitions.setdefault(group, set())
        known.update(partition for (partition,) in found)
        if not known:  # its first mark may be applied when it is seen, which no index finds
            del self._partitions[group]
        return sorted(known)


def _time(mark: Any) -> Hlc:
    """Return the time of a mark: ZERO for the mark that means none."""
    time = Hlc.from_decimal(mark)
    return ZERO if time == FIRST else time
