"""Edits of the pipeline file between two runs: each is carried out, reported or refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.local_checks import check_edits
from penstock.control.pipeline import file_edits
from penstock.control.pipeline.file_edits import EditRefused, keep_first_settings, settle_file_edits
from penstock.control.pipeline.table_requests import put_request, read_requests, removed_tables
from penstock.control.tables.table_list import _without_target, line_of
from penstock.host.files import REAL_FILES
from penstock.load.ledger import Ledger, write_ledger
from penstock.log.layout import LogState, save_state
from penstock.model import FlushPoint, TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import Capture, CaptureAnswers, TableRequest
from penstock.ports.bulk import TablePlan
from penstock.ports.config import Config
from penstock.ports.handover import Handover, write_handover
from penstock.ports.tables import Followed

ITEM, BAG = TableName("public", "item"), TableName("public", "bag")
URLS = ("postgresql://u:one@h/s", "postgresql://u:one@h/t")
BOTH = ("public.item", "public.bag")


class Source:
    """Fake source: the tables that the log follows, and those that the catalogue has."""

    def __init__(self, *tables: TableName) -> None:
        self.followed: set[TableName] | None = set(tables)
        self.present = set(tables)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source whose log follows item and bag."""
    made = Source(ITEM, BAG)

    def find_followed(_: Config) -> Followed | None:
        return None if made.followed is None else Followed(names=frozenset(made.followed))

    def present(_: Config, tables: Collection[TableName], __: Followed) -> set[TableName]:
        return made.present & set(tables)

    monkeypatch.setattr(file_edits, "followed_tables", find_followed)
    monkeypatch.setattr("penstock.control.doctor.local_checks.followed_tables", find_followed)
    monkeypatch.setattr(file_edits, "_present", present)
    return made


def settle(config: Config, tell: Callable[[str], None] = lambda _: None) -> Config:
    """Accept the edited file, and keep its first settings, as each successful start does."""
    found = settle_file_edits(config, tell)
    keep_first_settings(config)
    return found


def start(folder: Path, tables: tuple[str, ...], **options: Any) -> tuple[Config, list[str]]:
    """Start with this file; return the configuration after it, and the messages."""
    told: list[str] = []
    config = pipeline(folder, *URLS, tables=tables, **options)
    return settle(config, told.append), told


def begin_log(config: Config) -> None:
    """Create a change log in the directory."""
    REAL_FILES.make_directory(config.layout.log)
    save_state(
        config.layout.log,
        LogState(log_id="one", source={}, number_next=1, end=FlushPoint(position=1)),
    )


def write_load_ledger(config: Config, *tables: TableName, finished: bool = True) -> None:
    """Write the ledger of a bulk load into the directory."""
    plans = [
        TablePlan(
            source=table,
            target=table,
            columns=("id",),
            binary=False,
            position="0/1",
            snapshot_id="",
            snapshot_text="",
            chunks=(),
        )
        for table in tables
    ]
    ledger = Ledger(copied=True, finished=finished, foreign_keys_done=finished, plans=plans)
    write_ledger(config.layout.state, ledger)


def test_a_table_that_comes_back_is_copied_again(source: Source, tmp_path: Path) -> None:
    """No log has the changes in between, so the table is removed, reported, and added."""
    start(tmp_path, BOTH)
    after, told = start(tmp_path, BOTH[:1])
    request = read_requests(after).of(BAG)
    assert (request.capture, request.code) == (Capture.REMOVED, "CT65")
    assert ["public.bag is not captured any more" in text for text in told] == [True]
    assert not Selection.parse(after.source.tables).takes(BAG)
    assert start(tmp_path, BOTH[:1])[1] == []
    after, told = start(tmp_path, BOTH)
    again = read_requests(after).of(BAG)
    assert again.capture is Capture.ADDED
    assert again.capture_id == again.copy_id > request.capture_id > 0
    assert again.replaces
    assert ["public.bag is captured again" in text for text in told] == [True]
    assert Selection.parse(after.source.tables).takes(BAG)
    assert read_requests(after).of(ITEM) == TableRequest(table=ITEM)


