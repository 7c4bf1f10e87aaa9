"""`penstock stage`: mutations a second from the first POST until all are visible, and the latency
of a mark.

Mode consistent, nothing else configured; PostgreSQL for staging and target, both durable. A feed
that was created beforehand is posted as fast as it is answered, with a mark after every 50,000
rows. The other side is the same command with a module that has a rule: then each window is written
by statements of at most `row_limit` rows: 1, a row at a time; and 1,000, as the original of the
design flushes.
Then 200 marks behind ten rows each, one at a time: from the POST of the mark to its row's being
seen in the target.

Estimate in CPU microseconds a mutation, client and server: received and decoded 1.5, staged 1.5 + 6
(two indexes and their WAL), read 1.8 + 0.7, JSON to columns 3, log written 0.5, in Spark decoded,
folded and sent 3, into the merge table 1.5, applied 5, marked 0.1 + 1.6: 26 of the 40 that two
cores have at 50,000 a second. A mark: its checkpoint 2 ms, at most 100 until the window is looked
at, then as `bench_fresh` says, 50 to 100.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.feed import DDL, TABLES, History, Sender, spans
from bench.harness import arguments, describe_machine
from bench.roles import RoleSampler
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.host.server_process import free_port

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
LOOK_S = 0.002
RARELY_S = 0.02  # for the runs whose result is seconds, not milliseconds
SETTLE_S = 600.0
SPARK = "through Spark"
RULES = """from penstock.stage.script import configure_table

for name in {tables}:
    configure_table(name, row_limit={row_limit}, ignore=['unused'])
"""
FILE = """[pipeline]
name = "bench"
directory = "pipeline"
[staging]
url = "{staging}"
[target]
url = "{target}"
[stage]
listen = "127.0.0.1:{port}"
mode = "consistent"
authentication = "off"
{more}"""


@dataclass(frozen=True, slots=True)
class Running:
    """A `penstock stage` with its servers. urls: by `staging` and `target`."""

    sender: Sender
    urls: dict[str, str]
    pid: int
    log: Path

    def wait_for(self, number: int, reader: psycopg.Connection, look_s: float = RARELY_S) -> float:
        """Wait until the target shows a span; return when that was."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            row = reader.execute("select n from mark").fetchone()
            now = time.monotonic()
            if row is not None and row[0] >= number:
                return now
            if now > deadline:
                raise TimeoutError(f"span {number} was not seen:\n{self.log.read_text()[-5000:]}")
            time.sleep(look_s)

    def reader(self) -> psycopg.Connection:
        """Return a session in the target."""
        return psycopg.connect(self.urls["target"], autocommit=True, application_name="bench")


@contextmanager
def fresh_servers(**settings: str) -> Iterator[dict[str, str]]:
    """Provide two servers, the tables in the target; their URLs by `staging` and `target`."""
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(
                EmbeddedPostgres(durable=True, settings={**SETTINGS, **settings})
            ).url()
            for name in ("staging", "target")
        }
        with psycopg.connect(urls["target"], autocommit=True) as connection:
            for statement in DDL:
                connection.execute(statement.encode())
        yield urls


@contextmanager
def running(urls: dict[str, str], more: str = "", rules: str = "") -> Iterator[Running]:
    """Provide the command. more: lines of [stage]; rules: text of the user's module."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        if rules:
            more += 'userModule = "rules"\n'
            (folder / "rules.py").write_text(rules)
        port = free_port()
        file = folder / "bench.toml"
        file.write_text(FILE.format(**urls, port=port, more=more))
        process = stack.enter_context(command(file))
        log = folder / "pipeline" / "run" / "stage.log"
        yield Running(stack.enter_context(Sender(port)), urls, process.pid, log)


@contextmanager
def command(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Provide `penstock stage`, once it answers; stopped by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "stage", str(file), "--create"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        if "receiving" not in process.stdout.readline():
            raise RuntimeError("penstock stage did not start")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(120) != 0:
            raise RuntimeError(f"penstock stage ended with {process.returncode}")


@dataclass(frozen=True, slots=True)
class Rate:
    """Results of a run: mutations a second, and the CPU seconds of each process."""

    per_s: float
    cpu_s: dict[str, float]


def measure(name: str, one: Running, history: History, flags: argparse.Namespace) -> Rate:
    """Post `flags.rows` mutations to a command that has none; wait until the last is visible."""
    first = history.span(10, 10)
    rest = list(spans(history, flags.rows, flags.rows_per_mark, flags.rows_per_body))
    with one.reader() as reader:
        one.sender.send(first)  # Spark starts meanwhile
        one.wait_for(first.number, reader)
        with RoleSampler(one.urls, one.pid) as roles:
            began = time.monotonic()
            for span in rest:
                one.sender.send(span)
            received_s = time.monotonic() - began
            elapsed_s = one.wait_for(rest[-1].number, reader) - began
    cpu_s = {role: used for role, used in roles.cpu_s.items() if "bench" not in role}
    line = {
        "bench": "stage",
        "way": name,
        "mutations": flags.rows,
        "mutations_per_s": round(flags.rows / elapsed_s),
        "received_per_s": round(flags.rows / received_s),
        "elapsed_s": round(elapsed_s, 2),
        "cpu_us": round(sum(cpu_s.values()) / flags.rows * 1e6, 1),
    }
    print(json.dumps(line), flush=True)
    roles.print_table(flags.rows)
    roles.print_timeline()
    return Rate(flags.rows / elapsed_s, cpu_s)


def latency(mark_count: int) -> None:
    """Post marks one at a time; print seconds from the POST of each until its row is seen."""
    history, dice = History(), random.Random(1)
    found = []
    with fresh_servers() as urls, running(urls) as one, one.reader() as reader:
        for turn in range(mark_count + 5):
            span = history.span(10, 10)
            posted = one.sender.send(span)
            seen = one.wait_for(span.number, reader, LOOK_S)
            if turn >= 5:  # Spark is warm
                found.append(seen - posted)
            time.sleep(dice.random() * 0.3)  # not in step with the look for windows
    print(json.dumps({"bench": "stage mark to visible", "marks": mark_count, **_ms(found)}))


def _ms(found: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(found, n=100)
    return {
        "p50_ms": round(cuts[49] * 1e3),
        "p99_ms": round(cuts[98] * 1e3),
        "max_ms": round(max(found) * 1e3),
    }


def main() -> None:
    """Measure all ways turn by turn, then the marks."""
    flags = arguments(
        __doc__ or "",
        rows=2_000_000,
        row_wise=50_000,
        rows_per_mark=50_000,
        rows_per_body=5_000,
        marks=200,
    )
    ways = {SPARK: ("", flags.rows)}
    for name, row_limit in (("a row at a time", 1), ("1,000 rows at a time", 1000)):
        ways[name] = (RULES.format(tables=TABLES, row_limit=row_limit), flags.row_wise)
    best: dict[str, float] = {}
    for _ in range(flags.rounds):
        for name, (rules, row_count) in ways.items():
            if row_count:
                given = argparse.Namespace(**{**vars(flags), "rows": row_count})
                with fresh_servers() as urls, running(urls, rules=rules) as one:
                    found = measure(name, one, History(), given)
                best[name] = max(best.get(name, 0.0), found.per_s)
    print(f"\nstage ({describe_machine()})\n{'way':<34}{'mutations/s':>12}{'Spark: times':>14}")
    for name, per_s in best.items():
        print(f"{name:<34}{per_s:>12,.0f}{best.get(SPARK, 0) / per_s:>14.1f}")
    if flags.marks:
        latency(flags.marks)


if __name__ == "__main__":
    main()
