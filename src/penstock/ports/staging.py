"""What the stage room asks of a staging database: document 001's tables, behind one Protocol.

An engine's part `staging` makes a `StagingDatabase`. Sessions belong to one thread at a time; every
error comes out typed. Mutations travel as Arrow columns (`MUTATIONS`), because a feed has tens of
thousands of them a second; `Mutation` is one of them as an object, for what looks at single rows.
Not here: HTTP, the order of application (`penstock.stage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.model.table import TableName
from penstock.ports.checks import Finding
from penstock.ports.registry import part

MUTATIONS = pa.schema(
    [
        pa.field("nanos", pa.int64(), nullable=False),
        pa.field("logical", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("after", pa.binary()),
        pa.field("before", pa.binary()),
    ]
)
"""Columns of a batch of mutations of one table.

nanos, logical: the time (`Hlc`). key: the raw JSON text of the key's array, as it was sent. after:
the raw JSON of the row, null for a removal. before: the raw JSON of the row before, null where it
was not sent or there was none. Never compressed: that is between the session and its tables.
"""

STUB = b'{"__stub__":true}'
"""`after` of what was marked applied without having been staged: nobody knows what it was."""

Group = tuple[str, ...]
"""A target schema, unquoted: database and schema, or the database alone where it has no schemas.

`group_name` in the table checkpoints is its parts with dots between them (`group_name`).
"""


def group_name(group: Group) -> str:
    """The raw name of a target schema: as in checkpoints, and the partition of an HTTP feed."""
    return ".".join(group)


class StagedTable(NamedTuple):
    """A table of the target whose mutations are staged: its schema and its name, unquoted."""

    group: Group
    name: str

    def __str__(self) -> str:
        """With dots, for messages; not quoted."""
        return ".".join((*self.group, self.name))

    @property
    def target(self) -> TableName:
        """As the target's other parts name it: without the database, where that has schemas."""
        return TableName(self.group[-1], self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One row's change as a changefeed sends it: the fields of `MUTATIONS`."""

    time: Hlc
    key: str
    after: bytes | None
    before: bytes | None = None


_KEY = msgspec.json.Decoder(list[msgspec.Raw])
_IMAGE = msgspec.json.Decoder(dict[str, msgspec.Raw])


def has_other_key_order(columns: Sequence[str], key: str, image: bytes | None) -> bool:
    """Return whether a mutation's key has the values of a row's key in another order.

    A delete with such a key would hit another row.

    Args:
        columns: The target's key, in its order.
        key: The key's array, as it was sent.
        image: The row after or before the change; None, or no object, if it is not known.
    """
    if len(columns) < 2 or image is None:
        return False
    try:
        sent = [bytes(one) for one in _KEY.decode(key)]
        row = _IMAGE.decode(image)
    except (msgspec.DecodeError, RecursionError):
        return False  # it is refused where it is read
    expected = [bytes(row.get(name, msgspec.Raw())) for name in columns]
    return sent != expected and sorted(sent) == sorted(expected)


def batch_of(mutations: Iterable[Mutation]) -> pa.RecordBatch:
    """The columns of mutations."""
    rows = [(one.time.nanos, one.time.logical, one.key, one.after, one.before) for one in mutations]
    columns = zip(*rows, strict=True) if rows else [[] for _ in MUTATIONS]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, MUTATIONS, strict=True)],
        schema=MUTATIONS,
    )


