"""Direct loading of rows into their table from a local file, as events or as lines.

Lines are loaded by LOAD DATA LOCAL ... REPLACE; events are replayed. The writer puts a task's rows
into such a file, or into a merge table if their table does not accept them directly.

If a table has one unique index, over its key, and only columns for which rows have values, REPLACE
has the effect of `on duplicate key update` from a merge table: an existing row is updated in place.
Nothing is then written twice, and only parsing is added to the work of the server's own replica.
All other rows go through a merge table, and so do deletes.

The lines are the same as for merge tables (`rows.py`). Each column must convert a text to the same
value as it would get from a merge table's column of the neutral type; `_TAKES` lists these types.
LOCAL with REPLACE keeps strict mode; the applying side refuses values that the server only warns
of.

Replay executes events as MariaDB's replica would. A new row is inserted, an existing row is looked
up by its key and changed, and nothing is parsed: the cost per row is that of a replica's applier.
Replay is strict: if a row that the log inserts exists, or one that it changes does not, this is an
error that undoes the whole batch. The rows of that table are then sent as lines, which accept both
cases (`RowsUnexpected`).

It needs two privileges: BINLOG REPLAY for the events, BINLOG ADMIN to omit their statement's text.
It needs tables of InnoDB with one unique index and only columns for which rows have values, without
triggers and checks, which events ignore, and with types that `row_events.py` supports. MySQL has
the statement too, but stores JSON in its own format, and gains less.

The target may already have changes that are to be applied, or lack some, for a while after a copy
without a lock, and if another program writes to a table. Strict replay fails there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import structlog

from penstock.codec.mysql.types import parse_type
from penstock.codec.types import Choices
from penstock.engines.mysql.connect import Connection, quote, rows, server_errors, value
from penstock.engines.mysql.target.layout import MergeLayout, mapping_of, target_server
from penstock.engines.mysql.target.merge import Merge, MergeSql, MergeStrategy, writes_of
from penstock.engines.mysql.target.refusals import RowsUnexpected, apply_error
from penstock.engines.mysql.target.row_events import (
    EventTable,
    NotExact,
    event_column,
    format_statement,
    statements,
)
from penstock.engines.mysql.target.rows import FIELDS, lines
from penstock.engines.mysql.target.rows_files import RowsFile, StagedFile, pieces_of
from penstock.engines.mysql.target.send import FILE_NAME, Destination, send
from penstock.engines.mysql.target.target import (
    BYTES,
    CHARACTER,
    TargetColumn,
    TargetTable,
    read_target_tables,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementFailed
from penstock.model import Column, Relation, TableName
from penstock.ports.target import (
    Counts,
    MergeTable,
    NetRows,
    StagedRows,
    StagingChanged,
    StagingWriter,
)
from penstock.sql.shape_changes import is_applied
from penstock.sql.state_store import Records

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
    if (
        merge.strategy is not MergeStrategy.UPSERT
        or table.triggers
        or not checks <= table.documents.keys()
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


UNSURE_FOR_S = 600.0


class UnsureTables:
    """Tables whose rows differed from the log. Noted when applying, read when staging; shared by
    all connections of a load.
    """

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """Begin without unsure tables."""
        self._clock = clock
        self._until: dict[TableName, float] = {}

    def note(self, source: TableName) -> None:
        """Note that the target refused rows of this table because it differs from the log."""
        self._until[source] = self._clock.monotonic_s() + UNSURE_FOR_S

    def for_s(self, source: TableName) -> float:
        """Return for how many more seconds the table counts as unsure; 0 if it does not."""
        return max(0.0, self._until.get(source, 0.0) - self._clock.monotonic_s())


# How long an unfit table is not looked at again; after that it may have been altered.
UNFIT_FOR_S = 60.0
UNSETTLED_S = 1.0  # the same for one that is about to be altered

_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_APPROXIMATE = frozenset({"float", "double"})
# Keyed by neutral type, the column types that convert its text to the same as its value. Not YEAR,
# which has 2000 for the text 0 and 0000 for the number.
_TAKES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("bool", "int16", "int32", "int64", "uint32", "uint64"), _NUMBERS),
    **dict.fromkeys(("float32", "float64"), _APPROXIMATE),
    **dict.fromkeys(("timestamp", "timestamptz"), _MOMENTS),
    "date": frozenset({"date"}),
    "time": frozenset({"time"}),
    "uuid": frozenset({"uuid", "char", "varchar"}),
    "binary": BYTES,
    "string": CHARACTER | {"json", "enum", "set"},
}
_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})


def takes(column: Column, target: TargetColumn) -> bool:
    """Return whether a target column converts the texts of a log column as the target's SQL
    converts its values.
    """
    if column.neutral.startswith("decimal("):
        return target.data_type == "decimal"
    if target.charset and target.charset not in _UTF8:
        return False  # the lines are bytes, which are not converted
    return target.data_type in _TAKES.get(column.neutral, frozenset())


def direct_load(merge: MergeSql) -> str | None:
    """Return the statement that loads a file of upserts into the table; None if none can."""
    known = {target.name for _, target in merge.columns.values()}
    if (
        merge.strategy is not MergeStrategy.UPSERT
        or merge.table.triggers
        or merge.table.is_versioned  # replacing does more there, and LOAD DATA counts it otherwise
        or any(not c.generated and c.name not in known for c in merge.table.columns)
    ):
        return None
    names, sets = [], []
    for index, column in enumerate(merge.merge.relation.columns):
        found = merge.columns.get(index)
        held = f"@wk{index}"
        if found is None or found[1].generated:
            names.append(held)
            continue
        if merge.template(index) != "{}" or not takes(column, found[1]):
            return None
        name = quote(found[1].name)
        if found[1].data_type == "json":  # which accepts no bytes
            names.append(held)
            sets.append(f"{name} = convert({held} using utf8mb4)")
        else:
            names.append(name)
    more = f" set {', '.join(sets)}" if sets else ""
    return (
        f"load data local infile '{FILE_NAME}' replace into table {merge.table.sql_name}"
        f" character set binary {FIELDS} ({', '.join(names)}){more}"
    )


@dataclass(frozen=True, slots=True)
class Direct:
    """Form in which a table accepts rows directly: events, or lines if `events` is None."""

    events: EventTable | None = None


class DirectTables:
    """Tables that accept rows directly; the catalogue is read as rarely as possible."""

    def __init__(
        self,
        connection: Connection,
        records: Records,
        *,
        choices: Choices,
        unsure: UnsureTables,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the connection, which is in autocommit and has no other user meanwhile."""
        self._connection = connection
        self._records = records
        self._choices = choices
        self._unsure = unsure
        self._clock = clock
        self._server = target_server(connection.server)
        self._is_allowed: bool | None = None
        self._server_id: int | None = None  # where events are executed
        # Keyed by table: its shape, how it accepts rows, and until when that is known.
        self._known: dict[TableName, tuple[Relation, Direct | None, float]] = {}

    def among(
        self, wanted: Sequence[MergeTable], *, source_engine: str
    ) -> Mapping[TableName, Direct]:
        """Return the tables that accept rows directly, keyed by their source names."""
        if not wanted or not self._may_load():
            return {}
        now = self._clock.monotonic_s()
        unknown = [one for one in wanted if not self._is_known(one.source, one.relation, now)]
        names = {one.target for one in unknown}
        found = read_target_tables(self._connection, names) if names else {}
        for one in unknown:
            table = found.get(one.target)
            is_settled = self._is_settled(one.source, one.relation, one.target)
            unsure_s = self._unsure.for_s(one.source)
            direct = (
                None
                if table is None
                else self._direct(
                    one.source,
                    one.relation,
                    table,
                    source_engine=source_engine,
                    may_replay=is_settled and not unsure_s,
                )
            )
            for_s = UNFIT_FOR_S if direct is None else unsure_s or inf
            until = now + (for_s if is_settled else UNSETTLED_S)
            self._known[one.source] = (one.relation, direct, until)
        return {
            one.source: direct
            for one in wanted
            if (direct := self._known[one.source][1]) is not None
        }

    def _may_load(self) -> bool:
        if self._is_allowed is None:
            doing = "looking at the target"
            files = value(self._connection, "select @@local_infile", doing=doing)
            # As a statement, LOAD DATA would send a replica its file, and cause a warning.
            binlog = value(self._connection, "select @@binlog_format", doing=doing)
            self._is_allowed = bool(files) and binlog != "STATEMENT"
            server_id = replays(self._connection)
            if server_id is not None and begin_replaying(self._connection, server_id):
                self._server_id = server_id
        return self._is_allowed

    def _is_known(self, name: TableName, shape: Relation, now: float) -> bool:
        if name not in self._known:
            return False
        known, _, until = self._known[name]
        return known == shape and now < until

    def _is_settled(self, source: TableName, relation: Relation, table: TableName) -> bool:
        """Return whether, as far as is known, no batch up to this one still alters the table.

        Events fit only the present table; lines also fit the altered one.
        """
        if not is_applied(self._records.get(source, table), relation):
            self._records.forget()  # another connection writes them
        record = self._records.get(source, table)
        # A table that was never altered to a shape is used unchanged.
        return record.columns is None or is_applied(record, relation)

    def _direct(
        self,
        source: TableName,
        relation: Relation,
        table: TargetTable,
        *,
        source_engine: str,
        may_replay: bool,
    ) -> Direct | None:
        """Return how the table accepts rows directly; None if only from merge tables."""
        record = self._records.get(source, table.name)
        missing = {c.name for c in relation.columns if table.column(c.name) is None}
        if not relation.key or not missing <= set(record.left_out):
            return None
        writes = writes_of(
            relation,
            table,
            lambda column: mapping_of(
                column, source_engine, self._server, choices=self._choices, table=source
            ),
        )
        merge = Merge(
            relation=relation,
            table=table,
            staging=record.merge_name,
            counts=Counts(),
            dropped=frozenset(missing),
            writes=writes,
        )
        sql = MergeSql(merge)
        if may_replay and self._server_id is not None:
            events = event_table(sql, self._server_id)
            if events is not None:
                return Direct(events)
        return Direct() if direct_load(sql) is not None else None


