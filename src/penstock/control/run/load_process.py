"""`penstock load`: the other half of a pipeline, bulk load and change log into the target.

Wires configuration, Spark, handover and action to the loaders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import structlog

from penstock.codec.types import Engine, parse_choices
from penstock.control.doctor.cluster import check_cluster
from penstock.control.doctor.doctor import examine
from penstock.control.doctor.past_errors import keep_error
from penstock.control.doctor.plan import check as check_plan
from penstock.control.pipeline.actions import ActionWatch, StopRequest, stop_on_signals
from penstock.control.pipeline.diagnostics import diagnostics_to
from penstock.control.pipeline.file_edits import keep_first_settings, settle_file_edits
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.new_tables import without_new
from penstock.control.pipeline.running import LOAD_LOCK, check_not_running, take_lock
from penstock.control.pipeline.servers import source_tables
from penstock.control.pipeline.table_requests import read_requests
from penstock.control.run.base_keeper import BaseKeeper
from penstock.control.run.bulk_load import (
    add_table_foreign_keys,
    bulk_load,
    bulk_options,
    bulk_planner,
    has_deferred_keys,
    wait_for_point,
)
from penstock.control.run.table_copy import TableCopier
from penstock.control.tables.new_table_watch import settle_new_tables
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.retry import Backoff, Patience, is_outage
from penstock.host.supervised import SupervisedThread
from penstock.host.task_fence import PERMITS_NAME, issue_permit, withdraw_permits
from penstock.load.bulk import BulkResult, BulkStopped, finish_foreign_keys
from penstock.load.job_figures import Reporter
from penstock.load.ledger import read_ledger, start_positions
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.loader_state import LoaderState, write_loader_state
from penstock.load.session import (
    PendingSession,
    SessionKeeper,
    SessionOptions,
    SharedUse,
    session_options,
    shared_place,
)
from penstock.load.shared_spark import PLACE
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import Planner, open_planner
from penstock.ports.config import Config, LogPath, Mode, OnTableError
from penstock.ports.positions import kind_of
from penstock.ports.progress import open_progress
from penstock.ports.registry import types_at
from penstock.ports.target import SyncState, target_name

logger = structlog.get_logger()
APPLICATION_NAME = "penstock load"
KEYS_INTERVAL_S = 2.0
BASE_CHECK_S = 0.5
BULK_ATTEMPTS_MAX = 8
Result = TypeVar("Result")


def load_changes(config: Config, *, verbose: bool = False, checked: bool = False) -> None:
    """Load in bulk, by the mode, then apply the change log until it is done or stopped.

    checked: `penstock run` has done the preflight. Raises PreflightFailed or AlreadyRunning with
    nothing changed, and the errors that end a load.
    """
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        check_not_running(config, "load")
        given = config
        config = settle_file_edits(config)
        if not checked:
            config = settle_new_tables(config)
            check_plan(config)
            examine(config).require()
        keep_first_settings(given)
        stack.enter_context(take_lock(config, config.layout.state, LOAD_LOCK))
        REAL_FILES.make_directory(config.layout.run)
        if not checked:
            stack.enter_context(diagnostics_to(config.layout.run / "load.log", verbose=verbose))
        reporter = Reporter(config.layout.run)
        options = replace(session_options(config), reporter=reporter)
        options = replace(options, shared=_shared_use(config, options))
        sessions = SessionKeeper(options, PendingSession(options))
        stack.callback(sessions.close)
        actions = ActionWatch(config.target.url, name=f"{APPLICATION_NAME} action")
        stack.callback(actions.close)
        _Load(config, sessions, actions, stop).run()


def _shared_use(config: Config, options: SessionOptions) -> SharedUse | None:
    """Return the use of a Spark that runs for several pipelines; None to start one of its own.

    Tasks of a loader that was killed end first: in a shared Spark they go on.
    """
    permits = config.layout.run / PERMITS_NAME
    place = shared_place(config, options, os.environ.get(PLACE, ""))
    if place is None or not place.is_dir():
        withdraw_permits(permits)
        return None
    return SharedUse(place=place, permit=issue_permit(permits))


class _Load:
    """Work of the load process, in order."""

    def __init__(
        self, config: Config, sessions: SessionKeeper, actions: ActionWatch, stop: StopRequest
    ) -> None:
        self.config = config
        self.sessions = sessions
        self.actions = actions
        self.stop = stop

    def run(self) -> None:
        """Do bulk load and changes, by the mode, until done or stopped."""
        mode = self.config.pipeline.mode
        loaded = BulkResult()
        if not self.sessions.is_local and self.sessions.wait(self.is_ending):
            executors = check_cluster(self.config, self.sessions.get())
            logger.info("executors looked at", count=len(executors))
        if not self.config.has_target:
            with BaseKeeper(self.config, self.sessions, owns_session=True):
                while not self.is_ending():
                    self.stop.wait(BASE_CHECK_S)
            return
        if mode is Mode.DATA_CHANGE and wait_for_point(self.config, stop=self.is_ending) is None:
            return
        if mode.has_data:
            done = self.bulk()
            if done is None:
                return
            loaded = done
        if mode.has_change:
            if self.config.merge is not None and self.config.creates_tables:
                try:
                    self.repeat(self.create_tables)
                except BulkStopped:
                    return
            self.follow(loaded)

    def is_ending(self) -> bool:
        """Return whether an end was requested, by signal or by the action STOP."""
        return self.stop() or self.actions.word() == "STOP"

    def bulk(self) -> BulkResult | None:
        """Load the tables that are not loaded yet; return None if stopped before the end."""
        config = self.config
        # Tables that are copied by request no longer belong to the bulk load.
        copied = read_requests(config).list_copied()
        taken = without_new(config, source_tables(config))
        tables = [one for one in taken if one.name not in copied]
        handed = config.pipeline.mode is Mode.DATA_CHANGE
        with bulk_planner(config) if handed else open_planner(config) as planner:
            try:
                result = self.bulk_load(planner, tables)
            except BulkStopped as stopped:
                logger.info("bulk load stopped", message=stopped.message)
                return None
        for note in result.notes:
            logger.warning("bulk load", note=note)
        if result.broken and not config.pipeline.mode.has_change:
            for error in result.broken.values():
                keep_error(config, "load", error)
            raise next(iter(result.broken.values()))  # the others are loaded
        # If all rows are of one position, the foreign keys hold already; else once the changes are
        # applied.
        waits = config.pipeline.mode.has_change and not result.stands_at_one_position
        if result.foreign_keys_pending and not waits:
            self.add_foreign_keys(tables)
        return result

    def create_tables(self) -> None:
        """Create the tables that the target of a merge lacks, before the first batch.

        Their rows are in the merged log's first transaction.
        """
        config, url = self.config, self.config.target.url
        with closing(open_progress(url, application_name=APPLICATION_NAME)) as progress:
            if progress.read_applied().gsn:
                return
        definitions = source_tables(config)
        with closing(bulk_options(config).open_target(APPLICATION_NAME)) as target:
            target.use(lambda: self.sessions.get())
            names = {one.name: target_name(one.name, config.target.map) for one in definitions}
            there = target.look(names.values()).empty
            lacking = [one for one in definitions if names[one.name] not in there]
            notes = target.create(lacking)
            # For all tables that penstock created: an earlier start may have been killed in
            # between.
            threads = config.data_loader.max_threads
            target.add_keys(definitions, threads=threads, stop=self.is_ending)
            notes += target.add_foreign_keys(definitions)
        logger.info("target tables created", tables=[str(one.name) for one in lacking])
        for note in notes:
            logger.warning("target tables", note=note)

    def read_isolated(self) -> frozenset[TableName]:
        """Return the tables that were isolated, which `penstock table resync` brings back."""
        if not self.config.pipeline.mode.has_change:
            return frozenset()
        url = self.config.target.url
        with closing(open_progress(url, application_name=APPLICATION_NAME)) as target:
            rows = target.read_table_syncs()
        return frozenset(t for t, row in rows.items() if row.state is SyncState.ISOLATED)

    def bulk_load(self, planner: Planner, tables: Sequence[TableDefinition]) -> BulkResult:
        """Load, and continue after the loss of a session with its JVM, or of a connection.

        It continues like a restarted process, from the ledger and the target's tables.
        """
        return self.repeat(lambda: self.bulk_load_once(planner, tables))

    def repeat(self, work: Callable[[], Result]) -> Result:
        """Do work that is safe to repeat; wait for servers that are away, and renew lost sessions.

        Raises BulkStopped, and errors against which waiting does not help.
        """
        patience = Patience(Backoff(attempts=BULK_ATTEMPTS_MAX))
        state = LoaderState(pid=os.getpid(), state="copying")
        while True:
            try:
                return work()
            except PenstockError as error:
                wait_s = patience.wait_s(error)
                is_lost = self.sessions.is_lost
                if wait_s is None or not (is_lost or is_outage(error)):
                    raise
                logger.warning("bulk load goes on", reason=error.message, wait_s=round(wait_s, 1))
                if is_lost:
                    self.sessions.renew()
                    continue
                state.state = "retrying"
                state.note_failure(error.message, now_us=REAL_CLOCK.now_us(), wait_s=wait_s)
                write_loader_state(self.config.layout.run, state)
                self.stop.wait(wait_s)
                if self.is_ending():
                    raise BulkStopped("stopped while a server was away") from error
                state.state = "copying"
                write_loader_state(self.config.layout.run, state)

    def bulk_load_once(self, planner: Planner, tables: Sequence[TableDefinition]) -> BulkResult:
        """Load one session's part; safe to repeat."""
        run, pid = self.config.layout.run, os.getpid()
        write_loader_state(run, LoaderState(pid=pid, is_spark_starting=True))
        if not self.sessions.wait(self.is_ending):
            raise BulkStopped("stopped while Spark was starting")
        write_loader_state(run, LoaderState(pid=pid, state="copying"))
        session = self.sessions.get().with_jobs("bulk load")
        left = self.read_isolated()
        due = [one for one in tables if one.name not in left]
        return bulk_load(self.config, session, planner, definitions=due, stop=self.is_ending)

    def follow(self, loaded: BulkResult) -> None:
        """Apply the change log after a bulk load until it is done or stopped."""
        config, section = self.config, self.config.change_loader
        done = section.done_directory
        pending = bool(loaded.positions) and not read_ledger(config.layout.state).foreign_keys_done
        keys = _ForeignKeys(self, loaded.settled) if pending else nullcontext()
        options = LoaderOptions(
            url=config.target.url,
            log_directory=config.layout.log,
            state_directory=config.layout.state,
            run_directory=config.layout.run,
            namespaces=config.target.map,
            starts=loaded.positions or start_positions(config.layout.state, kind_of(config)),
            settled=read_ledger(config.layout.state).settled_at(kind_of(config)),
            max_files_per_batch=section.max_files_per_batch,
            read_open_segment=section.read_open_segment,
            max_threads=section.max_threads,
            remove_files=section.remove_files,
            done_directory=(config.path.parent / done) if done else None,
            keeping=section.keeping,
            change_file_extension=section.change_file_extension,
            exit_when_done=config.change_extractor.exit_when_idle,
            choices=parse_choices(config.target.types, Engine(types_at(config.source.url))),
            policies=config.schema_changes.policies,
            isolates=section.on_table_error is OnTableError.ISOLATE,
            broken=loaded.broken,
            ships_frames=config.spark.log is LogPath.SHIP,
            batch_s=config.target.batch_seconds or 0.0,
            apply_sessions=section.session_count,
            may_divide=lambda: not isinstance(keys, _ForeignKeys) or keys.is_done,
            on_note=lambda note: keep_error(config, "load", note),
        )
        kept: AbstractContextManager[object] = nullcontext()
        if config.has_base:
            kept = BaseKeeper(config, self.sessions, owns_session=False)
        with kept, keys, TableCopier(config, self.sessions) as copier:
            Loader(
                options,
                self.sessions,
                stop=self.stop,
                actions=self.actions,
                copier=copier,
                add_foreign_keys=partial(add_table_foreign_keys, config),
            ).run()

    def add_foreign_keys(self, tables: Sequence[TableDefinition]) -> None:
        """Add the foreign keys of tables that penstock created."""
        for note in finish_foreign_keys(bulk_options(self.config), tables):
            logger.warning("foreign keys", note=note)


class _ForeignKeys:
    """Adder of foreign keys beside the loader, once every table is at one position.

    That is when everything before the latest table's consistent point is applied, or up to where
    snapshots of several moments are settled.
    """

    def __init__(self, load: _Load, latest: int) -> None:
        self._load = load
        self._latest = latest
        self.is_done = False
        self._ended = threading.Event()
        self._thread = SupervisedThread("foreign-keys", self._run, wait=self._ended.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread, which looks once more: the loader may have reached a position just before
        its end.
        """
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._ended.wait(KEYS_INTERVAL_S)
            try:
                # A foreign key may refer to a unique key, which the loader creates.
                if self._is_reached() and not has_deferred_keys(self._load.config):
                    self._load.add_foreign_keys(source_tables(self._load.config))
                    self.is_done = True
                    return
            except PenstockError as error:
                # It is tried again here, and by the next start.
                logger.warning("foreign keys not added yet", error=error.message)
            if last:
                return

    def _is_reached(self) -> bool:
        config = self._load.config
        with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
            applied = target.read_applied()
        if applied.position >= self._latest:
            return True
        log = read_log_end(config, look_into_open=False)
        return log.end.position >= self._latest and applied.gsn >= log.end.gsn
