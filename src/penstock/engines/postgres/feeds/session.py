"""A session of a staging database: the port's methods over one connection.

Each is a transaction; whatever the server says comes out typed. Not here: the statements, which are
in the modules beside this one by what they are about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.engines.postgres.connect import quote, statement_error
from penstock.engines.postgres.feeds import (
    checkpoints,
    leases,
    looking,
    memo,
    mutations,
)
from penstock.engines.postgres.feeds.checkpoints import Checkpoints
from penstock.engines.postgres.feeds.prepare import (
    SCHEMA,
    mutation_tables,
    prepare,
    staged_groups,
    staged_tables,
)
from penstock.engines.postgres.feeds.rows import Rows, rows_of
from penstock.host.clock import Clock
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import (
    FeedState,
    Group,
    GroupState,
    Keys,
    KeyTooLong,
    Lease,
    MutationTableGone,
    RowState,
    Slice,
    Staged,
    StagedTable,
    StagingSession,
    Window,
    group_name,
)
from penstock.sql.staging_tables import StagingDialect

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresStagingSession(StagingSession):
    """Session that remembers which tables are prepared, and how far each is retired."""

    def __init__(
        self, connection: psycopg.Connection[Any], dialect: StagingDialect, clock: Clock
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._clock = clock
        self._names: dict[StagedTable, str] = {}
        self._retired: dict[StagedTable, Hlc] = {}
        self._stager = mutations.Stager(dialect)
        self._checkpoints = Checkpoints()

    # -- mutations ---------------------------------------------------------------------------

    def prepare(self, tables: Collection[StagedTable]) -> None:
        for table in sorted(tables):
            if table not in self._names:
                with self._doing(f"making the mutation table of {table}"):
                    name = prepare(self._connection, self._dialect, table)
                self._names[table] = quote(SCHEMA, name)

    def staged_tables(self, group: Group) -> tuple[StagedTable, ...]:
        with self._doing("reading the names of mutation tables"):
            return staged_tables(self._connection, group)

    def stage(
        self, batches: Mapping[StagedTable, pa.RecordBatch], *, partition: str = ""
    ) -> dict[StagedTable, Staged]:
        rows = {table: rows_of(table, batch) for table, batch in batches.items()}
        places = self._places(batches)
        with self._doing("staging mutations"):
            added = self._stager.stage(
                self._connection,
                {places[table]: some for table, some in rows.items()},
                lambda: self._check_unresolved(rows, partition),
            )
        return {
            table: Staged(
                added=added[places[table]], duplicates=batch.num_rows - added[places[table]]
            )
            for table, batch in batches.items()
        }

    def stage_if_exists(
        self, table: StagedTable, batch: pa.RecordBatch, *, partition: str = ""
    ) -> pa.RecordBatch:
        rows = rows_of(table, batch)
        place = self._place(table)
        with self._doing(f"staging mutations of {table}"), self._connection.transaction():
            self._check_unresolved({table: rows}, partition)
            return mutations.stage_if_exists(self._connection, place, rows, batch)

    def _check_unresolved(self, rows: Mapping[StagedTable, Rows], partition: str) -> None:
        """Raise CheckpointMoved for what a feed has resolved; see `StagingSession.stage`."""
        times = [Hlc(int(one.nanos[0]), int(one.logical[0])) for one in rows.values() if len(one)]
        if partition and times:
            group = group_name(next(iter(rows)).group)
            self._checkpoints.check_unresolved(self._connection, group, partition, min(times))

    def states_of(self, table: StagedTable, batch: pa.RecordBatch) -> list[RowState]:
        place = self._place(table)
        with self._doing(f"looking up mutations of {table}"):
            return mutations.states_of(self._connection, place, batch)

    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = self._place(table)
        with self._doing(f"looking up mutations of {table}"):
            return mutations.unapplied_of(self._connection, place, batch)

    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        rows = rows_of(table, batch)
        place = self._place(table)
        with self._doing(f"marking mutations of {table} applied"):
            mutations.mark_applied(self._connection, place, rows, keep=keep)

    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> dict[StagedTable, int]:
        places = self._places(tables)
        with self._doing("marking mutations applied"):
            marked = mutations.mark_applied_through(self._connection, places.values(), after, time)
        return {table: marked[place] for table, place in places.items()}

    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        places = self._places(tables)
        pages = mutations.read(
            self._connection, places, after, through, limit=limit, with_applied=with_applied
        )
        while True:
            with self._doing("reading staged mutations"):
                found = next(pages, None)
            if found is None:
                return
            yield found

    def retire(self, table: StagedTable, before: Hlc) -> int:
        place = self._place(table)
        low = self._retired.get(table, ZERO)
        if low >= before:
            return 0
        if self.retired_before(table) < before:
            self.put_memo(_retired_key(table), str(before).encode())
        with self._doing(f"retiring mutations of {table}"):
            count, self._retired[table] = mutations.retire(
                self._connection, self._dialect, place, low, before
            )
        return count

    def retired_before(self, table: StagedTable) -> Hlc:
        found = self.get_memo(_retired_key(table))
        return Hlc.parse(found.decode()) if found else ZERO

    def stale_count(self, table: StagedTable, before: Hlc) -> int | None:
        place = self._place(table)
        with self._doing(f"counting stale mutations of {table}"):
            return mutations.stale_count(self._connection, place, before)

    def inconsistent_count(
        self, table: StagedTable, *, after: Hlc = ZERO, limit: int | None = None
    ) -> int:
        place = self._place(table)
        with self._doing(f"checking the order of mutations of {table}"):
            return mutations.inconsistent_count(self._connection, place, after, limit)

    def _place(self, table: StagedTable) -> str:
        return self._places([table])[table]

    def _places(self, tables: Collection[StagedTable]) -> dict[StagedTable, str]:
        """Return the mutation tables' names in SQL, after creating those that are not known."""
        self.prepare(tables)
        return {table: self._names[table] for table in tables}

    # -- looking -----------------------------------------------------------------------------

    def staged_groups(self) -> tuple[Group, ...]:
        with self._doing("reading the names of mutation tables"):
            return staged_groups(self._connection)

    def look(self, group: Group, lease: str) -> GroupState:
        connection, name = self._connection, group_name(group)
        with self._doing(f"looking at {name}"):
            window = self._checkpoints.window(connection, name)
            return GroupState(
                window=window,
                holder=looking.holder(connection, lease),
                applied_at=looking.applied_at(connection, name, window.committed),
                now=looking.now(connection),
                tables={
                    table: looking.staged_rows(connection, self._dialect, place, window.committed)
                    for table, place in mutation_tables(connection, group).items()
                },
            )

    # -- checkpoints -------------------------------------------------------------------------

    def group_names(self) -> tuple[str, ...]:
        with self._doing("reading the groups"):
            return checkpoints.group_names(self._connection)

    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        with self._doing("writing a checkpoint"):
            self._checkpoints.advance(self._connection, group_name(group), partition, time)

    def feed_state(self, group: Group, partition: str) -> FeedState:
        with self._doing("reading checkpoints"):
            return self._checkpoints.feed_state(self._connection, group_name(group), partition)

    def window(self, group: Group) -> Window:
        with self._doing("reading checkpoints"):
            return self._checkpoints.window(self._connection, group_name(group))

    def commit(self, group: Group, through: Hlc) -> None:
        with self._doing("marking checkpoints applied"):
            self._checkpoints.commit(self._connection, group_name(group), through)

    def forget_checkpoints(self, group: Group, before: Hlc) -> int:
        with self._doing("deleting checkpoints"):
            return self._checkpoints.forget(self._connection, group_name(group), before)

    def rewind(self, group: Group, time: Hlc) -> None:
        places = self._places(self.staged_tables(group))
        with self._doing("going back to a checkpoint"), self._connection.transaction():
            self._checkpoints.rewind(self._connection, group_name(group), time)
            for place in sorted(places.values()):
                mutations.unmark(self._connection, place, time)

    def forget(self, group: Group) -> None:
        places = self._places(self.staged_tables(group))
        with self._doing("forgetting what is staged"), self._connection.transaction():
            self._checkpoints.forget_all(self._connection, group_name(group))
            for place in sorted(places.values()):
                mutations.empty(self._connection, place)

    # -- leases ------------------------------------------------------------------------------

    def acquire(self, names: Sequence[str], lifetime_s: float, hostname: str) -> Lease | datetime:
        with self._doing("acquiring leases"):
            return leases.acquire(self._connection, names, self._now(), lifetime_s, hostname)

    def renew(self, lease: Lease, lifetime_s: float) -> Lease | None:
        with self._doing("renewing leases"):
            return leases.renew(self._connection, lease, self._now(), lifetime_s)

    def release(self, lease: Lease) -> None:
        with self._doing("releasing leases"):
            leases.release(self._connection, lease)

    def _now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._clock.now_us())

    # -- memo and tokens -----------------------------------------------------------------------

    def get_memo(self, key: str) -> bytes | None:
        with self._doing("reading memo"):
            return memo.get(self._connection, key)

    def put_memo(self, key: str, value: bytes) -> None:
        with self._doing("writing memo"):
            memo.put(self._connection, key, value)

    def read_keys(self) -> Keys:
        with self._doing("reading keys of tokens"):
            return memo.read_keys(self._connection)

    @contextmanager
    def _doing(self, doing: str) -> Iterator[None]:
        """Make the driver's errors typed ones."""
        try:
            yield
        except errors.UndefinedTable as error:
            self._names.clear()  # the next call makes it again
            raise MutationTableGone(
                f"{doing}: {error.diag.message_primary}",
                hint="Do nothing: it is recreated automatically. Unapplied rows are lost.",
            ) from error
        except errors.ProgramLimitExceeded as error:
            raise KeyTooLong(
                f"{doing}: a key is too long: {error.diag.message_primary}",
                hint="PostgreSQL indexes keys of up to about 2,700 bytes of JSON. Leave the table "
                "out of the changefeed, or stage in CockroachDB.",
            ) from error
        except psycopg.Error as error:
            raise statement_error(doing, error) from error


def _retired_key(table: StagedTable) -> str:
    """Return the key in memo for the time up to which a table's applied rows were deleted."""
    return f"retired_{table}"
