"""`penstock stage` as two instances under a changefeed, with all failures that may happen to them.

Two instances, one staging database, one target; servers behind proxies. In mode consistent a reader
of the target may only see states of resolved timestamps, each no older than the previous one; in
the end every mode has the last state.
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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from harness.faults.kills import AnyServer, make_database, make_server
from harness.feeds.feed import COLUMNS, DDL, Feed, History
from harness.pipelines.bank_engines import NothingThere, ServerGone, session
from harness.servers.proxy import Proxy
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.host.server_process import free_port

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
        "stage.retire.step",
    ),
    "rowwise": (
        "stage.request.staged",
        "stage.request.resolved",
        "stage.window.written",
        "stage.window.applied",
        "stage.window.marked",
        "stage.window.committed",
        "stage.retire.step",
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
# Part of the answer that is lost in transit; MySQL's answer has none, but its request does.
ANSWERS = {"staging": (b"COMMIT", b"INSERT", b"UPDATE", b"COPY "), "target": (b"COMMIT",)}
AUTO_WINDOW_S = 8


class Instance:
    """A `penstock stage` process with its own port."""

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
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, fault: str = "", *options: str) -> None:
        """Start it; it answers a moment later."""
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        if fault:
            # Once, as the processes that this one starts have the same plan.
            once = Path(tempfile.mkdtemp(dir=self.file.parent))
            environment |= {"PENSTOCK_FAULT": fault, "PENSTOCK_FAULT_ONCE": str(once)}
        with self.out.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "stage", str(self.file), *options],
                stdout=out, stderr=out, env=environment,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def abort(self) -> str:
        """End it; return the stacks of its threads and its last messages."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(60)
        return f"--- {self.name}\n{self.messages[-3000:]}\n{self.out.read_text()[-12000:]}"

    @property
    def messages(self) -> str:
        """Content of its log, from all of its lives."""
        log = self.file.parent / self.name / "run" / "stage.log"
        return log.read_text() if log.exists() else ""

    def stop(self) -> int:
        """Stop it in order; return the exit code."""
        assert self._process is not None, "started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def answers(self) -> bool:
        """Return whether it is ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_/healthz", timeout=30):
                return True
        except OSError:
            return False

    def post(self, path: str, body: str) -> bool:
        """Return whether a request was answered with 200."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", body.encode(), method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                return bool(found.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


class Stage:
    """Servers, instances, a history and the states that a reader of the target has seen of it."""

    def __init__(self, stack: ExitStack, folder: Path, mode: str, target: str, seed: int) -> None:
        self.mode = mode
        self._random = random.Random(seed)
        self.staging_server: AnyServer = stack.enter_context(EmbeddedPostgres())
        self.target_server: AnyServer = stack.enter_context(make_server(target))
        self.target = make_database(self.target_server, "shop")
        self.proxies = {
            "staging": self._proxy(stack, self.staging_server.url("postgres")),
            "target": self._proxy(stack, self.target),
        }
        staging = self.proxies["staging"].url(self.staging_server.url("postgres"))
        self.namespace = "public" if target == "postgres" else "shop"
        self.is_postgres = target == "postgres"
        self.path = "postgres/public" if self.is_postgres else "shop"
        ddl = [sql.replace("int not null references parent (id), n int not null)",
            "int not null, n int not null, foreign key (parent_id) references parent (id))")
            for sql in DDL]  # fmt: skip
        with session(self.target, self.namespace) as connection:
            for sql in ddl:
                connection.execute(sql)
        target_url = self.proxies["target"].url(self.target)
        sections = f'[staging]\nurl = "{staging}"\n[target]\nurl = "{target_url}"\n[stage]\n'
        sections += 'authentication = "off"\nleaseSeconds = 4\n'
        if mode == "rowwise":
            (folder / "rules.py").write_text(RULES)
            sections += 'mode = "consistent"\nuserModule = "rules"\n'
        else:
            sections += f'mode = "{mode}"\n'
        if self.is_consistent:
            # In the other modes a row that is sent again must not be deleted: it would be new.
            sections += 'retireOffset = "100ms"\n'
        if mode == "auto":
            sections += f"bestEffortWindow = {AUTO_WINDOW_S}\n"
        self.instances = [Instance(folder, name, sections) for name in ("one", "two")]
        self._create()
        self.history = History(seed, time.time_ns() - 60_000_000_000)
        self.feed = Feed(seed + 1)
        self.has_note = False
        self._is_near = True  # the feed stays close to its source, or falls behind more and more
        self._noted = threading.Lock()
        self.seen: list[int] = []
        self.happened: list[str] = []
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]
        self._failed: list[BaseException] = []

    def _proxy(self, stack: ExitStack, url: str) -> Proxy:
        port = urlsplit(url).port
        assert port is not None, url
        return stack.enter_context(Proxy(port))

    def _create(self) -> None:
        """Let the first instance create the staging schema, and end it."""
        first = self.instances[0]
        first.start("", "--create")
        deadline = time.monotonic() + READY_S
        while not first.answers():
            assert first.is_running, first.out.read_text()
            assert time.monotonic() < deadline, "the staging schema was not made"
            time.sleep(0.1)
        assert first.stop() == 0, first.out.read_text()

    def __enter__(self) -> Stage:
        """Start both instances, the feed and the reader."""
        for one in self.instances:
            one.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        for one in self.instances:
            one.kill()

    def end_feed(self) -> None:
        """Send the rest of the current span, and no more."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._failed, self._failed

    # -- the feed and the reader -----------------------------------------------------------------

    def _run_guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed.append(error)

    def _send(self) -> None:
        self._run_guarded(self._send_all)

    def _send_all(self) -> None:
        while not self._ended.is_set():
            if self.mode == "auto" and self._is_near:
                self.history.time_ns = time.time_ns()
            messages, resolved = self.history.span()
            for body in self.feed.bodies(messages):
                self._deliver(body)
            self._deliver(f'{{"resolved":"{resolved}"}}')

    def _deliver(self, body: str) -> None:
        """Send a body to either instance until one has answered."""
        while not self._random.choice(self.instances).post(self.path, body):
            if self._ended.is_set() and not any(one.is_running for one in self.instances):
                return
            time.sleep(0.05)

    def state(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the target at one moment; a note that is missing, or being added, is None."""
        note = "note" if self.has_note else "null"
        query = (
            "select 'parent', id, n, null, null from parent"
            f" union all select 'child', id, parent_id, n, {note} from child"
            " union all select 'mark', id, n, null, null from mark"
        )
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
        with session(self.target, self.namespace) as connection:
            for name, *values in connection.execute(query):
                found[name].append(tuple(values[: len(COLUMNS[name])]))
        return {name: sorted(rows) for name, rows in found.items()}

    def states(self, number: int) -> dict[str, list[tuple[Any, ...]]]:
        """Return the model at a resolved timestamp in the form of `state`."""
        found: dict[str, list[tuple[Any, ...]]] = self.history.states[number]
        if self.has_note:
            return found
        return {**found, "child": [(*row[:3], None) for row in found["child"]]}

    @property
    def is_consistent(self) -> bool:
        """Return whether readers of the target may only see states of resolved timestamps."""
        return self.mode in ("consistent", "rowwise")

    def _read(self) -> None:
        self._run_guarded(self._read_all)

    def _read_all(self) -> None:
        while not self._ended.wait(0.03):
            with self._noted:
                try:
                    state = self.state()
                except (ServerGone, NothingThere):
                    continue
                number = state["mark"][0][1] if state["mark"] else 0
                expected = self.states(number)
            if not self.is_consistent:
                continue
            if state != expected:
                self.wrong.append(f"at mark {number}: not a state of the source")
            if self.seen and number < self.seen[-1]:
                self.wrong.append(f"mark {number} behind {self.seen[-1]}")
            self.seen.append(number)

    # -- events ----------------------------------------------------------------------------------

    def happens(self, number: int) -> str:
        """Cause something, and return its name."""
        chance = self._random.random()
        if chance < 0.08:
            return self._crash(self.staging_server, "staging server")
        if chance < 0.16:
            return self._crash(self.target_server, "target server")
        if chance < 0.23:
            with psycopg.connect(self.staging_server.url("postgres")) as connection:
                connection.execute("update leases set nonce = gen_random_uuid()")
            return "lease"
        if chance < 0.38:
            return self._break_network()
        if chance < 0.46:
            return self._alter()
        one = self._random.choice(self.instances)
        one.kill()
        if chance < 0.75:
            points = POINTS.get(self.mode, POINTS["bestEffort"])
            point = points[number % len(points)]
            one.start(f"{point}:{self._random.randint(1, 12)}:kill")
            return point
        time.sleep(self._random.uniform(0, 3))  # long enough for the other instance to take over
        one.start()
        return "instance"

    def _crash(self, server: AnyServer, name: str) -> str:
        server.crash()
        time.sleep(self._random.uniform(0, 1))
        server.start()
        return name

    def _break_network(self) -> str:
        """Cut connections, or lose an answer after the server has acted."""
        name = self._random.choice(list(self.proxies))
        proxy = self.proxies[name]
        if self._random.random() < 0.3:
            proxy.cut()
            return f"connections to {name}"
        answer = self._random.choice(ANSWERS[name])
        proxy.tear(answer, to_server=name == "target" and not self.is_postgres, whole=True)
        return f"answer of {name}: {answer!r}"

    def _alter(self) -> str:
        """Add or drop the column note: first in the target, first in the source, or late."""
        if not self.has_note:
            is_late = self._random.random() < 0.5
            if is_late:  # until then penstock retries
                self.history.has_note = True
                time.sleep(self._random.uniform(0, 2))
            with self._noted:
                self._execute("alter table child add column note varchar(3000)")
                self.has_note = True
            self.history.has_note = True
            return "column added late" if is_late else "column added"
        with self._noted:
            self.has_note = False
        self.history.has_note = False
        until, deadline = len(self.history.states) + 1, time.monotonic() + READY_S
        while not self._mark() or self._mark()[0][1] < until:  # no row with a note is in transit
            self._moves(deadline)
            time.sleep(0.1)
        last = self._query_staged("select max(nanos) from {table}")
        while self._query_staged(
            f"select count(*) from {{table}} where not applied and nanos <= {last}"
        ):
            self._moves(deadline)  # mark may be written before them
            time.sleep(0.1)
        self._execute("alter table child drop column note")
        return "column dropped"

    def _query_staged(self, query: str) -> int:
        """Query the mutation table of child; return that rows wait if its server is down."""
        table = f"_{self.path.replace('/', '_')}_child"
        try:
            with psycopg.connect(self.staging_server.url("postgres")) as connection:
                (found,) = connection.execute(query.format(table=table)).fetchone() or (0,)  # type: ignore[arg-type]
                return int(found or 0)
        except psycopg.OperationalError:
            return 1

    def _execute(self, sql: str) -> None:
        with session(self.target, self.namespace) as connection:
            connection.execute(sql)

    def run(self, count: int) -> None:
        """Cause so many failures under load, let the work finish, and check that all is equal."""
        with self:
            deadline = time.monotonic() + READY_S
            while not self._mark():
                self._moves(deadline)
                time.sleep(0.1)
            for number in range(count):
                self._go_on()
                time.sleep(self._random.uniform(0.2, 2.5))
                self._is_near = number % 6 < 3
                self.happened.append(self.happens(number))
                self._start_again()
            for one in self.instances:
                one.kill()
                one.start()
            self._ended.set()
            self._threads[0].join(SETTLE_S)
            assert not self._threads[0].is_alive(), "what was to be sent was not answered"
            self._settle()
            codes = [one.stop() for one in self.instances]
        assert self._failed == []
        assert self.wrong == [], self.happened
        assert codes == [0, 0], [one.out.read_text()[-2000:] for one in self.instances]
        assert not self.is_consistent or len(set(self.seen)) > 5
        if self.is_consistent:
            with psycopg.connect(self.staging_server.url("postgres")) as connection:
                found = connection.execute("select from memo where starts_with(key, 'retired')")
                assert found.rowcount, "nothing was retired"
        if self.mode == "auto":
            messages = "".join(one.messages for one in self.instances)
            assert "mode=bestEffort" in messages, messages[-3000:]
            assert "mode=consistent" in messages, messages[-3000:]

    def _go_on(self) -> None:
        """Wait until the target has something more."""
        before, deadline = self._mark(), time.monotonic() + READY_S
        while self._mark() == before:
            self._moves(deadline)
            time.sleep(0.1)

    def _mark(self) -> list[tuple[Any, ...]]:
        return self.state()["mark"]

    def _start_again(self) -> None:
        """Start instances that have ended: a fault may come long after it was planned."""
        for one in self.instances:
            if not one.is_running:
                one.start()

    def _moves(self, deadline: float) -> None:
        self._start_again()
        assert time.monotonic() < deadline, self._stacks()

    def _stacks(self) -> str:
        """Return the stacks of both instances, which end."""
        stacks = "\n".join(one.abort() for one in self.instances)
        return f"behind {self.happened}\n{stacks}"

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while (found := self.state()) != self.states(-1):
            if time.monotonic() > deadline:
                assert found == self.states(-1), self._stacks()
            time.sleep(0.2)
