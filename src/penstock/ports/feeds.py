"""The port of feeds to a staging database: Replicator's tables, as one Protocol.

An engine's part `staging` makes a `StagingDatabase`. Engines that share the code of one differ in
its SQL (`StagingDialect`). Sessions belong to one thread at a time; every
error is typed. Mutations are passed as Arrow columns (`MUTATIONS`), because a feed has tens of
thousands of them a second; `Mutation` is one of them as an object, for code that looks at single
rows.

A target schema that changefeeds are applied to is a pipeline of its own: a group. It has a
directory below that of its pipeline, a log there, and a URL by which the staging database is its
source. `log_id_of` names the row that all instances of a pipeline share: how far the target is.

Not here: HTTP, the order of application (`penstock.feeds`), the choice of the instance
(`penstock.control.feeds.feed_groups`), errors of servers and connections (`penstock.host.errors`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.model.table import TableName
from penstock.ports.checks import Finding
from penstock.ports.config import Config, SourceSection, TargetSection
from penstock.ports.progress import progress_beside
from penstock.ports.registry import PartName, part, types_at
from penstock.ports.target import SHARED_LOG


class StagingUnusable(PenstockError):
    """The database cannot be used for staging: another server, or other tables of its names."""

    code = "ST20"
    retry = "operator"


class StagingMissing(PenstockError):
    """The staging database or its tables do not exist yet."""

    code = "ST21"
    retry = "operator"


class CheckpointGoesBack(PenstockError):
    """A resolved timestamp is older than an earlier one of the feed."""

    code = "ST23"
    retry = "operator"


class CheckpointMoved(PenstockError):
    """A feed resolved the time of a mutation while the mutation was being staged."""

    code = "ST27"
    retry = "backoff"


def checkpoint_moved(partition: str) -> CheckpointMoved:
    """Return the error for a feed."""
    return CheckpointMoved(
        f"feed {partition} resolved a time while mutations of it were being staged",
        hint="Nothing to do: penstock looks at them again.",
        partition=partition,
    )


class KeyTooLong(PenstockError):
    """A mutation's key is longer than an index of the staging database permits."""

    code = "ST24"
    retry = "operator"


class MutationTableGone(PenstockError):
    """A mutation table was dropped while it was in use."""

    code = "ST25"
    retry = "backoff"


class MutationBroken(PenstockError):
    """A staged value looks compressed, and is not."""

    code = "ST26"
    retry = "operator"


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
the raw JSON of the row, null for a removal. before: the raw JSON of the row before, null if it was
not sent or there was none. Never compressed: compression is between the session and its tables.
"""

STUB = b'{"__stub__":true}'
"""`after` of a row that was marked applied without having been staged: its content is unknown."""

Group = tuple[str, ...]
"""Target schema, unquoted: database and schema, or only the database if it has no schemas.

