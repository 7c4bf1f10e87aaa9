"""Import, check and construction of a consumer from `class = "module:attribute"`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from penstock.consume.api import CdcConsumer
from penstock.model import PenstockError

ENTRY_POINTS = "penstock.consumers"
# Argument counts of each callback. If there are several, a class may take any of them: it is
# called with the largest that it takes.
CALLBACKS = {
    "start": (1,),
    "on_events": (1,),
    "on_batches": (1,),
    "on_mappings": (1,),
    "on_types": (1,),
    "on_cache_change": (1,),
    "on_cache_destroy": (2, 1),
    "on_truncate": (2, 1),
    "on_reload": (2, 1),
    "stop": (0,),
    "alive": (0,),
}
_COUNTS = {(0,): "no argument", (1,): "one argument", (2, 1): "one or two arguments"}


class ConsumerClassNotFound(PenstockError):
    """The name in `class` does not exist, or cannot be imported. Fields: class."""

    code = "CN10"
    retry = "operator"


class ConsumerClassInvalid(PenstockError):
    """The name in `class` is not a consumer: wrong base class, signature, or options."""

    code = "CN11"
    retry = "never"


def make_consumer(text: str, options: Mapping[str, Any], *, beside: Path) -> CdcConsumer:
    """Return the checked consumer of `class` and `options`.

    Raises ConsumerClassNotFound, ConsumerClassInvalid.

    Args:
        text: the value of `class`.
        options: arguments of the class.
        beside: folder of the pipeline file, in which modules are searched first.
    """
    found = _maker(text, options, beside)
    try:
        consumer = found(**options)
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise _invalid(text, f"raised {type(error).__name__} when it was made: {error}") from error
    return check_consumer(consumer, text)


def check_class(text: str, options: Mapping[str, Any], *, beside: Path) -> None:
    """Check `class` and `options` as far as possible without making a consumer.

    Raises ConsumerClassNotFound, ConsumerClassInvalid.
    """
    found = _maker(text, options, beside)
    if not isinstance(found, type):
        return  # a function that makes a consumer
    if not issubclass(found, CdcConsumer):
        raise _invalid(text, "does not derive from penstock.consume.CdcConsumer")
    for name, counts in CALLBACKS.items():
        how = inspect.getattr_static(found, name)
        own = 0 if isinstance(how, staticmethod | classmethod) else 1
        _check_callback(text, name, getattr(found, name), counts, own)
    _check_kind(text, found)


def check_consumer(consumer: Any, text: str = "") -> CdcConsumer:
    """Return the object itself, which must be a consumer with callable callbacks.

    Raises ConsumerClassInvalid.
    """
    text = text or type(consumer).__qualname__
    if not isinstance(consumer, CdcConsumer):
        raise _invalid(text, "does not derive from penstock.consume.CdcConsumer")
    for name, counts in CALLBACKS.items():
        _check_callback(text, name, getattr(consumer, name), counts)
    _check_kind(text, type(consumer))
    return consumer


def takes(callback: Any, count: int) -> bool:
    """Return whether a callback can be called with this number of arguments."""
    try:
        inspect.signature(callback).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _maker(text: str, options: Mapping[str, Any], beside: Path) -> Any:
    """Return the callable that makes the consumer from the options."""
    found = _find(text, beside)
    if not callable(found):
        raise _invalid(text, f"is {type(found).__name__}, not a class")
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise _invalid(text, f"does not take these options: {error}") from error
    return found


def _check_callback(
    text: str, name: str, callback: Any, counts: tuple[int, ...], own: int = 0
) -> None:
    """Check that a callback can be called. Raises ConsumerClassInvalid.

    Args:
        text: the value of `class`.
        name: of the callback.
        callback: the callback.
        counts: accepted argument counts.
        own: additional arguments before it is bound.
    """
    if not callable(callback):
        raise _invalid(text, f"has a {name} that is not a method")
    if not any(takes(callback, count + own) for count in counts):
        shown = inspect.signature(callback)
        raise _invalid(text, f"has a {name} that does not take {_COUNTS[counts]}: {name}{shown}")
    if inspect.iscoroutinefunction(callback) or inspect.isgeneratorfunction(callback):
        raise _invalid(text, f"has a {name} that is async or a generator, not a plain method")


def _check_kind(text: str, kind: type[CdcConsumer]) -> None:
    has_events = kind.on_events is not CdcConsumer.on_events
    if has_events == (kind.on_batches is not CdcConsumer.on_batches):
        both = "both on_events and on_batches" if has_events else "neither on_events nor on_batches"
        raise _invalid(text, f"has {both}")


def _find(text: str, beside: Path) -> Any:
    module_name, colon, attribute = text.partition(":")
    if not colon:
        return _entry_point(text)
    folder = str(beside)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise _not_found(text, f"there is no module {error.name}", beside) from error
        raise _not_found(text, f"importing {module_name} failed: {error}", beside) from error
    except (Exception, SystemExit) as error:
        why = f"importing {module_name} failed: {type(error).__name__}: {error}"
        raise _not_found(text, why, beside) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _not_found(text, f"{module_name} has no {attribute or 'empty name'}", beside)
        found = getattr(found, part)
    return found


def _entry_point(name: str) -> Any:
    for found in entry_points(group=ENTRY_POINTS, name=name):
        try:
            return found.load()
        except (Exception, SystemExit) as error:
            why = f"loading the entry point {found.value} failed: {type(error).__name__}: {error}"
            raise _not_found(name, why, None) from error
    known = ", ".join(sorted(entry_points(group=ENTRY_POINTS).names)) or "none"
    why = f"no installed package has an entry point of this name in {ENTRY_POINTS} (there: {known})"
    raise _not_found(name, why, None)


def _not_found(text: str, why: str, beside: Path | None) -> ConsumerClassNotFound:
    where = f"beside the pipeline file, in {beside}," if beside else "as an installed package"
    return ConsumerClassNotFound(
        f'class = "{text}" cannot be loaded: {why}',
        hint=f'Write it as "module:attribute", with the module {where} or installed; then start '
        "the consumer again: penstock consume FILE NAME.",
        **{"class": text},
    )


def _invalid(text: str, why: str) -> ConsumerClassInvalid:
    return ConsumerClassInvalid(
        f'class = "{text}" {why}',
        hint="docs/consumers.md has the methods and their arguments; correct the class, or its "
        "options, then start the consumer again: penstock consume FILE NAME.",
        **{"class": text},
    )
