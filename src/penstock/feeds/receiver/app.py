"""Requests of changefeeds, from the socket to the staging database, and the published answers.

A request is staged in one transaction, by a thread with a session of its own, which continues if
the sender leaves. `serving` runs the server: its socket, its thread, its certificate, its end. Not
here: the meaning of a body (`decode.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, request_response

from penstock import __version__
from penstock.codec.changefeed import COMPILED
from penstock.feeds.metrics import CONTENT_TYPE, Metrics
from penstock.feeds.receiver.access import Access
from penstock.feeds.receiver.decode import NDJSON_BUFFER_BYTES, Decoder
from penstock.feeds.receiver.targets import PathUnknown, Place, TargetTables, place_of
from penstock.feeds.sessions import Sessions
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.http_server import http_server
from penstock.host.listen import as_key, is_loopback, listening_socket, url_of
from penstock.model import PenstockError
from penstock.ports.feeds import Group, Staged, StagedTable, StagingSession, group_name


class Admission:
    """Places that tickets wait for. Any thread and any event loop may use it.

    A ticket with more bytes than the limit waits until it is alone.
    """

    def __init__(self, count_max: int, bytes_max: int = 0) -> None:
        """Admit count_max tickets of bytes_max bytes together."""
        self._count_max, self._bytes_max = count_max, bytes_max
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._inside: set[Ticket] = set()

    @property
    def count(self) -> int:
        """Number of tickets inside."""
        return len(self._inside)

    @property
    def bytes(self) -> int:
        """Number of bytes of the tickets inside."""
        with self._lock:
            return sum(one.size for one in self._inside)

    def ticket(self, size: int = 0) -> Ticket:
        """Make a ticket, which waits after all earlier ones. For a coroutine."""
        made = Ticket(self, min(size, self._bytes_max))
        with self._lock:
            self._waiting.append(made)
        self._admit()
        return made

    def _admit(self) -> None:
        with self._lock:
            held = sum(one.size for one in self._inside)
            while self._waiting and len(self._inside) < self._count_max:
                if held + self._waiting[0].size > self._bytes_max:
                    break
                ticket = self._waiting.popleft()
                self._inside.add(ticket)
                held += ticket.size
                ticket.admit()

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._inside.discard(ticket)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        self._admit()


class Ticket:
    """Place, or the wait for one. size: its bytes."""

    def __init__(self, admission: Admission, size: int) -> None:
        """Make the ticket. For a coroutine: it belongs to the event loop that runs."""
        self.size = size
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._is_inside = asyncio.Event()

    async def inside(self) -> None:
        """Wait until the ticket is admitted."""
        await self._is_inside.wait()

    def admit(self) -> None:
        """Admit the ticket. From any thread."""
        self._loop.call_soon_threadsafe(self._is_inside.set)

    def leave(self) -> None:
        """Give up the place, or the wait for it. Any thread may call it, also repeatedly."""
        self._admission._leave(self)


logger = structlog.get_logger()
faults.declare("stage.request.staged", "stage.request.resolved")
THREADS = 4
# In memory at once; each stays until it is staged, even if its sender has left.
BODIES_MAX = 32
BODIES_BYTES_MAX = 512 * 2**20
FORBIDDEN = "missing or invalid access token"
_HEALTH_WITHIN_S = 10.0


class RequestTooLong(PenstockError):
    """A request has more bytes than requestBytesMax."""

    code = "ST11"


class RequestTimedOut(PenstockError):
    """A request was not staged within httpResponseTimeout; the work of a thread continues."""

    code = "ST12"
    retry = "backoff"


class RequestFailed(PenstockError):
    """An unexpected error has stopped a request; nothing of it was staged."""

    code = "ST13"
    retry = "backoff"


Accept = Callable[
    [StagingSession, Group, Mapping[StagedTable, pa.RecordBatch], str], Mapping[StagedTable, Staged]
]
"""Makes the mutations of a feed's request durable; returns their outcome.

