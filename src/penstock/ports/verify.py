"""The port for comparing and repairing tables: readers at one point, their SQL, and the repair.

`verifier_of` finds an engine by its URL. A repair is one target transaction: a row with the applied
position is locked first, so that no loader commits meanwhile; rows that differ are deleted, and
copied from the source as in the bulk load. Not here: comparing (`control.verify.compare`), and when
a repair is permitted (`control`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from penstock.codec.server_pair import ServerPair
from penstock.model import PenstockError, Retry, TableDefinition, TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.config import Config
from penstock.ports.registry import PartName, part
from penstock.ports.target import Applied

APPLICATION_NAME = "penstock verify"

PART_BYTES = 256 * 2**20

ARRAY_ROWS = 50_000

KEY_TEXT_LENGTH_MAX = 200  # longest key in a result, in characters

Hashes = npt.NDArray[np.int64]
"""Rows as numbers, shape (rows, 4): key hash 1, key hash 2, row hash 1, row hash 2."""


class TableGone(PenstockError):
    """A table that should be compared does not exist on one of the sides."""

    code = "VF01"


class TableChangedMeanwhile(PenstockError):
    """A table was truncated or rewritten between the snapshot and our lock on it."""

    code = "VF03"
    retry: ClassVar[Retry] = "backoff"


def table_gone(table: TableName, side: str) -> TableGone:
    """Return the error for a table that does not exist. side: source or target."""
    return TableGone(
        f"there is no table {table} in the {side}",
        hint="See `penstock table ls`: a table that is new is added, or left out, by "
        "newTables; a captured one comes back by `penstock table resync`. Else check "
        "tables and [target.map].",
    )


class Hasher(StrEnum):
    """Function that turns images into numbers.

    Attributes:
        FAST: The server's own 64-bit hash of text; the same on servers of one byte order and one
            encoding, which is probed.
        SHA256: The same on all servers of an engine, at about twice the time.
        SHARED: The same on every engine, for images of `control.verify.compare`; one sum per
            bucket in place of two, because some servers would compute the image again for the
            second one.
    """

    FAST = "fast"
    SHA256 = "sha256"
    SHARED = "shared"

    @property
    def way(self) -> str:
        """Description, for people, of how the tables are compared."""
        return {
            Hasher.FAST: "checksums computed by each server, with its own hash",
            Hasher.SHA256: "checksums computed by each server, with SHA-256",
            Hasher.SHARED: "checksums computed by each server, with SHA-256 over the texts by "
            "which the table of types compares",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Piece of a table that one query reads. where: a range as SQL; empty: the whole relation."""

    relation: TableName
    size_bytes: int = 0
    where: str = ""

    @property
    def condition(self) -> str:
        """Range as SQL; `true` for the whole relation."""
        return self.where or "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """SQL of one side for a table's rows: the text of the key and of the whole row.

    key is the row itself for a table without a key. name: the text of a key for people; the key
    itself if empty.
    """

    key: str
    row: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCell:
    """Column on one side.

    Attributes:
        text: Template of the text by which it is compared.
        is_any: The text can hold anything.
        is_long: It enters as a digest.
        is_bytes: With is_long, the digest is of its unchanged bytes.
    """

    name: str
    text: str
    is_any: bool
    is_long: bool
    is_bytes: bool


def key_columns(table: TableDefinition) -> tuple[str, ...]:
    """Return the columns that name a row: the primary key, else the replica identity index, else
    none.
    """
    if table.primary_key:
        return table.primary_key
    names = {column.name for column in table.columns if not column.generated}
    return table.identity_columns if set(table.identity_columns) != names else ()


class Dialect(Protocol):
    """SQL of images and checksums in one engine's words. Two readers of one engine share it."""

    @abstractmethod
    def column_name(self, name: str, /) -> str:
        """Return a column's name as in `VerifyReader.column_types`, whose case may be ignored."""
        ...

    @abstractmethod
    def image(self, cells: Sequence[ComparedCell], key: Sequence[ComparedCell], /) -> Image:
        """Return SQL for rows that every engine prints alike. key: may be empty."""
        ...

    @abstractmethod
    def is_long(self, type_text: str, /) -> bool:
        """Return whether values of a type of this engine enter an image as digests."""
        ...

    @abstractmethod
    def printed_images(
        self, table: TableDefinition, target_types: Mapping[str, str], /
    ) -> tuple[Image, Image] | None:
        """Return images of source and target for two servers of this engine, which prints the rows.

        target_types: type by column name; must name every column. None for an engine without
        `Descriptor.has_same_types`.
        """
        ...

    @abstractmethod
    def bucket_query(self, image: Image, part: Part, buckets: int, hasher: Hasher, /) -> str:
        """Return SQL for the checksums of one part.

        Its rows are `(bucket, rows, sum of hash 1, sum of hash 2)`; the last is 0 with
        Hasher.SHARED.
        """
        ...

    @abstractmethod
    def rows_query(
        self,
        image: Image,
        parts: Sequence[Part],
        buckets: int,
        differing: Sequence[int],
        hasher: Hasher,
        /,
    ) -> str:
        """Return SQL for the rows of the differing buckets as `Hashes`, ordered by key hash 1.

        differing: bucket numbers, all of them ours, hence safe as literals.
        """
        ...

    @abstractmethod
    def names_query(
        self, image: Image, parts: Sequence[Part], hashes: Sequence[int], hasher: Hasher, /
    ) -> str:
        """Return SQL for keys as text.

        Its rows are `(key hash 1, key hash 2, text cut to KEY_TEXT_LENGTH_MAX)`. hashes: first
        hashes of the wanted keys.
        """
        ...

    @abstractmethod
    def chosen_rows(
        self,
        image: Image,
        buckets: int,
        differing: Sequence[int],
        keys: Sequence[int] | None,
        hasher: Hasher,
        /,
    ) -> str:
        """Return the condition for rows whose key has one of these first hashes.

        keys: the hashes; None for the rows in the differing buckets.
        """
        ...

    @abstractmethod
    def select_rows(
        self,
        table: TableDefinition,
        columns: Sequence[str],
        expressions: Sequence[str],
        where: str,
        /,
    ) -> str:
        """Return the statement that reads whole rows, as those of the bulk load do.

        expressions: those of `ReadPlan` for this engine, in place of the columns; may be empty.
        """
        ...


