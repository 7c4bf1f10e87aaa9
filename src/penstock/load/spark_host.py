"""Process that runs the Spark that several pipelines share, and starts it again after a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from penstock.load.session import SessionKeeper, SessionOptions
from penstock.load.shared_spark import (
    Address,
    Failure,
    remove_address,
    write_address,
    write_failure,
)
from penstock.model import PenstockError

logger = structlog.get_logger(__name__)

LOOK_S = 1.0
RETRY_S = 10.0


def host_spark(
    options: SessionOptions, place: Path, stop: Callable[[], bool], wait: Callable[[float], object]
) -> None:
    """Run Spark until stopped; say in `place` where it listens, or why it does not start.

    Args:
        options: How Spark is started.
        place: The directory where other processes look.
        stop: Whether to end.
        wait: Waits so many seconds, less if an end is requested.
    """
    keeper = SessionKeeper(options)
    try:
        while keeper.wait(stop):
            try:
                session = keeper.get()
            except PenstockError as error:
                logger.warning("shared spark does not start", error=error.message)
                write_failure(place, Failure(error=error.message, hint=error.hint))
                wait(RETRY_S)
            else:
                write_address(place, _address_of(session.java_pid, session.gateway_parameters))
                while not (stop() or keeper.is_lost):
                    wait(LOOK_S)
                remove_address(place)
            if stop():
                return
            keeper.renew()
    finally:
        remove_address(place)
        keeper.close()


def _address_of(pid: int, parameters: tuple[int, str]) -> Address:
    port, secret = parameters
    return Address(pid=pid, port=port, secret=secret)
