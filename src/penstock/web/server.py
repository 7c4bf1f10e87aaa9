"""The running server of the web interface: its socket, its thread, its end."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
import uvicorn

from penstock.control.stopping import StopRequest, stop_on_signals
from penstock.host.clock import REAL_CLOCK
from penstock.host.listen import Written, as_options, listening_socket
from penstock.host.supervised import ONCE, SupervisedThread
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.web.access import Access, Hosts, is_loopback
from penstock.web.app import Interface
from penstock.web.pages import AnyWatch
from penstock.web.reading import PipelineWatch
from penstock.web.stage_reading import StageWatch

logger = structlog.get_logger()
HOST_DEFAULT = "127.0.0.1"
PORT_DEFAULT = 8765
START_WITHIN_S = 10.0
END_WITHIN_S = 10.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened at


class PipelinesAlike(PenstockError):
    """Two of the files have the same pipeline name."""

    code = "WB01"


class ServerNotStarted(PenstockError):
    """The web server did not come up."""

    code = "WB05"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """Address to listen at, and the rules of access.

    Attributes:
        host: The address.
        port: The port; 0 is any free one.
        token: The token to log in with; if None, one is made if needed.
        allowed_hosts: More names under which we may be called.
        written: Formats an address as the options of the command that serves the pages.
    """

    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    written: Written = as_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server. made_token: a new token to be shown once; empty if none was made."""

    url: str
    made_token: str


class _Quiet(logging.Handler):
    """Handler that sends the web server's own log to the diagnostics, not between our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.warning("web server", said=record.getMessage(), exc_info=record.exc_info)


@contextmanager
def serving(configs: Sequence[Config], options: WebOptions) -> Iterator[Served]:
    """Serve while the block runs; afterwards no part of the server runs.

    Raises PipelinesAlike, TokenTooShort, PortTaken, ListenFailed.
    """
    _check_names(configs)
    token, made = options.token, ""
    if not is_loopback(options.host):
        made = "" if token else secrets.token_urlsafe(32)
        token = token or made
    access = Access(token)
    listener = listening_socket(options.host, options.port, written=options.written)
    port = listener.getsockname()[1]
    ended = threading.Event()
    interface = Interface(
        [_watch(config) for config in configs],
        access=access,
        hosts=Hosts(options.host, options.allowed_hosts),
        cookie=f"penstock_session_{port}",  # cookies do not know ports
        ended=ended.is_set,
    )
    try:
        interface.start()
        with _running(interface, listener, ended.set):
            yield Served(url=_url(options.host, port), made_token=made)
    finally:
        interface.close()
        listener.close()


def _watch(config: Config) -> AnyWatch:
    return PipelineWatch(config) if config.stage is None else StageWatch(config)


@contextmanager
def _running(
    interface: Interface, listener: socket.socket, end_streams: Callable[[], None]
) -> Iterator[None]:
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [_Quiet()], False
    server = uvicorn.Server(
        uvicorn.Config(
            interface.app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
    )
    # Not on the main thread: there the library would handle the signals, which penstock handles.
    thread = SupervisedThread(
        "web", lambda: server.run(sockets=[listener]), wait=REAL_CLOCK.sleep, tries=ONCE
    )
    thread.start()
    try:
        _wait_started(server, thread)
        yield
    finally:
        end_streams()
        server.should_exit = True
        thread.join(END_WITHIN_S)
        if thread.is_alive():
            logger.warning("web server does not end")


def _wait_started(server: uvicorn.Server, thread: SupervisedThread) -> None:
    deadline_s = REAL_CLOCK.monotonic_s() + START_WITHIN_S
    while not server.started:
        if not thread.is_alive() or REAL_CLOCK.monotonic_s() > deadline_s:
            raise ServerNotStarted(
                "the web server did not start", hint="Run it again with --verbose."
            )
        REAL_CLOCK.sleep(0.01)


def serve_until_stopped(
    configs: Sequence[Config], options: WebOptions, *, on_served: Callable[[Served], None]
) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises the same errors as `serving`.

    Args:
        configs: The pipelines.
        options: Address and access.
        on_served: Gets the address as soon as the server answers.
    """
    stop = StopRequest()
    with stop_on_signals(stop), serving(configs, options) as served:
        on_served(served)
        while not stop.wait(0.5):
            pass


def _check_names(configs: Sequence[Config]) -> None:
    seen: dict[str, Config] = {}
    for config in configs:
        name = config.pipeline.name
        if name in seen:
            raise PipelinesAlike(
                f"{seen[name].path.name} and {config.path.name} both name their pipeline {name}",
                hint="Give one of them another name in its section [pipeline].",
            )
        seen[name] = config


def _url(host: str, port: int) -> str:
    shown = ANY_ADDRESS.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
