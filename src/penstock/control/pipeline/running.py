"""The processes that work on a pipeline's directory, known by the locks they hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.consume.lock import LOCK_FILE
from penstock.host.files import REAL_FILES, DirectoryLock, DirectoryLocked
from penstock.host.process import holder_of
from penstock.log.layout import LOCK_NAME
from penstock.model import PenstockError
from penstock.ports.config import Config

LOAD_LOCK = "LOAD.LOCK"
RUN_LOCK = "RUN.LOCK"
FLEXCDC_LOCK = "FLEXCDC.LOCK"


class AlreadyRunning(PenstockError):
    """Another process works on this pipeline's directory."""

    code = "CT02"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """State of one process. pid: 0 if it does not run."""

    name: str
    pid: int


def processes(config: Config) -> tuple[ProcessState, ...]:
    """Return the states of the pipeline's three processes."""
    layout = config.layout
    return tuple(
        ProcessState(name=name, pid=holder_of(path))
        for name, path in (
            ("run", layout.run / RUN_LOCK),
            ("extract", layout.log / LOCK_NAME),
            ("load", layout.state / LOAD_LOCK),
        )
    )


def check_not_running(config: Config, *names: str) -> None:
    """Refuse to begin while one of these processes runs. Changes nothing.

    Raises AlreadyRunning.
    """
    for process in processes(config):
        if process.pid and process.name in names:
            raise _already_running(config, process.name, process.pid)


def _already_running(config: Config, name: str, pid: int) -> AlreadyRunning:
    return AlreadyRunning(
        f"`penstock {name}` works on {config.directory} already, as process {pid}",
        hint=f"See what it does with `penstock status {config.path.name}`, or end it: kill {pid}",
        pid=pid,
    )


def take_lock(config: Config, directory: Path, name: str) -> DirectoryLock:
    """Take the lock of one of the processes. Raises AlreadyRunning."""
    REAL_FILES.make_directory(directory)
    try:
        return DirectoryLock(directory, name)
    except DirectoryLocked as error:
        process = {RUN_LOCK: "run", LOAD_LOCK: "load", FLEXCDC_LOCK: "flexcdc run"}.get(
            name, "extract"
        )
        if name == LOCK_FILE:
            process = f"consume {directory.name}"
        pid = int(error.fields.get("holder_pid", 0))
        raise _already_running(config, process, pid) from error
