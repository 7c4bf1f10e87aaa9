"""Many histories through one pipeline at once: run, watched, killed, and compared at the end.

A pipeline with its two processes (`penstock extract`, and `penstock load` without Spark) captures
one schema for each history. An error that stops it is attributed to the history whose table it
names, whose tables are then removed, so that the others continue.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from harness.pipelines.ddl_changelog import with_full_images
from harness.pipelines.ddl_child import Child
from harness.pipelines.ddl_followers import Follower, Marks, is_ddl, make_followers, sections_of
from harness.pipelines.ddl_histories import Author
from harness.pipelines.ddl_lake import LakeSide, lake_differences, lake_url
from harness.pipelines.ddl_lake_java import LAKES, place_of
from harness.pipelines.ddl_model import FEATURES, NOT_IN_ORACLE
from harness.pipelines.ddl_oracle import Error as OracleError
from harness.pipelines.ddl_oracle import OracleSide
from harness.pipelines.ddl_oracle_author import OracleAuthor
from harness.pipelines.ddl_script import Script, Statement, Step
from harness.pipelines.ddl_servers import AnyServers
from harness.pipelines.ddl_sides import MySQLSide, PostgresSide, Side, differences
from harness.pipelines.ddl_sqlserver import Error as SQLServerError
from harness.pipelines.ddl_sqlserver import SQLServerSide
from harness.pipelines.ddl_sqlserver_author import FEATURES as SQLSERVER_FEATURES
from harness.pipelines.ddl_sqlserver_author import SQLServerAuthor
from harness.pipelines.ddl_types import ORACLE, POSTGRES, SQLSERVER
from harness.pipelines.pipeline import write_pipeline
from harness.servers.oracle_place import OraclePlace
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import followed_names
from penstock.control.pipeline.table_requests import put_request, read_requests
from penstock.control.tables.table_commands import resync
from penstock.load.isolation import read_isolations
from penstock.model import TableName
from penstock.model.table_requests import Capture
from plugins.mysql import MySQLServer
from plugins.sqlserver import as_test
from sim_oracle.session import TEST_USER

EQUAL, REFUSED, DIFFERENT, STOPPED = "equal", "refused", "DIFFERENT", "stopped"
SETTLE_S = 300.0
SETTLE_LAKE_S = 1500.0  # each table has a commit of its own, which costs a quarter of a second
UNCHANGED_S = 65.0  # on a busy machine two looks for new tables are up to 60 s apart
CURE_S = 90.0
POLL_S = 0.1
POLL_LAKE_S = 1.0  # a look reads a table's metadata
RESTARTS_MAX = 60
FENCE, FENCES = "fence", "fence.f"
STATEMENT_ERRORS = (psycopg.Error, pymysql.Error, SQLServerError, OracleError)

Tell = Callable[[str], None]
AnyAuthor = Author | SQLServerAuthor  # OracleAuthor is one of these

_numbers = itertools.count(1)


class ArenaStopped(Exception):
    """Error: the pipeline ended with an error that names no history, or that repeats."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('error')}")
        self.error = error


