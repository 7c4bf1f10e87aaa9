"""A pipeline file for a benchmark's two servers, and a Spark session for it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Measurement
from penstock.control.pipeline.config import load_config
from penstock.load.session import Session, SessionOptions, start_session
from penstock.ports.config import Config

TEMPLATE = """
[pipeline]
name = "bench"
mode = "{mode}"
directory = "pipeline"
[source]
url = "{source}"
tables = ["{tables}"]
[target]
url = "{target}"
[changeExtractor]
exitWhenIdle = {exit_when_idle}
idleWaitSeconds = 1
flushIntervalSeconds = {flush_interval_s}
{own_slot}
[changeLoader]
maxFilesPerBatch = {files_per_batch}
applySessions = {apply_sessions}
[spark]
master = "local[2]"
"""


def write_config(
    directory: Path,
    source: str,
    target: str,
    *,
    mode: str = "data+change",
    tables: str = "public.*",
    exit_when_idle: bool = True,
    flush_interval_s: float = 5,
    files_per_batch: int = 30,
    slot: str = "",
    publication: str = "",
    apply_sessions: int = 1,
) -> Path:
    """Write `bench.toml` into the directory; return its path. slot: of a PostgreSQL source."""
    own_slot = f'replicationSlot = "{slot}"\npublication = "{publication}"' if slot else ""
    path = directory / "bench.toml"
    path.write_text(
        TEMPLATE.format(
            mode=mode,
            source=source,
            target=target,
            tables=tables,
            exit_when_idle=str(exit_when_idle).lower(),
            flush_interval_s=flush_interval_s,
            files_per_batch=files_per_batch,
            own_slot=own_slot,
            apply_sessions=apply_sessions,
        )
    )
    return path


def read_config(directory: Path, source: str, target: str, *, mode: str = "data+change") -> Config:
    """Return the same as `Config`."""
    return load_config(write_config(directory, source, target, mode=mode))


@contextlib.contextmanager
def spark(directory: Path, master: str = "local[2]") -> Iterator[Session]:
    """Provide a warm session; its start is printed, not counted."""
    began = time.monotonic()
    with start_session(SessionOptions(master=master, work_directory=directory)) as session:
        print(f"spark session started in {time.monotonic() - began:.1f} s", flush=True)
        yield session


def since(began: float, **extra: float) -> Measurement:
    """Return a measurement of wall time alone."""
    return Measurement(elapsed_s=time.monotonic() - began, extra=extra)


class Running:
    """`penstock run` as a user starts it, for the time of a with block; stopped by SIGTERM."""

    def __init__(self, file: Path) -> None:
        """Store the pipeline file; `pipeline/run` beside it has the reports of the halves."""
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Running:
        """Start, and wait until the loader waits, its Spark is warm, and the extractor streams."""
        began = time.monotonic()
        with (self._file.parent / "run.out").open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        run = self._file.parent / "pipeline" / "run"
        while not (
            _state(run / "load.json") == "waiting"
            and _is_warm(run)
            and _state(run / "extract.json") == "streaming"
        ):
            if self._process.poll() is not None:
                raise RuntimeError((self._file.parent / "run.out").read_text())
            time.sleep(0.1)
        print(f"pipeline ready in {time.monotonic() - began:.1f} s", flush=True)
        return self

    @property
    def pid(self) -> int:
        """Return the process id of `penstock run`."""
        assert self._process is not None
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        """Stop it and check that it ended well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(120) != 0:
            raise RuntimeError((self._file.parent / "run.out").read_text())


class Half:
    """One process of a pipeline for the time of a with block; stopped by SIGTERM."""

    def __init__(self, command: list[str], file: Path, *, speaks: bool = False) -> None:
        """Store the pipeline file; the process's messages go beside it.

        speaks: its standard output is for `until_said`.
        """
        self._command = command
        self._speaks = speaks
        self._file = file
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Half:
        """Start it."""
        with (self._file.parent / "half.out").open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._speaks else out,
                stderr=out,
                text=True,
            )
        return self

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self._file.parent / "half.out").read_text())
        return self._process

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._running.pid

    def until_waiting(self) -> None:
        """Wait until the loader waits for changes and its Spark session is warm."""
        began = time.monotonic()
        run = self._file.parent / "pipeline" / "run"
        while not (_state(run / "load.json") == "waiting" and _is_warm(run)):
            assert self._running
            time.sleep(0.1)
        print(f"loader ready in {time.monotonic() - began:.1f} s", flush=True)

    def until_said(self, word: str) -> None:
        """Wait for a line of its standard output."""
        output = self._running.stdout
        assert output is not None
        while output.readline().strip() != word:
            assert self._running

    def say(self, word: str) -> None:
        """Write a line to its standard input."""
        given = self._running.stdin
        assert given is not None
        given.write(word + "\n")
        given.flush()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def _is_warm(run: Path) -> bool:
    """Return whether the loader's Spark has run the jobs that make Java compile it."""
    return "spark is warm" in (run / "load.log").read_text()


def _state(file: Path) -> str:
    """Return the state in the file of a process; empty before it writes one."""
    return str(json.loads(file.read_text())["state"]) if file.exists() else ""
