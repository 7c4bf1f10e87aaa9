"""The web interface of a running pipeline, viewed and used in a real browser."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.keys import Keys

from harness.pipelines.pipeline import penstock, write_pipeline
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
from harness.servers.web_shop import Shop
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TABS = ("bulk", "replication", "tables", "consumers", "errors", "doctor", "verify")


@dataclass(frozen=True, slots=True)
class Looked:
    """The shop, its web interface, and the browser on its page."""

    shop: Shop
    web: WebProcess
    browser: Browser

    @property
    def page(self) -> str:
        """Page of the shop's pipeline."""
        return f"{self.web.url}/pipelines/shop"

    def facts(self) -> dict[str, Any]:
        """Return the page's facts as JSON."""
        with urlopen(f"{self.web.url}/api/pipelines/shop", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def show(self, tab: str, size: tuple[int, int] = DESKTOP) -> Browser:
        """Load the page again, at a size, with a tab in front; the page's own if none."""
        self.browser.size(*size)
        self.browser.open("about:blank")
        self.browser.open(f"{self.page}#{tab}" if tab else self.page)
        return self.browser


@pytest.fixture(scope="module")
def running(
    postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, WebProcess]]:
    """Pipeline that follows a busy shop."""
    shop = Shop(tmp_path_factory.mktemp("shop"), postgres)
    try:
        shop.pair.start()
        with WebProcess(shop.pair.path, "--port", 0) as web:
            shop.pair.settle()
            shop.let_customers_in()
            yield shop, web
            assert web.stop() == 0
            assert web.err == []
        shop.pair.stop()
    finally:
        shop.close()


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def visit(running: tuple[Shop, WebProcess], shared_browser: Browser) -> Iterator[Looked]:
    """All three; the test fails if the browser logged errors."""
    yield Looked(*running, shared_browser)
    complaints = shared_browser.complaints()
    shared_browser.open(
        "about:blank"
    )  # a page must not outlive its server: the next test has another
    shared_browser.complaints()
    assert complaints == []


def test_the_lag_is_a_plot_that_moves(visit: Looked) -> None:
    """The curve is redrawn automatically, and the numbers beside it are those of the pipeline."""
    seen = visit.show("replication")
    curve = "return document.querySelector('#lag-curve').getAttribute('d')"
    seen.until_text("[data-region=lag]", "now, at most")
    curves = [until(lambda: seen.run(curve), "a curve")]
    for _ in range(3):
        curves.append(until(lambda: (d := seen.run(curve)) != curves[-1] and d, "it moves", 15))
    assert len(set(curves)) == 4
    assert seen.text("#connection") == "live"
    positions = seen.text("[data-region=positions]")
    assert re.search(r"Source's end\s+[0-9A-F]+/[0-9A-F]+", positions)
    assert re.search(r"Extractor: change log\s+[0-9A-F]+/[0-9A-F]+", positions)
    assert re.search(r"Loader: target\s+[0-9A-F]+/[0-9A-F]+", positions)
    kept = until(lambda: visit.facts()["source_keeps"], "what the source keeps")
    assert kept["size_bytes"] > 0
    assert kept["age_seconds"] is not None
    until(lambda: visit.facts()["speeds"]["extracted_transactions"] > 1, "customers are seen")
    until(lambda: visit.facts()["speeds"]["loaded_transactions"] > 1, "and loaded")
    assert "per second now" in seen.text("[data-region=speeds]")


def test_the_bulk_load_and_the_changes_by_kind_are_shown_exactly(visit: Looked) -> None:
    """Loaded rows, and committed inserts, updates and deletes, are counted exactly."""
    pair, seen = visit.shop.pair, visit.show("bulk")
    loaded = seen.until_text("[data-region=bulk]", "done:")
    assert re.search(r"public\.orders\s+100 %\s+120.000", loaded)
    assert "4 of 4 steps are done" in loaded
    pair.run("insert into counted select n, 'a' from generate_series(1, 30) as n")
    pair.run("update counted set note = 'b' where id <= 20")
    pair.run("delete from counted where id <= 10")
    pair.run("truncate counted")
    seen.click("#tab-tables")
    seen.until_text("[data-region=tables]", "public.counted\tfollows changes\t30\t20\t10\t1")
    assert "No error" in visit.show("errors").text("[data-region=errors]")


