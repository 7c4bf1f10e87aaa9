"""Changelog tables in a destination: FlexCDC's port to an engine, as destination and as source.

The part `changelog` opens a session on the server that holds state and changelogs; the part
`changelog_source` gives the values of a source that state tables hold. Not here: the content of
the tables, and when it is written (`penstock.consume.flexcdc`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.codec.types import Choices, Mapping
from penstock.model import PenstockError, Relation, TableDefinition, TableName
from penstock.model.sections import StateNames
from penstock.ports.registry import PartName, part

DML_TYPE, UOW_ID, SERVER_ID, GSN = "dml_type", "uow_id", "fv$server_id", "fv$gsn"

OWN_COLUMNS = (DML_TYPE, UOW_ID, SERVER_ID, GSN)
CHANGELOG_TYPES = "flexcdc.types"  # the section with choices for values of changelogs

# Columns in front of a row image's own columns.
OWN_SCHEMA = pa.schema(
    [
        pa.field(DML_TYPE, pa.int32()),
        pa.field(UOW_ID, pa.int64()),
        pa.field(SERVER_ID, pa.int64()),
        pa.field(GSN, pa.int64()),
    ]
)


class ChangelogTypeRefused(PenstockError):
    """A column's type has no form in a changelog, or its losses were not chosen."""

    code = "FX20"


class RowImagesLost(PenstockError):
    """The destination reports another number of row images than it was sent."""

    code = "FX21"


def type_refused(relation: Relation, column: str, mapping: Mapping) -> ChangelogTypeRefused:
    """Return the error for a column whose mapping is refused or not chosen."""
    fields = {"table": relation.full_name, "column": column}
    place = f"column {column} of {relation.full_name} is {mapping.source_type}"
    if mapping.refused:
        return ChangelogTypeRefused(
            f"{place}: {mapping.refused}",
            hint="Capture the table no more: penstock flexcdc --ini FILE drop-table --schema S "
            "--table T.",
            **fields,
        )
    loss = mapping.missing[0]
    return ChangelogTypeRefused(
        f"{place}: what shall be done about {loss.name}?",
        hint=f'Choose in [{CHANGELOG_TYPES}], as in "{loss.name}" = "{next(iter(loss.choices))}".',
        **fields,
    )


