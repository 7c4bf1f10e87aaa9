"""Find the place where a new change log begins in a binlog, and the tables' definitions there.

It takes no lock: the catalogue is read before and after the place is queried, and definitions that
are equal both times were valid there too. The transactions before the place are read from its file,
because the server's answers about both may be of two moments. Not here: the point of a handover,
which rests on a snapshot (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.codec.mysql.binlog import BinlogBroken, Decoder, Stop, make_decoder
from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind, gtid_list, previous_gtids
from penstock.codec.mysql.binlog_position import BINLOG_HEAD_BYTES, BinlogPosition
from penstock.codec.mysql.binlog_tables import table_map
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.connect import Connection, value
from penstock.engines.mysql.source.bulk_reader import short_digest
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.client import DumpOptions, Gtids, open_binlog, probe_server_id
from penstock.engines.mysql.source.status import (
    binlog_files,
    check_file,
    read_identity,
    read_status,
)
from penstock.engines.mysql.source.stream import BUFFER_BYTES, make_room
from penstock.engines.mysql.source.unsupported import StartUnfit
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, TableDefinition, TableName

ATTEMPTS_MAX = 20
PAUSE_S = 0.2
WAIT_S = 0.5
ROW_LIMIT = 1_000_000
PACKET_HEAD_BYTES = 4


class TablesInMotion(PenstockError):
    """The catalogue changes faster than it can be read."""

    code = "MY90"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Place where a log begins.

    Attributes:
        gtids: the transactions before it, as text; empty without GTIDs.
        is_present: the tables' definitions are those at the position; else they are later ones.
        altered: tables whose definition is a later one in any case.
    """

    position: BinlogPosition
    gtids: str
    tables: tuple[TableDefinition, ...]
    is_present: bool = True
    altered: frozenset[TableName] = frozenset()


def find_beginning(
    url: str, patterns: Sequence[str], *, at: BinlogPosition | None = None
) -> Beginning:
    """Return where to begin: at a given position, or at the present end of the binlog.

    Table definitions are always the present ones. For an earlier position they are only a hint,
    used where the binlog itself describes the tables. Raises StartUnfit, LogPurged, LogOff,
    TablesInMotion, and the errors of `catalog.captured_tables`.
    """
    with open_catalog(url, application_name="penstock beginning") as connection:
        has_gtids = read_identity(connection).has_gtids
        read = ""
        if at is not None:
            read = check_beginning(url, connection, at)
            position, tables = at, captured_tables(connection, patterns)
        else:
            position, tables = _present(connection, patterns)
        if connection.server.is_mariadb:
            read = gtids_at(url, connection, position)
        elif has_gtids and at is None:
            read = transactions_before(url, position)
    return Beginning(
        position=position,
        gtids=read if has_gtids else "",
        tables=tuple(tables),
        is_present=at is None,
    )


def check_beginning(url: str, connection: Connection, at: BinlogPosition) -> str:
    """Check that a new log can begin there; return the transactions before it.

    Raises StartUnfit, LogPurged, ServerBehind, PositionUnfit, and the errors of a dump.
    """
    check_file(binlog_files(connection), at)
    return transactions_before(url, at)


def gtids_at(url: str, connection: Connection, position: BinlogPosition) -> str:
    """Return MariaDB's last transaction of each domain before a place where a transaction begins.

    The server answers null if its file holds an event longer than max_allowed_packet (an UPDATE's
    two images suffice). Then penstock reads the file. Raises the errors of a dump.
    """
    found = value(
        connection,
        "select binlog_gtid_pos(%s, %s)",
        (position.file, position.offset),
        doing=f"asking for the transactions before {position}",
    )
    return str(found) if found is not None else transactions_before(url, position)


def _present(
    connection: Connection, patterns: Sequence[str]
) -> tuple[BinlogPosition, list[TableDefinition]]:
    tables = captured_tables(connection, patterns)
    for _ in range(ATTEMPTS_MAX):
        position = read_status(connection).position
        again = captured_tables(connection, patterns)
        if shapes_of(again) == shapes_of(tables):
            return position, again
        tables = again
        REAL_CLOCK.sleep(PAUSE_S)
    raise TablesInMotion(
        "captured tables are altered all the time: none of their definitions can be relied on",
        hint="Begin when no schema changes run.",
    )


def shapes_of(tables: Sequence[TableDefinition]) -> list[tuple[object, ...]]:
    """Return the parts of definitions that decide how rows are read; equal if none has changed."""
    return [
        (one.name, one.changed_s, one.columns, one.identity, one.identity_columns) for one in tables
    ]


def digest_of(table: TableDefinition) -> str:
    """Return a digest that distinguishes a table's definition from earlier and later ones: 24 hex
    digits.
    """
    return short_digest(shapes_of([table]))


