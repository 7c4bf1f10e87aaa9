"""Reader of the bulk load from YugabyteDB: a worker's session reads as of a hybrid time."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.bulk_reader import (
    BEGIN_READ,
    SOURCE_SETTINGS,
    PostgresBulkReader,
)
from penstock.engines.yugabyte.options import wire_url
from penstock.model import Relation
from penstock.ports.bulk import APPLICATION_NAME, ChunkTask, ShapedRows


class YugabyteBulkReader(PostgresBulkReader):
    """Reader of one chunk after another, at the snapshot's time."""

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return False: the server keeps the history of rewritten tables, too."""
        del task
        return False

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows] | None:
        """Return None: rows are read as text, because no test compares the binary form."""
        del task, relation
        return None


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> YugabyteBulkReader | None:
    """Return a session that sees this snapshot, or None if the snapshot no longer exists."""
    del snapshot_text  # a time is never used again
    connection = connect(wire_url(url), application_name=APPLICATION_NAME, options=SOURCE_SETTINGS)
    try:
        if _read_at(connection, snapshot_id):
            return YugabyteBulkReader(connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether the snapshot can still be read, and is the same one."""
    reader = open_reader(url, snapshot_id, snapshot_text)
    if reader is not None:
        reader.close()
    return reader is not None


def _read_at(connection: psycopg.Connection, hybrid_time: str) -> bool:
    """Read as of a hybrid time until the transaction ends; return False if its history is gone."""
    with server_errors("reading as of the consistent point"):
        connection.execute(BEGIN_READ)
        try:
            connection.execute(f"set local yb_read_time to '{int(hybrid_time)} ht'".encode())
        except (
            psycopg.errors.UndefinedObject,  # a `penstock serve`: its session has ended
            psycopg.errors.SnapshotTooOld,
        ):
            return False
    return True
