"""A client's connection: login, requests, answers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from sim_sqlserver import bulk, replies, rpc, wire
from sim_sqlserver.decode import Cursor
from sim_sqlserver.errors import ConnectionDropped, SqlError
from sim_sqlserver.reply import Reply
from sim_sqlserver.session import Session
from sim_sqlserver.wire import PacketStream

if TYPE_CHECKING:
    from sim_sqlserver.state import ServerState

_ENCRYPT_OFF, _ENCRYPT_ON, _NOT_SUPPORTED, _REQUIRED = 0, 1, 2, 3
_ISOLATIONS = {1: "READ UNCOMMITTED", 2: "READ COMMITTED", 3: "REPEATABLE READ",
               4: "SERIALIZABLE", 5: "SNAPSHOT"}  # fmt: skip


class Connection(threading.Thread):
    """Thread of one client."""

    def __init__(
        self, client: socket.socket, server: ServerState, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(daemon=True)
        self._socket = client
        self._stream = PacketStream(client)
        self._server = server
        self._tls = tls
        self._session: Session | None = None
        self._has_attention = False

    def run(self) -> None:
        """Answer requests until the client goes."""
        try:
            if self._tls is not None and self._stream.peek() == b"\x16":
                self._stream.start_strict_tls(self._tls)
            while True:
                self._answer(*self._stream.read_message())
        except (wire.Disconnected, ConnectionDropped, ConnectionError):
            pass
        except Exception:
            traceback.print_exc()
        finally:
            self._end()

    def _end(self) -> None:
        session = self._session
        if session is not None:
            self._server.sessions.pop(session.spid, None)
            self._server.closers.pop(session.spid, None)
            with suppress(ConnectionDropped, SqlError):
                session.close()
        self._stream.close()

    def _answer(self, kind: int, status: int, body: bytes) -> None:
        if kind == wire.PRELOGIN:
            self._prelogin(body)
        elif kind == wire.LOGIN:
            self._login(body)
        elif self._session is None:
            raise wire.Disconnected
        elif kind == wire.ATTENTION:
            self._acknowledge()
        else:
            if status & wire.STATUS_RESET:
                self._session.reset()
            self._request(kind, body)

    # --- login ------------------------------------------------------------------------------------

    def _prelogin(self, body: bytes) -> None:
        wanted = _prelogin_option(body, 1)
        asked = wanted[0] if wanted else _ENCRYPT_OFF
        if self._tls is None or asked == _NOT_SUPPORTED:
            answer = _NOT_SUPPORTED
        else:
            answer = _ENCRYPT_OFF if asked == _ENCRYPT_OFF else _ENCRYPT_ON
        options = [(0, replies.VERSION + b"\0\0"), (1, bytes((answer,))), (2, b"\0"), (3, b""),
                   (4, b"\0")]  # fmt: skip
        offset = len(options) * 5 + 1
        head, data = b"", b""
        for number, value in options:
            head += bytes((number,)) + struct.pack(">HH", offset + len(data), len(value))
            data += value
        self._stream.send_message(head + b"\xff" + data)
        if answer in (_ENCRYPT_OFF, _ENCRYPT_ON) and not self._stream.is_encrypted:
            assert self._tls is not None
            self._stream.start_tls(self._tls)
            self._only_login = answer == _ENCRYPT_OFF

    _only_login = False

    def _login(self, body: bytes) -> None:
        login = _Login(body)
        if self._only_login:
            self._stream.stop_tls()
        self._stream.packet_size = min(max(login.packet_size, 512), 32_767)
        try:
            self._open(login)
        except SqlError as error:
            data = replies.message(error) + replies.make_done(replies.ERROR)
            self._stream.send_message(data)
            raise wire.Disconnected from error
        answer = replies.login_ack(
            login.database or "master", self._stream.packet_size, b"\x74\0\0\x04"
        )
        self._stream.send_message(answer)

    def _open(self, login: _Login) -> None:
        expected = self._server.logins.get(login.user)
        if expected is None or expected != login.password:
            said = f"Login failed for user '{login.user}'."
            raise SqlError(18456, said, severity=14, state=8)
        database = self._server.database(login.database)
        session = Session(self._server, database, self._server.next_spid(), login.user)
        session.app, session.host = login.app, login.host
        session.is_read_only = login.is_read_only
        self._session = session
        session.backend.client = self._socket.fileno()
        session.backend.watch = self._watch
        session.open()
        self._server.sessions[session.spid] = session
        self._server.closers[session.spid] = self._drop

    def _drop(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- requests ---------------------------------------------------------------------------------

    def _watch(self) -> bool:
        """Read what the client sends while a statement runs: an attention, or its end."""
        kind, _, _ = self._stream.read_message()
        self._has_attention = self._has_attention or kind == wire.ATTENTION
        return self._has_attention

    def _acknowledge(self) -> None:
        self._stream.send_message(replies.make_done(replies.ATTENTION))

    def _request(self, kind: int, body: bytes) -> None:
        session = self._session
        assert session is not None
        self._has_attention = session.backend.was_cancelled = False
        reply = Reply(self._stream, is_procedure=kind == wire.RPC)
        session.reply = reply
        try:
            if kind == wire.BATCH:
                text = body[_headers(body) :].decode("utf-16-le", "surrogatepass")
                self._run_text(session, text, reply)
            elif kind == wire.RPC:
                rpc.run(session, Cursor(body, _headers(body)), reply)
            elif kind == wire.MANAGER:
                _manage(session, Cursor(body, _headers(body)), reply)
            elif kind == wire.BULK:
                _bulk(session, body, reply)
            else:
                raise wire.Disconnected
        except SqlError as error:
            if not self._has_attention:
                reply.error(error)
        except (ConnectionDropped, wire.Disconnected):
            raise
        except Exception as error:
            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"defect of the simulator: {error!r} at {place.filename}:{place.lineno}"
            reply.error(SqlError(50_002, said))
            if session.backend.is_in_transaction and not session.trancount:
                session.backend.run("rollback")
        session.reply = None
        end = replies.ATTENTION if self._has_attention else 0
        if kind == wire.RPC:
            reply.finish(status=session.return_status, tail=rpc.outputs(session), end=end)
        else:
            reply.finish(end=end)

    def _run_text(self, session: Session, text: str, reply: Reply) -> None:
        self._server.check_text(session, text)
        session.variables = {}
        session.run_batch(text, reply)


def _manage(session: Session, cursor: Cursor, reply: Reply) -> None:
    """Run a transaction manager request (MS-TDS 2.2.6.9)."""
    kind = cursor.short()
    if kind == 5:
        _set_level(session, cursor.byte())
        session.begin()
    elif kind in (7, 8):
        cursor.text(cursor.byte() // 2)
        begins = not cursor.is_done and bool(cursor.byte() & 1)
        if kind == 7:
            session.commit()
        elif session.trancount:
            session.rollback_all()
        if begins:
            if not cursor.is_done:
                _set_level(session, cursor.byte())
            session.begin()
    else:
        raise SqlError(8186, f"The simulator does not know transaction request {kind}.")
    reply.add_done(0, 0, 0)


def _set_level(session: Session, level: int) -> None:
    if level in _ISOLATIONS:
        session.options["isolation"] = _ISOLATIONS[level]


def _bulk(session: Session, body: bytes, reply: Reply) -> None:
    try:
        rows = bulk.load(session, body)
    except SqlError as error:
        session.settle_error(error)
        session.report(error)
        return
    session.rowcount = rows
    reply.add_done(replies.COUNT, replies.BULK, rows)


def _headers(body: bytes) -> int:
    """Return the length of ALL_HEADERS."""
    return int(struct.unpack_from("<I", body)[0])


def _prelogin_option(body: bytes, wanted: int) -> bytes:
    place = 0
    while body[place] != 0xFF:
        number, offset, length = struct.unpack_from(">BHH", body, place)
        if number == wanted:
            return body[offset : offset + length]
        place += 5
    return b""


class _Login:
    """Fields of LOGIN7 (MS-TDS 2.2.6.4)."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.packet_size = int(struct.unpack_from("<I", body, 8)[0])
        self.is_read_only = bool(body[26] & 0x20)
        self.host, self.user = self._text(0), self._text(1)
        offset, length = struct.unpack_from("<HH", body, 44)
        raw = body[offset : offset + 2 * length]
        turned = bytes(((c ^ 0xA5) & 0xF) << 4 | (c ^ 0xA5) >> 4 for c in raw)
        self.password = turned.decode("utf-16-le", "replace")
        self.app, self.database = self._text(3), self._text(8)

    def _text(self, place: int) -> str:
        offset, length = struct.unpack_from("<HH", self._body, 36 + 4 * place)
        return self._body[offset : offset + 2 * length].decode("utf-16-le")