class VerifyReader(Protocol):
    """Server with several sessions that see the same snapshot. Errors are typed.

    Attributes:
        dialect: SQL that it understands.
        executor: Has a thread for each session.
    """

    dialect: Dialect
    executor: ThreadPoolExecutor

    @abstractmethod
    def hashers(self) -> Mapping[Hasher, str]:
        """Return the hash functions that it can compute, the fastest first; SHARED is one of them.

        Two servers compute the same numbers by one for which both have the same text here.
        """
        ...

    @abstractmethod
    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Keep a table from being rewritten, and cut it; return also an estimate of its rows.

        side: source or target, for errors. Raises TableGone and TableRewritten.
        """
        ...

    @abstractmethod
    def column_types(self, table: TableName) -> dict[str, str]:
        """Return the types by column name."""
        ...

    @abstractmethod
    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query; waits for a free session. May raise TableRewritten."""
        ...

    @abstractmethod
    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        """Yield the rows of a query of four numbers, as arrays."""
        ...

    @abstractmethod
    def row_reader(self) -> AbstractContextManager[BulkReader]:
        """Return a bulk load's reader in the same snapshot. Afterwards nothing can be compared."""
        ...

    @abstractmethod
    def cancel(self) -> None:
        """End the queries that run now; later ones raise ReadCancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePoint:
    """Place where the source's rows are read. position: the change log's; text: for people."""

    position: int
    text: str


class Verifier(Protocol):
    """Part `verify` of an engine, for `penstock verify`."""

    @abstractmethod
    def open_source(
        self,
        config: Config,
        tables: Callable[[], Sequence[TableDefinition]],
        tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> AbstractContextManager[tuple[VerifyReader, SourcePoint]]:
        """Return the source at a new consistent point.

        Queries that still run when an exception leaves the block are ended.

        Args:
            config: The pipeline.
            tables: Returns the captured tables, if the point depends on them.
            tell: Called with how the point is taken, if others may have to wait for it.
            sessions: How many read at once.
            part_bytes: The size of a part.
        """
        ...

    @abstractmethod
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> AbstractContextManager[VerifyReader]:
        """Return a target as it is now; no client may write while this begins."""
        ...

    @abstractmethod
    def nudge(self, url: str) -> None:
        """Move an idle source's log past the point, if its end is not reported exactly."""
        ...

    @abstractmethod
    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        """Return our changes between the end of our log and the point, for people; empty if there
        are none.

        since: the position of the log's end, or of its begin while it is empty; 0 if there is
        neither.
        """
        ...


