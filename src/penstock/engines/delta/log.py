"""Log of a Delta table, by Delta's own Java classes: reading versions and committing.

Actions cross the bridge as one JSON text for each kind, so that a commit costs the same few calls
whatever its size. These classes are internal to Delta: the jars are pinned, and the tests of this
engine are their contract. Not here: what the actions mean (`state.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.engines.delta.shape import Action
from penstock.engines.delta.state import Actions, app_id
from penstock.engines.lake.format import Mark
from penstock.engines.lake.java import as_seq, java_path, join_texts, none_of, some_of
from penstock.ports.jobs import Jobs

REPLAYED_MAX = 300
"""Number of versions that are read one by one; for more, Delta reconstructs the state in a job."""

LOOKED_BACK_MAX = 1_000
"""Number of versions among which the newest merge is looked for."""


class DeltaLog:
    """Log of one table. Errors are the JVM's; see `engines.lake.java.typed_errors`."""

    def __init__(self, jobs: Jobs, folder: str) -> None:
        """Keep the session and the table's folder; nothing is read yet."""
        self._jvm = jobs.jvm
        self._spark = jobs.spark
        self._delta = self._jvm.org.apache.spark.sql.delta
        self._place = java_path(folder)
        self._opened: Any = None
        self._files: Any = None  # Hadoop's file system, once it is used
        self._threads = threading.local()

    @property
    def _log(self) -> Any:
        """Delta's log, for the calling thread.

        Delta reads checkpoints with the thread's active session; each of our threads has one of
        Java's, which begins without it.
        """
        if not getattr(self._threads, "is_known", False):
            self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark)
            self._threads.is_known = True
        if self._opened is None:
            self._opened = self._delta.DeltaLog.forTable(self._spark, self._place)
        return self._opened

    def close(self) -> None:
        """Forget the table in Delta's cache too, because its folder is removed."""
        self._delta.DeltaLog.invalidateCache(self._spark, self._path(self._place))
        self._opened = None

    def exists(self) -> bool:
        """Return whether the table has a version."""
        return bool(self._log.update(False, self._none, self._none).version() >= 0)

    def newest(self) -> int:
        """Return the newest version; -1 if there is none."""
        return int(self._log.update(False, self._none, self._none).version())

    def table_id(self) -> str:
        """Return the table's id in the version that was read last."""
        return str(self._log.unsafeVolatileSnapshot().metadata().id())

    def begin(self) -> tuple[Any, int]:
        """Begin a transaction on the newest version; return it and the version.

        Delta lists the log's folder for it, in which each kept version has a file. So it begins on
        the version that it knows, if two looks show that the log has this one and none after it.
        """
        known = self._log.unsafeVolatileSnapshot()
        version = int(known.version())
        if version >= 0 and self._has(version) and not self._has(version + 1):
            transaction = self._log.startTransaction(self._none, some_of(self._jvm, known))
            return transaction, version
        transaction = self._log.startTransaction()
        return transaction, int(transaction.snapshot().version())

    def _has(self, version: int) -> bool:
        """Return whether the log's folder has a version's file."""
        if self._files is None:
            path = self._path(self._place)
            self._files = path.getFileSystem(self._log.newDeltaHadoopConf())
        return bool(self._files.exists(self._version_path(version)))

    def texts_after(self, version: int, newest: int) -> Iterator[tuple[int, str]] | None:
        """Yield the versions after one and their actions; None if they cannot be had one by one.

        That is so if there are too many, or if they may be in a checkpoint alone.
        """
        if newest - version > REPLAYED_MAX:
            return None
        snapshot = self._log.unsafeVolatileSnapshot()
        if version < 0 and not snapshot.logSegment().checkpointProvider().isEmpty():
            return None
        return self._texts(range(version + 1, newest + 1))

    def _texts(self, versions: Sequence[int]) -> Iterator[tuple[int, str]]:
        store = self._log.store()
        conf = self._log.newDeltaHadoopConf()
        for version in versions:
            yield version, str(store.read(self._version_path(version), conf).mkString("\n"))

    def whole_text(self) -> tuple[int, str]:
        """Return the newest version, and all its actions by a Spark job; removed files are none."""
        snapshot = self._log.update(False, self._none, self._none)
        rows = snapshot.stateDS().toDF().where("remove IS NULL").toJSON().collectAsList()
        return int(snapshot.version()), join_texts(self._jvm, rows)

    def texts_before(self, version: int) -> Iterator[str]:
        """Yield the actions of a version and of those before, as far as their files are there."""
        for number in range(version, max(version - LOOKED_BACK_MAX, -1), -1):
            if not self._has(number):
                return
            yield from (text for _, text in self._texts([number]))

    def _version_path(self, version: int) -> Any:
        return self._path(f"{self._place}/_delta_log/{version:020d}.json")

    def tombstones(self, since_ms: int) -> tuple[str, int]:
        """Return the files that were removed since a time, by a Spark job, and the limit of that.

        The limit is the age in milliseconds above which Delta forgets removed files, by the table's
        property `delta.deletedFileRetentionDuration`. The texts are actions as JSON.
        """
        snapshot = self._log.update(False, self._none, self._none)
        kept_ms = int(self._delta.DeltaLog.tombstoneRetentionMillis(snapshot.metadata()))
        where = f"remove IS NOT NULL AND remove.deletionTimestamp >= {since_ms}"
        rows = snapshot.stateDS().toDF().where(where).toJSON().collectAsList()
        return join_texts(self._jvm, rows), kept_ms

    def commit(
        self, transaction: Any, actions: Actions, mark: Mark | None, operation: str, *, now_ms: int
    ) -> int:
        """Commit a transaction; return the version. Delta refuses it if another one conflicts."""
        if actions.protocol is not None:
            transaction.updateProtocol(self._list("Protocol", [actions.protocol]).get(0))
        if mark is not None:
            transaction.readTxn().addOne(app_id(mark.log_id))
        if actions.has_files:
            transaction.readWholeTable()
        items = self._jvm.java.util.ArrayList()
        if actions.metadata is not None:
            items.addAll(self._list("Metadata", [actions.metadata]))
        if actions.numbers:
            numbers = [
                {"appId": app, "version": number, "lastUpdated": now_ms}
                for app, number in actions.numbers.items()
            ]
            items.addAll(self._list("SetTransaction", numbers))
        if actions.removes:
            items.addAll(self._list("RemoveFile", actions.removes))
        if actions.adds:
            items.addAll(self._list("AddFile", actions.adds))
        described = self._operation(mark, operation)
        return int(transaction.commit(as_seq(self._jvm, items), described))

    def _operation(self, mark: Mark | None, operation: str) -> Any:
        """Return Delta's description of a commit, for the table's history."""
        said: dict[str, Any] = {"penstock": operation}
        if mark is not None:
            said |= {
                "log": mark.log_id,
                "segment": mark.segment,
                "gsn": mark.gsn,
                "trx": mark.trx,
                "position": str(mark.position),
                "commitTime": mark.commit_time_us,
            }
        mode = self._jvm.org.apache.spark.sql.streaming.OutputMode.Update()
        kind = getattr(self._delta, "DeltaOperations$StreamingUpdate")
        query, epoch = (mark.log_id, mark.gsn) if mark else ("penstock", 0)
        return kind(mode, query, epoch, some_of(self._jvm, json.dumps(said)))

    def _list(self, kind: str, actions: Sequence[Action]) -> Any:
        """Return actions of a kind as a Java list."""
        mapper = self._delta.util.JsonUtils.mapper()
        class_of = self._jvm.java.lang.Class.forName
        list_type = mapper.getTypeFactory().constructCollectionType(
            class_of("java.util.ArrayList"), class_of(f"org.apache.spark.sql.delta.actions.{kind}")
        )
        return mapper.readValue(json.dumps(actions), list_type)

    def _path(self, place: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(place)

    @property
    def _none(self) -> Any:
        return none_of(self._jvm)
