"""Lookup of keys in a lake's table, in one process: the share of a batch that grows with the table.

A table of 1,000,000 rows in 4 files, with a key of 64 bits: in the order of the key, and shuffled;
and with a key of text (UUIDs). Batches of random keys are deleted, of which the deletions are
written in each form, so that later batches join them with existing ones. The staging of whole
updates is measured beside it: rows of 10 columns that become a file and a side file of keys.

Estimate: reading and decompressing 8 MB of keys costs 15 ms; a look at each of 1,000,000 numbers in
a hash table 15 to 60 ms, which grows with the keys once they leave the cache; text costs five
times as much. Writing positions is nothing beside it. So 0.05 CPU seconds for 100 keys, 0.15 for
100,000; in the order of the key, a few milliseconds for 100. A worker that has the keys of an
earlier batch in memory saves the reading.
Limit: reading the key's column with pyarrow, without a look at it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import describe_machine
from penstock.base.fold import FoldedRows, fold
from penstock.codec.columns import batch_schema
from penstock.codec.types import map_lake_column
from penstock.engines.lake import parquet
from penstock.engines.lake.format import (
    DeleteForm,
    LakeColumn,
    LakeRows,
    LiveFile,
    LookupTask,
    WriterSpec,
)
from penstock.engines.lake.lookup import look_up
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.side_files import SideFile
from penstock.engines.lake.writer import LakeWriter, key_field
from penstock.model import Column, Identity, Op, Relation, TableName

FILES = 4
KEY_COUNTS = (100, 5_000, 100_000)
NAME = TableName("public", "w")
KINDS = {
    "clustered": ("bigint", "int64"),
    "shuffled": ("bigint", "int64"),
    "text": ("uuid", "uuid"),
}


class Clock:
    """CPU and wall seconds of a block, of this process."""

    cpu_s = wall_s = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the seconds of the block."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall


def key_values(kind: str, numbers: np.ndarray) -> pa.Array:
    """Return the keys with these numbers, in the lake's type."""
    if kind != "text":
        return pa.array(numbers)
    return pa.array([str(uuid.uuid5(uuid.NAMESPACE_OID, str(n))) for n in numbers.tolist()])


def make_table(folder: Path, kind: str, rows: int) -> tuple[LakeColumn, list[LiveFile]]:
    """Write a table of keys alone."""
    column = LakeColumn(name="id", type="string" if kind == "text" else "int64")
    numbers = np.arange(rows)
    if kind == "shuffled":
        numbers = np.random.default_rng(1).permutation(numbers)
    files = []
    for number, part in enumerate(np.array_split(numbers, FILES)):
        writer = DataWriter(f"{folder}/{number}.parquet", [column], {})
        with writer:
            writer.write([key_values(kind, part)])
        new = writer.new_file
        assert new is not None
        files.append(
            LiveFile(
                name=new.location,
                location=new.location,
                size_bytes=new.size_bytes,
                row_count=new.row_count,
            )
        )
    return column, files


def relation_of(kind: str) -> Relation:
    """Return a relation of the key alone."""
    source_type, neutral = KINDS[kind]
    column = Column(name="id", source_type=source_type, neutral=neutral)
    return Relation(schema="public", name="w", columns=(column,), key=(0,), before=(0,))


def bench_lookup(kind: str, rows: int, rounds: int) -> None:
    """Measure batches of each size on one table."""
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        column, files = make_table(folder, kind, rows)
        limit = Clock()
        with limit.measure():
            for file in files:
                pq.read_table(file.location, use_threads=False)
        show(what=f"lookup {kind}", limit="read the key's column", cpu_s=limit.cpu_s)
        for count, form, is_cached in itertools.product(KEY_COUNTS, DeleteForm, (False, True)):
            best = Clock()
            best.cpu_s = best.wall_s = 1e9
            for _ in range(rounds):
                numbers = rng.choice(rows, min(count, rows), replace=False)
                side = SideFile(f"{folder}/{uuid.uuid4()}.keys", {})
                keys = key_values(kind, numbers)
                side.write(pa.RecordBatch.from_arrays([keys], names=[key_field(0)]))
                side.close()
                task = LookupTask(
                    table=NAME,
                    key=(column,),
                    columns=(column,),
                    relation=relation_of(kind),
                    files=tuple(files),
                    staged=(LakeRows(in_table=count, keys=side.location, key_count=count),),
                    form=form,
                    data_folder=name,
                    deletes_folder=name,
                    token="0" * 16,
                )
                if not is_cached:
                    parquet._cache.clear()
                clock = Clock()
                with clock.measure():
                    (outcome,) = look_up(iter([task]))
                assert outcome.found_count == len(numbers), outcome.error
                best = min(best, clock, key=lambda one: one.cpu_s)
            show(
                what=f"lookup {kind}",
                keys=count,
                form=form.value,
                is_cached=is_cached,
                cpu_s=best.cpu_s,
                wall_s=best.wall_s,
            )


