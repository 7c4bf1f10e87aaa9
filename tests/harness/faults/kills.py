"""A bank's pipeline as two processes that may be killed, on two servers that may crash.

Each server is of the kind `postgres`, `mysql`, `mariadb`, `sqlserver` or `oracle`.

`BankPipeline` sets it all up, has a reader check the copy's books at every moment, and in the end
lets the pipeline finish and compares. Not here: the choice of kills (`soak.py`, tests/faults).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from harness.pipelines.bank import Bank, Reader, differences
from harness.pipelines.bank_engines import MYSQL, dialect_of, session
from harness.pipelines.pipeline import write_pipeline
from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from harness.servers.oracle_place import OraclePlace
from harness.servers.sqlserver_embedded import EmbeddedSQLServer
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.mysql import GTID_SETTINGS, KINDS, MySQLServer, kinds
from sim_oracle.texts import KnownTexts

# Against hanging only: a backlog waits for it, and a simulated server may be far behind its bank.
END_TIMEOUT_S = 600.0
DEATH_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 300.0
# The other half may be killed repeatedly meanwhile, each time before it closes a segment.
SEGMENTS_TIMEOUT_S = 400.0
POLL_S = 0.03
# A signal during startup, before there is a handler, simply ends the process.
POSTGRES, SQLSERVER, ORACLE = "postgres", "sqlserver", "oracle"
# Commits survive the end of the server's process, but not a power cut.
CRASH_SAFE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON"}
COPY = "copy"
TESTS = Path(__file__).parents[2]
# For each way in which several sessions apply a batch, what its documentation lets a reader see.
EXCUSES = {
    "ahead": "select count(*) from wirekite.wirekite_ahead",
    "prepared": "select count(*) from pg_prepared_xacts",
}
SEVERAL = {"applySessions": 3}
DIVIDES = "from harness.pipelines import parts; parts.divide_always()"
LOOPBACK = "127.0.0.1"
ENDED_AS_ASKED = (0, -signal.SIGTERM)


class Half:
    """One of the two processes of a pipeline: `extract` or `load`."""

    def __init__(self, command: str, file: Path, *, prelude: str = "") -> None:
        """Prepare the penstock command; nothing is started yet.

        prelude: Python to run in the process first, with the tests' modules at hand.
        """
        self.command = command
        self._program = ["-m", "penstock"]
        if prelude:
            tests = f"import sys; sys.path.insert(0, {str(TESTS)!r})"
            begin = "import runpy; runpy.run_module('penstock', run_name='__main__')"
            self._program = ["-c", f"{tests}; {prelude}; {begin}"]
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._log = file.parent / f"{command}.out"
        self.once = self._make_once()
        """Folder where a fault that has happened leaves a file, see PENSTOCK_FAULT_ONCE."""
        self.start_count = 0

    def _make_once(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"once-{self.command}-", dir=self._file.parent))

    def start(self, fault: str = "") -> None:
        """Start the process; fault: as in PENSTOCK_FAULT, once in it and its workers.

        The folder of an earlier fault stays as it is: workers that outlive their process neither
        repeat that fault nor are taken for this process.
        """
        if fault:
            self.once = self._make_once()
        faulty = {"PENSTOCK_FAULT": fault, "PENSTOCK_FAULT_ONCE": str(self.once)}
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, *self._program, self.command, str(self._file), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(faulty if fault else {})},
                start_new_session=True,
            )
        self.start_count += 1

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Process of the half."""
        assert self._process is not None
        return self._process

    @property
    def running(self) -> bool:
        """Return whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_reached(self) -> bool:
        """Return whether the fault it was started with has happened."""
        return any(self.once.iterdir())

    def kill(self) -> None:
        """Kill the process itself with SIGKILL; the processes that it started have to notice."""
        self.process.kill()
        self.process.wait()

    def descendants(self, name: str) -> list[psutil.Process]:
        """Return its living descendants whose executable's name begins with this."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if one.name().startswith(name):
                    found.append(one)
        return found

    def kill_descendant(self, name: str, timeout_s: float = DEATH_TIMEOUT_S) -> bool:
        """Kill the youngest of these descendants with SIGKILL; return False if there is none for so
        long.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                for victim in reversed(self.descendants(name) if self.running else []):
                    victim.kill()
                    return True
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.1)
        return False

    def finish(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Ask it to end (SIGTERM) and wait; return the exit code."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        return self.finish(timeout_s)

    @property
    def error(self) -> dict[str, Any]:
        """Last typed error that it printed; empty if its last output is something else."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        try:
            found = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return {}
        return found if found.get("code", "PS99") != "PS99" else {}

    def read_output(self) -> str:
        """Return its output so far, of all its lives."""
        return self._log.read_text(errors="replace")[-4000:]


AnyServer = EmbeddedPostgres | EmbeddedMySQL | EmbeddedMariaDB | EmbeddedSQLServer | OraclePlace


