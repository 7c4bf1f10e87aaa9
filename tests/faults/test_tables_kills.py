"""`penstock table` with the processes killed at every step: after a restart they end equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.tables import LATE, SETUP, Customers, reach, request
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

# At most five deaths of a half in a run, which `penstock run` restarts automatically.
KILLS = {
    "the extractor": (
        "extract.capture.before:1:kill",
        "extract.capture.bound:1:kill",
        "extract.capture.after:1:kill",
    ),
    "before and after a table is moved": (
        "load.apart.before:1:kill",
        "load.apart.before:3:kill",
        "load.apart.after:4:kill",
    ),
    "its rows being copied": (
        "table.copy.before:1:kill",
        "table.copy.after:1:kill",
    ),
    "a batch of one table": (
        "load.job.before:6:kill",
        "load.commit.before:7:kill",
        "load.commit.after:9:kill",
    ),
}


@pytest.mark.parametrize("what", KILLS)
def test_whatever_dies_the_tables_end_equal(
    what: str, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are added, copied again, paused and resumed, with one whose rows count if applied
    twice.
    """
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("PENSTOCK_FAULT", ",".join(KILLS[what]))
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    pair = Pair(
        tmp_path,
        postgres,
        tables=("public.fence", "public.item", "public.bag", "public.other"),
        sections={"changeLoader": {"removeFiles": True, "maxFilesPerBatch": 3}},
    )
    try:
        pair.run(SETUP + LATE.format(name="late"))
        pair.start()
        pair.settle()
        with Customers(pair, "item", "late"):
            request(pair, "add", "public.late")
            request(pair, "pause", "public.bag")
            reach(pair, "public.late", "following")
            reach(pair, "public.bag", "paused")
            request(pair, "resync", "public.item")
            request(pair, "resume", "public.bag")
            reach(pair, "public.item", "following")
            reach(pair, "public.bag", "following")
        pair.check("item", "bag", "late", "other")
        assert list(once.iterdir()), "no fault has happened"
    finally:
        monkeypatch.undo()
        pair.close()
