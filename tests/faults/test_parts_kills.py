"""A pipeline whose batches several sessions apply, killed between the parts while a bank works.

A reader of the target sees only what docs/configuration.md says of each way: the bank's total is
unchanged at every moment at which no table is ahead, or no part is prepared. In the end source and
target are equal row by row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.kill_chains import PARTS_CHAIN, PREPARED_CHAIN, kill_along
from harness.faults.kills import POSTGRES, BankPipeline

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.promise
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (POSTGRES, "ahead"),
        (POSTGRES, "prepared"),
        ("mysql", "ahead"),
        ("mariadb", "ahead"),
    ],
)
@pytest.mark.long
def test_killed_between_the_parts(tmp_path: Path, kind: str, way: str) -> None:
    """The loader dies at each point between parts, and the bank works on."""
    chain = PARTS_CHAIN + (PREPARED_CHAIN if way == "prepared" else ())
    with BankPipeline(tmp_path, 1, source=kind, target=kind, parts=way) as pipeline:
        pipeline.start()
        missed = kill_along(pipeline, pipeline.load, chain)
        pipeline.check_books()
        pipeline.finish()
        assert missed == []
        assert pipeline.reader.excused_count > 0
