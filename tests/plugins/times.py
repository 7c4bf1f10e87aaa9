"""Measurement of the time of the tests: a record of each test, and tables of the records.

`pytest --times FILE` records. With `--starts` it also counts starts of servers and of Spark, and
sleeps, for which it replaces functions in the tests' process. `python tests/plugins/times.py FILE`
prints the tables. With `--costs` it also writes the costs for the draw of `make test`
(`plugins/draw.py`). `make test-times` does all of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
SPARK_STARTER = "Heap Max Capacity: 128M"  # the JVM that only works out how to start Spark's
TOP = 15
CLASSES_S = (0.0, 1.0, 10.0, 30.0)
COSTLY_S = 0.2  # a test that takes longer is drawn
PHASES = ("setup", "call", "teardown")


class Recorder:
    """A plugin that counts each test's starts and sleeps, and writes a line for each test."""

    def __init__(self, file: Path | None, java_logs: Path) -> None:
        """Prepare a recorder; file is written by the process that distributes the tests, None in
        others.
        """
        self._file = file
        self._java_logs = java_logs
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._starting = False
        self._tests: dict[str, dict[str, Any]] = {}

    def watch(self) -> None:
        """Count starts of servers and of Spark in this process, and its sleeps."""
        from penstock.load import session
        from plugins.mysql import KINDS
        from plugins.postgres import EmbeddedPostgres

        for kind in (EmbeddedPostgres, *KINDS.values()):
            kind.__enter__ = self._counting("server", kind.__enter__)  # type: ignore[attr-defined, method-assign]
        session._start_context = self._counting("spark", session._start_context)
        time.sleep = self._sleeping(time.sleep)
        self._java_logs.mkdir(parents=True, exist_ok=True)
        self._new_javas()
        given = os.environ.get(JAVA_OPTIONS, "")
        os.environ[JAVA_OPTIONS] = f"{given} -Xlog:gc+init=info:file={self._java_logs}/%p.log"

    def _counting(self, what: str, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def count_start(*arguments: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return start(*arguments, **named)
            finally:
                self._counts[f"{what}s"] += 1
                self._counts[f"{what}_s"] += time.monotonic() - began  # type: ignore[assignment]

        return count_start

    def _sleeping(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        def slept(seconds: float) -> None:
            if threading.current_thread() is threading.main_thread():
                self._counts["sleep_s"] += seconds  # type: ignore[assignment]
            sleep(seconds)

        return slept

    def _new_javas(self) -> int:
        """Return the number of Spark's JVMs that were started since the last call."""
        found = {path.name: path for path in self._java_logs.glob("*.log")}
        new = [path for name, path in found.items() if name not in self._seen]
        self._seen |= set(found)
        return sum(SPARK_STARTER not in path.read_text(errors="replace") for path in new)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Add the counts to the report, in the process that runs the test."""
        report: Any = yield
        counts = {name: round(count, 3) for name, count in self._counts.items()}
        counts["javas"] = self._new_javas()
        self._counts.clear()
        report.user_properties = [*report.user_properties, ("times", counts)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line for each test, in the process that receives the reports."""
        if self._file is None:
            return
        test = self._tests.setdefault(report.nodeid, {"test": report.nodeid})
        test["worker"] = getattr(report, "worker_id", "")
        test[report.when or ""] = round(report.duration, 3)
        for name, counts in report.user_properties:
            if name == "times":
                for key, count in counts.items():  # type: ignore[attr-defined]
                    test[key] = round(test.get(key, 0) + count, 3)
        if report.when == "teardown":
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(self._tests.pop(report.nodeid)) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --times and --starts."""
    parser.addoption("--times", metavar="FILE", help="record what each test takes, into FILE")
    parser.addoption(
        "--starts", action="store_true", help="with --times: count starts and sleeps, too"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record if asked."""
    if not (wanted := config.getoption("--times")):
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    file = Path(wanted).absolute()
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    recorder = Recorder(None if is_worker else file, file.with_suffix(".java") / worker)
    config.pluginmanager.register(recorder)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch from now on: Spark's classes are archived, and JDK_JAVA_OPTIONS is settled."""
    if not session.config.getoption("--starts"):
        return
    for plugin in session.config.pluginmanager.get_plugins():
        if isinstance(plugin, Recorder):
            plugin.watch()


# -- records ---------------------------------------------------------------------------------------

Record = dict[str, Any]


def seconds(record: Record) -> float:
    """Return the seconds that a test took, including its setup and teardown."""
    return sum(record.get(phase, 0.0) for phase in PHASES)


def sum_key(records: Iterable[Record], key: str) -> float:
    """Return the sum of one key."""
    return sum(record.get(key, 0) for record in records)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table with figures aligned right."""
    print("| " + " | ".join(head) + " |")
    print("|---" + "|--:" * (len(head) - 1) + "|")
    for row in rows:
        cells = (f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in row)
        print("| " + " | ".join(cells) + " |")
    print()


def print_tables(records: Sequence[Record]) -> None:
    """Print where the time was spent."""
    took = {phase: sum_key(records, phase) for phase in PHASES}
    table(
        ["what", "times", "seconds"],
        [
            ["tests, all phases", len(records), sum(took.values())],
            *([f"of these {phase}", "", spent] for phase, spent in took.items()),
            ["servers made and started", sum_key(records, "servers"), sum_key(records, "server_s")],
            [
                "Spark sessions of the tests",
                sum_key(records, "sparks"),
                sum_key(records, "spark_s"),
            ],
            ["Spark sessions, programs' too", sum_key(records, "javas"), ""],
            ["sleeping, in the tests themselves", "", sum_key(records, "sleep_s")],
        ],
    )
    by_class = [
        [r for r in records if low <= seconds(r) < high]
        for low, high in zip(CLASSES_S, (*CLASSES_S[1:], float("inf")), strict=True)
    ]
    table(
        ["tests of", "tests", "seconds"],
        (
            [f"{low:.0f} s and more", len(found), sum(map(seconds, found))]
            for low, found in zip(CLASSES_S, by_class, strict=True)
        ),
    )
    files: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        files[record["test"].partition("::")[0]].append(record)
    costliest = sorted(files.items(), key=lambda pair: -sum(map(seconds, pair[1])))
    table(
        ["file", "tests", "seconds", "servers", "Spark sessions"],
        (
            [
                f"`{file}`",
                len(found),
                sum(map(seconds, found)),
                sum_key(found, "servers"),
                sum_key(found, "javas"),
            ]
            for file, found in costliest[:TOP]
        ),
    )
    slowest = sorted(records, key=seconds, reverse=True)
    table(["test", "seconds"], ([f"`{r['test']}`", seconds(r)] for r in slowest[:TOP]))


def write_costs(records: Iterable[Record], file: Path) -> None:
    """Write the mean seconds of the cases of each test function that takes 0.2 seconds or more.

    The mean includes a share of what the whole module uses, for which one case waited. Other
    programs on the machine can only make a test slower, so the least of all records counts.
    Functions that were not run keep their values, as long as they exist.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    for record in records:
        taken[record["test"].partition("[")[0]].append(seconds(record))
    before: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    costs = {test: cost for test, cost in before.items() if is_function(test)}
    for test, each in taken.items():
        mean = round(statistics.fmean(each), 1)
        costs[test] = min(mean, costs.get(test, mean))
    kept = {test: cost for test, cost in costs.items() if cost >= COSTLY_S}
    file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def is_function(test: str) -> bool:
    """Return whether a test function of this name exists; a class with a base may inherit it."""
    path, _, names = test.partition("::")
    *classes, name = names.split("::")
    file = ROOT / path
    text = file.read_text() if file.exists() else ""
    return f"def {name}(" in text or any(f"class {one}(" in text for one in classes)


def main() -> None:
    """Print the tables of a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, help="what `pytest --times` wrote")
    parser.add_argument("--costs", type=Path, help="write what each costly test takes into it")
    given = parser.parse_args()
    records = [json.loads(line) for line in given.record.read_text().splitlines()]
    if given.costs is not None:
        write_costs(records, given.costs)
    print_tables(records)


if __name__ == "__main__":
    main()