@dataclass(slots=True)
class Outcome:
    """Result of a history.

    Attributes:
        end: equal, refused, DIFFERENT or stopped.
        code: of the error, if there is one.
        reason: the error's message.
        hint: the error's next command.
        lines: how the sides differ.
        cure: whether the table was equal after `penstock table resync`: yes, no, or not tried.
        script: the statements that were run.
    """

    end: str
    script: Script
    code: str = ""
    reason: str = ""
    hint: str = ""
    lines: list[str] = field(default_factory=list)
    cure: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """End, and the error without names: the same for all outcomes of one kind."""
        if self.end == DIFFERENT:
            return self.end, ""
        text = re.sub(r"\b[ht]\d+\.(\"[^\"]*\"|\S+)", "TABLE", self.reason)
        text = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`", "…", text)
        return self.end, f"{self.code} {re.sub(r'[0-9]+', 'N', text)[:110]}"


class Running:
    """A history in progress: from its author, or from a script that is played again."""

    def __init__(
        self, number: int, source: str, given: AnyAuthor | Script, is_full: bool = False
    ) -> None:
        """Prepare a history; is_full lets tables send complete old rows, which PostgreSQL has to be
        told.
        """
        self.number = number
        self.schema, self.target_schema = f"h{number}", f"t{number}"
        self._source = source
        self._author = None if isinstance(given, Script) else given
        self._steps: Iterator[Step] = iter(given.steps if isinstance(given, Script) else ())
        self._is_full = is_full
        self.setup = given.setup if isinstance(given, Script) else tuple(given.write_setup())
        if is_full:
            self.setup = with_full_images(Step(self.setup)).statements
        self._done: list[Step] = []
        self._pause = 0
        self.is_over = False
        self.tables: set[str] = set()
        self.stopped: Mapping[str, Any] | None = None
        self.on_done: Callable[[Sequence[Statement]], None] = lambda _: None

    @property
    def script(self) -> Script:
        """Script of the steps that were run so far."""
        return Script(self._source, self.setup, tuple(self._done))

    def begin(self, side: Side) -> None:
        """Create the initial tables and rows."""
        kept = []
        for statement in self.setup:
            with suppress(*STATEMENT_ERRORS):
                side.run(statement.sql)
                kept.append(statement)
        self.setup = tuple(kept)

    def run_round(self, side: Side) -> None:
        """Run steps up to the next pause."""
        if self._pause:
            self._pause -= 1
            return
        while not self.is_over:
            step = self._next_step()
            if step is None:
                self.is_over = True
                return
            if step.pause:
                self._done.append(step)
                self._pause = step.pause - 1
                return
            done = run_step(side, step)
            if done.statements:
                self._done.append(done)
                self.on_done(done.statements)
            if done != step and self._author is not None:
                self._author.forget_step()

    def _next_step(self) -> Step | None:
        step = self._author.write_step() if self._author else next(self._steps, None)
        return with_full_images(step) if step and self._is_full else step


def run_step(side: Side, step: Step) -> Step:
    """Run the statements of a step in one transaction; return those that took effect."""
    done: list[Statement] = []
    several = len(step.statements) > 1
    try:
        if several:
            side.run("begin")
        for statement in step.statements:
            side.run(statement.sql)
            done.append(statement)
        if several:
            side.run("commit")
    except STATEMENT_ERRORS:
        side.run("rollback")
        is_undone = side.kind in (POSTGRES, SQLSERVER)
        return Step(() if is_undone else tuple(one for one in done if one.is_ddl))
    return step


class Arena:
    """One pipeline and its histories."""

    def __init__(
        self,
        servers: AnyServers,
        folder: Path,
        pair: tuple[str, str],
        given: Sequence[AnyAuthor | Script],
        seed: int | str,
        tell: Tell = lambda _: None,
        patience_s: float = UNCHANGED_S,
        cures: bool = False,
        also: Sequence[str] = (),
        begins_at_once: bool | None = None,
    ) -> None:
        """Prepare an arena; pair has the kinds of source and target, given are the histories.

        seed: of kills and waits. patience_s: for how long a difference must stay as it is. cures:
        whether refused tables are copied again, as their hint says. also: further followers of the
        log that are compared (`harness.pipelines.ddl_followers.NAMES`). begins_at_once: whether
        histories run during the bulk load; None leaves that to the seed.
        """
        self._begins_at_once = begins_at_once
        self._also, self._marks = also, Marks(FENCES)
        self._followers: list[Follower] = []
        self._tell, self._patience_s, self._cures = tell, patience_s, cures
        self._servers, self._folder, self._pair = servers, folder, pair
        self._dice = random.Random(seed)
        self._number = next(_numbers)
        is_full = "flexcdc" in also and pair[0] == POSTGRES
        self.histories = [
            Running(number, pair[0], one, is_full) for number, one in enumerate(given)
        ]
        self._fences = itertools.count(1)
        self._restarts = 0
        self.has_begun = False
        self._began_s = time.monotonic()
        self._sides: dict[int, Side] = {}

    # -- the run

    def run(self) -> list[Outcome]:
        """Run all histories to their ends. Raises ArenaStopped."""
        folder, number = self._folder / f"arena{self._number}", self._number
        folder.mkdir()
        self._lake_root = folder / "lake"
        self._clear()
        with ExitStack() as stack:
            self._stack = stack
            stack.callback(self._clear)
            self._source_url = stack.enter_context(self._database(self._pair[0], f"src{number}"))
            self._target_url = stack.enter_context(self._database(self._pair[1], f"dst{number}"))
            self._source = self._open(stack, self._pair[0], self._source_url)
            self._target = self._open(stack, self._pair[1], self._target_url)
            self._begin(stack, folder)
            try:
                self._play()
                self._note("played")
                outcomes = self._judge()
                if self._cures:
                    self._cure(outcomes)
                return outcomes
            finally:
                for child in (self.extract, self.load):
                    child.kill()
                for follower in self._followers:
                    follower.close()

    def _note(self, what: str) -> None:
        self._tell(f"({time.monotonic() - self._began_s:.1f} s: {what})")

    def _begin(self, stack: ExitStack, folder: Path) -> None:
        if isinstance(self._source, SQLServerSide):
            self._source.begin_capture()
        self._make_schema(self._source, FENCE)
        fences = {SQLSERVER: f"{FENCE}.[f]", ORACLE: _ORACLE_FENCES}.get(self._pair[0], FENCES)
        column = '"id"' if self._pair[0] == ORACLE else "id"
        self._source.run(f"create table {fences} ({column} int primary key)")
        for one in self.histories:
            self._make_schema(self._source, one.schema)
            side = self._open(stack, self._pair[0], self._source_url)
            self._enter_schema(side, one.schema)
            self._sides[one.number] = side
            one.begin(side)
            if self._also:
                one.on_done = lambda done, schema=one.schema: self._mark(schema, done)  # type: ignore[misc]
        mapped = {one.schema: one.target_schema for one in self.histories} | {FENCE: "fence_copy"}
        types = _choose_types(self._pair)
        file = write_pipeline(
            folder,
            self._source_url,
            self._target_url,
            tables=[f"{name}.*" for name in mapped],
            sections={
                "target.map": mapped,
                "target.types": types,
                "changeExtractor": {"flushIntervalSeconds": 0.5},
                "changeLoader": {"onTableError": "isolate"},
                **({"target": {"batchSeconds": 0.2}} if self._pair[1] in LAKES else {}),
                **sections_of(self._also, types),
            },
        )
        self._followers = make_followers(
            self._also, file, self._target, self._dice, has_zero_dates=ZERO_DATES not in types
        )
        self._config = load_config(file)
        java = place_of(self._pair[1]) if self._pair[1] in LAKES else None
        self.extract, self.load = Child("extract", file), Child("load", file, java=java)
        self._config.layout.run.mkdir(parents=True, exist_ok=True)
        self.extract.start()
        self.load.start()
        for follower in self._followers:
            follower.start()

    def _enter_schema(self, side: Side, schema: str) -> None:
        """Let a session of the source work in a history's schema."""
        if isinstance(side, SQLServerSide):
            side.schema, side.is_captured, side.wait_read = schema, True, self._settle
            return
        if isinstance(side, OracleSide):
            side.enter(schema)
            return
        side.run(f"set search_path to {schema}" if side.kind == POSTGRES else f"use {schema}")

    def _play(self) -> None:
        is_drawn = self._dice.random() < 0.4
        if not (is_drawn if self._begins_at_once is None else self._begins_at_once):
            self._settle()
        else:
            self._until(
                lambda: (self._config.layout.state / "handover.json").exists(), "a position"
            )
        self.has_begun = True
        while not all(one.is_over for one in self.histories):
            self._note("round")
            for one in self.histories:
                if one.stopped is None:
                    one.run_round(self._sides[one.number])
                else:
                    one.is_over = True
                one.tables |= set(self._tables(one))
            if self._dice.random() < 0.15:
                self.load.kill()
            for follower in self._followers:
                follower.disturb()
            self._tend()
            if self._dice.random() < 0.5:
                self._settle()
        self._settle()

    def _mark(self, schema: str, done: Sequence[Statement]) -> None:
        """Put a row after DDL of a history."""
        if any(map(is_ddl, done)):
            self._marks.note(schema, done, self._put_fence())

    def _put_fence(self) -> int:
        self._last_fence = next(self._fences)
        fences = _ORACLE_FENCES if self._pair[0] == ORACLE else FENCES
        self._source.run(f"insert into {fences} values ({self._last_fence})")
        return self._last_fence

    def _settle(self) -> None:
        """Wait until everything committed so far is applied."""
        for _ in range(2):
            number = self._put_fence()
            self._until(lambda n=number: self._is_passed(n), f"fence {number}")  # type: ignore[misc]

    def _is_passed(self, number: int) -> bool:
        if isinstance(self._target, LakeSide):
            return self._target.has_row("fence_copy", "f", number)
        query = f"select 1 from fence_copy.f where id = {number}"
        if self._pair[1] == ORACLE:
            query = f'SELECT 1 FROM "fence_copy"."f" WHERE "id" = {number}'
        try:
            return bool(self._target.run(query))
        except STATEMENT_ERRORS:
            return False

    def _until(self, condition: Callable[[], object], what: str) -> None:
        patience_s = SETTLE_LAKE_S if self._pair[1] in LAKES else SETTLE_S
        deadline = time.monotonic() + patience_s
        while not condition():
            if self._tend():
                deadline = time.monotonic() + patience_s
            if time.monotonic() > deadline:
                raise ArenaStopped(
                    {"code": "late", "error": f"not within {patience_s:.0f} s: {what}"}
                )
            time.sleep(POLL_LAKE_S if self._pair[1] in LAKES else POLL_S)

    def _tables(self, one: Running) -> list[str]:
        """Return the captured tables of a history, without copies that a tool is working on."""
        return [name for name in self._source.tables(one.schema) if not name.endswith("_gho")]

    # -- processes that end

    def _tend(self) -> bool:
        """Start ended processes again; return whether any had ended. Raises ArenaStopped."""
        ended = False
        for process in (self.extract, self.load):
            if process.code is None:
                continue
            ended = True
            if process.code > 0:
                self._note(f"{process.name} ended: {process.error['error']:.150}")
                self._put_down(process.error)
            process.start()
        for follower in self._followers:
            follower.tend()
        return ended

    def _put_down(self, error: Mapping[str, Any]) -> None:
        """Find the history that an error is about, and remove its tables."""
        self._restarts += 1
        said = json.dumps(error)
        names = {int(found) for found in re.findall(r"\b[ht](\d+)\.", said)}
        names |= {int(found) for found in re.findall(r"\b[ht](\d+)\b", str(error.get("table", "")))}
        guilty = [one for one in self.histories if one.number in names]
        if len(guilty) != 1 or guilty[0].stopped or self._restarts > RESTARTS_MAX:
            raise ArenaStopped(error)
        guilty[0].stopped = error
        self._remove(guilty[0])
        undo = re.match(r"Undo it \((.*);\)", str(error.get("hint", "")))
        if undo is not None:  # a table that a request leaves out keeps its old name
            with suppress(*STATEMENT_ERRORS):
                self._source.run(undo[1])

    def _remove(self, one: Running) -> None:
        for name in one.tables | set(self._tables(one)):
            put_request(
                self._config,
                TableName(one.schema, name),
                lambda last, number: replace(last, capture=Capture.REMOVED, capture_id=number),
            )

    # -- the oracle

    def _judge(self) -> list[Outcome]:
        wrong, since = self._wrong(), time.monotonic()
        slowness = self._slowness(wrong)
        while wrong and time.monotonic() - since < self._patience_s * slowness:
            time.sleep(1.0)
            self._tend()
            now, seen = self._wrong(), self._slowness(wrong)
            if now != wrong or seen != slowness:  # a table that was asked for is yet to be copied
                wrong, slowness, since = now, seen, time.monotonic()
        for follower in self._followers:
            for number, lines in self._wrong_in(follower).items():
                wrong.setdefault(number, []).extend(lines)
        return [self._outcome(one, wrong.get(one.number, [])) for one in self.histories]

    def _slowness(self, wrong: Mapping[int, object]) -> int:
        """Return how many times the patience is needed.

        A look for new tables may take place a minute after the one before; then rows are copied.
        """
        followed = followed_names(self._config)
        tables = {
            TableName(one.schema, table)
            for one in self.histories
            if one.number in wrong
            for table in self._tables(one)
        }
        return 3 if tables - followed else 1

    def _wrong_in(self, follower: Follower) -> dict[int, list[str]]:
        """Return the differences of a further follower of the log from the source, by history."""
        follower.finish()
        number = self._last_fence
        self._until(lambda: follower.error or follower.has_passed(FENCES, number), follower.name)
        if follower.error:
            self._note(f"{follower.name} is not compared: {follower.error}")
            return self._named_in(follower)
        found, since = self._different(follower), time.monotonic()
        while found and time.monotonic() - since < self._patience_s:
            time.sleep(1.0)
            self._tend()
            now = self._different(follower)
            if now != found:
                found, since = now, time.monotonic()
        return found

    def _named_in(self, follower: Follower) -> dict[int, list[str]]:
        """Return the history that a follower's error names; the first one if it names none."""
        named = [int(number) for number in re.findall(r"\bh(\d+)[._]", follower.error)]
        return {(named or [0])[0]: [f"{follower.name}: error {follower.error}"]}

    def _different(self, follower: Follower) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for one in self.histories:
            for table in self._tables(one) if one.stopped is None else ():
                mark = self._marks.find(one.schema, table)
                lines = follower.differences(self._source, one.schema, table, mark)
                if lines:
                    found.setdefault(one.number, []).extend(lines)
        return found

    def _wrong(self) -> dict[int, list[str]]:
        """Return the differences of histories that neither stopped nor are refused."""
        isolated = read_isolations(self._config.layout.state)
        found: dict[int, list[str]] = {}
        for one in self.histories:
            if one.stopped is not None:
                continue
            for table in self._tables(one):
                if TableName(one.schema, table) in isolated:
                    continue
                lines = self._lines(TableName(one.schema, table))
                if lines:
                    found.setdefault(one.number, []).extend(lines)
        return found

    def _outcome(self, one: Running, lines: list[str]) -> Outcome:
        if one.stopped is not None:
            error = one.stopped
            return Outcome(
                STOPPED,
                one.script,
                code=str(error.get("code")),
                reason=str(error.get("error")),
                hint=str(error.get("hint", "")),
            )
        for request in read_requests(self._config).tables:
            if request.table.schema == one.schema and request.capture is Capture.LEFT:
                return Outcome(
                    REFUSED, one.script, request.code, request.error, request.hint, lines=lines
                )
        if lines:
            return Outcome(DIFFERENT, one.script, lines=lines)
        for table, why in read_isolations(self._config.layout.state).items():
            if table.schema == one.schema:
                return Outcome(REFUSED, one.script, code=why.code, reason=why.error, hint=why.hint)
        return Outcome(EQUAL, one.script)

    def _cure(self, outcomes: Sequence[Outcome]) -> None:
        """Copy refused tables again, and record which are equal then."""
        refused = {
            one.number for one, o in zip(self.histories, outcomes, strict=True) if o.end == REFUSED
        }
        tables = [
            one
            for one in read_isolations(self._config.layout.state)
            if int(one.schema[1:]) in refused and one.name in self._source.tables(one.schema)
        ]
        for table in tables:
            resync(self._config, table)
        deadline = time.monotonic() + CURE_S
        left = {table: self._lines(table) for table in tables}
        while any(left.values()) and time.monotonic() < deadline:
            time.sleep(1.0)
            self._tend()
            left = {table: self._lines(table) for table in tables}
        for one, outcome in zip(self.histories, outcomes, strict=True):
            of_it = [lines for table, lines in left.items() if table.schema == one.schema]
            if one.number in refused:
                outcome.cure = "no" if any(of_it) else "yes"
                outcome.lines += [line for lines in of_it for line in lines]

    def _lines(self, table: TableName) -> list[str]:
        copied = f"t{table.schema[1:]}"
        if isinstance(self._target, LakeSide):
            return lake_differences(self._source, self._target, table.schema, copied, table.name)
        try:
            return differences(self._source, self._target, table.schema, copied, table.name)
        except STATEMENT_ERRORS as error:  # it is being recreated
            return [f"{table.name}: {error}"]

    # -- databases

    @contextmanager
    def _database(self, kind: str, name: str) -> Iterator[str]:
        if kind in LAKES:
            yield lake_url(kind, self._lake_root)
            return
        if kind == ORACLE:
            with OraclePlace() as place:
                yield place.url_of(TEST_USER)  # random DDL has more texts than a file of known ones
            return
        server = self._servers.get(kind)
        if kind == SQLSERVER:
            made = server.make_database(name)
            yield as_test(server.url(made))  # random DDL has more texts than a file of known ones
            server.drop_database(made)
            return
        if kind == POSTGRES:
            admin = PostgresSide(server.url("postgres"))
            admin.run(f"create database {name}")
            try:
                yield server.url(name)
            finally:
                for (slot,) in admin.run(
                    f"select slot_name from pg_replication_slots where database = '{name}'"
                ):
                    self._drop_slot(admin, slot)
                admin.run(f"drop database {name} with (force)")
                admin.connection.close()
            return
        server.execute(f"create database {name}")
        # The files of TLS are read again at each connection, which takes a while.
        plain = "sslmode=disable" + ("" if server.is_mariadb else "&get_server_public_key=true")
        yield f"{server.url(name)}?{plain}"

    def _drop_slot(self, admin: PostgresSide, slot: str) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                admin.run(f"select pg_drop_replication_slot('{slot}')")
                return
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _clear(self) -> None:
        """Drop the databases of another arena, or of this one."""
        for kind in set(self._pair) - {POSTGRES, SQLSERVER, ORACLE, *LAKES}:
            self._drop_databases(self._servers.get(kind))

    @staticmethod
    def _drop_databases(server: MySQLServer) -> None:
        for (name,) in server.execute("select schema_name from information_schema.schemata"):
            if re.fullmatch(r"[ht]\d+|fence\w*|wirekite|flexviews|(src|dst)\d+", name):
                server.execute(f"drop database `{name}`")

    def _open(self, stack: ExitStack, kind: str, url: str) -> Side:
        if kind in LAKES:
            return LakeSide(kind, self._lake_root)
        if kind in (SQLSERVER, ORACLE):
            opened = SQLServerSide(url) if kind == SQLSERVER else OracleSide(url)
            stack.callback(opened.close)
            return opened
        side: PostgresSide | MySQLSide
        side = PostgresSide(url) if kind == POSTGRES else MySQLSide(self._servers.get(kind))
        stack.callback(side.connection.close)
        return side

    @staticmethod
    def _make_schema(side: Side, name: str) -> None:
        if side.kind == ORACLE:
            side.run(f'CREATE USER "{name}" NO AUTHENTICATION')
            return
        is_schema = side.kind in (POSTGRES, SQLSERVER)
        side.run(f"create {'schema' if is_schema else 'database'} {name}")


ZERO_DATES = "zero dates"
_ORACLE_FENCES = f'"{FENCE}"."f"'


def _choose_types(pair: tuple[str, str]) -> dict[str, str]:
    """Return `[target.types]` of a pair: values that PostgreSQL lacks become NULL or text."""
    if pair[1] == ORACLE:
        lost = {} if pair[0] in (POSTGRES, SQLSERVER) else {ZERO_DATES: "null"}
        return {"*": "error", "empty values": "null"} | lost
    if pair[0] == ORACLE:
        return {"*": "error"}
    if pair[1] in LAKES and pair[0] != SQLSERVER:
        return {} if pair[0] == POSTGRES else {"zero dates": "null"}
    if SQLSERVER in pair:
        return {"*": "error"} | ({} if pair[0] in (POSTGRES, SQLSERVER) else {ZERO_DATES: "null"})
    if POSTGRES not in pair:
        return {}
    lost = {ZERO_DATES: "null", "loose json": "text"} if pair[1] == POSTGRES != pair[0] else {}
    return {"*": "error"} | lost


def run_histories(
    servers: AnyServers,
    folder: Path,
    pair: tuple[str, str],
    given: Callable[[], Sequence[AnyAuthor | Script]],
    seed: int | str,
    **more: Any,
) -> list[Outcome]:
    """Run histories in one arena, or in two of half the size if it stops as a whole.

    given: makes the same histories again. more: see `Arena`.
    """
    arena = Arena(servers, folder, pair, given(), seed, **more)
    try:
        return arena.run()
    except ArenaStopped as stopped:
        if not arena.has_begun:
            raise
        if "tell" in more:
            more["tell"](f"the pipeline stopped: {stopped}")
        count = len(arena.histories)
        if count == 1:
            error = stopped.error
            return [
                Outcome(
                    STOPPED,
                    arena.histories[0].script,
                    code=str(error.get("code")),
                    reason=f"(no table named) {error.get('error')}",
                    hint=str(error.get("hint", "")),
                )
            ]
        half = count // 2
        return [
            *run_histories(servers, folder, pair, lambda: given()[:half], seed, **more),
            *run_histories(servers, folder, pair, lambda: given()[half:], seed, **more),
        ]


def authors(
    pair: tuple[str, str], seed: int | str, count: int, features: Sequence[str] = FEATURES
) -> list[AnyAuthor]:
    """Return the histories of a seed for a pair of source and target."""
    source, target = pair
    if target == ORACLE:
        features = [one for one in features if one not in NOT_IN_ORACLE]
    if source == SQLSERVER:
        own = [one for one in SQLSERVER_FEATURES if target != ORACLE or one not in NOT_IN_ORACLE]
        return [SQLServerAuthor(f"{seed}.{number}", own) for number in range(count)]
    if source == ORACLE:
        return [OracleAuthor(f"{seed}.{number}") for number in range(count)]
    return [Author(source, f"{seed}.{number}", features) for number in range(count)]
