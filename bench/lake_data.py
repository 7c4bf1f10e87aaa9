"""Rows, change logs and lakes of `bench.bench_lake`: no server is needed to make them.

A table has 10 columns, its key a 64-bit number. A batch is 70 % updates of random rows, 20 % new
rows and 10 % deletions of rows that no batch changes otherwise. penstock gets it as a segment of a
change log; MERGE gets the same rows as one Parquet file, already folded to one row per key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.bench_lake_lookup import WIDE
from harness.lake.applying import create_table
from harness.lake.iceberg import Place, hadoop_place
from harness.lake.spark import lake_session
from penstock.codec.columns import batch_schema, transactions_batch
from penstock.codec.types import map_lake_column
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.lake.format import Catalogue, Commit, LakeFormat, Mark, NewFile
from penstock.engines.lake.parquet import DataWriter
from penstock.load.session import Session
from penstock.log import Writer, WriterOptions
from penstock.model import Column, FlushPoint, Identity, Op, Relation, Rows, Run, TableName

FORMATS = ("delta", "iceberg")
LOG_ID = "bench-log"
RUN_ROWS = 50_000
TRANSACTION_ROWS = 50
BASE_US = 1_767_225_600_000_000
NAMES = tuple(name for name, _, _ in WIDE)
OPERATION = "op"
WORDS = np.array(["paid", "open", "cancelled", "shipped", "returned", "new customer", "gift"])


def relation(name: str, schema: str = "public") -> Relation:
    """Return the shape of a table."""
    columns = tuple(Column(name=n, source_type=s, neutral=k) for n, s, k in WIDE)
    return Relation(
        schema=schema, name=name, columns=columns, key=(0,), before=(0,), identity=Identity.DEFAULT
    )


def make_rows(keys: np.ndarray, seed: int) -> list[pa.Array]:
    """Return the columns of rows with these keys."""
    rng, count = np.random.default_rng(seed), len(keys)
    whole = pa.array(rng.integers(0, 10**7, count)).cast(pa.decimal128(19, 0))
    price = pa.Array.from_buffers(pa.decimal128(12, 2), count, whole.buffers())
    word = WORDS[rng.integers(0, len(WORDS), count)]
    note = np.char.add(np.char.add(word, " "), rng.integers(0, 10**9, count).astype("U10"))
    return [
        pa.array(keys, pa.int64()),
        pa.array(rng.integers(0, 10**6, count), pa.int32()),
        price,
        pa.array(word.tolist(), pa.string()),
        pa.array(note.tolist(), pa.string()),
        pa.array(BASE_US + rng.integers(0, 10**13, count)).view(pa.timestamp("us", "UTC")),
        pa.array(rng.integers(19_000, 20_000, count), pa.int32()).view(pa.date32()),
        pa.array(rng.random(count) < 0.3),
        pa.array(rng.random(count)),
        pa.array(rng.integers(0, 1000, count), mask=rng.random(count) < 0.2),
    ]


@dataclass
class Keys:
    """Keys of one table: those that a batch may update, and those that it may delete."""

    size: int
    seed: int = 1
    following: int = 0
    doomed: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Choose the rows that will be deleted."""
        self._rng = np.random.default_rng(self.seed)
        order = self._rng.permutation(self.size)
        self.stable = order[: max(1, self.size * 8 // 10)]
        self.doomed.extend(order[len(self.stable) :].tolist())
        self.following = self.size

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys and operations of a batch, in random order."""
        new = count * 2 // 10
        gone = min(count // 10, len(self.doomed))
        updated = min(count - new - gone, len(self.stable))
        inserted = np.arange(self.following, self.following + new)
        self.following += new
        deleted = np.array([self.doomed.popleft() for _ in range(gone)], np.int64)
        self.doomed.extend(inserted.tolist())
        keys = np.concatenate(
            [self._rng.choice(self.stable, updated, replace=False), inserted, deleted]
        )
        ops = np.repeat(np.array([Op.UPDATE, Op.INSERT, Op.DELETE], np.uint8), [updated, new, gone])
        order = self._rng.permutation(len(keys))
        return keys[order], ops[order]


@dataclass(frozen=True)
class Batch:
    """Changes of one table: one row per key."""

    name: str
    columns: list[pa.Array]
    ops: np.ndarray

    @property
    def count(self) -> int:
        """Return the number of changes."""
        return len(self.ops)

    def write_parquet(self, path: Path) -> None:
        """Write the folded batch as MERGE reads it."""
        letters = pa.array(np.where(self.ops == Op.DELETE, "D", "U").tolist())
        table = pa.table([*self.columns, letters], names=[*NAMES, OPERATION])
        pq.write_table(table.sort_by("id"), path)


class Log:
    """Change log: each batch is one segment."""

    def __init__(self, folder: Path) -> None:
        """Create it."""
        self.folder = folder
        options = WriterOptions(operation_count_max=10**9, segment_size_bytes_max=2**40)
        self._writer = Writer.open(
            folder, log_id=LOG_ID, source={"engine": "postgresql"}, options=options
        )
        self.gsn = self._trx = 0
        self._position = 1000

    def write(self, batches: Sequence[Batch], *, closes: bool = True) -> None:
        """Write changes of tables in transactions. closes: the segment ends with them."""
        for batch in batches:
            for first in range(0, batch.count, RUN_ROWS):
                self._write_run(batch, first, min(RUN_ROWS, batch.count - first))
        if closes:
            self._writer.flush()
            self._writer.rotate()

    def _write_run(self, batch: Batch, first: int, count: int) -> None:
        shape = relation(batch.name)
        schema = batch_schema(shape)
        columns = [one.slice(first, count) for one in batch.columns]
        ops = batch.ops[first : first + count]
        is_gone = pa.array(ops == Op.DELETE)
        gsn = np.arange(self.gsn + 1, self.gsn + count + 1)
        trx = self._trx + 1 + np.arange(count) // TRANSACTION_ROWS
        after = pa.StructArray.from_arrays(
            columns, fields=list(schema.field("after").type), mask=is_gone
        )
        is_kept = pa.array(ops != Op.DELETE)
        before = pa.StructArray.from_arrays(
            columns[:1], fields=list(schema.field("before").type), mask=is_kept
        )
        arrays = [
            pa.array(gsn),
            pa.array(trx),
            pa.array(ops),
            pa.nulls(count, pa.binary()),
            after,
            before,
        ]
        lines = []
        for number in range(int(trx[0]), int(trx[-1]) + 1):
            self._position += 100
            lines.append((self._position, self._position + 50, BASE_US + number, number))
        self.gsn, self._trx = int(gsn[-1]), int(trx[-1])
        self._writer.write(
            Run(
                rows=(
                    Rows(relation=shape, batch=pa.RecordBatch.from_arrays(arrays, schema=schema)),
                ),
                transactions=transactions_batch(lines),
                end=FlushPoint(
                    position=lines[-1][1],
                    gsn=self.gsn,
                    trx=self._trx,
                    commit_time_us=lines[-1][2],
                ),
            )
        )


@dataclass(frozen=True)
class Lake:
    """Lake of one format.

    Attributes:
        name: `delta` or `iceberg`.
        folder: Of all of its files.
    """

    name: str
    format: LakeFormat
    url: str
    folder: Path
    place: Place | None = None

    def open(self, session: Session) -> Catalogue:
        """Return the catalogue, as another process opens it."""
        return self.format.open(self.url, session, {})

    def sql_name(self, name: TableName) -> str:
        """Return a table's name in a statement of Spark."""
        if self.place is None:
            return f"delta.`{self.folder}/{name.schema}/{name.name}`"
        return f"{self.place.name}.{self.place.namespace}.{name.schema}.{name.name}"


def make_lake(kind: str, folder: Path, session: Session) -> Lake:
    """Return an empty lake. kind: `delta` or `iceberg`."""
    if kind == "delta":
        return Lake("delta", DELTA, f"delta+file://{folder}", folder)
    place = hadoop_place(folder)
    place.register(session)
    return Lake("iceberg", ICEBERG, place.url(3), folder, place)


def fill_table(catalogue: Catalogue, name: TableName, rows: int, files: int) -> None:
    """Create a table as the bulk load does, with so many rows in so many files, in key order."""
    shape = relation(name.name, name.schema)
    types = {one.name: map_lake_column(one, "postgresql").type for one in shape.columns}
    create_table(catalogue, shape, types=types)
    table = catalogue.find(name)
    assert table is not None
    snapshot = table.snapshot(refresh=True)
    written: list[NewFile] = []
    for number, keys in enumerate(np.array_split(np.arange(rows), files)):
        with DataWriter(
            f"{table.data_folder}/base-{number}.parquet", snapshot.columns, {}
        ) as writer:
            writer.write(make_rows(keys, number))
        assert writer.new_file is not None
        written.append(writer.new_file)
    table.commit(
        Commit(
            base_version=snapshot.version,
            adds=tuple(written),
            mark=Mark(log_id="copy", gsn=1),
            operation="copy",
        )
    )


@contextmanager
def open_session(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Session]:
    """Start a session with both formats, as good for MERGE as is known."""
    conf = {
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        **(more or {}),
    }
    with lake_session(folder, conf, master="local[2]") as session:
        yield session