The text names the feed, as the table checkpoints does.
"""


def _stage(
    session: StagingSession,
    _group: Group,
    batches: Mapping[StagedTable, pa.RecordBatch],
    _partition: str,
) -> Mapping[StagedTable, Staged]:
    return session.stage(batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """Limits: see [stage]."""

    response_timeout_s: float = 120.0
    request_bytes_max: int = 256 * 2**20
    ndjson_buffer_bytes: int = NDJSON_BUFFER_BYTES


class Receiver:
    """Receiver of changefeeds. `app` is its ASGI application."""

    def __init__(
        self,
        *,
        sessions: Sessions[StagingSession],
        tables: TargetTables,
        access: Access,
        metrics: Metrics,
        options: ReceiverOptions | None = None,
        describe: Callable[[], Mapping[str, Any]] = dict,
        accept: Accept | None = None,
    ) -> None:
        """Set up the routes.

        Args:
            sessions: Sessions of the staging database.
            tables: The target's tables.
            access: The check of senders.
            metrics: The counters.
            options: The limits.
            describe: Returns more for the page of diagnostics.
            accept: Accepts mutations; by default they are staged.
        """
        self._accept = accept or _stage
        self._sessions, self._tables, self._access = sessions, tables, access
        self._metrics, self._describe = metrics, describe
        self._options = options or ReceiverOptions()
        self.decoder = Decoder(tables, ndjson_buffer_bytes=self._options.ndjson_buffer_bytes)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="receive")
        self._turns = Admission(THREADS)
        self.bodies = Admission(BODIES_MAX, max(BODIES_BYTES_MAX, self._options.request_bytes_max))
        self.app = Starlette(
            routes=[
                Route("/_/healthz", self.health),
                Route("/_/varz", self.metrics),
                Route("/_/diag", self.diagnostics),
                # Not a Route for one method: any verb is accepted.
                Route("/{path:path}", _AnyMethod(self.receive)),
            ]
        )

    def close(self) -> None:
        """Wait for the work that is being staged."""
        self._threads.shutdown()

    # --- our own pages ----------------------------------------------------------------------------

    async def health(self, _request: Request) -> Response:
        """Return OK while staging database and target answer."""
        for name, check in (
            ("staging", self._check_staging),
            ("target", self._tables.catalog.check),
        ):
            try:
                async with asyncio.timeout(_HEALTH_WITHIN_S):
                    await self._run_in_turn(check, ExitStack())
            except Exception as error:
                logger.warning("health check failed", of=name, error=str(error))
                text = f"health check failed for {name}"
                return PlainTextResponse(text, HTTPStatus.INTERNAL_SERVER_ERROR)
        return PlainTextResponse("OK")

    def _check_staging(self) -> None:
        with self._sessions.session() as session:
            session.get_memo("version")

    async def metrics(self, _request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self._metrics.expose(), media_type=CONTENT_TYPE)

    async def diagnostics(self, request: Request) -> Response:
        """Return facts of this process, for people who help."""
        if not self._access.allows(_token(request), None):
            return PlainTextResponse(FORBIDDEN, HTTPStatus.UNAUTHORIZED)
        access = self._access.describe()
        about = {"version": __version__, "compiled_decoder": COMPILED}
        bodies = {"count": self.bodies.count, "bytes": self.bodies.bytes}
        found = {"penstock": about, "access": access, "bodies": bodies, **self._describe()}
        return JSONResponse(found)

    # --- feeds ------------------------------------------------------------------------------------

    async def receive(self, request: Request) -> Response:
        """Answer any request of a feed."""
        begun_s = REAL_CLOCK.monotonic_s()
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            answer = PlainTextResponse("the request ended early", HTTPStatus.BAD_REQUEST)
        self._metrics.http_codes.labels(str(answer.status_code)).inc()
        self._metrics.http_seconds.observe(REAL_CLOCK.monotonic_s() - begun_s)
        return answer

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        try:
            place = place_of(path, group_parts=self._tables.catalog.group_parts)
        except PathUnknown as error:
            return PlainTextResponse(error.message, HTTPStatus.NOT_FOUND)
        if not self._access.allows(_token(request), place.group):
            return PlainTextResponse(FORBIDDEN, HTTPStatus.UNAUTHORIZED)
        try:
            await self._stage_in_time(place, request)
        except ClientDisconnect:
            raise
        except PenstockError as error:
            return self._refuse(place, error)
        except Exception as error:
            logger.error("request failed", schema=group_name(place.group), exc_info=error)
            failed = RequestFailed(
                f"unexpected {type(error).__name__}: {error}",
                hint="The feed sends it again; run penstock stage with --verbose and report it.",
            )
            return self._refuse(place, failed)
        return PlainTextResponse("OK")

    def _refuse(self, place: Place, error: PenstockError) -> Response:
        logger.warning(
            "request refused",
            schema=group_name(place.group),
            kind=place.kind.value,
            code=error.code,
            error=error.message,
        )
        return PlainTextResponse(f"{error.message}\n{error.hint}", HTTPStatus.BAD_REQUEST)

    async def _stage_in_time(self, place: Place, request: Request) -> None:
        limit_s = self._options.response_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._stage(place, request)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"not staged within {limit_s:g} s",
                hint="The feed sends it again, which does no harm. Look at the staging database.",
            ) from error

    async def _stage(self, place: Place, request: Request) -> None:
        """Read and stage a request, when there is memory for it and then a free thread.

        A request whose sender has left is given up while it waits. Once a thread works on it, its
        body counts until the thread has ended, even if no sender waits for it.
        """
        with ExitStack() as held:
            space = self.bodies.ticket(self._announced_bytes(request))
            held.callback(space.leave)
            await space.inside()
            body = await self._body(request)

            def work() -> None:
                self.work(place, body)

            await self._run_in_turn(work, held, request)

    def _announced_bytes(self, request: Request) -> int:
        """Return the greatest size of a body in bytes. Raises RequestTooLong."""
        most = self._options.request_bytes_max
        length = request.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return most  # sent in chunks
        if len(length) > len(str(most)) or int(length) > most:
            raise self._too_long()
        return int(length)

    async def _body(self, request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._options.request_bytes_max:
                raise self._too_long()
            parts.append(part)
        self._metrics.http_bytes.inc(size)
        return b"".join(parts)

    def _too_long(self) -> RequestTooLong:
        return RequestTooLong(
            f"request of more than {self._options.request_bytes_max} bytes",
            hint="Set requestBytesMax in [stage], or Flush in webhook_sink_config of the feed.",
        )

    async def _run_in_turn(
        self, work: Callable[[], object], held: ExitStack, request: Request | None = None
    ) -> None:
        """Run work in a thread, when one is free; it continues if its caller is cancelled.

        held is closed when the work has ended. Raises ClientDisconnect if the sender of the
        request leaves before a thread is free.
        """
        with ExitStack() as waiting:
            turn = self._turns.ticket()
            waiting.callback(turn.leave)
            await _while_connected(request, turn.inside())
            begun = self._threads.submit(work)
            ended = waiting.pop_all()
            ended.enter_context(held.pop_all())
            begun.add_done_callback(lambda _: ended.close())
        await asyncio.wrap_future(begun)

    def work(self, place: Place, body: bytes, *, partition: str = "") -> None:
        """Decode a body and stage it, or note that everything up to a time is staged.

        For any thread. partition: names the feed, unless its path does. Raises the errors of
        decoding and of the staging database.
        """
        request = self.decoder.decode(place, body)
        name, feed = group_name(place.group), partition or request.partition
        if request.resolved is not None:
            self._tables.check_group(place.group)
            with (
                self._metrics.advance_seconds.labels(name).time(),
                self._sessions.session() as session,
            ):
                session.advance(place.group, feed, request.resolved)
            faults.point("stage.request.resolved")
        elif request.batches:
            begun_s = REAL_CLOCK.monotonic_s()
            staged: Mapping[StagedTable, Staged] | None = None
            try:
                with self._sessions.session() as session:
                    staged = self._accept(session, place.group, request.batches, feed)
                faults.point("stage.request.staged")
            finally:
                seconds = REAL_CLOCK.monotonic_s() - begun_s
                self._metrics.note_staged(
                    place.kind.value, place.group, request.batches, staged, seconds
                )


class _AnyMethod:
    """ASGI application, because Starlette limits a plain function to GET and HEAD."""

    def __init__(self, function: Callable[[Request], Any]) -> None:
        self._app = request_response(function)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


async def _while_connected(request: Request | None, waiting: Awaitable[None]) -> None:
    """Wait. Raises ClientDisconnect if the sender of the request leaves first."""
    task = asyncio.ensure_future(waiting)
    gone = None if request is None else asyncio.ensure_future(_see_leave(request))
    try:
        tasks = {task} if gone is None else {task, gone}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
    finally:
        for one in (task, gone):
            if one is not None:
                one.cancel()


async def _see_leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _token(request: Request) -> str:
    """Return the access token: of the header Authorization, or of the query."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return given.strip()
    return str(request.query_params.get("access_token", ""))


