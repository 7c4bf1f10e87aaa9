"""New tables that match a pattern: which are requested, and which are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.pipeline import table_requests
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.new_tables import NewTable
from penstock.control.pipeline.table_requests import read_requests, requested_patterns
from penstock.control.tables import new_table_watch
from penstock.control.tables.new_table_watch import NewTableWatch
from penstock.control.tables.table_commands import TableNotTaken
from penstock.control.tables.table_list import line_of
from penstock.model import TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import Capture, CaptureAnswers, TableRequest, TableRequests
from penstock.ports.config import Config

ITEM, BAG = TableName("public", "item"), TableName("public", "bag")
URLS = ("postgresql://u@h/s", "postgresql://u@h/t")


@pytest.fixture
def next_look(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[TableName]]:
    """The tables that the next look finds; the table `bag` cannot be followed."""
    found: dict[str, set[TableName]] = {"new": set(), "gone": set()}

    def check(config: Config, tables: Sequence[TableName]) -> None:
        if BAG in tables:
            raise TableNotTaken("bag has no key", hint="give it one")

    monkeypatch.setattr(
        new_table_watch,
        "_look",
        lambda _: new_table_watch._Seen(new=frozenset(found["new"]), gone=frozenset(found["gone"])),
    )
    monkeypatch.setattr(new_table_watch, "check_capturable", check)
    return found


def make(folder: Path, policy: str, tables: Sequence[str] = ("public.*",)) -> Config:
    """Return a pipeline with this policy."""
    return pipeline(folder, *URLS, tables=tables, sections={"source": {"newTables": policy}})


def test_one_that_cannot_be_followed_keeps_no_other_from_being_added(
    next_look: dict[str, set[TableName]], tmp_path: Path
) -> None:
    """One table is copied, the other is left out with its reason, also of what a start checks."""
    config = make(tmp_path, "add")
    next_look["new"] = {ITEM, BAG}
    after = new_table_watch.settle_new_tables(config)
    request = read_requests(config).of(ITEM)
    assert request.capture is Capture.ADDED
    assert request.capture_id == request.copy_id > 0
    assert not request.replaces
    assert Selection.parse(after.source.tables).takes(ITEM)
    assert not Selection.parse(after.source.tables).takes(BAG)
    line = line_of(None, read_requests(config).of(BAG), CaptureAnswers())
    assert (line.state, line.code, line.hint) == ("left out", "CT60", "give it one")
    next_look["new"], next_look["gone"] = set(), {BAG}
    new_table_watch.settle_new_tables(after)
    assert read_requests(config).of(BAG) == TableRequest(table=BAG)


def test_leave_and_stop(next_look: dict[str, set[TableName]], tmp_path: Path) -> None:
    """The table is left out until it is added; one that the file names is wanted in any case."""
    config = make(tmp_path, "leave", ("public.*", "public.item"))
    other = TableName("public", "other")
    next_look["new"] = {ITEM, other}
    new_table_watch.settle_new_tables(config)
    assert read_requests(config).of(ITEM).capture is Capture.ADDED
    assert read_requests(config).of(other).code == "CT69"
    with pytest.raises(NewTable, match=r"public\.other"):
        new_table_watch.settle_new_tables(make(tmp_path, "stop", ("public.*", "public.item")))


def test_only_what_stays_is_taken_in(next_look: dict[str, set[TableName]], tmp_path: Path) -> None:
    """A table that is gone at the next look is ignored."""
    config = make(tmp_path, "add")
    watch = NewTableWatch(config, lambda: None)
    next_look["new"] = {ITEM}
    watch.look()
    next_look["new"] = set()
    watch.look()
    assert read_requests(config) == TableRequests()
    for _ in range(2):
        next_look["new"] = {ITEM}
        watch.look()
    assert read_requests(config).of(ITEM).capture is Capture.ADDED


def test_a_removed_table_is_not_new(next_look: dict[str, set[TableName]], tmp_path: Path) -> None:
    """The user has decided meanwhile, and the decision counts."""
    config = make(tmp_path, "add")
    table_requests.put_request(
        config, ITEM, lambda last, number: replace(last, capture=Capture.REMOVED, capture_id=number)
    )
    next_look["new"] = {ITEM}
    new_table_watch.settle_new_tables(load_config(config.path))
    assert read_requests(config).of(ITEM).capture is Capture.REMOVED


def test_a_table_that_a_pattern_takes_in_is_not_named_besides() -> None:
    """A table that is named would have to exist at every start."""
    requests = TableRequests(tables=(TableRequest(table=ITEM, capture=Capture.ADDED),))
    assert requested_patterns(("public.*", "!public.item"), requests) == ("public.*",)
    assert requested_patterns(("public.bag",), requests) == ("public.bag", "public.item")
