"""Batches applied to Delta Lake and Iceberg, beside MERGE of the same batches in the same session.

Each part prints JSON lines and a table. CPU seconds are those of all processes: the driver, its JVM
and Python's workers. They are the figures to trust on a shared machine; seconds on the clock are
printed with the load average. MERGE has the settings that cost least: tables with deletion vectors,
no checksum file, no adaptive execution, no shuffle before Iceberg's writer, a batch that is already
folded, and no maintenance. penstock reads, checks and folds its change log, and its own maintenance
counts (but in the part `files`, where it would join the thousand files).

Estimates in CPU seconds a batch are beside each figure (`ESTIMATES`), from a spike: staging costs
0.1 and 1.2 µs a change, a lookup 0.05 to 0.4, a commit 0.1 (Iceberg) or 0.2 (Delta), and the row of
the table of batches once more. MERGE plans, generates and runs two joins whatever the size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import describe_machine
from bench.lake_data import (
    FORMATS,
    LOG_ID,
    NAMES,
    OPERATION,
    Batch,
    Keys,
    Lake,
    Log,
    fill_table,
    make_lake,
    make_rows,
    open_session,
)
from bench.lake_flow import bench_flow, bench_read, bench_sustained
from bench.lake_meter import Reading, load_average, show
from bench.lake_servers import bench_bulk, bench_fresh
from harness.lake.applying import LakeRun
from penstock.engines.lake.upkeep import DEFAULT_LIMITS, Limits
from penstock.load.session import Session
from penstock.model import TableName

SIZES = (1, 100, 5_000, 100_000, 1_000_000)
REPEATS = {1: 8, 100: 8, 5_000: 8, 100_000: 2, 1_000_000: 1}
"""Number of batches of one reading: one join of small files is among eight."""

NO_UPKEEP = Limits(count=10**9, dead_rows_min=10**12)
MERGE_THREADS = 8
ROWS = 1_000_000

ESTIMATES: Mapping[tuple[str, str, int], float] = {
    ("delta", "penstock", 1): 0.5,
    ("delta", "penstock", 100): 0.5,
    ("delta", "penstock", 5_000): 0.6,
    ("delta", "penstock", 100_000): 0.9,
    ("delta", "penstock", 1_000_000): 2.5,
    ("delta", "MERGE", 1): 3.5,
    ("delta", "MERGE", 100): 3.5,
    ("delta", "MERGE", 5_000): 4.5,
    ("delta", "MERGE", 100_000): 6.0,
    ("delta", "MERGE", 1_000_000): 12.0,
    ("iceberg", "penstock", 1): 0.4,
    ("iceberg", "penstock", 100): 0.4,
    ("iceberg", "penstock", 5_000): 0.5,
    ("iceberg", "penstock", 100_000): 0.7,
    ("iceberg", "penstock", 1_000_000): 2.3,
    ("iceberg", "MERGE", 1): 1.4,
    ("iceberg", "MERGE", 100): 1.5,
    ("iceberg", "MERGE", 5_000): 1.5,
    ("iceberg", "MERGE", 100_000): 2.4,
    ("iceberg", "MERGE", 1_000_000): 8.0,
}
GOALS: Mapping[tuple[str, int], float] = {
    ("delta", 1): 10,
    ("delta", 100): 10,
    ("delta", 5_000): 10,
    ("delta", 100_000): 5,
    ("iceberg", 1): 4,
    ("iceberg", 100): 4,
    ("iceberg", 5_000): 4,
    ("iceberg", 100_000): 3,
}


@dataclass(frozen=True)
class Shape:
    """Tables of a comparison: their number, and rows and files of each."""

    tables: int
    rows: int
    files: int
    limits: Limits = DEFAULT_LIMITS


class Pair:
    """penstock's tables and MERGE's in one lake, with the same rows from the beginning."""

    def __init__(self, lake: Lake, session: Session, log: Log, shape: Shape) -> None:
        """Create and fill the tables, and open the loader."""
        self.lake, self._session, self._log = lake, session, log
        self.names = [f"t{number}" for number in range(shape.tables)]
        catalogue = lake.open(session)
        for name, schema in itertools.product(self.names, ("public", "merged")):
            fill_table(catalogue, TableName(schema, name), shape.rows, shape.files)
            if schema == "merged" and lake.place is not None:
                self._sql(
                    f"alter table {lake.sql_name(TableName(schema, name))} set tblproperties "
                    "('write.merge.distribution-mode' = 'none')"
                )
        self._run = LakeRun(
            lake.format, lake.url, log.folder, jobs=session, log_id=LOG_ID, limits=shape.limits
        )
        self._place = 0

    def _sql(self, statement: str) -> None:
        self._session.spark.sql(statement).collect()

    def apply(self, count: int) -> Mapping[str, float]:
        """Apply the next batches of the log; return the seconds of their steps, together."""
        together: dict[str, float] = {}
        for _ in range(count):
            staged = self._run.stage(place=self._place % 2, files_max=1)
            assert staged is not None, "the log has the batch"
            self._place += 1
            for step, seconds in self._run.apply(staged).items():
                together[step] = together.get(step, 0.0) + seconds
        return together

    def merge(self, batches: Sequence[Mapping[str, Path]]) -> None:
        """MERGE batches, each a file for each table."""
        with ThreadPoolExecutor(MERGE_THREADS) as threads:
            for batch in batches:
                list(threads.map(lambda one: self._merge(*one), batch.items()))

    def _merge(self, name: str, path: Path) -> None:
        values = ", ".join(f"t.{one} = s.{one}" for one in NAMES)
        self._sql(
            f"merge into {self.lake.sql_name(TableName('merged', name))} t "
            f"using parquet.`{path}` s on t.id = s.id "
            f"when matched and s.{OPERATION} = 'D' then delete "
            f"when matched then update set {values} "
            f"when not matched and s.{OPERATION} <> 'D' then insert ({', '.join(NAMES)}) "
            f"values ({', '.join(f's.{one}' for one in NAMES)})"
        )

    def check(self) -> None:
        """Raise ValueError unless both sides have the same rows."""
        for name in self.names:
            found = {
                tuple(
                    self._session.spark.sql(
                        "select count(*), sum(id), sum(n), sum(price), sum(hash(a, b, at, day)), "
                        f"sum(more) from {self.lake.sql_name(TableName(schema, name))}"
                    )
                    .toJSON()
                    .collectAsList()
                )
                for schema in ("public", "merged")
            }
            if len(found) != 1:
                raise ValueError(f"{self.lake.name}: {name} differs: {found}")

    def close(self) -> None:
        """End the loader."""
        self._run.close()


@dataclass
class Result:
    """Readings of one contender, for one batch."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


