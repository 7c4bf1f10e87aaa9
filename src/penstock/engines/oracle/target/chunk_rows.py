"""Rows of a chunk as they are sent to Oracle, and the INSERT that converts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.codec.lines import LineDialect
from penstock.codec.types import NO_CHOICES, Choices, prepare_values
from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.target.catalog import TargetTable
from penstock.engines.oracle.target.layout import convert_values, staged_form
from penstock.engines.oracle.target.translation import Translation
from penstock.model import Relation, TableName
from penstock.ports.bulk import BulkReader, ChunkTask, CopyCountsDiffer, ShapedRows
from penstock.ports.chunk_rows import read_rows
from penstock.sql.row_translation import fill_template


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """Facts that a writer needs besides its task, to be pickled.

    Attributes:
        relation: The table in the log, with the columns of the chunk in order.
        source_engine: The source's in the log.
        is_direct: Rows are sent by the direct path.
    """

    relation: Relation
    source_engine: str
    choices: Choices = NO_CHOICES
    is_direct: bool = False


def read_chunk(reader: BulkReader, task: ChunkTask, spec: ChunkSpec) -> Iterator[ShapedRows]:
    """Yield the rows of a chunk, in batches with rows. Raises the errors of the reader."""
    # PostgreSQL's own lines, or those that can have every character, also the zero.
    dialect = LineDialect.COPY if task.read_plan is None else LineDialect.LOAD_DATA
    for rows in read_rows(reader, task, spec.relation, dialect):
        if rows.batch.num_rows:
            yield rows


class ShapeInsert:
    """INSERT of the rows of one shape, with the conversion of each column."""

    def __init__(self, relation: Relation, table: TargetTable, spec: ChunkSpec) -> None:
        """Derive forms and templates. Generated columns of the table are left out."""
        translation = Translation(engine=spec.source_engine, choices=spec.choices)
        self._relation = relation
        self._table = table
        self._forms = translation.forms(relation)
        self._prepares = translation.prepares(relation)
        self._places = [
            place
            for place, column in enumerate(relation.columns)
            if (found := table.column(column.name)) is None or not found.is_generated
        ]
        columns = {column.name: column for column in table.columns}
        self._templates = translation.templates(relation, columns)

    @property
    def staged_types(self) -> list[str]:
        """Return the SQL types in which the columns are sent."""
        columns = self._relation.columns
        return [staged_form(columns[place], self._forms[place])[1] for place in self._places]

    def from_binds(self) -> str:
        """Return the statement that inserts one row, with a bind for each column."""
        values = self._values([f":{bind}" for bind, _ in enumerate(self._places, 1)])
        return f"{self._begin()} VALUES ({values})"

    def from_table(self, name: str, columns: list[str]) -> str:
        """Return the statement that inserts the rows of a table with these columns."""
        values = self._values([f"h.{quote(column)}" for column in columns])
        return f"{self._begin()}\nSELECT {values}\n  FROM {name} h"

    def _begin(self) -> str:
        names = [self._relation.columns[place].name for place in self._places]
        return f"INSERT INTO {self._table.sql_name} ({', '.join(map(quote, names))})"

    def _values(self, given: list[str]) -> str:
        names = [self._relation.columns[place].name for place in self._places]
        return ", ".join(
            fill_template(value, name, self._templates)
            for value, name in zip(given, names, strict=True)
        )

    def convert(self, rows: ShapedRows) -> pa.RecordBatch:
        """Return a batch of the log's types as it is sent. Raises the errors of unfit values."""
        return pa.RecordBatch.from_arrays(list(self._arrays(rows.batch)), schema=self._schema())

    def _arrays(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        for place in self._places:
            column = self._relation.columns[place]
            given = prepare_values(batch.column(place), self._prepares.get(column.name, ""))
            yield convert_values(given, column, self._forms[place], self._relation)

    def _schema(self) -> pa.Schema:
        columns = self._relation.columns
        return pa.schema(
            [
                (columns[place].name, staged_form(columns[place], self._forms[place])[0])
                for place in self._places
            ]
        )


def counts_differ(sent: int, taken: int, table: TableName) -> CopyCountsDiffer:
    """Return the error for a table that took another number of rows than the source sent."""
    return CopyCountsDiffer(
        f"the source sent {sent} rows and the target took {taken}",
        hint=f"Look for triggers of {quote(*table)} that drop or add rows, and disable them: "
        f"ALTER TABLE {quote(*table)} DISABLE ALL TRIGGERS;",
        sent=sent,
        taken=taken,
    )
