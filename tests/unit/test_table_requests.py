"""Requests for single tables: the content of the files, and the tables that a pipeline captures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.followed import follows
from harness.pipelines.pipeline import pipeline
from penstock.control.pipeline import table_requests
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import is_followed
from penstock.control.pipeline.table_requests import (
    make_add_request,
    read_requests,
    requested_patterns,
)
from penstock.control.tables import table_commands
from penstock.control.tables.table_commands import RequestRefused, TableNotTaken
from penstock.control.tables.table_list import captured_lines, line_of, lines_from
from penstock.engines.mysql.source.source_engine import NOTES_FILE
from penstock.engines.mysql.source.table_notes import AllNotes
from penstock.engines.postgres.source.ddl_watch import WatchState
from penstock.engines.postgres.source.source_engine import WATCH_FILE
from penstock.extract.extractor import _StateFiles
from penstock.host.files import REAL_FILES
from penstock.host.request_files import RequestFiles, resend_cancelled, table_unknown
from penstock.host.state_file import StateFile
from penstock.load.ledger import Ledger, write_ledger
from penstock.log import links
from penstock.model import PenstockError, TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    Capture,
    CaptureAnswer,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.bulk import PointUnfit, TablePlan
from penstock.ports.config import Config
from penstock.ports.target import Applied, SyncState, TableSync

ITEM = TableName("public", "item")
ODD = TableName("public", "a.b*")
URLS = ("postgresql://u@h/s", "postgresql://u@h/t")


def requests(table: TableName, capture: Capture) -> TableRequests:
    """Return one request."""
    return TableRequests().with_request(TableRequest(table=table, capture=capture, capture_id=1))


@pytest.mark.parametrize("table", [ITEM, ODD])
@pytest.mark.parametrize(
    "patterns", [("public.*",), ("public.other",), ("public.*", "!public.item", '!public."a.b*"')]
)
def test_patterns_follow_the_requests(table: TableName, patterns: tuple[str, ...]) -> None:
    """An added table is captured, a removed one is not, whatever the file says."""
    added = requested_patterns(patterns, requests(table, Capture.ADDED))
    assert Selection.parse(added).takes(table)
    removed = requested_patterns(patterns, requests(table, Capture.REMOVED))
    assert not Selection.parse(removed).takes(table)
    assert Selection.parse(removed).takes(TableName("public", "other"))


def test_the_configuration_has_the_requests_in_it(tmp_path: Path) -> None:
    """Every command that reads the file sees the requested tables."""
    config = pipeline(tmp_path, *URLS, tables=["public.*"])
    follows(config, ITEM)
    table_commands.remove(config, ITEM)
    again = load_config(config.path)
    assert again.source.tables == ("public.*", "!public.item")
    assert not Selection.parse(again.source.tables).takes(ITEM)


def test_requests_are_kept_and_numbered(tmp_path: Path) -> None:
    """Pausing twice is one request; each copy is another one."""
    config = pipeline(tmp_path, *URLS)
    follows(config, ITEM)
    table_commands.pause(config, ITEM)
    table_commands.pause(config, ITEM)
    assert read_requests(config).of(ITEM) == TableRequest(table=ITEM, paused=True)
    first = table_commands.resync(config, ITEM)
    second = table_commands.resync(config, ITEM)
    assert first.paused
    assert second.copy_id > first.copy_id > 0
    table_commands.resume(config, ITEM)
    assert not read_requests(config).of(ITEM).paused
    assert read_requests(config).list_copied() == {ITEM}


def test_what_cannot_be_requested(tmp_path: Path) -> None:
    """Refused: other tables, the last table, a pipeline without changes; no request is written
    then.
    """
    config = pipeline(tmp_path, *URLS, tables=["public.item"])
    follows(config, ITEM)
    for command in (table_commands.pause, table_commands.resume, table_commands.resync):
        with pytest.raises(TableNotTaken):
            command(config, ODD)
    with pytest.raises(RequestRefused):
        table_commands.remove(config, ITEM)
    data = pipeline(tmp_path, *URLS, mode="data", file="data.toml")
    with pytest.raises(RequestRefused):
        table_commands.pause(data, ITEM)
    globbed = pipeline(tmp_path, *URLS, tables=["public.x", "!public.it*"], file="glob.toml")
    with pytest.raises(RequestRefused):
        table_commands.add(globbed, ITEM)
    assert read_requests(config) == TableRequests()


def test_a_name_that_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern matches it, and the source has none: it is refused, or forgotten if requested
    before.
    """
    config = pipeline(tmp_path, *URLS, tables=["public.*"])
    nowhere = TableName("public", "itme")
    follows(config, ITEM)
    monkeypatch.setattr(table_commands, "source_tables", lambda _: [])
    for command in (table_commands.pause, table_commands.resync, table_commands.remove):
        with pytest.raises(TableNotTaken):
            command(config, nowhere)
    table_requests.put_request(config, nowhere, lambda last, _: replace(last, paused=True))
    table_commands.resume(config, nowhere)
    assert read_requests(config).tables == ()
    left = TableSync(table=nowhere, state=SyncState.FOLLOWING)
    assert lines_from(config, {nowhere: left}, applied_gsn=0) == []
    assert [line.table for line in lines_from(config, {ITEM: left}, applied_gsn=0)] == [ITEM]


