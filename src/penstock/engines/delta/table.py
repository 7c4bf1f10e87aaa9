"""One Delta table: its newest known version, and commits to it.

The version is kept in the driver and moved on by each commit of ours; versions of other writers are
replayed from the log when a commit is refused or begins on a newer one. Not here: pure parts
(`state.py`, `shape.py`) and calls of Java (`log.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from penstock.engines.delta.expiry import clean_log, delete_files, find_oldest, needed_files
from penstock.engines.delta.log import DeltaLog
from penstock.engines.delta.shape import features_of, plan_column, refuse_change
from penstock.engines.delta.state import (
    CountRows,
    Replay,
    State,
    has_own_mark,
    is_touching,
    merge_properties,
    next_merge,
    plan_actions,
    read_merged,
)
from penstock.engines.lake.format import (
    Change,
    Commit,
    CommitRefused,
    DeleteForm,
    Expired,
    Expiry,
    LakeColumn,
    LakeFailed,
    LakeTable,
    Mark,
    MarkNotNewer,
    Merge,
    Merged,
    Snapshot,
)
from penstock.engines.lake.java import java_path, typed_errors
from penstock.engines.lake.merging import Merger, quote
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName

logger = structlog.get_logger(__name__)

faults.declare("delta.commit.before", "delta.commit.after")

MICROSECONDS = 1_000
_TOLERANCE_MS = 3_600_000
"""Delta reads the time when it looks at a table, a little before or after us."""


class DeltaTable(LakeTable):
    """Table in a folder of the lake."""

    delete_form = DeleteForm.DELTA

    def __init__(
        self,
        name: TableName,
        folder: str,
        log: DeltaLog,
        count_rows: CountRows,
        *,
        storage: Mapping[str, str],
        clock: Clock = REAL_CLOCK,
        merger: Merger | None = None,
    ) -> None:
        """Keep the place; nothing is read yet.

        count_rows: see `Replay`; storage: see `storage.file_system`; merger: if Spark merges rows.
        """
        self._merger = merger
        self.name = name
        self.location = self.data_folder = self.deletes_folder = folder
        self._log = log
        self._count_rows = count_rows
        self._storage = storage
        self._clock = clock
        self._state: State | None = None
        self._oldest = -1

    def snapshot(self, *, refresh: bool = False) -> Snapshot:
        """Return the newest known version, read from the log the first time."""
        if self._state is None or refresh:
            with typed_errors(f"read the log of the Delta table {self.name}"):
                self._move_to(self._log.newest())
        return self._newest.snapshot

    def commit(self, commit: Commit) -> Snapshot:
        """Commit by a transaction of Delta, which checks what other writers do meanwhile."""
        with typed_errors(f"commit to the Delta table {self.name}"):
            transaction, version = self._log.begin()
            self._move_to(version)
            state = self._newest
            self._check(commit, state)
            now_ms = self._clock.now_us() // MICROSECONDS
            actions = plan_actions(state, commit, now_ms=now_ms)
            faults.point("delta.commit.before")
            committed = self._log.commit(
                transaction, actions, commit.mark, commit.operation, now_ms=now_ms
            )
            faults.point("delta.commit.after")
            if actions.protocol is not None:
                self._tell_features(state, actions.after)
            if committed == actions.after.version:
                self._state = actions.after
            else:
                self._move_to(committed)  # commits of others, which do not conflict, are between
        return self._newest.snapshot

    def merge(self, merge: Merge) -> Merged:
        """Merge rows by Spark; Delta refuses it if another merge of the log comes between."""
        if self._merger is None:
            return super().merge(merge)
        with typed_errors(f"merge rows into the Delta table {self.name}"):
            self._move_to(self._log.newest())
            looked_at = Commit(base_version=merge.base_version, mark=merge.mark, removes_all=True)
            self._check(looked_at, self._newest)
            marks = self._mark_of(merge)
            faults.point("delta.commit.before")
            count = self._merger.run(self.name, self._sql_name, merge, marks)
            faults.point("delta.commit.after")
            self._move_to(self._log.newest())
        if merge.mark is not None and self._newest.mark != merge.mark:
            raise CommitRefused(
                f"another loader has merged rows into the Delta table {self.name} meanwhile",
                hint="penstock looks at the table again and retries automatically.",
                table=str(self.name),
            )
        return Merged(snapshot=self._newest.snapshot, found_count=count)

    def _mark_of(self, merge: Merge) -> Mapping[str, str]:
        if merge.mark is None:
            return {}
        return merge_properties(merge.mark, next_merge(self._newest, merge.mark))

    @property
    def _sql_name(self) -> str:
        return f"delta.{quote(java_path(self.location))}"

    def _tell_features(self, before: State, after: State) -> None:
        added = sorted(features_of(after.protocol) - features_of(before.protocol))
        logger.warning(
            "features of a Delta table are switched on, which not every reader knows",
            table=str(self.name),
            features=", ".join(added),
        )

    def _check(self, commit: Commit, state: State) -> None:
        """Raise MarkNotNewer or CommitRefused if a commit may not follow a state."""
        if commit.mark is not None and not commit.mark.is_newer(state.mark):
            raise MarkNotNewer(
                f"the Delta table {self.name} has the changes up to gsn {commit.mark.gsn} already",
                hint="Another loader may be at work on this lake; penstock looks again.",
            )
        is_current = state.touched <= commit.base_version <= state.version
        if is_touching(commit) and not is_current:
            raise CommitRefused(
                f"the Delta table {self.name} is at version {state.version}, and version "
                f"{commit.base_version} was looked at",
                hint="penstock looks at the table again and retries automatically.",
            )

    @property
    def version_count(self) -> int:
        """Number of versions in the log, which is listed the first time."""
        if self._oldest < 0:
            self._oldest = find_oldest(self.location, self._storage)
        return max(0, self.snapshot().version - self._oldest + 1)

    def expire(self, expiry: Expiry) -> Expired:
        """Remove the log of earlier versions up to a checkpoint, and files that nothing needs."""
        self.snapshot(refresh=True)
        state = self._newest
        floor = min([state.version, *expiry.keeps])
        removed, self._oldest = clean_log(
            self.location, self._storage, floor, before_us=expiry.before_us
        )
        if expiry.files_before_us is None:
            return Expired(version_count=removed)
        with typed_errors(f"read removed files of the Delta table {self.name}"):
            text, kept_ms = self._log.tombstones(expiry.files_before_us // MICROSECONDS)
        age_ms = (self._clock.now_us() - expiry.files_before_us) // MICROSECONDS
        if age_ms > kept_ms + _TOLERANCE_MS:
            logger.warning(
                "files are not deleted: the table forgets removed files too early",
                table=str(self.name),
                hint="Set its property delta.deletedFileRetentionDuration to "
                f"'interval {age_ms // 3_600_000 + 1} hours'.",
            )
            return Expired(version_count=removed)
        needed = needed_files(state, text)
        count, size = delete_files(
            self.location, self._storage, needed, before_us=expiry.files_before_us
        )
        return Expired(version_count=removed, file_count=count, size_bytes=size)

    def refuse_change(self, change: Change, snapshot: Snapshot) -> str:
        """Return why Delta cannot make a change in place; empty if it can."""
        return refuse_change(change, snapshot)

    def plan_column(
        self,
        name: str,
        type: str,
        *,
        field_id: int,
        initial: str | None,
        is_emptied: bool = False,
    ) -> LakeColumn:
        """Return a column that a commit may add; Delta keeps no value for older rows."""
        del initial
        self.snapshot()
        metadata = self._newest.metadata
        return plan_column(metadata, name, type, field_id=field_id, is_emptied=is_emptied)

    @property
    def _newest(self) -> State:
        if self._state is None:
            raise LakeFailed(
                f"there is no Delta table at {self.location}",
                hint="Copy the table again: penstock table resync FILE TABLE.",
            )
        return self._state

    def _move_to(self, newest: int) -> None:
        """Bring the state to the newest version. It stays as it is if it cannot be read."""
        before = self._state
        if before is not None and before.version == newest:
            return
        if newest < 0:
            self._state = None
            return
        if before is not None and before.metadata["id"] != self._log.table_id():
            before = None  # the table was removed and created again
        replay = Replay(self.location, self._count_rows, before)
        texts = self._log.texts_after(before.version if before else -1, newest)
        if texts is None:
            replay = Replay(self.location, self._count_rows)
            version, text = self._log.whole_text()
            replay.add_version(version, text)
            if self._merger is not None:
                replay.take_merged(self._find_merged(version))
        else:
            for version, text in texts:
                replay.add_version(version, text)
        self._state = replay.state().check(str(self.name), merges=self._merger is not None)

    def _find_merged(self, newest: int) -> Mark | None:
        """Return the mark of the newest merge; None if a commit of ours with a mark is newer."""
        for text in self._log.texts_before(newest):
            if has_own_mark(text):
                return None
            if (found := read_merged(text)) is not None:
                return found
        return None
