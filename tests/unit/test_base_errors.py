"""Errors of the base for tables that it does not have, or cannot read now."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.base.held import HeldState, TableNotInBase
from penstock.base.manifest import Manifest
from penstock.control.run import base_keeper
from penstock.control.run.base_keeper import BaseKeeper, BaseUnread
from penstock.model import TableName
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
        keeper._read(cast(Any, None), EMPTY, ())
    assert len(tried) == base_keeper.ATTEMPTS_MAX
    assert not saved
