"""The load process and a bulk load that is interrupted: what is tried again, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control import load_process
from penstock.host.connect import ConnectionLost, ServerUnreachable
from penstock.load.bulk import BulkResult
from penstock.load.session import SparkLost
from penstock.model import PenstockError


class Sessions:
    """Counts the sessions asked for."""

    renewed = 0

    def renew(self) -> None:
        """Another one."""
        self.renewed += 1


def loading(
    monkeypatch: pytest.MonkeyPatch, errors: list[PenstockError]
) -> tuple[load_process._Load, Sessions, list[float]]:
    """A load process whose bulk load ends with these errors, one after the other, then well."""
    sessions, waits = Sessions(), []
    given: Any = None
    load = load_process._Load(given, sessions, given, given)  # type: ignore[arg-type]

    def once(*_: object) -> BulkResult:
        if errors:
            raise errors.pop(0)
        return BulkResult()

    class Clock:
        """Notes how long it should have slept."""

        sleep = staticmethod(waits.append)

    monkeypatch.setattr(load, "bulk_load_once", once)
    monkeypatch.setattr(load_process, "REAL_CLOCK", Clock)
    return load, sessions, waits


def test_lost_connections_and_sessions_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session only where the old one died; pauses only where the network did."""
    errors = [ConnectionLost("cut"), ServerUnreachable("away"), SparkLost("dead")]
    load, sessions, waits = loading(monkeypatch, errors)  # type: ignore[arg-type]
    assert load.bulk_load(None, ()) == BulkResult()  # type: ignore[arg-type]
    assert (sessions.renewed, len(waits)) == (1, 2)


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last error comes out."""
    errors: list[PenstockError] = [ConnectionLost(f"cut {n}") for n in range(99)]
    load, _, waits = loading(monkeypatch, errors)
    with pytest.raises(ConnectionLost, match=f"cut {load_process.BULK_ATTEMPTS_MAX - 1}"):
        load.bulk_load(None, ())  # type: ignore[arg-type]
    assert len(waits) == load_process.BULK_ATTEMPTS_MAX - 1


def test_what_somebody_has_to_mend_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out at once."""
    load, _, waits = loading(monkeypatch, [OtherError("no")])
    with pytest.raises(OtherError):
        load.bulk_load(None, ())  # type: ignore[arg-type]
    assert waits == []


class OtherError(PenstockError):
    """Any other."""