The table checkpoints has its parts with dots between them (`group_name`).
"""


def group_name(group: Group) -> str:
    """Return the raw name of a target schema: in checkpoints, and as partition of an HTTP feed."""
    return ".".join(group)


class StagedTable(NamedTuple):
    """Table of the target whose mutations are staged: its schema and its name, unquoted."""

    group: Group
    name: str

    def __str__(self) -> str:
        """Return the name with dots, for messages; not quoted."""
        return ".".join((*self.group, self.name))

    @property
    def target(self) -> TableName:
        """Name in the target's other parts: without the database, if that has schemas."""
        return TableName(self.group[-1], self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Change of one row as a changefeed sends it: the fields of `MUTATIONS`."""

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
        return False  # the reader of the row refuses it
    expected = [bytes(row.get(name, msgspec.Raw())) for name in columns]
    return sent != expected and sorted(sent) == sorted(expected)


def batch_of(mutations: Iterable[Mutation]) -> pa.RecordBatch:
    """Return the columns of mutations."""
    rows = [(one.time.nanos, one.time.logical, one.key, one.after, one.before) for one in mutations]
    columns = zip(*rows, strict=True) if rows else [[] for _ in MUTATIONS]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, MUTATIONS, strict=True)],
        schema=MUTATIONS,
    )


def mutations_of(batch: pa.RecordBatch) -> Iterator[Mutation]:
    """Yield each mutation of a batch."""
    columns = [column.to_pylist() for column in batch.columns]
    for nanos, logical, key, after, before in zip(*columns, strict=True):
        yield Mutation(time=Hlc(nanos, logical), key=key, after=after, before=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Outcome of proposed mutations. duplicates: staged before, or repeated in the call."""

    added: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Times of a group between which mutations may be applied. They are equal if none waits.

    committed: everything at or before it is applied. proposed: everything at or before it is
    staged.
    """

    committed: Hlc
    proposed: Hlc


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Progress of one feed into a target schema, which is a partition of the table checkpoints.

    Attributes:
        resolved: Time up to which the feed has sent everything.
        is_joining: Whether the feed has resolved nothing later than the schema's other feeds yet.
            `resolved` is then theirs: of now, or of the time when this one first resolved anything.
            Rows up to there will still arrive.
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
    """Lease: names under which only this holder works until expires (UTC)."""

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
    """Holder of a lease, and its end (UTC); it may have expired."""

    hostname: str
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Content of a mutation table, for people to look at; None: not known.

    Attributes:
        rows: All rows, with those that are applied and not retired yet.
        waiting: Unapplied rows that are later than the committed time.
        oldest: The time of the first waiting row; None also if none waits.
        is_estimate: The table is large, and rows, waiting or both are from a sample of it.
        size_bytes: Its size with indexes.
    """

    rows: int | None
    waiting: int | None
    oldest: Hlc | None
    is_estimate: bool
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """State of a target schema in a staging database at one moment.

    Attributes:
        applied_at: When the last committed checkpoint was marked (UTC); None if none is.
        now: The staging server's clock (UTC).
    """

    window: Window
    holder: Holder | None
    applied_at: datetime | None
    now: datetime
    tables: Mapping[StagedTable, StagedRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Mutations of whole times: a time is never split over two slices.

    Attributes:
        through: The last time that it may have.
        rows: The rows of each table, in order of time and key.
    """

    through: Hlc
    rows: Mapping[StagedTable, pa.RecordBatch]


class KeyEmpty(PenstockError):
    """A mutation has no key: no row could be found by it."""

    code = "ST07"


def key_empty(table: StagedTable) -> KeyEmpty:
    """Return the error for a line without key."""
    return KeyEmpty(
        f"empty key: a line for {table} has none",
        hint="Give the table a primary key; make a feed with a query WITH diff.",
        table=str(table),
    )


class TargetCatalog(Protocol):
    """Catalogue of the target, for the receiver."""

    @property
    @abstractmethod
    def group_parts(self) -> int:
        """Number of names of a target schema: 2, database and schema, or 1, the database."""
        ...

    @abstractmethod
    def keys(self, group: Group, /) -> Mapping[str, tuple[str, ...]]:
        """Return the tables of a schema, each with the columns of its primary key, in their order.

        Empty if there is no such schema. Asks the server each time, and raises the errors of that.
        """
        ...

    @abstractmethod
    def check(self) -> None:
        """Ask the server anything; raises the errors of that."""
        ...


class StagingSession(Protocol):
    """Connection to a staging database. Each method except `read` is one transaction.

    Batches have the columns `MUTATIONS`. A table that was never prepared is created by the first
    call that names it.
    """

    # -- mutations ---------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, tables: Collection[StagedTable]) -> None:
        """Create the mutation tables of these target tables, or upgrade them.

        A second table of one lower-cased name gets a hash, which memo remembers.
        """
        ...

    @abstractmethod
    def staged_tables(self, group: Group) -> tuple[StagedTable, ...]:
        """Return the tables of a target schema that have mutation tables, in order."""
        ...

    @abstractmethod
    def stage(
        self, batches: Mapping[StagedTable, pa.RecordBatch], *, partition: str = ""
    ) -> dict[StagedTable, Staged]:
        """Insert all mutations or none; redelivered ones change nothing.

        If a batch has several rows with one time and key, the last one counts. When it returns,
        they are durable.

        Args:
            batches: Mutations of tables of one target schema.
            partition: The feed that sends them, whose time must not have been resolved: a window
                that is being applied never gets another row. Empty if no feed sends them.

        Raises:
            KeyEmpty: A mutation has no key.
            CheckpointMoved: A mutation is not later than the time that the feed has resolved.
        """
        ...

    @abstractmethod
    def stage_if_exists(
        self, table: StagedTable, batch: pa.RecordBatch, *, partition: str = ""
    ) -> pa.RecordBatch:
        """Stage mutations whose key has an unapplied row; return the others, in their order.

        partition: see `stage`. Raises CheckpointMoved.
        """
        ...

    @abstractmethod
    def states_of(self, table: StagedTable, batch: pa.RecordBatch) -> list[RowState]:
        """Return the state of each mutation, in their order.

        It may read all staged rows of a key, so it is for the few mutations that arrive late.
        """
        ...

    @abstractmethod
    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the mutations that are not marked applied, in their order."""
        ...

    @abstractmethod
    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        """Mark these applied now; rows that were never staged get a stub, or are kept whole."""
        ...

    @abstractmethod
    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> Mapping[StagedTable, int]:
        """Mark as applied every unapplied row later than `after` and not later than `time`; return
        their number.

        Give after, such as the committed time of a window: without it the whole table is read.
        """
        ...

    @abstractmethod
    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        """Yield unapplied rows with after < time <= through, as slices in order of time.

        with_applied: also those that are marked applied, stubs among them. The last slice has
        `through` as its end, even if it is empty. Streams: about `limit` rows of a table are in
        memory, more only if one time has more.
        """
        ...

    @abstractmethod
    def retire(self, table: StagedTable, before: Hlc) -> int:
        """Delete the oldest applied rows older than this, at most 10,000; return how many.

        0: there are none any more. `retired_before` returns the new time before the first is
        deleted.
        """
        ...

    @abstractmethod
    def retired_before(self, table: StagedTable) -> Hlc:
        """Return the time up to which any instance may have deleted applied rows."""
        ...

    @abstractmethod
    def stale_count(self, table: StagedTable, before: Hlc) -> int | None:
        """Return the number of unapplied rows older than this time, such as the retired time:
        should be 0.

        Returns None while applied rows that old exist, too: it is not known then, because retiring
        is late.
        """
        ...

    @abstractmethod
    def inconsistent_count(
        self, table: StagedTable, *, after: Hlc = ZERO, limit: int | None = None
    ) -> int:
        """Return the number of keys whose rows were not applied in the order of their times: should
        be 0.

        It sorts the rows that are later than after, or the first `limit` of these.
        """
        ...

    # -- looking -----------------------------------------------------------------------------

    @abstractmethod
    def staged_groups(self) -> tuple[Group, ...]:
        """Return the target schemas that have mutation tables, in order."""
        ...

    @abstractmethod
    def look(self, group: Group, lease: str) -> GroupState:
        """Return everything about a target schema; changes nothing. lease: the name of its lease.

        Cheap, however large the tables are: it reads a bounded number of rows of each.
        """
        ...

    # -- checkpoints -------------------------------------------------------------------------

    @abstractmethod
    def group_names(self) -> tuple[str, ...]:
        """Return the names of all groups that have a checkpoint, in order."""
        ...

    @abstractmethod
    def feed_state(self, group: Group, partition: str) -> FeedState:
        """Return the state of a feed."""
        ...

    @abstractmethod
    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        """Add a resolved timestamp of a feed. An equal one is accepted.

        With the first one the feed gets applied checkpoints, too: 1.0000000001, and the proposed
        time of the window. So the window never begins earlier because of it, and ends there until
        the feed resolves a later time; earlier ones are accepted until then, and change nothing.
        Raises CheckpointGoesBack afterwards.
        """
        ...

    @abstractmethod
    def window(self, group: Group) -> Window:
        """Return the window over all partitions: no partition may overtake another."""
        ...

    @abstractmethod
    def commit(self, group: Group, through: Hlc) -> None:
        """Mark checkpoints up to a time as applied, because the target has everything up to it."""
        ...

    @abstractmethod
    def forget_checkpoints(self, group: Group, before: Hlc) -> int:
        """Delete applied checkpoints older than this; returns how many.

        The last applied one of each partition stays.
        """
        ...

    @abstractmethod
    def rewind(self, group: Group, time: Hlc) -> None:
        """Apply everything later than a time again; changes are made in one transaction.

        Later checkpoints are deleted, later mutations become unapplied, and later stubs are
        deleted: the feed sends them again. Every partition gets an applied checkpoint of this time.
        """
        ...

    @abstractmethod
    def forget(self, group: Group) -> None:
        """Delete all checkpoints and all staged rows of a target schema, in one transaction."""
        ...

    # -- leases ------------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, names: Sequence[str], lifetime_s: float, hostname: str) -> Lease | datetime:
        """Take all names or none; return a time if another holds one of them until then."""
        ...

    @abstractmethod
    def renew(self, lease: Lease, lifetime_s: float) -> Lease | None:
        """Hold the lease longer. Returns None if it was lost: then stop working at once."""
        ...

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give the lease up, if it is still ours."""
        ...

    # -- memo and tokens -----------------------------------------------------------------------

    @abstractmethod
    def get_memo(self, key: str) -> bytes | None:
        """Return the value of a key."""
        ...

    @abstractmethod
    def put_memo(self, key: str, value: bytes) -> None:
        """Put a value under a key, replacing."""
        ...

    @abstractmethod
    def read_keys(self) -> Keys:
        """Return the active public keys and revoked tokens."""
        ...


class StagingDatabase(Protocol):
    """Part `staging` of an engine, for one URL."""

    @abstractmethod
    def create(self, *, database: bool = True) -> None:
        """Create missing tables, or upgrade them, and on request the database too.

        Several instances may do so at once. Raises StagingUnusable, and StagingMissing if there is
        no database.
        """
        ...

    @abstractmethod
    def open_session(self) -> AbstractContextManager[StagingSession]:
        """Return a session, for a with block. Raises StagingUnusable, StagingMissing."""
        ...

    @abstractmethod
    def examine(self) -> list[Finding]:
        """Return doctor's findings, each with the statement to run."""
        ...


STAGING_PART: PartName[Callable[[str], StagingDatabase]] = PartName("staging")


def staging_at(url: str) -> StagingDatabase:
    """Return the staging database that a URL names."""
    return part(url, STAGING_PART)(url)


_SCHEME = "staged-"  # followed by the name of the target's types, which the rows have

GROUPS = "groups"
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
    return replace(_below(config, GROUPS, group), consumers={})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingDialect:
    """Staging schema in an engine's SQL.

    Texts have places in braces: {table} and {index} are quoted and qualified names, {kept} says how
    a generated column is kept.

    Attributes:
        server: beginning of the text of version().
        tables: name of each table that a staging database has once, to its DDL, which does nothing
            if the table exists.
        mutations: DDL of a mutation table.
        mutation_index: DDL of its index.
        mutation_columns: columns that older tables lack, to their DDL.
        retire: statement that deletes applied rows, oldest first; parameters low nanos and
            logical, end nanos and logical, row limit; returns the number of rows and the largest
            nanos.
        name_bytes_max: maximum size of an identifier.
        copies: rows are written by binary COPY if nothing conflicts.
        size: statement that returns the pages of a mutation table, and its bytes with indexes;
            parameter its name. Empty if the engine has no such thing.
        sample: text after a table's name that reads {percent} % of its pages, each time the same.
            Empty if the engine has no such thing.
        operator_statements: statements that an operator should run, each with the reason;
            {database} is its quoted name.
    """

    shown: str
    server: str
    tables: Mapping[str, str]
    mutations: str
    mutation_index: str
    mutation_columns: Mapping[str, str]
    retire: str
    name_bytes_max: int
    copies: bool
    size: str = ""
    sample: str = ""
    operator_statements: Mapping[str, str] = field(default_factory=dict)
