"""Table of batches: a lake table with one row for each applied batch.

A row names the batch's place in the log and the version that each table has once it is applied, so
that a reader sees all tables at one commit of the source: that of the newest row with versions.
The table's newest mark is how far the lake is applied, and its record has the table syncs. Both
change in its own commits, so a second loader is refused. Not here: the tables of the source
(`target.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engines.lake.format import (
    REPAIR,
    Catalogue,
    Commit,
    CommitRefused,
    LakeColumn,
    LakeTable,
    LakeUnreachable,
    LiveFile,
    Mark,
    MarkNotNewer,
    NewFile,
    Snapshot,
)
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.rows import read_rows
from penstock.host import faults
from penstock.model import LOAD_AGAIN, TableName
from penstock.ports.target import Applied, AppliedByAnother, TableSync, TargetFollowsAnotherLog

faults.declare("lake.batch.written")

BATCHES = TableName("penstock", "batches")
COMMITS_MAX = 5
FILES_MAX = 64
"""Number of small files that are joined to one."""

TIERS = (FILES_MAX, FILES_MAX**2)
"""Numbers of rows below which a file is small: first for few rows, then for more."""

HOUR_US = 3600 * 1_000_000

COLUMNS = (
    LakeColumn(name="log_id", type="string"),
    LakeColumn(name="gsn", type="int64"),
    LakeColumn(name="segment", type="int64"),
    LakeColumn(name="trx", type="int64"),
    LakeColumn(name="position", type="string"),
    LakeColumn(name="commit_time", type="timestamptz"),
    LakeColumn(name="applied_at", type="timestamptz"),
    LakeColumn(name="versions", type="string"),
)
"""Columns of the table.

