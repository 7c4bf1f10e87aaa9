"""What all tests share: fixture modules, hypothesis profiles, and the server marker."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["fix_postgres", "fix_doctor", "fix_java", "fix_mysql", "fix_mysql_loader"]

# Two busy cores: a deadline per example would only measure the neighbours.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("check", parent=settings.get_profile("default"), max_examples=25)
settings.register_profile("ci", parent=settings.get_profile("default"), max_examples=200)
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that do not apply to the server's version; they run with the other one."""
    kept, left_out = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec else {}
        marks = item.iter_markers("server")
        applies = all(_applies(str(mark.args[0]), params) for mark in marks)
        (kept if applies else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _applies(spec: str, params: Mapping[str, Any]) -> bool:
    match = _SPEC.match(spec)
    if match is None:
        raise pytest.UsageError(f"server marker not understood: {spec!r}")
    kind, comparison, wanted = match.groups()
    if kind != "postgres":
        if comparison is not None or "mysql_kind" not in params:
            raise pytest.UsageError(f"marked {spec!r}: name mysql or mariadb, and use fix_mysql")
        return bool(params["mysql_kind"] == kind)
    if comparison is None:
        return True
    version = params.get("postgres_version")
    if version is None:
        raise pytest.UsageError(f"marked {spec!r}, but uses no fixture of fix_postgres")
    return bool(_COMPARE[comparison](version, int(wanted)))
