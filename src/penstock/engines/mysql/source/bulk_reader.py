"""Read a chunk's rows from MySQL or MariaDB: the packets of a SELECT, line by line.

One thread reads blocks from a proxied session, converts them to lines in one walk without the GIL,
and sends them to the target, while both servers work. No row becomes an object of Python or of
Arrow. Not here: the text of the SELECT (`read_plan.py`), and the holder of the sessions
(`session_proxy.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from penstock.codec.lines import CellForm, LineDialect, TextCell
from penstock.codec.mysql.mysqltext import RowStop, make_row_lines
from penstock.engines.mysql.proxy_protocol import SnapshotGone, is_alive
from penstock.engines.mysql.source.proxied_session import ProxiedSession, open_proxied
from penstock.host.faults import declare, point
from penstock.model import PenstockError, TableDefinition
from penstock.ports.bulk import BulkReader, ChunkTask, Lines

READ = "reading at the source"
declare("bulk.chunk.reading")
_DEFINITION_CHANGED = 1412  # ER_TABLE_DEF_CHANGED: the table is younger than the snapshot
_NO_SUCH_TABLE = 1146
# MariaDB answers from the present table, MySQL from the snapshot; there the columns must suffice.
_CHANGED_S = """
    select coalesce(unix_timestamp(create_time), 0)
      from information_schema.tables
     where table_schema = {schema}
       and table_name = {name}
       and cast(table_name as binary) = cast({name} as binary)
"""


class MySQLBulkReader(BulkReader):
    """Reader of one chunk after another. session: proxied, of the snapshot."""

    def __init__(self, session: ProxiedSession) -> None:
        self._session = session

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return whether names or time of the definition differ; a renamed column shows in no other
        way.
        """
        if not task.chunk.shape:
            return False
        from penstock.engines.mysql.connect import literal, quote  # with the driver

        # Looking at the columns makes an ALTER wait until the chunk is read.
        names = self._session.columns(f"select * from {quote(*task.table)} limit 0", doing=READ)
        schema, name = literal(task.table.schema), literal(task.table.name)
        changed_s = self.number(_CHANGED_S.format(schema=schema, name=name), keeps=True)
        return _shape_text(names, changed_s) != task.chunk.shape

    def tells_rewritten(self, error: PenstockError) -> bool:
        return tells_rewritten(error)

    def lines(self, task: ChunkTask, dialect: LineDialect) -> RowsOfChunk:
        assert task.read_plan is not None, "a table of MySQL has a read plan"
        return RowsOfChunk(self._session, task.chunk.copy_out, task.read_plan.cells, dialect)

    def number(self, select: str, *, keeps: bool = False) -> int:
        """Return the result of a SELECT of one whole number. keeps: tables read stay locked."""
        cells = [TextCell(form=CellForm.PLAIN)]
        rows = RowsOfChunk(self._session, select, cells, LineDialect.LOAD_DATA, keeps=keeps)
        return int(b"".join(rows))

    def close(self) -> None:
        self._session.close()


def tells_rewritten(error: PenstockError) -> bool:
    """Return whether a SELECT failed because the table is no longer the one of the snapshot."""
    return error.fields.get("errno") in (_DEFINITION_CHANGED, _NO_SUCH_TABLE)


def shape_text(table: TableDefinition) -> str:
    """Return a text that must be equal when a chunk is planned and when it is read."""
    names = [column.name for column in table.columns if not column.is_invisible]
    return _shape_text(names, table.changed_s)


def _shape_text(names: Sequence[str], changed_s: int) -> str:
    return short_digest((*names, changed_s))


def short_digest(facts: object) -> str:
    """Return 24 hex digits that distinguish these facts from others; their `repr` must be
    stable.
    """
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> MySQLBulkReader | None:
    """Return a session of the snapshot, whose name holds the proxy's address."""
    del url
    try:
        return MySQLBulkReader(open_proxied(snapshot_id, snapshot_text))
    except SnapshotGone:
        return None


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether the snapshot can still be read, and is the same one."""
    del url
    return is_alive(snapshot_id, snapshot_text)


class RowsOfChunk(Lines):
    """Lines of one SELECT, in blocks; row_count is final at the end."""

    def __init__(
        self,
        session: ProxiedSession,
        select: str,
        cells: Sequence[TextCell],
        dialect: LineDialect,
        *,
        keeps: bool = False,
    ) -> None:
        self._session = session
        self._keeps = keeps
        self._select = select
        self._lines = make_row_lines(cells, dialect)

    @property
    def row_count(self) -> int:
        """Number of rows so far."""
        return self._lines.row_count

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Raises the typed errors of `engines.mysql.connect`."""
        session, lines = self._session, self._lines
        session.select(self._select, doing=READ)
        ended = False
        while not ended:
            session.start = lines.feed(session.block, session.start, session.end)
            # The end of a result is noted before its last rows are yielded: a consumer that fails
            # on them gives the session back, and must not wait for the end a second time.
            if ended := lines.stop is RowStop.END:
                session.end_result()
            is_error = lines.stop is RowStop.ERROR
            failed = session.error_of(lines.message, doing=READ) if is_error else None
            if block := lines.take():
                point("bulk.chunk.reading")
                yield block
            if failed is not None:
                raise failed
            if not ended:
                session.receive()
        if not self._keeps:
            session.let_go()
