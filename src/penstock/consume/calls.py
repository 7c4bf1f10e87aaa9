"""Calls into a consumer: its exceptions become one typed error, and nothing is saved."""

from __future__ import annotations

from typing import Any

import structlog

from penstock.consume.classes import takes
from penstock.model import PenstockError

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
