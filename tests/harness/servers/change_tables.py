"""Change tables of SQL Server in memory, and sessions that answer the source's statements.

A `ChangeServer` holds what the catalogue and the change tables of one database have; tests write
their rows as the reference describes them. An unknown statement is an error. Not here: a server
that speaks the protocol (`tests/sim_sqlserver`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.codec.sqlserver.types import SqlServerType, parse_type
from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.source import statements
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

Row = dict[str, Any]
T0 = datetime.datetime(2026, 3, 4, 5, 6, 7)  # noqa: DTZ001 - the server's local time
HEAD_TYPES = (
    ("__$start_lsn", pa.large_binary()),
    ("__$command_id", pa.int32()),
    ("__$seqval", pa.large_binary()),
    ("__$operation", pa.int32()),
    ("__$update_mask", pa.large_binary()),
)
_ARROW = {
    "bit": pa.bool_(),
    "tinyint": pa.uint8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float64(),
    "real": pa.float32(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "datetime": pa.timestamp("us"),
    "smalldatetime": pa.timestamp("us"),
    "datetime2": pa.timestamp("us"),
    "money": pa.decimal128(19, 4),
    "smallmoney": pa.decimal128(10, 4),
}
_BYTES = frozenset(("binary", "varbinary", "image", "rowversion"))


def lsn(number: int) -> bytes:
    """Return an LSN of ten bytes."""
    return number.to_bytes(10)


def arrow_type(kind: SqlServerType) -> pa.DataType:
    """Return the type that the driver's Arrow gives a column as it is selected."""
    if kind.base == "decimal":
        return pa.decimal128(kind.precision or 18, kind.scale or 0)
    if kind.base in _BYTES:
        return pa.large_binary()
    if kind.base == "datetimeoffset" or (kind.base == "datetime2" and kind.scale == 7):
        return pa.large_string()  # printed by the server
    return _ARROW.get(kind.base, pa.large_string())


@dataclass
class FakeColumn:
    """Column of a table. is_captured: the change table has it."""

    name: str
    type_text: str
    column_id: int
    is_computed: bool = False
    is_dropped: bool = False

    @property
    def kind(self) -> SqlServerType:
        """Type of the column."""
        return parse_type(self.type_text)


