"""Writer of a chunk into MySQL or MariaDB: its lines and its DL row, in one transaction.

The rows are sent by LOAD DATA LOCAL from memory, which only warns of values that it could not
store. Any warning is therefore an error, except those for the 0 of an ENUM, which are counted. If
the server refuses LOAD DATA LOCAL (`local_infile = 0`), rows are sent by INSERT with many rows per
statement, and warnings are treated equally. Lines and literals have the same escapes
(`rows.FIELDS`), so whole blocks are turned into values by replacing what separates them. Not here:
the origin of the lines (the source's `BulkReader`), retries (`penstock.load.chunk`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pymysql
import structlog

from penstock.codec.lines import LineDialect
from penstock.engines.mysql.connect import (
    Connection,
    connect,
    quote,
    server_errors,
    value,
)
from penstock.engines.mysql.source.bulk_reader import MySQLBulkReader
from penstock.engines.mysql.target.bulk import SETTINGS
from penstock.engines.mysql.target.claims import claim
from penstock.engines.mysql.target.progress import MySQLProgress, transaction
from penstock.engines.mysql.target.rows import FIELDS
from penstock.engines.mysql.target.send import (
    COUNTING,
    FILE_NAME,
    INSERT_BYTES_MAX,
    all_warnings,
    column_said,
    load_local,
    not_of_labels,
    warnings_said,
)
from penstock.engines.mysql.target.target import (
    TargetTable,
    accepting_documents,
    read_target_tables,
)
from penstock.host import faults
from penstock.host.errors import LOST, ConnectionLost
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import (
    APPLICATION_NAME,
    BulkReader,
    BulkWriter,
    ChunkStatus,
    ChunkTask,
    CopyCountsDiffer,
    Lines,
)
from penstock.ports.target import ValueRefused
from penstock.sql.read_plan import AS_IS

_NULL = b"_binary'\\N'"  # a quote within a value follows a backslash, this one does not


def insert_statements(
    head: str, templates: Sequence[str], blocks: Iterable[bytes], *, bytes_max: int
) -> Iterator[bytes]:
    """Yield statements of at most this size, unless a single row is larger.

    head: statement up to the word VALUES. templates: SQL computed from each value; see `ReadPlan`.
    blocks: blocks of whole lines.
    """
    began = f"{head} values ".encode()
    room = max(bytes_max - len(began), 1)
    computed = any(template != AS_IS for template in templates)
    for block in blocks:
        rows = _apply_templates(block, templates) if computed else _literals(block)
        yield from _pieces(began, rows, room)


def _pieces(began: bytes, rows: Sequence[bytes], room: int) -> Iterator[bytes]:
    start, size = 0, 0
    for at, row in enumerate(rows):
        if at > start and size + len(row) + 1 > room:
            yield began + b",".join(rows[start:at])
            start, size = at, 0
        size += len(row) + 1
    if start < len(rows):
        yield began + b",".join(rows[start:])


def _escape_quotes(block: bytes) -> bytes:
    return block.replace(b"'", b"\\'")


def _literals(block: bytes) -> list[bytes]:
    text = _escape_quotes(block).replace(b"\t", b"',_binary'").replace(b"\n", b"')\n(_binary'")
    rows = (b"(_binary'" + text).replace(_NULL, b"NULL").split(b"\n")
    return rows[:-1]  # after the last line there is no row


def _apply_templates(block: bytes, templates: Sequence[str]) -> list[bytes]:
    parts = [template.encode() for template in templates]
    return [
        b"(" + b",".join(map(_value, parts, line.split(b"\t"))) + b")"
        for line in _escape_quotes(block).split(b"\n")[:-1]
    ]


def _value(template: bytes, text: bytes) -> bytes:
    raw = b"NULL" if text == b"\\N" else b"_binary'" + text + b"'"
    if template == AS_IS.encode():
        return raw
    converted = b"convert(" + raw + b" using utf8mb4)"
    return template.replace(AS_IS.encode(), converted)


logger = structlog.get_logger()
# How long a chunk's transaction outlives one of our machines that vanishes; the source may pause
# between two rows.
VANISHED = {"net_read_timeout": "300", "wait_timeout": "300"}
# Errors of an INSERT that are about a value or a row; LOAD DATA LOCAL warns of them.
UNFIT = frozenset(
    (1048, 1062, 1264, 1265, 1292, 1300, 1366, 1367, 1406, 1411, 1416, 3140, 3141, 3144, 4025)
)


class MySQLWriter(BulkWriter):
    """Connection of a worker to the target; see `BulkWriter`."""

    def __init__(self, url: str, *, replica_role: bool = True) -> None:
        """Connect. replica_role: ignored, because our sessions always ignore foreign keys."""
        del replica_role
        self._connection: Connection = connect(
            url,
            application_name=APPLICATION_NAME,
            options={**SETTINGS, "sql_mode": COUNTING, **VANISHED},
            local_infile=True,
        )
        self._progress = MySQLProgress(self._connection)
        self._tables: dict[TableName, TargetTable] = {}
        self._said: tuple[int, str] | None = None  # the chunk's first warning
        self._other: tuple[int, str] | None = None  # the first not about the 0 of an ENUM
        doing = "looking at the target"
        self._takes_files = bool(value(self._connection, "select @@local_infile", doing=doing))
        packet = int(value(self._connection, "select @@max_allowed_packet", doing=doing))
        self._insert_bytes = min(INSERT_BYTES_MAX, packet - 2**16)
        if not self._takes_files:
            logger.warning(
                "the target accepts no LOAD DATA LOCAL, rows are sent with INSERT",
                hint="Run: set global local_infile = 1;",
            )

    def close(self) -> None:
        """Close without a good-bye, which would be read as rows in the middle of LOAD DATA."""
        self._connection._force_close()

    def read_action(self) -> str:
        """Return the word in wirekite_action."""
        return self._progress.read_action()

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        """Copy the rows and write the DL row, in one transaction."""
        connection, progress, number = self._connection, self._progress, task.chunk.number
        doing = task.doing
        try:
            with server_errors(doing):
                claim(connection, task)
            with server_errors(doing), transaction(connection):
                if not progress.holds_plan(task.table, task.plan):
                    return ChunkStatus.PLAN_GONE, 0
                # Waits for a copy of the same chunk that another process has not committed yet.
                progress.begin_chunk(table=task.table, number=number)
                before = progress.rows_of_chunk(task.table, number)
                if before is not None:
                    return ChunkStatus.DONE_BEFORE, before
                count = self._load(task, reader)
                faults.point("bulk.chunk.copied")
                progress.end_chunk(table=task.table, number=number, row_count=count)
        except pymysql.err.InterfaceError as error:
            raise ConnectionLost(f"{doing}: the connection was closed", hint=LOST) from error
        faults.point("bulk.chunk.committed")
        return ChunkStatus.DONE, count

    def _load(self, task: ChunkTask, reader: BulkReader) -> int:
        lines = reader.lines(task, LineDialect.LOAD_DATA)
        self._said = self._other = None
        table = self._table(task.target)
        is_from_mysql = isinstance(reader, MySQLBulkReader)
        with accepting_documents(self._connection, table, is_from_mysql=is_from_mysql):
            if self._takes_files:
                taken, warnings = load_local(self._connection, load_sql(task), iter(lines))
                if warnings:
                    warnings = self._warnings(task)
            else:
                taken, warnings = self._insert(task, lines)
        if warnings and (self._other or warnings != _without_label(task, reader)):
            raise _value_refused(task, *(self._other or self._said or (0, "")))
        if taken != lines.row_count:
            raise CopyCountsDiffer(
                f"the source sent {lines.row_count} rows and the target took {taken}",
                hint="Look for rows in the target table that have the same key: run select count(*)"
                f" from {quote(*task.target)};",
                sent=lines.row_count,
                taken=taken,
            )
        return taken

    def _table(self, name: TableName) -> TargetTable | None:
        """Return the target's table, which is looked at once; None on MySQL."""
        if not self._connection.server.is_mariadb:
            return None
        if name not in self._tables:
            self._tables |= read_target_tables(self._connection, [name])
        return self._tables.get(name)

    def _warnings(self, task: ChunkTask) -> int:
        """Return the number of warnings of the last statement; remember the first ones."""
        assert task.read_plan is not None, "the plan of a table that goes into MySQL has one"
        count = all_warnings(self._connection)
        said = warnings_said(self._connection)
        self._said = self._said or next(iter(said), None)
        self._other = self._other or next(iter(not_of_labels(said, task.read_plan.enums)), None)
        return count

    def _insert(self, task: ChunkTask, lines: Lines) -> tuple[int, int]:
        """Send the rows as statements; return the numbers of stored rows and of warnings."""
        assert task.read_plan is not None, "the plan of a table that goes into MySQL has one"
        names = ", ".join(quote(name) for name in task.read_plan.columns)
        head = f"insert into {quote(*task.target)} ({names})"
        taken = warnings = 0
        try:
            for statement in insert_statements(
                head, task.read_plan.templates, lines, bytes_max=self._insert_bytes
            ):
                taken += int(self._connection.query(statement))
                if self._connection._result.warning_count:
                    warnings += self._warnings(task)
        except pymysql.Error as error:
            number = error.args[0] if error.args else 0
            if number in UNFIT:
                raise _value_refused(task, int(number), str(error.args[-1])) from None
            raise
        return taken, warnings


