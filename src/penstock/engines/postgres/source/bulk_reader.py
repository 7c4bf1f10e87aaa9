"""PostgreSQL as a source of the bulk load: a worker's session in an exported snapshot.

For MySQL a chunk's lines of a COPY become lines for LOAD DATA, in one walk without the GIL. Not
here: reading frames from the socket (`copy_frames.py`), rows as Arrow batches (`binary_rows.py`),
exporting a snapshot (`slot.py`), cutting tables into chunks (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import psycopg
from psycopg import sql

from penstock.codec.lines import LineCell, LineDialect
from penstock.codec.postgres.copytext import make_load_lines
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.binary_rows import open_batches
from penstock.engines.postgres.source.copy_frames import READ, CopyFrames
from penstock.engines.postgres.target.relay import BLOCK_BYTES
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.bulk import APPLICATION_NAME, BulkReader, ChunkTask, Lines, ShapedRows

SOURCE_SETTINGS: Mapping[str, str] = {
    **EXACT_TEXT_SETTINGS,
    "synchronize_seqscans": "off",
    "jit": "off",
}
_NO_SUCH_TABLE = "42P01"
_NO_SUCH_LABEL = "22P02"
# Labels of the enums of a table's columns, also in arrays and domains.
LABELS = """
    select e.enumtypid::int8, array_agg(e.enumlabel::text order by e.enumsortorder)
      from pg_attribute as a
      join pg_type as t on t.oid = a.atttypid
      left join pg_type as b on b.oid = t.typbasetype
      join pg_enum as e on e.enumtypid in (t.oid, t.typelem, b.oid, b.typelem)
     where a.attrelid = to_regclass(%(name)s) and a.attnum > 0 and not a.attisdropped
     group by e.enumtypid
"""
BEGIN_READ = "begin isolation level repeatable read read only"
# pg_class answers from the snapshot, the function from what is there now.
FILENODES = """
    select c.relfilenode::int8, pg_relation_filenode(c.oid)::int8
      from pg_class as c
     where c.oid = to_regclass(%(name)s)
"""


# Whether a name means the table that it meant in the snapshot: it may have got another one's name.
IS_SAME_TABLE = """
    select c.oid = to_regclass(%(quoted)s)
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where n.nspname = %(schema)s and c.relname = %(name)s
"""
COLUMNS_THEN = """
    select attname::text, attnum::int4
      from pg_attribute
     where attrelid = to_regclass(%(name)s) and attnum > 0 and not attisdropped
"""


Labels = dict[int, list[str]]


class PostgresBulkReader(BulkReader):
    """Reader of one chunk after another. connection: a connection whose transaction sees the
    snapshot.
    """

    def __init__(self, connection: psycopg.Connection, url: str = "") -> None:
        self.connection = connection
        self._url = url
        self._table = ""
        self._labels: Labels = {}

    def was_rewritten(self, task: ChunkTask) -> bool:
        self._table = quote(*task.table)
        with server_errors(task.doing):
            self._labels = read_labels(self.connection, self._table)
            return was_rewritten(self.connection, task.chunk.relation) or was_renamed(
                self.connection, task.table, task.columns
            )

    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """Return lines. A PostgreSQL target reads lines of COPY directly, by `connection`."""
        copy_out = task.chunk.copy_out
        if dialect is LineDialect.COPY:
            return PlainLines(self.connection, copy_out, doing=task.doing)
        assert task.read_plan is not None, "a table that goes to another engine has a read plan"
        return LinesOfCopy(self.connection, copy_out, task.read_plan.lines, doing=task.doing)

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows] | None:
        return open_batches(
            self.connection,
            task.chunk.copy_out,
            relation,
            labels=self._labels,
            doing=task.doing,
        )

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return whether the table is gone, or an enum's label was sent under another name.

        `was_rewritten` detects other changes earlier. A renamed label has its new name even in rows
        of the snapshot.
        """
        sqlstate = error.fields.get("sqlstate")
        if sqlstate == _NO_SUCH_LABEL and self._labels and self._url:
            with connect(self._url, application_name=APPLICATION_NAME) as connection:
                return read_labels(connection, self._table) != self._labels
        return sqlstate == _NO_SUCH_TABLE

    def close(self) -> None:
        self.connection.close()


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> PostgresBulkReader | None:
    """Return a session that sees this snapshot, or None if the snapshot no longer exists."""
    connection = connect(url, application_name=APPLICATION_NAME, options=SOURCE_SETTINGS)
    try:
        if import_snapshot(connection, snapshot_id, snapshot_text):
            return PostgresBulkReader(connection, url)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def read_labels(connection: psycopg.Connection, table: str) -> Labels:
    """Return the labels of a table's enums by their types' oids. table: quoted."""
    with server_errors(f"reading the enums of {table}"):
        return dict(connection.execute(LABELS, {"name": table}).fetchall())