def run_doctor(seen: Browser) -> str:
    """Press the button twice, as a double click does, and wait for the result."""
    before = seen.text("[data-region=doctor] .when")
    seen.click("#doctor-button")
    seen.click("#doctor-button")
    until(lambda: seen.text("[data-region=doctor] .when") not in ("", before), "doctor has ended")
    assert "checks done" in seen.text("[data-region=doctor]")
    assert seen.read_focus() == "doctor-button"
    return seen.text("[data-region=doctor]")


def test_doctor_and_verify_run_by_their_buttons(visit: Looked) -> None:
    """Findings appear as they come; a row that differs is named."""
    pair, seen = visit.shop.pair, visit.show("doctor")
    shown = run_doctor(seen)
    assert "0 errors" in shown
    assert "PG25" in shown
    assert "alter system set max_slot_wal_keep_size" in shown
    seen.click("#tab-verify")
    time.sleep(1)  # two presses within a second count as a mistake
    seen.click("#verify-button")
    seen.until_text("#announcer", "Verify: source and target are equal", 120)
    seen.until_text("[data-region=verify]", "Source and target are equal")
    assert seen.read_focus() == "verify-button"
    pair.target.execute("update public.kept set note = 'spoiled' where id = 17")
    pair.target.execute("delete from public.kept where id = 18")
    try:
        time.sleep(1)
        seen.click("#verify-button")
        shown = seen.until_text("[data-region=verify]", "Source and target differ", 120)
    finally:
        pair.target.execute("update public.kept set note = 'note 17' where id = 17")
        pair.target.execute("insert into public.kept values (18, 'note 18')")
    assert re.search(r"public\.kept\s+differs\s+50\s+49\s+1\s+0\s+1", shown)
    assert "(17) differs" in shown
    assert "(18) in the source only" in shown


def test_pause_and_resume_by_their_button(visit: Looked) -> None:
    """No row arrives between the two, and all of them after."""
    pair, seen = visit.shop.pair, visit.show("replication")
    seen.until_text("[data-region=actions]", "Pause pipeline")  # as soon as the target has answered
    seen.click("#pause")
    seen.until_text("[data-region=summary]", "paused")
    action = "select action from wirekite.wirekite_action"
    assert pair.target.execute(action).fetchone() == ("PAUSE",)
    seen.until_text("[data-region=actions]", "Resume pipeline")
    time.sleep(1)
    seen.click("#resume")
    seen.until_text("[data-region=summary]", "following changes")
    assert pair.target.execute(action).fetchone() == ("RUN",)
    pair.settle()


def test_the_page_is_used_with_the_keyboard_alone(visit: Looked) -> None:
    """Skip link, arrow keys between tabs, Enter and Space work; the focus stays in place."""
    first = "return document.querySelector('[data-tabs]').dataset.first"
    # During a start, which another test may have caused, the bulk load is in front.
    until(lambda: visit.show("").run(first) == "replication", "the pipeline follows changes")
    seen = visit.show("")
    seen.keys(Keys.TAB)
    assert seen.run("return document.activeElement.className") == "skip"
    seen.keys(Keys.ENTER)
    until(lambda: seen.read_focus() == "main", "the content has the focus")
    for _ in range(6):
        seen.keys(Keys.TAB)
        if seen.read_focus().startswith("tab-"):
            break
    assert seen.read_focus() == "tab-replication"
    for key, tab in (
        (Keys.ARROW_RIGHT, "tables"),
        (Keys.END, "verify"),
        (Keys.ARROW_RIGHT, "bulk"),
        (Keys.ARROW_LEFT, "verify"),
        (Keys.HOME, "bulk"),
    ):
        seen.keys(key)
        assert seen.read_focus() == f"tab-{tab}"
        shown = [name for name in TABS if seen.one(f"#{name}").is_displayed()]
        assert shown == [tab]
        assert seen.one(f"#tab-{tab}").get_attribute("aria-selected") == "true"
    seen.keys(Keys.TAB)
    assert seen.read_focus() == "bulk"  # the panel behind its tab
    number = visit.facts()["read_at_us"]
    until(lambda: visit.facts()["read_at_us"] > number + 2_000_000, "updates came")
    assert seen.read_focus() == "bulk"
    seen.run("document.querySelector('#hold').focus()")
    seen.keys(Keys.SPACE)
    assert seen.one("#hold").get_attribute("aria-pressed") == "true"
    time.sleep(0.5)
    before = seen.text("main")
    time.sleep(2.5)
    assert seen.text("main") == before
    seen.keys(Keys.SPACE)
    seen.run("document.querySelector('#tab-replication').click()")
    moved = seen.text("[data-region=positions]")
    until(lambda: seen.text("[data-region=positions]") != moved, "it moves again")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "320px"])
