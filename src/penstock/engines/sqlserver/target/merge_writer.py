"""Writer of rows into a merge table, by the driver's bulk copy. Runs in Spark's workers.

Rows go from Arrow's buffers into the session that the driver opens for each bulk copy, with
TABLOCK: several workers load one heap at the same time. A bulk copy commits automatically. One
whose answer is lost may have left its rows, and the number of rows then tells (`check_staged`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from penstock.codec.sqlserver.arrow_rows import ValueUnfit
from penstock.engines.sqlserver.connect import connect, quote, server_error
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.refusals import ROW_TOO_LONG, row_refused
from penstock.host.errors import ConnectFailed, ConnectionLost, StatementInterrupted
from penstock.host.worker_connections import WorkerConnections
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.ports.target import (
    SCHEMA,
    NetRows,
    StagedRows,
    StagingFailed,
    StagingLost,
    StagingWriter,
    ValueRefused,
)
from penstock.sql.row_translation import prepared_batch

BULK_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"table_lock": True, "keep_nulls": True, "timeout": 0}
)
_NUMBER = re.compile(r"Sql Error: (\d+)")
_SAYS_LOST = re.compile(
    r"connection|socket|broken pipe|reset by peer|end of file|eof|timed? ?out|refused|closed|"
    r"network|i/o error|io error",
    re.IGNORECASE,
)

_connections = WorkerConnections(connect)


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLServerMergeWriter(StagingWriter):
    """Writer into a merge table; it is sent to the workers.

    Attributes:
        table: The source's name.
        as_text: Indexes of the columns that are staged as text.
        prepare: Changes that our process makes to values, by column.
    """

    url: str
    table: TableName
    staging: str
    stamp: int = field()
    relation: Relation
    as_text: frozenset[int] = frozenset()
    prepare: Mapping[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> MergeLayout:
        return MergeLayout(self.relation, as_text=self.as_text, stamp=self.stamp)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return prepared_batch(rows, self.prepare, self.table)

    def write(self, rows: NetRows) -> StagedRows:
        batches = chain(rows.deletes(), rows.upserts())
        sent = load_rows(
            self.url,
            quote(SCHEMA, self.staging),
            batches,
            doing=f"staging {self.table} into {quote(SCHEMA, self.staging)}",
            table=self.table,
        )
        return StagedRows(in_table=sent)


class _Counted:
    """Batches on their way into the driver, counted; an error of their source is kept.

    The driver turns an error of what it reads into one of its own.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.sent = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.sent += batch.num_rows
                yield batch
        except BaseException as error:
            self.error = error
            raise


def load_rows(
    url: str, name: str, batches: Iterator[pa.RecordBatch], *, doing: str, table: TableName
) -> int:
    """Append batches to a heap by bulk copy; return their number of rows.

    Args:
        url: Of the target; the connection is kept for the next call of this thread.
        name: Quoted name of the heap, whose columns are those of the batches.
        batches: Of one schema.
        doing: The work, for errors.
        table: The source's table, for errors.

    Raises:
        StagingLost: The connection broke; rows may be there.
        StagingFailed: The target refused the rows.
        ValueRefused: SQL Server has no place for a value.
    """
    counted: _Counted | None = None
    try:
        first = next(batches, None)
        if first is None:
            return 0
        counted = _Counted(chain([first], batches))
        reader: Any = pa.RecordBatchReader.from_batches(first.schema, counted)
        taken = _connections.get(url).bulk_copy(name, reader, options=BULK_OPTIONS)
    except BaseException as error:
        _connections.forget(url)
        own = error if counted is None or counted.error is None else counted.error
        raise _loading_error(own, doing, table) from error
    if taken != counted.sent:
        raise StagingFailed(
            f"{doing}: {counted.sent} rows were sent, the target took {taken}",
            hint=f"Please report it. {LOAD_AFRESH}",
            table=str(table),
        )
    return counted.sent


def _loading_error(error: BaseException, doing: str, table: TableName) -> BaseException:
    """Return the typed error of a failed bulk copy; errors of reading the log stay as they are."""
    if isinstance(error, ValueUnfit):
        return ValueRefused(
            f"{doing}: a value of column {error.column} cannot be stored: {error.what}",
            hint="Choose what to do with such values in [target.types]; `penstock plan` shows the "
            "choices.",
            table=str(table),
        )
    if isinstance(error, ConnectionLost | ConnectFailed | StatementInterrupted):
        return StagingLost(f"{doing}: {error.message}", hint="penstock retries automatically.")
    is_driver = isinstance(error, PenstockError) and "errno" in error.fields
    if not is_driver and not isinstance(error, ValueError | RuntimeError | pa.ArrowException):
        return error
    said = str(error)
    number = _NUMBER.search(said)
    if number is None and _SAYS_LOST.search(said):
        return StagingLost(f"{doing}: {said}", hint="penstock retries automatically.")
    typed = server_error(doing, int(number[1]) if number else 0, "", said)
    if typed.fields.get("errno") in ROW_TOO_LONG:
        return row_refused(doing, table, int(typed.fields["errno"]))
    if typed.retry == "backoff":
        return StagingLost(typed.message, hint="penstock retries automatically.")
    return StagingFailed(
        typed.message, hint=f"Please report it. {LOAD_AFRESH}", table=str(table), **typed.fields
    )
