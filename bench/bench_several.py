"""Several pipelines on one machine: memory and processor time while idle, and time until visible.

One `penstock run` with a file for each pipeline, and for comparison a `penstock run` for each
(`--separate 1`). Memory is the proportional share (PSS) of all of penstock's processes; processor
time is theirs, in percent of a core. Then each pipeline gets commits at a rate (`--rate`), which a
procedure in the server makes. Each row has the time of its commit, and the loaders' logs say when
its batch was visible.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import psutil
import psycopg

from bench.harness import arguments, describe_machine
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.loader_state import read_loader_state

FILE = """
[pipeline]
name = "p{number}"
mode = "data+change"
directory = "p{number}"
[source]
url = "{source}"
tables = ["public.*"]
[target]
url = "{target}"
[changeExtractor]
replicationSlot = "p{number}"
publication = "p{number}"
[spark]
master = "{master}"
"""
APPLIED = re.compile(r'timestamp=(\S+) .*"batch applied".* gsn=(\d+)')
COMMITS = """
create procedure commit_at(rate float8, row_count int4) language plpgsql as $$
declare
    began timestamptz := clock_timestamp();
begin
    for number in 1 .. row_count loop
        perform pg_sleep(number / rate - extract(epoch from clock_timestamp() - began));
        insert into t values (number, clock_timestamp()::text);
        commit;
    end loop;
end $$
"""
SETTLE_S = 30.0
START_S = 600.0
SETTINGS = {"wal_level": "logical", "max_connections": "600"}


def prepare(
    folder: Path, server: EmbeddedPostgres, count: int, master: str = "local[*]"
) -> list[Path]:
    """Create the databases and the pipeline files."""
    files = []
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for number in range(count):
            for side in ("source", "target"):
                connection.execute(f"create database {side}_{number}".encode())
            source, target = server.url(f"source_{number}"), server.url(f"target_{number}")
            with psycopg.connect(source, autocommit=True) as other:
                other.execute("create table t (id int primary key, payload text)")
                other.execute("insert into t select g, 'x' from generate_series(-99, 0) g")
                other.execute(COMMITS)
            file = folder / f"p{number}.toml"
            file.write_text(FILE.format(number=number, source=source, target=target, master=master))
            files.append(file)
    return files


@contextlib.contextmanager
def running(files: Sequence[Path], *, separate: bool) -> Iterator[list[psutil.Process]]:
    """Run the pipelines; give the processes that were started, once all loaders wait."""
    folder = files[0].parent
    commands = [[file] for file in files] if separate else [list(files)]
    with (folder / "run.out").open("ab") as out:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            for command in commands
        ]
    try:
        end_s = time.monotonic() + START_S
        while not all(is_following(file) for file in files):
            if any(one.poll() is not None for one in started) or time.monotonic() > end_s:
                raise RuntimeError((folder / "run.out").read_text())
            time.sleep(0.5)
        yield [psutil.Process(one.pid) for one in started]
    finally:
        for one in started:
            one.send_signal(signal.SIGTERM)
        codes = [one.wait(180) for one in started]
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: {(folder / 'run.out').read_text()}")


def is_following(file: Path) -> bool:
    """Return whether a pipeline follows changes."""
    state = read_loader_state(file.with_suffix("") / "run")
    return state is not None and state.state == "waiting"


def family(roots: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all below them."""
    return [one for root in roots for one in (root, *root.children(recursive=True))]


def cpu_s(roots: Sequence[psutil.Process]) -> float:
    """Return the processor seconds of all processes, ended ones too."""
    total = 0.0
    for one in family(roots):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = one.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def kind_of(process: psutil.Process) -> str:
    """Return what a process is for."""
    words = process.cmdline()
    kind = str(process.name()).split()[0]
    if kind.startswith("python"):
        kind = str(words[3]) if words[1:3] == ["-m", "penstock"] else "python of spark"
    elif kind == "postgres":
        title = " ".join(words)
        kinds = ("walsender", "source_", "target_")
        kind = " ".join([kind, *[one.strip("_") for one in kinds if one in title][:1]])
    return kind


def memory(roots: Sequence[psutil.Process]) -> dict[str, tuple[int, int]]:
    """Return the number of processes and their PSS in bytes, by kind of process."""
    found: dict[str, tuple[int, int]] = {}
    for one in family(roots):
        with contextlib.suppress(psutil.NoSuchProcess):
            kind = kind_of(one)
            count, size = found.get(kind, (0, 0))
            found[kind] = (count + 1, size + one.memory_full_info().pss)
    return found


def cpu_by_kind(roots: Sequence[psutil.Process]) -> Counter[str]:
    """Return the processor seconds of running processes, with their ended children, by kind."""
    found: Counter[str] = Counter()
    for one in family(roots):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = one.cpu_times()
            found[kind_of(one)] += (
                used.user + used.system + used.children_user + used.children_system
            )
    return found


