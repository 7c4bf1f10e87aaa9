"""Sockets: admission, certificate, time limit of the login, and the end of all connections.

There is one event loop. A connection that has not proved its password costs a few kilobytes, and
the oldest of them is closed when there are too many, so that silent connections do not keep others
out.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
from abc import abstractmethod
from pathlib import Path
from typing import Any, Protocol

import structlog

from penstock.codec.postgres import pgwire_server as protocol
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.scram import SCRAM, SCRAM_PLUS, ScramServer, Verifier, channel_binding
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES, Files
from penstock.host.listen import as_key, is_loopback, listening_socket
from penstock.serve.catalog.answers import Session
from penstock.serve.running import Answers
from penstock.serve.serving import Serving
from penstock.serve.session import ClientSession
from penstock.serve.statistics import Client
from penstock.serve.wire import LOGIN_MESSAGE_BYTES, READ_LIMIT_BYTES, Gone, Wire

_END = "-----END CERTIFICATE-----"


def binding_of(path: Path, files: Files = REAL_FILES) -> bytes | None:
    """Return the hash of the first certificate in a PEM file, which is the one that is shown.

    Returns None for one whose signature has no hash of its own (Ed25519): no client can bind then.
    Raises FileFailed, and ValueError for a file without a certificate.
    """
    text, end, _ = files.read_whole(path).decode("ascii", "replace").partition(_END)
    begin = text.rfind("-----BEGIN CERTIFICATE-----")
    if begin < 0:
        raise ValueError(f"no certificate in {path}")
    return channel_binding(ssl.PEM_cert_to_DER_cert(text[begin:] + end))


_SHUTDOWN_S = 5.0

logger = structlog.get_logger(__name__)


class Welcome(Protocol):
    """Catalogue's part in the start of a session."""

    @abstractmethod
    def answers(self) -> Answers:
        """Return the catalogue for the session's SQL."""
        ...

    @abstractmethod
    def begin(self, session: Session, parameters: dict[str, str]) -> dict[str, str]:
        """Apply the settings of the start-up packet; return those to report. Raises Refused."""
        ...


