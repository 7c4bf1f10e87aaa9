"""Tables with every type of a source, and `penstock run` of them to another engine.

Rows come by the bulk load and as changes, and are compared by verify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.pipelines.end_to_end import LIVELY
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers import postgres_types
from harness.servers.engines import Place
from harness.servers.oracle_place import OraclePlace
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.engines.postgres.connect import literal
from sim_oracle.session import TEST_USER

WITHIN_S = 600.0
COLUMNS_MAX = 12  # of a table, because MySQL's rows have a limit
LATER = 1000  # keys of the rows that come as changes
CHOICES = {
    "nanoseconds": "round",
    "empty values": "null",
    "offsets": "utc",
    "nul characters": "remove",
    "digits": "text",
    "not a number": "null",
    "dates out of range": "null",
    "zero dates": "null",
    "subnormal numbers": "zero",
    "loose json": "text",
    "*": "error",
}
Cases = Mapping[str, Sequence[str]]


@dataclass
class Table:
    """A table with a column of each of some types.

    Attributes:
        types: Types of the columns c0, c1, ..
        rows: Values of the rows, as SQL.
    """

    name: str
    types: list[str]
    rows: list[list[str]]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [f"c{number}" for number in range(len(self.types))]

    def create(self) -> str:
        """Return the statement that creates it."""
        listed = ", ".join(f"{n} {t} null" for n, t in zip(self.columns, self.types, strict=True))
        return f"create table {self.name} (id int not null primary key, {listed})"

    def insert(self, first: int) -> list[str]:
        """Return the statements that insert the rows. first: key of the first one."""
        listed = ", ".join(self.columns)
        return [
            f"insert into {self.name} (id, {listed}) values ({first + number}, {', '.join(row)})"
            for number, row in enumerate(self.rows)
        ]

    def update(self) -> list[str]:
        """Return the statements that give each row the values of the next one."""
        found = []
        for number, row in enumerate([*self.rows[1:], self.rows[0]]):
            pairs = ", ".join(f"{n} = {v}" for n, v in zip(self.columns, row, strict=True))
            found.append(f"update {self.name} set {pairs} where id = {LATER + number}")
        return found


def tables_of(cases: Cases) -> list[Table]:
    """Return tables with all values of each type, and NULL."""
    found = []
    names = list(cases)
    for number, first in enumerate(range(0, len(names), COLUMNS_MAX)):
        some = names[first : first + COLUMNS_MAX]
        count = max(len(cases[one]) for one in some) + 1
        rows = [
            [cases[one][place] if place < len(cases[one]) else "null" for one in some]
            for place in range(count)
        ]
        found.append(Table(f"every{number}", some, rows))
    return found


def postgres_cases(version: int) -> Cases:
    """Return the types of PostgreSQL."""
    cases = postgres_types.values_for(version, set(), with_xml=False)
    return {
        name: [f"{literal(value)}::{name}" for value in values] for name, values in cases.items()
    }


def url_of(place: Place) -> str:
    """Return a database's URL; the user of Oracle's model may send any text, as types have many."""
    return place.url_of(TEST_USER.lower()) if isinstance(place, OraclePlace) else place.url


class Pair:
    """A source with all types, and a pipeline of it."""

    def __init__(
        self, folder: Path, source: Place, target_url: str, namespace: str, tables: list[Table]
    ) -> None:
        self.source, self.tables = source, tables
        for table in tables:
            self.run(table.create())
            if isinstance(source, SQLServerPlace):
                source.capture(table.name)
            elif isinstance(source, OraclePlace):
                self.run(f"alter table {table.name} add supplemental log data (all) columns")
            self.run(*table.insert(0))
        is_lake = target_url.startswith("delta")
        sections: dict[str, dict[str, Any]] = {
            "changeExtractor": {**LIVELY, "exitWhenIdle": True},
            "spark": {"master": "local[2]"},
            "target.types": dict(CHOICES),
        }
        if not is_lake:
            sections["target.map"] = {source.namespace: namespace}
        self.path = write_pipeline(
            folder,
            url_of(source),
            target_url,
            tables=[f"{source.namespace}.*"],
            sections=sections,
        )

    def run(self, *statements: str) -> None:
        """Run statements at the source, with its own types."""
        for statement in statements:
            if isinstance(self.source, SQLServerPlace | OraclePlace):
                self.source.run_unchanged(statement)
            else:
                self.source.run(statement)
        if isinstance(self.source, OraclePlace):
            self.source.run_unchanged("commit")

    def command(self, name: str) -> dict[str, Any]:
        """Run a command that must succeed, and return its result."""
        done = penstock(name, self.path, "--json", timeout_s=WITHIN_S)
        assert done.code == 0, (done.out[-3000:], done.err[-3000:])
        found: dict[str, Any] = done.result
        return found

    def check(self) -> None:
        """Copy rows, then changes; compare both times."""
        for changes in (False, True):
            if changes:
                for table in self.tables:
                    self.run(*table.insert(LATER), *table.update())
                    self.run(f"delete from {table.name} where id = 0")
            self.command("run")
            found = self.command("verify")
            assert found["equal"], found
            rows = sum(len(table.rows) * (1 + changes) - changes for table in self.tables)
            assert sum(one["source_rows"] for one in found["tables"]) == rows