def machine_s() -> float:
    """Return the seconds in which processors were not idle, of all processors together."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def measure_idle(roots: Sequence[psutil.Process], count: int, seconds: float) -> None:
    """Print memory and processor time while nothing is committed."""
    time.sleep(SETTLE_S)
    before, began, kinds_before = cpu_s(roots), time.monotonic(), cpu_by_kind(roots)
    time.sleep(seconds)
    used = (cpu_s(roots) - before) / (time.monotonic() - began)
    spent = cpu_by_kind(roots) - kinds_before
    kinds = memory(roots)
    total = sum(size for _, size in kinds.values())
    print(f"{count} idle pipelines: {total / 1e6:.0f} MB PSS, {used:.1%} of a core", flush=True)
    for kind, (number, size) in sorted(kinds.items(), key=lambda one: -one[1][1]):
        share = spent[kind] / seconds
        print(f"  {kind:20} {number:4} processes {size / 1e6:7.0f} MB {share:6.1%}", flush=True)
    print(json.dumps({"bench": "several_idle", "pipelines": count, "pss": total, "core": used}))


def count_batches(files: Sequence[Path]) -> int:
    """Return the number of batches that all pipelines have applied."""
    states = (read_loader_state(file.with_suffix("") / "run") for file in files)
    return sum(state.batch_count for state in states if state is not None)


def commit_at(url: str, rate: float, seconds: float) -> None:
    """Have the server commit a row at a time, at a rate."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("call commit_at(%s::float8, %s::int4)", (rate, int(rate * seconds)))


def waits_s(url: str, file: Path) -> list[float]:
    """Return how long each committed row took until it was visible."""
    with psycopg.connect(url) as connection:
        query = "select payload::timestamptz from t where id > 0 order by id"
        committed = [moment.timestamp() for (moment,) in connection.execute(query)]
    batches = []
    for line in (file.with_suffix("") / "run" / "load.log").read_text().splitlines():
        if found := APPLIED.search(line):
            batches.append((int(found[2]), datetime.fromisoformat(found[1]).timestamp()))
    first = batches[-1][0] - len(committed) + 1  # each row has one number
    ends = [gsn for gsn, _ in batches]
    return [
        batches[bisect_left(ends, gsn)][1] - moment for gsn, moment in enumerate(committed, first)
    ]


def measure_busy(
    server: EmbeddedPostgres,
    roots: Sequence[psutil.Process],
    files: Sequence[Path],
    rate: float,
    seconds: float,
) -> None:
    """Print how long commits took until they were visible, over all pipelines."""
    postmaster = (server.directory / "postmaster.pid").read_text().split()[0]
    everything = [*roots, psutil.Process(int(postmaster))]
    before, batches = cpu_by_kind(everything), count_batches(files)
    whole_s = machine_s()
    with ThreadPoolExecutor(len(files)) as writers:
        urls = [server.url(f"source_{number}") for number in range(len(files))]
        list(writers.map(lambda url: commit_at(url, rate, seconds), urls))
    whole_s = machine_s() - whole_s
    used, batches = cpu_by_kind(everything) - before, count_batches(files) - batches
    time.sleep(SETTLE_S)
    waits = [waits_s(server.url(f"source_{number}"), file) for number, file in enumerate(files)]
    wanted = int(rate * seconds) * len(files)
    medians = sorted(statistics.median(one) for one in waits)
    every = sorted(wait_s for one in waits for wait_s in one)
    print(
        f"{len(files)} pipelines with {rate} commits/s each: p50 {statistics.median(every):.2f} s, "
        f"p90 {every[len(every) * 9 // 10]:.2f} s until visible, p50 of the slowest pipeline "
        f"{medians[-1]:.2f} s; {len(every)} of {wanted} rows",
        flush=True,
    )
    used["all others"] = whole_s - sum(used.values())  # type: ignore[assignment]
    shares = ", ".join(f"{kind} {one / seconds:.0%}" for kind, one in used.most_common())
    print(f"{batches} batches; of a core: {shares}", flush=True)
    print(json.dumps({"bench": "several_busy", "pipelines": len(files), "p50_s": medians}))


def main() -> None:
    """Measure both."""
    flags = arguments(__doc__ or "", pipelines=10, seconds=60, rate=0, separate=0, idle=1, slots=0)
    print(json.dumps(describe_machine()), flush=True)
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedPostgres(
            settings={**SETTINGS, "max_replication_slots": "60", "max_wal_senders": "60"}
        ) as server,
    ):
        master = f"local[{flags.slots or '*'}]"
        files = prepare(Path(place), server, flags.pipelines, master)
        with running(files, separate=bool(flags.separate)) as roots:
            if flags.idle:
                measure_idle(roots, flags.pipelines, flags.seconds)
            if flags.rate:
                measure_busy(server, roots, files, flags.rate, flags.seconds)


if __name__ == "__main__":
    main()
