"""FlexCDC in tests: a log that is written, changelogs that are filled, and their sum."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.pipelines import extract, mysql_extract
from penstock.codec.types import Choices, fill_template, map_column
from penstock.consume.flexcdc.captured import Changelogs, changelog_name
from penstock.consume.flexcdc.following import FlexCdc, FlexCdcPipeline
from penstock.consume.flexcdc.state import Place, State
from penstock.consume.plugins import Plugin
from penstock.engines.mysql.positions import BinlogPositions
from penstock.engines.postgres.positions import LsnPositions
from penstock.extract.extractor import Extractor
from penstock.log import list_segments
from penstock.log.layout import list_open_segments
from penstock.log.segment import open_segment
from penstock.model import TableName
from penstock.model.layout import PipelineLayout
from penstock.model.sections import FlexCdcSettings
from penstock.ports.changelog import ChangelogSession, open_changelogs
from penstock.ports.tables import tables_at
from plugins.mysql import database_of

Row = tuple[Any, ...]


@contextmanager
def session_at(url: str) -> Iterator[ChangelogSession]:
    """Open a session with exact text settings on any server."""
    opened = open_changelogs(
        url, namespace="none", source_types="mysql", choices=Choices(), application_name="test"
    )
    with closing(opened):
        yield opened


def is_postgres(url: str) -> bool:
    """Return whether a URL names PostgreSQL."""
    return url.startswith("postgres")


class Flex:
    """A source, its log in a directory, and a destination with changelogs of it."""

    def __init__(
        self,
        source: str,
        dest: str,
        directory: Path,
        *,
        plugins: Sequence[Any] = (),
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare; settings are keys of [flexcdc], sections those of plugins."""
        self.source = source
        self.directory = directory
        self.plugins: list[tuple[str, Plugin]] = [(type(one).__name__, one) for one in plugins]
        self.sections = sections or {}
        self.settings = FlexCdcSettings(dest=dest, **settings)
        self.namespace = "public" if is_postgres(source) else database_of(source)
        self.warnings: list[str] = []
        self._base: dict[TableName, Counter[Row]] = {}

    # -- the log ---------------------------------------------------------------------------------

    def extractor(self, **more: Any) -> Extractor:
        """Return an extractor of all tables of the source, with complete old rows."""
        if is_postgres(self.source):
            return extract.extractor_of(self.source, self.directory, **more)
        more.setdefault("options", replace(mysql_extract.OPTIONS, full_before_images=True))
        return mysql_extract.extractor_of(self.source, self.directory, **more)

    def extract(self) -> None:
        """Write the source's commits into the log."""
        self.extractor().run()

    def source_sql(self, *statements: str) -> None:
        """Run statements at the source."""
        with session_at(self.source) as session:
            if is_postgres(self.source):
                session.run("set search_path to public", doing="choosing")
            else:
                session.run(f"use {session.quote(self.namespace)}", doing="choosing")
                session.run("set session sql_log_bin = 1", doing="choosing")
            for statement in statements:
                session.run(statement, doing="testing")

    # -- FlexCDC ---------------------------------------------------------------------------------

    def flexcdc(self) -> FlexCdc:
        """Return a FlexCDC that is not connected."""
        layout = PipelineLayout(root=self.directory)
        positions = LsnPositions("slot") if is_postgres(self.source) else BinlogPositions(layout)
        return FlexCdc(
            FlexCdcPipeline(
                settings=self.settings,
                source=self.source,
                log=layout.log,
                links=layout.consumers / "flexcdc",
                position_text=positions.text,
                sections=self.sections,
                directory=self.directory,
                warn=self.warnings.append,
            ),
            plugins=self.plugins,
        )

    @contextmanager
    def state(self) -> Iterator[tuple[State, Changelogs]]:
        """Open the state tables and changelogs."""
        with self.flexcdc().connect() as (state, changelogs):
            changelogs.refresh()
            yield state, changelogs

    def begin(self, *tables: str) -> None:
        """Begin the log and the state; capture these tables, whose rows are the start."""
        with self.state_made():
            pass
        self.extract()
        for table in tables:
            self.add(table)

    @contextmanager
    def state_made(self) -> Iterator[State]:
        """Create new state tables."""
        with self.flexcdc().connect() as (state, _):
            state.create(force=True)
            yield state

    def add(self, table: str) -> None:
        """Capture a table."""
        name = TableName(self.namespace, table)
        with self.state() as (_, changelogs):
            changelogs.add(name)
        self._base[name] = self.source_rows(table)

    @property
    def end(self) -> int:
        """Last transaction in the log."""
        log = self.directory / "log"
        last = [*list_segments(log), *list_open_segments(log)][-1]
        with open_segment(last.path) as segment:
            return segment.end.trx

    def follow(self) -> Place:
        """Bring the destination to the end of the log, and return that place."""
        places: list[Place] = []
        end = self.end
        self.flexcdc().run(lambda: bool(places) and places[-1].trx >= end, on_place=places.append)
        return places[-1]

    def step(self) -> Place:
        """Write the log, and follow it."""
        self.extract()
        return self.follow()

    # -- contents --------------------------------------------------------------------------------

    def changelog(self, table: str) -> TableName:
        """Return the changelog of a table."""
        name = changelog_name(TableName(self.namespace, table), self.settings.changelog_names)
        return TableName(self.settings.database, name)

    def query(self, sql: str, *tables: str) -> list[dict[str, Any]]:
        """Return rows at the destination; {} in order stand for the changelogs of tables."""
        with session_at(self.settings.dest) as session:
            names = [session.quote(*self.changelog(table)) for table in tables]
            return session.rows(sql.format(*names), doing="testing")

    def state_rows(self, table: str, order: str) -> list[dict[str, Any]]:
        """Return the rows of a state table."""
        with session_at(self.settings.dest) as session:
            name = session.quote(self.settings.database, table)
            return session.rows(f"select * from {name} order by {order}", doing="testing")

    def images(self, table: str, *columns: str) -> list[Row]:
        """Return (dml_type, uow_id, gsn, ...) of a changelog, by number."""
        with session_at(self.settings.dest) as session:
            names = [session.quote(c) for c in ("dml_type", "uow_id", "fv$gsn", *columns)]
            gsn, dml = names[2], names[0]
            found = session.rows(
                f"select {', '.join(names)} from {session.quote(*self.changelog(table))}"
                f" order by {gsn}, {dml}",
                doing="testing",
            )
        return [tuple(row.values()) for row in found]

    def source_rows(self, table: str) -> Counter[Row]:
        """Return the source's rows as comparable texts."""
        name = TableName(self.namespace, table)
        expressions = [source for _, source, _ in self._forms(table)]
        with session_at(self.source) as session:
            return Counter(_rows(session, name, expressions))

    def net_rows(self, table: str) -> Counter[Row]:
        """Return the initial rows, plus and minus those of the changelog."""
        name = TableName(self.namespace, table)
        net = Counter(self._base[name])
        with session_at(self.settings.dest) as session:
            own = [session.quote("fv$gsn"), session.quote("dml_type")]
            forms = [target for _, _, target in self._forms(table)]
            found = _rows(session, self.changelog(table), [*own, *forms])
        emptied = max((gsn for gsn, dml, *_ in found if dml == 0), default=None)
        if emptied is not None:
            net.clear()
        for gsn, dml, *row in found:
            if dml and (emptied is None or gsn > emptied):
                net[tuple(row)] += 1 if dml > 0 else -1
        return Counter({row: count for row, count in net.items() if count})

    def check(self, *tables: str) -> None:
        """Check that the changelogs of these tables add up to the source."""
        for table in tables:
            net, now = self.net_rows(table), self.source_rows(table)
            lost = [row for row, count in net.items() if count < 0]
            assert net == now, (table, _few(net - now), _few(now - net), lost[:5])

    def _forms(self, table: str) -> list[tuple[str, str, str]]:
        """Return for each column the expressions that give equal texts on both sides."""
        flexcdc = self.flexcdc()
        definition = flexcdc._define(TableName(self.namespace, table))
        source = tables_at(self.source).server_of(self.source)
        target = tables_at(self.settings.dest).server_of(self.settings.dest)
        forms = []
        with session_at(self.source) as one, session_at(self.settings.dest) as other:
            for column in definition.columns:
                mapping = map_column(column, source, target, choices=Choices(everything="error"))
                forms.append(
                    (
                        column.name,
                        fill_template(mapping.equal.source, one.quote(column.name)),
                        fill_template(mapping.equal.target, other.quote(column.name)),
                    )
                )
        return forms


