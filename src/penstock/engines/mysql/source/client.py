"""Ask for the binlog as a replica and receive it, on a socket of our own.

Whole blocks are read into a large buffer of the caller, as packets of the wire; the decoder reads
them. Plain SQL goes through `penstock.engines.mysql.connect`. Not here: where to begin and whether
that is still possible (`status.py`).

Measured: unlike PostgreSQL's walsender these servers put many packets into one send() while a
reader is behind; the nap after a large read saves some wake-ups and costs nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_events import CHECKSUM_BYTES, EventKind
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.connect import (
    AGAIN,
    Connection,
    ServerVersion,
    connect,
    literal,
    rows,
    run,
    server_errors,
)
from penstock.engines.mysql.source.dump_errors import (
    DumpEnded,
    LogPurged,
    LogReset,
    StreamSilent,
    dump_error,
    right_to_dump,
)
from penstock.engines.mysql.url import MySQLUrl
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectionLost, PrivilegeMissing
from penstock.host.socket import Wire
from penstock.model import PenstockError

SERVER_ID_MAX = 2**32 - 1
# Above the ids that administrators give to servers by hand.
SERVER_ID_MIN = 2**31
_NAMESPACE = uuid.UUID("5e4a9e5f-1f9b-4f0b-9c53-0e0f6f6a2d11")


def server_id_for(task: str) -> int:
    """Return a server id for a task, the same every time: 2**31 to 2**32 - 1.

    Two readers with one id end each other's connections, so `task` names the pipeline and what
    distinguishes it from a copy, such as its directory.
    """
    digest = hashlib.blake2b(task.encode(), digest_size=8).digest()
    return SERVER_ID_MIN + int.from_bytes(digest, "little") % (SERVER_ID_MAX - SERVER_ID_MIN + 1)


def probe_server_id() -> int:
    """Return a server id for a short look at the binlog; a stream's own id would end that
    stream.
    """
    return SERVER_ID_MIN + secrets.randbelow(SERVER_ID_MAX - SERVER_ID_MIN + 1)


def replica_uuid_for(task: str) -> str:
    """Return a uuid for a task, the same every time, by which MySQL knows a replica."""
    return str(uuid.uuid5(_NAMESPACE, task))


def take_over(connection: Connection, place: str) -> tuple[Wire, bytes]:
    """Take the socket from a connection that waits for nothing; the connection then counts as
    closed.

    place: names the server in messages. Returns the wire, and the bytes that PyMySQL had read
    ahead: they precede those of the wire.
    """
    connected, reader = connection._sock, connection._rfile
    connected.setblocking(False)
    ahead = _read_ahead(reader)
    connection._sock = connection._rfile = None
    connection._closed = True
    reader.close()  # its file object, not the socket
    return Wire(connected, place), ahead


def _read_ahead(reader: BufferedReader) -> bytes:
    """Return the bytes that a buffered reader on a non-blocking socket holds or gets without
    waiting.
    """
    gathered = b""
    while True:
        try:
            size = len(reader.peek())
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return gathered
        if not size:
            return gathered
        gathered += reader.read(size)


logger = structlog.get_logger()
APPLICATION_NAME = "penstock stream"
BUFFER_BYTES = 8 * 1024 * 1024
BEHIND_BYTES = 32 * 1024  # one read returned this much: more is on its way, let the server work
NAP_S = 0.001
SILENT_HEARTBEATS = 3
WAIT_S = 0.25
_STATEMENTS = frozenset(
    {
        EventKind.QUERY,
        EventKind.QUERY_COMPRESSED,
        EventKind.FORMAT_DESCRIPTION,
        EventKind.ROTATE,
    }
)
# In a packet, counted from its first byte: the kind of an event; for a statement, the sizes of its
# schema's name and of its variables, and where these begin.
_KIND_AT, _SCHEMA_SIZE_AT, _STATUS_SIZE_AT, _STATUS_AT = 5, 28, 31, 33
_BEGIN = b"BEGIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """Options of a reader.

    Attributes:
        server_id: ours, 1 to 2**32 - 1, unlike that of any other replica or reader.
        replica_uuid: ours, the same every time (MySQL).
        heartbeat_s: interval at which an idle server reports that it lives; three missing
            heartbeats end the stream.
        is_bounded: end at the log's end instead of waiting.
        annotate: have MariaDB send the text of statements as well.
    """

    server_id: int
    replica_uuid: str = ""
    heartbeat_s: float = 10.0
    is_bounded: bool = False
    annotate: bool = False
    report_host: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid ids, and a heartbeat that no server could send."""
        if not 1 <= self.server_id <= SERVER_ID_MAX:
            raise ValueError(f"not a server id: {self.server_id}")
        if not 0.001 <= self.heartbeat_s <= 4_294_967:
            raise ValueError(f"not a heartbeat: {self.heartbeat_s} s")