def test_pages_are_readable_for_everybody(visit: Looked, size: tuple[int, int]) -> None:
    """Pages have one h1, captions, names, contrast in both shades, and fit the screen."""
    seen = visit.show("doctor", size)
    run_doctor(seen)
    for shade in ("light", "dark"):
        seen.media("prefers-color-scheme", shade)
        for tab in TABS:
            seen.click(f"#tab-{tab}")
            assert seen.run(CONTRASTS) == [], (tab, shade)
            found = seen.run(OUTLINE)
            assert (found["h1"], found["tables"], found["images"]) == (1, 0, 0), tab
            assert found["twice"] == []
            assert found["wide"] <= 0, tab
            levels = found["levels"]
            assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), levels
    seen.media("prefers-color-scheme", "light")
    for selector in ("button", "a", "summary", "progress", "[role=tab]", "[role=tabpanel]", "svg"):
        assert nameless(seen, selector) == 0, selector
    assert [tab.aria_role for tab in seen.all("[data-tabs] a")] == ["tab"] * len(TABS)
    assert seen.one("[data-tabs]").aria_role == "tablist"
    small = seen.run(
        "return [...document.querySelectorAll('button, [role=tab]')]"
        ".filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 36).length"
    )
    assert small == 0
    seen.open(visit.web.url)
    seen.until_text("[data-region=pipelines]", "following changes")
    assert seen.run(CONTRASTS) == []
    assert seen.run(OUTLINE)["wide"] <= 0


def nameless(seen: Browser, selector: str) -> int:
    """Return the number of visible elements without name; the page may replace them meanwhile."""
    for _ in range(10):
        try:
            found = seen.all(selector)
            return sum(1 for one in found if one.is_displayed() and not one.accessible_name)
        except StaleElementReferenceException:
            time.sleep(0.1)
    raise AssertionError(f"{selector} is never there for long")


def test_who_wants_calm_gets_it(visit: Looked) -> None:
    """The plot stays still for seconds at a time with reduced motion."""
    seen = visit.show("replication")
    seen.calm(True)
    try:
        seen.run(
            "window.moves = 0; new MutationObserver(() => window.moves++).observe("
            "document.querySelector('[data-region=lag]'), {childList: true})"
        )
        time.sleep(6)
        assert 1 <= seen.run("return window.moves") <= 2
    finally:
        seen.calm(False)


def test_the_facts_are_there_without_javascript(visit: Looked) -> None:
    """All parts of the page follow each other without JavaScript, and forms work."""
    seen = visit.browser
    seen.scripts(False)
    try:
        visit.show("bulk")
        page = str(seen.driver.page_source)
        assert "following changes" in page
        assert "public.orders" in page
        assert all(seen.one(f"#{tab}").is_displayed() for tab in TABS)
        seen.click("#doctor-button")
        until(lambda: seen.driver.current_url.endswith("#doctor"), "the doctor's page")
        until(lambda: "checks done" in str(look_again(seen)), "doctor's report")
    finally:
        seen.scripts(True)


