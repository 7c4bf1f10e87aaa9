"""Lock of a consumer's directory: one process at a time delivers its events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, DirectoryLocked, Files, Lock
from penstock.model import PenstockError

LOCK_FILE = "lock"
ATTEMPT_INTERVAL_S = 1.0

logger = structlog.get_logger(__name__)


class ConsumerLocked(PenstockError):
    """Another process has the lock of a consumer's directory. Fields: path, holder_pid."""

    code = "CN07"
    retry = "backoff"


def take_lock(
    directory: Path,
    *,
    timeout_s: float | None,
    stop: Callable[[], bool] = lambda: False,
    files: Files = REAL_FILES,
    clock: Clock = REAL_CLOCK,
) -> Lock | None:
    """Take the lock of a consumer; return None when asked to stop meanwhile.

    Raises ConsumerLocked.

    Args:
        directory: the consumer's.
        timeout_s: maximum wait; None waits without a limit.
        stop: returns whether to stop.
        files: the disk.
        clock: the clock.
    """
    began_s = clock.monotonic_s()
    while not stop():
        try:
            return files.lock(directory, LOCK_FILE)
        except DirectoryLocked as error:
            pid = int(error.fields.get("holder_pid", 0))
        waited_s = clock.monotonic_s() - began_s
        left_s = ATTEMPT_INTERVAL_S if timeout_s is None else timeout_s - waited_s
        if timeout_s is not None:
            logger.warning(
                "another process runs the consumer",
                consumer=directory.name,
                pid=pid,
                waited_s=round(waited_s),
            )
        if left_s <= 0:
            raise ConsumerLocked(
                f"another process runs consumer {directory.name}: it holds {directory / LOCK_FILE}",
                hint=f"Process {pid or 'unknown'} runs this consumer: end it (kill "
                f"{pid or '<pid>'}), or start this one with --standby, to take over when it ends.",
                path=str(directory),
                holder_pid=pid,
            )
        _sleep(clock, min(ATTEMPT_INTERVAL_S, left_s), stop)
    return None


def _sleep(clock: Clock, seconds: float, stop: Callable[[], bool]) -> None:
    until_s = clock.monotonic_s() + seconds
    while not stop() and (left_s := until_s - clock.monotonic_s()) > 0:
        clock.sleep(min(left_s, 0.1))
