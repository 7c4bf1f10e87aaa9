"""FlexCDC without a server: a log that is written manually, and a destination in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.pipelines.consumer import Feed
from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.following import FlexCdc, FlexCdcPipeline
from penstock.consume.flexcdc.state import Place, State
from penstock.consume.plugins import Plugin
from penstock.model import Relation, TableDefinition, TableName
from penstock.model.sections import FlexCdcSettings, StateNames
from penstock.ports.changelog import OWN_COLUMNS, RowImages

NAME = "flexcdc"
SOURCE_URL = "postgresql://unused@127.0.0.1:1/none"


class MemorySession:
    """A ChangelogSession over SQLite; a table of a namespace has both names, with a dot."""

    text_type = "text"

    def __init__(self) -> None:
        self.driver = sqlite3.connect(":memory:", isolation_level=None)
        self.driver.row_factory = sqlite3.Row
        self.closed = 0

    def rows(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> list[dict[str, Any]]:
        """Translate a query for SQLite, run it, and return its rows by column."""
        sql = sql.removesuffix(" for update").replace("%s", "?")
        return [dict(row) for row in self.driver.execute(sql, tuple(parameters))]

    def run(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> int:
        """Translate a statement for SQLite, run it, and return how many rows it changed."""
        return self.driver.execute(sql.replace("%s", "?"), tuple(parameters)).rowcount

    def quote(self, *names: str) -> str:
        """Return one quoted identifier: the names joined by dots."""
        return '"' + ".".join(names).replace('"', '""') + '"'

    def begin(self) -> None:
        self.driver.execute("begin")

    def commit(self) -> None:
        self.driver.execute("commit")

    def rollback(self) -> None:
        if self.driver.in_transaction:
            self.driver.execute("rollback")

    def close(self) -> None:
        """Stay open: a later connection finds the rows of this one."""
        self.rollback()
        self.closed += 1

    def create_state(self, names: StateNames) -> None:
        """Create the state tables with their first rows; SQLite needs no namespace for them."""
        for name, columns in (
            (
                names.mvlogs,
                "table_schema text, table_name text, mvlog_name text, active_flag int default 1",
            ),
            (
                names.binlog_consumer_status,
                "server_id int, master_log_file text, master_log_size int, exec_master_log_pos int",
            ),
            (names.mview_uow, "uow_id int, commit_time timestamp, gsn_hwm int"),
            (names.place, "log_id text, segment int, trx int, position text"),
        ):
            self.driver.execute(f"create table {self.quote(*names.table(name))} ({columns})")
        uow, place = names.table(names.mview_uow), names.table(names.place)
        self.driver.execute(f"insert into {self.quote(*uow)} values (1, null, 1)")
        self.driver.execute(f"insert into {self.quote(*place)} values ('', -1, 0, '')")

    def drop(self, table: TableName) -> None:
        self.driver.execute(f"drop table if exists {self.quote(*table)}")

    def rename(self, table: TableName, name: str) -> None:
        to = self.quote(table.schema, name)
        self.driver.execute(f"alter table {self.quote(*table)} rename to {to}")

    def shape(self, table: TableName) -> Mapping[str, str] | None:
        found = self.driver.execute(f"pragma table_info({self.quote(*table)})").fetchall()
        return {row["name"]: row["type"] for row in found} or None

    def types_of(self, relation: Relation, definition: TableDefinition | None) -> Sequence[str]:
        """Return the types of the source as they are."""
        return [column.source_type for column in relation.columns]

    def same_type(self, left: str, right: str) -> bool:
        """Return whether two types differ in case at most."""
        return left.lower() == right.lower()

    def holds(self, wider: str, narrower: str) -> bool:
        """Return whether the wider type is text, or the same as the narrower one."""
        return self.same_type(wider, narrower) or wider == self.text_type

    def fold(self, column: str) -> str:
        """Return the column's name in lower case, because SQLite ignores case."""
        return column.lower()

    def create_changelog(self, table: TableName, columns: Sequence[tuple[str, str]]) -> None:
        """Create a changelog: OWN_COLUMNS as integers, then these columns."""
        every = [(name, "integer") for name in OWN_COLUMNS] + list(columns)
        made = ", ".join(f"{self.quote(name)} {kind}" for name, kind in every)
        self.driver.execute(f"create table {self.quote(*table)} ({made})")

    def add_column(self, table: TableName, name: str, kind: str, *, after: str) -> None:
        """Add a column at the end, because SQLite permits no other place."""
        added = f"add column {self.quote(name)} {kind}"
        self.driver.execute(f"alter table {self.quote(*table)} {added}")

    def retype_column(self, table: TableName, name: str, kind: str) -> None:
        """Do nothing: SQLite's columns hold any value."""

    def rename_column(self, table: TableName, old: str, new: str) -> None:
        renamed = f"rename column {self.quote(old)} to {self.quote(new)}"
        self.driver.execute(f"alter table {self.quote(*table)} {renamed}")

    def drop_column(self, table: TableName, name: str) -> None:
        self.driver.execute(f"alter table {self.quote(*table)} drop column {self.quote(name)}")

    def append(self, table: TableName, images: RowImages) -> None:
        names = [*OWN_COLUMNS, *(column.name for column in images.relation.columns)]
        columns = [*images.own.columns, *images.columns]
        marks = ", ".join(["?"] * len(names))
        into = f"{self.quote(*table)} ({', '.join(self.quote(name) for name in names)})"
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        self.driver.executemany(f"insert into {into} values ({marks})", rows)


