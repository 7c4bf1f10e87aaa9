"""Unknown figures on the web page: no rate of 0, no sentence in the largest type."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
from starlette.testclient import TestClient

from harness.pipelines.readings import bulk, lag, reading, status, watch
from penstock.load.bulk_progress import BulkProgress
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.reading import Reading, SpeedMeter, Speeds, lag_reason, lag_words

PAGE = "/pipelines/shop"
LOCAL = "http://127.0.0.1:8765"
UNKNOWN = "nothing is loaded yet: the rows of 240 tables are being copied at one position"


def loading(rows_per_s: float) -> Reading:
    """Return a reading of a bulk load under way, at so many rows per second."""
    load: BulkProgress = msgspec.structs.replace(
        bulk(),
        rows_per_s=rows_per_s,
        bytes_per_s=0.0,
        eta_s=None,
        tables=tuple(
            msgspec.structs.replace(one, rows_per_s=0.0, eta_s=None) for one in bulk().tables
        ),
    )
    found = status(done=False)
    found = replace(
        found,
        lag=replace(lag(1.5), seconds=None, unknown=UNKNOWN),
        target=replace(found.target, bulk=load),
    )
    return reading(found, bulk=load, speeds=SpeedMeter().add(0.0, found), history=())


def pages(tmp_path: Path, found: Reading) -> tuple[str, str]:
    """Return the page of the pipeline and the list of pipelines."""
    made = watch(tmp_path, found)
    site = Interface([made], access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL) as client:
        both = client.get(PAGE).text, client.get("/").text
    site.close()
    return both


def test_a_rate_that_is_not_known_is_not_shown(tmp_path: Path) -> None:
    """While tables are loaded the page shows their speed, or nothing."""
    for text in pages(tmp_path, loading(0.0)):
        assert "0 rows/s" not in text
        assert "0 B/s" not in text
        assert "time to go: not known" not in text
        assert "0 loaded" not in text
        assert loaded_rate(text) == "–"
    for text in pages(tmp_path, loading(1234.0)):
        assert loaded_rate(text) == "1 234"


def loaded_rate(page: str) -> str:
    """Return the rate of the load that a page or the list shows."""
    found = re.search(
        r'(?:<dt>Loaded</dt>\s*<dd class="big">|"Loaded" class="number">)([^<]*)<', page
    )
    assert found
    return found[1]


def test_an_unknown_lag_is_one_word_in_the_card(tmp_path: Path) -> None:
    """The reason is beside the plot, in text of normal size."""
    found = loading(0.0)
    assert (lag_words(found), lag_reason(found)) == ("unknown", UNKNOWN)
    page, index = pages(tmp_path, found)
    assert '<dt>Lag</dt><dd class="big">unknown</dd>' in page
    assert f"not known: {UNKNOWN}" in page
    assert UNKNOWN not in index


def test_speeds_are_known_after_two_readings() -> None:
    """One reading gives no rate; while tables are loaded there is no rate of changes."""
    meter, found = SpeedMeter(), status()
    assert meter.add(0.0, found) == Speeds()
    more = replace(
        found,
        log=replace(found.log, end=replace(found.log.end, gsn=1210)),
        target=replace(found.target, applied=replace(found.target.applied, gsn=1005)),
    )
    speeds = meter.add(10.0, more)
    assert (speeds.extracted_rows, speeds.loaded_rows) == (1.0, 0.5)
    meter, before = SpeedMeter(), status(done=False)
    meter.add(0.0, before)
    after = replace(before, log=replace(before.log, end=replace(before.log.end, gsn=1210)))
    assert meter.add(10.0, after) == Speeds(extracted_rows=1.0)
