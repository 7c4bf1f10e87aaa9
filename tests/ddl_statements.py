"""Run each schema change alone and print its outcome: the table of docs/schema-changes.md.

`python tests/ddl_statements.py` runs one pipeline for each source, into a target of the same kind.
While a statement is followed, one session writes to the table at the source and another one reads
it at the target. The longest statement of each session is printed in seconds: it shows how long the
table is blocked there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.pipelines.ddl_arena import (
    DIFFERENT,
    EQUAL,
    STATEMENT_ERRORS,
    Arena,
    ArenaStopped,
    Outcome,
)
from harness.pipelines.ddl_script import Script, Statement, Step
from harness.pipelines.ddl_servers import Servers
from harness.pipelines.ddl_types import MARIADB, MYSQL, POSTGRES
from penstock.log import list_segments, open_chain
from penstock.model import MarkerKind

SOURCES = (POSTGRES, MYSQL, MARIADB)
NAMES = {POSTGRES: "PostgreSQL", MYSQL: "MySQL", MARIADB: "MariaDB"}
ROWS = 2_000
PAUSE_S = 0.005
BEFORE_S = 0.5  # rows are written for so long before the change
WITHOUT = "-"  # the source has no such statement


@dataclass(frozen=True, slots=True)
class Change:
    """A schema change.

    Attributes:
        pg: Statements for PostgreSQL; empty if it has no such change.
        my: Statements for MySQL; empty if it has no such change.
        maria: Statements for MariaDB if they differ from those for MySQL.
    """

    name: str
    pg: tuple[str, ...]
    my: tuple[str, ...]
    maria: tuple[str, ...] | None = None

    def on(self, source: str) -> tuple[str, ...]:
        """Return the statements for a source."""
        if source == POSTGRES:
            return self.pg
        return self.maria if source == MARIADB and self.maria is not None else self.my


def _both(name: str, *actions: str) -> Change:
    """Return a change that is the same ALTER TABLE at each source."""
    texts = tuple(f"alter table t {action}" for action in actions)
    return Change(name, texts, texts)


def _each(name: str, pg: str, my: str) -> Change:
    """Return a change whose ALTER TABLE differs between PostgreSQL and MySQL."""
    return Change(
        name,
        (f"alter table t {pg}",) if pg else (),
        (f"alter table t {my}",) if my else (),
    )


CHANGES: tuple[Change, ...] = (
    _both("ADD COLUMN", "add column x int"),
    _both("ADD COLUMN … DEFAULT, a constant", "add column x int not null default 7"),
    _each(
        "ADD COLUMN … DEFAULT, computed for each row",
        "add column x double precision default random()",
        "add column x datetime default current_timestamp",
    ),
    Change(
        "ADD COLUMN of a new type",
        ("create type mood as enum ('sad', 'ok')", "alter table t add column x mood default 'ok'"),
        ("alter table t add column x enum('sad', 'ok') default 'ok'",),
    ),
    _each("ADD COLUMN … AUTO_INCREMENT, SERIAL, IDENTITY", "add column x serial", ""),
    _both("ADD COLUMN … GENERATED", "add column x int generated always as (a * 2) stored"),
    _both("DROP COLUMN", "drop column v"),
    _both("DROP COLUMN and ADD COLUMN, one name", "drop column v, add column v varchar(20)"),
    _both("RENAME COLUMN", "rename column v to w"),
    _both(
        "RENAME COLUMN, two swap their names",
        "rename column a to x",
        "rename column b to a",
        "rename column x to b",
    ),
    _each("a type that holds more", "alter column a type bigint", "modify a bigint"),
    _each("a type that holds less", "alter column v type varchar(9)", "modify v varchar(9)"),
    _each("another type", "alter column a type text", "modify a varchar(20)"),
    _each("ALTER COLUMN … TYPE … USING", "alter column a type text using 'n' || a", ""),
    _each("another character set", "", "convert to character set latin1"),
    _each("another collation", "", "modify v varchar(20) collate utf8mb4_general_ci"),
    _each("SET NOT NULL", "alter column v set not null", "modify v varchar(20) not null"),
    _each("DROP NOT NULL", "alter column n drop not null", "modify n int null"),
    _each("SET DEFAULT", "alter column a set default 3", "alter column a set default 3"),
    Change(
        "a label is added",
        ("alter type kind add value 'c'",),
        ("alter table t modify e enum('a', 'b', 'c')",),
    ),
    Change(
        "a label is renamed",
        ("alter type kind rename value 'a' to 'A'",),
        ("alter table t modify e enum('A', 'b')",),
    ),
    _each("a unique key is added", "add constraint u unique (n)", "add unique key u (n)"),
    _each("a unique key is dropped", "drop constraint t_b_key", "drop index b"),
    _each("another primary key", "drop constraint t_pkey, add primary key (n)",
          "drop primary key, add primary key (n)"),
    _each("the primary key is dropped", "drop constraint t_pkey, replica identity full",
          "drop primary key"),
    Change("REPLICA IDENTITY", ("alter table t replica identity full",), ()),
    Change("CREATE INDEX", ("create index i on t (a)",), ("create index i on t (a)",)),
    Change("a comment", ("comment on table t is 'x'",), ("alter table t comment 'x'",)),
    Change("TRUNCATE", ("truncate table t",), ("truncate table t",)),
    Change(
        "DROP TABLE and CREATE TABLE",
        ("drop table t", "create table t (id int primary key, z text)"),
        ("drop table t", "create table t (id int primary key, z text)"),
    ),
    Change("CREATE OR REPLACE TABLE", (), (), ("create or replace table t (id int primary key)",)),
    Change("DROP TABLE", ("drop table t",), ("drop table t",)),
    Change(
        "a copy takes the table's name (gh-ost, pt-osc)",
        (),
        (
            "create table _t_gho like t",
            "alter table _t_gho add column x int",
            "insert into _t_gho (id, a, b, n, v, e) select id, a, b, n, v, e from t",
            "rename table t to _t_del, _t_gho to t",
            "drop table _t_del",
        ),
    ),
    Change("RENAME TABLE", ("alter table t rename to t2",), ("rename table t to t2",)),
)  # fmt: skip


def _setup(source: str) -> tuple[Statement, ...]:
    if source == POSTGRES:
        made = "create type kind as enum ('a', 'b')", "e kind"
        numbers = f"generate_series(1, {ROWS}) as g(i)"
    else:
        setting = "cte_max_recursion_depth" if source == MYSQL else "max_recursive_iterations"
        made = f"set {setting} = {ROWS}", "e enum('a', 'b')"
        numbers = "g"
    rows = f"select i, i, i, i, 'v', 'a' from {numbers}"
    counted = f"with recursive g(i) as (select 1 union all select i + 1 from g where i < {ROWS}) "
    table = "id int primary key, a int, b int unique, n int not null, v varchar(20)"
    return tuple(
        map(
            Statement,
            (
                made[0],
                f"create table t ({table}, {made[1]})",
                "insert into t " + ("" if source == POSTGRES else counted) + rows,
            ),
        )
    )


class Probe:
    """A statement that runs over and over, with the longest time that it took, in seconds."""

    def __init__(self, run: Callable[[str], Any], sql: str) -> None:
        self._run, self._sql = run, sql
        self._ended = threading.Event()
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            with suppress(*STATEMENT_ERRORS):
                self._run(self._sql)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self._ended.wait(PAUSE_S)

    def end(self) -> float:
        """Stop the probe and return its longest time."""
        self._ended.set()
        self._thread.join()
        return self.longest_s


@dataclass(slots=True)
class Measured:
    """Result of a change.

    Attributes:
        writers_s: Longest statement of the session that writes.
        readers_s: Longest statement of the session that reads.
    """

    writers_s: float = 0.0
    readers_s: float = 0.0
    is_read_again: bool = False
    outcome: Outcome | None = None

    @property
    def text(self) -> str:
        """Cell of the table for this result."""
        one = self.outcome
        assert one is not None
        if one.end == EQUAL:
            what = "read again" if self.is_read_again else "followed"
            return f"{what}, {self.writers_s:.1f} / {self.readers_s:.1f}"
        return f"refused: {one.code}" if one.end != DIFFERENT else "DIFFERENT"


@dataclass(slots=True)
class _Seen:
    by_schema: dict[str, Measured] = field(default_factory=dict)


class OneByOne(Arena):
    """An arena that runs its histories one after the other and watches each."""

    seen: _Seen
    _has_ended = False

    def _play(self) -> None:
        self.seen = _Seen()
        self._settle()
        self.has_begun = True
        for one in self.histories:
            measured = self.seen.by_schema[one.schema] = Measured()
            with self._probe(one.schema, one.target_schema, measured):
                one.run_round(self._sides[one.number])
                one.is_over = True
                one.tables |= set(self._tables(one))
                try:
                    self._settle()
                except ArenaStopped as stopped:
                    one.stopped = stopped.error
        with suppress(ArenaStopped):
            self._settle()
            self._until(lambda: not self._wrong(), "all are equal")
        self._has_ended = True
        self._note_reloads()

    def _tend(self) -> bool:
        return False if self._has_ended else super()._tend()

    @contextmanager
    def _probe(self, schema: str, copied: str, measured: Measured) -> Iterator[None]:
        sides = [
            self._open(self._stack, kind, url)
            for kind, url in zip(self._pair, (self._source_url, self._target_url), strict=True)
        ]
        writer = Probe(sides[0].run, f"update {schema}.t set n = -n where id = 1")
        reader = Probe(sides[1].run, f"select count(*) from {copied}.t")
        time.sleep(BEFORE_S)
        try:
            yield
        finally:
            measured.writers_s, measured.readers_s = writer.end(), reader.end()

    def _note_reloads(self) -> None:
        for segment in open_chain(list_segments(self._config.layout.log)):
            with segment:
                for marker in segment.markers():
                    if marker.kind is MarkerKind.RELOAD:
                        for schema, _ in marker.tables:
                            if schema in self.seen.by_schema:
                                self.seen.by_schema[schema].is_read_again = True


def measure(servers: Servers, folder: Path, source: str, word: str) -> dict[str, str]:
    """Return the outcomes, by name, of a source's changes that have a word in their names."""
    changes = [one for one in CHANGES if one.on(source) and word in one.name]
    scripts = [
        Script(source, _setup(source), tuple(Step((Statement(sql),)) for sql in one.on(source)))
        for one in changes
    ]
    arena = OneByOne(servers, folder, (source, source), scripts, 0, begins_at_once=False)
    outcomes = arena.run()
    result = dict.fromkeys((one.name for one in CHANGES), WITHOUT)
    for change, running, outcome in zip(changes, arena.histories, outcomes, strict=True):
        measured = arena.seen.by_schema[running.schema]
        measured.outcome = outcome
        result[change.name] = measured.text
    return result


def table_of(cells: Sequence[dict[str, str]]) -> str:
    """Return the table as the page shows it."""
    head = ["statement", *(NAMES[source] for source in SOURCES)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for change in CHANGES:
        row = [change.name, *(of.get(change.name, "?") for of in cells)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=SOURCES, action="append", help="all, if not given")
    parser.add_argument("--only", default="", metavar="WORD", help="changes with this word")
    flags = parser.parse_args()
    cells = []
    with Servers() as servers, tempfile.TemporaryDirectory(prefix="penstock-ddl-") as folder:
        for source in SOURCES:
            is_wanted = source in (flags.source or SOURCES)
            cells.append(measure(servers, Path(folder), source, flags.only) if is_wanted else {})
    sys.stdout.write(table_of(cells) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
