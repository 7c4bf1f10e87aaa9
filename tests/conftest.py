"""Parts that all tests share: fixture modules, hypothesis profiles, and the server marker."""

from __future__ import annotations

import gc
import operator
import os
import re
import signal
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "plugins.shared",
    "plugins.postgres",
    "plugins.doctor",
    "plugins.java",
    "plugins.ignite_node",
    "plugins.ignite_live",
    "plugins.mysql",
    "plugins.mysql_loader",
    "plugins.sqlserver",
    "plugins.row_apply",
    "plugins.cluster",
    "plugins.standalone",
    "plugins.draw",
    "plugins.times",
    "plugins.toy",
]

# Both cores are busy: a deadline per example would only measure other processes.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("check", parent=settings.get_profile("default"), max_examples=25)
settings.register_profile("ci", parent=settings.get_profile("default"), max_examples=60)
settings.register_profile("fuzz", parent=settings.get_profile("default"), max_examples=30)
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "default"))

_SPEC = re.compile(r"(postgres|mysql|mariadb)(?:\s*(>=|<=|==|<|>)\s*(\d+))?\Z")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


class _NamesFailuresAtOnce:
    """Reporter of each failure at once, as a run that is stopped from outside prints no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            cause = getattr(report.longrepr, "reprcrash", None)
            self._terminal.ensure_newline()
            self._terminal.write_line(f"failed in {report.when}: {report.nodeid}", red=True)
            if cause is not None:
                self._terminal.write_line(f"    {cause.message.splitlines()[0][:300]}")


@pytest.hookimpl(trylast=True)  # the terminal reporter has its own pytest_configure
def pytest_configure(config: pytest.Config) -> None:
    """Handle Ctrl-C, and report failures at once, in the process that prints."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores it for background jobs; programs under test would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_NamesFailuresAtOnce(terminal))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off the modules and tests that are collected.

    They live until the end, and it would look through all of them again and again: that made the
    tests that parse source several times slower.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _diagnostics_as_before() -> Iterator[None]:
    """Restore the diagnostics after a test; any command that runs in process changes them."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that do not apply to a server."""
    kept, left_out = [], []
    for item in items:
        marks = item.iter_markers("server")
        applies = all(_applies(str(mark.args[0]), _params(item)) for mark in marks)
        (kept if applies else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _params(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return dict(callspec.params) if callspec else {}


def _applies(spec: str, params: Mapping[str, Any]) -> bool:
    match = _SPEC.match(spec)
    if match is None:
        raise pytest.UsageError(f"server marker not understood: {spec!r}")
    kind, comparison, wanted = match.groups()
    if kind != "postgres":
        if comparison is not None or "mysql_kind" not in params:
            raise pytest.UsageError(
                f"marked {spec!r}: name mysql or mariadb, and use plugins.mysql"
            )
        return bool(params["mysql_kind"] == kind)
    if comparison is None:
        return True
    version = params.get("postgres_version")
    if version is None:
        raise pytest.UsageError(f"marked {spec!r}, but uses no fixture of plugins.postgres")
    return bool(_COMPARE[comparison](version, int(wanted)))
