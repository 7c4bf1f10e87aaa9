"""A running HTTP server: its thread, its own log, its end. Needs uvicorn, of extra web or stage."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import uvicorn

from penstock.host.clock import REAL_CLOCK
from penstock.host.supervised import ONCE, SupervisedThread
from penstock.model import PenstockError

logger = structlog.get_logger()
START_WITHIN_S = 10.0


class _Quiet(logging.Handler):
    """Handler that sends the library's own log to the diagnostics, not between our lines."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        logger.warning(self._name, said=record.getMessage(), exc_info=record.exc_info)


@contextmanager
def http_server(
    app: Any,
    listener: socket.socket,
    *,
    name: str,
    end_requests_s: float,
    end_within_s: float,
    not_started: Callable[[], PenstockError],
    end_streams: Callable[[], None] = lambda: None,
    certificate: tuple[str, str] | None = None,
) -> Iterator[None]:
    """Serve while the block runs.

    Args:
        app: The ASGI application.
        listener: A listening socket.
        name: Name of the thread and of the server in the diagnostics.
        end_requests_s: Time that requests have to end at the end.
        end_within_s: Time that the thread has to end.
        not_started: Returns the error to raise if the server does not start.
        end_streams: Called at the end, so that answers without an end do end.
        certificate: Files of the certificate and of its private key; None: not encrypted.
    """
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [_Quiet(name)], False
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,  # paths may have tokens
            server_header=False,
            timeout_graceful_shutdown=int(end_requests_s),
            ssl_certfile=None if certificate is None else certificate[0],
            ssl_keyfile=None if certificate is None else certificate[1],
        )
    )
    # Not on the main thread: there the library would handle the signals, which penstock handles.
    thread = SupervisedThread(
        name, lambda: server.run(sockets=[listener]), wait=REAL_CLOCK.sleep, tries=ONCE
    )
    thread.start()
    try:
        _wait_started(server, thread, not_started)
        yield
    finally:
        end_streams()
        server.should_exit = True
        thread.join(end_within_s)
        if thread.is_alive():
            logger.warning("server does not end", server=name)


def _wait_started(
    server: uvicorn.Server, thread: SupervisedThread, not_started: Callable[[], PenstockError]
) -> None:
    deadline_s = REAL_CLOCK.monotonic_s() + START_WITHIN_S
    while not server.started:
        if not thread.is_alive() or REAL_CLOCK.monotonic_s() > deadline_s:
            raise not_started()
        REAL_CLOCK.sleep(0.01)
