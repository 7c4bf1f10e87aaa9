"""Places that consumers store together with their data, for effects exactly once.

The consumer's place decides where it continues; the saved state of its directory follows. The two
are compared before anything is left out because of a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.consume.api import CdcLog, PlaceKeeper
from penstock.consume.classes import call
from penstock.consume.position import ConsumerOfOtherLog, ConsumerState, Position
from penstock.host.files import Files
from penstock.log.layout import list_segments, load_state
from penstock.model import PenstockError


class PlaceLost(PenstockError):
    """The place that a consumer stored with its data is gone, or older than it was. Fields:
    consumer, expected, actual.
    """

    code = "CN22"
    retry = "operator"


class PlaceUnreadable(PenstockError):
    """The place that a consumer returned is not what was stored. Fields: consumer."""

    code = "CN23"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOfLog:
    """Directories of a consumer and of its log.

    Attributes:
        directory: the consumer's.
        snapshot_id: log id of the snapshot that the consumer is in; empty if it is in none.
    """

    directory: Path
    log_directory: Path
    snapshot_id: str
    extension: str
    files: Files


def encode(position: Position) -> str:
    """Return a position as the text that a consumer stores."""
    return msgspec.json.encode(position).decode("ascii")


def settle(
    keeper: PlaceKeeper, place: PlaceOfLog, state: ConsumerState, saved: Position | None
) -> Position | None:
    """Return the position at which a consumer continues, and save it in its directory.

    Raises PlaceLost, PlaceUnreadable, ConsumerOfOtherLog.

    Args:
        keeper: the consumer.
        place: its directories.
        state: its saved state.
        saved: the position of its saved state.
    """
    log = load_state(place.log_directory, place.files)
    log_id = "" if log is None else log.log_id
    name = place.directory.name
    source = {} if log is None else log.source
    text = call(keeper, "load_place", CdcLog(consumer=name, log_id=log_id, source=source))
    is_settled = state.is_settled()
    stored = None if text is None else _decode(text, name)
    if stored is not None:
        known = {log_id, place.snapshot_id} - {""}
        if stored.log_id not in known:
            raise _of_other_log(stored, known, name)
    if is_settled and saved is not None and _is_behind(stored, saved):
        raise _make_lost(stored, saved, name)
    if stored is not None and not (is_settled and saved is None and _is_passed(stored, place)):
        if stored != saved:
            state.save(stored)
        saved = stored
        state.note_settled()
    return saved


def _decode(text: str, name: str) -> Position:
    try:
        return msgspec.json.decode(text, type=Position)
    except msgspec.DecodeError as error:
        raise PlaceUnreadable(
            f"the place that consumer {name} stored cannot be read: {error}",
            hint="An older penstock may have to read it. Otherwise let the consumer store its "
            "places under another name, and start it again: penstock consume FILE NAME.",
            consumer=name,
        ) from error


def _order(position: Position) -> tuple[int, int, int, int]:
    return position.segment, position.gsn, position.markers, position.entries


def _is_behind(stored: Position | None, saved: Position) -> bool:
    """Return whether the stored place is older than a state that was saved after it."""
    if stored is None:
        return True
    return stored.log_id == saved.log_id and _order(stored) < _order(saved)


def _is_passed(stored: Position, place: PlaceOfLog) -> bool:
    """Return whether the operator let the consumer pass a gap that is after its place."""
    links = list_segments(place.directory, place.extension, place.files)
    return bool(links) and links[0].number > stored.segment


def _make_lost(stored: Position | None, saved: Position, name: str) -> PlaceLost:
    where = "has none" if stored is None else f"has {stored}"
    return PlaceLost(
        f"consumer {name} was at {saved}, but where it stores its places it {where}",
        hint="The place was removed, restored from a backup, or has another name now, so changes "
        "may be missing there. Let the consumer begin again: "
        f"penstock consumers remove FILE {name} --yes, then penstock consumers add FILE {name}.",
        consumer=name,
        expected=str(saved),
        actual=str(stored or ""),
    )


def _of_other_log(stored: Position, known: set[str], name: str) -> ConsumerOfOtherLog:
    shown = ", ".join(sorted(known)) or "a log that has not begun"
    return ConsumerOfOtherLog(
        f"the place that consumer {name} stored with its data, {stored}, is of another log: "
        f"{stored.log_id or 'unknown'}; this one is {shown}",
        hint="The log was created again, or another pipeline uses the same name for its places. "
        "Give the places another name in the consumer's options, and let the consumer begin again: "
        f"penstock consumers remove FILE {name} --yes, then penstock consumers add FILE {name}.",
        expected=stored.log_id,
        actual=shown,
    )
