"""Requests to the web interface, without a server: pages, forms, JSON, access."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from harness.pipelines.followed import follows
from harness.pipelines.readings import (
    HOSTILE,
    NOW_US,
    ORDERS,
    reading,
    source_away,
    spark_report,
    status,
    trouble,
    watch,
)
from penstock.control.pipeline.outages import Retry
from penstock.control.pipeline.table_requests import read_requests
from penstock.control.status.lag import TargetState
from penstock.control.tables.table_list import TableLine
from penstock.model import TableName
from penstock.model.table_requests import Capture
from penstock.web.access import Access, Hosts
from penstock.web.app import TABLE_ACTIONS, Interface
from penstock.web.reading import PipelineWatch, Reading
from penstock.web.watching import IDLE_INTERVAL_S, Trouble

TOKEN = "a token that is hard to guess"
LOCAL = "http://127.0.0.1:8765"
PAGE = "/pipelines/shop"


def interface(*watches: PipelineWatch, token: str | None = None) -> Interface:
    """Return the interface over some pipelines."""
    return Interface(watches, access=Access(token), hosts=Hosts("127.0.0.1"))


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[tuple[TestClient, PipelineWatch]]:
    """A visitor on loopback, and the data of the page."""
    made = watch(tmp_path)
    site = interface(made)
    with TestClient(site.app, base_url=LOCAL) as client:
        yield client, made
    site.close()


@pytest.fixture
def guarded_client(tmp_path: Path) -> Iterator[TestClient]:
    """A visitor who has shown no token yet."""
    site = interface(watch(tmp_path), token=TOKEN)
    with TestClient(site.app, base_url=LOCAL, follow_redirects=False) as client:
        yield client
    site.close()


class Outline(HTMLParser):
    """The parts of a page that a screen reader finds."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element with its attributes."""
        self.tags.append((tag, dict(attrs)))

    def count(self, tag: str) -> int:
        """Return how often the page has an element."""
        return sum(each == tag for each, _ in self.tags)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each."""
        return [attributes for each, attributes in self.tags if each == tag]


def readings() -> dict[str, Reading]:
    """Return pipelines in every state."""
    return {
        "follows": reading(),
        "loads": reading(status(done=False)),
        "paused": reading(status(action="PAUSE")),
        "target away": reading(replace(status(lag_s=None), target=TargetState(unknown=True))),
        "source away": reading(status(lag_s=None), troubles=(trouble(),), retention=None),
        "new": Reading(number=0, at_us=0, at_s=0.0, status_at_us=0, status=None),
        "unreadable": Reading(
            number=1, at_us=1, at_s=0.0, status_at_us=0, status=None, troubles=(trouble(),)
        ),
    }


def test_spark_s_own_pages_are_linked_while_they_are_there(
    visit: tuple[TestClient, PipelineWatch],
) -> None:
    """The links are there if the pages are on, and the load process that serves them runs."""
    client, made = visit
    for pid, ui, linked in ((12, "http://h:4040", 1), (13, "http://h:4040", 0), (12, "", 0)):
        made.latest = reading(spark=spark_report(pid=pid, ui=ui))
        page = client.get(PAGE).text
        links = [each for each in Outline(page).of("a") if each.get("id") == "spark-ui"]
        assert [each["href"] for each in links] == [ui] * linked
        assert "2 jobs of 2 tasks" in page
        assert "14 rows written, 4.0 KiB read, 3.0 s of tasks" in page
        assert ("in the last load process" in page) == (pid == 13)


@pytest.mark.parametrize("kind", readings())
def test_a_page_tells_the_facts_and_has_an_outline(
    visit: tuple[TestClient, PipelineWatch], kind: str
) -> None:
    """The page has one h1, landmarks, table captions, and named controls, in every state."""
    client, made = visit
    made.latest = readings()[kind]
    answer = client.get(PAGE)
    assert answer.status_code == 200
    outline = Outline(answer.text)
    assert [outline.count(tag) for tag in ("h1", "main", "header", "footer")] == [1, 1, 1, 1]
    assert outline.count("caption") == outline.count("table")
    assert all(each.get("aria-label") or each.get("aria-hidden") for each in outline.of("svg"))
    assert all(each.get("aria-label") for each in outline.of("progress"))
    assert all("alt" in each for each in outline.of("img"))
    ids = [each["id"] for _, each in outline.tags if each.get("id")]
    assert len(ids) == len(set(ids))
    assert not any("style" in each or "onclick" in each for _, each in outline.tags)
    assert 'lang="en"' in answer.text
    assert "width=device-width" in answer.text


def test_secrets_and_foreign_markup_stay_out(visit: tuple[TestClient, PipelineWatch]) -> None:
    """Passwords are masked, and a table's name is text whatever it contains."""
    client, _ = visit
    for path in (PAGE, "/", "/api/pipelines", "/api/pipelines/shop", "/metrics"):
        text = client.get(path).text
        assert "password" not in text, path
        if "api" not in path and "metrics" not in path:
            assert HOSTILE.name not in text, path
    page = client.get(PAGE).text
    assert str(escape(str(HOSTILE))) in page
    assert "postgresql://repl:***@" in page
    assert "table &lt;b&gt;x&lt;/b&gt; is full" in page


