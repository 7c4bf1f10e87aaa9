"""A staging database and a target's catalogue in memory, into which tests of the receiver post."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pyarrow as pa

from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.checks import Finding
from penstock.ports.feeds import (
    STUB,
    FeedState,
    Group,
    GroupState,
    Holder,
    Keys,
    Lease,
    Mutation,
    RowState,
    Slice,
    Staged,
    StagedRows,
    StagedTable,
    Window,
    batch_of,
    checkpoint_moved,
    group_name,
    key_empty,
    mutations_of,
)

RowKey = tuple[Hlc, str]
FIRST = Hlc(1, 1)


def _time_of(mark: tuple[str, Hlc, bool]) -> Hlc:
    return mark[1]


class WentBack(PenstockError):
    """Stand-in for the error that an engine's session raises."""

    code = "ST99"


@dataclass
class Row:
    """A row of a mutation table."""

    mutation: Mutation
    applied: bool = False


@dataclass
class FakeStaging:
    """A staging database and its one session.

    Attributes:
        fail: Error that the next call of `stage` raises.
    """

    tables: dict[StagedTable, dict[RowKey, Row]] = field(default_factory=dict)
    checkpoints: dict[str, list[tuple[str, Hlc, bool]]] = field(default_factory=dict)
    joined: dict[tuple[str, str], Hlc] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    applied_at: dict[str, datetime] = field(default_factory=dict)
    memo: dict[str, bytes] = field(default_factory=dict)
    keys: Keys = field(default_factory=lambda: Keys(public=(), revoked=frozenset()))
    fail: PenstockError | None = None
    hold: threading.Event | None = None
    calls: int = 0
    retire_rows_max: int = 10_000
    created: list[bool] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    # -- the database

    def create(self, *, database: bool = True) -> None:
        """Record the call. database: whether it would be created, too."""
        self.created.append(database)

    @contextmanager
    def open_session(self) -> Iterator[FakeStaging]:
        """Yield the staging database: it is its own session."""
        yield self

    def examine(self) -> list[Finding]:
        """Return no findings."""
        return []

    # -- mutations

    def prepare(self, tables: Collection[StagedTable]) -> None:
        for table in tables:
            self.tables.setdefault(table, {})

    def stage(
        self, batches: Mapping[StagedTable, pa.RecordBatch], *, partition: str = ""
    ) -> dict[StagedTable, Staged]:
        with self.lock:
            self.calls += 1
            self._check_unresolved(batches, partition)
            if self.hold is not None:
                self.hold.wait(30)
            if self.fail is not None:
                error, self.fail = self.fail, None
                raise error
            rows = {table: list(mutations_of(batch)) for table, batch in batches.items()}
            for table, found in rows.items():
                if any(not one.key for one in found):
                    raise key_empty(table)
            return {table: self._insert(table, found) for table, found in rows.items()}

    def _insert(self, table: StagedTable, rows: Sequence[Mutation]) -> Staged:
        kept = self.tables.setdefault(table, {})
        last = {(one.time, one.key): one for one in rows}
        new = {place: one for place, one in last.items() if place not in kept}
        kept.update((place, Row(one)) for place, one in new.items())
        return Staged(added=len(new), duplicates=len(rows) - len(new))

    def _check_unresolved(
        self, batches: Mapping[StagedTable, pa.RecordBatch], partition: str
    ) -> None:
        times = [one.time for batch in batches.values() for one in mutations_of(batch)]
        if partition and times:
            group = next(iter(batches)).group
            if min(times) <= self.feed_state(group, partition).resolved:
                raise checkpoint_moved(partition)

    def states_of(self, table: StagedTable, batch: pa.RecordBatch) -> list[RowState]:
        kept = self.tables.get(table, {})
        return [self._state(kept, one) for one in mutations_of(batch)]

    def _state(self, kept: Mapping[RowKey, Row], one: Mutation) -> RowState:
        found = kept.get((one.time, one.key))
        if found is not None:
            return RowState.APPLIED if found.applied else RowState.WAITING
        is_old = any(
            row.applied and key == one.key and time > one.time for (time, key), row in kept.items()
        )
        return RowState.SUPERSEDED if is_old else RowState.NEW

    def stage_if_exists(
        self, table: StagedTable, batch: pa.RecordBatch, *, partition: str = ""
    ) -> pa.RecordBatch:
        self._check_unresolved({table: batch}, partition)
        kept = self.tables.get(table, {})
        waiting = {one.mutation.key for one in kept.values() if not one.applied}
        rows = list(mutations_of(batch))
        self._insert(table, [one for one in rows if one.key in waiting])
        return batch_of(one for one in rows if one.key not in waiting)

    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = self.tables.get(table, {})
        return batch_of(
            one
            for one in mutations_of(batch)
            if (one.time, one.key) not in kept or not kept[one.time, one.key].applied
        )

    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        kept = self.tables.setdefault(table, {})
        for one in mutations_of(batch):
            new = one if keep else Mutation(time=one.time, key=one.key, after=STUB)
            kept.setdefault((one.time, one.key), Row(new)).applied = True

    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> dict[StagedTable, int]:
        found = {}
        for table in tables:
            marked = 0
            for row in self.tables.get(table, {}).values():
                if after < row.mutation.time <= time and not row.applied:
                    row.applied, marked = True, marked + 1
            found[table] = marked
        return found

    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        found: dict[Hlc, dict[StagedTable, list[Mutation]]] = {through: {}}
        for table in tables:
            for (time, _), row in sorted(self.tables.get(table, {}).items()):
                if after < time <= through and (with_applied or not row.applied):
                    of_time = found.setdefault(time, {})
                    of_time.setdefault(table, []).append(row.mutation)
        for time, rows in sorted(found.items()):
            yield Slice(through=time, rows={table: batch_of(some) for table, some in rows.items()})

    def retire(self, table: StagedTable, before: Hlc) -> int:
        kept = self.tables[table]
        self.put_memo(f"retired_{table}", str(before).encode())
        found = (place for place, row in kept.items() if row.applied and place[0] < before)
        old = sorted(found)[: self.retire_rows_max]
        for place in old:
            del kept[place]
        return len(old)

    def retired_before(self, table: StagedTable) -> Hlc:
        found = self.get_memo(f"retired_{table}")
        return Hlc.parse(found.decode()) if found else ZERO

    def stale_count(self, table: StagedTable, before: Hlc) -> int | None:
        old = [row for place, row in self.tables[table].items() if place[0] < before]
        return None if any(row.applied for row in old) else len(old)

    def inconsistent_count(
        self, table: StagedTable, *, after: Hlc = ZERO, limit: int | None = None
    ) -> int:
        return 0

    def staged_tables(self, group: Group) -> tuple[StagedTable, ...]:
        return tuple(sorted(table for table in self.tables if table.group == group))

    # -- looking

    def staged_groups(self) -> tuple[Group, ...]:
        return tuple(sorted({table.group for table in self.tables}))

    def look(self, group: Group, lease: str) -> GroupState:
        window, held = self.window(group), self.leases.get(lease)
        return GroupState(
            window=window,
            holder=None
            if held is None
            else Holder(hostname=self.hosts[lease], expires=held.expires),
            applied_at=self.applied_at.get(group_name(group)),
            now=datetime.now(UTC),
            tables={
                table: self._rows(table, window.committed) for table in self.staged_tables(group)
            },
        )

    def _rows(self, table: StagedTable, committed: Hlc) -> StagedRows:
        kept = self.tables[table]
        times = [time for (time, _), row in kept.items() if not row.applied and time > committed]
        return StagedRows(
            rows=len(kept),
            waiting=len(times),
            oldest=min(times, default=None),
            is_estimate=False,
            size_bytes=100 * len(kept),
        )

    # -- checkpoints

    def group_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.checkpoints))

    def feed_state(self, group: Group, partition: str) -> FeedState:
        window, name = self.window(group), group_name(group)
        times = [time for known, time, _ in self.checkpoints.get(name, []) if known == partition]
        if not times:
            return FeedState(resolved=window.proposed, is_joining=True, window=window)
        resolved = max(times)
        is_joining = self.joined.get((name, partition)) == resolved
        resolved = ZERO if resolved == FIRST else resolved
        return FeedState(resolved=resolved, is_joining=is_joining, window=window)

    def _join(self, group: Group, partition: str) -> None:
        name = group_name(group)
        joined = max(FIRST, self.window(group).proposed)
        marks = self.checkpoints.setdefault(name, [])
        if not any(known == partition for known, _, _ in marks):
            self.joined[name, partition] = joined
            marks.extend((partition, time, True) for time in sorted({FIRST, joined}))

    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        with self.lock:
            self._join(group, partition)
            state = self.feed_state(group, partition)
            if time < state.resolved and not state.is_joining:
                raise WentBack(
                    f"proposed checkpoint timestamp for group={group_name(group)}, "
                    f"partition={partition} is going backwards: {time}; verify changefeed cursor "
                    "or remove already-applied checkpoint timestamp entries",
                    hint="As it says.",
                )
            if time > state.resolved:
                self.checkpoints[group_name(group)].append((partition, time, False))

    def window(self, group: Group) -> Window:
        marks = self.checkpoints.get(group_name(group), [])
        partitions = {name for name, _, _ in marks}
        ends = [
            Window(
                committed=max((t for name, t, done in marks if name == one and done), default=ZERO),
                proposed=max(t for name, t, _ in marks if name == one),
            )
            for one in partitions
        ]
        committed = min((one.committed for one in ends), default=ZERO)
        proposed = min((one.proposed for one in ends), default=ZERO)
        return Window(
            committed=ZERO if committed == FIRST else committed,
            proposed=ZERO if proposed == FIRST else proposed,
        )

    def commit(self, group: Group, through: Hlc) -> None:
        marks = self.checkpoints.get(group_name(group), [])
        marks[:] = [(name, time, applied or time <= through) for name, time, applied in marks]
        partitions = {name for name, _, _ in marks}
        ahead = {name for name, time, _ in marks if time > through}
        for partition in ahead if len(partitions) > 1 else ():
            if (partition, through, True) not in marks:
                marks.append((partition, through, True))
        self.applied_at[group_name(group)] = datetime.now(UTC)

    def forget_checkpoints(self, group: Group, before: Hlc) -> int:
        marks = self.checkpoints.get(group_name(group), [])
        last = {name: time for name, time, applied in sorted(marks, key=_time_of) if applied}
        old = [
            one for one in marks
            if one[2] and FIRST < one[1] < before and one[1] != last[one[0]]
        ]  # fmt: skip
        marks[:] = [one for one in marks if one not in old]
        return len(old)

    def rewind(self, group: Group, time: Hlc) -> None:
        name = group_name(group)
        marks = self.checkpoints.get(name, [])
        partitions = {one for one, _, _ in marks}
        marks[:] = [one for one in marks if one[1] < time]
        marks += [(one, time, True) for one in sorted(partitions)]
        for table in self.staged_tables(group):
            kept = self.tables[table]
            for place in [one for one in kept if one[0] > time]:
                if kept[place].mutation.after == STUB:
                    del kept[place]
                else:
                    kept[place].applied = False

    def forget(self, group: Group) -> None:
        self.checkpoints.pop(group_name(group), None)
        for table in self.staged_tables(group):
            self.tables[table].clear()

    # -- leases, memo, keys

    def acquire(self, names: Sequence[str], lifetime_s: float, hostname: str) -> Lease | datetime:
        now = datetime.now(UTC)
        held = [self.leases[name].expires for name in names if name in self.leases]
        if held and max(held) > now:
            return max(held)
        expires = now + timedelta(seconds=lifetime_s)
        lease = Lease(names=tuple(names), nonce=uuid4(), expires=expires)
        self.leases.update((name, lease) for name in names)
        self.hosts.update((name, hostname) for name in names)
        return lease

    def renew(self, lease: Lease, lifetime_s: float) -> Lease | None:
        if any(self._nonce(name) != lease.nonce for name in lease.names):
            return None
        expires = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        renewed = Lease(names=lease.names, nonce=lease.nonce, expires=expires)
        self.leases.update((name, renewed) for name in lease.names)
        return renewed

    def release(self, lease: Lease) -> None:
        for name in lease.names:
            if self._nonce(name) == lease.nonce:
                del self.leases[name]

    def _nonce(self, name: str) -> UUID | None:
        found = self.leases.get(name)
        return None if found is None else found.nonce

    def get_memo(self, key: str) -> bytes | None:
        return self.memo.get(key)

    def put_memo(self, key: str, value: bytes) -> None:
        self.memo[key] = value

    def read_keys(self) -> Keys:
        return self.keys

    # -- for tests

    def applied_through(self, group: Group) -> int:
        """Apply like the consistent mode, up to the last checkpoint; return the number of rows."""
        through = self.window(group).proposed
        of_group = [table for table in self.tables if table.group == group]
        marked = self.mark_applied_through(of_group, through)
        self.commit(group, through)
        return sum(marked.values())

    def present(self) -> dict[str, list[str]]:
        """Return the keys in the target's tables, as far as applied."""
        found: dict[str, list[str]] = {}
        for table, rows in self.tables.items():
            newest = {
                place[1]: row.mutation.after is not None
                for place, row in sorted(rows.items())
                if row.applied
            }
            if keys := sorted(key for key, is_there in newest.items() if is_there):
                found[table.name] = keys
        return found


SHOP = ("shop", "public")
SHOP_TABLES = {
    "customers": ("id",),
    "orders": ("region", "order_no"),
    "order_lines": ("region", "order_no", "line_no"),
    "all_types": ("id",),
    "blob_keys": ("k",),
    "accounts": ("id",),
    "audit-log": ("id",),
    "keyless": (),
}


@dataclass
class FakeCatalog:
    """The tables of a target.

    Attributes:
        asked: Number of queries.
    """

    schemas: dict[Group, dict[str, tuple[str, ...]]] = field(
        default_factory=lambda: {SHOP: dict(SHOP_TABLES)}
    )
    group_parts: int = 2
    asked: int = 0
    fail: PenstockError | None = None

    def keys(self, group: Group) -> Mapping[str, tuple[str, ...]]:
        self.asked += 1
        self.check()
        return dict(self.schemas.get(group, {}))

    def check(self) -> None:
        if self.fail is not None:
            raise self.fail
