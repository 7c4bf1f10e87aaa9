"""`penstock stage` killed again and again under a changefeed: the target is as the model was.

Also the servers, and the lease is stolen.

Two instances, one staging database, one target. In mode consistent a reader of the target may only
see states of resolved timestamps, each no older than the one before; in the end every mode has the
last state.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_bank_engines import NothingThere, ServerGone, session
from fix_feed import DDL, TABLES, Feed, History
from fix_kills import AnyServer, make_database, make_server
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.host.server_process import free_port

SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "16"))
POINTS = {
    "consistent": (
        "stage.mark.rows",
        "load.commit.before",
        "stage.request.staged",
        "stage.begin.emptied",
        "load.commit.after",
        "stage.mark.checkpoint",
        "extract.flush.before",
        "stage.request.resolved",
        "stage.begin.taken_over",
        "extract.flush.after",
        "stage.begin.after",
        "stage.lease.renew",
        "load.apply.before",
    ),
    "rowwise": (
        "stage.request.staged",
        "stage.request.resolved",
        "stage.window.written",
        "stage.window.applied",
        "stage.window.marked",
        "stage.window.committed",
    ),
    "bestEffort": (
        "stage.request.staged",
        "stage.request.resolved",
        "stage.direct.applied",
        "stage.sweep.applied",
    ),
}
# With it windows are written row by row, not by Spark.
RULES = "from penstock.stage.script import configure_table\nconfigure_table('mark', ignore=['x'])\n"
READY_S = 120.0
SETTLE_S = 120.0


class Instance:
    """One `penstock stage`, as a process on a port of its own."""

    def __init__(self, folder: Path, name: str, sections: str) -> None:
        self.name, self.port = name, free_port()
        self.file = folder / f"{name}.toml"
        self.out = folder / f"{name}.out"
        self.file.write_text(
            f'[pipeline]\nname = "feed"\ndirectory = "{name}"\n{sections}'
            f'listen = "127.0.0.1:{self.port}"\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, fault: str = "", *options: str) -> None:
        """Start it; it answers a moment later."""
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        if fault:
            # Once: the processes that this one starts have the same plan.
            once = Path(tempfile.mkdtemp(dir=self.file.parent))
            environment |= {"PENSTOCK_FAULT": fault, "PENSTOCK_FAULT_ONCE": str(once)}
        with self.out.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "stage", str(self.file), *options],
                stdout=out, stderr=out, env=environment,
            )  # fmt: skip

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def abort(self) -> str:
        """End it with what each of its threads is doing; that, and its last messages."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(60)
        log = self.file.parent / self.name / "run" / "stage.log"
        messages = log.read_text() if log.exists() else ""
        return f"--- {self.name}\n{messages[-3000:]}\n{self.out.read_text()[-12000:]}"

    def stop(self) -> int:
        """End it in order; the exit code."""
        assert self._process is not None, "started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def post(self, path: str, body: str) -> bool:
        """Whether a request was answered with 200."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", body.encode(), method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                return bool(found.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


class Stage:
    """Servers, instances, a history and what a reader of the target has seen of it."""

    def __init__(self, stack: ExitStack, folder: Path, mode: str, target: str, seed: int) -> None:
        self.mode = mode
        self._random = random.Random(seed)
        self.staging_server: AnyServer = stack.enter_context(EmbeddedPostgres())
        self.target_server: AnyServer = stack.enter_context(make_server(target))
        staging = self.staging_server.url("postgres")
        self.target = make_database(self.target_server, "shop")
        self.namespace = "public" if target == "postgres" else "shop"
        self.path = "postgres/public" if target == "postgres" else "shop"
        ddl = [sql.replace("int not null references parent (id), n int not null)",
            "int not null, n int not null, foreign key (parent_id) references parent (id))")
            for sql in DDL]  # fmt: skip
        with session(self.target, self.namespace) as connection:
            for sql in ddl:
                connection.execute(sql)
        sections = f'[staging]\nurl = "{staging}"\n[target]\nurl = "{self.target}"\n[stage]\n'
        sections += 'authentication = "off"\nleaseSeconds = 4\n'
        if mode == "rowwise":
            (folder / "rules.py").write_text(RULES)
            sections += 'mode = "consistent"\nuserModule = "rules"\n'
        else:
            sections += f'mode = "{mode}"\n'
        self.instances = [Instance(folder, name, sections) for name in ("one", "two")]
        self._create()
        # Behind now by a day: in mode auto it would be best effort.
        self.history = History(seed, time.time_ns() - 60_000_000_000)
        self.feed = Feed(seed + 1)
        self.seen: list[int] = []
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]
        self._failed: list[BaseException] = []

    def _create(self) -> None:
        """Have the first instance make the staging schema, and end it."""
        first = self.instances[0]
        first.start("", "--create")
        deadline = time.monotonic() + READY_S
        while not self._has_tables():
            assert first.is_running, first.out.read_text()
            assert time.monotonic() < deadline, "the staging schema was not made"
            time.sleep(0.1)
        assert first.stop() == 0, first.out.read_text()

    def _has_tables(self) -> bool:
        with psycopg.connect(self.staging_server.url("postgres")) as connection:
            found = connection.execute("select to_regclass('public.jwt_revoked_ids')").fetchone()
        return found is not None and found[0] is not None

    def __enter__(self) -> Stage:
        """Start both instances, the feed and the reader."""
        for one in self.instances:
            one.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        for one in self.instances:
            one.kill()

    # -- the feed and the reader -----------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed.append(error)

    def _send(self) -> None:
        self._guarded(self._send_all)

    def _send_all(self) -> None:
        while not self._ended.is_set():
            messages, resolved = self.history.span()
            for body in self.feed.bodies(messages):
                self._deliver(body)
            self._deliver(f'{{"resolved":"{resolved}"}}')

    def _deliver(self, body: str) -> None:
        """To one of the instances or the other, until one has answered."""
        while not self._random.choice(self.instances).post(self.path, body):
            if self._ended.is_set() and not any(one.is_running for one in self.instances):
                return
            time.sleep(0.05)

    def state(self) -> dict[str, list[tuple[Any, ...]]]:
        """The target at one moment."""
        query = (
            "select 'parent', id, n, 0 from parent union all select 'child', id, parent_id, n"
            " from child union all select 'mark', id, n, 0 from mark"
        )
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        with session(self.target, self.namespace) as connection:
            for name, *values in connection.execute(query):
                found[name].append(tuple(values if name == "child" else values[:2]))
        return {name: sorted(rows) for name, rows in found.items()}

    def _read(self) -> None:
        self._guarded(self._read_all)

    def _read_all(self) -> None:
        while not self._ended.wait(0.03):
            try:
                state = self.state()
            except (ServerGone, NothingThere):
                continue
            if self.mode == "bestEffort":
                continue
            number = state["mark"][0][1] if state["mark"] else 0
            if state != self.history.states[number]:
                self.wrong.append(f"at mark {number}: not a state of the source")
            if self.seen and number < self.seen[-1]:
                self.wrong.append(f"mark {number} behind {self.seen[-1]}")
            self.seen.append(number)

    # -- kills -----------------------------------------------------------------------------------

    def kill(self, number: int) -> str:
        """Kill something; what it was."""
        chance = self._random.random()
        if chance < 0.1:
            self.staging_server.crash()
            time.sleep(self._random.uniform(0, 1))
            self.staging_server.start()
            return "staging server"
        if chance < 0.2:
            self.target_server.crash()
            time.sleep(self._random.uniform(0, 1))
            self.target_server.start()
            return "target server"
        if chance < 0.3:
            with psycopg.connect(self.staging_server.url("postgres")) as connection:
                connection.execute("update leases set nonce = gen_random_uuid()")
            return "lease"
        one = self._random.choice(self.instances)
        one.kill()
        if chance < 0.7:
            points = POINTS[self.mode]
            point = points[number % len(points)]
            one.start(f"{point}:{self._random.randint(1, 12)}:kill")
            return point
        time.sleep(self._random.uniform(0, 3))  # long enough for the other to take over
        one.start()
        return "instance"

    def run(self, count: int) -> None:
        """Kill so often under load, then let it come to its end; everything must be equal."""
        with self:
            deadline = time.monotonic() + READY_S
            while not self.state()["mark"]:
                self._moves(deadline)
                time.sleep(0.1)
            for number in range(count):
                self._go_on()
                time.sleep(self._random.uniform(0.2, 2.5))
                self.kill(number)
                for one in self.instances:
                    if not one.is_running:
                        one.start()
            for one in self.instances:
                one.kill()
                one.start()
            self._ended.set()
            self._threads[0].join(SETTLE_S)
            assert not self._threads[0].is_alive(), "what was to be sent was not answered"
            self._settle()
            codes = [one.stop() for one in self.instances]
        assert self._failed == []
        assert self.wrong == []
        assert codes == [0, 0], [one.out.read_text()[-2000:] for one in self.instances]
        assert self.mode == "bestEffort" or len(set(self.seen)) > 5

    def _go_on(self) -> None:
        """Wait until something more is in the target."""
        before, deadline = self.state()["mark"], time.monotonic() + READY_S
        while self.state()["mark"] == before:
            self._moves(deadline)
            time.sleep(0.1)

    def _moves(self, deadline: float) -> None:
        assert time.monotonic() < deadline, self._stacks()

    def _stacks(self) -> str:
        """What both instances are doing; it ends them."""
        return "\n".join(one.abort() for one in self.instances)

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while (found := self.state()) != self.history.states[-1]:
            if time.monotonic() > deadline:
                assert found == self.history.states[-1], self._stacks()
            time.sleep(0.2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends servers behind the test."""
    with ExitStack() as made:
        yield made


@pytest.mark.promise
@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("mode", "target"),
    [("rowwise", "postgres"), ("rowwise", "mariadb"), ("bestEffort", "postgres")],
)
def test_a_target_under_a_feed_after_kills(
    stack: ExitStack, tmp_path: Path, mode: str, target: str
) -> None:
    """At each point once or so, and at any moment; servers, too."""
    Stage(stack, tmp_path, mode, target, SEED).run(12)


@pytest.mark.promise
@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["postgres", "mariadb"])
def test_windows_through_spark_after_kills(stack: ExitStack, tmp_path: Path, target: str) -> None:
    """The log of one instance is left, and the other begins its own where the target is."""
    Stage(stack, tmp_path, "consistent", target, SEED).run(5)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("target", ["postgres", "mysql", "mariadb"])
@pytest.mark.parametrize("mode", ["consistent", "rowwise", "bestEffort"])
def test_a_target_under_a_feed_after_many_kills(
    stack: ExitStack, tmp_path: Path, mode: str, target: str
) -> None:
    """The same at length: 23 each, 207 over all."""
    Stage(stack, tmp_path, mode, target, SEED + 1).run(23)
