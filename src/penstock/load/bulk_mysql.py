"""A chunk's rows out of MySQL or MariaDB: the packets of a SELECT, line by line into a bulk reader.

One thread: blocks are read from a lent session, become lines in one walk without the GIL, and go
to the target, while both servers work. No row becomes an object of Python or of Arrow. Not here:
what the SELECT says (`bulk_types.py`), and what is recorded of a chunk (`chunk.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from penstock.codec.mysql.mysqltext import Dialect, Stop, TextCell, make_row_lines
from penstock.engines.mysql.source.borrowing import BorrowedSession
from penstock.engines.postgres.target.pipe import CopyCountsDiffer
from penstock.model import PenstockError

READ = "reading at the source"
_DEFINITION_CHANGED = 1412  # ER_TABLE_DEF_CHANGED: the table is younger than the snapshot


def was_redefined(error: PenstockError) -> bool:
    """Whether a SELECT failed because the snapshot cannot see the table as it is now."""
    return error.fields.get("errno") == _DEFINITION_CHANGED


class RowsOfChunk:
    """The lines of one SELECT, in blocks; row_count is final at the end."""

    def __init__(
        self, session: BorrowedSession, select: str, cells: Sequence[TextCell], dialect: Dialect
    ) -> None:
        self._session = session
        self._select = select
        self._lines = make_row_lines(cells, dialect)

    @property
    def row_count(self) -> int:
        """Rows so far."""
        return self._lines.row_count

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of whole lines. Raises the typed errors of `engines.postgres.connect`."""
        session, lines = self._session, self._lines
        session.select(self._select, doing=READ)
        ended = False
        while not ended:
            session.start = lines.feed(session.block, session.start, session.end)
            # What ends a result is noted before its last rows are given away: who cannot use
            # them gives the session back, and must not wait for the end a second time.
            if ended := lines.stop is Stop.END:
                session.finished()
            is_error = lines.stop is Stop.ERROR
            failed = session.failed(lines.message, doing=READ) if is_error else None
            if block := lines.take():
                yield block
            if failed is not None:
                raise failed
            if not ended:
                session.receive()
        session.let_go()


def into_postgres(rows: RowsOfChunk, target: psycopg.Connection, copy_in: str) -> int:
    """Write lines through `copy ... from stdin`; the number of rows. Raises CopyCountsDiffer."""
    with target.cursor() as cursor:
        with cursor.copy(sql.SQL(copy_in)) as copy:
            for block in rows:
                copy.write(block)
        taken = cursor.rowcount
    if taken != rows.row_count:
        raise CopyCountsDiffer(
            f"the source sent {rows.row_count} rows and the target took in {taken}",
            hint="Look for triggers and rules on the target table that drop or add rows, and "
            "disable them: alter table ... disable trigger ...;",
            sent=rows.row_count,
            taken=taken,
        )
    return rows.row_count