`position` is a number of up to 39 digits. `versions` is JSON, `{"public.orders": 12}`; NULL in a
batch after a crash, as long as some tables have more than it says.
"""

_EPOCH = datetime.fromtimestamp(0, UTC)
_ARROW = {
    "string": pa.string(),
    "int64": pa.int64(),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_SCHEMA = pa.schema([pa.field(one.name, _ARROW[one.type]) for one in COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Rows that are kept, and with them the versions that they name.

    Attributes:
        hours: Age at which a row is removed.
        rows_max: Number of rows above which the oldest are removed.
    """

    hours: float = 24.0
    rows_max: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Table versions that the rows of the table of batches refer to.

    Attributes:
        since_us: When the oldest row with versions was written, microseconds since 1970 UTC.
        versions: Versions by name of the table.
    """

    since_us: int
    versions: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesRecord:
    """Record of the table of batches."""

    log_id: str
    syncs: tuple[TableSync, ...] = ()


class Batches:
    """Table of batches of one log."""

    def __init__(
        self,
        table: LakeTable,
        log_id: str,
        storage: Mapping[str, str],
        kept: Kept = Kept(),
    ) -> None:
        """Keep the table. storage: see `storage.file_system`."""
        self._table = table
        self._log_id = log_id
        self._storage = storage
        self._kept = kept

    @property
    def snapshot(self) -> Snapshot:
        """Newest version that is known."""
        return self._table.snapshot()

    @property
    def applied_place(self) -> Applied:
        """Place up to which the lake is applied."""
        mark = self.snapshot.mark
        return Applied() if mark is None else mark.place

    @property
    def syncs(self) -> dict[TableName, TableSync]:
        """Table syncs as committed."""
        record = _decode(self.snapshot.record)
        return {} if record is None else {row.table: row for row in record.syncs}

    def refresh(self) -> None:
        """Read the table again."""
        self._table.snapshot(refresh=True)

    def check_at(self, at: Applied) -> None:
        """Raise AppliedByAnother unless the lake is at this place, as far as is known."""
        if not self.applied_place.is_at(at):
            raise applied_by_another(at, self.applied_place)

    def make_commit(
        self,
        at: Applied,
        after: Applied,
        versions: Mapping[str, int] | None,
        *,
        token: str,
        applied_us: int,
        syncs: Iterable[TableSync] | None = None,
    ) -> Commit:
        """Write a batch's row to a file; return the commit that adds it.

        Args:
            at: Where the lake is.
            after: Where it is then.
            versions: The version of each table, by name; None if some tables have more than the
                others, after a crash.
            token: Beginning of the new file's name.
            applied_us: The present time, microseconds since 1970 UTC.
            syncs: Table syncs from now on; None: as they are.

        Raises AppliedByAnother.
        """
        snapshot = self.snapshot
        self.check_at(at)
        values: list[Any] = [
            self._log_id,
            after.gsn,
            after.segment,
            after.trx,
            str(after.position),
            after.commit_time_us,
            applied_us,
            None if versions is None else _encode_versions(versions),
        ]
        row = _make_row(values)
        limit = datetime.fromtimestamp((applied_us - self._kept.hours * HOUR_US) / 1e6, UTC)
        joined = find_joined(snapshot.files, limit=limit, rows_max=self._kept.rows_max)
        if joined:
            before = pa.concat_tables([self._read(file, snapshot) for file in joined])
            if versions is not None:  # else the newest row with versions could be among the old
                before = self._without_old(before, limit)
            row = pa.concat_tables([before, row])
        old = []
        if versions is not None:
            old = [file for file in find_old(snapshot.files, limit) if file not in joined]
        removed = tuple(file.name for file in (*joined, *old))
        added = self._write(row, snapshot, f"{token}-batch")
        faults.point("lake.batch.written")
        return Commit(
            base_version=snapshot.version,
            adds=(added,),
            removes=removed,
            mark=Mark.of(self._log_id, after),
            record=None if syncs is None else self._record(syncs),
        )

    def renew(self, versions: Mapping[str, int], *, token: str, applied_us: int) -> None:
        """Commit the newest row again, with other versions of some tables; the lake stays where it
        is.

        Args:
            versions: The new version by name.
            token: Beginning of the new file's name.
            applied_us: The present time, microseconds since 1970 UTC.

        Raises AppliedByAnother.
        """
        snapshot = self.snapshot
        rows = [row for file in snapshot.files for row in self._read(file, snapshot).to_pylist()]
        newest = max(rows, key=lambda row: row["applied_at"], default=None)
        if newest is None or newest["versions"] is None:
            return  # no batch was applied, or a loader must complete one
        newest["applied_at"] = applied_us
        newest["versions"] = _encode_versions({**json.loads(newest["versions"]), **versions})
        self.commit(
            Commit(
                base_version=snapshot.version,
                adds=(self._write(_make_row(newest.values()), snapshot, f"{token}-batch"),),
                operation=REPAIR,
            ),
            self.applied_place,
        )

    def _without_old(self, rows: pa.Table, limit: datetime) -> pa.Table:
        """Return the rows that are kept, in order of their beginning."""
        rows = rows.sort_by([("gsn", "ascending"), ("applied_at", "ascending")])
        rows = rows.filter(pc.greater_equal(rows["applied_at"], pa.scalar(limit)))
        return rows.slice(max(0, rows.num_rows - self._kept.rows_max))

    def read_promises(self, now_us: int) -> Promises:
        """Return the versions that rows of the newest version name.

        now_us: the present time; the promises begin then if there are no such rows.
        """
        snapshot = self._table.snapshot(refresh=True)
        since = datetime.fromtimestamp(now_us / 1e6, UTC)
        found: dict[str, set[int]] = {}
        for file in snapshot.files:
            rows = self._read(file, snapshot)
            rows = rows.filter(pc.is_valid(rows["versions"]))
            if not rows.num_rows:
                continue
            since = min(since, pc.min(rows["applied_at"]).as_py())
            for text in pc.unique(rows["versions"]).to_pylist():
                for name, version in json.loads(text).items():
                    found.setdefault(name, set()).add(version)
        return Promises(
            since_us=(since - _EPOCH) // timedelta(microseconds=1),
            versions={name: frozenset(versions) for name, versions in found.items()},
        )

    def write_syncs(self, at: Applied, syncs: Iterable[TableSync]) -> None:
        """Commit table syncs; the lake stays where it is. Raises AppliedByAnother."""
        self.check_at(at)
        self.commit(
            Commit(
                base_version=self.snapshot.version,
                record=self._record(syncs),
                operation="table syncs",
            ),
            at,
        )

    def commit(self, commit: Commit, at: Applied) -> None:
        """Commit, and repeat it if another writer's maintenance was faster.

        Raises AppliedByAnother if the lake is somewhere else by then.
        """
        for attempt in range(1, COMMITS_MAX + 1):
            try:
                self._table.commit(commit)
                return
            except (CommitRefused, MarkNotNewer) as error:
                snapshot = self._table.snapshot(refresh=True)
                names = {file.name for file in snapshot.files}
                may_repeat = (
                    isinstance(error, CommitRefused)
                    and self.applied_place.is_at(at)
                    and names.issuperset(commit.removes)
                )
                if not may_repeat or attempt == COMMITS_MAX:
                    raise applied_by_another(at, self.applied_place) from error
                commit = replace(commit, base_version=snapshot.version)

    def _record(self, syncs: Iterable[TableSync]) -> str:
        return _encode(BatchesRecord(log_id=self._log_id, syncs=tuple(syncs)))

    # --- files ------------------------------------------------------------------------------------

    def _write(self, table: pa.Table, snapshot: Snapshot, name: str) -> NewFile:
        location = f"{self._table.data_folder}/{name}.parquet"
        try:
            with DataWriter(location, snapshot.columns, self._storage) as writer:
                for batch in table.to_batches():
                    writer.write(batch.columns)
        except OSError as error:
            raise LakeUnreachable(
                f"cannot write {location}: {error}",
                hint="Check that the storage answers, has room, and that this account may write "
                "there.",
            ) from error
        assert writer.new_file is not None, "it has rows"
        return writer.new_file

    def _read(self, file: LiveFile, snapshot: Snapshot) -> pa.Table:
        batches = read_rows(file, snapshot.columns, self._storage)
        return pa.Table.from_batches(batches, schema=None if file.row_count else _SCHEMA)


def open_batches(
    catalogue: Catalogue,
    log_id: str,
    storage: Mapping[str, str],
    kept: Kept = Kept(),
) -> Batches:
    """Bind a lake to a log, and return its table of batches, which is created if it is missing.

    Raises TargetFollowsAnotherLog.
    """
    table = catalogue.find(BATCHES)
    if table is None:
        first = BatchesRecord(log_id=log_id)
        table = catalogue.create(BATCHES, COLUMNS, record=_encode(first))
    snapshot = table.snapshot(refresh=True)
    record = _decode(snapshot.record)
    if record is None or record.log_id != log_id:
        whose = "no log" if record is None else f"change log {record.log_id}"
        raise TargetFollowsAnotherLog(
            f"the lake follows {whose}, this pipeline has {log_id}",
            hint=f"Name another folder or namespace in [target], or start over there: {LOAD_AGAIN}",
        )
    return Batches(table, log_id, storage, kept)


def repair_batches(
    catalogue: Catalogue,
    versions: Mapping[str, int],
    *,
    token: str,
    applied_us: int,
    storage: Mapping[str, str],
) -> None:
    """Name the versions of repaired tables in the table of batches, if the lake has one.

    See `Batches.renew`. Raises AppliedByAnother.
    """
    table = catalogue.find(BATCHES)
    if table is None:
        return
    record = _decode(table.snapshot(refresh=True).record)
    if record is not None:
        batches = Batches(table, record.log_id, storage)
        batches.renew(versions, token=token, applied_us=applied_us)


def find_joined(files: Sequence[LiveFile], *, limit: datetime, rows_max: int) -> list[LiveFile]:
    """Return the files to rewrite with the next row. Returns none while few files are small.

    Args:
        files: Live files.
        limit: Rows before this time are old. Files with both old and newer rows are rewritten too.
        rows_max: All files are rewritten if they have more rows than this.
    """
    for tier in TIERS:
        small = [file for file in files if file.row_count < tier]
        if len(small) >= FILES_MAX:
            if sum(file.row_count for file in files) > rows_max:
                return list(files)
            mixed = [file for file in files if _is_before(file, 0, limit)]
            return [file for file in files if file in small or file in mixed]
    return []


def find_old(files: Iterable[LiveFile], limit: datetime) -> list[LiveFile]:
    """Return the files whose rows are all older than a time."""
    return [file for file in files if _is_before(file, 1, limit)]


def _is_before(file: LiveFile, end: int, limit: datetime) -> bool:
    """Return whether the first (end 0) or last row of a file (1) is certainly before a time."""
    bound = file.bounds.get("applied_at", (None, None))[end]
    return isinstance(bound, datetime) and bound.tzinfo is not None and bound < limit


def applied_by_another(at: Applied, now: Applied) -> AppliedByAnother:
    """Return the error for a lake that is not where a batch begins."""
    return AppliedByAnother(
        f"the lake is at gsn {now.gsn} (segment {now.segment}), expected gsn {at.gsn} (segment "
        f"{at.segment})",
        hint="Let one loader work on a target: stop the other `penstock run` or `penstock load`.",
    )


def _make_row(values: Iterable[Any]) -> pa.Table:
    """Return a row of the table. values: in order of the columns."""
    return pa.table(
        [pa.array([value], one.type) for value, one in zip(values, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )


def _encode_versions(versions: Mapping[str, int]) -> str:
    return json.dumps(dict(sorted(versions.items())))


def _encode(record: BatchesRecord) -> str:
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":"))


def _decode(text: str) -> BatchesRecord | None:
    return msgspec.convert(json.loads(text), type=BatchesRecord) if text else None
