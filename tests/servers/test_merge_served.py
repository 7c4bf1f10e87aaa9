"""Three servers as shards of one table, merged into one log that is served to a subscriber."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.merge_served import ServedMerge, kill_part
from harness.pipelines.shards import (
    ACCOUNTS,
    CONTINUE,
    CREDIT,
    KILL,
    STOP,
    Shards,
    TotalReader,
    Transfers,
    wait_until,
)

STALL_S = 5.0


@pytest.mark.long
def test_a_subscriber_never_sees_a_total_that_was_not_true(tmp_path: Path) -> None:
    """Shards are killed, stalled and split, merge and server killed: transfers stay whole."""
    with Shards(tmp_path, 3, has_target=False) as shards:
        served = ServedMerge(shards)
        for number in range(3):
            shards.extract(number)
        shards.until_extracted()
        run = served.start()
        reader = TotalReader(shards.target_url)
        try:
            served.subscribe()
            for number in range(3):
                shards.fill(number)
            reader.start()
            whole = (3 * ACCOUNTS, 3 * ACCOUNTS * CREDIT)
            run.until(lambda: shards.total(shards.target_url) == whole, "the accounts are there")
            transfers = Transfers(shards, (0, 1, 2), 1)
            transfers.start()

            def goes_on(what: str) -> None:
                before = len(reader.versions)
                wait_until(lambda: len(reader.versions) > before + 20, what)

            goes_on("transfers arrive")
            kill_and_stall(shards, transfers)
            goes_on("it goes on behind a kill and a stall")
            kill_part(run, "serve")
            goes_on("it goes on with another server")
            kill_part(run, "extract")
            goes_on("it goes on with another merge")
            transfers.end()
            run.until(
                lambda: shards.rows([shards.target_url]) == shards.rows(shards.urls),
                "the subscriber has what the shards have",
            )
            run.stop()
            run = split(shards, served)
            again = Transfers(shards, (0, 1, 3, 4), 2)
            again.start()
            goes_on("transfers behind the split arrive")
            again.end()
            now = [url for number, url in enumerate(shards.urls) if number != 2]
            run.until(
                lambda: shards.rows([shards.target_url]) == shards.rows(now),
                "the subscriber has what the shards of now have",
            )
            reader.end()
            served.drop()
            run.stop()
        finally:
            run.__exit__()
        partial = {n * ACCOUNTS for n in range(4)}
        assert {count for count, _ in reader.seen} <= partial
        assert all(total == count * CREDIT for count, total in reader.seen), reader.seen
        assert len(reader.versions) > 80


def kill_and_stall(shards: Shards, transfers: Transfers) -> None:
    """Kill a shard's extractor, and stall another for a while."""
    shards.extractors[1].send(KILL)
    shards.extractors[1].wait_for_end()
    shards.extractors[2].send(STOP)
    count = transfers.count
    time.sleep(STALL_S)
    assert transfers.count > count
    shards.extractors[2].send(CONTINUE)
    shards.extract(1)


def split(shards: Shards, served: ServedMerge) -> Process:
    """Split the third shard into two, once nothing writes to it and its log is complete."""
    shards.split(2)
    for number in (3, 4):
        shards.extract(number)
    shards.until_extracted()
    shards.extractors[2].stop()
    shards.write_merged(split={"s2.toml": ["s3.toml", "s4.toml"]})
    return served.start()
