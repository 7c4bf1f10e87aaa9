"""Writer of rows into a merge table, by array INSERTs from Arrow. Runs in Spark's workers.

Rows go from Arrow's buffers into one round trip for each batch, which commits. Several workers
insert into one heap at the same time; the direct path would lock it. A batch whose answer is lost
may have left its rows, and the number of rows then tells (`check_staged`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from penstock.codec.types.mapping import ERROR, PREPARE_SEPARATOR
from penstock.codec.types.oracle_held import EMPTY
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.claims import claim_staging
from penstock.engines.oracle.target.layout import MergeLayout, Staged
from penstock.engines.oracle.target.progress import OWNER, open_session
from penstock.engines.oracle.target.refusals import refusal_number, value_refused
from penstock.host.errors import (
    ConnectFailed,
    ConnectionLost,
    ServerBusy,
    StatementFailed,
    StatementInterrupted,
)
from penstock.host.worker_connections import WorkerConnections
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.ports.target import (
    NetRows,
    StagedRows,
    StagingFailed,
    StagingLost,
    StagingWriter,
)
from penstock.sql.row_translation import prepared_batch, prepared_column

NO_EMPTY = f"{EMPTY}={ERROR}"
TOO_LONG = frozenset({1461, 12899})
_connections: WorkerConnections[Connection] = WorkerConnections(open_session)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleMergeWriter(StagingWriter):
    """Writer into a merge table; it is sent to the workers.

    Attributes:
        table: The source's name.
        forms: Forms in which columns are staged.
        prepare: Changes that our process makes to values, by column.
    """

    url: str
    table: TableName
    staging: str
    stamp: int = field()
    relation: Relation
    forms: tuple[Staged, ...] = ()
    prepare: Mapping[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> MergeLayout:
        return MergeLayout(self.relation, self.forms, stamp=self.stamp)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return prepared_batch(rows, _leave_out(self.prepare), self.table)

    def write(self, rows: NetRows) -> StagedRows:
        doing = f"staging {self.table} into {quote(OWNER, self.staging)}"
        batches = map(self._refuse_empty, chain(rows.deletes(), rows.upserts()))
        try:
            connection = _open_claimed(self.url, self.staging)
            return StagedRows(
                in_table=insert_batches(connection, self.layout.insert(self.staging), batches)
            )
        except BaseException as error:
            _connections.forget(self.url)
            raise staging_error(error, doing, self.table) from error

    def _refuse_empty(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raise ValueRefused for an empty value of a row that is written, where none may be.

        Not before rows are folded: a source that is Oracle inserts each large object empty and
        gives it its value in the same transaction.
        """
        for name, what in self.prepare.items():
            if NO_EMPTY in what.split(PREPARE_SEPARATOR):
                prepared_column(batch.column(name), NO_EMPTY, name, self.table)
        return batch


def _leave_out(prepare: Mapping[str, str]) -> dict[str, str]:
    """Return the changes without the check for empty values."""
    kept = {
        name: PREPARE_SEPARATOR.join(
            one for one in what.split(PREPARE_SEPARATOR) if one != NO_EMPTY
        )
        for name, what in prepare.items()
    }
    return {name: what for name, what in kept.items() if what}


def _open_claimed(url: str, staging: str) -> Connection:
    """Return the worker's connection, findable by its merge table.

    The stager may have ended the session that this worker has kept since its last task.
    """
    try:
        claim_staging(_connections.get(url), staging)
    except ConnectionLost:
        _connections.forget(url)
        claim_staging(_connections.get(url), staging)
    return _connections.get(url)


def insert_batches(connection: Connection, sql: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Insert batches by one array INSERT for each; return the number of rows.

    connection: in autocommit, or in the transaction that the rows belong to. sql: an INSERT with a
    bind for each column. Raises the errors of `server_errors` and of the batches' iterator.
    """
    sent = 0
    for batch in batches:
        if batch.num_rows:
            connection.run_many(sql, pa.Table.from_batches([batch]))
            sent += batch.num_rows
    return sent


def staging_error(error: BaseException, doing: str, table: TableName) -> BaseException:
    """Return the typed error of failed INSERTs; errors of reading the log stay as they are."""
    lost = ConnectionLost | ConnectFailed | StatementInterrupted | ServerBusy
    if isinstance(error, lost):
        return StagingLost(f"{doing}: {error.message}", hint="penstock retries automatically.")
    if not isinstance(error, StatementFailed):
        return error
    number = refusal_number(error)
    if number in TOO_LONG:
        return value_refused(error.message, number, table)
    return StagingFailed(
        f"{doing}: {_without_statement(error)}",
        hint=f"Please report it. {LOAD_AFRESH}",
        table=str(table),
        errno=number,
    )


def _without_statement(error: PenstockError) -> str:
    return error.message.partition(": ")[2] or error.message
