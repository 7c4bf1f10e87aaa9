"""Wishes for single tables: what the files hold, and which tables a pipeline then takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_pipeline import pipeline
from penstock.control import table_wishes
from penstock.control.config import load_config
from penstock.control.table_list import line_of
from penstock.control.table_wishes import (
    TableNotTaken,
    WishRefused,
    read_wishes,
    wished_patterns,
)
from penstock.load.apart import Apart, ApartState
from penstock.load.target import Applied
from penstock.model import TableName
from penstock.model.wishes import Capture, CaptureAnswer, CaptureAnswers, TableWish, TableWishes
from penstock.source.postgres.patterns import Selection

ITEM = TableName("public", "item")
ODD = TableName("public", "a.b*")
URLS = ("postgresql://u@h/s", "postgresql://u@h/t")


def wishes(table: TableName, capture: Capture) -> TableWishes:
    """One wish."""
    return TableWishes().with_wish(TableWish(table=table, capture=capture, capture_id=1))


@pytest.mark.parametrize("table", [ITEM, ODD])
@pytest.mark.parametrize(
    "patterns", [("public.*",), ("public.other",), ("public.*", "!public.item", '!public."a.b*"')]
)
def test_patterns_follow_the_wishes(table: TableName, patterns: tuple[str, ...]) -> None:
    """Added it is taken, removed it is not, whatever the file says of it alone."""
    added = wished_patterns(patterns, wishes(table, Capture.ADDED))
    assert Selection.parse(added).takes(table)
    removed = wished_patterns(patterns, wishes(table, Capture.REMOVED))
    assert not Selection.parse(removed).takes(table)
    assert Selection.parse(removed).takes(TableName("public", "other"))


def test_the_configuration_has_the_wishes_in_it(tmp_path: Path) -> None:
    """Every command that reads the file sees the tables as they are wished."""
    config = pipeline(tmp_path, *URLS, tables=["public.*"])
    table_wishes.remove(config, ITEM)
    again = load_config(config.path)
    assert again.source.tables == ("public.*", "!public.item")
    assert not Selection.parse(again.source.tables).takes(ITEM)


def test_wishes_are_kept_and_numbered(tmp_path: Path) -> None:
    """Pausing twice is one wish; each copy is another one."""
    config = pipeline(tmp_path, *URLS)
    table_wishes.pause(config, ITEM)
    table_wishes.pause(config, ITEM)
    assert read_wishes(config).of(ITEM) == TableWish(table=ITEM, paused=True)
    first = table_wishes.resync(config, ITEM)
    second = table_wishes.resync(config, ITEM)
    assert first.paused
    assert second.copy_id > first.copy_id > 0
    table_wishes.resume(config, ITEM)
    assert not read_wishes(config).of(ITEM).paused
    assert read_wishes(config).copied() == {ITEM}


def test_what_can_not_be_wished(tmp_path: Path) -> None:
    """Tables of others, the last table, a pipeline without changes; nothing is written then."""
    config = pipeline(tmp_path, *URLS, tables=["public.item"])
    for command in (table_wishes.pause, table_wishes.resume, table_wishes.resync):
        with pytest.raises(TableNotTaken):
            command(config, ODD)
    with pytest.raises(WishRefused):
        table_wishes.remove(config, ITEM)
    data = pipeline(tmp_path, *URLS, mode="data", file="data.toml")
    with pytest.raises(WishRefused):
        table_wishes.pause(data, ITEM)
    globbed = pipeline(tmp_path, *URLS, tables=["public.x", "!public.it*"], file="glob.toml")
    with pytest.raises(WishRefused):
        table_wishes.add(globbed, ITEM)
    assert read_wishes(config) == TableWishes()


def test_what_is_shown() -> None:
    """The state, where it is going, how far behind, and why it stands."""
    added = TableWish(table=ITEM, capture=Capture.ADDED, capture_id=1, copy_id=1)
    waiting = line_of(None, added, CaptureAnswers(), applied_gsn=9)
    assert (waiting.state, waiting.wanted) == ("waiting", "copying")
    answer = CaptureAnswer(table=ITEM, capture_id=1, code="PG66", error="may not", hint="run")
    refused = line_of(None, added, CaptureAnswers(tables=(answer,)), applied_gsn=9)
    assert (refused.state, refused.code, refused.hint) == ("refused", "PG66", "run")
    paused = Apart(table=ITEM, state=ApartState.PAUSED, applied=Applied(gsn=4))
    shown = line_of(paused, TableWish(table=ITEM, paused=True), CaptureAnswers(), applied_gsn=9)
    assert (shown.state, shown.wanted, shown.behind) == ("paused", "", 5)
    shown = line_of(paused, TableWish(table=ITEM), CaptureAnswers(), applied_gsn=9)
    assert shown.wanted == "joining"
