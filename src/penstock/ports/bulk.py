"""What the bulk load asks of a target, whichever engine it is: its ledger, tables and keys.

`open_bulk_target` picks the engine by the URL. Not here: the rows (`chunk.py`), and how an engine
does it (`postgres/bulk.py`, `mysql/bulk.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.load.late_keys import LateKey
from penstock.load.ledger import Mark, TablePlan
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.sql.read_plan import Ends, is_mysql


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the target holds before a load. empty: of each table that is there, whether it is.

    truncates: the SQL that empties each, and no table that inherits from it. refusals: of tables
    whose triggers or foreign keys would act on our rows, the error to raise.
    """

    empty: Mapping[TableName, bool]
    marks: Mapping[TableName, Mark]
    truncates: Mapping[TableName, str]
    refusals: Mapping[TableName, PenstockError] = field(default_factory=dict)


class ChunkCounts(Protocol):
    """What the target can say of chunks."""

    def done(self, plan: TablePlan) -> Mapping[int, int]:
        """Chunk number to rows, of the chunks of a table that the target records as done."""
        ...

    def under_way(self) -> Mapping[TableName, int]:
        """Rows of chunks that are not committed yet, by target table; empty where none can tell."""
        ...


class BulkTarget(ChunkCounts, Protocol):
    """The driver's connection to the target. Errors come out typed."""

    def read_action(self) -> str:
        """The word in wirekite_action."""
        ...

    def look(self, targets: Collection[TableName]) -> Found:
        """What is there of these tables, by their names in the target; and all marks."""
        ...

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Make missing tables without keys, check the others; sentences on what they lack."""
        ...

    def marks(self) -> dict[TableName, Mark]:
        """The marks of all tables, by source name."""
        ...

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        """Empty the target tables of these plans and put them under their new plans."""
        ...

    def finish_table(self, plan: TablePlan) -> int:
        """Record that all rows of a table are there; their number. Raises ChunksMissing."""
        ...

    def drop_if_made(self, target: TableName) -> None:
        """Drop a table that penstock has made; leave any other."""
        ...

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Keys, indexes and statistics of the tables that penstock has made."""
        ...

    def late_keys(self, definition: TableDefinition) -> tuple[LateKey, ...]:
        """The unique keys of a table that penstock has made, as they are made later."""
        ...

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Foreign keys of the tables that penstock has made; what they lack."""
        ...

    def is_replica(self) -> bool:
        """Whether triggers and foreign keys can be kept from acting on our rows."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_bulk_target(
    url: str, namespaces: Mapping[str, str], *, application_name: str, ends: Ends | None
) -> BulkTarget:
    """Connect to a target. ends: the two servers where not both are PostgreSQL."""
    if is_mysql(url):
        from penstock.engines.mysql.target.bulk import MySQLBulk

        assert ends is not None, "one end is MySQL"
        return MySQLBulk(url, namespaces, application_name=application_name, ends=ends)
    from penstock.engines.postgres.target.bulk import PostgresBulk

    return PostgresBulk(url, namespaces, application_name=application_name, ends=ends)