def make_server(
    kind: str, *, major: int | None = None, settings: Mapping[str, str] | None = None
) -> AnyServer:
    """Return a server, to be entered, that can be killed without losing commits.

    major: of PostgreSQL.
    """
    if kind == POSTGRES:
        return EmbeddedPostgres(major=major, settings=settings)
    if kind == SQLSERVER:
        return EmbeddedSQLServer()
    if kind == ORACLE:
        place = OraclePlace()
        place.server.texts = KnownTexts(None)  # other tests look at the texts that are sent
        return place
    every = {**GTID_SETTINGS[kind], **CRASH_SAFE, **(settings or {})}
    return KINDS[kind](settings=every, basedir=kinds().get(kind))


def make_database(server: AnyServer, name: str, host: str = LOOPBACK) -> str:
    """Return the URL of a database: on PostgreSQL and Oracle the existing one, otherwise a new one
    of this name.

    host: an address that the server listens on beside 127.0.0.1, see `listening`.
    """
    if isinstance(server, EmbeddedPostgres):
        url = server.url("postgres")
    elif isinstance(server, EmbeddedSQLServer):
        return server.make_database(name)
    elif isinstance(server, OraclePlace):
        return server.url
    else:
        MySQLServer(server).execute(f"create database `{name}`")
        url = server.url(name)
    if host == LOOPBACK:
        return url
    _let_in(server, host)
    return url.replace(f"@{LOOPBACK}:", f"@{host}:")


def listening(kind: str, host: str) -> dict[str, str]:
    """Return settings of a server that listens on this address, too."""
    name = "listen_addresses" if kind == POSTGRES else "bind_address"
    return {name: f"{LOOPBACK},{host}"} if host != LOOPBACK else {}


def _let_in(server: AnyServer, host: str) -> None:
    """Allow the superuser to connect from the network of an address."""
    network = host.rpartition(".")[0]
    if isinstance(server, EmbeddedPostgres):
        with (server.directory / "pg_hba.conf").open("a") as rules:
            for database in ("all", "replication"):
                rules.write(f"host {database} all {network}.0/24 scram-sha-256\n")
        server.stop()  # a signal would take effect some time later
        server.start()
        return
    account = f"'root'@'{network}.%'"
    made = MySQLServer(server)
    made.execute(f"create user {account} identified by '{server.password}'")
    made.execute(f"grant all privileges on *.* to {account} with grant option")


