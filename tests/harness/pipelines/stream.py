"""Reading a stream in tests: a database with publication and slot, and runs as plain changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from penstock.codec.postgres.pgoutput_messages import RelationMessage
from penstock.codec.postgres.pgtypes import neutral_type
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import create_slot
from penstock.engines.postgres.source.stream import PostgresSource, StreamOptions
from penstock.model import Column, FlushPoint, Identity, Marker, Relation, Run

SLOT = "penstock_test"
PUBLICATION = "Penstock Test"
ABSENT = "<absent>"


class PlainShapes:
    """Relations from the wire, without queries of the catalogue; counts their versions."""

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        self.ignored = ignored
        self.known: dict[int, Relation] = {}

    def resolve(self, message: RelationMessage) -> Relation | None:
        """Return the known version if only widened columns differ, otherwise the next one."""
        if message.name in self.ignored:
            return None
        columns = tuple(
            Column(
                name=column.name,
                source_type=str(column.type_oid),
                neutral=neutral_type(column.type_oid, column.typmod),
                type_oid=column.type_oid,
                typmod=column.typmod,
            )
            for column in message.columns
        )
        keys = tuple(i for i, column in enumerate(message.columns) if column.flags & 1)
        identity = Identity(message.identity)
        old = self.known.get(message.source_id)
        relation = Relation(
            schema=message.schema,
            name=message.name,
            columns=columns,
            key=() if identity is Identity.FULL else keys,
            before=keys if identity is not Identity.NOTHING else (),
            identity=identity,
            source_id=message.source_id,
            version=old.version + 1 if old else 1,
        )
        if old is not None and (
            relation.same_shape(old) or [c.name for c in old.columns] == [c.name for c in columns]
        ):
            return old
        self.known[message.source_id] = relation
        return relation

    def widen(self, relation: Relation, column: int) -> Relation:
        """Return the next version, which becomes the known one."""
        wider = relation.with_text_column(column)
        self.known[relation.source_id] = wider
        return wider


@dataclass(kw_only=True)
class Change:
    """One change in the form that tests check."""

    gsn: int
    trx: int
    op: str
    table: str
    after: dict[str, Any] | None
    before: dict[str, Any] | None


def changes_of(run: Run) -> list[Change]:
    """Return all rows of a run in order, with ABSENT if a value was not sent."""
    found = []
    for rows in run.rows:
        for row in rows.batch.to_pylist():
            after = row["after"]
            if after is not None and row["absent"] is not None:
                bits = row["absent"]
                for index, column in enumerate(rows.relation.columns):
                    if bits[index // 8] >> (index % 8) & 1:
                        after[column.name] = ABSENT
            found.append(
                Change(
                    gsn=row["gsn"],
                    trx=row["trx"],
                    op=chr(row["op"]),
                    table=rows.relation.name,
                    after=after,
                    before=row["before"],
                )
            )
    return sorted(found, key=lambda change: change.gsn)


@dataclass(kw_only=True)
class Collected:
    """Runs of a stream so far."""

    runs: list[Run] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        """All rows in order."""
        return [change for run in self.runs for change in changes_of(run)]

    @property
    def markers(self) -> list[Marker]:
        """All markers in order."""
        return [marker for run in self.runs for marker in run.markers]

    @property
    def end(self) -> FlushPoint:
        """The last point at which whole transactions end."""
        return next(run.end for run in reversed(self.runs) if run.end is not None)


def collect(
    source: PostgresSource,
    enough: Callable[[Collected], bool],
    *,
    limit_s: float = 30.0,
    acknowledge: bool = False,
) -> Collected:
    """Take runs until `enough` returns true; fails if that does not happen in time."""
    collected = Collected()
    deadline = time.monotonic() + limit_s
    while not enough(collected):
        run = source.next_run(0.1)
        if run is not None:
            collected.runs.append(run)
            if acknowledge and run.end is not None:
                source.acknowledge(run.end.position)
        assert time.monotonic() < deadline, f"only {len(collected.changes)} changes in time"
    return collected


def rows(count: int) -> Callable[[Collected], bool]:
    """Return a function that tells whether so many rows came, in whole transactions."""

    def enough(collected: Collected) -> bool:
        total = sum(r.batch.num_rows for run in collected.runs for r in run.rows)
        return total >= count and collected.runs[-1].end is not None

    return enough


def prepare(url: str, ddl: str, *, slot: str = SLOT, publication: str = PUBLICATION) -> None:
    """Run the DDL, publish all tables of schema public, create the slot."""
    with connect(url, application_name="test") as connection:
        run_sql(connection, ddl)
        connection.execute(
            f'create publication "{publication}" for all tables'
            " with (publish_via_partition_root = true)"
        )
    with open_replication(url, application_name="test") as replication:
        create_slot(replication, url, slot, snapshot=False)


def run_sql(connection: psycopg.Connection[Any], statements: str) -> None:
    """Run several statements; in autocommit each is its own transaction."""
    for statement in statements.split(";;"):
        if statement.strip():
            connection.execute(statement)


@contextmanager
def streaming(
    url: str,
    directory: Path,
    *,
    start: FlushPoint | None = None,
    shapes: Any = None,
    **options: Any,
) -> Iterator[PostgresSource]:
    """Open a stream of the test's slot."""
    with PostgresSource(
        url,
        options=StreamOptions(slot=SLOT, publication=PUBLICATION, **options),
        start=start or FlushPoint(position=0),
        shapes=shapes or PlainShapes(),
        spill_directory=directory / "spill",
    ) as source:
        yield source
