"""Recovery from errors of mining: what each of the server's numbers asks for. Pure.

Numbers are those of the reference, section 1b.8, and of Oracle's "Database Error Messages". Those
of lost connections and busy instances have their classes in `connect` already.
"""

from __future__ import annotations

from enum import Enum

from penstock.model import PenstockError


class Recovery(Enum):
    """Way to continue after an error."""

    CHOOSE = "choose the logs again: one was switched, archived or removed since"
    RENEW = "begin a new session: LogMiner's state in this one is not usable"
    SHORTEN = "begin a new session with a smaller window: it needed too much memory or time"
    STOP = "the redo cannot be read"
    RAISE = "not an error of mining"


_LOST = frozenset((1284, 1285, 1291, 1292))
"""Redo that is missing; it is lost if it stays so."""

_RECOVERIES: dict[int, Recovery] = {
    **dict.fromkeys((310, 334, 1281, 1289, 1368, *_LOST), Recovery.CHOOSE),
    **dict.fromkeys((604, 1001, 1002, 1306, 1307, 1327, 1333, 1371, 25303, 26653), Recovery.RENEW),
    **dict.fromkeys((1013, 4030, 4036), Recovery.SHORTEN),
    **dict.fromkeys((353, 354, 355, 368, 1343, 1346), Recovery.STOP),
}
# First arguments of internal errors from which LogMiner is known to recover in a new session.
_INTERNAL = 600
_PASSING = ("krvrdccs10", "kgccbuffer", "krvxbpx20")


def recovery_of(error: PenstockError) -> Recovery:
    """Return what an error of a statement asks for."""
    number = error.fields.get("errno", 0)
    if number == _INTERNAL:
        is_passing = any(word in error.message for word in _PASSING)
        return Recovery.RENEW if is_passing else Recovery.RAISE
    return _RECOVERIES.get(number, Recovery.RAISE)


def is_missing(error: PenstockError) -> bool:
    """Return whether an error says that redo is missing, rather than that it is not ready."""
    return error.fields.get("errno", 0) in _LOST