class Hand:
    """Presses buttons, and records which ones exist."""

    def __init__(self, seen: Browser, page: str, *, scripts: bool) -> None:
        self.seen = seen
        self.page = page
        self.scripts = scripts
        self.there: set[str] = set()
        self.pressed: set[str] = set()

    def go(self, tab: str) -> None:
        """Load the page again, with a tab in front if there are tabs."""
        self.seen.open("about:blank")
        self.seen.open(f"{self.page}#{tab}")

    def press(self, name: str, *, opens: str = "", types: tuple[str, str] = ("", "")) -> str:
        """Press this button, and return the visible notice. opens: pressed before it."""
        found = self.seen.run(
            "return [...document.querySelectorAll('button')].filter((b) => !b.closest('[hidden]'))"
            ".map((b) => b.id)"
        )
        self.there |= {str(one).partition("-public.")[0] for one in found}
        self.pressed.add(name.partition("-public.")[0])
        if opens:
            self.seen.click(f"[id='{opens}'] summary")
        if types[0]:
            self.seen.one(types[0]).send_keys(types[1])
        self.seen.run("window.before = true")
        self.seen.click(f"[id='{name}']")
        if not self.scripts:
            # Leaving before its answer arrives would cancel the press.
            until(lambda: not self.seen.run("return window.before"), f"the answer to {name}")
            return self.seen.text("main")
        until(lambda: self.seen.text("#notice-text"), f"the notice about {name}")
        box = self.seen.run(
            "const b = document.querySelector('#notice').getBoundingClientRect();"
            "return [b.top >= 0, b.bottom <= innerHeight, b.left >= 0, b.right <= innerWidth]"
        )
        assert box == [True] * 4, "the message is off screen"
        shown = self.seen.text("#notice-text")
        self.seen.click("#notice-close")
        self.pressed.add("notice-close")
        return shown


@pytest.fixture(params=[True, False], ids=["javascript", "plain"])
def scripts(request: pytest.FixtureRequest, shared_browser: Browser) -> Iterator[bool]:
    """Setting of the browser: with JavaScript and without."""
    shared_browser.scripts(request.param)
    yield request.param
    shared_browser.scripts(True)


def test_every_button_of_a_pipeline_does_what_it_says(visit: Looked, scripts: bool) -> None:
    """Buttons of pipeline, tables, doctor and verify cause no error, and none is left out."""
    pair, hand = visit.shop.pair, Hand(visit.browser, visit.page, scripts=scripts)
    visit.browser.size(*DESKTOP)

    def product() -> str:
        [found] = [one for one in visit.facts()["tables"] if one["table"] == "public.product"]
        return str(found["state"]) if not found["wanted"] else ""

    def comes_to(state: str) -> None:
        until(lambda: product() == state, f"public.product {state}")
        hand.go("tables")
        assert re.search(rf"public\.product\s+{state}", visit.browser.text("#tables"))

    hand.go("replication")
    hand.press("pause")
    until(lambda: visit.facts()["state"] == "paused", "the pipeline is paused")
    hand.go("replication")
    hand.press("resume")
    until(lambda: visit.facts()["state"] == "following changes", "the pipeline goes on")
    comes_to("follows changes")
    shown = hand.press("flow-public.product")
    assert "public.product" in shown
    comes_to("paused")
    hand.press("flow-public.product")
    comes_to("follows changes")
    pair.target.execute("update public.product set title = 'spoiled' where id = 17")
    hand.press("resync-now-public.product", opens="resync-public.product")
    title = "select title from public.product where id = 17"
    until(lambda: pair.target.execute(title).fetchone() == ("thing 17",), "it is copied again")
    for name in ("flow-public.product", "add-table"):
        comes_to("follows changes")
        hand.press("remove-now-public.product", opens="remove-public.product")
        comes_to("removed")
        field = ("#add-name", "public.product") if name == "add-table" else ("", "")
        hand.press(name, types=field)
    comes_to("follows changes")
    wrong = hand.press("add-table", types=("#add-name", "public.nothing"))
    assert "no table public.nothing" in wrong
    assert all("409" in one for one in visit.browser.complaints())  # only that answer
    for kind in ("doctor", "verify"):
        hand.go(kind)
        hand.press(f"{kind}-button")
        until(lambda k=kind: "Ended" in look_at(hand, k), f"{kind} has ended")
    # Two are pressed below, and one in the test of the keyboard.
    assert hand.there - hand.pressed <= {"doctor-stop", "verify-stop", "hold"}


