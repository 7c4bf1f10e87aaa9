"""Loader tests: a log written manually, a target, and batches applied to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.pipelines.changes import Change, batch
from penstock.codec.columns import transactions_batch
from penstock.codec.types import NO_CHOICES
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.load.job import run_tasks
from penstock.load.sql_target import StagedBatch, Stager, open_stager
from penstock.log.layout import next_segments
from penstock.log.writer import Writer, WriterOptions
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, Rows, Run, TableName
from penstock.model.policies import EVOLVE_ALL
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import BatchOptions
from penstock.ports.target import Applied, engine_of


class LogMaker:
    """Writes segments of changes given as tuples; assigns numbers and positions."""

    def __init__(self, directory: Path, *, engine: str = "postgresql") -> None:
        self.directory = directory
        self.writer = Writer.open(
            directory, log_id="test-log", source={"engine": engine}, options=WriterOptions()
        )
        self.gsn, self.trx, self.position = 0, 0, 1000

    def transaction(
        self,
        *changes: tuple[Relation, Change] | tuple[MarkerKind, Sequence[TableName]],
        relations: Sequence[Relation] = (),
    ) -> int:
        """Write one transaction, and return its position."""
        self.trx += 1
        self.position += 100
        rows: dict[int, tuple[Relation, list[Change]]] = defaultdict(lambda: (None, []))  # type: ignore[arg-type,return-value]
        markers = []
        for kind, content in changes:
            if isinstance(kind, MarkerKind):
                markers.append(
                    Marker(
                        kind=kind,
                        gsn=self.gsn,
                        trx=self.trx,
                        position=self.position,
                        commit_time_us=self.trx,
                        tables=tuple(tuple(table) for table in content),  # type: ignore[arg-type,union-attr]
                    )
                )
                continue
            assert isinstance(content, Change)
            self.gsn += 1
            change = replace(content, gsn=self.gsn, trx=self.trx)
            rows[id(kind)] = (kind, [*rows[id(kind)][1], change])
        self.writer.write(
            Run(
                rows=tuple(
                    Rows(relation=shape, batch=batch(shape, some)) for shape, some in rows.values()
                ),
                markers=tuple(markers),
                relations=tuple(relations),
                transactions=transactions_batch(
                    [(self.position, self.position + 50, self.trx, self.trx)]
                ),
                end=FlushPoint(
                    position=self.position + 50,
                    gsn=self.gsn,
                    trx=self.trx,
                    commit_time_us=self.trx,
                ),
            )
        )
        return self.position

    def close_segment(self) -> None:
        """Close the segment."""
        self.writer.flush()
        self.writer.rotate()


class LocalSession:
    """A session that runs the tasks in this process; other tests cover Spark."""

    slots_are_fixed = True

    def __init__(self, after_job: Callable[[], object] = lambda: None) -> None:
        self._after_job = after_job

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Run all tasks in this process, then the caller's function; return the results."""
        assert work is run_tasks
        assert description
        results = [result for tasks in partitions for result in work(iter(tasks))]
        self._after_job()
        return results

    def with_jobs(self, jobs: str) -> LocalSession:
        """Return the same session: its jobs cannot be cancelled."""
        del jobs
        return self

    def tell(self, of: str, tasks: Sequence[Any]) -> None:
        """Check that the job and each task have a description.

        Several tasks may have the same one: a table whose shape changed has several tasks.
        """
        assert of
        assert all(one.of for one in tasks)
        assert tasks

    def cancel(self) -> None:
        """Do nothing: tasks in this process run to their end."""


class Applying:
    """Applies the log in a directory, batch by batch."""

    def __init__(self, url: str, directory: Path, **more: Any) -> None:
        self.url = url
        self.directory = directory
        self.namespaces = more.get("namespaces", {})
        self.starts = more.get("starts", {})
        self.settled = more.get("settled", {})
        self.engine: Any = engine_of(url)
        for table in more.get("unsure", ()):
            self.engine.unsure.note(table)  # type: ignore[attr-defined]
        self.target: Any = self.engine.open_target(
            url,
            self.namespaces,
            allow_triggers=more.get("allow_triggers", False),
            choices=more.get("choices", NO_CHOICES),
            policies=more.get("policies", EVOLVE_ALL),
        )
        self.policies = more.get("policies", EVOLVE_ALL)
        self.choices = more.get("choices", NO_CHOICES)
        self.rows_directory = more.get("rows_directory", directory.parent / "rows")
        self.log_id = more.get("log_id", "test-log")
        self.applied = self.target.bind(self.log_id)
        self._stager: Stager | None = None

    def batch(
        self,
        *,
        before: int = POSITION_MAX,
        threads: int = 2,
        after_job: str = "",
        place: int = 0,
    ) -> StagedBatch:
        """Apply all existing closed segments; after_job: SQL between staging and applying."""
        staged = self.stage(before=before, threads=threads, after_job=after_job, place=place)
        self.target.apply(staged)
        self.applied = staged.after
        assert self.read_applied() == self.applied
        return staged

    def stage(
        self,
        *,
        before: int = POSITION_MAX,
        threads: int = 2,
        after_job: str = "",
        place: int = 0,
    ) -> StagedBatch:
        """Stage the segments without applying them."""
        files = next_segments(self.directory, after=self.applied.segment, count_max=100)
        if self._stager is None:
            self._stager = open_stager(
                self.engine,
                BatchOptions(
                    url=self.url,
                    log_id=self.log_id,
                    namespaces=self.namespaces,
                    threads_max=threads,
                    extension="ckt",
                    starts=self.starts,
                    settled=self.settled,
                    choices=self.choices,
                    policies=self.policies,
                    rows_directory=self.rows_directory,
                ),
            )
        session: Any = LocalSession(lambda: self.execute(after_job) if after_job else None)
        return self._stager.stage(files, session, applied=self.applied, before=before, place=place)

    def empty_ahead(self) -> None:
        """Empty merge tables as while the log has nothing new."""
        assert self._stager is not None
        self._stager.empty_ahead()

    def begin_anew(self) -> None:
        """Make staging and applying look at the target again, as after an error."""
        if self._stager is not None:
            self._stager.close()
            self._stager = None
        self.target.forget()

    def execute(self, sql: str) -> None:
        """Run SQL in the session that applies."""
        self.target.connection.execute(sql)

    def read_applied(self) -> Applied:
        """Return the position up to which the target has applied the log."""
        return PostgresProgress(self.target.connection).read_applied()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the target's rows."""
        rows: list[tuple[Any, ...]] = self.target.connection.execute(query).fetchall()
        return rows

    def close(self) -> None:
        """Close the connections."""
        self.target.close()
        if self._stager is not None:
            self._stager.close()


class Word:
    """The action of wirekite_action as a variable."""

    def __init__(self) -> None:
        self.text = "RUN"

    def word(self) -> str:
        """Return the action."""
        return self.text


class LocalKeeper:
    """A session keeper without Spark."""

    is_ready = True
    is_lost = False

    def __init__(self) -> None:
        self.session = LocalSession()
        self.renewed = 0
        self.is_local = True

    def get(self) -> LocalSession:
        """Return the session."""
        return self.session

    def renew(self) -> None:
        """Count the call; the session is another then."""
        self.renewed += 1
        self.is_lost = False