def test_nothing_is_loaded_from_elsewhere(visit: tuple[TestClient, PipelineWatch]) -> None:
    """Every address in pages, style sheet and script is our own, and the browser is told so."""
    client, _ = visit
    for path in ("/", PAGE, "/static/penstock.css", "/static/penstock.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert not re.search(r"(?:src|href|url|import)\W{0,3}(?:https?:)?//", answer.text), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get(PAGE).headers["cache-control"] == "no-store"
    assert client.get("/static/secret.txt").status_code == 404


def test_the_json_has_what_the_pages_show(visit: tuple[TestClient, PipelineWatch]) -> None:
    """The JSON has state, status, rates, what the source keeps, tables with counts, errors."""
    client, _ = visit
    found: dict[str, Any] = client.get("/api/pipelines/shop").json()
    assert found["state"] == "following changes"
    assert found["status"]["lag"]["lag_seconds"] == 1.5
    assert found["source_keeps"]["age_seconds"] == 5400
    assert found["latency"]["heartbeats"]["count"] == 100
    assert 0.1 < found["latency"]["heartbeats"]["p50_seconds"] <= 0.25
    assert 2.5 < found["latency"]["heartbeats"]["p99_seconds"] <= 5
    page = client.get(PAGE).text
    assert "Heartbeat to visible" in page
    assert "Commit to visible" in page
    orders = next(table for table in found["tables"] if table["table"] == "public.orders")
    assert orders["changes"] == {"insert": 4, "update": 3, "delete": 2, "truncate": 1}
    assert found["errors"][0]["code"] == "TG99"
    assert client.get("/api/pipelines").json()["pipelines"] == [found]
    missing = client.get("/api/pipelines/other")
    assert (missing.status_code, missing.json()["code"]) == (404, "404")


def test_a_target_that_is_away_is_no_good_news(tmp_path: Path) -> None:
    """The badge is not green, unknown values are not 0; it shows since when, and what is next."""
    retry = Retry(process="load", error="refused", since_us=NOW_US, next_us=NOW_US + 3_000_000)
    outage = replace(source_away(), side="target")
    found = replace(status(), lag=None, outages=(outage,), retries=(retry,))
    trouble = Trouble(code="HS22", error="target unreachable", hint="x", since_us=outage.since_us)
    site = interface(watch(tmp_path, reading(found, troubles=(trouble,))))
    with TestClient(site.app, base_url=LOCAL) as client:
        page, index = client.get(PAGE).text, client.get("/").text
    site.close()
    for text in (page, index):
        assert '<span class="badge bad">target unreachable</span>' in text
        assert "unknown" in text
        assert "1.5 s" not in text.partition("lag-plot")[0].partition("Change lag")[0]
    assert "Since 2026-11-" in page
    assert "load has failed since" in page
    assert "and tries again at 2026-11-" in page


def test_without_a_target_nothing_is_said_of_one(tmp_path: Path) -> None:
    """There is no bulk load, verify or loader; extraction and its lag are shown."""
    found = replace(status(), has_target=False, target=TargetState())
    made = watch(tmp_path, reading(found, bulk=None))
    made.config = replace(made.config, has_target=False)
    site = interface(made)
    with TestClient(site.app, base_url=LOCAL) as client:
        page, index = client.get(PAGE).text, client.get("/").text
        told = client.get("/api/pipelines/shop").json()["status"]
        metrics = client.get("/metrics").text
    site.close()
    assert "the change log, no target" in page
    for text in ('id="bulk"', 'id="verify"', "Loader: target", "Resync", "not applied", "Loaded"):
        assert text not in page
    assert "Extractor: change log" in page
    assert told["applied"] is None
    assert told["log"]["gsn"] == 1200
    assert "–" in index
    for name in ("loaded_rows_total{", "lag_rows{", 'server_reachable{pipeline="shop",side="t'):
        assert f"penstock_{name}" not in metrics
    assert "penstock_extracted_rows_total{" in metrics


class Seldom(PipelineWatch):
    """A watch that was unused for long: its reading is old, of a load that ended long ago."""

    hangs = False

    def begin(self, *, hangs: bool = False) -> None:
        """Look for the first time; the next look shows the present, or hangs."""
        self.released = threading.Event()
        self.latest = reading(status(done=False), number=0)
        self.start()
        while not self.latest.number:
            time.sleep(0.01)
        self.hangs = hangs

    def look(self) -> None:
        """Look; the first reading is as old as a watch may wait."""
        if self.hangs:
            self.released.wait()
        number, now_s = self.latest.number + 1, time.monotonic()
        if number == 1:
            found, at_s = reading(status(done=False)), now_s - IDLE_INTERVAL_S
        else:
            found, at_s = reading(), now_s
        self.latest = replace(found, number=number, at_s=at_s)


@pytest.fixture
def seldom(tmp_path: Path) -> Iterator[tuple[TestClient, Seldom]]:
    """A visitor who arrives after a long time."""
    made = Seldom(watch(tmp_path).config)
    site = interface(made)
    with TestClient(site.app, base_url=LOCAL) as client:
        yield client, made
    made.released.set()
    site.close()


@pytest.mark.parametrize("path", ["/", PAGE, "/api/pipelines", "/api/pipelines/shop"])
def test_the_first_look_after_long_shows_what_is_now(
    seldom: tuple[TestClient, Seldom], path: str
) -> None:
    """A page without JavaScript is loaded once: it waits for a fresh reading."""
    client, made = seldom
    made.begin()
    assert "following changes" in client.get(path).text


def test_a_server_that_hangs_is_not_a_page_that_hangs(seldom: tuple[TestClient, Seldom]) -> None:
    """The old values are shown if no newer ones arrive in time."""
    client, made = seldom
    made.begin(hangs=True)
    answer = client.get(PAGE)
    assert (answer.status_code, "following changes" in answer.text) == (200, False)


def test_metrics_are_served_as_prometheus_wants_them(
    visit: tuple[TestClient, PipelineWatch],
) -> None:
    """Metrics are text with its version."""
    answer = visit[0].get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "penstock_lag_seconds{" in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8765", "10.0.0.1", ""])
def test_a_foreign_host_header_gets_nothing(
    visit: tuple[TestClient, PipelineWatch], host: str
) -> None:
    """The request gets no page, no metrics and no style sheet."""
    for path in ("/", PAGE, "/metrics", "/static/penstock.css", "/login"):
        answer = visit[0].get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "shop" not in answer.text


def form_of(client: TestClient) -> str:
    """Return the secret of the page's forms."""
    found = re.search(r'name="secret" value="([0-9a-f]{64})"', client.get(PAGE).text)
    assert found
    return found[1]


@pytest.mark.parametrize(
    "path",
    [
        "tasks/doctor",
        "tasks/verify",
        "tasks/doctor/stop",
        "actions/pause",
        "tables/pause",
        "tables/add",
        "consumers/pause",
    ],
)
@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({}, ""),
        ({}, "0" * 64),
        ({"origin": "http://evil.example"}, "right"),
        ({"sec-fetch-site": "cross-site"}, "right"),
        ({"origin": "null"}, "right"),
    ],
)
def test_a_forged_form_changes_nothing(
    visit: tuple[TestClient, PipelineWatch], path: str, headers: dict[str, str], secret: str
) -> None:
    """Without the page's secret, or from another site, every button answers 403."""
    client, _ = visit
    data = {"secret": form_of(client) if secret == "right" else secret}
    answer = client.post(f"{PAGE}/{path}", data=data, headers=headers)
    assert answer.status_code == 403
    assert client.get(f"{PAGE}/{path}").status_code in (404, 405)