class BankPipeline:
    """Two servers, a bank on one, `extract` and `load` between them, a reader on the other.

    Leaving the with block kills all processes that still run.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        source: str = POSTGRES,
        target: str = POSTGRES,
        major: int | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        source_settings: Mapping[str, str] | None = None,
        xa: bool = False,
        host: str = LOOPBACK,
        parts: str = "",
    ) -> None:
        """Prepare the pipeline in an empty folder; sections has more keys of the pipeline file.

        parts: the way in which several sessions apply each batch, of EXCUSES; empty: one session.

        source, target: kinds of servers. host: an address where they listen, too, as URLs have it.
        xa: see Bank; not if the source is killed, as its prepared transactions do not always
        survive.
        """
        self._stack = ExitStack()
        self._is_caught_up = False
        self.folder = folder
        self.directory = folder / "bank"
        self._seed = seed
        self.kinds = (source, target)
        self._major = major
        self._xa = xa
        self._host = host
        self._parts = parts
        if parts:
            several = {"changeLoader": {**(sections or {}).get("changeLoader", {}), **SEVERAL}}
            sections = {**(sections or {}), **several}
        self._settings = {**(source_settings or {}), **listening(source, host)}
        self._sections: dict[str, Mapping[str, Any]] = {
            "changeExtractor": {"flushIntervalSeconds": 0.5, "exitWhenIdle": False},
            "spark": {"master": "local[2]"},
            **(sections or {}),
        }
        # Oracle's empty texts need a choice, even from Oracle to Oracle.
        if self._family(source) != self._family(target) or target == ORACLE:
            self._sections["target.types"] = {"*": "error"}

    @staticmethod
    def _family(kind: str) -> str:
        """Return the name of the engine, which MySQL and MariaDB share."""
        return "mysql" if kind in ("mysql", "mariadb") else kind

    def __enter__(self) -> Self:
        """Start the servers and start the bank; the halves are not started."""
        with ExitStack() as stack:
            enter = stack.enter_context
            source, target = self.kinds
            major, settings = self._major, self._settings
            self.source: Any = enter(make_server(source, major=major, settings=settings))
            theirs = listening(target, self._host)
            if self._parts == "prepared":
                theirs["max_prepared_transactions"] = "8"
            self.target: Any = enter(make_server(target, major=major, settings=theirs))
            self.source_url = make_database(self.source, MYSQL.namespace, self._host)
            self.target_url = make_database(self.target, COPY, self._host)
            self.namespace = dialect_of(self.source_url).namespace
            self.bank = Bank(self.source_url, self._seed, xa=self._xa)
            self.configure()
            self.extract = Half("extract", self.file)
            self.load = Half("load", self.file, prelude=DIVIDES if self._parts else "")
            stack.callback(self._end_processes)
            reader = Reader(
                self.target_url,
                self.namespace,
                excuse=EXCUSES.get(self._parts, "0"),
                may_look_again=self._parts == "prepared",
            )
            self.reader = enter(reader)
            enter(self.bank)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the processes and stop the servers."""
        self._stack.__exit__(kind, error, trace)

    def configure(
        self,
        *,
        source: str | None = None,
        target: str | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the pipeline file; the URLs may lead through a proxy."""
        for name, keys in (sections or {}).items():
            self._sections[name] = {**self._sections.get(name, {}), **keys}
        self.file = write_pipeline(
            self.folder,
            source or self.source_url,
            target or self.target_url,
            name="bank",
            directory="bank",
            tables=[f"{self.namespace}.*"],
            sections=self._sections,
            file="bank.toml",
        )

    # -- waits of tests ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the halves that do not run, and wait until the whole bank is in the copy."""
        for half in (self.extract, self.load):
            if not half.running:
                half.start()
        self.until_read()
        if self.kinds[0] == SQLSERVER and not self._is_caught_up:
            self._catch_up()

    def _catch_up(self) -> None:
        """Wait for a change that is later than the bulk load; the reader forgets what it saw.

        Tables of SQL Server are read each at a moment of its own, and are equal to the source once
        the changes up to the end of the reading are applied.
        """
        with (
            session(self.source_url, self.namespace) as source,
            session(self.target_url, self.namespace) as target,
        ):

            def has_come() -> bool:
                source.execute("insert into journal values (%s, %s)", ("caught up", 0))
                shown = "select count(*) from journal where line = %s"
                return bool(target.execute(shown, ("caught up",))[0][0])

            self.until(has_come, "a change that was made after the bulk load")
        self.reader.wrong.clear()
        self._is_caught_up = True

    def until_read(self) -> None:
        """Wait until the reader has seen the whole bank; both halves must run meanwhile."""
        self.until(lambda: self.reader.read_count > 0, "the bank in the target")

    def until(
        self, condition: Callable[[], Any], what: str, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Wait for a condition; no half that was started may end without a kill meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            for half in (self.extract, self.load):
                ended = half.start_count and not half.running
                assert not ended, f"seed {self._seed}: {half.command} ended: {half.read_output()}"
            assert time.monotonic() < deadline, (
                f"seed {self._seed}: not within {timeout_s:.0f} s: {what}: "
                f"{self.load.read_output()}"
            )
            time.sleep(POLL_S)

    def kill_at(self, half: Half, point: str, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Start a half that kills itself at `name:nth`; return False if it had to be killed
        otherwise.

        A point in a Spark worker kills only the worker: then the half lives on.
        """
        half.start(f"{point}:kill")
        deadline = time.monotonic() + timeout_s
        while half.running and not half.has_reached and time.monotonic() < deadline:
            time.sleep(POLL_S)
        reached = half.has_reached
        if not reached:
            half.kill()
        elif _is_fatal(point):
            code = half.finish(DEATH_TIMEOUT_S)
            assert code == -signal.SIGKILL, f"{point}: ended with {code}: {half.read_output()}"
        return reached

    def transactions_go_on(self, count: int = 20) -> None:
        """Wait until the bank has made some more transactions."""
        goal = self.bank.transaction_count + count
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.bank.transaction_count < goal:
            assert time.monotonic() < deadline, "the bank does not work"
            time.sleep(POLL_S)

    def segments_come(self, count: int) -> None:
        """Wait until the log has so many more closed segments than now."""
        log = self.directory / "log"
        goal = len(list(log.glob("*.ckt"))) + count
        deadline = time.monotonic() + SEGMENTS_TIMEOUT_S
        while len(list(log.glob("*.ckt"))) < goal:
            assert time.monotonic() < deadline, f"seed {self._seed}: no segments come"
            time.sleep(POLL_S)

    # -- the ending --------------------------------------------------------------------------

    def check_books(self) -> None:
        """Raise an error if the reader has seen money created or lost, or the bank failed."""
        self.bank.check()
        assert not self.reader.wrong, f"seed {self._seed}: {self.reader.wrong[:3]}"

    def finish(self) -> None:
        """Let the extractor finish and the loader apply everything; both sides must be equal."""
        self.bank.__exit__()
        for half in (self.extract, self.load):
            if half.running:
                code = half.stop()
                # The last kill may have ended it earlier: with a typed error then.
                assert code in ENDED_AS_ASKED or (code == 1 and half.error), half.read_output()
        self.configure(sections={"changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 1.0}})
        self.extract.start()
        self.load.start()
        assert self.extract.finish() == 0, f"seed {self._seed}: {self.extract.read_output()}"
        assert self.load.finish() == 0, f"seed {self._seed}: {self.load.read_output()}"
        self.check_books()
        assert self.reader.read_count > 10, f"only {self.reader.read_count} reads of the target"
        found = differences(self.source_url, self.target_url)
        assert not found, f"seed {self._seed}: {found}"

    def _end_processes(self) -> None:
        for half in (self.extract, self.load):
            if half.running:
                half.kill()


def _is_fatal(point: str) -> bool:
    """Return whether the point is in the process itself, not in one of its Spark workers."""
    return not point.startswith(("load.copy.", "bulk.chunk."))
