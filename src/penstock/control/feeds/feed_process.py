"""`penstock stage`: receives changefeeds into the staging database until it is stopped.

It receives them over HTTP, and as files of a folder or bucket. In a mode without processes it
writes rows straight into the target.

For the metrics it looks at the groups: each second at the windows of all, every ten seconds at the
number of stale mutations of the groups that this instance works on, and each minute whether their
rows were applied in order. Not here: the counters (`penstock.feeds.metrics`).
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import structlog

from penstock.control.feeds.feed_groups import GroupWorker, working
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.extras import STAGE, check_extras, install_line, missing_libraries
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import Authentication, StageMode, StageSection, seconds
from penstock.ports.config import Config
from penstock.ports.feeds import (
    Group,
    StagingDatabase,
    StagingSession,
    feeds,
    group_name,
    log_id_of,
    staging_at,
)
from penstock.ports.row_apply import row_target_at

if TYPE_CHECKING:
    from penstock.feeds.apply.sequencer import RowSequencer
    from penstock.feeds.metrics import Metrics, StagingMetrics
    from penstock.feeds.receiver.access import Access, SignedTokens
    from penstock.feeds.receiver.app import Certificate, Receiver
    from penstock.feeds.script import Script

logger = structlog.get_logger()
ROUND_S = 1.0
ROUND_AGAIN_S = 10.0
"""Seconds after a round in which something had to wait or failed."""


def script_of(config: Config) -> Script:
    """Return the user's module of a pipeline. Raises UserModuleInvalid."""
    from penstock.feeds.script import load_script

    section = _section(config)
    return load_script(section.user_module, beside=config.path.parent)


def _section(config: Config) -> StageSection:
    assert config.stage is not None, "a file for changefeeds"
    return config.stage


def with_options(section: StageSection, script: Script) -> StageSection:
    """Return the section with the settings of the user's module; the file's settings win.

    Raises UserModuleInvalid.
    """
    from penstock.feeds.script import UserModuleInvalid

    names = {
        "mode": "mode",
        "bestEffortWindow": "best_effort_window",
        "dlqTableName": "dlq_table_name",
    }
    default = StageSection()
    found = section
    for key, text in script.options.items():
        name = names[key]
        if getattr(section, name) != getattr(default, name):
            continue
        try:
            value: Any = StageMode(text) if key == "mode" else text
            if key == "bestEffortWindow":
                seconds(text)
        except ValueError as error:
            raise UserModuleInvalid(
                f"set_options: {key} = {text!r} is not understood",
                hint="Write it as in [stage] of the pipeline file.",
            ) from error
        changed: dict[str, Any] = {name: value}
        found = replace(found, **changed)
    return found


@contextmanager
def row_sequencer(config: Config, metrics: Metrics, script: Script) -> Iterator[RowSequencer]:
    """Yield the sequencer, which accepts mutations and sweeps staged ones."""
    from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
    from penstock.feeds.metrics import ApplyMetrics
    from penstock.feeds.receiver.app import THREADS
    from penstock.feeds.sessions import Sessions

    section = with_options(_section(config), script)
    options = SequencerOptions(
        mode=section.mode,
        best_effort_window_s=seconds(section.best_effort_window),
        dlq_table=section.dlq_table_name,
        stages_all=bool(config.consumers or feeds(config)),
    )
    # A thread has one session while it writes and may ask for another to read the catalogue.
    with Sessions(row_target_at(config.target.url), 2 * THREADS + 2) as target:
        yield RowSequencer(
            target,
            metrics=ApplyMetrics(metrics.registry),
            log_id=partial(log_id_of, config),
            script=script,
            options=options,
        )


LOOK_S = 1.0
STALE_S = 10.0
ORDER_S = 60.0
ORDER_ROWS_MAX = 100_000
"""Rows of a table whose order is checked in a minute: they are sorted."""


