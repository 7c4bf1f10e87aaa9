"""`penstock stage`: receives changefeeds into the staging database until it is stopped.

It receives them over HTTP, and as files of a folder or bucket.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import structlog

from penstock.control.feeds.feed_checks import Checks
from penstock.control.feeds.feed_groups import working
from penstock.control.feeds.feed_rows import row_sequencer, script_of
from penstock.control.feeds.feed_target import TargetSchemas
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.extras import STAGE, check_extras, install_line, missing_libraries
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.model.sections import Authentication, StageSection, seconds
from penstock.ports.config import Config
from penstock.ports.staging import StagingDatabase, StagingSession, staging_at

if TYPE_CHECKING:
    from penstock.stage.metrics import Metrics
    from penstock.stage.receiver.access import Access, SignedTokens
    from penstock.stage.receiver.app import Receiver
    from penstock.stage.receiver.server import Certificate

logger = structlog.get_logger()
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
    from penstock.stage.metered import MeteredStaging, StagingMetrics
    from penstock.stage.metrics import Metrics
    from penstock.stage.receiver.app import THREADS, Receiver, ReceiverOptions
    from penstock.stage.receiver.server import serving
    from penstock.stage.receiver.sessions import Sessions
    from penstock.stage.receiver.targets import TargetTables

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
        from penstock.stage.receiver.feed_files import FeedFiles, store_at

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
    from penstock.stage.receiver.access import Everybody, OneToken

    if keys is not None:
        return keys.tokens
    if section.authentication is Authentication.TOKEN:
        return OneToken(section.token)
    return Everybody()


def _certificate(config: Config, section: StageSection, host: str) -> Certificate | None:
    from penstock.stage.receiver.server import Certificate, self_signed

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
        from penstock.stage.receiver.access import SignedTokens

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