def test_it_is_shown_why_a_table_is_left_out(source: Source, tmp_path: Path) -> None:
    """Both `table ls` and doctor show it."""
    start(tmp_path, BOTH)
    config = pipeline(tmp_path, *URLS, tables=BOTH[:1])
    assert [(one.code, "public.bag" in one.what) for one in check_edits(config)] == [("PK26", True)]
    after, _ = start(tmp_path, BOTH[:1])
    assert not list(check_edits(after))
    line = line_of(None, read_requests(after).of(BAG), CaptureAnswers())
    assert (line.wanted, line.code) == ("removed", "CT65")
    assert '"public.bag"' in line.hint
    alone = _without_target(line, read_requests(after).of(BAG), CaptureAnswers())
    assert (alone.state, alone.wanted) == ("following", "removed")


def test_only_a_table_that_is_there_is_left_out(source: Source, tmp_path: Path) -> None:
    """A table that was renamed is followed under its new name; one that was dropped is not
    reported.
    """
    start(tmp_path, BOTH)
    source.present.discard(BAG)
    after, told = start(tmp_path, ("public.item", "public.sack"))
    assert (read_requests(after).of(BAG).capture, told) == (Capture.FILE, [])


def test_a_table_that_was_added_by_a_command_stays(source: Source, tmp_path: Path) -> None:
    """The file never named it; but a table that the file named before and omits now is removed."""
    config, _ = start(tmp_path, BOTH[:1])

    def add(last: TableRequest, number: int) -> TableRequest:
        return replace(last, capture=Capture.ADDED, capture_id=number, copy_id=number)

    put_request(config, BAG, add)
    after, told = start(tmp_path, ("public.ite*",))
    assert (read_requests(after).of(BAG).capture, told) == (Capture.ADDED, [])
    start(tmp_path, ("public.*",))
    after, told = start(tmp_path, ("public.*", "!public.bag"))
    assert read_requests(after).of(BAG).code == "CT65"
    assert told


def test_a_table_that_was_removed_by_a_command_comes_back_by_the_file(
    source: Source, tmp_path: Path
) -> None:
    """The table returns after the file left it out, too."""
    config, _ = start(tmp_path, BOTH)

    def remove(last: TableRequest, number: int) -> TableRequest:
        return replace(last, capture=Capture.REMOVED, capture_id=number)

    number = put_request(config, BAG, remove).capture_id
    after, _ = start(tmp_path, ("public.item", "public.ba*"))
    assert read_requests(after).of(BAG) == TableRequest(
        table=BAG, capture=Capture.REMOVED, capture_id=number
    )
    assert removed_tables(after) == frozenset()
    after, _ = start(tmp_path, BOTH[:1])
    assert read_requests(after).of(BAG).capture_id == number
    after, _ = start(tmp_path, BOTH)
    assert read_requests(after).of(BAG).capture is Capture.ADDED


