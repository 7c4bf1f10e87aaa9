"""Errors of the base for tables that it does not have, or cannot read now."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.base.held import HeldState, TableNotInBase
from penstock.base.manifest import BaseTable, Manifest
from penstock.control.run import base_keeper
from penstock.control.run.base_keeper import BaseKeeper, BaseUnread, keep_captured
from penstock.model import Relation, TableName
from penstock.model.table_requests import Capture, TableRequest, TableRequests
from penstock.ports.bulk import PointUnfit

EMPTY = Manifest(log_id="l", number=0, segment=0, gsn=0)


def test_a_table_that_is_not_there_yet_is_named() -> None:
    """The error names the table for which a snapshot is requested."""
    state = HeldState(
        directory=Path("base"), manifest=EMPTY, segments=(), end=cast(Any, None), extension="ckt"
    )
    with pytest.raises(TableNotInBase, match=r"public\.new") as caught:
        state.table(TableName("public", "new"))
    assert caught.value.fields["table"] == "public.new"
    assert "try again" in caught.value.hint


def test_tables_that_change_while_they_are_read_are_left_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a few points the base continues with the tables it has, and keeps its earlier rows."""
    tried: list[int] = []
    saved: list[int] = []
    monkeypatch.setattr(base_keeper, "open_planner", lambda _config: nullcontext())
    monkeypatch.setattr(base_keeper, "save_manifest", lambda *_: saved.append(1))
    keeper = object.__new__(BaseKeeper)
    keeper._config = cast(Any, None)

    def refuses(*_: object) -> Manifest:
        tried.append(1)
        raise PointUnfit("table t was rewritten")

    monkeypatch.setattr(keeper, "_read_at", refuses)
    with pytest.raises(BaseUnread, match="5 times"):
        keeper._read(cast(Any, None), EMPTY, (), TableRequests())
    assert len(tried) == base_keeper.ATTEMPTS_MAX
    assert not saved


def test_a_table_that_was_captured_again_is_read_again() -> None:
    """The base lacks the changes between its removal and the second request."""
    relation = cast(Relation, None)
    first, other = (
        BaseTable(schema="public", name=name, relations=(relation,), capture_id=number)
        for name, number in (("t", 3), ("u", 0))
    )
    manifest = replace(EMPTY, tables=(first, other))
    followed = [first.table, other.table]

    def request_capture(number: int, capture: Capture = Capture.ADDED) -> TableRequests:
        request = TableRequest(table=first.table, capture=capture, capture_id=number)
        return TableRequests(tables=(request,))

    assert keep_captured(manifest, followed, request_capture(3)) is manifest
    kept = keep_captured(manifest, followed, request_capture(5))
    assert (kept.tables, kept.number) == ((other,), manifest.number + 1)
    assert keep_captured(manifest, [first.table], request_capture(3)).tables == (first,)
    # A table of the pipeline file that a request removed is of no request.
    assert keep_captured(manifest, followed, request_capture(3, Capture.REMOVED)).tables == (other,)
