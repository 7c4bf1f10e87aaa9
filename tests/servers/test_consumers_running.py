"""Consumers of a running pipeline, beside the extraction from a source of each engine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.consumer import PLAIN
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import ENGINES, Place, new_place
from plugins.shared import SharedServers


class Shop:
    """A table at a source, and a pipeline without target whose consumers record events."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder, self.bought = place, folder, 0
        place.run("create table item (id int primary key, n int)")
        place.run("create table other (id int primary key)")
        (folder / "plain_consumer.py").write_text(PLAIN)

    def write_file(self, consumers: dict[str, dict[str, Any]], **extractor: Any) -> Path:
        """Write the file, in which each consumer records into NAME.txt, and return it."""
        path = write_pipeline(
            self.folder,
            self.place.url,
            None,
            mode="change",
            tables=[f"{self.place.namespace}.*"],
            sections={"changeExtractor": {**LIVELY, **extractor}},
        )
        lines = [path.read_text()]
        for name, keys in consumers.items():
            options = {"file": str(self.folder / f"{name}.txt"), **keys.pop("options", {})}
            shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
            lines += [f"[consumers.{name}]", 'class = "plain_consumer:Plain"']
            lines += [f"options = {{ {shown} }}"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def buy(self, count: int = 10) -> None:
        """Run so many transactions of one row, each with one in a table that few consumers want."""
        for _ in range(count):
            self.bought += 1
            self.place.run(f"insert into item values ({self.bought}, 0)")

    def read_gsns(self, name: str) -> list[int]:
        """Return the GSNs that a consumer recorded."""
        path = self.folder / f"{name}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line) for line in lines if line.isdigit()]

    def line(self, path: Path, name: str) -> dict[str, Any]:
        """Return a consumer's line of `penstock consumers ls`."""
        ran = penstock("consumers", "ls", str(path), "--json")
        lines = [json.loads(text) for text in ran.out.splitlines()]
        found: dict[str, Any] = next(one for one in lines if one["consumer"] == name)
        return found


@pytest.fixture(params=ENGINES)
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """A shop on a server of each engine."""
    with new_place(shared_servers, request.param) as place:
        yield Shop(place, tmp_path)
        place.forget_log()


@pytest.mark.promise
def test_run_gives_every_change_to_each_consumer(shop: Shop) -> None:
    """A consumer that fails repeatedly does not disturb the other, which misses nothing."""
    path = shop.write_file({"good": {}, "bad": {"options": {"fail_at": 5}}})
    with Process(path) as run:
        run.until(lambda: shop.line(path, "good")["pid"], "the consumer runs")
        run.until(lambda: (shop.folder / "shop" / "run" / "extract.json").exists(), "it extracts")
        shop.buy()
        run.until(lambda: shop.read_gsns("good") == list(range(1, 11)), "all changes came")
        run.until(
            lambda: sum("consume-bad failed" in text for text in run.events) > 1,
            "it is tried again",
        )
        bad = shop.line(path, "bad")
        assert bad["saved"] in range(5), "nothing of the call that failed"
        assert set(shop.read_gsns("bad")) == {1, 2, 3, 4}
        # They stay for keepAppliedHours, so that read_log finds the consumers' segments.
        assert list((shop.folder / "shop" / "log").glob("*.ckt"))
        run.stop(signal.SIGINT)
    shop.buy()  # while nothing runs
    path = shop.write_file({"good": {}}, exitWhenIdle=True, idleWaitSeconds=0.7)
    ran = penstock("run", path, "--json")
    assert ran.code == 0, ran
    assert shop.read_gsns("good") == list(range(1, 21)), "the run has waited for it"
    assert shop.line(path, "good")["lag_events"] == 0


def test_a_consumer_is_registered_while_all_runs(shop: Shop) -> None:
    """The consumer misses nothing after `consumers add`, whenever it runs."""
    path = shop.write_file({"first": {}})
    with Process(path) as run:
        run.until(lambda: shop.line(path, "first")["pid"], "the consumer runs")
        run.until(lambda: (shop.folder / "shop" / "run" / "extract.json").exists(), "it extracts")
        shop.buy()
        run.until(lambda: shop.read_gsns("first") == list(range(1, 11)), "all changes came")
        shop.write_file({"first": {}, "second": {}})
        assert penstock("consumers", "add", path, "second").code == 0
        shop.buy()
        run.until(lambda: shop.read_gsns("first") == list(range(1, 21)), "all changes came")
        with Process(path, "consume", "second") as consumer:
            consumer.until(
                lambda: shop.read_gsns("second") == list(range(11, 21)), "those behind it"
            )
            consumer.stop(signal.SIGTERM)
        run.stop(signal.SIGINT)