class MemorySource:
    """A ChangelogSource of a server that does not run."""

    KNOWS_RENAMES = True

    def server_id(self, url: str) -> int:
        """Return 7 for every URL."""
        return 7

    def place(self, position: str) -> tuple[str, int]:
        """Return the position as the name of a file, with offset 0."""
        return position, 0

    def files(self, url: str) -> Sequence[tuple[str, int]]:
        """Return no files: there is no server that could list them."""
        return ()

    def definition(self, url: str, table: TableName) -> TableDefinition | None:
        """Return None: there is no server that has the table."""
        return None


class MemoryFlexCdc(FlexCdc):
    """FlexCDC whose source and destination are in memory."""

    def __init__(self, session: MemorySession, pipeline: FlexCdcPipeline, **more: Any) -> None:
        super().__init__(pipeline, **more)
        self._memory = session
        self._facts = MemorySource()  # type: ignore[assignment]

    @contextmanager
    def connect(self) -> Iterator[tuple[State, Changelogs]]:
        """Connect to the destination in memory, for a with block."""
        self._session = self._memory
        state = State(self._memory, self._settings.names)
        self._changelogs = Changelogs(
            state, self._settings, self._define, self._warn_if_wanted, may_drop=True
        )
        try:
            yield state, self._changelogs
        finally:
            self._memory.close()


class MemoryFlex:
    """A log of `Feed`, and FlexCDC that follows it; every table is captured on sight."""

    def __init__(self, root: Path, **settings: Any) -> None:
        """Prepare; settings are keys of [flexcdc]."""
        self.feed = Feed(root)
        self.session = MemorySession()
        settings.setdefault("auto_changelog", True)
        self.settings = FlexCdcSettings(dest="mysql://unused@127.0.0.1:1", **settings)
        self.warnings: list[str] = []
        self.session.create_state(self.settings.names)

    @property
    def links(self) -> Path:
        """Directory of its own names of segments."""
        return self.feed.place.consumers / NAME

    @property
    def state(self) -> State:
        """State tables."""
        return State(self.session, self.settings.names)

    def flexcdc(self, *plugins: tuple[str, Plugin]) -> MemoryFlexCdc:
        """Return a FlexCDC that is not connected."""
        pipeline = FlexCdcPipeline(
            settings=self.settings,
            source=SOURCE_URL,
            log=self.feed.place.log,
            links=self.links,
            position_text=str,
            warn=self.warnings.append,
        )
        return MemoryFlexCdc(self.session, pipeline, plugins=plugins)

    def run(self, *plugins: tuple[str, Plugin]) -> Place:
        """Follow the log until nothing is new; return the place."""
        seen: list[Place] = []
        self.flexcdc(*plugins).run(
            lambda: len(seen) > 1 and seen[-1] == seen[-2], on_place=seen.append
        )
        return self.state.place()

    def tables(self) -> list[str]:
        """Return the tables of the destination, without their namespace."""
        found = self.session.driver.execute("select name from sqlite_master where type = 'table'")
        return sorted(row["name"].partition(".")[2] for row in found)

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """Return the rows of a table of the destination, in the order of their numbers."""
        quoted = self.session.quote(self.settings.database, table)
        order = (
            "fv$gsn"
            if "fv$gsn" in (self.session.shape(TableName(self.settings.database, table)) or {})
            else "rowid"
        )
        return [
            tuple(row)
            for row in self.session.driver.execute(
                f'select {columns} from {quoted} order by "{order}"'
            )
        ]
