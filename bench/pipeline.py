"""A pipeline file for a benchmark's two servers, and a Spark session for it."""

from __future__ import annotations

import contextlib
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