Gtids = GtidSet | MariaGtids


class BinlogConnection:
    """A connection on which the server sends its binlog; opened by `open_binlog`.

    server: the sender. `receive_into` belongs to one thread; another may call `close`.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        url: str,
        server: ServerVersion,
        start: str,
        is_bounded: bool,
        silence_s: float,
        ahead: bytes,
        clock: Clock,
    ) -> None:
        """Take a wire on which a dump was asked for."""
        self.server = server
        self._wire = wire
        self._url = url
        self._start = start
        self._is_bounded = is_bounded
        self._silence_s = silence_s
        self._ahead = ahead
        self._clock = clock
        self._heard_s = clock.monotonic_s()

    def __enter__(self) -> Self:
        """Return itself; the way out closes the connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; repeating it is harmless. A server in a dump reads no COM_QUIT."""
        self._wire.close()

    @property
    def is_tls(self) -> bool:
        """Return whether the stream is encrypted."""
        return self._wire.is_tls

    def receive_into(self, view: memoryview, timeout_s: float) -> int:
        """Read the available bytes into view; wait up to timeout_s for the first byte.

        view: as large as possible; it receives packets, of the last one perhaps only a part.
        Returns the number of bytes, 0 if none arrived in time. Raises ConnectionLost, or
        StreamSilent if the server has sent nothing for as long as three heartbeats.
        """
        if self._ahead:
            count = min(len(self._ahead), len(view))
            view[:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
            return count
        count = self._wire.receive_into(view, timeout_s)
        if count:
            self._heard_s = self._clock.monotonic_s()
            if count >= BEHIND_BYTES:
                self._clock.sleep(NAP_S)
        elif self._clock.monotonic_s() - self._heard_s > self._silence_s:
            raise StreamSilent(
                f"{MySQLUrl.parse(self._url).place} has sent nothing for {self._silence_s:g} s, "
                "not even a heartbeat",
                hint=AGAIN,
            )
        return count

    def end(self, payload: bytes) -> None:
        """Handle a packet that does not hold an event: it ends the dump.

        payload: with its first byte. Returns at the log's end of a bounded dump; else raises
        DumpEnded, or the typed error for the server's message. If the log was purged or reset,
        another connection asks the server for the oldest position that it still has.
        """
        place = MySQLUrl.parse(self._url).place
        if mysqlwire.is_end(payload):
            if self._is_bounded:
                return
            raise DumpEnded(f"{place} ended the stream of its binlog", hint=AGAIN)
        said = mysqlwire.server_error(payload)
        error = dump_error(said, place=place, start=self._start)
        if isinstance(error, LogPurged | LogReset):
            oldest = oldest_position(self._url)
            error = dump_error(said, place=place, start=self._start, oldest=oldest)
        raise error

    def packets(self, *, wait_s: float = WAIT_S) -> Iterator[bytes | None]:
        """Yield packets one by one, joined if they arrived in pieces; slow, for rare use.

        Ends with a bounded dump. Yields None if nothing arrived for wait_s. Raises the errors of
        `end`.
        """
        buffer = bytearray(BUFFER_BYTES)
        start = end = 0
        pieces = b""
        while True:
            found = mysqlwire.packet_at(buffer, start, end)
            if found is None:
                buffer, start, end = _make_room(buffer, start, end)
                view = memoryview(buffer)[end:]
                count = self.receive_into(view, wait_s)
                view.release()
                end += count
                if not count:
                    yield None
                continue
            start = found.end
            pieces += bytes(buffer[found.start : found.end])
            if found.is_continued:
                continue
            payload, pieces = pieces, b""
            if payload[:1] != bytes([mysqlwire.OK]):
                self.end(payload)
                return
            yield payload

    def statements(self) -> Iterator[bytes]:
        """Yield the events of statements (QUERY) and of files (ROTATE, FORMAT_DESCRIPTION).

        Rows are skipped by their heads, and so is the BEGIN of a transaction. Ends with a bounded
        dump. Raises the errors of `end`.
        """
        buffer = bytearray(BUFFER_BYTES)
        start = end = 0
        wanted: bytes | None = None  # of an event that continues in the next packet
        is_continued = False
        while True:
            while end - start >= mysqlwire.HEAD_BYTES:
                length = buffer[start] | buffer[start + 1] << 8 | buffer[start + 2] << 16
                begin = start + mysqlwire.HEAD_BYTES
                stop = begin + length
                if stop > end:
                    break
                if is_continued:
                    wanted = None if wanted is None else wanted + buffer[begin:stop]
                elif buffer[begin] != mysqlwire.OK:
                    self.end(bytes(buffer[begin:stop]))
                    return
                elif buffer[begin + _KIND_AT] in _STATEMENTS and not _begins(buffer, begin, stop):
                    wanted = bytes(buffer[begin + 1 : stop])
                start, is_continued = stop, length == mysqlwire.PIECE_BYTES_MAX
                if wanted is not None and not is_continued:
                    yield wanted
                    wanted = None
            buffer, start, end = _make_room(buffer, start, end)
            with memoryview(buffer) as view:
                end += self.receive_into(view[end:], WAIT_S)

    def events(self, *, wait_s: float = WAIT_S) -> Iterator[bytes | None]:
        """Yield the events in those packets, each with its header and checksum as it arrived."""
        for payload in self.packets(wait_s=wait_s):
            yield payload if payload is None else payload[1:]


def _begins(buffer: bytearray, begin: int, stop: int) -> bool:
    """Return whether a packet is the statement BEGIN, with which most transactions of MySQL
    begin.
    """
    if buffer[begin + _KIND_AT] != EventKind.QUERY or stop - begin < _STATUS_AT:
        return False
    status_size = buffer[begin + _STATUS_SIZE_AT] | buffer[begin + _STATUS_SIZE_AT + 1] << 8
    text = begin + _STATUS_AT + status_size + buffer[begin + _SCHEMA_SIZE_AT] + 1
    has_its_length = stop - text in (len(_BEGIN), len(_BEGIN) + CHECKSUM_BYTES)
    return has_its_length and buffer[text : text + len(_BEGIN)] == _BEGIN


def _make_room(buffer: bytearray, start: int, end: int) -> tuple[bytearray, int, int]:
    """Move an incomplete packet to the front when space runs out; grow for one that fills the
    buffer.
    """
    if start == end:
        return buffer, 0, 0
    if end < len(buffer):
        return buffer, start, end
    room = buffer if start >= len(buffer) // 2 else bytearray(2 * len(buffer))
    room[: end - start] = buffer[start:end]
    return room, 0, end - start


def open_binlog(
    url: str,
    *,
    position: BinlogPosition | None = None,
    seen: Gtids | None = None,
    options: DumpOptions,
    clock: Clock = REAL_CLOCK,
) -> BinlogConnection:
    """Log in as a replica and ask for the binlog.

    position: where to begin, at a group of events. seen: in its place, the transactions that we
    have: the server sends all others (MySQL), or those that follow in each domain (MariaDB). A
    refusal shows with the first packet. Raises PrivilegeMissing, and the errors of
    `penstock.engines.mysql.connect.connect`.
    """
    if (position is None) == (seen is None):
        raise ValueError("a dump begins at a position or after a set of GTIDs")
    place = MySQLUrl.parse(url).place
    connection = connect(
        url, application_name=APPLICATION_NAME, read_timeout_s=SILENT_HEARTBEATS * 60.0
    )
    try:
        server = connection.server
        _introduce(connection, options, seen)
        command = _command(server, position, seen, options)
        start = str(position) if position is not None else f"GTID {seen}"
        wire, ahead = take_over(connection, place)
    except BaseException:
        connection.close()
        raise
    try:
        wire.send(command)
        if not wire.flush(options.heartbeat_s * SILENT_HEARTBEATS):
            raise ConnectionLost(f"{place} does not accept what is sent to it")
    except BaseException:
        wire.close()
        raise
    logger.debug("binlog asked for", server=str(server), place=place, start=start)
    return BinlogConnection(
        wire,
        url=url,
        server=server,
        start=start,
        is_bounded=options.is_bounded,
        silence_s=options.heartbeat_s * SILENT_HEARTBEATS,
        ahead=ahead,
        clock=clock,
    )


def _introduce(connection: Connection, options: DumpOptions, seen: Gtids | None) -> None:
    """Declare who we are and what we understand, in the variables that a replica sets, and
    register.
    """
    server = connection.server
    heartbeat_ns = int(options.heartbeat_s * 1e9)
    # Both names of each: old servers know one, new ones the other, and both accept either.
    settings = {
        "@master_binlog_checksum": "@@global.binlog_checksum",
        "@source_binlog_checksum": "@@global.binlog_checksum",
        "@master_heartbeat_period": str(heartbeat_ns),
        "@source_heartbeat_period": str(heartbeat_ns),
    }
    if server.is_mariadb:
        # Without 4 the server rewrites GTID events to BEGIN queries, for old replicas.
        settings["@mariadb_slave_capability"] = "4"
        if seen is not None:
            settings["@slave_connect_state"] = literal(str(seen))
            settings["@slave_gtid_strict_mode"] = "1"
            settings["@slave_gtid_ignore_duplicates"] = "0"
    elif options.replica_uuid:
        settings["@slave_uuid"] = literal(options.replica_uuid)
        settings["@replica_uuid"] = literal(options.replica_uuid)
    names = ", ".join(f"{name} = {text}" for name, text in settings.items())
    run(connection, f"set {names}", doing="introducing ourselves as a replica")
    command = mysqlwire.register_replica(options.server_id, host=options.report_host)
    try:
        with server_errors("registering as a replica"):
            payload = command[mysqlwire.HEAD_BYTES :]
            connection._execute_command(payload[0], payload[1:])
            connection._read_ok_packet()
    except PrivilegeMissing as error:
        raise right_to_dump(error) from error


def _command(
    server: ServerVersion,
    position: BinlogPosition | None,
    seen: Gtids | None,
    options: DumpOptions,
) -> bytes:
    flags = mysqlwire.DUMP_NON_BLOCK if options.is_bounded else 0
    if server.is_mariadb and options.annotate:
        flags |= mysqlwire.DUMP_ANNOTATE
    if isinstance(seen, GtidSet):
        if server.is_mariadb:
            raise ValueError("a GTID set of MySQL for a MariaDB server")
        return mysqlwire.dump_gtid(server_id=options.server_id, seen=seen.encode(), flags=flags)
    if seen is not None:
        if not server.is_mariadb:
            raise ValueError("GTIDs of MariaDB for a MySQL server")
        return mysqlwire.dump(server_id=options.server_id, file="", offset=4, flags=flags)
    assert position is not None
    return mysqlwire.dump(
        server_id=options.server_id, file=position.file, offset=position.offset, flags=flags
    )


def oldest_position(url: str) -> str:
    """Return the oldest position that the server still has; empty if it cannot be queried."""
    try:
        with connect(url, application_name=APPLICATION_NAME) as connection:
            logs = rows(connection, "show binary logs", doing="listing the server's binlogs")
    except PenstockError as error:
        logger.warning("oldest position is not known", error=error.message)
        return ""
    return str(BinlogPosition.at(logs[0]["log_name"], 4)) if logs else ""
