"""Merge rows into a merge table, by COPY in binary format. Runs in the workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, LiteralString

import psycopg
import pyarrow as pa

from penstock.codec.postgres.copy_binary import HEADER, TRAILER, Unwritable, make_row_writer
from penstock.engines.postgres.connect import (
    TAKING_KEEPALIVE,
    connect,
    literal,
    quote,
    statement,
)
from penstock.engines.postgres.target.claims import WORKER_NAME
from penstock.engines.postgres.target.foreign import prepared_batch
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.ports.target import (
    SCHEMA,
    NetRows,
    StagedRows,
    StagingChanged,
    StagingFailed,
    StagingLost,
    StagingWriter,
)

# By process, thread and URL: no connection is used by two, nor closed under another's hands.
_connections: dict[tuple[int, int, str], psycopg.Connection] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresStagingWriter(StagingWriter):
    """Writer into a merge table.

    table: the source's name. prepare: by column what `prepared` does.
    """

    url: str
    table: TableName
    staging: str
    stamp: int = field()
    relation: Relation
    prepare: Mapping[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> MergeLayout:
        return MergeLayout(self.relation)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return prepared_batch(rows, self.prepare)

    def write(self, rows: NetRows) -> StagedRows:
        return StagedRows(in_table=self.send(chain(rows.deletes(), rows.upserts())))

    def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Append batches of the layout to the merge table; how many rows."""
        first = next(batches, None)
        if first is None:
            return 0
        sent = 0
        layout = self.layout
        writer = make_row_writer(layout.schema, layout.heads)
        connection = _connection(self.url)
        try:
            with connection.cursor() as cursor:
                with cursor.copy(_copy(self.staging, layout)) as copy:
                    copy.write(HEADER)
                    for batch in chain([first], batches):
                        sent += batch.num_rows
                        for block in writer.blocks(batch):
                            copy.write(block)
                    copy.write(TRAILER)
                _check_stamp(cursor, self)
            connection.commit()
        except (psycopg.Error, Unwritable) as error:
            _forget(self.url)
            raise _staging_error(self, error) from error
        except BaseException:
            _forget(self.url)
            raise
        return sent


def _copy(staging: str, layout: MergeLayout) -> LiteralString:
    columns = ", ".join(quote(name) for name, _ in layout.sql_columns)
    return statement(f"copy {quote(SCHEMA, staging)} ({columns}) from stdin with (format binary)")


def _check_stamp(cursor: Any, writer: PostgresStagingWriter) -> None:
    """Check that the merge table is ours; COPY keeps it from being emptied until the commit.

    A worker whose job was given up, as when a table leaves the batches to be copied, may come after
    the next batch has the table: its rows would be too many there.
    """
    table = quote(SCHEMA, writer.staging)
    cursor.execute(f"select pg_relation_filenode({literal(table)})::bigint")
    if cursor.fetchone()[0] != writer.stamp:
        raise StagingChanged(
            f"merge table {table} belongs to another batch now",
            hint="Do nothing: the batch is staged again automatically.",
        )


def _staging_error(writer: PostgresStagingWriter, error: Exception) -> PenstockError:
    state = getattr(error, "sqlstate", None) or ""
    said = " ".join(str(error).split())
    message = f"staging {writer.table} into {quote(SCHEMA, writer.staging)}: {said}"
    lost = not state or state.startswith(("08", "57", "53"))
    if isinstance(error, psycopg.OperationalError) and lost:
        return StagingLost(message, hint="penstock retries automatically.")
    return StagingFailed(
        message,
        hint=f"Please report it. {LOAD_AFRESH}",
        table=str(writer.table),
    )


def _place(url: str) -> tuple[int, int, str]:
    return os.getpid(), threading.get_ident(), url


def _connection(url: str) -> psycopg.Connection:
    """Return the worker's connection to the target; a forked child does not share its parent's."""
    place = _place(url)
    if place not in _connections:
        for *here, other in list(_connections):  # a worker serves one target at a time
            if tuple(here) == place[:2]:
                _forget(other)
        settings = {"statement_timeout": "0", "lock_timeout": "60000", **TAKING_KEEPALIVE}
        _connections[place] = connect(
            url, application_name=WORKER_NAME, autocommit=False, options=settings
        )
    return _connections[place]


def _forget(url: str) -> None:
    """Drop a connection after an error: it may be in the middle of a COPY."""
    connection = _connections.pop(_place(url), None)
    if connection is not None:
        connection.close()
