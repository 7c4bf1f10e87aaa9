"""Replay of changes into their table, as events that MariaDB executes as its replica would.

A new row is inserted, an existing row is looked up by its key and changed, and nothing is parsed:
the cost per row is that of a replica's applier. Replay is strict: if a row that the log inserts
exists, or one that it changes does not, this is an error that undoes the whole batch. The rows of
that table are then sent as lines (`direct.py`), which accept both cases (`RowsUnexpected`).

It needs two privileges: BINLOG REPLAY for the events, BINLOG ADMIN to omit their statement's text.
It needs tables of InnoDB with one unique index and only columns for which rows have values, without
triggers and checks, which events ignore, and with types that `row_events.py` supports. MySQL has
the statement too, but stores JSON in its own format, and gains less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pymysql
import structlog

from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.connect import Connection, quote, rows, server_errors
from penstock.engines.mysql.target.merge import MergeSql, MergeStrategy
from penstock.engines.mysql.target.refusals import RowsUnexpected, apply_error
from penstock.engines.mysql.target.row_events import (
    EventTable,
    NotExact,
    RowsFile,
    event_column,
    format_statement,
    pieces_of,
    statements,
)
from penstock.engines.mysql.target.target import BYTES, CHARACTER
from penstock.host.errors import StatementFailed
from penstock.model import Column
from penstock.ports.target import StagingChanged

logger = structlog.get_logger(__name__)

# A row that already exists; a row that does not. Numbers of the servers and of their engines.
UNEXPECTED = frozenset({1062, 1032, 1022})
NOT_ALLOWED = 1227
CLIENT_ERRORS = 2000  # numbers from here on are not answers of a server
PACKET_BYTES_MIN = 8 * 2**20
_LENGTH_BYTES = 4
PIECE_BYTES = 2**20

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_MOMENTS = frozenset({"datetime", "timestamp"})
_CHOICES = frozenset({"enum", "set"})
# Keyed by neutral type, the column types for which `row_events.py` converts values as LOAD DATA
# would.
_TOLD: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("bool", "int32", "int64", "uint32", "uint64"), _INTEGERS),
    "int16": _INTEGERS | {"year"},
    **dict.fromkeys(("timestamp", "timestamptz"), _MOMENTS),
    "float32": frozenset({"float"}),
    "float64": frozenset({"double"}),
    "decimal": frozenset({"decimal"}),
    "date": frozenset({"date"}),
    "time": frozenset({"time"}),
    "uuid": frozenset({"char", "varchar"}),
    "binary": BYTES,
    "string": CHARACTER | _CHOICES,
}

SETTINGS = """
    select @@global.slave_exec_mode as exec_mode, @@global.slave_skip_errors as skip_errors,
           @@server_id as server_id, @@max_allowed_packet as packet_bytes
"""


def replays(connection: Connection) -> int | None:
    """Return the server's id if it executes events of this session strictly; else None."""
    if not connection.server.is_mariadb:
        return None
    (found,) = rows(connection, SETTINGS, doing="looking at the target")
    if found["exec_mode"] != "STRICT" or found["skip_errors"] != "OFF":
        return None  # missing rows would be skipped
    if int(found["packet_bytes"]) < PACKET_BYTES_MIN:
        return None
    return int(found["server_id"])


def begin_replaying(connection: Connection, server_id: int) -> bool:
    """Announce the layout of our events to a session; return False if it may not run them."""
    try:
        # Otherwise the server writes each of our statements into its binlog beside the rows.
        connection.query("set session binlog_annotate_row_events = 0")
        connection.query(format_statement(server_id))
    except pymysql.Error as error:
        if error.args[0] >= CLIENT_ERRORS:
            raise
        if error.args[0] != NOT_ALLOWED:
            logger.warning("the target executes no events", reason=str(error.args[-1]))
        return False
    return True


