"""What all tests share: fixture modules, hypothesis profiles, and the server marker."""

from __future__ import annotations

import operator
import os
import re
from functools import cache

import psycopg
import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["fix_postgres"]

# Two busy cores: a deadline per example would only measure the neighbours.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", parent=settings.get_profile("default"), max_examples=200)
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "default"))

_SPEC = re.compile(r"postgres(?:\s*(>=|<=|==|<|>)\s*(\d+))?\Z")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that do not apply to the server's version; they run with the other one."""
    kept, left_out = [], []
    for item in items:
        marks = item.iter_markers("server")
        applies = all(_applies(str(mark.args[0])) for mark in marks)
        (kept if applies else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _applies(spec: str) -> bool:
    match = _SPEC.match(spec)
    if match is None:
        raise pytest.UsageError(f"server marker not understood: {spec!r}")
    comparison, version = match.groups()
    return comparison is None or _COMPARE[comparison](_version(), int(version))


@cache
def _version() -> int:
    dsn = os.environ.get("PENSTOCK_TEST_POSTGRES_DSN", "")
    if not dsn:
        return int(os.environ.get("PENSTOCK_TEST_POSTGRES", "18"))
    with psycopg.connect(dsn) as connection:
        return connection.info.server_version // 10_000
