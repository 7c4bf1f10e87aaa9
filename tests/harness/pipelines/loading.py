"""A loader at work in a thread or in a process of its own, and checks of its result."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg

from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LocalKeeper, LogMaker, Word
from penstock.host.retry import Backoff
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.loader_state import LoaderState
from penstock.model import Identity

ITEM = relation(("id", "integer", "int32"), ("name", "text", "string"))
BAG = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")
TABLES = "create table public.t (id int primary key, name text); create table public.bag (v int)"


def add(log: LogMaker, number: int) -> int:
    """Write one transaction: a keyed row, and one that would count twice if applied twice."""
    return log.transaction(
        (ITEM, Change(op="I", gsn=0, after=(number, "x"))),
        (BAG, Change(op="I", gsn=0, after=(number,))),
    )


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from harness.pipelines.loader import LocalKeeper, Word
from penstock.load.loader import Loader, LoaderOptions
root = Path({root!r})
options = LoaderOptions(
    url={url!r}, log_directory=root / "log", state_directory=root / "state",
    run_directory=root / "run", max_files_per_batch=1, remove_files=True,
)
Loader(options, LocalKeeper(), stop=lambda: False, actions=Word()).run()
"""


class Running:
    """A loader in a thread."""

    def __init__(self, url: str, directory: Path, keeper: Any = None, **options: Any) -> None:
        self.stop = threading.Event()
        self.word = Word()
        self.options = LoaderOptions(
            url=url,
            log_directory=directory / "log",
            state_directory=directory / "state",
            run_directory=options.pop("run_directory", directory / "run"),
            backoff=options.pop("backoff", Backoff(first_s=0.05, longest_s=0.5, attempts=30)),
            **options,
        )
        (directory / "state").mkdir(exist_ok=True)
        self.keeper = keeper or LocalKeeper()
        self.loader = Loader(self.options, self.keeper, stop=self.stop.is_set, actions=self.word)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loader.run()
        except BaseException as error:
            self.error = error

    def end(self, *, stop: bool = False) -> LoaderState:
        """Wait for the end; raise the loader's error."""
        if stop:
            self.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.loader.state


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the target's rows."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def check(url: str, count: int) -> None:
    """Check that rows 0 to count - 1 are there, each once."""
    expected = [(number,) for number in range(count)]
    assert rows(url, "select id from public.t order by 1") == expected
    assert rows(url, "select v from public.bag order by 1") == expected


class Blocked:
    """Blocks all writers of public.t, for a with block or until release().

    Keep it short: the loader's statements time out after ten seconds, and are tried again.
    """

    def __init__(self, url: str) -> None:
        self._holder = psycopg.connect(url)
        self._looker = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Self:
        self._holder.execute("lock table public.t in access exclusive mode")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.close()
        self._looker.close()

    def release(self) -> None:
        """Let the writers continue."""
        self._holder.rollback()

    def __call__(self, query: str) -> list[tuple[Any, ...]]:
        """Query the target meanwhile."""
        return self._looker.execute(query).fetchall()  # type: ignore[arg-type]


def run_killed(url: str, root: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    """Run a loader in its own process, one file a batch, files removed; the fault kills it."""
    script = KILLED.format(tests=str(Path(__file__).parents[2]), root=str(root), url=url)
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | ({"PENSTOCK_FAULT": fault} if fault else {}),
        capture_output=True,
        text=True,
        check=False,
    )