def test_a_start_that_cannot_ask_the_source_settles_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one still knows the file's earlier text."""
    start(tmp_path, BOTH)
    with monkeypatch.context() as away:
        away.setattr(file_edits, "_present", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            start(tmp_path, BOTH[:1])
    after, _ = start(tmp_path, BOTH[:1])
    assert read_requests(after).of(BAG).code == "CT65"


def test_a_log_that_leaves_no_table_out_refuses(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without table requests keeps the tables with which its log began."""
    url = "yugabytedb://u@h:5433/s"
    config = pipeline(tmp_path, url, URLS[1], tables=BOTH)
    settle(config)
    config = pipeline(tmp_path, url, URLS[1], tables=BOTH[:1])
    with pytest.raises(EditRefused, match=r"public\.bag"):
        settle(config)


def test_a_mode_that_loses_rows_is_refused(source: Source, tmp_path: Path) -> None:
    """Mode changes between a bulk load and a log, and between a log and none, would lose rows."""
    config, _ = start(tmp_path, BOTH, mode="data")
    write_load_ledger(config, ITEM)
    for mode in ("data+change", "change"):
        with pytest.raises(EditRefused, match="loaded in mode data"):
            start(tmp_path, BOTH, mode=mode)
        found = list(check_edits(pipeline(tmp_path, *URLS, tables=BOTH, mode=mode)))
        assert [(one.code, str(one.severity)) for one in found] == [("PK26", "E")]
    write_handover(config, Handover())
    write_load_ledger(config, ITEM, finished=False)
    with pytest.raises(EditRefused, match="not finished"):
        start(tmp_path, BOTH, mode="change")
    write_load_ledger(config, ITEM)
    begin_log(config)
    start(tmp_path, BOTH, mode="change")
    start(tmp_path, BOTH, mode="data+change")
    with pytest.raises(EditRefused, match="mode is data"):
        start(tmp_path, BOTH, mode="data")


def test_another_place_for_the_same_rows_is_refused(source: Source, tmp_path: Path) -> None:
    """The rows are in one place, and [target.map] would send their changes to another one."""
    config, _ = start(tmp_path, BOTH)
    write_handover(config, Handover())
    write_load_ledger(config, ITEM)
    source.followed = None
    start(tmp_path, BOTH, sections={"target.map": {"later": "elsewhere"}})
    with pytest.raises(EditRefused, match=r"public\.item"):
        start(tmp_path, BOTH, sections={"target.map": {"public": "other"}})
    source.followed = {BAG}
    write_load_ledger(
        config
    )  # in mode change there is no bulk load, and the log says what is followed
    with pytest.raises(EditRefused, match=r"public\.bag"):
        start(tmp_path, BOTH, sections={"target.map": {"public": "other"}})


def test_the_first_target_may_have_any_map(source: Source, tmp_path: Path) -> None:
    """A pipeline without a target wrote no rows; later, its target is still remembered."""
    config = pipeline(tmp_path, URLS[0], None)
    settle(config)
    begin_log(config)
    source.followed = {ITEM}
    mapped = {"sections": {"target.map": {"public": "shop"}}, "mode": "change"}
    start(tmp_path, BOTH, **mapped)
    settle(pipeline(tmp_path, URLS[0], None))
    with pytest.raises(EditRefused, match=r"target\.map"):
        start(tmp_path, BOTH, mode="change", sections={"target.map": {"public": "other"}})
    start(tmp_path, BOTH, **mapped)


def test_another_extension_of_segments_is_refused(source: Source, tmp_path: Path) -> None:
    """The segments that the log already has could not be found by another extension."""
    config, _ = start(tmp_path, BOTH)
    begin_log(config)
    with pytest.raises(EditRefused, match="changeFileExtension"):
        start(tmp_path, BOTH, sections={"changeLoader": {"changeFileExtension": "arrow"}})


class Target:
    """Fake target that says which log it follows."""

    def __init__(self, log_id: str) -> None:
        self._log_id = log_id

    def present(self) -> tuple[bool, bool]:
        """Return whether it has our tables."""
        return bool(self._log_id), False

    def log_id(self) -> str:
        """Return the log that it follows."""
        return self._log_id

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("log_id", ["", "two", "one"])
def test_another_target_in_mode_change_has_to_follow_the_log(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_id: str
) -> None:
    """A target of another name may be the same; another password does not mean another target."""
    config, _ = start(tmp_path, BOTH, mode="change")
    begin_log(config)
    opened: list[str] = []

    def open_reader(url: str, **_: str) -> Target:
        opened.append(url)
        return Target(log_id)

    monkeypatch.setattr(file_edits, "open_target_reader", open_reader)
    same = (URLS[0], URLS[1].replace("one", "two"))
    settle(pipeline(tmp_path, *same, tables=BOTH, mode="change"))
    assert not opened
    other = pipeline(tmp_path, URLS[0], "postgresql://u:one@h/new", tables=BOTH, mode="change")
    if log_id == "one":
        settle(other)
    else:
        with pytest.raises(EditRefused, match=r"h/new does not follow"):
            settle(other)
    assert len(opened) == 1


def test_a_choice_of_types_is_said_to_hold_from_now_on(source: Source, tmp_path: Path) -> None:
    """Existing rows stay as they are; before there are any, nothing is reported."""
    config, _ = start(tmp_path, BOTH)
    told: list[str] = []
    for types in ({"zero dates": "null"}, {"zero dates": "epoch"}):
        chosen = replace(config, target=replace(config.target, types=types))
        settle(chosen, told.append)
        begin_log(config)
    assert ["[target.types]" in text for text in told] == [True]


def test_patterns_that_alone_decide_say_what_they_begin_with(
    source: Source, tmp_path: Path
) -> None:
    """A newly matching table has no existing rows in the log if there are no table requests."""
    source.followed = None
    config, _ = start(tmp_path, BOTH[:1])
    begin_log(config)
    assert ["not in the log" in text for text in start(tmp_path, BOTH)[1]] == [True]