WIDE = (
    ("id", "bigint", "int64"),
    ("n", "integer", "int32"),
    ("price", "numeric(12,2)", "decimal(12,2)"),
    ("a", "text", "string"),
    ("b", "text", "string"),
    ("at", "timestamp with time zone", "timestamptz"),
    ("day", "date", "date"),
    ("flag", "boolean", "bool"),
    ("x", "double precision", "float64"),
    ("more", "bigint", "int64"),
)


def make_updates(count: int) -> tuple[Relation, pa.RecordBatch]:
    """Return updates of distinct rows, as a frame of the log."""
    columns = tuple(Column(name=n, source_type=s, neutral=k) for n, s, k in WIDE)
    shape = Relation(
        schema="public", name="w", columns=columns, key=(0,), before=(0,), identity=Identity.DEFAULT
    )
    rng = np.random.default_rng(3)
    numbers = rng.permutation(count)
    whole = pa.array(rng.integers(0, 10**6, count)).cast(pa.decimal128(19, 0))
    after = pa.StructArray.from_arrays(
        [
            pa.array(numbers),
            pa.array(rng.integers(0, 1000, count), pa.int32()),
            whole.cast(pa.decimal128(12, 2)),
            pa.array([f"name {n}" for n in numbers.tolist()]),
            pa.array([f"a longer text of row {n}" for n in numbers.tolist()]),
            pa.array(numbers * 1_000_000).view(pa.timestamp("us", "UTC")),
            pa.array(rng.integers(0, 20_000, count), pa.int32()).view(pa.date32()),
            pa.array(rng.integers(0, 2, count) == 1),
            pa.array(rng.random(count)),
            pa.array(rng.integers(0, 10**12, count)),
        ],
        fields=list(batch_schema(shape).field("after").type),
    )
    schema = batch_schema(shape)
    arrays = [
        pa.array(np.arange(1, count + 1)),
        pa.array(np.ones(count, np.int64)),
        pa.array(np.full(count, Op.UPDATE, np.uint8)),
        pa.nulls(count, pa.binary()),
        after,
        pa.nulls(count, schema.field("before").type),
    ]
    return shape, pa.RecordBatch.from_arrays(arrays, schema=schema)


def bench_staging(count: int, rounds: int) -> None:
    """Measure the fold and the writer."""
    shape, frame = make_updates(count)
    columns = tuple(
        LakeColumn(name=one.name, type=map_lake_column(one, "postgresql").type)
        for one in shape.columns
    )
    best = Clock()
    best.cpu_s = best.wall_s = 1e9
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            spec = WriterSpec(
                table=NAME,
                target=NAME,
                relation=shape,
                source_engine="postgresql",
                columns=columns,
                data_folder=folder,
                side_folder=folder,
                stamp=1,
                token="0" * 16,
            )
            writer, clock = LakeWriter(spec), Clock()
            with clock.measure():
                net = fold(shape, [frame])
                writer.write(
                    FoldedRows(net=net, layout=writer.layout, frames=[frame], in_key_order=True)
                )
            best = min(best, clock, key=lambda one: one.cpu_s)
    show(what="fold and stage", rows=count, cpu_s=best.cpu_s, wall_s=best.wall_s)


def show(**figures: object) -> None:
    """Print one line."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}))


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a trial run")
    given = parser.parse_args()
    rows, rounds = (20_000, 1) if given.quick else (given.rows, given.rounds)
    print(json.dumps(describe_machine()))
    for kind in KINDS:
        bench_lookup(kind, rows, rounds)
    for count in (1_000, 100_000):
        bench_staging(min(count, rows), rounds)


if __name__ == "__main__":
    main()
