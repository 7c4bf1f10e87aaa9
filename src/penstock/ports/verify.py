"""What comparing tables asks of a server, whichever engine it is: the port of `compare.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.control.checksum import Hasher, Image, Part
from penstock.engines.postgres.verify.hashed_rows import Hashes
from penstock.load import chunk
from penstock.model import TableName


class Dialect(Protocol):
    """The SQL of checksums in one engine's words; the modules `checksum`, `checksum_mysql`."""

    def bucket_query(self, image: Image, part: Part, buckets: int, hasher: Hasher, /) -> str:
        """See `checksum.bucket_query`."""
        ...

    def rows_query(
        self,
        image: Image,
        parts: Sequence[Part],
        buckets: int,
        differing: Sequence[int],
        hasher: Hasher,
        /,
    ) -> str:
        """See `checksum.rows_query`."""
        ...

    def names_query(
        self, image: Image, parts: Sequence[Part], hashes: Sequence[int], hasher: Hasher, /
    ) -> str:
        """See `checksum.names_query`."""
        ...

    def chosen_rows(
        self,
        image: Image,
        buckets: int,
        differing: Sequence[int],
        keys: Sequence[int] | None,
        hasher: Hasher,
        /,
    ) -> str:
        """See `checksum.chosen_rows`."""
        ...


class Reader(Protocol):
    """One server: several sessions that see the same snapshot. Errors come out typed."""

    @property
    def dialect(self) -> Dialect:
        """The SQL that it understands."""
        ...

    @property
    def executor(self) -> ThreadPoolExecutor:
        """A thread for each session."""
        ...

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Keep a table from being rewritten, and cut it; also an estimate of its rows.

        side: source or target, for errors. Raises TableGone and TableRewritten.
        """
        ...

    def column_types(self, table: TableName) -> dict[str, str]:
        """Types by column name."""
        ...

    def column_name(self, name: str) -> str:
        """A column's name as `column_types` has it, where case may not count."""
        ...

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """All rows of a query; waits for a session that is free."""
        ...

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        """The rows of a query of four numbers, as arrays."""
        ...

    def row_reader(self) -> AbstractContextManager[chunk.Reader]:
        """A session of the same snapshot, as the bulk load reads from it; ends all comparing."""
        ...

    def cancel(self) -> None:
        """End the queries that run now."""
        ...