def test_what_is_shown() -> None:
    """The line has the state, the next state, the lag, and why it stands still."""
    added = TableRequest(table=ITEM, capture=Capture.ADDED, capture_id=1, copy_id=1)
    waiting = line_of(None, added, CaptureAnswers())
    assert (waiting.state, waiting.wanted) == ("waiting", "copying")
    answer = CaptureAnswer(table=ITEM, capture_id=1, code="PG66", error="may not", hint="run")
    refused = line_of(None, added, CaptureAnswers(tables=(answer,)))
    assert (refused.state, refused.code, refused.hint) == ("refused", "PG66", "run")
    paused = TableSync(table=ITEM, state=SyncState.PAUSED, applied=Applied(gsn=4))
    shown = line_of(paused, TableRequest(table=ITEM, paused=True), CaptureAnswers())
    assert (shown.state, shown.wanted) == ("paused", "")
    shown = line_of(paused, TableRequest(table=ITEM), CaptureAnswers())
    assert shown.wanted == "joining"


def test_a_table_of_a_binlog_is_followed_as_soon_as_it_is_taken_in(tmp_path: Path) -> None:
    """The notes on tables are kept only with the next transaction, which may be a while later."""
    config = pipeline(tmp_path, "mysql://u@h/s", URLS[1], tables=["s.item"])
    late = TableName("s", "late")
    REAL_FILES.make_directory(config.layout.state)
    StateFile(config.layout.state / NOTES_FILE, AllNotes).save(AllNotes())
    request = TableRequest(table=late, capture=Capture.ADDED, capture_id=1, copy_id=1)
    requests = StateFile(config.layout.state / REQUESTS_FILE, TableRequests)
    requests.save(TableRequests().with_request(request))
    assert not is_followed(config, late)
    done = CaptureAnswers().with_answer(CaptureAnswer(table=late, capture_id=1))
    StateFile(config.layout.state / CAPTURED_FILE, CaptureAnswers).save(done)
    assert is_followed(config, late)
    row = TableSync(table=late, state=SyncState.FOLLOWING, copy_id=1)
    assert [line.table for line in lines_from(config, {late: row}, applied_gsn=0)] == [late]


def plan_of(table: TableName) -> TablePlan:
    """Return the bulk load's plan of a table."""
    return TablePlan(
        source=table,
        target=table,
        columns=("id",),
        binary=False,
        position="0/1",
        snapshot_id="",
        snapshot_text="",
        chunks=(),
    )


def states_of(config: Config) -> dict[str, str]:
    """Return what `table ls` says about tables without a request."""
    lines = captured_lines(config)
    assert len({line.table for line in lines}) == len(lines), "each table has one line"
    return {str(line.table): line.state for line in lines}


