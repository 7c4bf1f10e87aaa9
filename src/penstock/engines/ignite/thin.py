"""Thin client connector of a node: caches scanned by partition, keys and values as bytes.

pyignite connects, logs in and opens TLS. Requests and answers of a scan pass its connections as
bytes (`Connection.request`), because its own values are not those of the log: numbers lose their
width, dates their zone, objects their type. Not here: decoding the bytes (`codec.ignite.pages`).
"""

from __future__ import annotations

import logging
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyignite import Client
from pyignite.connection import Connection
from pyignite.exceptions import AuthenticationError, HandshakeError

from penstock.codec.ignite.pages import Entry, entries_of
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.errors import (
    ConnectFailed,
    ConnectionLost,
    LoginRefused,
    ServerUnreachable,
    TlsFailed,
)
from penstock.model import PenstockError

ALL = -1  # partitions
PAGE_BYTES = 2 * 2**20
FIRST_ROWS, ROWS_MAX = 16, 4096
TIMEOUT_S = 600.0  # for one answer
HANDSHAKE_S = 10.0
AGAIN = "penstock retries automatically; start the node if it is down."
_SCAN, _PAGE, _CLOSE, _NAMES, _SIZE = 2000, 2001, 0, 1050, 1020
_NO_CACHE = 1000
_SQL, _TEXT = 2004, 9
TEXT_ROWS_MAX = 100_000
_TOPOLOGY, _FAILED = 2, 1  # flags of an answer
_NULL = 101
_PRIMARY = 2  # of CachePeekMode
_REQUEST, _ANSWER = struct.Struct("<ihq"), struct.Struct("<iqh")
_TLS = {
    "sslrootcert": "ssl_ca_certfile",
    "sslcert": "ssl_certfile",
    "sslkey": "ssl_keyfile",
    "sslpassword": "ssl_keyfile_password",
}

# Its log of failures is replaced by typed errors from here.
logging.getLogger("pyignite").setLevel(logging.CRITICAL + 1)


class CacheGone(PenstockError):
    """A cache was destroyed while it was read. fields: cache."""

    code = "IG70"
    retry = "operator"


class ScanFailed(ConnectionLost):
    """A node could not read a cache, as while partitions move or before the cluster is active.

    fields: status.
    """

    code = "IG71"
    retry = "backoff"


class ThinClient:
    """A connection to one node, for one thread."""

    def __init__(self, connection: Connection, place: str) -> None:
        """Store the connection; see open_thin()."""
        self._connection = connection
        self._place = place
        self._rows: dict[int, int] = {}  # per page, by cache

    def names(self) -> list[str]:
        """Return the names of the existing caches."""
        data = self._ask(_NAMES, b"", "listing the caches")
        (count,) = struct.unpack_from("<i", data)
        found, at = [], 4
        for _ in range(count):
            (length,) = struct.unpack_from("<i", data, at + 1)
            found.append(data[at + 5 : at + 5 + length].decode())
            at += 5 + length
        return found

    def size(self, cache: str, cache_id: int) -> int:
        """Return the number of entries of a cache, without backups.

        Raises CacheGone, ScanFailed, ConnectionLost.
        """
        asked = struct.pack("<iBiB", cache_id, 0, 1, _PRIMARY)
        data = self._ask(_SIZE, asked, f"counting {cache}", cache)
        return int(struct.unpack_from("<q", data)[0])

    def scan(self, cache: str, cache_id: int, partition: int = ALL) -> Iterator[list[Entry]]:
        """Yield the entries of a partition, in pages of about PAGE_BYTES.

        An entry that is changed meanwhile is returned with its old or new value, or not at all.
        Raises CacheGone, ScanFailed, ConnectionLost.
        """
        rows = self._rows.get(cache_id, FIRST_ROWS)
        while True:
            cursor, page, size_bytes, has_more = self._first(cache, cache_id, partition, rows)
            fitting = _fitting(len(page), size_bytes)
            if not has_more or rows >= fitting:
                break
            self._close(cursor, cache)  # larger pages are worth a second start
            self._rows[cache_id] = rows = fitting
        try:
            while True:
                yield page
                if not has_more:
                    return
                page, has_more = self._next(cursor, cache)
        finally:
            if has_more and self._connection.alive:
                self._close(cursor, cache)

    def texts(self, sql: str, columns: int) -> list[tuple[str | None, ...]]:
        """Return the rows of a query whose columns are texts. columns: their number. Raises
        ScanFailed.
        """
        text = sql.encode()
        head = struct.pack("<iBBiiBi", 0, 0, _NULL, TEXT_ROWS_MAX, -1, _TEXT, len(text))
        data = self._ask(_SQL, head + text + struct.pack("<iB6xqB", 0, 1, 0, 0), "a query")
        cursor, _, count = struct.unpack_from("<qii", data)
        at = 16
        cells: list[str | None] = []
        for _ in range(count * columns):
            kind, at = data[at], at + 1
            if kind == _NULL:
                cells.append(None)
                continue
            (length,) = struct.unpack_from("<i", data, at)
            cells.append(data[at + 4 : at + 4 + length].decode())
            at += 4 + length
        if data[at]:
            self._close(cursor, "a query")
        return list(zip(*[iter(cells)] * columns, strict=True))

    def _first(
        self, cache: str, cache_id: int, partition: int, rows: int
    ) -> tuple[int, list[Entry], int, bool]:
        asked = struct.pack("<iBBiiB", cache_id, 0, _NULL, rows, partition, 0)
        data = self._ask(_SCAN, asked, f"scanning {cache}", cache)
        (cursor,) = struct.unpack_from("<q", data)
        found, at = entries_of(data, 8)
        return cursor, found, at, data[at] == 1

    def _next(self, cursor: int, cache: str) -> tuple[list[Entry], bool]:
        data = self._ask(_PAGE, struct.pack("<q", cursor), f"scanning {cache}", cache)
        found, at = entries_of(data, 0)
        return found, data[at] == 1

    def _close(self, cursor: int, cache: str) -> None:
        self._ask(_CLOSE, struct.pack("<q", cursor), f"ending the scan of {cache}")

    def _ask(self, operation: int, asked: bytes, doing: str, cache: str = "") -> bytes:
        """Return the content of the answer. Raises ConnectionLost, CacheGone, ScanFailed."""
        request = _REQUEST.pack(_REQUEST.size - 4 + len(asked), operation, 1) + asked
        socket = self._connection._socket
        try:
            answer = bytes(self._connection.request(request))
        except (OSError, EOFError) as error:
            if socket is not None:
                socket.close()  # another one has replaced it by now
            raise ConnectionLost(
                f"{doing} at {self._place}: {error}", hint=AGAIN, place=self._place
            ) from error
        length, _, flags = _ANSWER.unpack_from(answer)
        at = _ANSWER.size + (12 if flags & _TOPOLOGY else 0)
        if not flags & _FAILED:
            return answer[at : length + 4]
        (status,) = struct.unpack_from("<i", answer, at)
        said = answer[at + 9 : length + 4].decode(errors="replace") or f"status {status}"
        if status == _NO_CACHE and cache:
            raise CacheGone(
                f"cache {cache} was destroyed while it was read",
                hint="Run the same command again: it continues with the existing caches.",
                cache=cache,
            )
        raise ScanFailed(
            f"{doing} at {self._place}: {said}",
            hint="penstock retries automatically. The message is the node's own; its log has more. "
            "control.sh --state shows whether the cluster is active.",
            status=status,
        )


