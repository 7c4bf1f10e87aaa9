"""The errors that ended a pipeline's processes, kept so that they can be read afterwards.

One JSON object per line in `run/errors.jsonl`, written by the process that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from penstock.control.doctor.doctor import PreflightFailed
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.process import output_is_unread
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.identity import DirectoryOfOtherPipeline, DirectoryOfOtherSource

logger = structlog.get_logger()
ERRORS_FILE = "errors.jsonl"
KEPT_BYTES = 2**18


class PastError(msgspec.Struct, frozen=True, kw_only=True):
    """Error that ended a process. at: UTC, ISO 8601. command: run, extract or load."""

    at: str
    command: str
    code: str
    error: str
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object as JSON has it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


@contextmanager
def errors_kept(config: Config, command: str, *, clock: Clock = REAL_CLOCK) -> Iterator[None]:
    """Keep the error that ends the block, if one does, and let it propagate.

    No error is kept if the pipeline's directory does not exist yet, or if a command is refused
    before anything has begun: the directory may be another pipeline's. Nor is the end of a command
    whose output has no reader any more, as in `penstock run shop.toml | head`.
    """
    try:
        yield
    except (PreflightFailed, DirectoryOfOtherPipeline, DirectoryOfOtherSource):
        raise
    except PenstockError as error:
        shown = error.as_dict()
        _keep(config, command, clock, str(shown["code"]), str(shown["error"]), error.hint)
        raise
    except Exception as error:
        if not (isinstance(error, BrokenPipeError) and output_is_unread()):
            _keep(config, command, clock, "PS99", f"unexpected {type(error).__name__}", "")
        raise


def keep_error(
    config: Config, command: str, error: PenstockError, *, clock: Clock = REAL_CLOCK
) -> None:
    """Keep an error that does not end the process, so that it can be read later."""
    _keep(config, command, clock, error.code, error.message, error.hint)


def _keep(config: Config, command: str, clock: Clock, code: str, text: str, hint: str) -> None:
    if not config.directory.is_dir():
        return
    at = datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC).isoformat()
    line = msgspec.json.encode(PastError(at=at, command=command, code=code, error=text, hint=hint))
    path = config.layout.run / ERRORS_FILE
    try:
        REAL_FILES.make_directory(path.parent)
        if path.exists() and path.stat().st_size > KEPT_BYTES:
            path.replace(path.with_suffix(".jsonl.1"))
        with path.open("ab") as file:
            file.write(line + b"\n")
    except (OSError, PenstockError) as failed:
        # The error itself must be raised, even if the disk is full.
        logger.warning("error not kept", code=code, reason=str(failed))


def past_errors(config: Config, *, count: int = 20) -> tuple[PastError, ...]:
    """Return the newest errors, newest first. A line that a full disk cut off is skipped."""
    try:
        data = REAL_FILES.read_whole(config.layout.run / ERRORS_FILE)
    except FileMissing:
        return ()
    found = []
    for line in reversed(data.splitlines()[-4 * count :]):
        try:
            found.append(msgspec.json.decode(line, type=PastError))
        except msgspec.DecodeError:
            logger.warning("line of errors not readable", file=ERRORS_FILE)
    return tuple(found[:count])