END_WITHIN_S = 30.0
SELF_SIGNED_DAYS = 3650


class EncryptionMissing(PenstockError):
    """Feeds would be received from other machines without encryption."""

    code = "ST14"


class CertificateUnusable(PenstockError):
    """The certificate or its key cannot be used."""

    code = "ST15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Pair of PEM files."""

    certificate: Path
    private_key: Path


@contextmanager
def serving(
    receiver: Receiver, host: str, port: int, certificate: Certificate | None
) -> Iterator[str]:
    """Receive while the block runs; yield the address. Work that has begun is ended in order.

    Raises EncryptionMissing beyond loopback without a certificate, CertificateUnusable, PortTaken,
    ListenFailed.
    """
    if certificate is None and not is_loopback(host):
        raise EncryptionMissing(
            f"changefeeds would come to {host} without encryption",
            hint="Set tlsCertificate and tlsPrivateKey in [stage], or tlsSelfSigned = true; or "
            'listen = "127.0.0.1:26258".',
        )
    if certificate is not None:
        _check(certificate)
    listener = listening_socket(host, port, written=as_key("stage"))
    files = None
    if certificate is not None:
        files = (str(certificate.certificate), str(certificate.private_key))
    host, port = listener.getsockname()[:2]
    try:
        with http_server(
            receiver.app,
            listener,
            name="receiver",
            end_requests_s=END_WITHIN_S,
            end_within_s=END_WITHIN_S + 1,
            not_started=_not_started,
            certificate=files,
        ):
            yield url_of("http" if certificate is None else "https", host, port)
    finally:
        receiver.close()
        listener.close()


