"""Run empty jobs, so that the first real one finds a warm JVM.

Java compiles code that it has run often: the first jobs take more CPU than those after some
dozens. Not here: running a job (`session.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

logger = structlog.get_logger(__name__)

WARM_UP_JOBS = 40


class WarmUp:
    """Empty jobs, one after the other, up to their number or until they are ended."""

    def __init__(self) -> None:
        """Keep the settings; nothing runs yet."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Begin, in a separate thread."""
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._work, args=(job,), name="spark-warm-up", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Begin no further job, and wait for the running one."""
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
