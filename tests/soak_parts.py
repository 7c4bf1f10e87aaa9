"""Kill loaders whose batches several sessions apply: one story per seed.

`python tests/soak_parts.py --kills 200` prints one JSON line per kill, and exits with 1 if a story
fails. A story has one of the ways in which parts are committed, on one server; they take turns.
See `harness/faults/part_kills.py` for what must hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from harness.faults.part_kills import PartStory, draw
from harness.pipelines.parts import WAYS, place_for
from plugins.shared import SharedServers


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def main() -> int:
    """Run stories until N kills were made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-story", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, action="append")
    flags = parser.parse_args()
    ways = flags.way or list(WAYS)
    totals: Counter[str] = Counter()
    began, done, seed = time.monotonic(), 0, flags.seed
    with ExitStack() as stack:
        servers = SharedServers(stack)
        while done < flags.kills:
            way = ways[seed % len(ways)]
            kills = draw(random.Random(seed), way, min(flags.per_story, flags.kills - done))
            with (
                tempfile.TemporaryDirectory(prefix="penstock-parts-") as folder,
                place_for(servers, way) as place,
            ):
                story = PartStory(place, Path(folder), way, seed, tell=say)
                try:
                    story.tell(kills)
                except AssertionError as error:
                    say(f"failed: {error}")
                    again = f"--way '{way}' --seed {seed} --kills {len(kills)}"
                    say(f"again: python tests/soak_parts.py {again}")
                    return 1
            totals.update(story.outcomes)
            done += len(kills)
            say(
                f"{done} of {flags.kills} kills, seed {seed} of {way} ended equal, "
                f"{time.monotonic() - began:.0f} s: {dict(totals)}"
            )
            seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
