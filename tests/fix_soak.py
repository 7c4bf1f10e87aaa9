"""Kill a pipeline's parts while a bank works on its source: one story per seed.

A story is a list of kills, drawn from its seed: whom (extract, load, the JVM, a Spark worker, the
source or the target server) and when (a random moment, or the nth time a named fault point is
reached). `python tests/fix_soak.py --kills 1000` is what `make soak` runs: it prints one JSON line
per kill and exits with 1 when a story ends badly.
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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fix_bank import Bank, Half, Reader, differences
from fix_pipeline import write_pipeline
from penstock.host.embedded import EmbeddedPostgres

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
    "stream.start.before",
    "stream.acknowledge.before",
    "stream.acknowledge.after",
)
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
VICTIMS = {"extract": 6, "load": 4, "jvm": 2, "worker": 2, "source": 1, "target": 1}
DEATH_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill. point: `name:nth` for a fault point; empty for a random moment."""

    victim: str
    wait_s: float
    point: str = ""


def draw(seed: int, count: int) -> Iterator[Kill]:
    """The kills of a story; the same seed tells the same story."""
    chance = random.Random(seed)
    names, weights = list(VICTIMS), list(VICTIMS.values())
    for _ in range(count):
        victim = chance.choices(names, weights)[0]
        point = ""
        if victim in ("extract", "load") and chance.random() < 0.6:
            points = EXTRACT_POINTS if victim == "extract" else LOAD_POINTS
            point = f"{chance.choice(points)}:{chance.randint(1, 4)}"
        yield Kill(victim=victim, wait_s=round(chance.uniform(0.1, 4.0), 2), point=point)


class Story:
    """One pipeline, one bank, many kills, one ending."""

    def __init__(self, seed: int, folder: Path, *, major: int | None = None) -> None:
        """folder: for the pipeline's files; must be empty."""
        self._seed = seed
        self._folder = folder
        self._major = major
        self.outcomes: Counter[str] = Counter()

    def tell(self, kills: list[Kill]) -> None:
        """Run it; raises AssertionError with the seed when the end is not as it must be."""
        with ExitStack() as stack:
            self._source = stack.enter_context(EmbeddedPostgres(major=self._major))
            self._target = stack.enter_context(EmbeddedPostgres(major=self._major))
            source, target = self._source.url("postgres"), self._target.url("postgres")
            bank = Bank(source, self._seed)
            self._extract = self._half("extract", source, target)
            self._load = self._half("load", source, target)
            stack.callback(self._end_processes)
            reader = Reader(target)
            with bank, reader:
                self._extract.start()
                self._load.start()
                self._until_read(reader, 1)
                for number, kill in enumerate(kills):
                    happened = self._carry_out(kill)
                    self.outcomes[happened] += 1
                    told = {"seed": self._seed, "number": number, "happened": happened}
                    print(json.dumps(told | asdict(kill)), flush=True)
                    assert not reader.wrong, f"seed {self._seed}: {reader.wrong[:3]}"
                    self._restart_the_dead()
            self._finish(source, target)
            reader_count = reader.read_count
            assert not reader.wrong, f"seed {self._seed}: {reader.wrong[:3]}"
            assert reader_count > 10, f"seed {self._seed}: only {reader_count} reads of the target"
            found = differences(source, target)
            assert not found, f"seed {self._seed}: {found}"

    def _half(self, command: str, source: str, target: str) -> Half:
        file = write_pipeline(
            self._folder,
            source,
            target,
            name="bank",
            directory="bank",
            sections={
                "changeExtractor": {"flushIntervalSeconds": 0.5, "exitWhenIdle": False},
                "spark": {"master": "local[2]"},
            },
            file="bank.toml",
        )
        return Half(command, file)

    def _carry_out(self, kill: Kill) -> str:
        """Do it; returns what happened: killed, or that the victim was not there to be killed."""
        if kill.victim in ("source", "target"):
            time.sleep(kill.wait_s)
            server = self._source if kill.victim == "source" else self._target
            server.crash()
            time.sleep(0.5)
            server.start()
            return "killed"
        if kill.victim in ("jvm", "worker"):
            time.sleep(kill.wait_s)
            return self._kill_descendant("java" if kill.victim == "jvm" else "python")
        half = self._extract if kill.victim == "extract" else self._load
        if kill.point:
            return self._kill_at_point(half, kill.point)
        time.sleep(kill.wait_s)
        if not half.running:
            return "was not running"
        half.kill()
        return "killed"

    def _kill_at_point(self, half: Half, point: str) -> str:
        if half.running:
            half.stop()
        half.start({"PENSTOCK_FAULT": f"{point}:kill"})
        deadline = time.monotonic() + DEATH_TIMEOUT_S
        while half.running and time.monotonic() < deadline:
            time.sleep(0.05)
        if half.running:  # this point is not reached so often: an ordinary kill instead
            half.kill()
            return "killed outside the point"
        return "killed"

    def _kill_descendant(self, name: str) -> str:
        deadline = time.monotonic() + DEATH_TIMEOUT_S
        while time.monotonic() < deadline:
            found = self._load.descendants(name) if self._load.running else []
            if found:
                victim = found[-1]
                try:
                    victim.kill()
                except psutil.NoSuchProcess:
                    continue
                return "killed"
            time.sleep(0.1)
        return "was not running"

    def _restart_the_dead(self) -> None:
        for half in (self._extract, self._load):
            if half.running:
                continue
            code = half.process.returncode
            if half.start_count and code not in (0, -9):
                # A server's death may end a half with a typed error; what it says is kept.
                self.outcomes[f"{half.command} ended with {code}"] += 1
            half.start()

    def _until_read(self, reader: Reader, count: int) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while reader.read_count < count:
            for half in (self._extract, self._load):
                assert half.running, f"{half.command} ended: {half.told()}"
            assert time.monotonic() < deadline, (
                f"seed {self._seed}: nothing in the target after {READY_TIMEOUT_S} s:"
                f" {self._load.told()}"
            )
            time.sleep(0.05)

    def _finish(self, source: str, target: str) -> None:
        """The bank is closed: let the extractor run dry and the loader apply everything."""
        # A signal during start-up, before there is a handler, simply ends it.
        assert self._extract.stop() in (0, -15), self._extract.told()
        assert self._load.running or self._load.process.returncode in (0, -9), self._load.told()
        file = self._folder / "bank.toml"
        file.write_text(file.read_text().replace("exitWhenIdle = false", "exitWhenIdle = true"))
        if self._load.running:
            assert self._load.stop() in (0, -15), self._load.told()
        self._extract.start()
        assert self._extract.finish() == 0, self._extract.told()
        self._load.start()
        assert self._load.finish() == 0, self._load.told()

    def _end_processes(self) -> None:
        for half in (self._extract, self._load):
            if half.running:
                half.kill()


def main() -> int:
    """`--kills N --per-story M --seed S --major V`: stories until N kills were made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-story", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--major", type=int, default=None)
    flags = parser.parse_args()
    totals: Counter[str] = Counter()
    done, seed, began = 0, flags.seed, time.monotonic()
    while done < flags.kills:
        count = min(flags.per_story, flags.kills - done)
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as folder:
            story = Story(seed, Path(folder), major=flags.major)
            try:
                story.tell(list(draw(seed, count)))
            except AssertionError as error:
                print(f"failed: {error}", flush=True)
                print(f"again: python tests/fix_soak.py --seed {seed} --kills {count}", flush=True)
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