class Checks:
    """Thread that looks while a with block runs."""

    def __init__(
        self,
        database: StagingDatabase,
        workers: Mapping[str, GroupWorker],
        metrics: StagingMetrics,
        *,
        retire_after_s: float,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare the thread. workers: by the groups' names; more may be added."""
        self._database, self._workers, self._metrics = database, workers, metrics
        self._retire_after_s, self._clock = retire_after_s, clock
        self._stale_s = self._order_s = clock.monotonic_s()
        self._checked: dict[Group, Hlc] = {}
        self._stop = threading.Event()
        self._thread = SupervisedThread(
            "checks", self._run, wait=self._stop.wait, on_error=lambda *_: metrics.windows.clear()
        )

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.open_session() as session:
                    while not self._stop.is_set():
                        self.look(session)
                        self._stop.wait(LOOK_S)
            except PenstockError as error:
                self._metrics.windows.clear()  # unknown windows are not shown
                logger.warning("groups not checked", code=error.code, error=error.message)
                self._stop.wait(LOOK_S)

    def look(self, session: StagingSession) -> None:
        """Do what is due now."""
        now_s = self._clock.monotonic_s()
        workers = list(self._workers.values())
        for worker in workers:
            session.window(worker.group)
        ours = [worker.group for worker in workers if worker.state == "working"]
        if now_s - self._stale_s >= STALE_S:
            self._stale_s = now_s
            for group in ours:
                self.count_stale(session, group)
        if now_s - self._order_s >= ORDER_S:
            self._order_s = now_s
            for group in ours:
                self.check_order(session, group)

    def count_stale(self, session: StagingSession, group: Group) -> None:
        """Count unapplied mutations older than the retired time."""
        committed = session.window(group).committed
        before = Hlc(max(0, committed.nanos - round(self._retire_after_s * 1e9)))
        for table in session.staged_tables(group):
            count = session.stale_count(table, before)
            if count is not None:
                self._metrics.stale.labels(group_name(group), table.name).set(count)

    def check_order(self, session: StagingSession, group: Group) -> None:
        """Check that rows were applied in the order of their times, since the last check."""
        committed = session.window(group).committed
        after = self._checked.get(group, ZERO)
        for table in session.staged_tables(group):
            count = session.inconsistent_count(table, after=after, limit=ORDER_ROWS_MAX)
            self._metrics.inconsistent.labels(group_name(group), table.name).inc(count)
            if count:
                logger.error("mutations applied out of order", table=str(table), keys=count)
        self._checked[group] = committed


_LOOK_S = 0.5
_AGAIN_S = 1.0


class StageSectionMissing(PenstockError):
    """The pipeline file is not for changefeeds."""

    code = "ST16"


class StageNotInstalled(PenstockError):
    """The libraries that receive changefeeds are not installed."""

    code = "ST17"


def stage(config: Config, *, create: bool, on_served: Callable[[str], None]) -> None:
    """Receive changefeeds until a signal arrives.

    Missing tables of the staging database are created. Raises StageSectionMissing,
    StageNotInstalled, and the errors of the staging database, the target and the socket.

    Args:
        config: The pipeline.
        create: Create the database as well.
        on_served: Gets the address, as soon as it answers.
    """
    section, database = checked_sections(config)
    database.create(database=create)
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        url, look = stack.enter_context(receiving(config, section, database))
        on_served(url)
        while not stop.wait(_LOOK_S):
            look()


def checked_sections(config: Config) -> tuple[StageSection, StagingDatabase]:
    """Return [stage] and the staging database. Raises StageSectionMissing, StageNotInstalled."""
    if config.stage is None or config.staging is None:
        raise StageSectionMissing(
            f"{config.path.name} has no [stage]",
            hint="Add [stage] and [staging] with its url, and take [source] out; docs/stage.md "
            "shows a whole file.",
        )
    missing = missing_libraries(STAGE)
    if missing:
        raise StageNotInstalled(
            f"receiving changefeeds needs {', '.join(missing)}, which is not installed",
            hint=f"Run: {install_line([STAGE])}",
        )
    check_extras(config)
    return config.stage, staging_at(config.staging.url)


@contextmanager
def receiving(
    config: Config, section: StageSection, database: StagingDatabase
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Receive while the block runs; yield the address, and a function to call now and then."""
    from penstock.feeds.metrics import MeteredStaging, Metrics, StagingMetrics
    from penstock.feeds.receiver.app import THREADS, Receiver, ReceiverOptions, serving
    from penstock.feeds.receiver.targets import TargetTables
    from penstock.feeds.sessions import Sessions

    metrics = Metrics()
    staging_metrics = StagingMetrics(metrics.registry)
    database = MeteredStaging(database, staging_metrics)
    script = script_of(config)
    tables = TargetTables(TargetSchemas(config), is_source=script.is_source)
    tables.catalog.check()
    host, port = section.address
    options = ReceiverOptions(
        response_timeout_s=seconds(section.http_response_timeout),
        request_bytes_max=section.request_bytes_max,
        ndjson_buffer_bytes=section.ndjson_buffer_size,
    )
    with ExitStack() as stack:
        sessions = stack.enter_context(Sessions(database, THREADS))
        sequencer = stack.enter_context(row_sequencer(config, metrics, script))
        keys = None
        if section.authentication is Authentication.JWT:
            keys = stack.enter_context(_keys(database, metrics, section))
        receiver = Receiver(
            sessions=sessions,
            tables=tables,
            access=_access(section, keys),
            metrics=metrics,
            options=options,
            accept=sequencer.accept,
        )
        certificate = _certificate(config, section, host)
        url = stack.enter_context(serving(receiver, host, port, certificate))
        files = _FilesThread(section, database, receiver) if section.storage_url else None
        if files is not None:
            stack.enter_context(files)
        groups = stack.enter_context(working(config, database, sequencer))
        stack.enter_context(
            Checks(
                database,
                groups.workers,
                staging_metrics,
                retire_after_s=seconds(section.retire_offset),
            )
        )

        def look() -> None:
            if keys is not None:
                keys.reload_if_due()
            if files is not None and files.error is not None:
                raise files.error

        yield url, look


class _FilesThread:
    """Reader of a feed's files beside the requests. error: the error that has ended it."""

    def __init__(
        self, section: StageSection, database: StagingDatabase, receiver: Receiver
    ) -> None:
        from penstock.feeds.receiver.feed_files import FeedFiles, store_at

        self.error: PenstockError | None = None
        self._database, self._stop = database, threading.Event()
        self._delay_s = seconds(section.fetch_delay)
        self._files = FeedFiles(
            store_at(section.storage_url),
            receiver,
            group=tuple(section.target_schema.split(".")),
            folders=section.partition_format,
            size_max=section.request_bytes_max,
            lease_s=section.lease_seconds,
            hostname=socket.gethostname(),
        )
        self._thread = SupervisedThread("feed files", self._run, wait=self._stop.wait)

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End after the file that is being staged."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.open_session() as session:
                    try:
                        self._follow(session)
                    finally:
                        self._files.release(session)
            except PenstockError as error:
                if error.retry != "backoff":
                    self.error = error
                    return
                logger.warning("files of a feed not read", code=error.code, error=error.message)
                self._stop.wait(_AGAIN_S)

    def _follow(self, session: StagingSession) -> None:
        while not self._stop.is_set():
            if not self._files.step(session, self._stop.is_set):
                self._stop.wait(self._delay_s)


def _access(section: StageSection, keys: _Keys | None) -> Access:
    from penstock.feeds.receiver.access import Everybody, OneToken

    if keys is not None:
        return keys.tokens
    if section.authentication is Authentication.TOKEN:
        return OneToken(section.token)
    return Everybody()


def _certificate(config: Config, section: StageSection, host: str) -> Certificate | None:
    from penstock.feeds.receiver.app import Certificate, self_signed

    if section.tls_certificate:
        beside = config.path.parent
        return Certificate(
            certificate=beside / section.tls_certificate,
            private_key=beside / section.tls_private_key,
        )
    if not section.tls_self_signed:
        return None
    REAL_FILES.make_directory(config.layout.state)
    return self_signed(config.layout.state, host)


class _Keys:
    """Keys of tokens, read again each minute, and soon after SIGHUP."""

    def __init__(self, database: StagingDatabase, metrics: Metrics, every_s: float) -> None:
        from penstock.feeds.receiver.access import SignedTokens

        self.tokens: SignedTokens = SignedTokens()
        self._database, self._metrics, self._every_s = database, metrics, every_s
        self._asked = threading.Event()
        self._loaded_s = 0.0

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Ask for a new reading, on SIGHUP."""
        self._asked.set()

    def load(self) -> None:
        """Read the keys now."""
        self._asked.clear()
        self._loaded_s = REAL_CLOCK.monotonic_s()
        with self._database.open_session() as session:
            self.tokens.load(session.read_keys())
        self._metrics.keys_loaded.set(self.tokens.loaded_us / 1e6)

    def reload_if_due(self) -> None:
        """Read the keys if it is time; the previous ones are kept if that fails."""
        age_s = REAL_CLOCK.monotonic_s() - self._loaded_s
        if self._asked.is_set() or (self._every_s and age_s >= self._every_s):
            try:
                self.load()
            except PenstockError as error:
                logger.warning("keys of tokens not read", code=error.code, error=error.message)


@contextmanager
def _keys(database: StagingDatabase, metrics: Metrics, section: StageSection) -> Iterator[_Keys]:
    keys = _Keys(database, metrics, seconds(section.jwt_refresh))
    keys.load()
    if threading.current_thread() is not threading.main_thread():
        yield keys
        return
    before = signal.signal(signal.SIGHUP, keys.ask)
    try:
        yield keys
    finally:
        signal.signal(signal.SIGHUP, before)
