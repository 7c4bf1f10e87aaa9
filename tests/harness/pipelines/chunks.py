"""A task of the bulk load, for tests of what surrounds the copying."""

from __future__ import annotations

from penstock.model import TableName
from penstock.ports.bulk import Chunk, ChunkTask

# As long as names may be: what is made of them has to fit.
LONG = TableName("s", "t" * 64)


def chunk_task(number: int = 7, *, table: TableName = LONG, plan: str = "p" * 64) -> ChunkTask:
    """A chunk of a table; nothing can be read by it."""
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
