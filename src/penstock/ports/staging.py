"""What the stage room asks of a staging database: document 001's tables, behind one Protocol.

An engine's part `staging` makes a `StagingDatabase`. Sessions belong to one thread each; every
error comes out typed. Not here: HTTP, the order of application (`penstock.stage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from penstock.model import TableName
from penstock.model.hlc import Hlc
from penstock.ports.checks import Finding
from penstock.ports.registry import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One row's change as a changefeed sends it.

    key: the raw JSON text of the key's array. after: the raw JSON of the row, None for a removal.
    before: the raw JSON of the row before, None where it was not sent or there was none.
    """

    time: Hlc
    key: str
    after: bytes | None
    before: bytes | None = None


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


class StagingSession(Protocol):
    """One connection to a staging database. Each method is one transaction, but for `read`.

    table: of the target, whose mutation table is made by the first call that names it.
    """

    # -- mutations ---------------------------------------------------------------------------

    def prepare(self, tables: Collection[TableName]) -> None:
        """Make the mutation tables of these target tables, or upgrade them.

        A second table of one lower-cased name gets a hash, which memo remembers.
        """
        ...

    def stage(self, mutations: Mapping[TableName, Sequence[Mutation]]) -> dict[TableName, Staged]:
        """Insert them all or none; redelivered ones change nothing. Raises KeyEmpty."""
        ...

    def stage_if_exists(self, table: TableName, mutations: Sequence[Mutation]) -> list[Mutation]:
        """Stage those whose key has an unapplied row; returns the others."""
        ...

    def unapplied_of(self, table: TableName, mutations: Sequence[Mutation]) -> list[Mutation]:
        """Those that are not marked applied."""
        ...

    def mark_applied(self, table: TableName, mutations: Sequence[Mutation]) -> None:
        """Mark these applied now; what was never staged gets a stub."""
        ...

    def mark_applied_through(self, tables: Collection[TableName], time: Hlc) -> int:
        """Mark every unapplied row at or before time applied now; returns how many."""
        ...

    def read(
        self, tables: Collection[TableName], after: Hlc, through: Hlc, *, limit: int
    ) -> Iterator[tuple[TableName, list[Mutation]]]:
        """Unapplied rows with after < time <= through, merged over the tables by time.

        Each item has the rows of one table and one time, in order of their keys; items of one time
        come together. Streams: at most `limit` rows of a table are in memory.
        """
        ...

    def retire(self, table: TableName, before: Hlc) -> int:
        """Delete applied rows older than this, 10,000 per statement; returns how many."""
        ...

    def stale_count(self, table: TableName, before: Hlc) -> int:
        """Unapplied rows older than this: should be 0."""
        ...

    def inconsistent_count(self, table: TableName) -> int:
        """Keys whose rows were not applied in the order of their times: should be 0."""
        ...

    # -- checkpoints -------------------------------------------------------------------------

    def advance(self, group: str, partition: str, time: Hlc) -> None:
        """A resolved timestamp has come. Equal is accepted. Raises CheckpointGoesBack."""
        ...

    def ensure_partitions(self, group: str, partitions: Collection[str]) -> None:
        """An applied checkpoint 1.0000000001 for each that has none."""
        ...

    def window(self, group: str) -> Window:
        """The window over all partitions: no partition may outrun another."""
        ...

    def commit(self, group: str, through: Hlc) -> None:
        """Everything at or before is in the target: set target_applied_at where it is null."""
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

    def create(self) -> None:
        """Make database, schema and tables that are missing, or upgrade them.

        Several instances may do so at once. Raises StagingUnusable.
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
