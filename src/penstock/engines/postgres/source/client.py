"""A replication connection: log-in, commands, and the copy-both stream, on a socket of our own.

libpq and psycopg hand out one message per call; here whole blocks are read into one large buffer
(see `stream.py`). Everything that is plain SQL goes through `penstock.engines.postgres.connect`,
except what belongs to the replication connection itself. Source:
PostgreSQL manual, "Frontend/Backend Protocol".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.pgwire import ServerMessage, WireError
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect_error
from penstock.engines.postgres.source import login
from penstock.engines.postgres.source.login import Authenticator, ServerAddress
from penstock.host.errors import (
    LOST,
    REFUSED,
    ConnectFailed,
    ConnectionLost,
    DatabaseRefused,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    ServerBusy,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
)
from penstock.host.socket import Wire
from penstock.model import PenstockError

logger = structlog.get_logger()
RECEIVE_BYTES = 64 * 1024  # for log-in and commands; the stream has its own buffer
CANCEL_TIMEOUT_S = 5.0
WAIT_STEP_S = 1.0  # how often on_wait is called while a command takes its time
_INTERRUPTED = frozenset({"40001", "40P01", "55P03", "57014", "53300", "53400", "55006", "25P03"})

Row = dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Address and encryption of a connection, for cancelling from a second one."""

    target: ServerAddress
    tls: bool
    parameters: Mapping[str, str]


