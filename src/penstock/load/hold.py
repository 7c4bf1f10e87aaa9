"""The hold: how `penstock verify` pauses a running loader at one position.

Two small files below state/, plain JSON, replaced whole. verify writes hold.json, the loader
answers in held.json with the same nonce:

1. hold `{nonce}`: the loader finishes its batch, begins no other, answers `{nonce, gsn, position}`.
2. hold `{nonce, until}`: it applies exactly the rows with position < until, as soon as the log
   reaches so far, and answers `{nonce, ..., reached: until}`.
3. hold.json is gone: it goes on as usual.

A hold counts only while its maker holds the lock HOLD.LOCK: that of a killed one is ignored.
Positions are ordered numbers. Not here: the loader's loop (`loader.py`) and verify itself.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.host.process import holder_of
from penstock.host.state_file import StateFile

HOLD_FILE = "hold.json"
HELD_FILE = "held.json"
HOLD_LOCK = "HOLD.LOCK"
_HINT = "Stop penstock verify and remove the file: the next penstock verify writes it again."


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """What verify wants. until: apply rows with a smaller position only; None: apply nothing."""

    nonce: str
    until: int | None = None


class HoldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the loader answers. gsn, position: of the last applied row and commit.

    reached: the `until` of the hold, once everything before it is applied.
    """

    nonce: str
    gsn: int = 0
    position: int = 0
    reached: int | None = None


def _hold_file(state_directory: Path) -> StateFile[Hold]:
    return StateFile(state_directory / HOLD_FILE, Hold, hint=_HINT, has_checksum=False)


def _held_file(state_directory: Path) -> StateFile[HoldAnswer]:
    return StateFile(state_directory / HELD_FILE, HoldAnswer, hint=_HINT, has_checksum=False)


def read_hold(state_directory: Path) -> Hold | None:
    """In the loader: the hold that counts now, or None. Cheap enough to ask before each batch."""
    hold = _hold_file(state_directory).load()
    return hold if hold is not None and holder_of(state_directory / HOLD_LOCK) else None


def write_hold(state_directory: Path, hold: Hold) -> None:
    """In verify, with HOLD_LOCK held: ask for a hold, or take it further."""
    _hold_file(state_directory).save(hold)


def clear_hold(state_directory: Path) -> None:
    """In verify: let the loader go on. Does nothing when there is no hold."""
    _hold_file(state_directory).remove()
    _held_file(state_directory).remove()


def read_held(state_directory: Path, nonce: str) -> HoldAnswer | None:
    """In verify: the loader's answer to the hold of this nonce; None when it has not come yet."""
    held = _held_file(state_directory).load()
    return held if held is not None and held.nonce == nonce else None


def write_held(state_directory: Path, held: HoldAnswer) -> None:
    """In the loader: answer."""
    _held_file(state_directory).save(held)