def event_table(merge: MergeSql, server_id: int) -> EventTable | None:
    """Return how a table's rows are sent as events; None if they cannot be."""
    table, relation = merge.table, merge.merge.relation
    checks = set(table.checks)
    documents = {f"json_valid({quote(column.name)})": column.name for column in table.columns}
    if (
        merge.strategy is not MergeStrategy.UPSERT
        or table.triggers
        or not checks <= documents.keys()
        or table.is_versioned
        or table.engine.lower() != "innodb"
        or merge.merge.dropped
        or len(table.columns) != len(relation.columns)
    ):
        return None
    found = {target.name: index for index, (_, target) in merge.columns.items()}
    columns = []
    for target in table.columns:
        index = found.get(target.name)
        if index is None or target.generated or merge.template(index) != "{}":
            return None
        column = relation.columns[index]
        is_key = index in relation.key
        if is_key and target.is_text and not target.collation.endswith("_bin"):
            return None  # rows equal by the collation may be deleted and inserted in any order
        made = event_column(
            column.name,
            target.type_text,
            charset=target.charset,
            not_null=target.not_null,
            is_document=f"json_valid({quote(target.name)})" in checks,
            has_zero=_has_zero(column),
        )
        kind = column.neutral.partition("(")[0]
        if made is None or target.data_type not in _TOLD.get(kind, ()):
            return None
        columns.append(made)
    places = {column.name: place for place, column in enumerate(columns)}
    return EventTable(
        schema=table.name.schema,
        name=table.name.name,
        columns=tuple(columns),
        key=tuple(places[relation.columns[index].name] for index in relation.key),
        count=merge.layout.count,
        server_id=server_id,
    )


def _has_zero(column: Column) -> bool:
    """Return whether an empty text of a column is an ENUM's value 0 rather than a label."""
    kind = parse_type(column.source_type)
    return kind is not None and kind.base == "enum" and "" not in kind.labels


# --- files ----------------------------------------------------------------------------------------


def write_events(
    path: Path, table: EventTable, batches: Iterable[pa.RecordBatch]
) -> RowsFile | None:
    """Write rows as statements after their lengths; return None if rows can only be lines."""
    row_count = size_bytes = 0
    try:
        with path.open("wb") as file:
            for batch in batches:
                for statement in statements(table, batch) if batch.num_rows else ():
                    size_bytes += file.write(len(statement).to_bytes(_LENGTH_BYTES, "little"))
                    size_bytes += file.write(statement)
                row_count += batch.num_rows
    except NotExact:
        return None
    except OSError as error:
        logger.warning("rows could not wait in a file", path=str(path), reason=error.strerror)
        return None
    return RowsFile(path=path, row_count=row_count, size_bytes=size_bytes, events=table)


def replay(connection: Connection, file: RowsFile, merge: MergeSql) -> None:
    """Have the server execute a file's statements. Raises RowsUnexpected, StagingChanged."""
    table, relation = merge.table.name, merge.merge.relation
    try:
        with (
            pieces_of(file, size_bytes=PIECE_BYTES) as pieces,
            server_errors(f"applying to {table}"),
            _plain_bytes(connection),
        ):
            for statement in _statements_of(pieces):
                connection.query(statement)
    except StatementFailed as error:
        if error.fields.get("errno") not in UNEXPECTED:
            raise apply_error(error, table) from error
        raise RowsUnexpected(
            f"applying to {table}: a row is there, or is not, against what the log says (error "
            f"{error.fields['errno']})",
            hint="penstock stages the batch again and accepts both cases.",
            schema=relation.schema,
            name=relation.name,
        ) from error
    except ValueError as error:
        raise StagingChanged(
            f"{file.path}: {error}", hint="penstock stages the batch again."
        ) from error


@contextmanager
def _plain_bytes(connection: Connection) -> Iterator[None]:
    """Send statements as bytes, so that the server need not look for multibyte characters."""
    connection.query("set character_set_client = binary")
    try:
        yield
    finally:
        if connection.open:
            connection.query("set character_set_client = utf8mb4")


def _statements_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a file's statements, whose bytes arrive in pieces. Raises ValueError."""
    held = bytearray()
    for piece in pieces:
        held += piece
        start = 0
        while len(held) - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES
            end += int.from_bytes(held[start:end], "little")
            if end > len(held):
                break
            yield bytes(held[start + _LENGTH_BYTES : end])
            start = end
        del held[:start]
    if held:
        raise ValueError("the last statement is not whole")