class ReplicationConnection:
    """A connection in replication mode, logged in and ready for commands.

    settings: what the server reported (server_version, TimeZone, ...). Commands come from one
    thread; `wire` may be used by two, as `Wire` says.
    """

    def __init__(self, wire: Wire, opened: Opened, url: str) -> None:
        """Take over a wire that has just been connected. Use `open_replication` to create one."""
        self.wire = wire
        self.settings: dict[str, str] = {}
        self.process_id = 0
        self._url = url
        self._opened = opened
        self._secret_key = b""
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = 0
        self._end = 0

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

    @property
    def server_version(self) -> int:
        """The server's major version: 14, 15, ..."""
        digits = self.settings.get("server_version", "0").split(".")[0].split(" ")[0]
        number = "".join(c for c in digits if c.isdigit())  # 18beta1, 19devel
        return int(number[:2] or 0)

    # -- frames ------------------------------------------------------------------------------

    def _next(self, deadline: float | None) -> tuple[int, bytes] | None:
        """Return the next message, or None when the deadline (monotonic seconds) passes first."""
        while True:
            frame = pgwire.frame_at(self._buffer, self._start, self._end)
            if frame is not None:
                self._start = frame.end
                return frame.kind, bytes(self._buffer[frame.start : frame.end])
            self._make_room()
            left_s = 3600.0 if deadline is None else deadline - time.monotonic()
            view = memoryview(self._buffer)[self._end :]
            count = self.wire.receive_into(view, max(left_s, 0.0))
            view.release()
            if count == 0 and deadline is not None and time.monotonic() >= deadline:
                return None
            self._end += count

    def _make_room(self) -> None:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._end -= self._start
            self._start = 0
        if self._end == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))

    def _common(self, kind: int, body: bytes) -> bool:
        """Handle a message that a server may send at any time; return False for any other."""
        if kind == ord("S"):
            name, value = pgwire.parameter_status(body)
            self.settings[name] = value
        elif kind == ord("N"):
            notice = pgwire.server_message(body)
            logger.info("server notice", severity=notice.severity, message=notice.message)
        else:
            return False
        return True

    # -- log-in ------------------------------------------------------------------------------

    def log_in(self, startup: Mapping[str, str], limit_s: float) -> None:
        """Send the start-up message and answer until the server is ready for commands."""
        authenticator = Authenticator(self._opened.parameters, self._opened.target, self.wire)
        deadline = time.monotonic() + limit_s
        self.wire.send(pgwire.startup(startup))
        while True:
            message = self._next(deadline)
            if message is None:
                raise ServerUnreachable(
                    f"{self._opened.target.host} did not finish the log-in in {limit_s:g} s"
                )
            kind, body = message
            if kind == ord("R"):
                answer = authenticator.answer(*pgwire.authentication(body))
                if answer is not None:
                    self.wire.send(answer)
            elif kind == ord("K"):
                self.process_id, self._secret_key = pgwire.backend_key(body)
            elif kind == ord("Z"):
                return
            elif kind == ord("E"):
                raise _login_error(self._url, pgwire.server_message(body))
            elif kind != ord("v") and not self._common(kind, body):
                raise WireError(f"unexpected message {chr(kind)!r} during log-in")

    # -- commands ----------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        *,
        doing: str,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Row]:
        """Run one command or query and return its rows as text by column name; NULL is None.

        doing: names the work in errors, as in "creating the slot". on_wait: called about once per
        second with the seconds waited so far; what it raises cancels the command.
        Raises StatementFailed, PrivilegeMissing, StatementInterrupted or ConnectionLost, with
        SQLSTATE and detail in `fields`.
        """
        began = time.monotonic()
        self.wire.send(pgwire.query(sql))
        names: list[str] = []
        rows: list[Row] = []
        failed: ServerMessage | None = None
        while True:
            message = self._next(time.monotonic() + WAIT_STEP_S)
            if message is None:
                self._wait(on_wait, time.monotonic() - began)
                continue
            kind, body = message
            if kind == ord("T"):
                names = pgwire.row_description(body)
            elif kind == ord("D"):
                rows.append(dict(zip(names, pgwire.data_row(body), strict=True)))
            elif kind == ord("E"):
                failed = pgwire.server_message(body)
                if failed.severity in ("FATAL", "PANIC"):
                    raise server_error(doing, failed)
            elif kind == ord("Z"):
                if failed is not None:
                    raise server_error(doing, failed)
                return rows
            elif kind not in (ord("C"), ord("I")) and not self._common(kind, body):
                raise WireError(f"unexpected message {chr(kind)!r} while {doing}")

    def _wait(self, on_wait: Callable[[float], None] | None, seconds: float) -> None:
        if on_wait is None:
            return
        try:
            on_wait(seconds)
        except BaseException:
            self.cancel()
            raise

    def start_copy(self, sql: str, *, doing: str) -> None:
        """Send a command that turns the connection into a copy stream (CopyBoth or CopyOut)."""
        self.wire.send(pgwire.query(sql))
        failed: ServerMessage | None = None
        while True:
            message = self._next(None)
            if message is None:
                continue
            kind, body = message
            if kind in (ord("W"), ord("H")):
                return
            if kind == ord("E"):
                failed = pgwire.server_message(body)
                if failed.severity in ("FATAL", "PANIC"):
                    raise server_error(doing, failed)
            elif kind == ord("Z") and failed is not None:
                raise server_error(doing, failed)
            elif not self._common(kind, body):
                raise WireError(f"unexpected message {chr(kind)!r} while {doing}")

    def leftover(self) -> bytes:
        """Return the bytes of the stream that arrived together with its start, to be read before
        the socket.
        """
        data = bytes(self._buffer[self._start : self._end])
        self._start = self._end = 0
        return data

    def finish_copy(self, unread: bytes, *, doing: str) -> None:
        """Read to the end of a COPY TO, after which the connection takes commands again.

        unread: received bytes that were not looked at.
        """
        if len(unread) > len(self._buffer):
            self._buffer = bytearray(2 * len(unread))
        self._buffer[: len(unread)] = unread
        self._start, self._end = 0, len(unread)
        failed: ServerMessage | None = None
        while True:
            message = self._next(None)
            if message is None:
                continue
            kind, body = message
            if kind == ord("E"):
                failed = pgwire.server_message(body)
            elif kind == ord("Z"):
                if failed is not None:
                    raise server_error(doing, failed)
                return
            elif kind not in (ord("d"), ord("c"), ord("C")) and not self._common(kind, body):
                raise WireError(f"unexpected message {chr(kind)!r} while {doing}")

    # -- ending ------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Ask the server, on a second connection, to give up the command that runs.

        A session that waits for a lock does not notice a closed connection, but it does notice a
        cancel.
        """
        opened = self._opened
        try:
            with login.open_wire(
                opened.target, opened.parameters, tls=opened.tls, limit_s=CANCEL_TIMEOUT_S
            ) as wire:
                wire.send(pgwire.cancel_request(self.process_id, self._secret_key))
                wire.flush(CANCEL_TIMEOUT_S)
        except PenstockError as error:
            logger.warning("command could not be cancelled", error=error.message)

    def close(self) -> None:
        """Say good-bye if the server still listens, and close; harmless when done twice."""
        try:
            self.wire.send(pgwire.TERMINATE)
        except ConnectionLost as error:
            logger.debug("connection was gone before it was closed", error=error.message)
        self.wire.close()


_REFUSALS: dict[str, type[ConnectFailed]] = {
    "28P01": LoginRefused,
    "28000": LoginRefused,
    "3D000": DatabaseUnknown,
    "53300": ServerBusy,
    "57P01": ServerBusy,
    "57P02": ServerBusy,
    "57P03": ServerBusy,
}


def _login_error(url: str, said: ServerMessage) -> PenstockError:
    """Return the typed error for a refused log-in. The SQLSTATE decides, so the language does not
    matter.
    """
    known = connect_error(url, said.message)
    if said.sqlstate == "42501" and not isinstance(known, DatabaseRefused):
        return PrivilegeMissing(
            known.message,
            hint="Let the role replicate: alter role NAME replication; (Amazon RDS: grant "
            "rds_replication to NAME;)",
            sqlstate=said.sqlstate,
        )
    kind = _REFUSALS.get(said.sqlstate, type(known))
    return kind(known.message, hint=known.hint, sqlstate=said.sqlstate)


def server_error(doing: str, said: ServerMessage) -> PenstockError:
    """Return the typed error for the server's message. `doing` names the work."""
    message = f"{doing}: {said.message}" + (f" ({said.detail})" if said.detail else "")
    fields = {"sqlstate": said.sqlstate, "severity": said.severity}
    state = said.sqlstate
    if state.startswith(("08", "57P")):
        return ConnectionLost(message, hint=LOST, **fields)
    if state == "42501":
        return PrivilegeMissing(
            message, hint="Run `penstock doctor`: it prints the GRANT to type.", **fields
        )
    if state in _INTERRUPTED:
        return StatementInterrupted(message, hint="penstock retries automatically.", **fields)
    hint = said.hint or REFUSED
    return StatementFailed(message, hint=hint, **fields)