def _value_refused(task: ChunkTask, number: int, text: str) -> PenstockError:
    """Return the error for a warning of the server, without the value that it names."""
    column = column_said(text)
    which = f"a value of column {column}" if column else "a row"
    return ValueRefused(
        f"chunk {task.chunk.number} of {task.table}: the target cannot hold {which} "
        f"(error {number})",
        hint="The value is out of the range of its type: have the column as text in the "
        "target, or leave the table out.",
        table=str(task.target),
        errno=number,
    )


def _without_label(task: ChunkTask, reader: BulkReader) -> int:
    """Return how many values of a chunk are the 0 of an ENUM, stored with one warning each.

    They are counted at the source, in the snapshot of the chunk.
    """
    assert task.read_plan is not None, "the plan of a table that goes into MySQL has one"
    if not task.read_plan.enums or not isinstance(reader, MySQLBulkReader):
        return 0
    empty = " + ".join(
        f"coalesce(sum(length(c.{quote(name)}) = 0), 0)" for name in task.read_plan.enums
    )
    counted = f"select {empty} from ({task.chunk.copy_out}) as c"
    return reader.number(counted)


def load_sql(task: ChunkTask) -> str:
    """Return the LOAD DATA of a chunk. Computed values go through variables, as text."""
    assert task.read_plan is not None, "the plan of a table that goes into MySQL has one"
    listed, computed = [], []
    for place, (name, template) in enumerate(
        zip(task.read_plan.columns, task.read_plan.templates, strict=True)
    ):
        if template == AS_IS:
            listed.append(quote(name))
            continue
        listed.append(f"@v{place}")
        text = f"convert(@v{place} using utf8mb4)"
        computed.append(f"{quote(name)} = {template.replace(AS_IS, text)}")
    settings = f" set {', '.join(computed)}" if computed else ""
    return (
        f"load data local infile '{FILE_NAME}' into table {quote(*task.target)} "
        f"character set binary {FIELDS} ({', '.join(listed)}){settings}"
    )
