"""Warehouse: every change of every table in Parquet files, one folder for each table."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.consume import CdcBatch, CdcConsumer


class Output:
    """Unfinished Parquet file of one table and one shape of its rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Open the file; path is its final name."""
        self.path = path
        self.schema = schema
        self.making = path.with_suffix(".tmp")
        self.writer = pq.ParquetWriter(self.making, schema)

    def finish(self) -> None:
        """Rename the file when it is on the disk, so that readers see only whole files."""
        self.writer.close()
        sync(self.making)
        self.making.replace(self.path)
        sync(self.path.parent)


class Warehouse(CdcConsumer):
    """Consumer that names a file by the gsn of its first change, so that a repeat replaces it."""

    def __init__(self, folder: str) -> None:
        """Store the folder; a relative path starts at the folder in which penstock is started."""
        self.folder = Path(folder)

    def on_batches(self, batches: Iterator[CdcBatch]) -> bool:
        """Write one file for each table, and one more when its columns change."""
        outputs: dict[str, Output] = {}
        for one in batches:
            resent = pa.array([one.resent] * one.batch.num_rows)
            batch = one.batch.append_column("resent", resent)
            output = outputs.get(one.table)
            if output is None or output.schema != batch.schema:
                if output is not None:
                    output.finish()
                path = self.table_folder(one.table) / f"{batch['gsn'][0].as_py():020d}.parquet"
                output = outputs[one.table] = Output(path, batch.schema)
            output.writer.write_batch(batch)
        for output in outputs.values():
            output.finish()
        return True

    def on_truncate(self, table: str, gsn: int) -> None:
        """Leave a note that the files up to the newest no longer count."""
        folder = self.table_folder(table)
        newest = max(folder.glob("*.parquet"), key=lambda path: int(path.stem), default=None)
        if newest is not None:
            newest.with_suffix(".end").touch()
            sync(folder)

    def on_reload(self, table: str, gsn: int) -> None:
        """Leave the same note: all rows follow again."""
        self.on_truncate(table, gsn)

    def table_folder(self, table: str) -> Path:
        """Return the folder of a table, and create it if it is missing."""
        folder = self.folder / quote(table, safe="")  # a name may have a slash
        if not folder.exists():
            folder.mkdir(parents=True)
            sync(self.folder)
        return folder


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
