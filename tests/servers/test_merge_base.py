"""A merged log with a base begins with the rows of its logs' bases, and is read from there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.merge_served import ServedMerge, kill_part
from harness.pipelines.pipeline import penstock
from harness.pipelines.shards import ACCOUNTS, CREDIT, Shards, TotalReader, Transfers, wait_until
from penstock.base.manifest import load_manifest
from penstock.consume import CdcConsumer
from penstock.consume import run as consume

WHOLE = (2 * ACCOUNTS, 2 * ACCOUNTS * CREDIT)


@pytest.fixture
def shards(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shards]:
    """Two servers with accounts older than their logs, each with a log that has a base."""
    with Shards(tmp_path, 2, has_target=request.param, has_bases=True) as made:
        for number in range(2):
            made.fill(number)
            made.extract(number)
        made.until_extracted()
        for number in range(2):
            made.load(number)
        yield made


class Accounts(CdcConsumer):
    """A consumer with the accounts by id; each is created once."""

    def __init__(self) -> None:
        """Begin without accounts."""
        self.rows: dict[Any, dict[str, Any]] = {}

    def on_events(self, events: Any) -> bool:
        """Apply each event as it is."""
        for event in events:
            assert (event.key in self.rows) is (event.op != "I")
            assert event.value is not None
            self.rows[event.key] = {**self.rows.get(event.key, {}), **event.value}
        return True


def killed_at(shards: Shards, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the merge until it dies at a point."""
    monkeypatch.setenv("PENSTOCK_FAULT", fault)
    assert penstock("merge", shards.merged, "--checked").code < 0
    monkeypatch.delenv("PENSTOCK_FAULT")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [False], indirect=True)
def test_a_subscriber_copies_a_merged_log(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers continue while the merge is killed at its beginning and later, and its base's
    keeper.
    """
    transfers = Transfers(shards, (0, 1), 1)
    transfers.start()
    served = ServedMerge(shards)
    for fault in ("merge.first.rows:2:kill", "merge.state.after:1:kill", "log.flush.after:1:kill"):
        killed_at(shards, fault, monkeypatch)
    run = served.start()
    reader = TotalReader(shards.target_url)
    try:
        reader.start()
        base = shards.folder / "all" / "base"
        run.until(lambda: (found := load_manifest(base)) and found.tables, "it has a base", 240)
        served.subscribe(copies=True)
        run.until(lambda: shards.total(shards.target_url) == WHOLE, "the accounts are there")
        for word in ("extract", "load", "serve", "extract"):
            count = len(reader.versions)
            wait_until(lambda count=count: len(reader.versions) > count + 20, "it goes on")
            kill_part(run, word)
        before = load_manifest(base)
        assert before is not None
        run.until(
            lambda: (now := load_manifest(base)) and now.segment > before.segment,
            "the base moves on",
            240,
        )
        transfers.end()
        run.until(
            lambda: shards.rows([shards.target_url]) == shards.rows(shards.urls),
            "the subscriber has what the shards have",
        )
        reader.end()
        served.drop()
        run.stop()
    finally:
        run.__exit__()
    assert {count for count, _ in reader.seen} <= {0, WHOLE[0]}
    assert all(total == count * CREDIT for count, total in reader.seen), reader.seen


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [True], indirect=True)
def test_a_target_and_a_consumer_begin_with_what_was_there(shards: Shards) -> None:
    """The target's existing rows are replaced; a consumer begins with the merged base."""
    consumer = (
        '\n[consumers.seen]\nclass = "shop_app:Accounts"\nstart = "snapshot"\n'
        "keepBinary = false\ncheckFrequency = 50\n"
    )
    shards.servers[0].execute(
        "insert into account values (-1, 0, 'existing')", shards.target_url.rpartition("/")[2]
    )
    shards.merged.write_text(shards.merged.read_text() + consumer)
    transfers = Transfers(shards, (0, 1), 1)
    transfers.start()
    seen = Accounts()
    deadline = time.monotonic() + 300
    with Process(shards.merged, "merge") as merge, Process(shards.merged, "load") as load:
        load.until(lambda: shards.total(shards.target_url)[0] == WHOLE[0], "rows are there", 240)
        wait_until(lambda: transfers.count > 50, "transfers")

        def read_expected() -> dict[Any, Any]:
            names = ("id", "balance", "note")
            rows = shards.rows(shards.urls)
            return {(row[0],): dict(zip(names, row, strict=True)) for row in rows}

        ended = False

        def is_done() -> bool:
            nonlocal ended
            assert time.monotonic() < deadline, "not in time"
            if seen.rows and not ended:
                transfers.end()
                ended = True
            return ended and seen.rows == read_expected()

        consume(shards.merged, "seen", seen, stop=is_done)
        load.until(
            lambda: shards.rows([shards.target_url]) == shards.rows(shards.urls),
            "the target has what the shards have",
        )
        load.stop()
        merge.stop()
