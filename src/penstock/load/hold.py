"""Hold: `penstock verify` pauses a running loader at one position.

Two small files below state/, plain JSON, replaced whole. verify writes hold.json, and the loader
answers in held.json with the same nonce:

1. hold `{nonce}`: the loader finishes its batch, begins no other, answers `{nonce, gsn, position}`.
2. hold `{nonce, until}`: it applies exactly the rows with position < until, as soon as the log has
   reached that, and answers `{nonce, ..., reached: until}`.
3. hold.json is removed: the loader continues as usual.

A hold counts only while its creator holds the lock HOLD.LOCK, so the hold of a killed verify is
ignored. Positions are ordered numbers. Not here: the loader's loop (`loader.py`) and verify itself.
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
    """Request of verify. until: apply only rows with a smaller position; None to apply nothing."""

    nonce: str
    until: int | None = None


class HoldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the loader. gsn, position: those of the last applied row and commit.

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
    """Return the hold that counts now, or None, in the loader. Cheap enough for every batch."""
    hold = _hold_file(state_directory).load()
    return hold if hold is not None and holder_of(state_directory / HOLD_LOCK) else None


def write_hold(state_directory: Path, hold: Hold) -> None:
    """Request a hold, or move it forward, in verify with HOLD_LOCK held."""
    _hold_file(state_directory).save(hold)


def clear_hold(state_directory: Path) -> None:
    """Let the loader continue, in verify. Does nothing if there is no hold."""
    _hold_file(state_directory).remove()
    _held_file(state_directory).remove()


def read_held(state_directory: Path, nonce: str) -> HoldAnswer | None:
    """Return the loader's answer to the hold of this nonce, in verify; None before it arrives."""
    held = _held_file(state_directory).load()
    return held if held is not None and held.nonce == nonce else None


def write_held(state_directory: Path, held: HoldAnswer) -> None:
    """Write the answer, in the loader."""
    _held_file(state_directory).save(held)