# --- files ----------------------------------------------------------------------------------------


def write_lines(
    path: Path, relation: Relation, batches: Iterable[pa.RecordBatch]
) -> RowsFile | None:
    """Write upserts as lines; return None if one of them cannot be a line.

    Returns None also if the disk is full: the rows then go into the merge table.
    """
    unlabelled = MergeLayout(relation).without_label()
    names = [column.name for column in relation.columns]
    row_count = size_bytes = 0
    try:
        with path.open("wb") as file:
            for batch in batches:
                if any(_any_empty(batch.column(name)) for name in unlabelled):
                    return None  # the 0 of an ENUM, which strict mode accepts from no text
                if batch.num_rows:
                    size_bytes += file.write(lines(batch.select(names)))
                row_count += batch.num_rows
    except OSError as error:
        logger.warning("rows could not wait in a file", path=str(path), reason=error.strerror)
        return None
    return RowsFile(path=path, row_count=row_count, size_bytes=size_bytes)


def _any_empty(values: pa.Array) -> bool:
    return bool(pc.any(pc.equal(values, "")).as_py())


def table_altered(table: TableName) -> StagingChanged:
    """Return the error for a table that no longer accepts rows in the form of its files."""
    return StagingChanged(
        f"target table {table} was altered: its rows cannot go into it directly",
        hint="penstock stages the batch again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLMergeWriter(StagingWriter):
    """Writer into a merge table. path: prefix of file names, if the table accepts rows directly."""

    place: Destination
    direct: Direct | None = None
    path: Path | None = None

    @property
    def stamp(self) -> int:
        return self.place.stamp

    @property
    def layout(self) -> MergeLayout:
        return MergeLayout(self.place.relation)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged, because these servers accept all values of the log."""
        return rows

    def write(self, rows: NetRows) -> StagedRows:
        """Stage the rows. Missing values of a row are filled in the merge table."""
        file = None if rows.any_unsent else self._write_file(rows)
        if file is None:
            return StagedRows(in_table=send(self.place, chain(rows.deletes(), rows.upserts())))
        is_all = file.events is not None or not rows.counts.deletes
        in_table = 0 if is_all else send(self.place, rows.deletes())
        return StagedFile(in_table=in_table, file=file)

    def _write_file(self, rows: NetRows) -> RowsFile | None:
        """Write the rows, or the upserts alone, into a file, if all of them can go into a file."""
        if self.direct is None or self.path is None:
            return None
        path = self.path.with_name(f"{self.path.name}-{rows.part}")
        events = self.direct.events
        if events is not None:
            return write_events(path, events, chain(rows.deletes(), rows.upserts()))
        return write_lines(path, self.place.relation, rows.upserts())