def _rows(session: ChangelogSession, table: TableName, expressions: Sequence[str]) -> list[Row]:
    named = ", ".join(f"{text} as e{place}" for place, text in enumerate(expressions))
    found = session.rows(f"select {named} from {session.quote(*table)}", doing="testing")
    return [tuple(row.values()) for row in found]


def _few(rows: Counter[Row]) -> list[Any]:
    return list(rows.items())[:3]


WAIT_S = 60.0


class Command:
    """A `penstock flexcdc --ini FILE ...`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.out = file.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None

    def _arguments(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "penstock", "flexcdc", "--ini", str(self.file), *words]

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command until it ends, and return its output."""
        done = subprocess.run(
            self._arguments(*words), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *words: str, fault: str = "") -> None:
        """Start `run`."""
        environment = {**os.environ, **({"PENSTOCK_FAULT": fault} if fault else {})}
        with self.out.open("ab") as out:
            self._process = subprocess.Popen(
                self._arguments("run", *words), stdout=out, stderr=out, env=environment
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Process of `run`."""
        assert self._process is not None
        return self._process

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        """End the running process."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def until(what: Callable[[], Any], command: Command) -> None:
    """Wait until a condition holds, while the command runs."""
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert command.process.poll() is None, command.out.read_text()
        assert time.monotonic() < deadline, command.out.read_text()
        time.sleep(0.1)
