"""Stories of kills for batches that several sessions apply: drawn from a seed, checked after each.

A story has one target in one of `harness.pipelines.parts.WAYS`, and a log that grows. Each loader
is a process of its own, with a drawn number of sessions and of files in a batch. It is killed at a
drawn fault point or moment; then what a reader may see is checked. At the end the last loader
applies the whole log, and nothing may be left ahead or prepared.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.pipelines.loader import LogMaker
from harness.pipelines.parts import (
    NAMES,
    TABLES,
    ahead,
    check,
    count_prepared,
    expected_rows,
    rows_of,
    run_child,
    start_child,
    write,
)
from harness.servers.engines import Place
from penstock.ports.progress import open_target_reader

PART_POINTS = (
    "load.part.before",
    "load.part.after",
    "load.parts.joined",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)
PREPARED_POINTS = ("load.part.committed",)
ONE_SESSION_POINTS = tuple(name for name in PART_POINTS if ".part" not in name)
NTH_MAX = 4
FILES_MAX = 3
# A loader that is to die must not find the end of the log before: a batch has FILES_MAX files, and
# reaches each point at least once.
SEGMENTS_AHEAD = (NTH_MAX + 1) * FILES_MAX
SETTLE_S = 30.0  # for statements that the killed loader had sent
ROWS_FIRST, ROWS_LATER = len(NAMES) + 1, 2 * len(NAMES) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartKill:
    """One kill.

    Attributes:
        point: `name:nth` of a fault point; empty for a moment.
        wait_s: Seconds between the start of the loader and its kill, if there is no point.
        sessions: Number of sessions of the loader.
        files: Greatest number of segments in its batches.
    """

    point: str
    wait_s: float
    sessions: int
    files: int


def draw(chance: random.Random, way: str, count: int) -> list[PartKill]:
    """Return the kills of a story."""
    found = []
    for _ in range(count):
        sessions = chance.choice((1, 2, 3, 3, 3))
        points = ONE_SESSION_POINTS if sessions == 1 else PART_POINTS
        if sessions > 1 and "prepared" in way:
            points += PREPARED_POINTS
        point = f"{chance.choice(points)}:{chance.randint(1, NTH_MAX)}"
        found.append(
            PartKill(
                point=point if chance.random() < 0.8 else "",
                wait_s=round(chance.uniform(1.0, 5.0), 2),
                sessions=sessions,
                files=chance.randint(1, FILES_MAX),
            )
        )
    return found


class PartStory:
    """A log, a target, and loaders that are killed one after the other."""

    def __init__(
        self,
        place: Place,
        folder: Path,
        way: str,
        seed: int,
        *,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Create the tables, and begin the log.

        folder: empty, for the loaders' files. tell: gets a line for each kill.
        """
        self.outcomes: Counter[str] = Counter()
        self._place, self._folder, self._way, self._seed = place, folder, way, seed
        self._tell = tell
        place.run(*TABLES)
        self._log = LogMaker(folder / "log")
        self._transaction_count = 0

    def tell(self, kills: list[PartKill]) -> None:
        """Carry all kills out. Raises AssertionError with the way and the seed."""
        with closing(self._log.writer):
            for number, kill in enumerate(kills):
                self._grow()
                self._carry_out(kill)
                self.outcomes[kill.point.partition(":")[0] or "moment"] += 1
                told = {"way": self._way, "seed": self._seed, "number": number}
                self._tell(json.dumps(told | asdict(kill)))
                self._check_until_settled()
            self._log.writer.finish()
            code, said = run_child(self._place, self._folder)
            assert code == 0, self._name(said)
            check(self._place, self._transaction_count)
            assert ahead(self._place) == {}, self._name("tables are ahead")
            assert count_prepared(self._place) == 0, self._name("parts are prepared")

    def _name(self, what: str) -> str:
        return f"{self._way}, seed {self._seed}: {what}"

    def _grow(self) -> None:
        """Write segments of one or two transactions until there are enough after those applied."""
        wanted = _count_of(self._applied_gsn()) + 2 * SEGMENTS_AHEAD
        while self._transaction_count < wanted:
            for _ in range(1 + self._transaction_count % 3 % 2):
                write(self._log, self._transaction_count)
                self._transaction_count += 1
            self._log.close_segment()

    def _carry_out(self, kill: PartKill) -> None:
        fault = f"{kill.point}:kill" if kill.point else ""
        more = {"sessions": kill.sessions, "files": kill.files}
        child = start_child(self._place, self._folder, fault, **more)
        if not kill.point:
            time.sleep(kill.wait_s)
            child.kill()
        said, _ = child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL, self._name(f"{kill}: {said}")

    def _applied_gsn(self) -> int:
        with closing(open_target_reader(self._place.url, application_name="test")) as reader:
            return reader.read_applied().gsn

    def _gone_ahead(self) -> dict[str, int]:
        """Return the tables that are ahead, also before there is a table of them."""
        with closing(open_target_reader(self._place.url, application_name="test")) as reader:
            exists = "wirekite_ahead" in reader.present_tables()  # type: ignore[attr-defined]
        return ahead(self._place) if exists else {}

    def _check_until_settled(self) -> None:
        """Check what is visible; statements of the killed loader may still be at work for long."""
        end_s = time.monotonic() + SETTLE_S
        while found := self._find_wrong():
            assert time.monotonic() < end_s, self._name(found)
            time.sleep(0.1)

    def _find_wrong(self) -> str:
        """Return what a reader must not see; empty if there is nothing.

        A table that is not ahead is at the applied position; one that is ahead is where it says so,
        and one with a prepared part may be at either end of the batch.
        """
        before = self._applied_gsn()
        if before == 0:
            return ""  # the state tables may not be there yet
        gone_ahead, is_prepared = self._gone_ahead(), count_prepared(self._place) > 0
        for name in NAMES:
            rows = rows_of(self._place, name)
            if rows != expected_rows(len(rows)):
                return f"rows of {name}: {rows}"
            count = _count_of(gone_ahead.get(name, before))
            if len(rows) != count and not (is_prepared and len(rows) < count):
                return f"{name} has {len(rows)} transactions, not {count}: {gone_ahead}"
        bag = rows_of(self._place, "bag")
        if bag != [(number,) for number in range(len(bag))]:
            return f"rows of bag: {bag}"
        return "" if self._applied_gsn() == before else "the loader is still at work"


def _count_of(gsn: int) -> int:
    """Return after how many transactions a row change is the last one."""
    return (gsn - ROWS_FIRST) // ROWS_LATER + 1 if gsn else 0
