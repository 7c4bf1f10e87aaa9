"""Parts of engines: each is declared with its type, and has all that the type has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import penstock.ports
from penstock.model.position import PositionKind
from penstock.ports.checks import EngineChecks
from penstock.ports.registry import PartName, engines
from penstock.ports.tables import Planned

SHARED = ("sql.read_plan", "sql.schema_translation", "sql.shape_changes")
# Members that an engine of one side does not have.
OF_ONE_SIDE = {
    EngineChecks: {"look_at_target"},
    Planned: {"read_target"},
}


def find_declared() -> Iterator[tuple[str, str, Any]]:
    """Yield constant, name and type of each declared part."""
    ports = [f"ports.{one.name}" for one in iter_modules(penstock.ports.__path__)]
    for name in (*ports, *SHARED):
        module = import_module(f"penstock.{name}")
        for constant, hint in get_type_hints(module).items():
            if get_origin(hint) is PartName and getattr(module, constant, None) is not None:
                yield constant, str(getattr(module, constant)), get_args(hint)[0]


# What only engines of shared logs have under the name that all have for progress.
DECLARED = [one for one in find_declared() if one[0] != "SHARED_PROGRESS_PART"]
OF_SHARED_LOGS = [one for one in find_declared() if one[0] == "SHARED_PROGRESS_PART"]


def members_of(protocol: type) -> set[str]:
    """Return the public members of a Protocol; none of another type."""
    found: set[str] = set()
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False):
            found |= {*vars(base), *vars(base).get("__annotations__", {})}
    return {name for name in found if not name.startswith("_")}


def has(found: Any, member: str) -> bool:
    """Return whether an object has a member, or its class sets it in a method."""
    if hasattr(found, member):
        return True
    bases = found.__mro__ if isinstance(found, type) else ()
    ours = (base for base in bases if base.__module__.startswith("penstock."))
    return any(re.search(rf"\b(self\.)?{member}\b *[:=]", inspect.getsource(one)) for one in ours)


def missing(found: Any, kind: Any) -> set[str]:
    """Return what a part lacks of its type."""
    if kind is not None and get_origin(kind) is None and isinstance(kind, type):
        call = vars(kind).get("__call__")
        if not getattr(kind, "_is_protocol", False):
            assert isinstance(found, (type, kind))
            return set()
        if call is None:
            lacking = {name for name in members_of(kind) if not has(found, name)}
            lacking -= OF_ONE_SIDE.get(kind, set())
            # A module cannot subclass, and a class of positions is the part as itself.
            if not isinstance(found, type) or kind is PositionKind or kind in found.__mro__:
                return lacking
            return lacking | {f"the base {kind.__name__}"}
        result = get_type_hints(call)["return"]
    else:
        arguments = get_args(kind)
        result = arguments[-1] if arguments else None
    assert callable(found)
    made = found if isinstance(found, type) else get_type_hints(found)["return"]
    return missing(made, result) if isinstance(made, type) and isinstance(result, type) else set()


@pytest.mark.parametrize("engine", engines(), ids=lambda one: one.name)
def test_each_part_has_what_its_type_has(engine: Any) -> None:
    """A descriptor names no undeclared part, and an engine no part that lacks a member.

    A class that is a part, or that a part returns, subclasses its Protocol.
    """
    kinds = {name: kind for _, name, kind in DECLARED}
    assert set(engine.parts) <= set(kinds)
    lacking = {name: missing(engine.part(name), kinds[name]) for name in engine.parts}
    if "row_apply" in engine.parts:
        lacking |= {one[0]: missing(engine.part(one[1]), one[2]) for one in OF_SHARED_LOGS}
    assert {name: names for name, names in lacking.items() if names} == {}


def test_each_declared_part_is_of_an_engine() -> None:
    """No name is left over; the toy engine of the tests has the part `loading`."""
    used = {name for engine in engines() for name in engine.parts} | {"loading"}
    assert {name for _, name, _ in DECLARED} == used