def settled_digests(
    before: Sequence[TableDefinition], after: Sequence[TableDefinition]
) -> dict[str, str]:
    """Return the digests of tables that were the same before and after a moment, keyed by name."""
    digests = {str(one.name): digest_of(one) for one in before}
    later = {str(one.name): digest_of(one) for one in after}
    return {name: digest for name, digest in later.items() if digests.get(name) == digest}


def transactions_before(url: str, position: BinlogPosition) -> str:
    """Return the ids of all transactions before a place, read from its file.

    Raises StartUnfit if no transaction begins at the place, and the errors of a dump.
    """
    options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
    start = BinlogPosition.at(position.file, BINLOG_HEAD_BYTES)
    reader = _Reader(position)
    with open_binlog(url, position=start, options=options) as stream:
        buffer, begin, end = bytearray(BUFFER_BYTES), 0, 0
        while True:
            begin = reader.feed(memoryview(buffer), begin, end)
            if reader.payload:
                stream.end(reader.payload)
                reader.end_of_log()
            if reader.is_done:
                return str(reader.gtids) if reader.gtids is not None else ""
            buffer, begin, end = make_room(buffer, begin, end)
            with memoryview(buffer) as view:
                end += stream.receive_into(view[end:], WAIT_S)


def _packet_end(block: memoryview, start: int, end: int) -> int:
    """Return where the packet at `start` ends, or the block: a decoder does not stop at every
    event.
    """
    if end - start < PACKET_HEAD_BYTES:
        return end
    return min(start + PACKET_HEAD_BYTES + int.from_bytes(block[start : start + 3], "little"), end)


class _Reader:
    """Reader that walks over a file up to a place, and reads only ids."""

    def __init__(self, position: BinlogPosition) -> None:
        self.gtids: Gtids | None = None
        self.is_done = False
        self.payload = b""
        self._position = position
        self._decoder: Decoder = make_decoder()

    def feed(self, block: memoryview, start: int, end: int) -> int:
        decoder, at = self._decoder, start
        while not self.is_done:
            until = end if decoder.in_transaction else _packet_end(block, at, end)
            try:
                at = decoder.feed(block, at, until, ROW_LIMIT, 0)
            except BinlogBroken as error:
                raise self._unfit(f"the file cannot be read up to it: {error.message}") from error
            self._note()
            if decoder.stop is Stop.MESSAGE:
                self._message(decoder.message)
            elif decoder.stop is Stop.OTHER_FRAME:
                self.payload = decoder.message
            self._look()
            if decoder.stop is Stop.OTHER_FRAME or (decoder.stop is Stop.MORE and until == end):
                return at
        return at

    def _note(self) -> None:
        for piece in self._decoder.take_gtids():
            if self._decoder.is_mariadb:
                self._add(MariaGtids.parse(piece))
            else:
                self._add(GtidSet.parse(piece))

    def _add(self, more: Gtids) -> None:
        known = self.gtids
        if isinstance(known, MariaGtids) and isinstance(more, MariaGtids):
            known.update(more)
        if isinstance(known, GtidSet) and isinstance(more, GtidSet):
            known.update(more)
        self.gtids = known if known is not None else more

    def _message(self, event: bytes) -> None:
        kind = event[4]
        if kind == EventKind.TABLE_MAP:
            table = table_map(
                event[HEAD_BYTES:],
                is_mariadb=self._decoder.is_mariadb,
                server_version=self._decoder.server_version,
            )
            self._decoder.bind(table, None)
        elif kind == EventKind.PREVIOUS_GTIDS:
            self._add(previous_gtids(event))
        elif kind == EventKind.GTID_LIST:
            self._add(gtid_list(event))

    def _look(self) -> None:
        decoder = self._decoder
        place = (decoder.file_name, decoder.offset)
        wanted = (self._position.file, self._position.offset)
        if decoder.in_transaction or not decoder.file_name:
            return
        if place == wanted:
            self.is_done = True
        elif decoder.file_name != wanted[0] or decoder.offset > wanted[1]:
            if decoder.file_name == wanted[0] and decoder.offset <= wanted[1]:
                return
            raise self._unfit("it lies inside a transaction")

    def end_of_log(self) -> None:
        """Handle the end of the log. Raises StartUnfit if the place was not reached."""
        if not self.is_done:
            raise self._unfit("the binlog ends before it")

    def _unfit(self, why: str) -> StartUnfit:
        return StartUnfit(
            f"{self._position} is not a place to begin at: {why}",
            hint="Take a position that `show binlog events in 'FILE'` lists in front of a GTID or "
            "BEGIN, or leave binlogFile and binlogPosition out to begin at the present.",
            position=str(self._position),
        )
