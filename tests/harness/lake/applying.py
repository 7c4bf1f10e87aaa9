"""Batches applied to a lake without Spark: a log written by hand, jobs run in this process.

`LakeRun` is one loader; a test drops it as a kill does, and makes another one on the same lake.
`Shop` is a source with tables that change, of which it knows the rows at each place of its log.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.lake.format import Catalogue, LakeColumn, LakeFormat
from penstock.engines.lake.known_tables import encode_record
from penstock.engines.lake.partitions import parse_term, resolve_terms
from penstock.engines.lake.target import LakeEngine
from penstock.engines.lake.upkeep import Limits
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.sql_target import StagedBatch, open_stager
from penstock.log.layout import next_segments
from penstock.model import Identity, MarkerKind, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import BatchOptions
from penstock.ports.target import Applied, TableRecord, TableSync
from penstock.sql.shape_changes import ids_of, key_of, shape_of

LOG_ID = "test-log"
ENGINE = "postgresql"
Row = tuple[Any, ...]


class InlineJobs:
    """Session whose jobs run in this process; `Session` and `Jobs` for tests."""

    slots_are_fixed = True
    alive = True
    parallelism = 2
    jvm: Any = None
    spark: Any = None

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Run all tasks; return their results."""
        self.jobs.append(description)
        return [result for tasks in partitions for result in work(iter(tasks))]

    def with_jobs(self, jobs: str) -> InlineJobs:
        """Return the same session."""
        del jobs
        return self

    def tell(self, of: str, tasks: Sequence[Any]) -> None:
        """Do nothing: there are no pages."""


