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
from penstock.control.config import Config, load_config
from penstock.load.session import Session, SessionOptions, start_session

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
[changeLoader]
maxFilesPerBatch = {files_per_batch}
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
) -> Path:
    """Write `bench.toml` into the directory; returns its path."""
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
        )
    )
    return path


def read_config(directory: Path, source: str, target: str, *, mode: str = "data+change") -> Config:
    """The same as `Config`."""
    return load_config(write_config(directory, source, target, mode=mode))


@contextlib.contextmanager
def spark(directory: Path) -> Iterator[Session]:
    """A warm session; its start is printed, not counted."""
    began = time.monotonic()
    with start_session(SessionOptions(master="local[2]", work_directory=directory)) as session:
        print(f"spark session started in {time.monotonic() - began:.1f} s", flush=True)
        yield session


def since(began: float, **extra: float) -> Measurement:
    """A measurement of wall time alone."""
    return Measurement(elapsed_s=time.monotonic() - began, extra=extra)


class Running:
    """`penstock run` as a user starts it, for the time of a with block; stopped by SIGTERM."""

    def __init__(self, file: Path) -> None:
        """file: the pipeline file; `pipeline/run` beside it tells what the halves do."""
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Running:
        """Start, and wait until the loader waits for changes."""
        began = time.monotonic()
        with (self._file.parent / "run.out").open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        state = self._file.parent / "pipeline" / "run" / "load.json"
        while not (state.exists() and json.loads(state.read_text())["state"] == "waiting"):
            if self._process.poll() is not None:
                raise RuntimeError((self._file.parent / "run.out").read_text())
            time.sleep(0.1)
        print(f"pipeline ready in {time.monotonic() - began:.1f} s", flush=True)
        return self

    @property
    def pid(self) -> int:
        """Of `penstock run`."""
        assert self._process is not None
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        """Stop it and see that it ended well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(120) != 0:
            raise RuntimeError((self._file.parent / "run.out").read_text())