class Server:
    """Accepts connections from `start` to `stop`."""

    def __init__(self, serving: Serving, welcome: Welcome) -> None:
        self._serving, self._welcome = serving, welcome
        self._settings = serving.settings
        self._pending: dict[Wire, None] = {}
        self._sessions: dict[int, ClientSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: dict[int, Wire] = {}
        self._server: asyncio.Server | None = None
        self._secret = secrets.token_bytes(32)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises PortTaken, ListenFailed."""
        found = listening_socket(host, port, written=as_key("serve"))
        found.setblocking(False)
        self._server = await asyncio.start_server(
            self._accept, sock=found, limit=READ_LIMIT_BYTES, backlog=512
        )
        return int(found.getsockname()[1])

    async def stop(self) -> None:
        """Refuse new connections, and end the present ones."""
        if self._server is not None:
            self._server.close()
        reason = Refused("57P01", "terminating connection due to administrator command")
        for session in list(self._sessions.values()):
            session.end(reason)
        for process_id, wire in list(self._wires.items()):
            client = self._serving.clients.get(process_id)
            if client is not None and client.state == "idle":
                _tell(wire, reason)
                wire.writer.close()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_SHUTDOWN_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    @property
    def pending_count(self) -> int:
        """Number of connections that have not sent a password yet."""
        return len(self._pending)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        self._pending[wire] = None
        if len(self._pending) > self._settings.limits.pending:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort()
        client: Client | None = None
        try:
            try:
                async with asyncio.timeout(self._settings.limits.login_s):
                    client = await self._log_in(wire)
            finally:
                self._pending.pop(wire, None)
            if client is not None:
                await self._serve(wire, client)
        except Refused as refused:
            _tell(wire, refused)
        except (Gone, TimeoutError):
            pass
        except ssl.SSLError as error:
            logger.info("TLS refused", error=str(error))
        except Exception:
            logger.exception("connection failed")
            _tell(wire, Refused("XX000", "internal error"))
        finally:
            await wire.close()

    async def _serve(self, wire: Wire, client: Client) -> None:
        serving = self._serving
        if len(serving.clients) >= self._settings.limits.connections:
            raise Refused("53300", "sorry, too many clients already")
        pid = client.process_id
        serving.clients[pid] = client  # counted before the first wait
        try:
            await self._run(wire, client)
        finally:
            del serving.clients[pid]

    async def _run(self, wire: Wire, client: Client) -> None:
        """Serve a counted client, until it disconnects."""
        serving, pid = self._serving, client.process_id
        session = Session(
            user=client.user,
            database=client.database,
            process_id=pid,
            replication=client.replication,
        )
        reported = await serving.answer(self._welcome.begin, session, dict(client.parameters))
        running = ClientSession(serving, wire, client, session, self._welcome.answers())
        self._sessions[pid], self._wires[pid] = running, wire
        serving.sessions[pid] = running
        try:
            for name, value in reported.items():
                wire.write(protocol.parameter_status(name, value))
            wire.write(protocol.backend_key(pid, client.secret) + protocol.ready())
            await running.run()
        finally:
            del serving.sessions[pid]
            del self._sessions[pid], self._wires[pid]

    # -- login -----------------------------------------------------------------------------------

    async def _log_in(self, wire: Wire) -> Client | None:
        """Authenticate the client; return None if it only wanted to cancel something."""
        startup, is_encrypted = await self._startup(wire)
        if startup is None:
            return None
        parameters = startup.parameters
        if startup.minor or startup.unknown_options:
            wire.write(protocol.negotiate(startup.unknown_options))
        host, port = _peer(wire)
        is_local = host is None or is_loopback(host)
        if self._settings.tls is not None and not is_encrypted and not is_local:
            raise Refused(
                "28000",
                "no encryption",
                hint="This server wants TLS: connect with sslmode=require.",
            )
        await self._prove(wire, parameters["user"], is_encrypted=is_encrypted)
        if parameters["database"] != self._settings.database:
            raise Refused(
                "3D000",
                f'database "{parameters["database"]}" does not exist',
                hint=f'The pipeline served here is "{self._settings.database}".',
            )
        wire.write(protocol.AUTHENTICATED)
        return Client(
            process_id=self._serving.next_process_id(),
            secret=secrets.token_bytes(4),
            user=parameters["user"],
            database=parameters["database"],
            application=parameters.get("application_name", ""),
            address=host,
            port=port,
            began_us=REAL_CLOCK.now_us(),
            replication=_replication(parameters.get("replication", "")),
            parameters=parameters,
        )

    async def _startup(self, wire: Wire) -> tuple[protocol.Startup | None, bool]:
        is_encrypted = False
        asked: set[str] = set()
        while True:
            packet = await wire.start_packet()
            if isinstance(packet, protocol.Startup):
                return packet, is_encrypted
            if isinstance(packet, protocol.CancelRequest):
                self._cancel(packet)
                return None, is_encrypted
            if packet.kind in asked:
                raise Refused("08P01", "the client asks twice for an encrypted connection")
            asked.add(packet.kind)
            if packet.kind == "tls" and self._settings.tls is not None and not is_encrypted:
                await self._encrypt(wire, self._settings.tls)
                is_encrypted = True
            else:
                wire.write(protocol.NO_ENCRYPTION)

    async def _encrypt(self, wire: Wire, context: ssl.SSLContext) -> None:
        # Bytes before the handshake were not encrypted and must not count as encrypted.
        if wire.has_unread:
            raise Refused("08P01", "received unencrypted data after SSL request")
        wire.write(protocol.ENCRYPTION)
        try:
            await wire.writer.start_tls(context)
        except OSError as error:
            raise Gone from error

    def _cancel(self, asked: protocol.CancelRequest) -> None:
        client = self._serving.clients.get(asked.process_id)
        session = self._sessions.get(asked.process_id)
        if client is None or session is None:
            return
        if hmac.compare_digest(client.secret, asked.secret_key):
            session.cancel()

    async def _prove(self, wire: Wire, user: str, *, is_encrypted: bool) -> None:
        """Run SCRAM. An unknown user fails like a wrong password, and as late."""
        known = self._settings.users.get(user)
        verifier = known if known is not None else Verifier.unknown(user, self._secret)
        binding = self._settings.binding if is_encrypted else None
        exchange = ScramServer(verifier, binding=binding)
        names = [SCRAM] if binding is None else [SCRAM_PLUS, SCRAM]
        wire.write(protocol.sasl_mechanisms(names))
        mechanism, first = protocol.sasl_initial(await _password(wire))
        if mechanism not in names:
            raise Refused("08P01", "client selected an invalid SASL authentication mechanism")
        challenge = exchange.challenge(first, plus=mechanism == SCRAM_PLUS)
        wire.write(protocol.sasl_continue(challenge))
        try:
            final = exchange.finish(await _password(wire))
        except Refused as refused:
            if refused.sqlstate != "28P01":
                raise
            raise Refused("28P01", f'password authentication failed for user "{user}"') from None
        wire.write(protocol.sasl_final(final))


async def _password(wire: Wire) -> bytes:
    incoming = await wire.message(LOGIN_MESSAGE_BYTES)
    if incoming.kind != b"p":
        raise Refused("08P01", f"expected SASL response, got message type {incoming.kind[0]}")
    return incoming.body


def _replication(value: str) -> bool:
    text = value.lower()
    if text in ("", "off", "false", "no", "0"):
        return False
    if text != "database":
        raise Refused(
            "0A000",
            "physical replication is not supported",
            hint="Connect with replication=database.",
        )
    return True


def _peer(wire: Wire) -> tuple[str | None, int | None]:
    found: Any = wire.writer.get_extra_info("peername")
    return (found[0], found[1]) if isinstance(found, tuple) else (None, None)


def _tell(wire: Wire, refused: Refused) -> None:
    """Tell a client why its connection ends, if it still listens."""
    try:
        wire.write(protocol.error_response(refused, severity="FATAL"))
    except Gone:
        return