class LakeRun:
    """One loader on a lake, without a thread: it stages and applies when a test says so."""

    def __init__(
        self,
        table_format: LakeFormat,
        url: str,
        log: Path,
        *,
        jobs: Any = None,
        policies: Policies = EVOLVE_ALL,
        starts: Mapping[TableName, int] | None = None,
        log_id: str = LOG_ID,
        left_out: frozenset[TableName] = frozenset(),
        settled: Mapping[TableName, int] | None = None,
        limits: Limits | None = None,
        threads_max: int = 2,
        choices: Choices = NO_CHOICES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Connect, and bind the lake to the log.

        limits: of upkeep; None: small ones. threads_max, choices: see `BatchOptions`.
        clock: of the loader.
        """
        self._choices = choices
        self._threads_max = threads_max
        self._settled = settled or {}
        self._left_out = left_out
        self.jobs: Any = jobs or InlineJobs()
        self._url, self._log, self._log_id = url, log, log_id
        self._policies, self._starts = policies, starts or {}
        self.engine = LakeEngine(table_format, limits or Limits(count=3, dead_rows_min=3))
        self.target = self.engine.open_target(
            url, {}, policies=policies, choices=choices, clock=clock
        )
        self.target.use(lambda: self.jobs)
        self.applied = self.target.bind(log_id)
        self._stager = self._open_stager()

    def _open_stager(self, only: TableName | None = None) -> Any:
        options = BatchOptions(
            url=self._url,
            log_id=self._log_id,
            namespaces={},
            threads_max=self._threads_max,
            choices=self._choices,
            extension="ckt",
            starts=self._starts,
            settled=self._settled,
            policies=self._policies,
            only=only,
            left_out=frozenset() if only else self._left_out,
            ahead=self.target.read_ahead(),
        )
        return open_stager(self.engine, options)

    def stage(
        self,
        *,
        applied: Applied | None = None,
        before: int = POSITION_MAX,
        place: int = 0,
        files_max: int = 100,
    ) -> StagedBatch | None:
        """Stage the closed segments after a place; return None if there are none."""
        applied = self.applied if applied is None else applied
        files = next_segments(self._log, after=applied.segment, count_max=files_max)
        if not files:
            return None
        staged: StagedBatch = self._stager.stage(
            files, self.jobs, applied=applied, before=before, place=place
        )
        return staged

    def apply(self, staged: StagedBatch) -> Mapping[str, float]:
        """Apply a staged batch."""
        seconds = self.target.apply(staged)
        self.applied = staged.after
        return seconds

    def run(self, **how: Any) -> int:
        """Apply batch after batch until nothing is left; return their number."""
        count = 0
        while (staged := self.stage(place=count % 2, **how)) is not None:
            self.apply(staged)
            count += 1
        return count

    def catch_up(self, row: TableSync) -> TableSync:
        """Apply the segments that a table lacks, of this table alone; return its row."""
        stager = self._open_stager(row.table)
        while files := next_segments(self._log, after=row.applied.segment, count_max=100):
            staged = stager.stage(files, self.jobs, applied=row.applied, before=POSITION_MAX)
            self.target.apply(staged, table_sync=row, at=self.applied)
            row = replace(row, applied=staged.after)
        stager.close()
        return row

    def fail(self) -> None:
        """Disconnect as the loader does after an error."""
        self._stager.close()
        self.target.close()

    close = fail

    def kill(self) -> None:
        """Leave everything as a killed process does; only our own threads end."""
        self.target.close()


def record_of(shape: Relation, *, made: bool) -> str:
    """Return the record that the bulk load gives a relation's table. made: it created the table."""
    name = TableName(shape.schema, shape.name)
    record = TableRecord(
        source=name,
        target=name,
        merge_name=str(name),
        made=made,
        columns=shape_of(shape),
        ids=ids_of(shape),
        source_id=shape.source_id,
        key=key_of(shape),
    )
    return encode_record(record)


def create_table(
    catalogue: Catalogue,
    shape: Relation,
    *,
    types: Mapping[str, str] | None = None,
    partition: Sequence[str] = (),
    is_delta: bool = False,
) -> None:
    """Create a relation's table in a lake as the bulk load does, without rows.

    types: the lake's types that differ from the neutral ones. partition: terms of [target].
    """
    name = TableName(shape.schema, shape.name)
    columns = [
        LakeColumn(name=one.name, type=(types or {}).get(one.name, one.neutral))
        for one in shape.columns
    ]
    terms = [parse_term(text) for text in partition]
    catalogue.create(
        name,
        columns,
        key=key_of(shape),
        record=record_of(shape, made=True),
        partition=resolve_terms(terms, columns, name, is_delta=is_delta),
    )


@dataclass
class Table:
    """Table of the source.

    Attributes:
        rows: Rows by key; of a table without a key their numbers by row.
    """

    shape: Relation
    rows: dict[Any, Row] = field(default_factory=dict)
    bag: Counter[Row] = field(default_factory=Counter)

    @property
    def name(self) -> TableName:
        return TableName(self.shape.schema, self.shape.name)

    @property
    def content(self) -> list[Row]:
        """All rows, in order."""
        rows = list(self.rows.values()) if self.shape.key else list(self.bag.elements())
        return sorted(rows, key=repr)


def shop_tables() -> list[Table]:
    """Return tables with different keys, and one without a key."""
    rest = [("a", "integer", "int32"), ("b", "text", "string"), ("big", "text", "string")]
    return [
        Table(relation(("id", "bigint", "int64"), *rest, name="orders")),
        Table(relation(("id", "text", "string"), *rest, name="people")),
        Table(
            relation(
                ("x", "integer", "int32"), ("y", "text", "string"), *rest, key=(0, 1), name="pairs"
            )
        ),
        Table(
            relation(
                ("a", "integer", "int32"),
                ("b", "text", "string"),
                key=(),
                identity=Identity.FULL,
                name="events",
            )
        ),
    ]


class Shop:
    """Source whose tables change at random; it writes its log.

    Attributes:
        states: By the position of a transaction's end the content of each table.
    """

    def __init__(self, log: Path, seed: int, *, log_maker: LogMaker | None = None) -> None:
        """Begin with empty tables."""
        self.random = random.Random(seed)
        self.tables = shop_tables()
        self.log = log_maker or LogMaker(log)
        self.states: dict[int, dict[TableName, list[Row]]] = {}
        self.note()

    def note(self) -> None:
        """Remember the tables' rows at the log's present end."""
        self.states[self.log.position + 50] = {table.name: table.content for table in self.tables}

    def transact(self, changes_max: int = 8) -> None:
        """Commit one transaction of random changes."""
        changes: list[Any] = []
        for _ in range(self.random.randint(1, changes_max)):
            table = self.random.choice(self.tables)
            if self.random.random() < 0.01:
                table.rows.clear()
                table.bag.clear()
                changes.append((MarkerKind.TRUNCATE, [table.name]))
                # Rows of a transaction that follow its marker are in a transaction of their own.
                break
            change = self._change(table) if table.shape.key else self._change_in_bag(table)
            changes.append((table.shape, change))
        self.log.transaction(*changes)
        self.note()

    def write(self, transactions: int, *, per_segment: int = 5) -> None:
        """Commit transactions, in closed segments."""
        for number in range(1, transactions + 1):
            self.transact()
            if number % per_segment == 0 or number == transactions:
                self.log.close_segment()

    def _change(self, table: Table) -> Change:
        choose, rows = self.random, table.rows
        key = self._key(table.shape)
        if key not in rows:
            rows[key] = (*key, *self._values(table.shape))
            return Change(op="I", gsn=0, after=rows[key])
        old = rows[key]
        action = choose.choice("UUUUMD")
        if action == "D":
            del rows[key]
            return Change(op="D", gsn=0, before=old)
        new = (*key, *self._values(table.shape))
        width = len(table.shape.columns)
        absent = frozenset(choose.sample(range(width - 1, width), choose.randint(0, 1)))
        new = tuple(old[i] if i in absent else value for i, value in enumerate(new))
        if action == "M" and (other := self._key(table.shape)) not in rows:
            del rows[key]
            rows[other] = (*other, *new[len(key) :])
            return Change(op="U", gsn=0, after=rows[other], before=old, absent=absent)
        rows[key] = new
        return Change(op="U", gsn=0, after=new, absent=absent)

    def _change_in_bag(self, table: Table) -> Change:
        choose, bag = self.random, table.bag
        new = self._values(table.shape)
        present = sorted(bag.elements(), key=repr)
        if not present or choose.random() < 0.5:
            bag[new] += 1
            return Change(op="I", gsn=0, after=new)
        old = choose.choice(present)
        bag[old] -= 1
        if choose.random() < 0.5:
            return Change(op="D", gsn=0, before=old)
        bag[new] += 1
        return Change(op="U", gsn=0, after=new, before=old)

    def _key(self, shape: Relation) -> Row:
        number = self.random.randint(0, 30)
        kinds = [shape.columns[index].neutral for index in shape.key]
        return tuple(
            number % 7 if k == "int32" else f"k{number}" if k == "string" else number for k in kinds
        )

    def _values(self, shape: Relation) -> Row:
        rest = [one for index, one in enumerate(shape.columns) if index not in shape.key]
        return tuple(self._value(one.neutral) for one in rest)

    def _value(self, neutral: str) -> Any:
        if self.random.random() < 0.1:
            return None
        number = self.random.randint(0, 3)
        return number if neutral.startswith("int") else f"text {number}"


def content_of(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return rows of a lake as `Table.content` has them."""
    return sorted((tuple(row.values()) for row in rows), key=repr)


ReadRows = Callable[[TableName, int | None], Sequence[Mapping[str, Any]]]
