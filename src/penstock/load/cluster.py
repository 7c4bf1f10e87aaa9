"""Check a cluster before rows go through it, with a task on every executor.

Each task reports its versions, reads a file of the pipeline's directory, and connects to both
servers. Not here: the caller (`control/doctor/cluster.py`).
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from penstock.host.files import REAL_FILES
from penstock.host.listen import is_loopback
from penstock.load.distributions import needed_by_workers
from penstock.load.session import Session
from penstock.model import PenstockError

CONNECT_TIMEOUT_S = 5.0
# So long a task stays, so that the next one goes to another executor.
STAY_S = 0.2
TASKS_PER_SLOT = 2
NONCE_NAME = "cluster.nonce"


class ClusterUnfit(PenstockError):
    """An executor lacks something that the driver has. fields: host, and the missing thing."""

    code = "LD14"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Requirements for every executor.

    Attributes:
        addresses: by section of the file; one of each must answer.
        files: paths that URLs name.
        machine: name of the driver's machine.
        nonce_path: None if they need nothing from the pipeline's directory.
    """

    nonce_path: Path | None
    nonce: str
    addresses: Mapping[str, tuple[tuple[str, int], ...]]
    files: tuple[str, ...]
    versions: Mapping[str, str]
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Facts about one executor. lacks: sentences about missing things; empty if nothing
    is missing.
    """

    host: str
    machine: str
    process: int
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


def machine_name() -> str:
    """Return a name that only processes with the same kernel and network share."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{kernel} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def versions_here() -> dict[str, str]:
    """Return the versions of Python, pyspark, penstock, and the packages it requires in workers."""
    found = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "pyspark": pyspark.__version__,
    }
    return found | {one.name: one.version for one in needed_by_workers()}


def look(session: Session, wanted: Wanted) -> list[Executor]:
    """Run the checks on every executor, and return the result of each."""
    count = TASKS_PER_SLOT * session.parallelism
    found = session.run([[wanted]] * count, examine, description="looking at the executors")
    return list({(one.machine, one.process): one for one in found}.values())


def examine(tasks: Iterator[Wanted]) -> Iterable[Executor]:
    """Check an executor; Spark calls this function."""
    for wanted in tasks:
        versions = versions_here()
        machine = machine_name()
        yield Executor(
            host=socket.gethostname(),
            machine=machine,
            process=os.getppid(),
            versions=versions,
            lacks=tuple(_lacks(wanted, versions, machine)),
        )
        time.sleep(STAY_S)


def _lacks(wanted: Wanted, versions: Mapping[str, str], machine: str) -> Iterator[str]:
    for name, here in wanted.versions.items():
        there = versions.get(name)
        if there != here:
            yield f"has {name} {there or '(not installed)'}, the driver {here}"
    if wanted.nonce_path is not None and (said := _directory(wanted.nonce_path, wanted.nonce)):
        yield said
    for path in wanted.files:
        if not os.access(path, os.R_OK):
            yield f"cannot read {path}, which a URL names"
    for section, addresses in wanted.addresses.items():
        if machine != wanted.machine and all(is_loopback(host) for host, _ in addresses):
            yield f"would look for {section} on itself: the file says {addresses[0][0]}"
        elif said := _unreachable(addresses):
            yield f"cannot reach {section}: {said}"


def _directory(path: Path, nonce: str) -> str:
    """Return what is wrong with the directory in which a file must have this content; empty if
    nothing is.
    """
    try:
        found = path.read_text(encoding="ascii")
    except OSError as error:
        return f"cannot read the pipeline's directory: {error.strerror}: {path.parent}"
    return "" if found == nonce else f"sees another directory at {path.parent}"


def reachable(addresses: Iterable[tuple[str, int]]) -> bool:
    """Return whether one of the addresses answers from here."""
    return not _unreachable(addresses)


def _unreachable(addresses: Iterable[tuple[str, int]]) -> str:
    """Return why none of the addresses answers; empty if one does."""
    said = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            said.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return ""
    return "; ".join(said)


@contextmanager
def nonce_in(directory: Path) -> Iterator[tuple[Path, str]]:
    """Keep a file with a unique text in a directory while executors check.

    A missing directory is created for that time.
    """
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    REAL_FILES.make_directory(directory)
    path, nonce = directory / NONCE_NAME, secrets.token_hex(16)
    path.write_text(nonce, encoding="ascii")
    try:
        yield path, nonce
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # it has come into use
            for one in missing:
                one.rmdir()
