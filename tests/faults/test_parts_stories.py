"""Short stories of kills for batches that several sessions apply; long ones: `soak_parts.py`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.faults.part_kills import PartStory, draw
from harness.pipelines.parts import WAYS, place_for
from plugins.shared import SharedServers

KILLS = 8


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_loaders_are_killed_one_after_the_other(
    tmp_path: Path, shared_servers: SharedServers, way: str
) -> None:
    """After each kill a reader sees what the documentation says; at the end nothing differs."""
    seed = WAYS.index(way)
    with place_for(shared_servers, way) as place:
        PartStory(place, tmp_path, way, seed).tell(draw(random.Random(seed), way, KILLS))
