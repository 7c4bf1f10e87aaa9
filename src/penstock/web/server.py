"""The running server of the web interface: its socket, its thread, its end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.host.http_server import http_server
from penstock.host.listen import Written, as_options, is_loopback, listening_socket, url_of
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.feed_reading import StageWatch
from penstock.web.pages import AnyWatch
from penstock.web.reading import PipelineWatch

HOST_DEFAULT = "127.0.0.1"
PORT_DEFAULT = 8765
END_WITHIN_S = 10.0


class PipelinesAlike(PenstockError):
    """Two of the files have the same pipeline name."""

    code = "WB01"


class ServerNotStarted(PenstockError):
    """The web server could not be started."""

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
        with http_server(
            interface.app,
            listener,
            name="web",
            end_requests_s=3,
            end_within_s=END_WITHIN_S,
            not_started=_not_started,
            end_streams=ended.set,
        ):
            yield Served(url=f"{url_of('http', options.host, port)}/", made_token=made)
    finally:
        interface.close()
        listener.close()


def _watch(config: Config) -> AnyWatch:
    return PipelineWatch(config) if config.stage is None else StageWatch(config)


def _not_started() -> ServerNotStarted:
    return ServerNotStarted(
        "the web server did not start", hint="Run the command again with --verbose."
    )


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
