"""Jobs that do nothing, so that the first that somebody wants finds a JVM that is warm.

Java compiles what it has run often: the first jobs take more of its CPU than those after some
dozens. Not here: what runs a job (`session.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

logger = structlog.get_logger(__name__)

WARM_UP_JOBS = 40


class WarmUp:
    """Jobs that do nothing, one after the other, until their number is done or they are ended."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Begin, in a thread of its own."""
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._work, args=(job,), name="spark-warm-up", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Begin no further job, and wait until the one at work is done."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self, job: Callable[[], object]) -> None:
        began, count = time.monotonic(), 0
        while count < WARM_UP_JOBS and not self._ended.is_set():
            try:
                job()
            except Exception as error:
                # The first job that is needed meets it, too, and raises it.
                logger.info("spark is not warm", reason=str(error))
                return
            count += 1
        logger.info("spark is warm", jobs=count, seconds=round(time.monotonic() - began, 2))
