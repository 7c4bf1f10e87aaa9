"""Kill a pipeline's parts while a bank works on its source: one story per seed.

A story is a list of kills, drawn from its seed: the victim (extract, load, the JVM, a Spark worker,
the source or the target server) and the time (a random moment, or the nth time a named fault point
is reached). `make soak` runs `python tests/soak.py --kills 1000`: it prints one JSON line per kill
and exits with 1 if a story fails. `--source mariadb --target mysql` runs it with other servers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.faults.kills import ORACLE, POSTGRES, SQLSERVER, BankPipeline, Half

# Points of every kind of source.
EXTRACT_POINTS = (
    "log.create.before",
    "log.create.after",
    "log.write.before",
    "log.write.after",
    "log.fdatasync.before",
    "log.fdatasync.after",
    "log.flush.before",
    "log.flush.after",
    "log.footer.before",
    "log.state.before",
    "log.rename.before",
    "log.rename.after",
    "log.recovery.before",
    "log.recovery.after",
    "extract.write.after",
    "extract.flush.before",
    "extract.flush.after",
    "extract.acknowledge.after",
    "extract.rotate.before",
    "extract.rotate.after",
    "extract.record.before",
    "extract.record.after",
)
STREAM_POINTS = {
    POSTGRES: (
        "stream.start.before",
        "stream.acknowledge.before",
        "stream.acknowledge.after",
        "spill.append.before",
        "spill.append.after",
        "spill.remove.before",
    ),
    "mysql": ("binlog.start.before", "binlog.acknowledge.before", "binlog.acknowledge.after"),
    SQLSERVER: (
        "changes.read.before",
        "changes.confirm.before",
        "changes.confirm.after",
        "changes.acknowledge.after",
    ),
    ORACLE: (
        "oracle.window.before",
        "oracle.window.after",
        "oracle.run.before",
        "oracle.acknowledge.after",
    ),
}
STREAM_POINTS["mariadb"] = STREAM_POINTS["mysql"]
LOAD_POINTS = (
    "load.job.before",
    "load.copy.before",
    "load.copy.after",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)
REACHED_ONCE = (
    "log.recovery.before",
    "log.recovery.after",
    "stream.start.before",
    "binlog.start.before",
)
VICTIMS = {"extract": 6, "load": 4, "jvm": 2, "worker": 2, "source": 1, "target": 1}
POINT_TIMEOUT_S = 30.0  # a point that is not reached by then is not reached so many times


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
        point: `name:nth` for a fault point; empty for a random moment.
    """

    victim: str
    wait_s: float
    point: str = ""


def draw(seed: int, count: int, source: str = POSTGRES) -> Iterator[Kill]:
    """Yield the kills of a story; the same seed and kind of source give the same story."""
    extract_points = EXTRACT_POINTS + STREAM_POINTS[source]
    chance = random.Random(seed)
    names, weights = list(VICTIMS), list(VICTIMS.values())
    for _ in range(count):
        victim = chance.choices(names, weights)[0]
        point = ""
        if victim in ("extract", "load") and chance.random() < 0.6:
            points = extract_points if victim == "extract" else LOAD_POINTS
            name, nth = chance.choice(points), chance.randint(1, 4)
            point = f"{name}:{1 if name in REACHED_ONCE else nth}"
        yield Kill(victim=victim, wait_s=round(chance.uniform(0.1, 4.0), 2), point=point)


class Story:
    """A pipeline and a bank under many kills, and the check at the end."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        source: str = POSTGRES,
        target: str = POSTGRES,
        major: int | None = None,
    ) -> None:
        """Prepare a story: in an empty folder for the pipeline's files, with kinds of servers."""
        self._seed = seed
        self._pipeline = BankPipeline(folder, seed, source=source, target=target, major=major)
        self.outcomes: Counter[str] = Counter()

    def tell(self, kills: list[Kill]) -> None:
        """Run the story. Raises AssertionError with the seed if the end is not as it must be."""
        with self._pipeline as pipeline:
            pipeline.start()
            for number, kill in enumerate(kills):
                happened = self._carry_out(kill)
                self.outcomes[f"{kill.victim} {happened}"] += 1
                told = {"seed": self._seed, "number": number, "happened": happened}
                print(json.dumps(told | asdict(kill)), flush=True)
                pipeline.check_books()
                self._restart_the_dead()
            pipeline.finish()

    def _carry_out(self, kill: Kill) -> str:
        """Carry out a kill; return whether it killed, or that the victim was not running."""
        pipeline = self._pipeline
        if kill.victim in ("extract", "load"):
            half = pipeline.extract if kill.victim == "extract" else pipeline.load
            return self._kill_half(half, kill)
        time.sleep(kill.wait_s)
        if kill.victim in ("source", "target"):
            server = pipeline.source if kill.victim == "source" else pipeline.target
            server.crash()
            time.sleep(0.5)
            server.start()
            return "killed"
        name = "java" if kill.victim == "jvm" else "python"
        return "killed" if pipeline.load.kill_descendant(name) else "was not running"

    def _kill_half(self, half: Half, kill: Kill) -> str:
        if kill.point:
            if half.running:
                half.stop()
            reached = self._pipeline.kill_at(half, kill.point, POINT_TIMEOUT_S)
            return "killed at its point" if reached else "killed, point not reached"
        time.sleep(kill.wait_s)
        if not half.running:
            return "was not running"
        half.kill()
        return "killed"

    def _restart_the_dead(self) -> None:
        for half in (self._pipeline.extract, self._pipeline.load):
            if half.running:
                continue
            code = half.process.returncode
            if code not in (0, -9):
                # A server's death may end a half with a typed error; its message is kept.
                self.outcomes[f"{half.command} ended with {code}"] += 1
                print(
                    json.dumps(
                        {"ended": half.command, "code": code, "told": half.read_output()[-600:]}
                    )
                )
            half.start()


def main() -> int:
    """Run stories until N kills were made: `--kills N --per-story M --seed S`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-story", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--major", type=int, default=None)
    parser.add_argument("--source", choices=sorted(STREAM_POINTS), default=POSTGRES)
    parser.add_argument("--target", choices=sorted(STREAM_POINTS), default=POSTGRES)
    flags = parser.parse_args()
    totals: Counter[str] = Counter()
    done, seed, began = 0, flags.seed, time.monotonic()
    while done < flags.kills:
        count = min(flags.per_story, flags.kills - done)
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as folder:
            story = Story(
                seed, Path(folder), source=flags.source, target=flags.target, major=flags.major
            )
            try:
                story.tell(list(draw(seed, count, flags.source)))
            except AssertionError as error:
                print(f"failed: {error}", flush=True)
                print(
                    f"again: python tests/soak.py --seed {seed} --kills {count}"
                    f" --source {flags.source} --target {flags.target}",
                    flush=True,
                )
                return 1
        totals.update(story.outcomes)
        done += count
        elapsed_s = time.monotonic() - began
        left_s = elapsed_s / done * (flags.kills - done)
        print(
            f"{done} of {flags.kills} kills, seed {seed} ended equal,"
            f" {elapsed_s:.0f} s, about {left_s:.0f} s left: {dict(totals)}",
            flush=True,
        )
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
