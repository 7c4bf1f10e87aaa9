"""Consumers' classes: import, check, construction from `class = "module:attribute"`, and calls."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import structlog

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
        raise _invalid(
            text, f"raised {type(error).__name__} when it was created: {error}"
        ) from error
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
    found.check_options(options)


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


logger = structlog.get_logger(__name__)


class ConsumerFailed(PenstockError):
    """A consumer's own code raised an exception. fields: callback, exception."""

    code = "CN05"
    retry = "operator"


class ConsumerAnswerInvalid(PenstockError):
    """on_events or on_batches returned neither True nor False."""

    code = "CN06"
    retry = "never"


def call(consumer: Any, callback: str, *arguments: Any) -> Any:
    """Return the result of a callback. Raises ConsumerFailed; our own errors pass unchanged."""
    try:
        return getattr(consumer, callback)(*arguments)
    except PenstockError:
        raise  # of the log's reader inside the iterator, or of a table that was emptied
    except (Exception, SystemExit) as error:
        # sys.exit() in a callback, too: a consumer does not end its process, least of all with 0.
        name = f"{type(consumer).__qualname__}.{callback}"
        logger.exception("Cdc error", callback=name)
        raise ConsumerFailed(
            f"{name} raised {type(error).__name__}: {error}",
            hint="Nothing was saved: the same events come again at the next start. The log file "
            "has the traceback; fix the class, then start the consumer again: penstock consume "
            "FILE NAME.",
            callback=callback,
            exception=type(error).__name__,
        ) from error


def call_at(consumer: Any, callback: str, about: Any, gsn: int) -> None:
    """Call a callback whose second argument, a gsn, is optional for a class."""
    arguments = (about, gsn)
    count = 2 if takes(getattr(consumer, callback), 2) else 1
    call(consumer, callback, *arguments[:count])


def call_for_answer(consumer: Any, callback: str, *arguments: Any) -> bool:
    """Return whether the callback returned True. Raises ConsumerFailed, ConsumerAnswerInvalid."""
    answer = call(consumer, callback, *arguments)
    if answer is not True and answer is not False:
        raise ConsumerAnswerInvalid(
            f"{type(consumer).__qualname__}.{callback} returned {type(answer).__name__}, "
            "not True or False",
            hint="Return True to save the state after the last event read, False to save nothing; "
            "then start the consumer again: penstock consume FILE NAME.",
        )
    return answer