@dataclass
class FakeInstance:
    """Capture instance with the rows of its change table.

    Attributes:
        start: start_lsn, which the clean-up job moves.
        ddl: Statements that altered its table: LSN, text.
    """

    name: str
    object_id: int
    source_id: int
    columns: list[FakeColumn]
    start: int
    created: str = "2026-03-04T05:00:00"
    rows: list[Row] = field(default_factory=list)
    ddl: list[tuple[int, str]] = field(default_factory=list)
    has_command: bool = True
    is_readable: bool = True

    def mask(self, changed: Sequence[str] | None = None) -> bytes:
        """Return an update mask: all columns, or those that changed; the last byte first."""
        wanted = [one.name for one in self.columns] if changed is None else changed
        bits = sum(1 << at for at, one in enumerate(self.columns) if one.name in wanted)
        return bits.to_bytes((len(self.columns) + 7) // 8)


@dataclass
class FakeTable:
    """Table of the database."""

    name: TableName
    object_id: int
    columns: list[FakeColumn]
    key: tuple[str, ...] = ()

    def definition(self) -> TableDefinition:
        """Return the definition as the catalogue's reader gives it."""
        columns = tuple(
            ColumnDefinition(
                name=one.name,
                type_text=one.type_text,
                type_oid=0,
                typmod=-1,
                not_null=one.name in self.key,
                generated="v" if one.is_computed else "",
                neutral=one.kind.neutral,
                id=one.column_id,
            )
            for one in self.columns
            if not one.is_dropped
        )
        return TableDefinition(
            name=self.name,
            source_id=self.object_id,
            columns=columns,
            primary_key=self.key,
            identity=Identity.DEFAULT if self.key else Identity.FULL,
            identity_columns=self.key,
        )


@dataclass
class ChangeServer:
    """One database.

    Attributes:
        commits: LSN, local end time and transaction id of cdc.lsn_time_mapping, in order.
        newest: What fn_cdc_get_max_lsn returns; None: the last one of commits.
        sent: All statements with their parameters.
        before: Called with each statement before it is answered.
        failing: Errors by statement, raised instead of an answer.
        retention: Minutes that the clean-up job keeps changes.
        agent: Status of the Agent; None: the view shows nothing.
        scans: Rows of the last scan, one per question; the last one stays.
        answers: Rows of further statements, or of one instead of what this server has.
    """

    name: str = "shop"
    guid: str | None = "0CC31DE0-0000-4000-8000-000000000001"
    tables: dict[int, FakeTable] = field(default_factory=dict)
    instances: list[FakeInstance] = field(default_factory=list)
    commits: list[tuple[int, datetime.datetime, bytes]] = field(default_factory=list)
    is_enabled: bool = True
    has_forgotten_all: bool = False
    newest: int | None = None
    zone_minutes: int = 0
    agent: int | None = 4
    sent: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None
    failing: dict[str, Exception] = field(default_factory=dict)
    hadr: str | None = None
    log_commit: str | None = None
    scans: list[tuple[Any, ...]] = field(default_factory=list)
    maxtrans: int | None = 500
    retention: int = 4320
    open_count: int = 0
    answers: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def add_table(
        self, name: str, columns: Sequence[tuple[str, str]], key: Sequence[str] = ("id",)
    ) -> FakeTable:
        """Create a table of dbo."""
        made = [FakeColumn(one, kind, at + 1) for at, (one, kind) in enumerate(columns)]
        object_id = 1000 + len(self.tables)
        table = FakeTable(TableName("dbo", name), object_id, made, tuple(key))
        self.tables[object_id] = table
        return table

    def capture(
        self, table: FakeTable, *, start: int, instance: str = "", created: str = ""
    ) -> FakeInstance:
        """Create a capture instance with the table's present columns."""
        made = FakeInstance(
            name=instance or f"dbo_{table.name.name}",
            object_id=5000 + len(self.instances),
            source_id=table.object_id,
            columns=[FakeColumn(**vars(one)) for one in table.columns if not one.is_dropped],
            start=start,
            created=created or f"2026-03-04T05:00:{len(self.instances):02}",
        )
        self.instances.append(made)
        return made

    def drop(self, table: FakeTable) -> None:
        """Drop a table with its capture instances."""
        del self.tables[table.object_id]
        self.instances = [one for one in self.instances if one.source_id != table.object_id]

    def commit(self, number: int, *, transaction: bytes = b"\0\0\0\0\5\x1a") -> int:
        """Note a commit in cdc.lsn_time_mapping."""
        time = T0 + datetime.timedelta(milliseconds=10 * len(self.commits))
        self.commits.append((number, time, transaction))
        return number

    def clean_up(self, through: int) -> None:
        """Remove changes and commits up to an LSN, as the clean-up job does."""
        for one in self.instances:
            one.start = max(one.start, through + 1)
            one.rows = [row for row in one.rows if row["__$start_lsn"] > lsn(through)]
        self.commits = [one for one in self.commits if one[0] > through]

    def definitions(self) -> list[TableDefinition]:
        """Return the definitions of all tables."""
        return [one.definition() for one in self.tables.values()]

    def open(self) -> FakeSession:
        """Open a session."""
        self.open_count += 1
        return FakeSession(self)

    @property
    def max_lsn(self) -> bytes | None:
        """Return the newest captured commit."""
        if self.newest is not None:
            return lsn(self.newest)
        return lsn(self.commits[-1][0]) if self.commits else None


class FakeSession:
    """Session of a `ChangeServer`; has the methods of `connect.Connection` that are used."""

    def __init__(self, server: ChangeServer) -> None:
        self._server = server
        self.is_closed = False
        self._is_reading = False

    def close(self) -> None:
        """End the session."""
        assert not self.is_closed
        self.is_closed = True
        self._server.open_count -= 1

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Answer a statement. Raises KeyError for one that the source does not send."""
        assert not self._is_reading, "the session still sends rows"
        self._note(sql, parameters)
        if sql in self._server.answers:
            return self._server.answers[sql]
        return _ANSWERS[sql](self._server, *parameters)

    def arrow(self, sql: str, *parameters: Any, rows: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a change table in batches."""
        assert not self._is_reading
        self._is_reading = True
        try:
            self._note(sql, parameters)
            instance = next(
                (
                    one
                    for one in self._server.instances
                    if f"FROM {statements.change_table(one.name)} " in sql
                ),
                None,
            )
            if instance is None:
                raise server_error(sql, 208, "", "Invalid object name")
            first, last = parameters
            yield from batches_of(instance, sql, first, last, size=rows)
        finally:
            self._is_reading = False

    def _note(self, sql: str, parameters: tuple[Any, ...]) -> None:
        assert not self.is_closed
        self._server.sent.append((sql, parameters))
        self._server.before(sql)
        if sql in self._server.failing:
            raise self._server.failing[sql]


def batches_of(
    instance: FakeInstance, sql: str, first: bytes, last: bytes, *, size: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a change table that a query asks for, ordered as it says."""
    order = sql.partition("ORDER BY ")[2].partition(" OPTION")[0].replace("[", "").replace("]", "")
    keys = order.split(", ")
    found = [row for row in instance.rows if first <= row["__$start_lsn"] <= last]
    found.sort(key=lambda row: [row[key] for key in keys])
    columns = [one for one in instance.columns if f"[{one.name}]" in sql.partition(" FROM ")[0]]
    schema = pa.schema([*HEAD_TYPES, *((one.name, arrow_type(one.kind)) for one in columns)])
    for at in range(0, len(found), size):
        piece = found[at : at + size]
        arrays = [
            pa.array(
                [
                    _value(row.get(name, 0 if name == "__$command_id" else None), kind)
                    for row in piece
                ],
                kind,
            )
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is not None and pa.types.is_decimal(kind):
        return Decimal(value)
    return value


def _instances(server: ChangeServer) -> list[tuple[Any, ...]]:
    found = sorted(server.instances, key=lambda one: (one.source_id, one.start, one.created))
    return [
        (
            one.object_id,
            one.source_id,
            one.name,
            one.created,
            lsn(one.start),
            lsn(one.start) if one.is_readable else bytes(10),
            server.tables[one.source_id].name.schema if one.source_id in server.tables else None,
            server.tables[one.source_id].name.name if one.source_id in server.tables else None,
            lsn(one.ddl[-1][0]) if one.ddl else None,
        )
        for one in found
    ]


def _columns(server: ChangeServer) -> list[tuple[Any, ...]]:
    found = []
    for one in server.instances:
        table = server.tables.get(one.source_id)
        there = {it.column_id for it in (table.columns if table else ()) if not it.is_dropped}
        for ordinal, column in enumerate(one.columns, 1):
            kind = column.kind
            length = kind.length if kind.length is not None else 8
            if kind.base in ("nchar", "nvarchar") and length > 0:
                length *= 2
            found.append(
                (
                    one.object_id,
                    ordinal,
                    column.name,
                    column.column_id,
                    column.is_computed,
                    kind.base,
                    length,
                    kind.precision or 0,
                    kind.scale or 0,
                    column.name if column.column_id in there else None,
                )
            )
    return found


def _commits(server: ChangeServer, count: int, last: bytes, end: bytes) -> list[tuple[Any, ...]]:
    found = [
        (lsn(number), time, told)
        for number, time, told in server.commits
        if last < lsn(number) <= end and told != b"\0"
    ]
    return found[:count]


def _known_commit(server: ChangeServer, position: bytes) -> list[tuple[Any, ...]]:
    found = [(time, told) for number, time, told in server.commits if lsn(number) == position]
    numbers = [lsn(number) for number, _, _ in server.commits]
    ends = (min(numbers), max(numbers)) if numbers else (None, None)
    return [(*ends, *(found[0] if found else (None, None)))]


def _ddl(server: ChangeServer, last: bytes, end: bytes) -> list[tuple[Any, ...]]:
    return sorted(
        (
            (one.source_id, one.object_id, False, text, lsn(number))
            for one in server.instances
            for number, text in one.ddl
            if last < lsn(number) <= end
        ),
        key=lambda row: row[4],
    )


def _scan(server: ChangeServer) -> list[tuple[Any, ...]]:
    if not server.scans:
        return []
    return [server.scans[0] if len(server.scans) == 1 else server.scans.pop(0)]


_ANSWERS: dict[str, Callable[..., list[tuple[Any, ...]]]] = {
    statements.NEWEST: lambda server: [
        (
            server.max_lsn,
            T0 + datetime.timedelta(hours=1, minutes=-server.zone_minutes),
            server.zone_minutes,
        )
    ],
    statements.INSTANCES: _instances,
    statements.COLUMNS: _columns,
    statements.WITH_COMMAND: lambda server: [
        (one.object_id,) for one in server.instances if one.has_command
    ],
    statements.TRANSACTIONS: _commits,
    statements.DDL_HISTORY: _ddl,
    statements.TABLE_EXISTS: lambda server, source_id: [(int(source_id in server.tables),)],
    statements.DATABASE: lambda server: [(server.name, 5, server.is_enabled, "sql1", 3)],
    statements.GUID: lambda server: [(server.guid,)],
    statements.KNOWN_COMMIT: _known_commit,
    statements.HADR_COMMIT: lambda server: [(server.hadr,)] if server.hadr else [],
    statements.LOG_COMMIT: lambda server: [(server.log_commit,)],
    statements.SERVICES: lambda server: [
        ("SQL Server (MSSQLSERVER)", 4),
        *([("SQL Server Agent (MSSQLSERVER)", server.agent)] if server.agent is not None else []),
    ],
    statements.LAST_SCAN: _scan,
    statements.JOBS: lambda server: (
        [("cleanup", 0, server.retention), ("capture", server.maxtrans, 0)]
        if server.maxtrans is not None
        else []
    ),
}
