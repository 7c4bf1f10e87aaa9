"""FlexCDC's services around its work: pid file, background, error file, restarts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from penstock.control.consumers.flexcdc import open_flexcdc
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.host.process import holder_of, this_program
from penstock.model import PenstockError


class FlexCdcRunning(PenstockError):
    """The pid file names a running process of ours."""

    code = "FX55"


class FlexCdcFileUnusable(PenstockError):
    """A file that the settings or the command line name cannot be written. fields: key, path."""

    code = "FX57"


def _open_named(path: Path, key: str, mode: str) -> IO[str]:
    """Open a file that a setting names. Raises FlexCdcFileUnusable."""
    try:
        opened: IO[str] = path.open(mode, encoding="utf-8", buffering=1)
    except OSError as error:
        raise FlexCdcFileUnusable(
            f"{key}: {path} cannot be written: {error.strerror}",
            hint=f"Create its folder, mkdir -p {path.parent}, and let this user write there; or "
            f"correct {key}. Then give the same command again.",
            key=key,
            path=str(path),
        ) from error
    return opened


@contextmanager
def pid_file(path: Path | None, say: Callable[[str], object]) -> Iterator[None]:
    """Keep our process id in a file during the block; None: nowhere. Raises FlexCdcRunning."""
    if path is None:
        yield
        return
    if path.exists():
        holder = holder_of(path)
        if holder and holder != os.getpid():
            raise FlexCdcRunning(
                f"Already running! process {holder}, says {path}",
                hint=f"End it first: kill {holder}",
                pid=holder,
            )
        say("Stale lockfile detected.")
    with _open_named(path, "--pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def as_daemon(pid: Path | None) -> None:
    """Continue in the background: the process that was started ends with 0."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    if pid is not None:
        pid.write_text(f"{os.getpid()}\n", encoding="ascii")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


@contextmanager
def error_log(file: Path) -> Iterator[None]:
    """Write the error that ends the block into the file that `error_log` names, emptied first."""
    opened = open_flexcdc(file)
    path = opened.file.absolute().parent / opened.settings.error_log
    with _open_named(path, "error_log", "w") as errors:
        try:
            yield
        except PenstockError as error:
            errors.write(f"{error.code}: {error.message}\n{error.hint}\n")
            raise
        except Exception as error:
            errors.write(f"{type(error).__name__}: {error}\n")
            raise


POLL_S = 0.2


def run_safely(file: Path, options: Sequence[str]) -> None:
    """Run `penstock flexcdc run` with these options until it ends with 0, as consumer_safe.sh does.

    Each failure is noted in failure_log_file and mailed to failure_email_address, if there is a
    program sendmail; the next start is failure_sleep_time seconds later.
    """
    settings = open_flexcdc(file).settings
    log = file.absolute().parent / settings.failure_log_file
    _open_named(log, "failure_log_file", "a").close()
    stop = StopRequest()
    with stop_on_signals(stop, hurry=False):
        before = signal.signal(signal.SIGHUP, lambda *_: stop.ask())
        try:
            while not stop():
                code = _once(
                    [*this_program(), "flexcdc", "--ini", str(file), "run", *options], stop
                )
                if code == 0 or stop():
                    return
                _note(log, settings.failure_email_address, code)
                stop.wait(settings.failure_sleep_time)
        finally:
            signal.signal(signal.SIGHUP, before)


def _once(arguments: Sequence[str], stop: StopRequest) -> int:
    process = subprocess.Popen(list(arguments), stdin=subprocess.DEVNULL, start_new_session=True)
    told = False
    while process.poll() is None:
        if stop() and not told:
            process.send_signal(signal.SIGTERM)
            told = True
        stop.wait(POLL_S) if not told else process.wait()
    return process.returncode


def _note(log: Path, address: str, code: int) -> None:
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} penstock flexcdc run ended with exit code {code}"
    with log.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    sendmail = shutil.which("sendmail")
    if sendmail is not None and address:
        mail = f"To: {address}\nSubject: FlexCDC failed\n\n{text}\n"
        done = subprocess.run([sendmail, "-t"], input=mail.encode(), check=False)
        if done.returncode:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"sendmail ended with exit code {done.returncode}\n")
