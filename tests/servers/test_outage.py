"""A pipeline whose servers become unavailable while it runs, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from harness.servers.proxy import Proxy
from harness.servers.web import WebProcess, until
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def run_json(pair: Pair, command: str) -> dict[str, Any]:
    """Return a command's --json output, however it ends."""
    found: dict[str, Any] = json.loads(penstock(command, pair.path, "--json").out)
    return found


def fetch(url: str) -> str:
    """Return a page's text."""
    with urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def waits(pair: Pair, side: str, process: str) -> bool:
    """Return whether the status names the server, since when, and the process that retries."""
    found = run_json(pair, "status")
    sides = {one["side"]: one["since"] for one in found["unreachable"]}
    return bool(sides.get(side)) and process in [one["process"] for one in found["tried_again"]]


def test_each_server_goes_away_and_comes_back(postgres: Server, tmp_path: Path) -> None:
    """The run, `status`, `lag`, page and metrics report it; no process is started manually."""
    extractor = {"changeExtractor": {"replicationSlot": "outage"}}
    pair = Pair(tmp_path, postgres, tables=["public.*"], sections=extractor)
    pair.run("create table item (id int primary key, note text)")
    try:
        port = int(pair.source.info.port)
        with Proxy(port) as source, Proxy(port) as target:
            urls = source.url(pair.source_url), target.url(pair.loader_url)
            text = pair.path.read_text()
            for old, new in zip((pair.source_url, pair.loader_url), urls, strict=True):
                text = text.replace(old, new)
            pair.path.write_text(text)
            run = pair.start()
            pair.settle()
            with WebProcess(pair.path, "--port", 0) as web:
                page = f"{web.url}/api/pipelines/shop"
                doors = (("target", target, "load"), ("source", source, "extract"))
                for number, (side, door, process) in enumerate(doors):
                    until(
                        lambda: run_json(pair, "lag")["lag_seconds"] is not None, "the lag is known"
                    )
                    door.away(True)
                    pair.run(f"insert into item values ({number}, 'while it is away')")
                    until(lambda s=side, p=process: waits(pair, s, p), f"{side} is said to be away")
                    assert run_json(pair, "lag")["lag_seconds"] is None
                    words = f"{side} unreachable"
                    until(lambda w=words: json.loads(fetch(page))["state"] == w, "the page says so")
                    gauge = f'penstock_server_reachable{{pipeline="shop",side="{side}"}} '
                    metrics = fetch(f"{web.url}/metrics")
                    assert f"{gauge}0.0" in metrics
                    assert "penstock_lag_seconds{" not in metrics
                    door.away(False)
                    pair.settle()
                    assert pair.differences("item") == []
                    until(
                        lambda: not run_json(pair, "status")["tried_again"],
                        "nothing is tried again",
                    )
                assert web.stop() == 0
            pair.stop()
            for side in ("target", "source"):
                assert any(one.startswith(f"{side} unreachable") for one in run.events)
                assert any(one.startswith(f"{side} answers again") for one in run.events)
    finally:
        pair.close()