def test_an_error_of_a_button_is_shown_with_its_code(
    visit: tuple[TestClient, PipelineWatch],
) -> None:
    """A form gets a page, the script JSON; the target's URL is masked in both."""
    client, _ = visit
    secret = form_of(client)
    page = client.post(f"{PAGE}/actions/pause", data={"secret": secret})
    assert page.status_code == 409
    assert "HS22" in page.text
    told = client.post(
        f"{PAGE}/actions/pause",
        headers={"x-penstock-form": secret, "accept": "application/json"},
    )
    assert told.json()["code"] == "HS22"
    assert told.json()["hint"]
    assert "password" not in page.text + told.text
    assert client.post(f"{PAGE}/actions/explode", data={"secret": secret}).status_code == 404
    assert client.post(f"{PAGE}/tasks/explode", data={"secret": secret}).status_code == 404


def test_a_table_is_paused_and_copied_by_its_buttons(
    visit: tuple[TestClient, PipelineWatch],
) -> None:
    """Each table has its own, named for a screen reader; their requests are kept."""
    client, made = visit
    outline = Outline(client.get(PAGE).text)
    buttons = [each for each in outline.of("button") if each.get("formaction")]
    assert [each["aria-label"] for each in buttons if "orders" in str(each["id"])] == [
        "Pause public.orders",
        "Copy its rows again: public.orders",
        "Remove it from the pipeline: public.orders",
    ]
    # Rows and changes are given up by a second press, on a button that the first one reveals.
    assert [each["id"] for each in outline.of("details") if "orders" in str(each.get("id"))] == [
        "resync-public.orders",
        "remove-public.orders",
    ]
    table = TableName("public", "orders")
    follows(made.config, table)
    data = {"secret": form_of(client), "schema": table.schema, "table": table.name}
    for action in ("pause", "resync"):
        assert client.post(f"{PAGE}/tables/{action}", data=data).status_code == 200
    request = read_requests(made.config).of(table)
    assert request.paused
    assert request.copy_id
    client.post(f"{PAGE}/tables/resume", data=data)
    assert not read_requests(made.config).of(table).paused
    assert client.post(f"{PAGE}/tables/explode", data=data).status_code == 404
    stranger = client.post(f"{PAGE}/tables/pause", data={**data, "schema": "elsewhere"})
    assert stranger.status_code == 409
    assert "CT60" in stranger.text
    assert f'<a href="{PAGE}">Back to shop</a>' in stranger.text
    assert client.post(f"{PAGE}/tables/remove", data=data).status_code == 200
    assert read_requests(made.config).of(table).capture is Capture.REMOVED


