"""Merge rows into a merge table, by ADBC's binary COPY. Runs in the workers."""

from __future__ import annotations

import os
import threading
from typing import Any

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import conninfo

from penstock.engines.postgres.connect import connect_error, literal, quoted
from penstock.model import LOAD_AFRESH, PenstockError
from penstock.ports.refusals import StagingChanged, StagingFailed, StagingLost
from penstock.ports.target import SCHEMA, Outgoing

# By process, thread and URL: no connection is used by two, nor closed under another's hands.
_connections: dict[tuple[int, int, str], Any] = {}


def send(url: str, rows: Outgoing) -> None:
    """Append rows to a merge table; see `Engine.send`."""
    connection = _connection(url)
    try:
        with connection.cursor() as cursor:
            _check_stamp(cursor, rows)
            cursor.adbc_ingest(rows.staging, rows.reader, mode="append", db_schema_name=SCHEMA)
        connection.commit()
    except (adbc_driver_manager.Error, pa.ArrowException) as error:
        _forget(url)
        raise _staging_error(rows, error) from error
    except BaseException:
        _forget(url)
        raise


def _check_stamp(cursor: Any, rows: Outgoing) -> None:
    """Keep the merge table from being emptied until the commit, and see that it is ours.

    A worker whose job was given up, as when a table leaves the batches to be copied, may come
    after the next batch has the table: its rows would be too many there.
    """
    table = quoted(SCHEMA, rows.staging)
    cursor.execute(f"lock table {table} in row exclusive mode")
    cursor.execute(f"select pg_relation_filenode({literal(table)})::bigint")
    if cursor.fetchone()[0] != rows.stamp:
        raise StagingChanged(
            f"merge table {table} is meant for another batch by now",
            hint="The batch is staged again by itself.",
        )


def _staging_error(rows: Outgoing, error: Exception) -> PenstockError:
    state = getattr(error, "sqlstate", None) or ""
    said = " ".join(str(error).split())
    message = f"staging {rows.table} into {quoted(SCHEMA, rows.staging)}: {said}"
    # Without a word of the server behind it, this one tells of a value that has no binary form.
    unsendable = said.endswith("Error occurred writing COPY data:")
    lost = not state or state.startswith(("08", "57", "53"))
    if isinstance(error, adbc_driver_manager.OperationalError) and lost and not unsendable:
        return StagingLost(message, hint="It is tried again by itself.")
    return StagingFailed(
        message,
        hint=f"Please report it. {LOAD_AFRESH}",
        table=str(rows.table),
    )


def _place(url: str) -> tuple[int, int, str]:
    return os.getpid(), threading.get_ident(), url


def _connection(url: str) -> Any:
    """The worker's connection to the target; a forked child does not share its parent's."""
    place = _place(url)
    if place not in _connections:
        for *here, other in list(_connections):  # a worker serves one target at a time
            if tuple(here) == place[:2]:
                _forget(other)
        given = conninfo.conninfo_to_dict(url)
        options = str(given.get("options") or "")
        given["options"] = f"{options} -c statement_timeout=0 -c lock_timeout=60000".strip()
        given["application_name"] = "penstock worker"
        given.setdefault("connect_timeout", 10)
        text = conninfo.make_conninfo("", **given)
        try:
            _connections[place] = dbapi.connect(text)
        except adbc_driver_manager.Error as error:
            raise connect_error(url, str(error)) from error
    return _connections[place]


def _forget(url: str) -> None:
    """Drop a connection after an error: it may stand in the middle of a COPY."""
    connection = _connections.pop(_place(url), None)
    if connection is not None:
        try:
            connection.close()
        except adbc_driver_manager.Error:
            return  # it is broken; the server ends its side when the socket goes
