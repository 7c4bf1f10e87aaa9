"""List of pipelines: what comes first and why, its curves and ages, and the start page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from harness.pipelines.readings import NOW_US, reading, status, trouble, watch
from penstock.control.doctor.past_errors import PastError
from penstock.control.pipeline.running import ProcessState
from penstock.control.status.status import Status, TableFacts, TableState
from penstock.load.loader_state import LoaderState
from penstock.model import TableName
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.attention import Rank, assess, coarse_age, count_sentence, error_age
from penstock.web.reading import PipelineWatch, Reading, Sample

LOCAL = "http://127.0.0.1:8765"
REFUSED = TableFacts(
    table=TableName("public", "odd"), state=TableState.REFUSED, share=None, error="no key"
)


def calm(found: Status | None = None, **changed: object) -> Reading:
    """Return a reading of a pipeline that needs no attention."""
    return replace(reading(found), **{"errors": (), **changed})  # type: ignore[arg-type]


def stopped_status() -> Status:
    """Return a pipeline none of whose processes runs; its newest commit is 15 minutes old."""
    names = ("run", "extract", "load")
    found = status()
    end = replace(found.log.end, commit_time_us=NOW_US - 900 * 10**6)
    return replace(
        found,
        processes=tuple(ProcessState(name=name, pid=0) for name in names),
        log=replace(found.log, end=end),
    )


def lagging(seconds: float, *, for_s: int = 120) -> tuple[Sample, ...]:
    """Return two minutes of samples, the last ones with this lag."""
    return tuple(
        Sample(
            at_s=float(second),
            lag_s=seconds if second >= 120 - for_s else 0.5,
            extracted_transactions=1.0,
            loaded_transactions=1.0,
        )
        for second in range(120)
    )


def error(at: str = "2026-11-18T10:59:30+00:00") -> PastError:
    """Return an error that ended a process; the readings are of 2026-11-18 11:06:40."""
    return PastError(at=at, command="load", code="TG99", error="the disk is full")


CASES = {
    "trouble": (calm(troubles=(trouble(),)), Rank.ERROR, "no connection to the target"),
    "source away": (calm(status(lag_s=None)), Rank.ERROR, "the source does not answer"),
    "a table is refused": (calm(tables=(REFUSED,)), Rank.ERROR, "table public.odd refused"),
    "tables are refused": (calm(tables=(REFUSED, REFUSED)), Rank.ERROR, "2 tables with errors"),
    "ended by an error": (
        calm(
            stopped_status(),
            errors=(error(),),
            loader=LoaderState(pid=1, updated_us=NOW_US - 10**9),
        ),
        Rank.ENDED,
        "the disk is full",
    ),
    "stopped long after an error": (
        calm(stopped_status(), errors=(error(),), loader=LoaderState(pid=1, updated_us=NOW_US)),
        Rank.HELD,
        "",
    ),
    "far behind": (calm(history=lagging(61)), Rank.BEHIND, "lag of more than a minute"),
    "far behind for a moment": (calm(history=lagging(61, for_s=9)), Rank.GOOD, ""),
    "not read": (calm(at_us=NOW_US - 130 * 10**6), Rank.BEHIND, "not read for 2 min"),
    "paused": (calm(status(action="PAUSE")), Rank.HELD, ""),
    "bulk load": (calm(status(done=False)), Rank.BUSY, ""),
    "follows": (calm(errors=(error(),)), Rank.GOOD, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_how_urgently_a_pipeline_needs_attention(case: str) -> None:
    """Present errors come first, then processes that ended with one, then a lag; an old error of a
    pipeline that works again does not count.
    """
    found, rank, reason = CASES[case]
    attention = assess(found, now_us=NOW_US)
    assert (attention.rank, attention.reason) == (rank, reason)


def index_of(tmp_path: Path, **readings: Reading) -> str:
    """Return the list of pipelines with these readings."""
    watches: list[PipelineWatch] = []
    for name, found in readings.items():
        (tmp_path / name).mkdir()
        watches.append(watch(tmp_path / name, found, name=name))
    site = Interface(watches, access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL) as client:
        page = client.get("/").text
    site.close()
    return page


def test_what_needs_attention_comes_first(tmp_path: Path) -> None:
    """Within a class the order is that of names, so that rows do not change places constantly."""
    page = index_of(
        tmp_path,
        zebra=calm(),
        alpha=calm(history=lagging(3)),
        loads=calm(status(done=False)),
        late=calm(history=lagging(700)),
        broken=calm(troubles=(trouble(),)),
    )
    assert re.findall(r'id="to-(\w+)"', page) == ["broken", "late", "loads", "alpha", "zebra"]
    assert "5 pipelines. 2 need attention." in page
    assert page.count('<tr role="row" class="urgent">') == 2
    assert 'aria-label="Lag of late: at most 11 min 40 s in the last 2 min"' in page


def test_the_last_error_has_an_age_and_a_link(tmp_path: Path) -> None:
    """The link leads to the tab with its cause and next command."""
    page = index_of(tmp_path, shop=calm(errors=(error(),)), other=calm())
    (link,) = re.findall(r'<a id="error-of-shop" href="([^"]+)" title="([^"]+)">', page)
    assert link == ("/pipelines/shop#errors", "the disk is full")
    assert '<span class="code">TG99</span> 7 min</a>' in page
    assert "error-of-other" not in page


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "< 1 min"), (59, "< 1 min"), (3599, "59 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_an_age_does_not_change_at_every_look(seconds: float, words: str) -> None:
    """Ages are in whole minutes, hours or days."""
    assert coarse_age(seconds) == words


def test_an_error_without_a_time_has_no_age() -> None:
    """A line of the errors' file that another program wrote does not break the page."""
    assert error_age(error("yesterday"), NOW_US) == ""
    assert error_age(error("2026-11-18T11:05:40"), NOW_US) == "1 min"


def test_the_sentence_counts() -> None:
    """One pipeline needs attention; two need it."""
    assert count_sentence([Rank.GOOD]) == "1 pipeline. None needs attention."
    assert count_sentence([Rank.GOOD, Rank.ERROR]) == "2 pipelines. 1 needs attention."
    assert count_sentence([Rank.ENDED, Rank.ERROR]) == "2 pipelines. 2 need attention."


def test_without_pipelines_the_page_says_how_to_begin(tmp_path: Path) -> None:
    """The steps are commands; nothing is updated, and nothing is listed."""
    page = index_of(tmp_path)
    for command in ("demo", "init", "doctor", "run", "web"):
        assert re.search(rf"<code>penstock {command}\b", page), command
    assert "data-events" not in page
    assert "<table" not in page


def test_a_pipeline_that_never_ran_names_its_command(tmp_path: Path) -> None:
    """The tile of the state has the next command."""
    new = stopped_status()
    new = replace(
        new, handover=None, log=replace(new.log, log_id=""), target=replace(new.target, bulk=None)
    )
    made = watch(tmp_path, calm(new))
    site = Interface([made], access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL) as client:
        page = client.get("/pipelines/shop").text
    site.close()
    assert "<code>penstock run shop.toml</code>" in page