def test_every_captured_table_is_listed(tmp_path: Path) -> None:
    """Tables are listed from the bulk load on; untouched and dropped ones, too."""
    loading = pipeline(tmp_path, *URLS, mode="data+change")
    assert states_of(loading) == {}
    ledger = Ledger(plans=[plan_of(ITEM), plan_of(ODD)])
    write_ledger(loading.layout.state, ledger)
    assert set(states_of(loading).values()) == {"loading"}
    ledger.finished = True
    write_ledger(loading.layout.state, ledger)
    follows(loading, ITEM)
    assert states_of(loading) == {"public.item": "following"}
    watch = WatchState(shapes=(), gone=(ITEM,))
    StateFile(loading.layout.state / WATCH_FILE, WatchState).save(watch)
    assert states_of(loading) == {"public.item": "dropped"}


def test_a_pipeline_that_loads_only(tmp_path: Path) -> None:
    """The pipeline's tables are those of the bulk load."""
    data = pipeline(tmp_path, *URLS, mode="data")
    write_ledger(data.layout.state, Ledger(plans=[plan_of(ITEM)], finished=True))
    assert states_of(data) == {"public.item": "loaded"}


@pytest.mark.parametrize(
    ("target", "sections", "reader", "is_put_into_log"),
    [
        (URLS[1], {}, "", False),
        (URLS[1], {}, "base", False),
        (URLS[1], {}, "merge", True),
        (None, {}, "merge", False),
        (URLS[1], {"consumers.one": {"class": "a:B"}}, "", True),
        (None, {"consumers.one": {"class": "a:B"}}, "", True),
    ],
)
def test_rows_of_an_added_table_are_put_into_a_log_that_others_read(
    tmp_path: Path,
    target: str | None,
    sections: dict[str, dict[str, str]],
    reader: str,
    *,
    is_put_into_log: bool,
) -> None:
    """The target alone gets a copy of the rows."""
    config = pipeline(tmp_path, URLS[0], target, mode="change", sections=sections)
    if reader:
        links.enable(config.layout.consumers / reader)
    request = make_add_request(config, ITEM, 7, replaces=False)
    assert request.resend_id == (7 if is_put_into_log else 0)
    assert request.comes_with_copy is is_put_into_log


def test_rows_are_not_sent_before_their_table_is_captured() -> None:
    """Changes between the rows and the capture would be missing."""
    request = TableRequest(table=ITEM, capture=Capture.ADDED, capture_id=1, copy_id=1, resend_id=1)
    assert CaptureAnswers().open_resends([request]) == []
    answers = CaptureAnswers().with_answer(CaptureAnswer(table=ITEM, capture_id=1))
    assert answers.open_resends([request]) == [request]
    refused = CaptureAnswers().with_answer(CaptureAnswer(table=ITEM, capture_id=1, error="no key"))
    assert refused.open_resends([request]) == []


@pytest.mark.parametrize(
    ("copy_id", "error", "is_answered"),
    [
        (0, resend_cancelled(ITEM, 1, 2), True),
        (1, resend_cancelled(ITEM, 1, 2), False),
        (1, PointUnfit("the stream is ahead", hint="again"), False),
        (1, table_unknown(ITEM), True),
        (1, PenstockError("not allowed", hint="grant"), True),
        (1, None, True),
    ],
)
def test_rows_that_cannot_be_read_now_are_sent_later(
    tmp_path: Path, copy_id: int, error: PenstockError | None, *, is_answered: bool
) -> None:
    """An operator repeats a command; a request that came with a copy repeats itself."""
    files = RequestFiles(_StateFiles(tmp_path, REAL_FILES))
    request = TableRequest(table=ITEM, resend_id=1, copy_id=copy_id)
    files.answer_resend(request, error)
    _, answers = files.read()
    assert answers.open_resends([request]) == ([] if is_answered else [request])