@pytest.mark.parametrize("name", ["", "orders", ".orders", "public.", " . "])
def test_a_table_is_named_with_its_schema(
    visit: tuple[TestClient, PipelineWatch], name: str
) -> None:
    """The typed text is repeated, together with the text to type."""
    client, _ = visit
    data = {"secret": form_of(client), "name": name}
    for action in ("add", "remove", "pause", "resume", "resync"):
        told = client.post(
            f"{PAGE}/tables/{action}", data=data, headers={"accept": "application/json"}
        )
        assert (told.status_code, told.json()["code"]) == (409, "WB07")
        assert repr(name) in told.json()["error"]


def test_a_table_is_added_by_its_name(
    visit: tuple[TestClient, PipelineWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's name is everything after the first dot in the field."""
    asked: list[TableName] = []
    add = (lambda _, table: asked.append(table), "is being added")
    monkeypatch.setitem(TABLE_ACTIONS, "add", add)
    client, _ = visit
    data = {"secret": form_of(client), "name": " public.odd. name "}
    assert client.post(f"{PAGE}/tables/add", data=data).status_code == 200
    assert asked == [TableName("public", "odd. name")]


def test_what_somebody_asked_for_a_table_is_shown(tmp_path: Path) -> None:
    """The page shows its next state, and why it does not get there."""
    new = TableName("public", "new")
    lines = (
        TableLine(table=ORDERS, state="following", wanted="paused"),
        TableLine(table=new, state="refused", code="PG12", error="no key", hint="Add one."),
    )
    found = replace(status(), tables=lines)
    site = interface(watch(tmp_path, reading(found)))
    with TestClient(site.app, base_url=LOCAL) as client:
        page = client.get(PAGE).text
        facts = {each["table"]: each for each in client.get("/api/pipelines/shop").json()["tables"]}
    site.close()
    assert "follows changes, on its way to paused" in page
    assert 'aria-label="Add again public.new"' in page
    assert "public.new: <span" in page
    assert "Add one." in page
    assert facts["public.orders"]["wanted"] == "paused"
    assert (facts["public.new"]["state"], facts["public.new"]["code"]) == ("refused", "PG12")


def test_a_form_without_end_is_refused(visit: tuple[TestClient, PipelineWatch]) -> None:
    """Ten thousand bytes are more than any of our forms has."""
    answer = visit[0].post(f"{PAGE}/tasks/doctor", data={"secret": "x" * 20_000})
    assert answer.status_code == 413


def test_with_a_token_nothing_is_shown_without_it(guarded_client: TestClient) -> None:
    """Pages lead to the login, programs are told how; only its own style sheet is open."""
    for path in ("/", PAGE, "/events", f"{PAGE}/events"):
        answer = guarded_client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    for path in ("/metrics", "/api/pipelines", "/api/pipelines/shop"):
        answer = guarded_client.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert guarded_client.get(path, headers=bearer).status_code == 200
    assert guarded_client.post(f"{PAGE}/tasks/doctor").status_code == 401
    assert guarded_client.get("/static/penstock.css").status_code == 200
    assert "shop" not in guarded_client.get("/login").text


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(
    guarded_client: TestClient,
) -> None:
    """The cookie has HttpOnly and SameSite=Strict, and ends with the log out."""
    wrong = guarded_client.post("/login", data={"token": "something else entirely"})
    assert wrong.status_code == 403
    assert "That is not the token." in wrong.text
    assert "set-cookie" not in wrong.headers
    foreign = guarded_client.post(
        "/login", data={"token": TOKEN}, headers={"origin": "http://evil.example"}
    )
    assert foreign.status_code == 403
    right = guarded_client.post("/login", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded_client.get(PAGE).status_code == 200
    assert guarded_client.post(f"{PAGE}/tasks/verify", data={"secret": "0" * 64}).status_code == 403
    kept = guarded_client.cookies.get("penstock_session")
    left = guarded_client.post("/logout", data={"secret": form_of(guarded_client)})
    assert left.headers["location"] == "/login"
    assert guarded_client.get(PAGE).status_code == 303
    # A copy of the cookie is useless after that, whether this browser forgets it or not.
    again = guarded_client.get(PAGE, headers={"cookie": f"penstock_session={kept}"})
    assert (again.status_code, again.headers["location"]) == (303, "/login")


def test_an_unknown_page_is_a_page_too(visit: tuple[TestClient, PipelineWatch]) -> None:
    """The page has a link back."""
    answer = visit[0].get("/pipelines/other")
    assert answer.status_code == 404
    assert '<a href="/">' in answer.text
