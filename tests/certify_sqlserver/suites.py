"""Suites of the project's tests, run by pytest on the server in place of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from certify.suites import SuiteResult
from certify.suites import run_suites as run_chosen
from certify_sqlserver.server import Server
from harness.servers.sqlserver_real import URL_VARIABLE

FILES = ("conformance/test_sources.py", "conformance/test_targets.py")
CHOSEN = "sqlserver"


def run_suites(
    server: Server,
    build: Path,
    *,
    chosen: str = CHOSEN,
    files: Sequence[str] = FILES,
    say: Callable[[str], None],
) -> SuiteResult:
    """Run the suites; chosen: what pytest selects by -k."""
    return run_chosen(
        build / "certify-sqlserver-suites.xml",
        {URL_VARIABLE: server.url},
        chosen=chosen,
        files=files,
        say=say,
        adopt=server.adopt_databases,
    )
