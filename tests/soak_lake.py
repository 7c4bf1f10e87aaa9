"""Kill loaders into lakes while a bank works on their source: one story per seed.

`python tests/soak_lake.py --kills 300` prints one JSON line per kill, and exits with 1 if a story
fails. A story has one format; formats take turns. Another program maintains the tables meanwhile.
See `harness/lake/bank.py` for what must hold, `harness/lake/bank_kills.py` for the kills.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from harness.lake.bank import LakeBank, say
from harness.lake.bank_kills import KINDS, carry_out, draw
from harness.lake.spark import lake_session
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.session import Session
from plugins.postgres import Server

PROPERTIES = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}


def tell(
    seed: int, kind: str, count: int, *, folder: Path, server: Server, session: Session
) -> tuple[dict[str, int], Counter[str]]:
    """Run a story; return its counts and outcomes. Raises AssertionError."""
    with LakeBank(folder / f"story-{seed}", server, session, kind, seed) as bank:
        bank.disturb_always()
        outcomes = carry_out(bank, list(draw(random.Random(seed), kind, count)))
        return bank.finish(), outcomes


def main() -> int:
    """Run stories until N kills were made, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--per-story", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no story after them")
    flags = parser.parse_args()
    kinds = flags.kind or list(KINDS)
    totals: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    began, failed = time.monotonic(), 0
    with (
        tempfile.TemporaryDirectory(prefix="penstock-lakes-") as place,
        lake_session(Path(place) / "spark", PROPERTIES, master="local[2]") as session,
        EmbeddedPostgres() as postgres,
    ):
        server, seed = Server(embedded=postgres), flags.seed
        while totals["kills"] < flags.kills and time.monotonic() - began < flags.minutes * 60:
            kind = kinds[(seed - flags.seed) % len(kinds)]
            count = min(flags.per_story, flags.kills - totals["kills"])
            folder = Path(place)
            try:
                counts, seen = tell(
                    seed, kind, count, folder=folder, server=server, session=session
                )
            except AssertionError:
                failed += 1
                traceback.print_exc()
                again = f"python tests/soak_lake.py --seed {seed} --kind {kind} --kills {count}"
                say(f"failed: seed {seed} of {kind}; again: {again}")
                return 1
            totals.update(counts)
            outcomes.update(seen)
            elapsed_s = time.monotonic() - began
            say(
                f"seed {seed} of {kind} ended equal, {elapsed_s:.0f} s: {dict(totals)}, "
                f"{dict(outcomes)}"
            )
            seed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
