"""Catalogue and rows of the captured tables, read in their container while the redo is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.codec.oracle.types import catalogue_type
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.entries import Entry
from penstock.engines.oracle.source.errors import RELOAD, LobLost
from penstock.engines.oracle.source.layouts import Columns
from penstock.engines.oracle.source.lobs import Gone, LobValue
from penstock.engines.oracle.source.relations import ENCODINGS
from penstock.model import PenstockError, TableName

_SNAPSHOT_GONE = frozenset((1466, 1555, 8181, 22924))


class Catalogue:
    """Reader over one session, which is opened when it is needed."""

    def __init__(self, opens: Callable[[], Connection]) -> None:
        """Keep the argument. opens: opens a session in the container of the tables."""
        self._opens = opens
        self._session: Connection | None = None

    @property
    def _open(self) -> Connection:
        if self._session is None:
            self._session = self._opens()
        return self._session

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def read_columns(self, table: TableName) -> Columns:
        """Return name and type of all columns, hidden ones too, in order of their internal ids."""
        rows = self._open.execute(statements.COLUMNS, owner=table.schema, name=table.name)
        return [
            (
                name,
                catalogue_type(
                    kind,
                    length,
                    precision,
                    scale,
                    characters=characters or 0,
                    is_in_characters=used == "C",
                ).text,
            )
            for name, kind, length, precision, scale, characters, used in rows
        ]

    def read_scn(self) -> int:
        """Return the database's present SCN."""
        ((scn,),) = self._open.execute(statements.CURRENT_SCN)
        return int(scn)

    def read_encoding(self) -> str:
        """Return the database's character set as Python names it; ascii for an unknown one."""
        sets = dict(self._open.execute(statements.CHARACTER_SETS))
        return ENCODINGS.get(str(sets.get("NLS_CHARACTERSET")), "ascii")

    def read_objects(self, tables: Sequence[TableName]) -> dict[int, TableName]:
        """Return the tables and partitions of the owners of tables, by DATA_OBJ#."""
        objects: dict[int, TableName] = {}
        for owner in sorted({one.schema for one in tables}):
            rows = self._open.execute(statements.OBJECTS, owner=owner)
            objects |= {number: TableName(owner, name) for name, number in rows}
        return objects

    def read_lob(self, table: TableName, column: str, entry: Entry, scn: int) -> LobValue:
        """Return a large object as of an SCN, by the row id of an entry. Raises LobLost."""
        query = statements.lob_value(table, column)
        try:
            rows = self._open.execute(query, scn=scn, row_id=entry.row_id)
        except PenstockError as error:
            if error.fields.get("errno") not in _SNAPSHOT_GONE:
                raise
            raise LobLost(
                f"column {column} of {table} was changed in a part at SCN {entry.scn}, and can "
                f"no longer be read as of SCN {scn}: {error.message}",
                hint=f"Raise UNDO_RETENTION above the time that penstock lags. {RELOAD}",
                table=str(table),
            ) from error
        return rows[0][0] if rows else Gone.GONE
