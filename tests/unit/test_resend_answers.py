"""`penstock resend` and a consumer's snapshot if what they request cannot be provided."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.control.run import consumer_snapshot, resend
from penstock.control.run.consumer_snapshot import ATTEMPTS_MAX, SnapshotUnread
from penstock.control.run.resend import ResendFailed
from penstock.model import TableName
from penstock.ports.bulk import PointUnfit

ITEM = TableName("public", "item")


def test_the_extractor_says_why_it_did_not_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has its reason and its hint."""
    answer = SimpleNamespace(error="relation is gone", hint="Make it again.", table=ITEM)
    monkeypatch.setattr(resend, "_check_tables", lambda *_: None)
    monkeypatch.setattr(resend, "_extracts", lambda _: True)
    monkeypatch.setattr(resend, "put_request", lambda *_: SimpleNamespace(table=ITEM))
    monkeypatch.setattr(
        resend, "read_answers", lambda _: SimpleNamespace(resend_of=lambda _: answer)
    )
    config: Any = None
    with pytest.raises(ResendFailed, match="relation is gone") as caught:
        resend.resend(config, [ITEM])
    assert caught.value.hint == "Make it again."


def test_a_snapshot_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are rewritten repeatedly while they are read."""
    tries: list[int] = []

    def unfit(*_: Any) -> Any:
        tries.append(1)
        raise PointUnfit("rewritten", hint="again")

    monkeypatch.setattr(consumer_snapshot, "source_tables", lambda _: [])
    monkeypatch.setattr(consumer_snapshot, "open_planner", lambda _: nullcontext())
    monkeypatch.setattr(consumer_snapshot, "_read_at", unfit)
    nothing: Any = None
    kept: Any = SimpleNamespace(
        clear=lambda: None, folder=SimpleNamespace(parent=SimpleNamespace(name="search"))
    )
    with pytest.raises(SnapshotUnread, match="for search"):
        consumer_snapshot._read(nothing, kept, nothing, lambda _: True, lambda: False, nothing)
    assert len(tries) == ATTEMPTS_MAX
