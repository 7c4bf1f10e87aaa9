"""Pages, JSON and metrics of a pipeline with [stage], without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.control.feeds.feed_show import BarMeter
from penstock.control.feeds.feed_status import GroupNote, Problem, SchemaStatus, StageStatus
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.outages import Outage
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import GroupState, StagedRows, StagedTable, Window
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.feed_reading import StageReading, StageWatch, rates_of, state_of

LOCAL = "http://127.0.0.1:8765"
NOW_S = 1_800_000_000
GROUP = ("shop", "<i>public</i>")
FILE = """
[pipeline]
name = "shop"
directory = "shop"
[staging]
url = "postgresql://stage:staging-password@127.0.0.1:1/staging"
[stage]
listen = "127.0.0.1:0"
[target]
url = "postgresql://load:target-password@127.0.0.1:1/shop"
"""
NOTHING = Window(committed=ZERO, proposed=ZERO)


def schema(window: Window = NOTHING, note: GroupNote | None = None, **rows: Any) -> SchemaStatus:
    """Return a schema with one table."""
    found = {"rows": 10, "waiting": 4, "oldest": None, "is_estimate": False, "size_bytes": 8192}
    return SchemaStatus(
        group=GROUP,
        state=GroupState(
            window=window,
            holder=None,
            applied_at=None,
            now=datetime.fromtimestamp(NOW_S, UTC),
            tables={StagedTable(GROUP, "<b>orders</b>"): StagedRows(**{**found, **rows})},
        ),
        note=note or GroupNote(),
        mode_setting=StageMode.AUTO,
        loaded=None,
        dead_letters=None,
        now_us=NOW_S * 10**6,
    )


def reading(*schemas: SchemaStatus, away: bool = False) -> StageReading:
    """Return a reading of these; away: the staging database is."""
    outage = Outage(side="staging database", code="HS22", error="no answer", hint="Start it.")
    status = StageStatus(
        pipeline="shop",
        mode_setting=StageMode.AUTO,
        directory=Path("/nowhere"),
        schemas=None if away else schemas,
        outages=(outage,) if away else (),
        read_us=NOW_S * 10**6,
    )
    return StageReading(
        number=1,
        at_us=NOW_S * 10**6,
        at_s=5.0,
        status_at_us=NOW_S * 10**6,
        status=status,
        bars=BarMeter().add(5.0, schemas),
    )


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[tuple[TestClient, StageWatch]]:
    """A visitor, and the data of the page."""
    path = tmp_path / "cockroach.toml"
    path.write_text(FILE, encoding="utf-8")
    watch = StageWatch(load_config(path, {}))
    site = Interface([watch], access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL, follow_redirects=False) as client:
        yield client, watch
    site.close()


def test_every_state_has_a_page(visit: tuple[TestClient, StageWatch]) -> None:
    """There is one before the first reading, too; names are text, and passwords are masked."""
    client, watch = visit
    committed = Window(committed=Hlc((NOW_S - 70) * 10**9), proposed=Hlc((NOW_S - 2) * 10**9))
    note = GroupNote(mode="consistent", problem=Problem(at_us=1, code="ST60", error="<u>drift"))
    states = {
        "being read": replace(reading(), status=None, number=0),
        "nothing received yet": reading(),
        "no instance works": reading(schema(committed)),
        "trying again": reading(schema(committed, note)),
        "staging database unreachable": reading(away=True),
    }
    for state, found in states.items():
        watch.latest = found
        assert state_of(found) == state
        for path in ("/", "/pipelines/shop", "/api/pipelines/shop", "/metrics"):
            answer = client.get(path)
            assert answer.status_code == 200, (state, path)
            assert "password" not in answer.text
            if path in ("/", "/pipelines/shop"):  # the others are not HTML
                assert not re.search("<i>public|<b>orders|<u>drift", answer.text)
        assert state in client.get("/pipelines/shop").text


def test_what_is_not_known_is_not_shown_as_zero(visit: tuple[TestClient, StageWatch]) -> None:
    """Neither the page nor the metrics show a zero."""
    client, watch = visit
    watch.latest = reading(schema(rows=None, waiting=None, size_bytes=None))
    assert rates_of(watch.latest) == (None, None)
    page = client.get("/pipelines/shop").text
    cells = re.findall(r'data-label="(?:Staged|Applied|Waiting|Size)"[^>]*>([^<]*)<', page)
    assert cells == ["unknown"] * 4
    metrics = client.get("/metrics").text
    for name in ("checkpoint_", "target_", "penstock_stage_rows", "penstock_stage_dead_letters"):
        assert f"\n{name}" not in metrics
    assert re.search(r"^penstock_stage_lease_held\{.*\} 0\.0$", metrics, re.MULTILINE)
    watch.latest = reading(away=True)
    page = client.get("/pipelines/shop").text
    assert page.count("Not known: the staging database could not be read.") == 3
    assert "penstock_stage_" not in client.get("/metrics").text


def test_a_schema_far_behind_has_a_bar(visit: tuple[TestClient, StageWatch]) -> None:
    """The bar shows which values are not known yet."""
    client, watch = visit
    watch.latest = reading(schema(is_estimate=True))
    page = client.get("/pipelines/shop").text
    assert "<strong>60 %</strong> backfill of" in page
    assert "6 of about 10 rows applied.</p>" in page
    assert "about 4" in page


@pytest.mark.parametrize(
    "path", ["tasks/verify", "actions/pause", "tables/add", "consumers/pause", "tasks/nothing"]
)
def test_buttons_that_it_does_not_have(visit: tuple[TestClient, StageWatch], path: str) -> None:
    """Such buttons are missing: the answer is 404, and no task begins."""
    client, _ = visit
    page = client.get("/pipelines/shop").text
    secret = re.search(r'name="secret" value="([^"]+)"', page)
    assert secret is not None
    answer = client.post(
        f"/pipelines/shop/{path}",
        data={"secret": secret[1], "name": "public.orders"},
        headers={"origin": LOCAL},
    )
    assert answer.status_code == 404
