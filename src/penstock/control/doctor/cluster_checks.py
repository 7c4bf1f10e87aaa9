"""Doctor's check of a Spark cluster (PK24): its executors look around, as at the start of a load.

Only `penstock doctor` does it: a starting load lets its executors look around in its own session.
Not here: the points that they check (`cluster.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.control.pipeline.running import processes
from penstock.model import PenstockError
from penstock.ports.checks import Checks, Finding, Severity, Side, fix_of
from penstock.ports.config import Config

CODE = "PK24"
CLUSTER_CHECKS = Checks(Side.HOST)
WHY = "bulk load and change loader run on these executors"


@CLUSTER_CHECKS.check(CODE, "executors of the cluster", load_only=True)
def executors(config: Config) -> Iterator[Finding]:
    """The executors must start, and have the same versions, the directory and both servers."""
    from penstock.control.doctor.cluster import Lack, lacks_of, lacks_of_urls, look_around
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
