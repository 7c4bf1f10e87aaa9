"""A Spark cluster's executors: checks that they can do a pipeline's work, and their archive.

The load lets its executors look around at its start, in its own session, before any row is sent
there; `penstock doctor` does so in a session of its own (PK24). The archive for `spark.archives`
has penstock with its compiled kernels and its imports in workers, as they are installed here: the
same versions by construction. Not in it: Python itself, and pyspark, which is part of Spark.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import Distribution
from pathlib import Path

import penstock
from penstock.control.pipeline.running import processes
from penstock.host.files import REAL_FILES
from penstock.host.listen import listen_at
from penstock.load.cluster import (
    ClusterUnfit,
    Executor,
    Wanted,
    look,
    machine_name,
    nonce_in,
    reachable,
    versions_here,
)
from penstock.load.distributions import OWN, needed_by_workers
from penstock.load.session import Session
from penstock.model import PenstockError
from penstock.ports.checks import Checks, Finding, Severity, Side, fix_of
from penstock.ports.config import Config, LogPath, snapshot_address
from penstock.ports.registry import Reach, reach_of

HINT = "docs/cluster.md says what every machine of the cluster needs."
Addresses = tuple[tuple[str, int], ...]
NO_SOCKET = "Name host and port of the server in the URL."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Deficiency of a cluster. host: of the executor, empty if it is in the pipeline file."""

    what: str
    hint: str
    host: str = ""


def check_cluster(config: Config, session: Session) -> list[Executor]:
    """Look at every executor. Raises ClusterUnfit for the first deficient one."""
    for lack in lacks_of_urls(config):
        raise ClusterUnfit(lack.what, hint=NO_SOCKET, what=lack.what)
    found = look_around(config, session)
    for one in found:
        if one.lacks:
            more = f" (and: {'; '.join(one.lacks[1:])})" if one.lacks[1:] else ""
            raise ClusterUnfit(
                f"an executor on {one.host} {one.lacks[0]}{more}",
                hint=HINT,
                host=one.host,
                what=one.lacks[0],
            )
    return found


def lacks_of_urls(config: Config) -> Iterator[Lack]:
    """Yield the deficiencies that are visible without asking an executor."""
    for section, need in _needs(config).items():
        if need.socket:
            yield Lack(
                what=f"{section} names a socket file ({need.socket}), which executors on other "
                "machines do not have",
                hint=NO_SOCKET,
            )


def lacks_of(found: list[Executor]) -> Iterator[Lack]:
    """Yield the deficiencies that executors reported, each of them once."""
    for one in found:
        for what in one.lacks:
            yield Lack(what=f"an executor on {one.host} {what}", hint=HINT, host=one.host)


def look_around(config: Config, session: Session) -> list[Executor]:
    """Let every executor look around, with a file in the pipeline's directory meanwhile."""
    needs = _needs(config)
    with nonce_in(config.layout.run) as (path, nonce), _snapshots_there(config) as snapshots:
        return look(
            session,
            Wanted(
                nonce_path=None if config.spark.log is LogPath.SHIP else path.absolute(),
                nonce=nonce,
                # An address that this machine cannot reach either is an outage, which passes.
                addresses={
                    section: need.addresses
                    for section, need in needs.items()
                    if need.addresses and reachable(need.addresses)
                }
                | snapshots,
                files=tuple(path for need in needs.values() for path in need.files),
                versions=versions_here(),
                machine=machine_name(),
            ),
        )


@contextmanager
def _snapshots_there(config: Config) -> Iterator[dict[str, Addresses]]:
    """Listen where executors will read snapshots, if they do so through this machine.

    Raises ListenFailed.
    """
    if not (config.pipeline.mode.has_data and config.source.engine.lends_snapshots):
        yield {}
        return
    at = snapshot_address(config.spark)
    with listen_at(at) as listener:
        yield {"spark.snapshotAddress": ((at.host, int(listener.getsockname()[1])),)}


def _needs(config: Config) -> Mapping[str, Reach]:
    """Return the requirements of each section's URL, keyed by section name."""
    sections = {"source.url": config.source.url}
    if config.has_target:
        sections["target.url"] = config.target.url
    return {section: reach_of(url) for section, url in sections.items()}


CODE = "PK24"
CLUSTER_CHECKS = Checks(Side.HOST)
WHY = "bulk load and change loader run on these executors"


@CLUSTER_CHECKS.check(CODE, "executors of the cluster", load_only=True)
def executors(config: Config) -> Iterator[Finding]:
    """The executors must start, and have the same versions, the directory and both servers."""
    from penstock.load.session import session_options, start_session

    if session_options(config).is_local:
        return

    def of(lack: Lack) -> Finding:
        return _report(Severity.ERROR, lack.what, WHY, lack.hint)

    yield from map(of, lacks_of_urls(config))
    if any(one.name == "load" and one.pid for one in processes(config)):
        yield _report(
            Severity.INFO,
            "the executors are not looked at: the load runs, and has them",
            "they were looked at when it began",
        )
        return
    with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as folder:
        options = replace(session_options(config), work_directory=Path(folder))
        try:
            with start_session(options) as session:
                found = look_around(config, session)
        except PenstockError as error:
            yield _report(Severity.ERROR, f"{error.code}: {error.message}", WHY, fix_of(error))
            return
    yield from map(of, lacks_of(found))
    for one in found:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        state = "lacks something" if one.lacks else "has all that it needs"
        yield _report(Severity.INFO, f"an executor on {one.host} {state}", f"it has {versions}")


def _report(severity: Severity, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=CODE, severity=severity, side=Side.HOST, what=what, why=why, command=command
    )


OWN_SUFFIXES = frozenset({".py", ".so", ".typed"})


def write_archive(path: Path) -> dict[str, str]:
    """Write the archive, replacing an existing one; return its packages with their versions.

    Raises FileFailed, DiskFull.
    """
    found = {one.name: one for one in needed_by_workers()}
    making = path.with_name(f"{path.name}.tmp")
    try:
        with tarfile.open(making, "w:gz", compresslevel=1) as archive:
            for file in _own_files():
                archive.add(file, file.relative_to(_root().parent), filter=_anonymous)
            for one in found.values():
                for file, name in _files(one):
                    archive.add(file, name, filter=_anonymous)
        REAL_FILES.rename(making, path)
    finally:
        making.unlink(missing_ok=True)
    return {name: one.version for name, one in sorted(found.items())}


def properties(path: Path) -> dict[str, str]:
    """Return the Spark properties with which executors use it."""
    return {
        "spark.archives": f"{path.absolute()}#{OWN}",
        "spark.executorEnv.PYTHONPATH": OWN,
    }


def _root() -> Path:
    return Path(penstock.__file__).parent


def _own_files() -> Iterator[Path]:
    """Yield the files of the package itself, which may be a checkout."""
    for file in sorted(_root().rglob("*")):
        if file.suffix in OWN_SUFFIXES and "__pycache__" not in file.parts:
            yield file


def _files(found: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield a distribution's files, with their places below the folder of its installation."""
    for file in found.files or ():
        is_ours = found.name == OWN and ".dist-info" not in file.parts[0]
        if ".." in file.parts or "__pycache__" in file.parts or is_ours:
            continue
        path = Path(str(file.locate()))
        if path.is_file():
            yield path, str(file)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
