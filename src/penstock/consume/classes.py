"""From `class = "module:attribute"` to a consumer: found, checked and made at the start."""

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
# How many arguments each callback is called with.
CALLBACKS = {
    "start": 1,
    "on_events": 1,
    "on_batches": 1,
    "on_mappings": 1,
    "on_types": 1,
    "on_cache_change": 1,
    "on_cache_destroy": 1,
    "on_truncate": 1,
    "on_reload": 1,
    "stop": 0,
    "alive": 0,
}


class ConsumerClassNotFound(PenstockError):
    """What `class` names is not there, or cannot be imported. fields: class."""

    code = "CN10"
    retry = "operator"


class ConsumerClassInvalid(PenstockError):
    """What `class` names is no consumer: not the base class, a wrong signature, other options."""

    code = "CN11"
    retry = "never"


def make_consumer(text: str, options: Mapping[str, Any], *, beside: Path) -> CdcConsumer:
    """The consumer that `class` and `options` say, checked.

    beside: the folder of the pipeline file, where modules are found first. Raises
    ConsumerClassNotFound, ConsumerClassInvalid.
    """
    found = _found(text, beside)
    if not callable(found):
        raise _invalid(text, f"is {type(found).__name__}, not a class")
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise _invalid(text, f"does not take these options: {error}") from error
    try:
        consumer = found(**options)
    except PenstockError:
        raise
    except Exception as error:
        raise _invalid(text, f"raised {type(error).__name__} when it was made: {error}") from error
    return check_consumer(consumer, text)


def check_consumer(consumer: Any, text: str = "") -> CdcConsumer:
    """The object itself, which must be a consumer whose callbacks can be called.

    Raises ConsumerClassInvalid.
    """
    text = text or type(consumer).__qualname__
    if not isinstance(consumer, CdcConsumer):
        raise _invalid(text, "does not derive from penstock.consume.CdcConsumer")
    for name, count in CALLBACKS.items():
        callback = getattr(consumer, name)
        if not callable(callback):
            raise _invalid(text, f"has a {name} that is no method")
        try:
            inspect.signature(callback).bind(*[None] * count)
        except TypeError as error:
            wanted = "no argument" if count == 0 else "one argument"
            raise _invalid(text, f"has a {name} that does not take {wanted}: {error}") from error
        if inspect.iscoroutinefunction(callback) or inspect.isgeneratorfunction(callback):
            raise _invalid(text, f"has a {name} that is async or a generator, not a plain method")
    has_events = type(consumer).on_events is not CdcConsumer.on_events
    if has_events == (type(consumer).on_batches is not CdcConsumer.on_batches):
        both = "both on_events and on_batches" if has_events else "neither on_events nor on_batches"
        raise _invalid(text, f"has {both}")
    return consumer


def _found(text: str, beside: Path) -> Any:
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
    except Exception as error:
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
        except Exception as error:
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
