"""Three servers as shards of one table, merged into one log and loaded into one table by Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
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

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.promise
@pytest.mark.long
def test_a_reader_never_sees_a_total_that_was_not_true(tmp_path: Path) -> None:
    """Target transactions end where merged transactions end, under transfers in prepared
    transactions.

    A shard's extractor is killed, one is stuck, and so is the merging process.
    """
    with Shards(tmp_path, 3) as shards:
        for number in range(3):
            shards.extract(number)
        shards.until_extracted()
        for number in range(3):
            shards.fill(number)
        reader = TotalReader(shards.target_url)
        reader.start()
        with Process(shards.merged, "run") as run:
            whole = (3 * ACCOUNTS, 3 * ACCOUNTS * CREDIT)
            run.until(lambda: shards.total(shards.target_url) == whole, "the accounts are there")
            transfers = Transfers(shards, (0, 1, 2), 1)
            transfers.start()
            wait_until(lambda: len(reader.versions) > 20, "transfers arrive")
            shards.extractors[1].send(KILL)
            shards.extractors[1].wait_for_end()
            shards.extractors[2].send(STOP)
            wait_until(lambda: transfers.count > 200, "transfers go on")
            held = penstock("status", shards.merged, "--json").result["merge"]
            assert set(held["held_by"]) <= {"s1", "s2"}
            assert held["held_by"]
            shards.extractors[2].send(CONTINUE)
            shards.extract(1)
            before = len(reader.versions)
            wait_until(lambda: len(reader.versions) > before + 20, "it goes on")
            pid = penstock("status", shards.merged, "--json").result["processes"]["extract"]
            os.kill(pid, signal.SIGKILL)
            before = len(reader.versions)
            wait_until(lambda: len(reader.versions) > before + 20, "it goes on once more")
            transfers.end()
            run.until(
                lambda: shards.rows([shards.target_url]) == shards.rows(shards.urls),
                "the target has what the shards have",
            )
            reader.end()
            merge = penstock("status", shards.merged, "--json").result["merge"]
            assert penstock("lag", shards.merged, "--json").code == 0
            run.stop()
        partial = {n * ACCOUNTS for n in range(4)}
        assert {count for count, _ in reader.seen} <= partial
        assert all(total == count * CREDIT for count, total in reader.seen), reader.seen
        assert merge["unjoined_count"] == 0
        assert merge["joined_count"] == transfers.count
        assert len(reader.versions) > 50
        for process in shards.extractors:
            process.stop()
