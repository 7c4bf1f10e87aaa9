"""Changelog tables in a destination: what FlexCDC asks of an engine, as destination and as source.

The part `changelog` opens a session on the server that holds state and changelogs; the part
`changelog_source` says what state tables hold of a source. Not here: what is written and when
(`penstock.consume.flexcdc`).
"""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.codec.types import Choices, Mapping
from penstock.model import PenstockError, Relation, TableDefinition, TableName
from penstock.ports.registry import part

DML_TYPE, UOW_ID, SERVER_ID, GSN = "dml_type", "uow_id", "fv$server_id", "fv$gsn"
OWN_COLUMNS = (DML_TYPE, UOW_ID, SERVER_ID, GSN)
# What comes before a row image's own columns.
OWN_SCHEMA = pa.schema(
    [
        pa.field(DML_TYPE, pa.int32()),
        pa.field(UOW_ID, pa.int64()),
        pa.field(SERVER_ID, pa.int64()),
        pa.field(GSN, pa.int64()),
    ]
)


class ChangelogTypeRefused(PenstockError):
    """A column's type has no way into a changelog, or its losses were not chosen."""

    code = "FX20"


class RowImagesLost(PenstockError):
    """The destination says that it took another number of row images than it was sent."""

    code = "FX21"


def type_refused(relation: Relation, column: str, mapping: Mapping) -> ChangelogTypeRefused:
    """The error for a column that may not run."""
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
        hint=f'Choose in [flexcdc.types], as in "{loss.name}" = "{next(iter(loss.choices))}".',
        **fields,
    )