def images_lost(table: TableName, sent: int, taken: int) -> RowImagesLost:
    """Return the error for a changelog that took another number of row images."""
    return RowImagesLost(
        f"the changelog {table} took {taken} row images, {sent} were sent",
        hint="Nothing of the transaction is kept: start again, and look for triggers and rules on "
        "the changelog if this happens again.",
        table=str(table),
        expected=sent,
        actual=taken,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImages:
    """Row images of one table, to be appended to its changelog.

    Attributes:
        relation: Their shape.
        own: Their columns of OWN_SCHEMA.
        columns: The values of each column of the relation, in its type of `codec.columns`.
    """

    relation: Relation
    own: pa.RecordBatch
    columns: Sequence[pa.Array]

    def slice(self, start: int, length: int) -> RowImages:
        """Return some of the row images."""
        return RowImages(
            relation=self.relation,
            own=self.own.slice(start, length),
            columns=[column.slice(start, length) for column in self.columns],
        )


class ChangelogSession(Protocol):
    """Session on a destination, with one transaction at a time; used by one thread.

    Every error is typed. SQL is given with %s for parameters.
    """

    @property
    @abstractmethod
    def driver(self) -> Any:
        """Connection of the driver."""
        ...

    @abstractmethod
    def rows(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> list[dict[str, Any]]:
        """Run a query and return its rows by column."""
        ...

    @abstractmethod
    def run(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    @abstractmethod
    def quote(self, *names: str) -> str:
        """Return identifiers, quoted and joined by dots."""
        ...

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""
        ...

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction. After an error the outcome is unknown: read the state."""
        ...

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction; harmless without one, and on a lost connection."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection; may be called twice."""
        ...

    # -- tables: not inside a transaction, since some servers commit at such statements ----------

    @abstractmethod
    def create_state(self, names: StateNames) -> None:
        """Create the namespace if it is missing, and the state tables with their first rows.

        The row of `place` is empty at first: it exists to be locked.
        """
        ...

    @abstractmethod
    def drop(self, table: TableName) -> None:
        """Drop a table, if it exists."""
        ...

    @abstractmethod
    def rename(self, table: TableName, name: str) -> None:
        """Give a table another name in its namespace."""
        ...

    @abstractmethod
    def shape(self, table: TableName) -> AbstractMapping[str, str] | None:
        """Return a table's columns in order, each with its printed type; None without the table."""
        ...

    @abstractmethod
    def types_of(self, relation: Relation, definition: TableDefinition | None) -> Sequence[str]:
        """Return the types in which a changelog holds the columns of a relation.

        definition: the source's, if it is known: only it has character sets. Raises
        ChangelogTypeRefused.
        """
        ...

    @abstractmethod
    def same_type(self, left: str, right: str) -> bool:
        """Return whether two texts name the same type of this server."""
        ...

    @abstractmethod
    def holds(self, wider: str, narrower: str) -> bool:
        """Return whether a type of this server holds every value of another unchanged."""
        ...

    @property
    @abstractmethod
    def text_type(self) -> str:
        """Type that holds the text of any value."""
        ...

    @abstractmethod
    def fold(self, column: str) -> str:
        """Return a column's name in a form that is equal for names that the server takes as one."""
        ...

    @abstractmethod
    def create_changelog(self, table: TableName, columns: Sequence[tuple[str, str]]) -> None:
        """Create a changelog: OWN_COLUMNS, then these, by name and type, none of them required."""
        ...

    @abstractmethod
    def add_column(self, table: TableName, name: str, kind: str, *, after: str) -> None:
        """Add a column; after another one if the server permits a choice."""
        ...

    @abstractmethod
    def retype_column(self, table: TableName, name: str, kind: str) -> None:
        """Give a column another type; its values stay. Raises the server's refusal."""
        ...

    @abstractmethod
    def rename_column(self, table: TableName, old: str, new: str) -> None:
        """Give a column another name."""
        ...

    @abstractmethod
    def drop_column(self, table: TableName, name: str) -> None:
        """Drop a column with its values."""
        ...

    # -- rows: inside a transaction --------------------------------------------------------------

    @abstractmethod
    def append(self, table: TableName, images: RowImages) -> None:
        """Append row images to a changelog, which has all of their columns.

        Raises ValueRefused, and RowImagesLost if the server took another number of rows.
        """
        ...


class Origin(Protocol):
    """Origin of a change, as Debezium's connector for a source has it in `source`."""

    def __call__(
        self, table: TableName, /, *, unit: int, where: tuple[str, int], row: int
    ) -> AbstractMapping[str, Any]:
        """Return the connector's name and the fields that only this connector has, with db and
        schema.

        An unknown value is None.

        Args:
            table: The table.
            unit: The number of the transaction.
            where: `ChangelogSource.place` of the transaction's end.
            row: The change's place in the transaction, from 0.
        """
        ...


class ChangelogSource(Protocol):
    """Values of a source in the state tables; see `penstock.codec` for positions.

    KNOWS_RENAMES: relations have the previous names of columns. Otherwise a missing column may have
    been renamed.
    """

    @property
    def KNOWS_RENAMES(self) -> bool:  # noqa: N802 - a constant of the module
        """Return whether relations have the previous names of columns."""
        ...

    def connect(self, url: str) -> Any:
        """Return a connection of the driver, for plugins."""
        ...

    def origin(self, url: str) -> Origin:
        """Return the maker of events' origins; asks the server once."""
        ...

    def server_id(self, url: str) -> int:
        """Return the server's number; 0 if it has none."""
        ...

    def place(self, position: str) -> tuple[str, int]:
        """Return a printed position as a file and an offset in it."""
        ...

    def files(self, url: str) -> Sequence[tuple[str, int]]:
        """Return the files of the server's log, with sizes, oldest first; empty if unknown."""
        ...

    def end(self, url: str) -> str:
        """Return the present end of the server's log, as positions are printed."""
        ...

    def definition(self, url: str, table: TableName) -> TableDefinition | None:
        """Return a table's present definition, or None if it does not exist."""
        ...


class OpenChangelogs(Protocol):
    """Part `changelog` of an engine."""

    def __call__(
        self,
        url: str,
        /,
        *,
        namespace: str,
        source_types: str,
        choices: Choices,
        application_name: str,
    ) -> ChangelogSession:
        """Connect to a destination; see `open_changelogs`."""
        ...


CHANGELOG_PART: PartName[OpenChangelogs] = PartName("changelog")
CHANGELOG_SOURCE_PART: PartName[ChangelogSource] = PartName("changelog_source")


def open_changelogs(
    url: str,
    *,
    namespace: str,
    source_types: str,
    choices: Choices,
    application_name: str,
) -> ChangelogSession:
    """Connect to a destination of any engine, by its URL.

    Args:
        url: The destination.
        namespace: The database, or schema, of the tables.
        source_types: The name in the table of types of the engine whose types relations have.
        choices: How to write values that the destination cannot hold.
        application_name: Name of the session.
    """
    return part(url, CHANGELOG_PART)(
        url,
        namespace=namespace,
        source_types=source_types,
        choices=choices,
        application_name=application_name,
    )


def changelog_source(url: str) -> ChangelogSource:
    """Return the part `changelog_source` of a source's engine."""
    return part(url, CHANGELOG_SOURCE_PART)