def test_what_runs_is_stopped_by_its_button(
    tmp_path: Path, shared_browser: Browser, scripts: bool
) -> None:
    """Doctor and verify wait for silent servers; both are stopped between login and logout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d?connect_timeout=60"
        path = write_pipeline(tmp_path, url, url, mode="change")
        token = {"PENSTOCK_WEB_TOKEN": "a token that is hard to guess"}
        with WebProcess(path, "--port", 0, environment=token) as web:
            hand = Hand(shared_browser, f"{web.url}/pipelines/shop", scripts=False)
            hand.go("")
            hand.press("log-in", types=("#token", token["PENSTOCK_WEB_TOKEN"]))
            hand.scripts = scripts
            for kind in ("doctor", "verify"):
                hand.go(kind)
                hand.press(f"{kind}-button")
                until(
                    lambda k=kind: shared_browser.all(f"#{k}-stop"), "there is a button to stop it"
                )
                hand.press(f"{kind}-stop")
                until(lambda k=kind: "Stopped" in look_at(hand, k), f"{kind} has stopped")
            hand.scripts = False
            hand.press("log-out")
            assert shared_browser.driver.current_url.endswith("/login")
            assert hand.there - hand.pressed <= {"hold", "add-table"}  # pressed above
            shared_browser.open("about:blank")
            shared_browser.complaints()


def look_at(hand: Hand, kind: str) -> str:
    """Return the page's text on doctor or verify; the page is loaded again if it has no scripts."""
    if not hand.scripts:
        hand.go(kind)
    return hand.seen.text(f"[data-region={kind}]")


def look_again(seen: Browser) -> str:
    """Load the page again."""
    seen.driver.refresh()
    return str(seen.driver.page_source)


def test_errors_are_shown_with_code_cause_and_next_command(
    postgres: Server, tmp_path: Path, shared_browser: Browser
) -> None:
    """The error that ended a process is shown, and the current problem."""
    source, target = postgres.make_database("source"), postgres.make_database("target")
    path = write_pipeline(tmp_path, source, target, mode="data")
    (tmp_path / "shop").mkdir()
    assert penstock("extract", path, "--json").error["code"] == "CT20"
    with WebProcess(path, "--port", 0) as web:
        shared_browser.size(*DESKTOP)
        shared_browser.open(f"{web.url}/pipelines/shop#errors")
        shown = shared_browser.until_text("[data-region=errors]", "CT20")
        assert "penstock extract" in shown
        assert 'Set mode = "data+change"' in shown
        postgres.drop_database(target)
        shown = shared_browser.until_text("[data-region=errors]", "does not exist")
        assert "Now" in shown
        shared_browser.until_text("[data-region=troubles]", "Next:")
        assert web.stop(signal.SIGTERM) == 0
    shared_browser.open("about:blank")
    shared_browser.complaints()  # the stream was cut: the test wanted this
    postgres.drop_database(source)


def test_a_run_serves_its_page_and_takes_it_along(postgres: Server, tmp_path: Path) -> None:
    """One Ctrl-C ends `penstock run --web` with its page, and the port is closed."""
    shop = Shop(tmp_path, postgres, slot="beside_its_page")
    try:
        with WebProcess(
            shop.pair.path, "--web", "--web-port", 0, "--verbose", command="run"
        ) as run:
            address = f"{run.url}/api/pipelines/shop"

            def following() -> bool:
                with urlopen(address, timeout=30) as answer:
                    return bool(json.load(answer)["state"] == "following changes")

            until(following, "the page tells that changes are followed", 180)
            assert run.stop(signal.SIGINT, within_s=60) == 0, run.err
            with pytest.raises(OSError, match="refused"):
                urlopen(address, timeout=5)
    finally:
        shop.close()
