"""Comparison by `penstock verify`: `Verifier`, `VerifyReader` of `ports/verify.py`.

Every query names one SCN, so all sessions see the same moment without locks. The source's position
is that SCN: all commits up to it are in the rows. The server can read so far back as its undo
reaches. Not here: images and checksums (`checksum.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from types import ModuleType
from typing import Any, cast

import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.oracle.row_images import image_batch
from penstock.codec.oracle.scn import OraclePosition
from penstock.codec.row_images import add_up, hash_batches, name_chosen, take_buckets
from penstock.engines.oracle import checksum
from penstock.engines.oracle.connect import Connection, connect, quote
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.reading import statements
from penstock.engines.oracle.reading.bulk_reader import BATCH_ROWS, LOB_BATCH_ROWS, OracleReader
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.engines.oracle.reading.chosen_rows import take_chosen
from penstock.engines.oracle.reading.chunks import plan_chunks
from penstock.engines.oracle.server_errors import is_gone
from penstock.host.errors import StatementFailed
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import ChunkTask, rows_per_chunk
from penstock.ports.config import Config
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.verify import (
    KEY_TEXT_LENGTH_MAX,
    PART_BYTES,
    Dialect,
    Hasher,
    Hashes,
    Part,
    SourcePoint,
    TableChangedMeanwhile,
    Verifier,
    VerifyReader,
    table_gone,
)
from penstock.sql.chosen_rows import ChosenRows

CHANGES = (
    "SELECT COUNT(*) FROM {table} VERSIONS BETWEEN SCN {since} AND {until} "
    "WHERE VERSIONS_STARTSCN > {since} AND ROWNUM = 1"
)


class OracleVerifyReader(VerifyReader):
    """Sessions that read as of one SCN. sessions: all but the first read rows."""

    def __init__(
        self, sessions: Sequence[Connection], scn: int, *, part_bytes: int = PART_BYTES
    ) -> None:
        """Keep the sessions, which the caller closes. scn: the moment of all reads."""
        if len(sessions) < 2:
            raise ValueError(f"at least two sessions are needed, not {len(sessions)}")
        self._lead, *readers = sessions
        self._scn = scn
        self._part_bytes = part_bytes
        self._sessions = LentSessions(readers)
        self._tables: dict[TableName, TableDefinition] = {}
        self.executor = ThreadPoolExecutor(len(readers), thread_name_prefix="verify-read")
        dialect: ModuleType = checksum
        self.dialect = cast(Dialect, dialect)

    def hashers(self) -> Mapping[Hasher, str]:
        return {Hasher.SHARED: ""}

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Return ranges of row ids, or of the key."""
        with _changes_are_typed(table, side):
            found = self._define(table)
            if found is None:
                raise table_gone(table, side)
            chunks = plan_chunks(
                self._lead,
                found,
                scn=self._scn,
                is_index_organized=self._is_index_organized(table),
                bytes_target=self._part_bytes,
                rows_target=rows_per_chunk(found, self._part_bytes),
            )
            parts = tuple(
                Part(relation=found.name, size_bytes=chunk.size_bytes, where=chunk.condition)
                for chunk in chunks
            )
            return parts, found.row_estimate

    def _is_index_organized(self, table: TableName) -> bool:
        found = self._lead.execute(
            "SELECT IOT_TYPE FROM ALL_TABLES WHERE OWNER = :owner AND TABLE_NAME = :name",
            owner=table.schema,
            name=table.name,
        )
        return any(kind == "IOT" for (kind,) in found)

    def column_types(self, table: TableName) -> dict[str, str]:
        found = self._tables.get(table) or self._define(table)
        return {one.name: one.type_text for one in found.columns} if found else {}

    def _define(self, table: TableName) -> TableDefinition | None:
        """Look a table up in the catalogue, and keep it; None if it does not exist."""
        found = read_definitions(self._lead, [table]).get(table)
        if found is not None:
            self._tables[table] = found
        return found

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        del doing
        if not query.startswith("{"):
            with self._sessions.lend() as session:
                return session.execute(query)
        asked = json.loads(query)
        if asked["what"] == "names":
            key, numbers = _cells(asked["key"]), asked["numbers"]
            return list(name_chosen(self._rows(asked), key, numbers, KEY_TEXT_LENGTH_MAX))
        return list(add_up(self._hashes(asked), asked["buckets"]))

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        del doing
        asked = json.loads(query)
        found = take_buckets(self._hashes(asked), asked["buckets"], asked["numbers"])
        if len(found):
            yield found

    def _hashes(self, asked: Mapping[str, Any]) -> Hashes:
        return hash_batches(self._rows(asked), _cells(asked["key"]), _cells(asked["row"]))

    def _rows(self, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the compared columns of the rows of some parts."""
        for schema, name, where in asked["parts"]:
            table = TableName(schema, name)
            columns, cells = columns_of(self._tables[table], asked)
            sql = statements.rows(table, list(map(select_expression, columns)), self._scn, where)
            with self._sessions.lend() as session, _changes_are_typed(table, "source or target"):
                for batch in session.arrow(sql, rows=batch_rows(columns)):
                    self._sessions.check()
                    yield image_batch(batch, columns, cells)

    @contextmanager
    def row_reader(self) -> Iterator[OracleReader]:
        """Return a reader over the first session, of the same moment."""
        yield _ChosenReader(self._lead, self._scn)

    def cancel(self) -> None:
        """End running reads with their next rows, and interrupt their statements until they end."""
        self._sessions.refuse()
        for session in self._sessions.iterate_lent():
            with suppress(PenstockError):  # it has just ended
                session.cancel()


class _ChosenReader(OracleReader):
    """Reader of the rows that a repair copies, as of an SCN."""

    def __init__(self, connection: Connection, scn: int) -> None:
        super().__init__(connection)
        self._scn = scn

    def _batches(self, task: ChunkTask, rows: int) -> Iterator[pa.RecordBatch]:
        chosen = ChosenRows.parse(task.chunk.copy_out)
        for batch in self._connection.arrow(f"{chosen.sql} AS OF SCN {self._scn}", rows=rows):
            yield take_chosen(chosen, batch)


def columns_of(
    table: TableDefinition, asked: Mapping[str, Any]
) -> tuple[list[ReadColumn], list[ImageCell]]:
    """Return the columns that a question compares, and the cells of its images."""
    cells = [ImageCell(*one) for one in (*asked["key"], *asked["row"])]
    wanted = {cell.name for cell in cells}
    return [ReadColumn.from_column(one) for one in table.columns if one.name in wanted], cells


def batch_rows(columns: Sequence[ReadColumn]) -> int:
    """Return the rows of a batch: fewer with LOBs, so that they fit into memory."""
    return LOB_BATCH_ROWS if any(column.is_lob for column in columns) else BATCH_ROWS


@contextmanager
def _changes_are_typed(table: TableName, side: str) -> Iterator[None]:
    """Raise TableChangedMeanwhile or TableGone where the server cannot read the moment."""
    try:
        yield
    except SnapshotLost as error:
        raise TableChangedMeanwhile(
            f"{table} was altered while verify read it, or its undo is gone: {error.message}",
            hint="Run `penstock verify` again. If this repeats, raise UNDO_RETENTION.",
            table=str(table),
        ) from error
    except StatementFailed as error:
        if not is_gone(error):
            raise
        raise table_gone(table, side) from error


def _cells(listed: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return cells as `codec.row_images` has them."""
    return [one[:5] for one in listed]


class OracleVerifier(Verifier):
    """Comparison of Oracle's tables."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        tables: Callable[[], Sequence[TableDefinition]],
        tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[VerifyReader, SourcePoint]]:
        """Return the source as of the present SCN. Raises the errors of connecting."""
        del tables, tell
        with _open(config.source.url, sessions, part_bytes) as (reader, scn):
            position = OraclePosition.of_scn(scn)
            yield reader, SourcePoint(position=position.ordinal, text=str(position))

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[VerifyReader]:
        with _open(url, sessions, part_bytes) as (reader, _):
            yield reader

    def nudge(self, url: str) -> None:
        """Do nothing: an idle log's position moves with the server's SCN."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        """Return whether tables have versions of rows between the two SCNs, by their undo."""
        if not since or since >= point.position:
            return ""
        low, high = OraclePosition(since).scn, OraclePosition(point.position).scn
        with closing(connect(config.source.url)) as session:
            for table in tables():
                sql = CHANGES.format(table=quote(*table.name), since=low, until=high)
                try:
                    ((count,),) = session.execute(sql)
                except SnapshotLost:
                    return f"the undo of {table.name} no longer shows whether it has changed"
                if count:
                    return f"{table.name} has changes that are not read yet"
        return ""


VERIFIER: Verifier = OracleVerifier()


@contextmanager
def _open(url: str, sessions: int, part_bytes: int) -> Iterator[tuple[OracleVerifyReader, int]]:
    """Open sessions as of the present SCN; yield their reader, and the SCN."""
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(connect(url))) for _ in range(sessions + 1)]
        ((scn,),) = opened[0].execute(statements.CURRENT_SCN)
        reader = OracleVerifyReader(opened, int(scn), part_bytes=part_bytes)
        try:
            yield reader, int(scn)
        except BaseException:
            reader.cancel()
            raise
        finally:
            reader.executor.shutdown(wait=True, cancel_futures=True)
