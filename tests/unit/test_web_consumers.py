"""Consumers on the web page, and their metrics for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from harness.pipelines.consumer import NAME, Feed, Noting, plain_pipeline
from harness.pipelines.readings import reading, status, watch
from penstock.control.pipeline.config import load_config
from penstock.control.status.consumer_list import consumer_lines, read_report
from penstock.log import links
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.metrics import expose
from penstock.web.reading import PipelineWatch, Reading

LOCAL, PAGE = "http://127.0.0.1:8765", "/pipelines/shop"


class Telling(Noting):
    """Consumer with metrics of its own, of each kind."""

    def start(self, metrics: object) -> None:
        super().start(metrics)
        self.metrics.counter("rows_seen", "Rows that came.").add(3)
        self.metrics.histogram("wait_ms", (1, 10), "Waits.").observe(5)
        self.metrics.gauge("depth", value=lambda: 7)


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a consumer that has read a part of it."""
    made = Feed(tmp_path)
    plain_pipeline(tmp_path)
    made.register()
    made.write(3)
    made.write(2)
    made.run(Telling(take=4, answer=lambda call: call == 1))
    yield made
    made.close()


def read(feed: Feed) -> Reading:
    """Return what the web's watch reads about it."""
    config = load_config(feed.root / "shop.toml", {})
    found = consumer_lines(config, with_target=False)
    reports = {line.name: read_report(config, line.name) for line in found}
    return reading(status(), consumers=found, consumer_reports=reports)


def test_metrics_have_the_published_names_in_base_units(feed: Feed) -> None:
    """Each has its name in HELP; lag, links, held space and its own metrics are there, too."""
    page = expose([("shop", read(feed))]).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    values = {
        sample.name: sample.value
        for family in families.values()
        for sample in family.samples
        if sample.labels.get("consumer") == NAME and sample.labels.get("le") in (None, "+Inf")
    }
    for published, name in {
        "CurrentSegmentIndex": "penstock_cdc_current_segment_index",
        "CommittedSegmentIndex": "penstock_cdc_committed_segment_index",
        "CommittedSegmentOffset": "penstock_cdc_committed_segment_offset_bytes",
        "LastSegmentConsumptionTime": "penstock_cdc_last_segment_consumption_timestamp_seconds",
        "MetadataUpdateTime": "penstock_cdc_metadata_update_seconds",
        "EventCaptureTime": "penstock_cdc_event_capture_seconds",
        "SegmentConsumingTime": "penstock_cdc_segment_consuming_seconds",
        "EventsCount": "penstock_cdc_events",
        "UnreadableRecords": "penstock_cdc_unreadable_records",
        "LastEventTime": "penstock_cdc_last_event_timestamp_seconds",
    }.items():
        assert families[name].documentation.startswith(f"{published}: ")
    (info,) = families["penstock_cdc_info"].samples
    assert info.labels["cdc_dir"] == str(feed.directory)
    assert info.labels["cdc_mode"] == "active"
    assert values["penstock_cdc_current_segment_index"] == 1
    assert values["penstock_cdc_committed_segment_index"] == 0
    assert values["penstock_cdc_events_total"] == 5
    assert values["penstock_cdc_segment_consuming_seconds_count"] == 2
    assert 1.7e9 < values["penstock_cdc_last_event_timestamp_seconds"] < 4e9
    assert values["penstock_consumer_lag_events"] == 2
    assert values["penstock_consumer_links"] == 2
    assert values["penstock_consumer_own_rows_seen_total"] == 3
    assert values["penstock_consumer_own_wait_ms_sum"] == 5
    assert values["penstock_consumer_own_depth"] == 7


@pytest.mark.parametrize(
    ("name", "bounds", "count"),
    [
        ("penstock_consumer_own_wait_ms", ["1.0", "10.0", "+Inf"], [0, 1, 1]),
        ("penstock_cdc_metadata_update_seconds", ["0.1", "0.5", "1.0", "+Inf"], None),
    ],
)
def test_the_buckets_of_histograms(
    feed: Feed, name: str, bounds: list[str], count: list[int] | None
) -> None:
    """Bounds are in base units, except those of the consumer's own; counts are cumulative."""
    page = expose([("shop", read(feed))]).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    found = [one for one in families[name].samples if one.name.endswith("_bucket")]
    assert [one.labels["le"] for one in found] == bounds
    assert count is None or [one.value for one in found] == count


def test_the_page_shows_each_consumer_and_its_lag(feed: Feed) -> None:
    """The page has a plot; the JSON has the same values."""
    made = watch(feed.root / "web", read(feed)) if (feed.root / "web").mkdir() is None else None
    assert made is not None
    site = Interface([made], access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL) as client:
        page = client.get(PAGE).text
        assert f'id="lag-plot-{NAME}"' in page
        assert f'aria-label="Pause {NAME}"' in page
        (line,) = client.get(f"/api{PAGE}").json()["consumers"]
        assert (line["consumer"], line["lag_events"]) == (NAME, 2)
    site.close()


def test_a_consumer_is_paused_and_goes_on_by_its_button(feed: Feed) -> None:
    """The consumer looks at the setting that the button writes."""
    made = PipelineWatch(load_config(feed.root / "shop.toml", {}))
    made.latest = read(feed)
    site = Interface([made], access=Access(None), hosts=Hosts("127.0.0.1"))
    with TestClient(site.app, base_url=LOCAL, follow_redirects=False) as client:
        found = re.search(r'name="secret" value="([0-9a-f]{64})"', client.get(PAGE).text)
        assert found
        form = {"secret": found[1], "consumer": NAME}
        for action, is_paused in (("pause", True), ("resume", False)):
            answer = client.post(f"{PAGE}/consumers/{action}", data=form)
            assert answer.headers["location"] == f"{PAGE}#consumers"
            settings = links.load_consumer(feed.directory)
            assert settings is not None
            assert settings.paused is is_paused
        assert client.post(f"{PAGE}/consumers/explode", data=form).status_code == 404
        other = client.post(f"{PAGE}/consumers/pause", data={**form, "consumer": "../log"})
        assert other.status_code == 409
        assert "CN12" in other.text
    site.close()


def test_what_ended_a_consumer_is_shown_with_the_next_command(feed: Feed) -> None:
    """A damaged state is a line of its own, and does not end the list."""
    (feed.directory / "state" / "cdc-wal-state.json").write_text("{")
    (line,) = consumer_lines(load_config(feed.root / "shop.toml", {}), with_target=False)
    assert (line.state, "is damaged" in line.error) == ("failed", True)
    assert "penstock consumers" in line.hint
