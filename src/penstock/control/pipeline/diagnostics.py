"""Diagnostics: the output of `logger`. One line per state change, never values of rows.

Not here: messages to users (`display.py`) and the change log (`penstock.log`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import structlog
from structlog.typing import Processor

FILE_BYTES_MAX = 16 * 2**20
PROCESSORS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    structlog.processors.LogfmtRenderer(
        key_order=["timestamp", "level", "event"], bool_as_flag=False
    ),
]


def open_diagnostics(path: Path) -> IO[str]:
    """Open a diagnostics file for appending; a large one is put aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > FILE_BYTES_MAX:
        path.replace(path.with_suffix(path.suffix + ".1"))
    return path.open("a", encoding="utf-8", buffering=1)


class _Tee:
    """Writer of each line to every stream that wants it and has a reader.

    A child of `penstock run` writes into a pipe. After kill -9 of the parent it has no reader: the
    work then ends in order, on a signal, and never because of a line that it could not write.
    """

    def __init__(self, streams: list[IO[str]]) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        self._each(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._each(lambda stream: stream.flush())

    def _each(self, does: Callable[[IO[str]], object]) -> None:
        for stream in self._streams:
            try:
                does(stream)
            except BrokenPipeError:
                self._streams = [other for other in self._streams if other is not stream]


def configure_diagnostics(*, verbose: bool, file: IO[str] | None = None) -> None:
    """Send diagnostics to `file`, and to standard error when verbose; without either, nowhere.

    Lines are `time level phrase key=value ...`. Level: info; debug when verbose.
    """
    streams: list[IO[str]] = [stream for stream in (file,) if stream is not None]
    if verbose:
        streams.append(sys.stderr)
    level = logging.DEBUG if verbose else logging.INFO
    structlog.configure(
        processors=PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(level if streams else logging.CRITICAL),
        logger_factory=structlog.WriteLoggerFactory(file=_Tee(streams)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def keep_quiet() -> None:
    """Send diagnostics nowhere if nothing else was configured.

    Otherwise a program that imports penstock would get structlog's default: lines on its standard
    output.
    """
    if not structlog.is_configured():
        configure_diagnostics(verbose=False)


def has_own_diagnostics() -> bool:
    """Return whether the program that imports penstock has configured structlog for its lines."""
    return structlog.is_configured() and structlog.get_config()["processors"] is not PROCESSORS


@contextmanager
def diagnostics_to(path: Path, *, verbose: bool) -> Iterator[None]:
    """Send diagnostics to a file during the block, then to the previous place again.

    They stay with a program that has configured structlog: its own lines would go to the file, too.
    """
    if has_own_diagnostics():
        yield
        return
    was_configured, before = structlog.is_configured(), structlog.get_config()
    with open_diagnostics(path) as file:
        configure_diagnostics(verbose=verbose, file=file)
        try:
            yield
        finally:
            if was_configured:
                structlog.configure(**before)
            else:
                structlog.reset_defaults()
