"""Classes that implement a Protocol of `ports` subclass it, wholly, and keep their own values."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from functools import cache

import pytest

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.postgres.lsn import Lsn
from penstock.ports.row_apply import RowTarget
from unit.test_tidy import name_module, sources

# Class and Protocol: the names are the same, and the reason why it is none.
OF_OTHER_ARGUMENTS = {("CatchUp", "Ranges"): "asked with an amount; _CopiedRanges knows it"}


@cache
def classes() -> tuple[type, ...]:
    """Return every class that is defined in src at the top of a module."""
    found: list[type] = []
    for path, _ in sources("src/"):
        if path.name != "__main__.py":
            module = importlib.import_module(name_module(path))
            own = (one for one in vars(module).values() if isinstance(one, type))
            found += [one for one in own if one.__module__ == module.__name__]
    return tuple(dict.fromkeys(found))


def protocols(package: str = "penstock.") -> list[type]:
    """Return the Protocols that are defined below a package of src."""
    ours = (one for one in classes() if one.__module__.startswith(package))
    return [one for one in ours if vars(one).get("_is_protocol")]


def implementers() -> list[type]:
    """Return the classes of src that subclass a Protocol of src."""
    ours = set(protocols())
    return [one for one in classes() if one not in ours and ours & set(one.__mro__)]


def methods_of(protocol: type) -> set[str]:
    """Return the names of the methods that a Protocol and its bases have."""
    found: set[str] = set()
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False):
            found |= {name for name, value in vars(base).items() if inspect.isfunction(value)}
    return {name for name in found if not name.startswith("_")}


def test_a_class_with_all_methods_of_a_port_subclasses_it() -> None:
    """One or two methods are too few to say: another class may have such names by chance."""
    structural = [
        f"{one.__module__}.{one.__name__} is a {protocol.__name__}"
        for protocol in protocols("penstock.ports.")
        if len(methods := methods_of(protocol)) > 2
        for one in classes()
        if not vars(one).get("_is_protocol")
        and protocol not in one.__mro__
        and (one.__name__, protocol.__name__) not in OF_OTHER_ARGUMENTS
        and all(hasattr(one, name) for name in methods)
    ]
    assert structural == []


def test_each_implementer_has_all_members() -> None:
    """Only a class that others subclass may leave members to them."""
    found = implementers()
    assert len(found) > 100
    bases = {base for one in found for base in one.__mro__[1:]}
    lacking = {
        f"{one.__module__}.{one.__name__}": sorted(missing)
        for one in found
        if one not in bases and (missing := getattr(one, "__abstractmethods__", ()))
    }
    assert lacking == {}


def test_no_field_has_a_property_of_the_protocol_as_its_default() -> None:
    """A field without `= field()` would take the Protocol's property, if one forgot the value."""
    taken = [
        f"{one.__module__}.{one.__name__}.{field.name}"
        for one in implementers()
        if dataclasses.is_dataclass(one)
        for field in dataclasses.fields(one)
        if isinstance(field.default, property)
    ]
    assert taken == []


@pytest.mark.parametrize("kind", [Lsn, BinlogPosition])
def test_a_position_keeps_its_slots(kind: type[Lsn | BinlogPosition]) -> None:
    """A Protocol without `__slots__ = ()` would give each of many small objects a dictionary."""
    assert not hasattr(kind(7), "__dict__")
    make: Callable[..., object] = kind
    with pytest.raises(TypeError, match="ordinal"):
        make()
    assert kind(7).ordinal == 7


def test_an_omitted_member_is_an_error_at_once() -> None:
    """An inherited `...` would return None in its place."""

    class Silent(RowTarget):
        pass

    with pytest.raises(TypeError, match="open_session"):
        Silent()
