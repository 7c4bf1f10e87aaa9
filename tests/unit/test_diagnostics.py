"""Destination of diagnostics, and for how long they are kept."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from penstock.control.pipeline.diagnostics import (
    configure_diagnostics,
    diagnostics_to,
    open_diagnostics,
)

logger = structlog.get_logger()


def test_diagnostics_go_to_a_file_for_a_while(tmp_path: Path) -> None:
    """Afterwards they are written to the earlier place; the closed file gets no more lines."""
    outer, inner = tmp_path / "outer.log", tmp_path / "inner.log"
    before = structlog.get_config()
    with diagnostics_to(outer, verbose=False):
        with diagnostics_to(inner, verbose=False):
            logger.info("phrase inside", number=1)
        logger.info("phrase behind", number=2)
    assert structlog.get_config() == before
    assert "phrase inside" in inner.read_text()
    assert "number=1" in inner.read_text()
    assert "phrase behind" in outer.read_text()
    assert "inside" not in outer.read_text()


def test_a_large_diagnostics_file_is_put_aside(tmp_path: Path) -> None:
    """Above 16 MiB a new file begins, and the old one is kept beside it, once."""
    path = tmp_path / "run.log"
    path.write_bytes(b"x" * (16 * 2**20 + 1))
    with open_diagnostics(path) as file:
        file.write("new\n")
    assert path.read_text() == "new\n"
    assert (tmp_path / "run.log.1").stat().st_size == 16 * 2**20 + 1


def test_work_goes_on_where_nobody_reads_the_diagnostics() -> None:
    """After kill -9 of `penstock run` its two processes write into a pipe without a reader."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w", buffering=1) as pipe:
        configure_diagnostics(verbose=False, file=pipe)
        try:
            logger.info("this is read")
            assert b"this is read" in os.read(reads, 4096)
            os.close(reads)
            logger.info("this is dropped")
            logger.info("nor now")
        finally:
            structlog.reset_defaults()
            os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())  # the rest can be flushed
