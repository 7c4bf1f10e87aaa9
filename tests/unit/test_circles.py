"""Imports between modules in one direction: no module needs itself through others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness.modules.facts import ROOT, Facts, module_facts, read_facts

pytestmark = pytest.mark.always

SOURCES = ROOT / "src"
# These still name each other's classes in annotations only. Remove entries, never add one.
TYPES_ALONE = frozenset(
    {
        ("penstock.serve.catalog.calls", "penstock.serve.catalog.expressions"),
        ("penstock.serve.catalog.expressions", "penstock.serve.catalog.binder"),
        ("penstock.serve.catalog.tables", "penstock.serve.catalog.binder"),
        ("penstock.serve.extended", "penstock.serve.session"),
        ("penstock.serve.own_statements", "penstock.serve.session"),
        ("penstock.serve.running", "penstock.serve.session"),
        ("penstock.serve.sender", "penstock.serve.serving"),
        ("penstock.serve.server_functions", "penstock.serve.session"),
        ("penstock.serve.statistics", "penstock.serve.sender"),
        ("penstock.serve.statistics", "penstock.serve.serving"),
        ("penstock.serve.table_statement", "penstock.serve.session"),
    }
)


@cache
def find_modules(root: Path) -> dict[str, tuple[Facts, bool]]:
    """Return the facts of each module below a folder, and whether it is a package."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        known = module_facts().get(path.relative_to(ROOT)) if root == SOURCES else None
        found[name] = (known or read_facts(path.read_text(encoding="utf-8")), is_package)
    return found


def find_imports(name: str, modules: Mapping[str, tuple[Facts, bool]]) -> Iterator[str]:
    """Yield the modules that one imports, in functions and for annotations too."""
    facts, is_package = modules[name]
    for statement in facts.imports:
        if statement.source is None:
            yield from (imported for imported in statement.names if imported in modules)
            continue
        base = statement.source
        if statement.level:
            parts = name.split(".")
            parts = parts[: len(parts) - statement.level + is_package]
            base = ".".join([*parts, *([base] if base else [])])
        for imported in statement.names:
            whole = f"{base}.{imported}"
            target = whole if whole in modules else base
            if target in modules and target != name:
                yield target


def find_circle(root: Path, left_out: frozenset[tuple[str, str]] = frozenset()) -> list[str]:
    """Return the modules of one circle of imports; empty if there is none."""
    modules = find_modules(root)
    graph = {
        name: {target for target in find_imports(name, modules) if (name, target) not in left_out}
        for name in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for annotations count: a circle hidden there counts as well."""
    assert find_circle(SOURCES, TYPES_ALONE) == []


def test_the_list_of_exceptions_is_current() -> None:
    """Each exception is an import that exists."""
    modules = find_modules(SOURCES)
    assert [pair for pair in TYPES_ALONE if pair[1] not in find_imports(pair[0], modules)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "from pen.a import x",
        "from pen import a",
        "from . import a",
        "from .a import x",
        "import pen.a",
        "def f():\n    from pen.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pen.a import x",
    ],
)
def test_a_circle_is_found(tmp_path: Path, statement: str) -> None:
    """The circle is found in any form of the closing import."""
    package = tmp_path / "pen"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from pen.b import y\n")
    (package / "b.py").write_text(statement + "\n")
    assert {"pen.a", "pen.b"} <= set(find_circle(tmp_path))
