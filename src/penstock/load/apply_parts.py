"""Apply a batch in parts, by several sessions at the same time (`[changeLoader] applySessions`).

A batch's tables are divided into parts (`division.py`). The main session applies one of them, and
its transaction ends the batch: it has the applied position and the CL rows. There are two ways for
the others.

Ahead: each part commits alone, with a row in `wirekite_ahead` for each of its tables: the table has
the changes up to the batch's end already. The main transaction waits for all, moves the position,
and deletes these rows. After a crash or an error, tables that have such a row are ahead of the
position, and their changes up to there are not staged again (`Target.read_ahead`). A part keeps the
position from moving until it has committed, and inserts its rows first, so that of two loaders only
one can apply a part.

Prepared: if the server keeps enough prepared transactions, each part is prepared, and committed
after the main transaction, which decides. A prepared part names that transaction, and the next
loader that binds the target looks at its outcome (`SqlTarget.settle_prepared`). The main
transaction has moved the position before the first part begins, so a second loader waits for its
end.

A batch stays in one session if it is small, and if tables are altered, emptied or read again in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial

import structlog

from penstock.host import faults
from penstock.host.clock import Steps
from penstock.load.division import RowCosts, divide, is_divisible, split_phase
from penstock.model import TableName
from penstock.ports.jobs import GetJobs
from penstock.ports.sql_target import SqlTarget, apply_repeatedly
from penstock.ports.target import (
    Applied,
    MergeBatch,
    MergeSpec,
    PhaseSpec,
    ShapeNote,
    TableSync,
    Target,
)

logger = structlog.get_logger(__name__)

faults.declare("load.part.before", "load.part.after", "load.parts.joined", "load.part.committed")

Part = Sequence[PhaseSpec]


class PartedTarget(Target):
    """Target whose batches several sessions apply. Only the loader's thread uses it."""

    def __init__(
        self,
        main: SqlTarget,
        open_session: Callable[[], SqlTarget],
        *,
        session_count: int,
        may_divide: Callable[[], bool] = lambda: True,
    ) -> None:
        """Keep the main session. open_session: opens a further one, when it is first needed.

        may_divide: whether tables may be at different commits for a moment.
        """
        self.main = main
        self.costs = RowCosts()
        self._open_session = open_session
        self._session_count = session_count
        self._may_divide = may_divide
        self._others: list[SqlTarget] = []
        self._executor = ThreadPoolExecutor(session_count - 1, thread_name_prefix="apply")

    @property
    def replica(self) -> bool:  # type: ignore[override]
        """Return whether foreign keys are off in the target."""
        return self.main.replica

    @property
    def is_closed(self) -> bool:
        return any(session.is_closed for session in (self.main, *self._others))

    def use(self, jobs: GetJobs) -> None:
        self.main.use(jobs)

    def bind(self, log_id: str) -> Applied:
        self.main.progress.ensure_ahead()
        return self.main.bind(log_id)

    def read_ahead(self) -> Mapping[TableName, int]:
        return self.main.read_ahead()

    def apply(
        self, batch: object, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        assert isinstance(batch, MergeBatch), "it was staged in merge tables"
        phases = self._split(batch) if table_sync is None else []
        if not phases:
            for session in self._others:
                session.forget()  # the main session may alter tables that they know
        parts = divide(phases, self.costs, count_max=self._session_count)
        if not parts:
            return self.main.apply(batch, table_sync=table_sync, at=at)
        return _PartedBatch(self, batch, parts).run()

    def _split(self, batch: MergeBatch) -> list[PhaseSpec]:
        """Return the batch's phase in as many pieces as possible; nothing if it cannot be split."""
        if not is_divisible(batch.phases) or not self._may_divide():
            return []
        [phase] = batch.phases
        self.main.need(spec.table for spec in phase.merges)
        groups = self.main.find_groups(phase, source_engine=batch.source_engine)
        return split_phase(phase, groups)

    def open_others(self, count: int) -> Sequence[SqlTarget]:
        """Return so many sessions besides the main one."""
        while len(self._others) < count:
            session = self._open_session()
            session.log_id = self.main.log_id
            self._others.append(session)
        return self._others[:count]

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Begin work in a thread of its own."""
        return self._executor.submit(work)

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self.main.read_table_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        self.main.write_table_sync(rows, at=at)

    def take_notes(self) -> list[ShapeNote]:
        return [note for session in (self.main, *self._others) for note in session.take_notes()]

    def forget(self) -> None:
        for session in (self.main, *self._others):
            session.forget()

    def close(self) -> None:
        """Close all connections. No part is under way."""
        self._executor.shutdown()
        for session in (*self._others, self.main):
            session.close()


class _PartFailed(Exception):
    """Another session could not apply its part."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _PartedBatch:
    """One batch while several sessions apply it."""

    def __init__(self, target: PartedTarget, batch: MergeBatch, parts: Sequence[Part]) -> None:
        self._target = target
        self._main = target.main
        self._batch = batch
        self._own, *others = parts
        self._others = list(zip(target.open_others(len(others)), others, strict=True))
        self._running: list[Future[None]] = []
        self._steps = Steps(self._main.clock)
        self._known = {
            table: gsn for table, gsn in self._main.ahead.items() if gsn > batch.before.gsn
        }

    def run(self) -> Mapping[str, float]:
        """Apply and commit all parts."""
        is_prepared = self._main.prepares(len(self._others))
        with self._unwrap_errors():
            if is_prepared:
                apply_repeatedly(self._main, _merges_of(self._own), self._once_prepared)
            else:
                self._begin(lambda place: self._apply_ahead(*self._others[place]))
                try:
                    apply_repeatedly(self._main, _merges_of(self._own), self._once_ahead)
                finally:
                    wait(self._running)
        logger.debug(
            "batch applied in parts",
            parts=[len(_merges_of(part)) for part in (self._own, *(p for _, p in self._others))],
            is_prepared=is_prepared,
        )
        return {**self._batch.seconds, **self._steps.seconds}

    @contextmanager
    def _unwrap_errors(self) -> Iterator[None]:
        try:
            yield
        except _PartFailed as failed:
            raise failed.error from failed

    # --- parts that commit alone ------------------------------------------------------------------

    def _apply_ahead(self, session: SqlTarget, part: Part) -> None:
        """Apply a part in a transaction of its own; a thread does this."""
        sources = {_source_of(spec) for spec in _merges_of(part)}

        def once() -> None:
            faults.point("load.part.before")
            self._get_ready(session, part)
            with session.transaction():
                session.progress.hold_applied(log_id=session.log_id, at=self._batch.before)
                session.progress.put_ahead(
                    log_id=session.log_id,
                    tables=sources,
                    known=self._known,
                    gsn=self._batch.after.gsn,
                )
                self._apply_part(session, part)

        apply_repeatedly(session, _merges_of(part), once)
        faults.point("load.part.after")

    def _once_ahead(self) -> None:
        """Apply the main session's own part, wait for the others, and end the batch."""
        main, batch = self._main, self._batch
        gone_ahead = {_source_of(spec) for _, part in self._others for spec in _merges_of(part)}
        faults.point("load.apply.before")
        self._get_ready(main, self._own)
        with main.transaction():
            main.progress.hold_applied(log_id=main.log_id, at=batch.before)
            self._apply_part(main, self._own)
            self._join()
            self._end_apply()
            main.progress.advance(log_id=main.log_id, before=batch.before, after=batch.after)
            expected = {**self._known, **dict.fromkeys(gone_ahead, batch.after.gsn)}
            main.progress.check_ahead(log_id=main.log_id, expected=expected, at=batch.before)
            self._end_files(clears=True)
        self._end_commit()

    # --- parts that are prepared ------------------------------------------------------------------

    def _once_prepared(self) -> None:
        """Apply all parts, decide by the main session's commit, and commit the others."""
        main, batch = self._main, self._batch
        faults.point("load.apply.before")
        self._get_ready(main, self._own)
        try:
            with main.transaction():
                main.progress.advance(log_id=main.log_id, before=batch.before, after=batch.after)
                ahead = main.check_ahead(batch.before)
                decider = main.read_transaction_id()
                self._begin(lambda place: self._prepare(place, decider))
                try:
                    self._apply_part(main, self._own)
                finally:
                    wait(self._running)
                self._join()
                self._end_apply()
                self._end_files(clears=bool(ahead))
        except BaseException:
            self._give_up()
            raise
        self._begin(lambda place: self._commit_prepared(place, decider))
        wait(self._running)
        self._join()
        self._end_commit()

    def _prepare(self, place: int, decider: str) -> None:
        """Prepare a part; a thread does this."""
        session, part = self._others[place]

        def once() -> None:
            faults.point("load.part.before")
            self._get_ready(session, part)
            with session.prepared_transaction(decider, place):
                self._apply_part(session, part)

        apply_repeatedly(session, _merges_of(part), once)
        faults.point("load.part.after")

    def _commit_prepared(self, place: int, decider: str) -> None:
        """Commit a prepared part; a thread does this."""
        self._others[place][0].commit_prepared(decider, place)
        faults.point("load.part.committed")

    def _give_up(self) -> None:
        """Roll the prepared parts back. If that fails, binding the target again does it."""
        if self._main.is_closed:
            return
        try:
            self._main.settle_prepared()
        except Exception as error:
            logger.warning("prepared parts are still there", reason=str(error))

    # --- both -------------------------------------------------------------------------------------

    def _begin(self, work: Callable[[int], None]) -> None:
        """Begin the work of each other session, by its place, in its thread."""
        self._running = [
            self._target.begin(partial(work, place)) for place in range(len(self._others))
        ]

    def _join(self) -> None:
        """Wait for the other sessions; raise the first error of one."""
        wait(self._running)
        for future in self._running:
            error = future.exception()
            if error is not None:
                raise _PartFailed(error)

    def _get_ready(self, session: SqlTarget, part: Part) -> None:
        """Have a session read what it needs to know of a part, before its transaction."""
        session.need(spec.table for spec in _merges_of(part))
        session.reshape(part, source_engine=self._batch.source_engine, before=self._batch.before)

    def _apply_part(self, session: SqlTarget, part: Part) -> None:
        """Apply a part's groups one after the other, and measure them."""
        session.check_staged(
            {spec.staging: (spec.stamp, spec.staged_row_count) for spec in _merges_of(part)}
        )
        for phase in part:
            began_s = session.clock.monotonic_s()
            session.apply_phases([phase])
            self._target.costs.note(phase, session.clock.monotonic_s() - began_s)

    def _end_apply(self) -> None:
        faults.point("load.apply.after")
        self._steps.end_step("apply")
        faults.point("load.parts.joined")

    def _end_files(self, *, clears: bool) -> None:
        """Write the CL rows, and forget the tables that were ahead."""
        faults.point("load.progress.before")
        progress = self._main.progress
        progress.end_files(self._batch.files)
        if clears:
            progress.clear_ahead(log_id=self._main.log_id, gsn=self._batch.after.gsn)
        faults.point("load.commit.before")

    def _end_commit(self) -> None:
        faults.point("load.commit.after")
        self._steps.end_step("commit")


def _merges_of(part: Iterable[PhaseSpec]) -> list[MergeSpec]:
    return [spec for phase in part for spec in phase.merges]


def _source_of(spec: MergeSpec) -> TableName:
    return TableName(spec.relation.schema, spec.relation.name)