def import_snapshot(connection: psycopg.Connection, snapshot_id: str, text: str) -> bool:
    """Begin a read-only transaction that sees an exported snapshot; return False if it is gone.

    text: what the snapshot holds (`snapshot_text`). After a restart the server uses the names of
    snapshots again, so this distinguishes ours from another. If the result is False, close the
    connection: its transaction has failed.
    """
    with server_errors("importing the snapshot"):
        connection.execute(BEGIN_READ)
        try:
            connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
        except (
            psycopg.errors.InvalidParameterValue,  # 22023, up to 17: no such file
            psycopg.errors.UndefinedObject,  # 42704, from 18
            psycopg.errors.ObjectNotInPrerequisiteState,  # 55000: its transaction has ended
        ):
            return False
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
    return row is not None and row[0] == text


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether the snapshot can still be read, and is the same one."""
    with connect(url, application_name=APPLICATION_NAME) as connection:
        alive = import_snapshot(connection, snapshot_id, snapshot_text)
        connection.rollback()
    return alive


def snapshot_text(source_url: str, snapshot_id: str) -> str:
    """Return the content of a living exported snapshot, as pg_current_snapshot() prints it."""
    with (
        connect(source_url, application_name=APPLICATION_NAME) as connection,
        server_errors("looking at the snapshot"),
    ):
        connection.execute(BEGIN_READ)
        connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])


def was_rewritten(connection: psycopg.Connection, relation: TableName) -> bool:
    """Lock a relation for the transaction; return whether its snapshot's rows are gone.

    A TRUNCATE or rewriting ALTER that committed after the snapshot leaves no rows in it. While the
    lock is held, none can follow.
    """
    connection.execute(f"lock table only {quote(*relation)} in access share mode")
    row = connection.execute(FILENODES, {"name": quote(*relation)}).fetchone()
    return row is None or row[0] != row[1]


def was_renamed(connection: psycopg.Connection, table: TableName, columns: Iterable[str]) -> bool:
    """Lock a table for the transaction; return whether a name now means another table or column.

    The catalogue shows the state of the snapshot, the description of a result the present one.
    """
    connection.execute(f"lock table only {quote(*table)} in access share mode")
    names = {"quoted": quote(*table), "schema": table.schema, "name": table.name}
    row = connection.execute(IS_SAME_TABLE, names).fetchone()
    if row is None or not row[0]:
        return True
    seen = connection.execute(COLUMNS_THEN, {"name": quote(*table)}).fetchall()
    then: dict[str, int] = dict(seen)
    result = connection.execute(f"select * from only {quote(*table)} where false").pgresult
    assert result is not None, "a SELECT has a result"
    now = {(result.fname(at) or b"").decode(): result.ftablecol(at) for at in range(result.nfields)}
    return any(name not in now or then.get(name) != now[name] for name in columns)


class PlainLines(Lines):
    """Lines of one COPY, unchanged. row_count is final at the end."""

    row_count = 0

    def __init__(self, connection: psycopg.Connection, copy_out: str, *, doing: str = READ) -> None:
        """Keep the arguments. `doing` names the work in errors."""
        self._connection = connection
        self._copy_out = copy_out
        self._doing = doing

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines, of about BLOCK_BYTES, as `LinesOfCopy` does."""
        lines: list[bytes] = []
        size = 0
        with (
            server_errors(self._doing),
            self._connection.cursor() as cursor,
            cursor.copy(sql.SQL(self._copy_out)) as copy,
        ):
            for row in copy:  # a message of its own for each
                self.row_count += 1
                lines.append(bytes(row))
                size += len(row)
                if size >= BLOCK_BYTES:
                    yield b"".join(lines)
                    lines, size = [], 0
            if lines:
                yield b"".join(lines)


class LinesOfCopy(Lines):
    """The lines of one COPY, in blocks; row_count is final at the end."""

    def __init__(
        self,
        connection: psycopg.Connection,
        copy_out: str,
        cells: Sequence[LineCell],
        *,
        doing: str = READ,
    ) -> None:
        """Keep the arguments. `doing` names the work in errors."""
        self._connection = connection
        self._copy_out = copy_out
        self._doing = doing
        self._lines = make_load_lines(cells)

    @property
    def row_count(self) -> int:
        """Rows so far."""
        return self._lines.row_count

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Raises the typed errors of `engines.postgres.connect`.

        The connection must be closed unless the end was reached: it is in the middle of a copy.
        """
        lines = self._lines
        frames = CopyFrames(self._connection, self._copy_out, lines.feed, doing=self._doing)
        for _ in frames:
            if block := lines.take():
                yield block
        frames.check(self.row_count)
