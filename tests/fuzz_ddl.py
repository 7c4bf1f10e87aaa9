"""Fuzz schema changes: random histories of rows and DDL, after which source and target are equal.

`python tests/fuzz_ddl.py --histories 300 --seed 1 --source postgres --target mariadb --shrink`
prints each history that is not equal, with its script as short as possible, and at the end the
counts by outcome and reason. Exits with 1 if a history differs.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from harness.pipelines.ddl_arena import (
    DIFFERENT,
    EQUAL,
    UNCHANGED_S,
    AnyAuthor,
    Outcome,
    authors,
    run_histories,
)
from harness.pipelines.ddl_followers import NAMES
from harness.pipelines.ddl_lake_java import LAKES
from harness.pipelines.ddl_model import FEATURES
from harness.pipelines.ddl_script import Script, read_script
from harness.pipelines.ddl_servers import Servers
from harness.pipelines.ddl_shrink import shrink
from harness.pipelines.ddl_types import MARIADB, MYSQL, ORACLE, POSTGRES, SQLSERVER

KINDS = (POSTGRES, MYSQL, MARIADB)
SHRINKING_S = 4.0
Given = Callable[[], Sequence[AnyAuthor | Script]]


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(number: str, outcome: Outcome, pair: tuple[str, str]) -> None:
    """Print the outcome of a history."""
    say(f"\n=== {' to '.join(pair)}, history {number}: {outcome.end} {outcome.code}")
    if outcome.reason:
        say(f"    {outcome.reason}\n    hint: {outcome.hint}")
    if outcome.cure:
        say(f"    equal after `penstock table resync`: {outcome.cure}")
    for line in outcome.lines[:8]:
        say(f"    {line}")
    say(outcome.script.text)


class Fuzzing:
    """A run of histories on one pair of servers."""

    def __init__(
        self, servers: Servers, folder: Path, pair: tuple[str, str], flags: argparse.Namespace
    ) -> None:
        self._servers, self._folder, self._pair, self._flags = servers, folder, pair, flags

    def run(self, seed: int, count: int) -> list[Outcome]:
        """Run the histories of a seed in one arena; print those that are not equal."""
        flags = self._flags
        numbers = [number for number in range(count) if flags.only in ("", f"{seed}.{number}")]

        def choose_authors() -> list[AnyAuthor]:
            written = authors(self._pair, seed, count, flags.features)
            return [written[number] for number in numbers]

        outcomes = self._play(choose_authors, seed, cures=True)
        bad = {n: one for n, one in zip(numbers, outcomes, strict=True) if one.end != EQUAL}
        wanted = [n for n, one in bad.items() if one.end == DIFFERENT or flags.shrink == "refusals"]
        try:
            if flags.shrink and wanted:
                self._shrink(bad, wanted, seed)
        finally:  # also if the user interrupts
            for n, one in bad.items():
                show(f"{seed}.{n}", one, self._pair)
        return outcomes

    def play(self, files: Sequence[Path]) -> list[Outcome]:
        """Play the scripts of these files twice, and print those that are not equal."""
        read = {one: read_script(one.read_text(), self._pair[0]) for one in files}
        scripts = {one.stem: script for one, script in read.items() if script is not None}
        outcomes: list[Outcome] = []
        for at_once in (False, True) if scripts else ():
            played = self._play(lambda: list(scripts.values()), 0, begins_at_once=at_once)
            for name, one in zip(scripts, played, strict=True):
                if one.end != EQUAL:
                    when = "while the bulk load runs" if at_once else "behind the bulk load"
                    show(f"{name} ({when})", one, self._pair)
            outcomes += played
        return outcomes

    def _shrink(self, bad: dict[int, Outcome], wanted: Sequence[int], seed: int) -> None:
        """Shorten the scripts of the wanted histories in place."""
        for n in wanted:
            say(f"shortening {seed}.{n}: {' | '.join(bad[n].lines[:2]) or bad[n].reason}")
        for shorter in shrink(
            [bad[n] for n in wanted],
            lambda given: self._play(given, seed, patience_s=SHRINKING_S),
            random.Random(seed),
        ):
            bad |= zip(wanted, shorter, strict=True)
            say(f"lengths now: {[one.script.size for one in shorter]}")

    def _play(self, given: Given, seed: int, **more: Any) -> list[Outcome]:
        if self._flags.verbose:
            more["tell"] = lambda text: say(f"    {text}")
        more.setdefault("patience_s", self._flags.patience)
        more["also"] = self._flags.also
        if self._flags.begin:
            more.setdefault("begins_at_once", self._flags.begin == "beside")
        return run_histories(self._servers, self._folder, self._pair, given, seed, **more)


def read_names(text: str) -> tuple[str, ...]:
    """Read names of followers. Raises ArgumentTypeError."""
    names = tuple(text.split(","))
    for name in set(names) - set(NAMES):
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(NAMES)}")
    return names


def read_flags() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--histories", type=int, default=40, help="of each pair")
    add("--seed", type=int, default=1)
    add("--at-once", type=int, default=40, help="histories of one pipeline")
    add("--source", choices=(*KINDS, SQLSERVER, ORACLE), action="append", help="all, if not given")
    targets = (*KINDS, SQLSERVER, ORACLE, *LAKES)
    add("--target", choices=targets, action="append", help="all databases, if not given")
    add("--features", type=lambda text: text.split(","), default=list(FEATURES))
    add("--without", type=lambda text: text.split(","), default=[], help="features, by comma")
    add("--only", default="", help="one history by its number, such as 1.17")
    add("--shrink", nargs="?", const="differences", choices=("differences", "refusals"))
    add("--play", type=Path, nargs="+", help="files of scripts, in place of random histories")
    add("--patience", type=float, default=UNCHANGED_S, help="seconds that a difference must stay")
    add("--also", type=read_names, default=(), help=f"compare these, too: {','.join(NAMES)}")
    add("--begin", choices=("after", "beside"), help="the bulk load; both, if not given")
    add("--keep", type=Path, help="a folder for the pipelines' files")
    add("--verbose", action="store_true")
    flags = parser.parse_args()
    flags.features = [one for one in flags.features if one not in flags.without]
    return flags


def main() -> int:
    """Run the histories of a seed."""
    flags = read_flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    counts: Counter[tuple[str, str]] = Counter()
    began_s = time.monotonic()
    with Servers() as servers, tempfile.TemporaryDirectory(prefix="penstock-ddl-") as folder:
        place = flags.keep or Path(folder)
        place.mkdir(exist_ok=True)
        for pair in [(s, t) for s in flags.source or KINDS for t in flags.target or KINDS]:
            fuzzing, done, seed = Fuzzing(servers, place, pair, flags), 0, flags.seed
            if flags.play:
                counts.update(one.kind for one in fuzzing.play(flags.play))
                continue
            while done < flags.histories:
                count = min(flags.at_once, flags.histories - done)
                outcomes = fuzzing.run(seed, count)
                counts.update(one.kind for one in outcomes)
                counts.update(("not cured", one.kind[1]) for one in outcomes if one.cure == "no")
                done, seed = done + count, seed + 1
                elapsed_s = time.monotonic() - began_s
                say(f"--- {' to '.join(pair)}: {done} histories, {elapsed_s:.0f} s")
    for (end, reason), number in counts.most_common():
        say(f"{number:6} {end} {reason}")
    return int(any(end == DIFFERENT for end, _ in counts))


if __name__ == "__main__":
    sys.exit(main())
