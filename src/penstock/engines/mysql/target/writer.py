"""Writer of a task's rows into a merge table, or into files if the table accepts rows directly."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from penstock.engines.mysql.target.direct import Direct, write_lines
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.engines.mysql.target.replay import write_events
from penstock.engines.mysql.target.rows_files import RowsFile, StagedFile
from penstock.engines.mysql.target.send import Destination, send
from penstock.ports.target import NetRows, StagedRows, StagingWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLStagingWriter(StagingWriter):
    """Writer into a merge table. path: prefix of file names, if the table accepts rows directly."""

    place: Destination
    direct: Direct | None = None
    path: Path | None = None

    @property
    def stamp(self) -> int:
        return self.place.stamp

    @property
    def layout(self) -> MergeLayout:
        return MergeLayout(self.place.relation)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged, because these servers accept all values of the log."""
        return rows

    def write(self, rows: NetRows) -> StagedRows:
        """Stage the rows. Missing values of a row are filled in the merge table."""
        file = None if rows.any_unsent else self._write_file(rows)
        if file is None:
            return StagedRows(in_table=send(self.place, chain(rows.deletes(), rows.upserts())))
        is_all = file.events is not None or not rows.counts.deletes
        in_table = 0 if is_all else send(self.place, rows.deletes())
        return StagedFile(in_table=in_table, file=file)

    def _write_file(self, rows: NetRows) -> RowsFile | None:
        """Write the rows, or the upserts alone, into a file, if all of them can go into a file."""
        if self.direct is None or self.path is None:
            return None
        path = self.path.with_name(f"{self.path.name}-{rows.part}")
        events = self.direct.events
        if events is not None:
            return write_events(path, events, chain(rows.deletes(), rows.upserts()))
        return write_lines(path, self.place.relation, rows.upserts())