def _not_started() -> CertificateUnusable:
    return CertificateUnusable(
        "the receiver did not start", hint="Run the command again with --verbose."
    )


def _check(certificate: Certificate) -> None:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.private_key, lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise CertificateUnusable(
            f"{certificate.certificate} with {certificate.private_key}: {error.strerror or error}",
            hint="Set tlsCertificate and tlsPrivateKey in [stage] to files in PEM that belong "
            "together, without a passphrase.",
        ) from error


def self_signed(directory: Path, host: str) -> Certificate:
    """Return a certificate of our own in a directory: the existing one, or a new one.

    A feed accepts it with insecure_tls_skip_verify=true, or with ca_cert.
    """
    found = Certificate(
        certificate=directory / "stage-certificate.pem",
        private_key=directory / "stage-private-key.pem",
    )
    if found.certificate.exists() and found.private_key.exists():
        return found
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock stage")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    found.private_key.unlink(missing_ok=True)
    found.private_key.touch(mode=0o600)
    found.private_key.write_bytes(secret)
    found.certificate.write_bytes(made.public_bytes(Encoding.PEM))
    return found


def _names(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [
        x509.DNSName(one) for one in sorted({"localhost", socket.gethostname()})
    ]
    try:
        return [*names, x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [*names, x509.DNSName(host)]
