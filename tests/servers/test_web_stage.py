"""The pages of a pipeline with [stage], in a real browser, while `penstock stage` works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from harness.feeds.web_stage import StagedShop
from harness.pipelines.pipeline import penstock
from harness.servers.web import (
    CONTRASTS,
    DESKTOP,
    OUTLINE,
    PHONE,
    Browser,
    WebProcess,
    browser,
    until,
)
from plugins.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TABS = ("stage", "apply", "lag", "errors", "doctor")
# Cells that exceed their part of the page.
CUT = """
return [...document.querySelectorAll("section td, section th")].filter((e) => e.checkVisibility()
  && e.getBoundingClientRect().right > e.closest("section").getBoundingClientRect().right + 1)
  .map((e) => e.innerText);
"""


@pytest.fixture
def shop(postgres: Server, tmp_path: Path) -> Iterator[StagedShop]:
    """Shop with its databases."""
    made = StagedShop(tmp_path, postgres)
    yield made
    made.close()


@pytest.fixture
def checked_browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser; the test fails if it logged errors."""
    with browser(tmp_path / "browser") as opened:
        yield opened
        assert opened.complaints() == []


def text_of(url: str) -> str:
    """Return the content of an address."""
    with urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def facts(web: WebProcess) -> dict[str, Any]:
    """Return the schema of the page's JSON."""
    found: dict[str, Any] = json.loads(text_of(f"{web.url}/api/pipelines/shop"))
    schemas = found["status"]["schemas"]
    return schemas[0] if schemas else {}


@dataclass(frozen=True, slots=True)
class Looked:
    """A working instance, the web interface of another one, and the browser on its page."""

    shop: StagedShop
    stage: WebProcess
    web: WebProcess
    seen: Browser

    def show(self, tab: str) -> Browser:
        """Load the page again, with a tab in front."""
        self.seen.open("about:blank")
        self.seen.open(f"{self.web.url}/pipelines/shop#{tab}")
        return self.seen

    def metrics(self) -> str:
        """Return the metrics for Prometheus."""
        return text_of(f"{self.web.url}/metrics")


def test_pages_show_what_the_databases_say(shop: StagedShop, checked_browser: Browser) -> None:
    """The other instance has its own directory: the process that works is not asked."""
    with (
        WebProcess(shop.file("one"), "--create", command="stage") as stage,
        WebProcess(shop.file("other"), "--port", 0) as web,
    ):
        looked = Looked(shop, stage, web, checked_browser)
        checked_browser.size(*DESKTOP)
        before_any_checkpoint(looked)
        check_applied(looked)
        a_problem(looked)
        assert stage.stop() == 0
        # The facts stay when no process works any more.
        looked.show("apply").until_text("[data-region=stage-summary]", "no instance works")
        assert "none works" in checked_browser.text("[data-region=stage-summary]")
        assert "no instance works on it" in checked_browser.text("[data-region=stage-apply]")
        look_right(looked)
        checked_browser.open("about:blank")
        assert web.stop() == 0
        assert web.err == []


def before_any_checkpoint(looked: Looked) -> None:
    """Check that single tables are written at once, and that tables with references wait."""
    shop, stage, web = looked.shop, looked.stage, looked.web
    seen = looked.show("stage")
    seen.until_text("[data-region=stage-summary]", "nothing received yet")
    assert "no changefeed has posted" in seen.text("[data-region=stage-rows]")
    assert penstock("lag", shop.file("other")).code == 1
    shop.rows(stage.url, "orders", [{"id": n, "note": "new"} for n in range(30)])
    shop.rows(stage.url, "parent", [{"id": n, "n": 1} for n in range(20)])
    bars = seen.until_text("[data-region=stage-bars]", "30 of 50 rows applied")
    assert "60 % backfill of" in bars
    assert "to go" not in bars  # it is not known yet
    rows = seen.text("[data-region=stage-rows]")
    assert re.search(r"orders\s+30\s+30\s+0\s+–", rows)
    assert re.search(r"parent\s+20\s+0\s+20\s+[\d.]+ s", rows)
    assert facts(web)["lag_seconds"] is None
    seen = looked.show("lag")
    seen.until_text("[data-region=stage-lag]", "applied unknown, received unknown")
    metrics = looked.metrics()
    assert "penstock_stage_waiting_rows{" in metrics
    assert "checkpoint_committed_age_seconds{" not in metrics


def check_applied(looked: Looked) -> None:
    """Check that everything is applied and committed after a resolved timestamp."""
    shop, stage = looked.shop, looked.stage
    seen = looked.show("lag")
    shop.resolve(stage.url)
    until(lambda: facts(looked.web).get("waiting") == 0, "all is applied")
    seen.until_text("[data-region=stage-lag]", "s behind, received")
    curve = "return document.querySelector('#lag-plot-1 .curve').getAttribute('d')"
    until(lambda: len(seen.run(curve)) > 20, "a curve")
    seen = looked.show("apply")
    said = seen.until_text("[data-region=stage-apply]", "Lease")
    assert "bestEffort, since" in said
    assert re.search(r"Lease\s+\S+, until \d{4}-", said)
    assert re.search(r"Dead letters\s+1\b", said)
    assert "No problem is noted." in said
    assert seen.text("[data-region=stage-bars]") == ""
    assert penstock("lag", shop.file("other")).code == 0
    assert f"schema {shop.schema}" in penstock("status", shop.file("other")).out
    metrics = looked.metrics()
    assert "checkpoint_committed_age_seconds{" in metrics
    assert "target_applied_timestamp_seconds{" in metrics
    own = text_of(f"{stage.url}/_/varz")
    assert f'checkpoint_committed_age_seconds{{schema="{shop.schema}"}}' in own
    selected = re.search(r'stage_select_mutations_total{.*table="parent"} (\S+)', own)
    assert selected is not None
    assert float(selected[1]) >= 20


def a_problem(looked: Looked) -> None:
    """Check the error of a column that the target lacks, until the target has it."""
    shop, stage = looked.shop, looked.stage
    seen = looked.show("apply")
    shop.rows(stage.url, "parent", [{"id": 1, "n": 1, "other": 5}])
    shop.resolve(stage.url)
    said = seen.until_text("[data-region=stage-apply]", "ST60")
    assert "schema drift detected" in said
    assert "Alter the target's table" in said
    assert facts(looked.web)["waiting"] == 1
    shop.run("alter table parent add column other int")
    seen.until_text("[data-region=stage-apply]", "something was applied since")
    assert "ST60" in text_of(f"{looked.web.url}/api/pipelines/shop")


def look_right(looked: Looked) -> None:
    """Check every tab on a screen and on a phone, light and dark; doctor's button works."""
    seen = looked.seen
    for size in (DESKTOP, PHONE):
        for tab in TABS:
            for shade in ("light", "dark"):
                seen.size(*size)
                seen.media("prefers-color-scheme", shade)
                looked.show(tab)
                seen.until_text("#connection", "live")
                assert seen.run(CONTRASTS) == [], (tab, shade)
                found = seen.run(OUTLINE)
                assert (found["h1"], found["tables"], found["images"]) == (1, 0, 0)
                assert found["twice"] == []
                assert found["wide"] <= 0, (tab, size)
                assert seen.run(CUT) == [], (tab, size)
    seen.size(*DESKTOP)
    seen.media("prefers-color-scheme", "light")
    looked.show("doctor")
    seen.click("#doctor-button")
    seen.until_text("[data-region=doctor]", "checks done")
