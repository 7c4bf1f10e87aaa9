"""Merge logs: rows per second into the merged log, beside reading the same logs alone.

`python -m bench.bench_merge` prints a JSON line for each: three logs of one table with eight
columns, and of a table each, transactions of ten rows whose commit times interleave.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.bench_encode import NEUTRALS, batch_of
from penstock.codec.columns import transactions_batch
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.log import Writer, WriterOptions, links, list_segments, open_chain
from penstock.merge.extraction import MergeEngine
from penstock.merge.inputs import InputPlace
from penstock.model import Column, FlushPoint, Relation, Rows, Run
from penstock.model.sections import MergeSection

LOGS = 3
IN_TRANSACTION = 10
RUN_ROWS = 10_000
BASE_US = 1_767_225_600_000_000


def relation(name: str) -> Relation:
    """Return a table of eight columns."""
    columns = tuple(
        Column(name=f"c{index}", source_type=neutral, neutral=neutral)
        for index, neutral in enumerate(NEUTRALS)
    )
    return Relation(schema="public", name=name, columns=columns, key=(0,), before=(0,))


def write(folder: Path, number: int, rows: int, table: Relation) -> InputPlace:
    """Return a log of so many rows."""
    consumer = folder / "cdc" / "merge-all"
    links.enable(consumer)
    options = WriterOptions(consumers=folder / "cdc", removes_linked=True)
    batch = batch_of(table).slice(0, RUN_ROWS)
    with Writer.open(folder / "log", log_id=None, source={}, options=options) as writer:
        for first in range(0, rows, RUN_ROWS):
            gsn = np.arange(first + 1, first + RUN_ROWS + 1)
            trx = (gsn - 1) // IN_TRANSACTION + 1
            columns = [pa.array(gsn), pa.array(trx), *batch.columns[2:]]
            numbers = range(int(trx[0]), int(trx[-1]) + 1)
            times = [BASE_US + (n * LOGS + number) * 100 for n in numbers]
            lines = [(n * 10, n * 10 + 5, at, n) for n, at in zip(numbers, times, strict=True)]
            writer.write(
                Run(
                    rows=(
                        Rows(
                            relation=table,
                            batch=pa.RecordBatch.from_arrays(columns, schema=batch.schema),
                        ),
                    ),
                    transactions=transactions_batch(lines),
                    end=FlushPoint(
                        position=lines[-1][1],
                        gsn=int(gsn[-1]),
                        trx=int(trx[-1]),
                        commit_time_us=times[-1],
                    ),
                )
            )
            if writer.due():
                writer.rotate()
        writer.rotate()
        writer.finish()
    return InputPlace(name=folder.name, log=folder / "log", links=consumer)


def measure(rows: int, *, shared: bool) -> dict[str, float | str]:
    """Return rates, in rows per second."""
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as name:
        folder = Path(name)
        places = [
            write(folder / f"s{n}", n, rows // LOGS, relation("t" if shared else f"t{n}"))
            for n in range(LOGS)
        ]
        began = time.perf_counter()
        total = 0
        for place in places:
            for segment in open_chain(list_segments(place.links)):
                with segment:
                    total += sum(one.batch.num_rows for one in segment.rows())
        read_s = time.perf_counter() - began
        engine = MergeEngine(
            name="all",
            scheme="merged-postgresql",
            types="postgresql",
            places=places,
            section=MergeSection(logs=()),
        )
        extractor: Extractor | None = None

        def has_ended() -> bool:
            return extractor is not None and extractor.progress.row_count >= total

        extractor = Extractor(engine, folder / "all", options=ExtractOptions(), stop=has_ended)
        began = time.perf_counter()
        extractor.run()
        merge_s = time.perf_counter() - began
    return {
        "bench": "merge",
        "tables": "shared" if shared else "own",
        "rows": total,
        "read_rows_per_s": round(total / read_s),
        "merged_rows_per_s": round(total / merge_s),
    }


def main() -> None:
    """Print a line for each kind of tables and each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for _ in range(given.rounds):
        for shared in (True, False):
            print(json.dumps(measure(given.rows, shared=shared)), flush=True)


if __name__ == "__main__":
    main()