def images_lost(table: TableName, sent: int, taken: int) -> RowImagesLost:
    """The error for a changelog."""
    return RowImagesLost(
        f"the changelog {table} took {taken} row images, {sent} were sent",
        hint="Nothing of the transaction is kept: start again, and look for triggers and rules on "
        "the changelog if it comes again.",
        table=str(table),
        expected=sent,
        actual=taken,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNames:
    """The names of FlexCDC's state tables. namespace: the database, or schema, that they are in.

    place: our own one more, which says where in the change log they are.
    """

    namespace: str
    mvlogs: str
    binlog_consumer_status: str
    mview_uow: str
    place: str = "penstock_place"

    def table(self, name: str) -> TableName:
        """A table beside them."""
        return TableName(self.namespace, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImages:
    """Row images of one table, to be appended to its changelog.

    relation: the shape that they have. own: of OWN_SCHEMA. columns: of each column of the relation
    the values, as `codec.columns` has its type.
    """

    relation: Relation
    own: pa.RecordBatch
    columns: Sequence[pa.Array]

    def slice(self, start: int, length: int) -> RowImages:
        """Some of them."""
        return RowImages(
            relation=self.relation,
            own=self.own.slice(start, length),
            columns=[column.slice(start, length) for column in self.columns],
        )


class ChangelogSession(Protocol):
    """One session on a destination, in one transaction at a time; used by one thread.

    Every error comes out typed. SQL is given with %s for parameters.
    """

    @property
    def driver(self) -> Any:
        """The driver's own connection."""
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> list[dict[str, Any]]:
        """Run a query; its rows by column."""
        ...

    def run(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> int:
        """Run a statement; how many rows it changed."""
        ...

    def quoted(self, *names: str) -> str:
        """Identifiers, quoted and joined by dots."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Commit it. After an error it is not known whether it was: read the state."""
        ...

    def rollback(self) -> None:
        """Undo it; harmless where there is none, and where the connection is gone."""
        ...

    def close(self) -> None:
        """Close the connection; harmless when done twice."""
        ...

    # -- tables: not inside a transaction, since some servers commit at such statements ----------

    def create_state(self, names: StateNames) -> None:
        """Make the namespace if it is missing, and the state tables with their first rows.

        That of `place` says nothing yet: it is there to be locked.
        """
        ...

    def drop(self, table: TableName) -> None:
        """Drop a table, if it is there."""
        ...

    def rename(self, table: TableName, name: str) -> None:
        """Give a table another name in its namespace."""
        ...

    def shape(self, table: TableName) -> AbstractMapping[str, str] | None:
        """A table's columns in order, each with its type as printed; None where there is none."""
        ...

    def types_of(self, relation: Relation, definition: TableDefinition | None) -> Sequence[str]:
        """The types in which a changelog holds the columns of a relation.

        definition: the source's, where it is known: character sets are in it alone. Raises
        ChangelogTypeRefused.
        """
        ...

    def same_type(self, left: str, right: str) -> bool:
        """Whether two types of this server are one, written in two ways."""
        ...

    def holds(self, wider: str, narrower: str) -> bool:
        """Whether a type of this server holds every value of another as it is."""
        ...

    @property
    def text_type(self) -> str:
        """A type that holds the text of any value."""
        ...

    def create_changelog(self, table: TableName, columns: Sequence[tuple[str, str]]) -> None:
        """Make a changelog: OWN_COLUMNS, then these, by name and type, none of them required."""
        ...

    def add_column(self, table: TableName, name: str, kind: str, *, after: str) -> None:
        """Add a column; behind another one where the server lets us choose."""
        ...

    def retype_column(self, table: TableName, name: str, kind: str) -> None:
        """Give a column another type; its values stay. Raises what the server refuses."""
        ...

    def rename_column(self, table: TableName, old: str, new: str) -> None:
        """Give a column another name."""
        ...

    def drop_column(self, table: TableName, name: str) -> None:
        """Drop a column with its values."""
        ...

    # -- rows: inside a transaction --------------------------------------------------------------

    def append(self, table: TableName, images: RowImages) -> None:
        """Append row images to a changelog, which has all of their columns.

        Raises ValueRefused, and RowImagesLost where the server took another number of rows.
        """
        ...


class Origin(Protocol):
    """What Debezium's connector for a source says in `source` of where a change is from."""

    def __call__(
        self, table: TableName, /, *, unit: int, where: tuple[str, int], row: int
    ) -> AbstractMapping[str, Any]:
        """The connector's name, and the fields that this connector alone has, with db and schema.

        unit: number of the transaction. where: `ChangelogSource.place` of its end. row: the
        change's place in the transaction, from 0. What is not known is None.
        """
        ...


class ChangelogSource(Protocol):
    """What is in the state tables of a source; see `penstock.codec` for positions.

    KNOWS_RENAMES: relations say which names a column had before. Otherwise a column that is gone
    may be one that has another name now.
    """

    @property
    def KNOWS_RENAMES(self) -> bool:  # noqa: N802 - a constant of the module
        """See the class."""
        ...

    def connect(self, url: str) -> Any:
        """A connection of the driver's, for plugins."""
        ...

    def origin(self, url: str) -> Origin:
        """What events say of their origin; asks the server once."""
        ...

    def server_id(self, url: str) -> int:
        """The server's number; 0 for one that has none."""
        ...

    def place(self, position: str) -> tuple[str, int]:
        """A position, as it is printed, as a file and an offset in it."""
        ...

    def files(self, url: str) -> Sequence[tuple[str, int]]:
        """The files of the server's log, with their sizes, oldest first; empty where unknown."""
        ...

    def end(self, url: str) -> str:
        """Where the server's log ends now, as positions are printed."""
        ...

    def definition(self, url: str, table: TableName) -> TableDefinition | None:
        """A table's definition now; None where there is no such table."""
        ...


def open_changelogs(
    url: str,
    *,
    namespace: str,
    source_types: str,
    choices: Choices,
    application_name: str,
) -> ChangelogSession:
    """Connect to a destination, whichever engine its URL names.

    source_types: whose types relations have, as the log says (a name of the table of types).
    choices: what is done about values that the destination cannot hold.
    """
    opened: ChangelogSession = part(url, "changelog")(
        url,
        namespace=namespace,
        source_types=source_types,
        choices=choices,
        application_name=application_name,
    )
    return opened


def changelog_source(url: str) -> ChangelogSource:
    """The part of the engine of a source."""
    found: ChangelogSource = part(url, "changelog_source")
    return found
