"""The files that one change passes, from the source's log to the commit in the target.

docs/internals.md lists and counts them.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines import extract, mysql_extract
from harness.pipelines.loading import Running, until
from harness.servers.engines import MySQLPlace, Place, new_place
from plugins.shared import SharedServers

ROOT = Path(__file__).resolve().parents[2]
SOURCE = str(ROOT / "src/penstock") + "/"
KERNELS = {
    "pg": {"codec/postgres/_copy_binary.pyx", "codec/postgres/_pgoutput.pyx"},
    "my": {"codec/mysql/_binlog.pyx"},
}
# Files that every step uses, but that no change passes.
BESIDE = re.compile(r"(host|model)/|.*__init__\.py\Z")
# Files that run beside it from time to time: reports, and looks at requests.
POLLED = re.compile(
    r"extract/report|ports/lag|engines/mysql/(url|source/(catalog|prepared))"
    r"|engines/postgres/source/source_identity|codec/(postgres/lsn|mysql/binlog_position)"
)
ROUNDS = 8


class Tracks:
    """Files of penstock in which a function was called, round by round. Round 0 is ignored."""

    def __init__(self) -> None:
        self.rounds: list[set[str]] = [set()]

    def __call__(self, frame: Any, event: str, _argument: object) -> None:
        """Record a call for `threading.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.rounds[-1].add(frame.f_code.co_filename.removeprefix(SOURCE))

    def files(self) -> list[set[str]]:
        """Return the files that a change passes in each round."""
        rounds = self.rounds[1:-1]
        aside = re.compile(f"{BESIDE.pattern}|{POLLED.pattern}")
        return [{file for file in found if not aside.match(file)} for found in rounds]


@contextmanager
def track_threads() -> Iterator[Tracks]:
    """Follow the threads that begin in the block."""
    tracks = Tracks()
    threading.setprofile(tracks)
    try:
        yield tracks
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)


def extractor_of(place: Place, directory: Path, stop: Callable[[], bool]) -> Any:
    """Return an extractor that runs until it is stopped."""
    options = replace(extract.QUICK, exit_when_idle=False, flush_interval_s=0.1)
    if isinstance(place, MySQLPlace):
        return mysql_extract.extractor_of(place.url, directory, options=options, stop=stop)
    extract.set_up(place.url, "create table unused (id int primary key)")
    return extract.extractor_of(place.url, directory, options=options, stop=stop)


def walk(servers: SharedServers, engine: str, directory: Path) -> Tracks:
    """Follow updates, one after the other, on a pipeline that is already running."""
    ddl = "create table t (id int primary key, name varchar(50))"
    with (
        new_place(servers, engine) as source,
        new_place(servers, engine) as target,
        track_threads() as t,
    ):
        source.run(ddl)
        target.run(ddl)
        if isinstance(target, MySQLPlace):
            target.run("drop database if exists wirekite")
        ended = threading.Event()
        extractor = extractor_of(source, directory, ended.is_set)
        with extract.running(extractor):
            namespaces = {source.namespace: target.namespace}
            running = Running(target.url, directory, namespaces=namespaces)
            try:
                source.run("insert into t values (1, 'a')")
                until(lambda: target.run("select name from t") == [("a",)])
                for name in map(str, range(ROUNDS)):
                    if name != "0":  # the first one introduces what the others find
                        t.rounds.append(set())
                    source.run(f"update t set name = '{name}' where id = 1")
                    until(lambda name=name: target.run("select name from t") == [(name,)])
                t.rounds.append(set())
            finally:
                ended.set()
                running.end(stop=True)
    return t


def read_list(engine: str) -> set[str]:
    """Return the list in docs/internals.md, of common files and of this engine's own."""
    page = (ROOT / "docs/internals.md").read_text()
    section = page.split("## The files of one change")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (both|pg|my) \| (\d+) \| (.*) \|$", section, re.MULTILINE)
    found: set[str] = set()
    for of, count, text in rows:
        files = {file for part in re.findall(r"`([^`]+)`", text) for file in _each(part)}
        assert len(files) == int(count), of
        found |= files if of in ("both", engine) else set()
    assert f" {len(found)} " in section.replace("\n", " ")
    return found


def _each(part: str) -> list[str]:
    """Return the files that `a/{b,c}.py` stands for."""
    folder, _, names = part.partition("{")
    names, _, ending = names.partition("}")
    return [f"{folder}{name}{ending}" for name in names.split(",")]


@pytest.mark.parametrize(("engine", "kind"), [("pg18", "pg"), ("mariadb", "my")])
def test_one_change_passes_the_files_that_are_listed(
    shared_servers: SharedServers, tmp_path: Path, engine: str, kind: str
) -> None:
    """A file that joins or leaves the path of a change is in the list.

    A file of the list need not be in each of the rounds, some of which are taken together.
    """
    rounds = walk(shared_servers, engine, tmp_path).files()
    always, ever = set.intersection(*rounds), set.union(*rounds)
    assert sorted(always - read_list(kind)) == []
    assert sorted(read_list(kind) - ever - KERNELS[kind]) == []
