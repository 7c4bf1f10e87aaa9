"""Lakes besides loading: reading of versions, upkeep by hand, facts of tables.

Parts of an engine whose tables keep their earlier versions. Readers need neither a pipeline nor a
lock. Not here: loading (`ports/loading.py`); which versions belong together, which the table of
batches says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.model import PenstockError, TableName
from penstock.ports.registry import PartName


class VersionExpired(PenstockError):
    """A version of a table, or one of its files, was removed."""

    code = "LK60"


class ReaderMissing(PenstockError):
    """A package that reads the lake is not installed."""

    code = "LK61"


class ReaderFailed(PenstockError):
    """The package that reads the lake refused a table, or raised an error."""

    code = "LK62"


class UpkeepRefused(PenstockError):
    """The upkeep of a table by hand cannot be done beside the loader."""

    code = "LK66"


class LakeTableUnknown(PenstockError):
    """The lake has no such table."""

    code = "LK67"


class NotALake(PenstockError):
    """A target keeps no versions of its tables."""

    code = "LK63"


class VersionReader(Protocol):
    """Reader of versions of one lake's tables. Names are those in the lake.

    Attributes:
        place: The lake, for messages.
    """

    place: str

    @abstractmethod
    def read_batches(self, session: Any = None) -> Any:
        """Return the newest rows of the table of batches as an Arrow table; None without a table.

        docs/lake.md lists the columns. Spark reads the table if a session is given, otherwise a
        library does.

        Raises ReaderMissing, ReaderFailed.
        """
        ...

    @abstractmethod
    def arrow(self, table: TableName, version: int) -> Any:
        """Return the rows of a version as an Arrow table, read without Spark.

        Raises ReaderMissing, ReaderFailed, VersionExpired.
        """
        ...

    @abstractmethod
    def frame(self, table: TableName, version: int, session: Any) -> Any:
        """Return the rows of a version as a DataFrame of a Spark session.

        Raises ReaderFailed, VersionExpired.
        """
        ...


VERSIONS_PART: PartName[Callable[[str], VersionReader]] = PartName("versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Size and versions of one table of a lake.

    Attributes:
        files: Live data files.
        rows: Rows in these files, deleted ones too.
        dead_rows: Deleted rows in these files.
        size_bytes: Size of these files.
        version: The newest version: Delta's number, Iceberg's snapshot id.
        versions: Number of versions that can be read; 0 if it is not known.
        missing: Number of rows that the log changed and the table lacked.
        gsn: Number of the last row change of the newest batch; 0 before the first.
        read_us: When this was true, microseconds since 1970 UTC.
    """

    files: int = 0
    rows: int = 0
    dead_rows: int = 0
    size_bytes: int = 0
    version: int = 0
    versions: int = 0
    missing: int = 0
    gsn: int = 0
    read_us: int = 0


class LakeUpkeep(Protocol):
    """Upkeep of a lake by hand. Java is started for it, and a loader may be at work meanwhile."""

    @abstractmethod
    def refuse_beside(self, url: str) -> str:
        """Return why a lake takes no upkeep by hand while the loader runs; empty if it does."""
        ...

    @abstractmethod
    def read_tables(self, url: str) -> Mapping[str, TableFacts]:
        """Return the facts of all tables of the lake, by `schema.name`."""
        ...

    @abstractmethod
    def compact(self, url: str, tables: Sequence[TableName]) -> Iterator[tuple[TableName, int]]:
        """Join small files and rewrite files with many deleted rows, table by table.

        Yields a table and the number of its files that were replaced. tables: none for all.

        Raises LakeTableUnknown; UpkeepRefused if the loader was faster each time.
        """
        ...

    @abstractmethod
    def expire(
        self, url: str, tables: Sequence[TableName], hours: float | None
    ) -> Iterator[tuple[TableName, int, int, int]]:
        """Remove earlier versions and the files that none needs, table by table.

        Versions that the table of batches names are kept. Yields a table, and the numbers of its
        versions and files that were removed, and the bytes of these files.

        Args:
            url: Of the lake.
            tables: None for all.
            hours: Age at which removed files are deleted; None: as [target] says.

        Raises LakeTableUnknown.
        """
        ...


UPKEEP_PART: PartName[LakeUpkeep] = PartName("upkeep")
# Reads what the loader has written: no JVM, no catalogue.
FACTS_PART: PartName[Callable[[str], Mapping[str, TableFacts]]] = PartName("table_facts")
