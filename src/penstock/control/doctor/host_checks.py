"""Doctor's checks of this machine: kernel, Java, disk, Spark's master (PK01 to PK05)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator

from penstock.codec.kernels import all_compiled
from penstock.control.pipeline.extras import install_line, missing_extras
from penstock.host.installation import reinstall_command
from penstock.host.process import JAVA_VERSIONS, java_version
from penstock.model.whole_number import parse_whole
from penstock.ports.checks import Checks, Finding, Severity, Side
from penstock.ports.config import Config

HOST_CHECKS = Checks(Side.HOST)
EXTRA_CHECKS = Checks(Side.HOST)

MASTER_TIMEOUT_S = 5.0
DISK_FREE_BYTES_ERROR = 100 * 2**20
DISK_FREE_BYTES_WARNING = 5 * 2**30


def _report(code: str, severity: Severity, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=code, severity=severity, side=Side.HOST, what=what, why=why, command=command
    )


@HOST_CHECKS.check("PK01", "compiled kernel", change_only=True)
def kernel(_config: Config) -> Iterator[Finding]:
    """Without the compiled kernel the plain decoder runs: the same result, slower."""
    if not all_compiled():
        yield _report(
            "PK01",
            Severity.WARNING,
            "the compiled decoder is not in use; the plain Python one runs",
            "everything works, and decoding is thirty times slower or more",
            "unset PENSTOCK_PURE"
            if os.environ.get("PENSTOCK_PURE")
            else f"apt-get install gcc python3-dev && {reinstall_command()}",
        )


@EXTRA_CHECKS.check("PK25", "Python packages")
def packages(config: Config) -> Iterator[Finding]:
    """The packages of every feature that the file uses must be installed."""
    for extra, names in missing_extras(config).items():
        yield _report(
            "PK25",
            Severity.ERROR,
            f"the file uses {extra}, and {', '.join(names)} is not installed",
            "what needs it would end at its start, and be started again in vain",
            install_line([extra]),
        )


@HOST_CHECKS.check("PK02", "Java", load_only=True)
def java(_config: Config) -> Iterator[Finding]:
    """Spark runs on Java 17 or 21."""
    version = java_version()
    if version not in JAVA_VERSIONS:
        have = "no Java is found" if version is None else f"Java {version} is found"
        yield _report(
            "PK02",
            Severity.ERROR,
            f"{have}; Spark needs {' or '.join(map(str, JAVA_VERSIONS))}",
            "bulk load and change loader run on Spark",
            "apt-get install openjdk-17-jre-headless  # or set JAVA_HOME to one",
        )


@HOST_CHECKS.check("PK03", "disk space")
def disk(config: Config) -> Iterator[Finding]:
    """The change log, the spill files and Spark's scratch files need room."""
    place = config.directory
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < DISK_FREE_BYTES_WARNING:
        severity = Severity.ERROR if free < DISK_FREE_BYTES_ERROR else Severity.WARNING
        yield _report(
            "PK03",
            severity,
            f"{free / 2**30:.1f} GiB are free on the disk of {config.directory}",
            "the change log stops when the disk is full, and the source keeps its WAL meanwhile",
            "set changeLoader.removeFiles = true, or free some space",
        )


@HOST_CHECKS.check("PK04", "Spark's master", load_only=True)
def spark_master(config: Config) -> Iterator[Finding]:
    """A standalone master that [spark] names must answer at one of its addresses."""
    places = _addresses(config.spark.master)
    said = []
    for host, port in places:
        try:
            socket.create_connection((host, port), MASTER_TIMEOUT_S).close()
            return
        except OSError as error:
            said.append(f"{host}:{port}: {error.strerror or error}")
    if places:
        yield _report(
            "PK04",
            Severity.ERROR,
            f"Spark's master {config.spark.master} does not answer ({'; '.join(said)})",
            "bulk load and change loader run on Spark",
            'start the master, or set [spark] master = "local[*]"',
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master that a spark:// URL names, of other masters none."""
    if not master.startswith("spark://"):
        return []
    parts = (text.rpartition(":") for text in master.removeprefix("spark://").split(","))
    return [(host, parse_whole(port, 65535, otherwise=0)) for host, _, port in parts]
