"""A task of the bulk load, for tests of the code around the copying."""

from __future__ import annotations

from penstock.model import TableName
from penstock.ports.bulk import Chunk, ChunkTask

# Names of the largest length: names derived from them have to fit.
LONG = TableName("s", "t" * 64)


def chunk_task(number: int = 7, *, table: TableName = LONG, plan: str = "p" * 64) -> ChunkTask:
    """Return a chunk of a table, which cannot be read."""
    return ChunkTask(
        source_url="",
        target_url="",
        table=table,
        target=table,
        chunk=Chunk(number=number, relation=table, copy_out="", size_bytes=0),
        columns=(),
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan=plan,
        replica_role=True,
    )