class Compared:
    """Comparison of penstock and MERGE on one set of tables."""

    def __init__(
        self,
        part: str,
        session: Session,
        folder: Path,
        shape: Shape,
        formats: Sequence[str] = FORMATS,
    ) -> None:
        """Make the lakes."""
        self._part, self._shape, self._folder = part, shape, folder
        self._formats = formats
        self.log = Log(folder / "log")
        self._keys = [Keys(shape.rows, seed=number) for number in range(shape.tables)]
        self._numbers = itertools.count()
        self.pairs = [
            Pair(make_lake(kind, folder / kind, session), session, self.log, shape)
            for kind in formats
        ]

    def _make(self, changes: int) -> dict[str, Path]:
        """Write a batch to the log, and as files for MERGE."""
        number = next(self._numbers)
        shares = [changes // self._shape.tables] * self._shape.tables
        shares[0] += changes - sum(shares)
        batches, files = [], {}
        for name, keys, share in zip(self.pairs[0].names, self._keys, shares, strict=True):
            if not share:
                continue
            drawn, ops = keys.draw(share)
            batch = Batch(name, make_rows(drawn, 1000 + number), ops)
            files[name] = self._folder / f"{name}-{number}.parquet"
            batch.write_parquet(files[name])
            batches.append(batch)
        self.log.write(batches)
        return files

    def run(self, changes: int, rounds: int, repeats: int) -> None:
        """Apply batches of a size by turns, and print the results."""
        results: dict[tuple[str, str], Result] = {}
        for turn in range(rounds):
            batches = [self._make(changes) for _ in range(repeats)]
            for pair in self.pairs:
                steps: dict[str, float] = {}

                def ours(pair: Pair = pair, steps: dict[str, float] = steps) -> None:
                    steps |= pair.apply(repeats)

                def merge(pair: Pair = pair, batches: list[dict[str, Path]] = batches) -> None:
                    pair.merge(batches)

                contenders: dict[str, Callable[[], None]] = {"penstock": ours, "MERGE": merge}
                for name, work in contenders.items():
                    reading = Reading()
                    with reading.measure():
                        work()
                    result = results.setdefault((pair.lake.name, name), Result())
                    result.cpu_s.append(reading.cpu_s / repeats)
                    result.wall_s.append(reading.wall_s / repeats)
                    show(
                        self._part,
                        format=pair.lake.name,
                        contender=name,
                        tables=self._shape.tables,
                        files=self._shape.files,
                        changes=changes,
                        round=turn,
                        cpu_s=result.cpu_s[-1],
                        wall_s=result.wall_s[-1],
                        steps={
                            step: round(one / repeats, 3)
                            for step, one in (steps if name == "penstock" else {}).items()
                        },
                    )
        self._print(changes, results)

    def _print(self, changes: int, results: Mapping[tuple[str, str], Result]) -> None:
        shape = self._shape
        for kind in self._formats:
            ours, merge = results[kind, "penstock"], results[kind, "MERGE"]
            goal = GOALS.get((kind, changes))
            known = shape.tables == 1
            guesses = [ESTIMATES.get((kind, who, changes)) for who in ("penstock", "MERGE")]
            print(
                f"{kind:<8} {shape.tables:>3} tables {shape.files:>5} files {changes:>9,} changes: "
                f"penstock {min(ours.cpu_s):7.3f} CPU s{_guess(guesses[0], known)}, "
                f"MERGE {min(merge.cpu_s):7.3f}{_guess(guesses[1], known)}, "
                f"ratio {min(merge.cpu_s) / max(min(ours.cpu_s), 1e-9):5.1f}"
                f"{f' (goal {goal:g})' if goal else ''}; "
                f"wall {min(ours.wall_s):.2f} and {min(merge.wall_s):.2f} s "
                f"at load {load_average()}",
                flush=True,
            )

    def close(self) -> None:
        """Check that both sides have the same rows, and end."""
        for pair in self.pairs:
            pair.check()
            pair.close()


def _guess(value: float | None, known: bool) -> str:
    return f" (estimate {value:g})" if known and value is not None else ""


def bench_batches(
    part: str, given: argparse.Namespace, session: Session, shape: Shape, sizes: Sequence[int]
) -> None:
    """Compare batches of these sizes on one set of tables."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        compared = Compared(part, session, Path(name), shape, given.formats)
        # Java compiles what it has run often: both sides run some batches that do not count.
        print("warming up; the next figures do not count", flush=True)
        compared.run(20 * shape.tables, 1, given.warm)
        for size in sizes:
            repeats = 1 if given.quick else given.repeats or REPEATS.get(size, 1)
            compared.run(size, given.rounds, repeats)
        compared.close()


def bench_small(given: argparse.Namespace, session: Session) -> None:
    """Compare batches of each size on one table of 10 files."""
    sizes = given.sizes or (SIZES[:2] if given.quick else SIZES)
    bench_batches("small", given, session, Shape(1, given.rows, 10), sizes)


def bench_files(given: argparse.Namespace, session: Session) -> None:
    """Compare batches on one table of 1,000 files, without upkeep."""
    files = 50 if given.quick else 1000
    sizes = given.sizes or ((100,) if given.quick else SIZES[:4])
    bench_batches("files", given, session, Shape(1, given.rows, files, NO_UPKEEP), sizes)


def bench_tables(given: argparse.Namespace, session: Session) -> None:
    """Compare batches spread over 20 tables."""
    tables = 3 if given.quick else 20
    sizes = given.sizes or ((100,) if given.quick else (100, 5_000, 100_000))
    bench_batches("tables", given, session, Shape(tables, given.rows // tables, 2), sizes)


PARTS: dict[str, Callable[[argparse.Namespace, Session], None]] = {
    "small": bench_small,
    "files": bench_files,
    "tables": bench_tables,
    "sustained": bench_sustained,
    "read": bench_read,
    "bulk": bench_bulk,
    "fresh": bench_fresh,
    "flow": bench_flow,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of a table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", help="changes of a batch")
    parser.add_argument("--repeats", type=int, help="batches of one reading")
    parser.add_argument("--warm", type=int, default=20, help="batches that do not count")
    parser.add_argument("--changes", type=int, default=4_500_000, help="of the part sustained")
    parser.add_argument("--commits", type=int, default=20_000, help="of the part flow")
    parser.add_argument("--seconds", type=int, default=60, help="of the part fresh")
    parser.add_argument("--format", choices=FORMATS, help="one format alone")
    parser.add_argument("--quick", action="store_true", help="a trial run of some minutes")
    given = parser.parse_args(arguments)
    if given.quick:
        given.rows, given.rounds, given.warm = min(given.rows, 20_000), 1, 1
        given.changes, given.commits, given.seconds = 60_000, 30, 8
    given.formats = (given.format,) if given.format else FORMATS
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts."""
    given = parse(arguments)
    print(json.dumps(describe_machine()), flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        open_session(Path(folder)) as session,
    ):
        for name in given.part:
            print(f"-- {name}", flush=True)
            PARTS[name](given, session)


if __name__ == "__main__":
    main()