VERIFY_PART: PartName[Verifier] = PartName("verify")


def verifier_of(url: str) -> Verifier:
    """Return the engine that a URL names. Raises EngineUnknown, PartMissing."""
    return part(url, VERIFY_PART)


class RepairRefused(PenstockError):
    """A target table cannot be repaired: writing its rows would do more than that."""

    code = "LD60"


class TargetMoved(PenstockError):
    """The target's applied position is no longer the one at which it was compared."""

    code = "LD61"
    retry: ClassVar[Retry] = "backoff"


class ReadCancelled(PenstockError):
    """The reader was cancelled, so it answers no more queries."""

    code = "LD62"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTable:
    """Table to repair. definition: the source's; target: its name in the target."""

    definition: TableDefinition
    target: TableName


class RepairTarget(Protocol):
    """Connection that repairs. Errors are typed, and after one nothing is changed.

    Attributes:
        replica: Foreign keys do not act on its writes.
    """

    replica: bool

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Return the repair's only transaction."""
        ...

    @abstractmethod
    def hold(self, expected: Applied) -> None:
        """Lock the applied position, first of all. Raises TargetMoved."""
        ...

    @abstractmethod
    def check(self, table: RepairTable) -> None:
        """Check that the table can be written. Raises TargetShapeDiffers and RepairRefused."""
        ...

    @abstractmethod
    def delete(self, table: TableName, condition: str) -> int:
        """Delete rows; return how many."""
        ...

    @abstractmethod
    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        """Copy rows; return how many."""
        ...

    @abstractmethod
    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, inside the transaction."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection; uncommitted work is rolled back."""
        ...


OpenRepair = Callable[[str, ServerPair | None, dict[str, str]], RepairTarget]
REPAIR_PART: PartName[OpenRepair] = PartName("repair")


def open_repair(url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> RepairTarget:
    """Connect to a target of any engine, by its URL. servers: None: same types."""
    return part(url, REPAIR_PART)(url, servers, namespaces)


def own_columns(table: TableName, own: list[str]) -> RepairRefused:
    """Return the error for a table that would lose values of columns that the source lacks."""
    return RepairRefused(
        f"target table {table} has columns that the source does not have: {', '.join(own)}",
        hint="Their values would be lost with the rows that are written again: write the rows that "
        "differ by hand, or drop these columns first.",
        table=str(table),
    )


def target_moved(expected: Applied, found: int) -> TargetMoved:
    """Return the error for a target that a loader has written meanwhile."""
    return TargetMoved(
        f"the target was compared at gsn {expected.gsn} and is at gsn {found} now",
        hint="Run `penstock verify --repair` again.",
    )


def read_cancelled() -> ReadCancelled:
    """Return the error for a query of a cancelled reader."""
    return ReadCancelled("the reading was cancelled", hint="Run the same command again.")
