"""Lakes besides loading: reading of versions, upkeep by hand, facts of tables.

Parts of an engine whose tables keep their earlier versions. Readers need neither a pipeline nor a
lock. Not here: loading (`ports/loading.py`); which versions belong together, which the table of
batches says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from penstock.model import PenstockError, TableName
from penstock.ports.registry import PartName


class VersionExpired(PenstockError):
    """A version of a table, or one of its files, was removed."""

    code = "LK40"


class ReaderMissing(PenstockError):
    """A package that reads the lake is not installed."""

    code = "LK41"


class ReaderFailed(PenstockError):
    """The package that reads the lake refused a table, or raised an error."""

    code = "LK42"


class VersionReader(Protocol):
    """Reader of versions of one lake's tables. Names are those in the lake.

    Attributes:
        place: The lake, for messages.
    """

    place: str

    @abstractmethod
    def read_batches(self, session: Any = None) -> Any:
        """Return the newest rows of the table of batches as an Arrow table; None without a table.

        The columns are in docs/lake.md. session: Spark reads them; None: a library without Spark.

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
