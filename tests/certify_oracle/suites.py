"""Suites of the project's tests, run by pytest on the database in place of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from certify.suites import SuiteResult
from certify.suites import run_suites as run_chosen
from certify_oracle.server import Server
from harness.servers.oracle_real import PREFIX, URL_VARIABLE

FILES = ("conformance/test_sources.py", "conformance/test_targets.py")
CHOSEN = "oracle"
LEFT = "SELECT USERNAME FROM ALL_USERS WHERE USERNAME LIKE :mask"


def run_suites(
    server: Server,
    build: Path,
    *,
    chosen: str = CHOSEN,
    files: Sequence[str] = FILES,
    say: Callable[[str], None],
) -> SuiteResult:
    """Run the suites; chosen: what pytest selects by -k."""

    def adopt(pid: int) -> None:
        with server.open() as session:
            found = session.execute(LEFT, mask=f"{PREFIX}_{pid}_%")
        server.schemas.extend(str(name) for (name,) in found)

    return run_chosen(
        build / "certify-oracle-suites.xml",
        {URL_VARIABLE: server.url},
        chosen=chosen,
        files=files,
        say=say,
        adopt=adopt,
    )