def mutations_of(batch: pa.RecordBatch) -> Iterator[Mutation]:
    """Each mutation of a batch."""
    columns = [column.to_pylist() for column in batch.columns]
    for nanos, logical, key, after, before in zip(*columns, strict=True):
        yield Mutation(time=Hlc(nanos, logical), key=key, after=after, before=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What became of proposed mutations. duplicates: staged before, or repeated in the call."""

    added: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What may be applied of a group. Equal where nothing waits.

    committed: everything at or before it is applied. proposed: everything at or before it is here.
    """

    committed: Hlc
    proposed: Hlc


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Progress of one feed into a target schema, which is a partition of the table checkpoints.

    Attributes:
        resolved: Time up to which the feed has sent everything.
        is_joining: Whether the feed has resolved nothing later than the schema's other feeds yet.
            `resolved` is then theirs: of now, or of when this one first resolved anything. Rows up
            to there are still to come.
        window: Window of the schema, over all of its feeds.
    """

    resolved: Hlc
    is_joining: bool
    window: Window


class RowState(Enum):
    """State of a proposed mutation in the staging database.

    Attributes:
        NEW: It is not staged.
        WAITING: It is staged and not applied.
        APPLIED: It is marked applied.
        SUPERSEDED: It is not staged, and a later mutation of its key is marked applied.
    """

    NEW = "new"
    WAITING = "waiting"
    APPLIED = "applied"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Names that this holder alone works under until expires (UTC)."""

    names: tuple[str, ...]
    nonce: UUID
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Public keys (PEM) that sign tokens, and the `jti` of tokens that are revoked."""

    public: tuple[str, ...]
    revoked: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a lease, and until when (UTC); it may have expired."""

    hostname: str
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """What a mutation table holds, for people to look at; None: not known.

    rows: all, with those that are applied and not retired yet. waiting: unapplied ones that are
    later than what is committed. oldest: the time of the first of these; None also where none
    waits. is_estimate: the table is large, and rows, waiting or both are from a sample of it.
    size_bytes: with its indexes.
    """

    rows: int | None
    waiting: int | None
    oldest: Hlc | None
    is_estimate: bool
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """What a staging database says of a target schema at one moment.

    applied_at: when the last committed checkpoint was marked (UTC); None where nothing is. now:
    the staging server's clock (UTC).
    """

    window: Window
    holder: Holder | None
    applied_at: datetime | None
    now: datetime
    tables: Mapping[StagedTable, StagedRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Mutations of whole times: a time is never split over two slices.

    through: the last time that it may have. rows: per table those it has, in order of time and key.
    """

    through: Hlc
    rows: Mapping[StagedTable, pa.RecordBatch]


class KeyEmpty(PenstockError):
    """A mutation without a key: no row could be found by it."""

    code = "ST07"


def key_empty(table: StagedTable) -> KeyEmpty:
    """The error for a line without key."""
    return KeyEmpty(
        f"empty key: a line for {table} has none",
        hint="Give the table a primary key; make a feed with a query WITH diff.",
        table=str(table),
    )


class TargetCatalog(Protocol):
    """What the receiver asks of the target."""

    @property
    def group_parts(self) -> int:
        """How many names a target schema has: 2, database and schema, or 1, the database."""
        ...

    def keys(self, group: Group, /) -> Mapping[str, tuple[str, ...]]:
        """The tables of a schema, each with the columns of its primary key, in their order.

        Empty where there is no such schema. Asks the server each time; raises what that does.
        """
        ...

    def check(self) -> None:
        """Ask the server anything; raises what that does."""
        ...


class StagingSession(Protocol):
    """One connection to a staging database. Each method is one transaction, but for `read`.

    Batches have the columns `MUTATIONS`. A table that was never prepared is made by the first call
    that names it.
    """

    # -- mutations ---------------------------------------------------------------------------

    def prepare(self, tables: Collection[StagedTable]) -> None:
        """Make the mutation tables of these target tables, or upgrade them.

        A second table of one lower-cased name gets a hash, which memo remembers.
        """
        ...

    def staged_tables(self, group: Group) -> tuple[StagedTable, ...]:
        """The tables of a target schema that mutation tables were made for, in order."""
        ...

    def stage(
        self, batches: Mapping[StagedTable, pa.RecordBatch], *, partition: str = ""
    ) -> dict[StagedTable, Staged]:
        """Insert them all or none; redelivered ones change nothing.

        Of rows with one time and key in a batch the last one counts. When it returns, they are
        durable.

        Args:
            batches: Mutations of tables of one target schema.
            partition: The feed that sends them, whose time must not have been resolved: a window
                that is being applied never gets another row. Empty if no feed sends them.

        Raises:
            KeyEmpty: A mutation has no key.
            CheckpointMoved: A mutation is not later than what the feed has resolved.
        """
        ...

    def stage_if_exists(
        self, table: StagedTable, batch: pa.RecordBatch, *, partition: str = ""
    ) -> pa.RecordBatch:
        """Stage those whose key has an unapplied row; returns the others, in their order.

        partition: see `stage`. Raises CheckpointMoved.
        """
        ...

    def states_of(self, table: StagedTable, batch: pa.RecordBatch) -> list[RowState]:
        """Return the state of each mutation, in their order.

        It may read all staged rows of a key, so it is for the few mutations that come late.
        """
        ...

    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those that are not marked applied, in their order."""
        ...

    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        """Mark these applied now; rows that were never staged get a stub, or are kept whole."""
        ...

    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> Mapping[StagedTable, int]:
        """Mark every unapplied row later than after and up to time applied now; how many.

        Give after, such as what a window has committed: without it the whole table is read.
        """
        ...

    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        """Unapplied rows with after < time <= through, as slices in order of time.

        with_applied: also those that are marked applied, stubs among them. The last slice has
        `through` as its end, also where it is empty. Streams: about `limit` rows of a table are in
        memory, more only where one time has more.
        """
        ...

    def retire(self, table: StagedTable, before: Hlc) -> int:
        """Delete the oldest applied rows older than this, at most 10,000; how many.

        0: there are none any more. `retired_before` says so from before the first one goes.
        """
        ...

    def retired_before(self, table: StagedTable) -> Hlc:
        """Applied rows older than this may have been deleted, whoever did it."""
        ...

    def stale_count(self, table: StagedTable, before: Hlc) -> int | None:
        """Unapplied rows older than this, such as what is retired: should be 0.

        None while applied ones are there, too: then it is not known, as retiring is behind.
        """
        ...

    def inconsistent_count(
        self, table: StagedTable, *, after: Hlc = ZERO, limit: int | None = None
    ) -> int:
        """Keys whose rows were not applied in the order of their times: should be 0.

        It sorts the rows that are later than after, of these the first `limit` if that is given.
        """
        ...

    # -- looking -----------------------------------------------------------------------------

    def staged_groups(self) -> tuple[Group, ...]:
        """The target schemas that mutation tables were made for, in order."""
        ...

    def look(self, group: Group, lease: str) -> GroupState:
        """Everything about a target schema; changes nothing. lease: the name of its lease.

        Cheap, however large the tables are: of each it reads a bounded number of rows.
        """
        ...

    # -- checkpoints -------------------------------------------------------------------------

    def group_names(self) -> tuple[str, ...]:
        """The names of all groups that have a checkpoint, in order."""
        ...

    def feed_state(self, group: Group, partition: str) -> FeedState:
        """Return the state of a feed."""
        ...

    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        """Add a resolved timestamp of a feed. An equal one is accepted.

        With the first one the feed gets applied checkpoints, too: 1.0000000001, and the proposed
        time of the window. So the window never begins earlier because of it, and ends there until
        the feed resolves a later time; earlier ones are accepted until then, and change nothing.
        Raises CheckpointGoesBack afterwards.
        """
        ...

    def window(self, group: Group) -> Window:
        """Return the window over all partitions: no partition may outrun another."""
        ...

    def commit(self, group: Group, through: Hlc) -> None:
        """Mark the checkpoints at or before a time applied: all of it is in the target."""
        ...

    def forget_checkpoints(self, group: Group, before: Hlc) -> int:
        """Delete applied checkpoints older than this; returns how many.

        The last applied one of each partition stays.
        """
        ...

    def rewind(self, group: Group, time: Hlc) -> None:
        """Have everything later than a time applied again, in one transaction.

        Later checkpoints are deleted, later mutations are unapplied again, and later stubs are
        deleted: the feed sends them again. Every partition gets an applied checkpoint of this time.
        """
        ...

    def forget(self, group: Group) -> None:
        """Delete all checkpoints and all staged rows of a target schema, in one transaction."""
        ...

    # -- leases ------------------------------------------------------------------------------

    def acquire(self, names: Sequence[str], lifetime_s: float, hostname: str) -> Lease | datetime:
        """All names or none; a time where another holds one of them until then."""
        ...

    def renew(self, lease: Lease, lifetime_s: float) -> Lease | None:
        """Hold it longer; None where it was taken away: stop working at once."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it up, if it is still ours."""
        ...

    # -- memo and tokens -----------------------------------------------------------------------

    def get_memo(self, key: str) -> bytes | None:
        """What was put under a key."""
        ...

    def put_memo(self, key: str, value: bytes) -> None:
        """Put it, replacing."""
        ...

    def read_keys(self) -> Keys:
        """Active public keys and revoked tokens."""
        ...


class StagingDatabase(Protocol):
    """An engine's part `staging`, for one URL."""

    def create(self, *, database: bool = True) -> None:
        """Make tables that are missing, or upgrade them, and the database too if that is wanted.

        Several instances may do so at once. Raises StagingUnusable, and StagingMissing if there is
        no database.
        """
        ...

    def opened(self) -> AbstractContextManager[StagingSession]:
        """A session, for a with block. Raises StagingUnusable, StagingMissing (see `create`)."""
        ...

    def examine(self) -> list[Finding]:
        """For doctor: what is wrong or recommended, each with the statement to run."""
        ...


def staging_at(url: str) -> StagingDatabase:
    """The staging database that a URL names."""
    found: StagingDatabase = part(url, "staging")(url)
    return found
