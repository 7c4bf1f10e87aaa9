"""Metrics for Prometheus, and what Grafana draws of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.pipelines.merged import FACTS
from harness.pipelines.readings import HOSTILE, ORDERS, reading, status, trouble
from penstock.control.pipeline.outages import Retry
from penstock.control.status.status import MergeSeen
from penstock.web.metrics import OF_ROWS, OF_SCHEMAS, expose
from penstock.web.reading import Reading

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "penstock.json"
ALERTS = DASHBOARD.with_name("alerts.yml")
TRIES = Retry(process="extract", error="refused", since_us=1, next_us=2)
AWAY = expose([("shop", reading(replace(status(lag_s=None), retries=(TRIES,))))]).decode()
MERGED = replace(status(done=False), merge=MergeSeen(facts=FACTS))
FULL = expose([("shop", reading(MERGED))]).decode()


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(name: str, **labels: str) -> float:
    """Return one sample of the full page."""
    return samples(FULL)[name, tuple(sorted({"pipeline": "shop", **labels}.items()))]


def test_values_are_in_base_units() -> None:
    """Seconds and bytes are plain, counters have _total."""
    assert value("penstock_lag_seconds") == 1.5
    assert value("penstock_lag_bytes") == 2048
    assert value("penstock_heartbeat_seconds_bucket", le="0.25") == 98
    assert value("penstock_heartbeat_seconds_bucket", le="+Inf") == 100
    assert value("penstock_heartbeat_seconds_count") == 100
    assert value("penstock_commit_visible_seconds_sum") == 0.5
    assert value("penstock_source_kept_bytes") == 3 * 2**20
    assert value("penstock_source_kept_seconds") == 5400
    assert value("penstock_extracted_rows_total") == 1200
    assert value("penstock_loaded_transactions_total") == 250
    assert value("penstock_log_size_bytes") == 4096
    assert value("penstock_process_running", process="extract") == 1
    assert value("penstock_bulk_loaded_bytes", table=str(ORDERS)) == 2**20
    assert value("penstock_table_changes_total", table=str(ORDERS), kind="delete") == 2
    assert value("penstock_lake_files", table=str(ORDERS)) == 3
    assert value("penstock_lake_rows", table=str(ORDERS)) == 960
    assert value("penstock_lake_dead_rows", table=str(ORDERS)) == 40
    assert value("penstock_lake_size_bytes", table=str(ORDERS)) == 4096
    assert value("penstock_lake_versions", table=str(HOSTILE)) == 12
    assert value("penstock_lake_missing_rows_total", table=str(HOSTILE)) == 2
    assert value("penstock_status_readable") == 1
    assert value("penstock_spark_jobs_total") == 2
    assert value("penstock_spark_task_rows_total") == 14
    assert value("penstock_spark_task_bytes_total") == 4096
    assert value("penstock_spark_task_seconds_total") == 3


def test_every_metric_tells_what_it_is() -> None:
    """HELP and TYPE precede each; units are only in their base form."""
    families = list(text_string_to_metric_families(FULL))
    assert len(families) > 25
    for family in families:
        assert family.documentation, family.name
        assert family.type in ("gauge", "counter", "histogram"), family.name
        assert f"# TYPE {family.name}" in FULL
        assert not re.search("_(ms|minutes|hours|kb|mb|percent)$", family.name)
    names = [sample.name for family in families for sample in family.samples]
    counters = [family.name for family in families if family.type == "counter"]
    assert all(f"{name}_total" in names for name in counters)


def test_labels_are_escaped() -> None:
    """Quotes, backslashes and line ends in a table's name do not end a label."""
    assert set('"\\\n') <= set(HOSTILE.name)
    assert value("penstock_bulk_loaded_rows", table=str(HOSTILE)) == 7
    assert 'alert(\\"1\\\\2\\")\\n</script>' in FULL


def test_what_is_not_known_is_left_out() -> None:
    """An unknown lag is not a lag of zero; before the first look there is only the version."""
    page = expose([("shop", reading(status(lag_s=None), retention=None, troubles=(trouble(),)))])
    names = {name for name, _ in samples(page.decode())}
    assert "penstock_lag_seconds" not in names
    assert "penstock_source_kept_bytes" not in names
    assert "penstock_extracted_rows_total" in names
    assert b'penstock_status_readable{pipeline="shop"} 0.0' in page
    unread = Reading(number=0, at_us=0, at_s=0.0, status_at_us=0, status=None)
    assert {name for name, _ in samples(expose([("shop", unread)]).decode())} == {
        "penstock_build_info"
    }


def test_the_alerts_ask_only_for_metrics_that_there_are() -> None:
    """Each rule has an expression over known metrics, and says what to do."""
    known = {name for name, _ in samples(FULL)} | {"penstock_table_apart"}
    text = ALERTS.read_text(encoding="utf-8")
    rules = text.split("- alert: ")[1:]
    assert len(rules) > 5
    for rule in rules:
        expression = re.search(r"expr: (.+)", rule)
        assert expression, rule
        asked = set(re.findall(r"penstock_\w+", expression[1]))
        assert asked, rule
        assert asked - known == set(), rule
        assert "summary: " in rule
        assert "action: " in rule


def test_the_dashboard_asks_only_for_metrics_that_there_are() -> None:
    """Every metric but the rarest is drawn."""
    known = {name for name, _ in samples(FULL)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(queries) > 10
    asked = {name for query in queries for name in re.findall(r"penstock_\w+", query)}
    assert asked - known == set()
    assert all(panel.get("title") for panel in panels)
    assert all('pipeline=~"$pipeline"' in query for query in queries)


@pytest.mark.parametrize("page", ["docs/web.md"])
def test_the_metrics_are_documented(page: str) -> None:
    """Each one has its name there, and no other name is there."""
    text = (ROOT / page).read_text()
    told = set(re.findall(r"`(penstock_\w+)`", text))
    of_stage = {name for name, *_ in (*OF_SCHEMAS, *OF_ROWS)}
    own = {name for name in of_stage if name.startswith("penstock_")}
    assert told - own == {name for name, _ in samples(FULL)} | {name for name, _ in samples(AWAY)}
    assert own <= told
    assert all(f"`{name}`" in text for name in of_stage)