@contextmanager
def open_thin(url: IgniteUrl) -> Iterator[ThinClient]:
    """Connect to the first of the addresses that answers.

    Raises LoginRefused, ServerUnreachable, TlsFailed, ConnectFailed.
    """
    failures: list[PenstockError] = []
    for host, port in url.addresses:
        place = f"{host}:{port}"
        # Client.connect does not report why a node cannot be reached, so it is not used.
        connection = Connection(
            Client(partition_aware=False), host, port, username=url.user, password=url.password,
            timeout=TIMEOUT_S, handshake_timeout=HANDSHAKE_S, **_tls(url.ssl),
        )  # fmt: skip
        with _closing(connection):
            try:
                with _typed_errors(place):
                    connection.connect()
            except PenstockError as error:
                failures.append(error)
                if error.retry == "operator":
                    break  # another node of the cluster would say the same
                continue
            _check_protocol(connection, place)
            yield ThinClient(connection, place)
            return
    raise failures[-1]


@contextmanager
def _closing(connection: Connection) -> Iterator[None]:
    """Close the connection; if the other end is gone, its own close() leaves the socket open."""
    try:
        yield
    finally:
        socket = connection._socket
        connection.close()
        if socket is not None:
            socket.close()


def _tls(given: Mapping[str, str]) -> dict[str, object]:
    mode = given.get("sslmode", "disable")
    if mode == "disable":
        return {"use_ssl": False}
    needed = ssl.CERT_REQUIRED if mode == "verify-ca" else ssl.CERT_NONE
    files = {_TLS[key]: value for key, value in given.items() if key in _TLS}
    # Without a version the library uses only TLS 1.2.
    return {
        "use_ssl": True,
        "ssl_version": ssl.PROTOCOL_TLS,
        "ssl_cert_reqs": needed,
        **files,
    }


@contextmanager
def _typed_errors(place: str) -> Iterator[None]:
    """Convert the errors of connecting to typed ones. They never contain the password."""
    try:
        yield
    except AuthenticationError as error:
        raise LoginRefused(
            f"{place} refuses the log-in: {error.message}",
            hint="Set user= and password= in [source] url; the password may be ${VARIABLE}. A "
            "cluster with authenticationEnabled has the user ignite from its beginning.",
            place=place,
        ) from None
    except ssl.SSLError as error:
        raise TlsFailed(
            f"{place}: TLS failed: {error.reason or error}",
            hint="Look at sslmode, sslrootcert, sslcert and sslkey in [source] url, and at "
            "sslEnabled in the node's ClientConnectorConfiguration.",
            place=place,
        ) from error
    except HandshakeError as error:
        raise ConnectFailed(
            f"{place}: {error.message}",
            hint="Nodes of Ignite 2.8 and later are read, with thinClientEnabled in "
            "ClientConnectorConfiguration.",
            place=place,
        ) from error
    except (OSError, EOFError) as error:
        raise ServerUnreachable(
            f"no thin client connector answers at {place}: {error}",
            hint="Start the node, or correct address= in [source] url: it is the port of "
            "ClientConnectorConfiguration, 10800 by default. A node that wants TLS does not "
            "answer without sslmode=require, and one that wants certificates of its clients not "
            "without sslcert and sslkey.",
            place=place,
        ) from error


def _check_protocol(connection: Connection, place: str) -> None:
    context = connection.protocol_context
    if not context.is_status_flags_supported():
        raise ConnectFailed(
            f"{place} speaks version {'.'.join(map(str, context.version))} of the protocol",
            hint="Nodes of Ignite 2.8 and later are read.",
            place=place,
        )


def _fitting(rows: int, size_bytes: int) -> int:
    """Return the number of rows for a page of PAGE_BYTES, from the size of some rows."""
    each = max(1, size_bytes // max(1, rows))
    return max(FIRST_ROWS, min(ROWS_MAX, PAGE_BYTES // each))