def open_replication(
    url: str,
    *,
    application_name: str,
    options: Mapping[str, str] = EXACT_TEXT_SETTINGS,
    replication: bool = True,
) -> ReplicationConnection:
    """Connect and log in, in replication mode for the URL's database.

    options: server settings of the session. replication=False makes an ordinary session, for
    large COPYs. Tries every host of the URL, and TLS and plain text as sslmode says. Raises the
    same errors as `penstock.engines.postgres.connect.connect`.
    """
    parameters = login.parameters_of(url)
    startup = {"user": parameters.get("user", ""), "database": parameters["dbname"]}
    if replication:
        startup["replication"] = "database"
    startup["application_name"] = application_name
    startup["client_min_messages"] = "notice"  # a lost publication is only reported as a warning
    startup.update(options)
    if parameters.get("options"):
        startup["options"] = parameters["options"]
    failures: list[ConnectFailed] = []
    for target in login.targets(parameters):
        for tls in login.encryption_order(parameters["sslmode"], target):
            try:
                return _attempt(url, parameters, target, startup, tls=tls)
            except ConnectFailed as error:
                failures.append(error)
                if not login.may_try_plain_or_tls(error):
                    break
            except ConnectionLost as error:
                failures.append(connect_error(url, error.message))
                break
    raise failures[-1]


def _attempt(
    url: str,
    parameters: Mapping[str, str],
    target: ServerAddress,
    startup: Mapping[str, str],
    *,
    tls: bool,
) -> ReplicationConnection:
    limit_s = login.timeout_s(parameters)
    wire = login.open_wire(target, parameters, tls=tls, limit_s=limit_s)
    opened = Opened(target=target, tls=wire.is_tls, parameters=parameters)
    connection = ReplicationConnection(wire, opened, url)
    try:
        connection.log_in(startup, limit_s)
    except BaseException:
        wire.close()
        raise
    return connection
