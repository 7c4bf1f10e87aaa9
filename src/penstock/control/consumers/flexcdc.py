"""`penstock flexcdc`: the commands over consumer.ini, or over a pipeline file with [flexcdc].

With consumer.ini, a pipeline file of our own is beside it, and the change log in its directory;
`run` extracts in a child process and follows the log in this one. If `penstock run` or `penstock
extract` is at work on the pipeline already, it only follows. Around its work are FlexCDC's
services: pid file, background, error file, restarts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import structlog

from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.cleanup import Cleaned, clean, interval_before
from penstock.consume.flexcdc.following import FlexCdc, FlexCdcPipeline
from penstock.consume.flexcdc.ini import Ini, read_ini
from penstock.consume.flexcdc.state import Place, State
from penstock.consume.plugins import load_plugins
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.diagnostics import open_diagnostics
from penstock.control.pipeline.running import FLEXCDC_LOCK, check_not_running, processes, take_lock
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.pipeline.table_requests import put_request
from penstock.control.run.child_ends import make_failure, make_killed
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.supervisor import (
    LAST_LINES_KEPT,
    RESTART_WAIT_FIRST_S,
    RESTARTS_MAX,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.process import Child, holder_of, this_program
from penstock.log.layout import list_segments, load_state, read_durable
from penstock.log.links import enable
from penstock.log.segment import open_segment
from penstock.model import PenstockError, TableName
from penstock.model.layout import PipelineLayout
from penstock.model.patterns import Selection, as_pattern
from penstock.model.sections import FlexCdcSettings
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.changelog import changelog_source
from penstock.ports.config import OPTIONS_PART, Config
from penstock.ports.positions import positions_of
from penstock.ports.registry import part
from penstock.ports.source import extraction_of

logger = structlog.get_logger()
CONSUMER = "flexcdc"
PIPELINE_FILE = "pipeline.toml"
PIPELINE_SUFFIX = ".pipeline"


class FlexCdcMissing(PenstockError):
    """The pipeline file has no section [flexcdc]."""

    code = "FX53"


class TableNotCaptured(PenstockError):
    """A table to be dropped is not captured."""

    code = "FX56"


class TableNotInPipeline(PenstockError):
    """A table to be captured does not match [source] tables of the pipeline file."""

    code = "FX54"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Files and settings of a command.

    Attributes:
        file: The given file.
        source_text: URL of the source for the pipeline file of a consumer.ini.
        pipeline: The pipeline file; with consumer.ini it exists once `setup` was run.
        ini: Set for consumer.ini.
    """

    file: Path
    settings: FlexCdcSettings
    source: str = field(repr=False)
    source_text: str = field(default="", repr=False)
    pipeline: Path
    sections: Mapping[str, Mapping[str, str]] = field(repr=False)
    ini: Ini | None = None

    @property
    def config(self) -> Config:
        """Configuration of the pipeline."""
        return load_config(self.pipeline)

    @property
    def directory(self) -> Path:
        """Directory of the pipeline."""
        return self.pipeline.parent if self.ini is not None else self.config.directory

    @property
    def log(self) -> Path:
        """Directory of the change log."""
        return self.directory / "log"


def open_flexcdc(file: Path) -> Opened:
    """Read consumer.ini, or a pipeline file, by its ending. Raises the errors of reading them."""
    if file.suffix == ".toml":
        config = load_config(file)
        if config.flexcdc is None:
            raise FlexCdcMissing(
                f"{file.name} has no section [flexcdc]",
                hint='Add a line [flexcdc] with dest = "URL" and other keys; docs/flexcdc.md '
                "lists them.",
            )
        settings = replace(config.flexcdc, dest=config.flexcdc.dest or config.target.url)
        return Opened(
            file=file,
            settings=settings,
            source=config.source.url,
            pipeline=file,
            sections={"flexcdc": _texts(settings), **settings.sections},
        )
    ini = read_ini(file)
    for url in (ini.source, ini.settings.dest):
        part(url, OPTIONS_PART).check_url(url)
    path = file.absolute()
    return Opened(
        file=file,
        settings=ini.settings,
        source=ini.source,
        source_text=ini.source_text,
        pipeline=path.with_name(path.stem + PIPELINE_SUFFIX) / PIPELINE_FILE,
        sections=ini.sections,
        ini=ini,
    )


def _texts(settings: FlexCdcSettings) -> dict[str, str]:
    """Return the keys of [flexcdc] as consumer.ini has them, for plugins."""
    texts = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, tuple):
            texts[item.name] = ", ".join(value)
        elif not isinstance(value, Mapping):
            texts[item.name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def links_of(directory: Path) -> Path:
    """Return the folder of FlexCDC's own links, because it is one of the pipeline's consumers."""
    return PipelineLayout(root=directory).consumers / CONSUMER


def flexcdc_of(
    opened: Opened, *, warn: Callable[[str], None] = lambda _: None, plugins: bool = False
) -> FlexCdc:
    """Return a FlexCDC, not connected yet. plugins: load those that the settings name."""

    def position_text(position: int) -> str:
        return positions_of(opened.config).text(position)

    found = []
    settings = opened.settings
    if plugins and settings.plugin:
        directory = opened.file.absolute().parent
        found = load_plugins(settings.plugin, settings.plugin_order, directory)
    return FlexCdc(
        FlexCdcPipeline(
            settings=settings,
            source=opened.source,
            log=opened.log,
            links=links_of(opened.directory),
            position_text=position_text,
            sections=opened.sections,
            directory=opened.file.absolute().parent,
            warn=warn,
        ),
        plugins=found,
    )


@contextmanager
def _connect(opened: Opened) -> Iterator[tuple[State, Changelogs]]:
    with flexcdc_of(opened).connect() as (state, changelogs):
        state.require()
        changelogs.refresh()
        yield state, changelogs


# -- commands --------------------------------------------------------------------------------------


def setup(file: Path, *, force: bool) -> str:
    """Create the state tables; changes are captured from here on. Returns the position.

    It is empty for a pipeline file whose change log begins with its bulk load: changes are captured
    from its position on. force: replace existing tables; with consumer.ini the change log, too.
    Raises StateExists, AlreadyRunning, and the errors of beginning the change log.
    """
    opened = open_flexcdc(file)
    facts = changelog_source(opened.source)
    if opened.ini is not None and opened.pipeline.exists():
        check_not_running(opened.config, "extract")
    with flexcdc_of(opened).connect() as (state, _):
        state.check_new(force=force)
        if opened.ini is None:
            enable(links_of(opened.directory))  # first: each segment closed from now on gets a link
            _begin_log(opened.config)
        state.create(force=force)
        if opened.ini is None:
            place = _end_of_log(opened)
            position = place.position
        else:
            position = facts.end(opened.source)
            _begin_pipeline(opened, position)
            place = Place()
        files = facts.files(opened.source)
        server_id = facts.server_id(opened.source)
        session = state.session
        session.begin()
        if place.log_id:
            state.move(place)
        state.put_files(server_id, files)
        if position:
            state.put_position(server_id, *facts.place(position), in_files=bool(files))
        session.commit()
    return position


def _begin_log(config: Config) -> None:
    """Begin the log now, so that it gets the changes committed before the first `run`."""
    has_begun = extraction_of(config).has_begun(pipeline_of(config))
    if not config.pipeline.mode.has_data and not has_begun and not is_extracting(config):
        extract_changes(config, begins_only=True)


def _end_of_log(opened: Opened) -> Place:
    """Return the durable end of the pipeline's log; an empty place without a log."""
    log = load_state(opened.log)
    if log is None:
        return Place()
    closed = list_segments(opened.log)
    number, end = (closed[-1].number if closed else log.number_next - 1), log.end
    durable = read_durable(opened.log)
    if durable is not None and durable.end.trx > end.trx:
        number, end = durable.number - 1, durable.end
    elif closed:
        with open_segment(closed[-1].path) as segment:
            end = segment.end
    text = positions_of(opened.config).text(end.position)
    return Place(log_id=log.log_id, segment=number, trx=end.trx, position=text)


def add_table(file: Path, table: TableName) -> str:
    """Capture a table; return the name of its changelog, which is recreated.

    Raises TableNotInPipeline, and the errors of creating it.
    """
    opened = open_flexcdc(file)
    if opened.ini is None and not Selection.parse(opened.config.source.tables).takes(table):
        raise TableNotInPipeline(
            f"{table} is not captured by {file.name}: its [source] tables do not match it",
            hint=f"Run `penstock table add FILE {table}` first.",
            table=str(table),
        )
    with _connect(opened) as (_, changelogs):
        name = changelogs.add(table)
        if opened.ini is not None:
            settle_capture(opened, changelogs.by_table)
    return str(name)


def drop_table(file: Path, table: TableName) -> None:
    """Stop capturing a table and drop its changelog. Raises TableNotCaptured."""
    opened = open_flexcdc(file)
    with _connect(opened) as (_, changelogs):
        known = ", ".join(str(one) for one in changelogs.by_table)
        if not changelogs.remove(table):
            raise TableNotCaptured(
                f"{table} is not captured",
                hint=f"Captured are: {known or 'none'}.",
                table=str(table),
            )
        if opened.ini is not None and not opened.settings.auto_changelog:
            if opened.log.exists():
                _ask(opened.config, table, Capture.REMOVED)
            else:
                settle_capture(opened, changelogs.by_table)


def cleanup(file: Path) -> Cleaned:
    """Remove changes older than log_retention_interval."""
    opened = open_flexcdc(file)
    now = datetime.now(UTC).replace(tzinfo=None)
    before = interval_before(now, opened.settings.log_retention_interval)
    with _connect(opened) as (state, _):
        return clean(state, before)


# -- the pipeline of consumer.ini ------------------------------------------------------------------


def _begin_pipeline(opened: Opened, position: str) -> None:
    """Begin a new pipeline at a position; files of an earlier one are removed."""
    for name in ("log", "state", "run", "spill", "cdc"):
        shutil.rmtree(opened.directory / name, ignore_errors=True)
    REAL_FILES.make_directory(opened.directory)
    file, offset = changelog_source(opened.source).place(position)
    write_pipeline(opened, file, offset, ())
    enable(links_of(opened.directory))


def write_pipeline(opened: Opened, file: str, offset: int, tables: Iterable[TableName]) -> None:
    """Write the pipeline file, which captures these tables from a place of the binlog on."""
    patterns = patterns_of(opened.settings, tables)
    lines = [
        f"# Made by `penstock flexcdc --ini {opened.file.name}`, which replaces it.",
        "[pipeline]",
        f"name = {_quote(re.sub(r'[^A-Za-z0-9_.-]', '_', 'flexcdc-' + opened.settings.database))}",
        'directory = "."',
        "",
        "[source]",
        f"url = {_quote(opened.source_text)}",
        f"tables = [{', '.join(map(_quote, patterns))}]",
        "",
        "[changeExtractor]",
        "fullBeforeImages = true",
        f"binlogFile = {_quote(file)}",
        f"binlogPosition = {offset}",
    ]
    text = "\n".join(lines) + "\n"
    REAL_FILES.replace(opened.pipeline, text.encode(), is_secret=True)  # may have a password


def patterns_of(settings: FlexCdcSettings, tables: Iterable[TableName]) -> list[str]:
    """Return the captured patterns: whole databases with auto_changelog, otherwise these tables.

    A pipeline must capture something, so one that waits for its first table names its own state
    table.
    """

    def whole(database: str) -> str:
        return as_pattern(TableName(database, "x")).removesuffix("x") + "*"

    if not settings.auto_changelog:
        named = [as_pattern(table) for table in tables]
        return named or [as_pattern(TableName(settings.database, settings.mvlogs))]
    wanted = [whole(database) for database in settings.only_databases] or ["*.*"]
    return [*wanted, f"!{whole(settings.database)}"]


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def settle_capture(opened: Opened, tables: Collection[TableName]) -> None:
    """Let the pipeline of consumer.ini capture these tables, and no others by name.

    Before its log has begun, they are written to its file; later, the extraction is asked, and
    begins or ends a capture within a second, or at its next start.
    """
    config = opened.config
    if not opened.log.exists():
        section = config.change_extractor
        write_pipeline(opened, section.binlog_file or "", section.binlog_position or 4, tables)
        return
    selection = Selection.parse(config.source.tables)
    for table in tables:
        if not selection.takes(table):
            _ask(config, table, Capture.ADDED)


def _ask(config: Config, table: TableName, capture: Capture) -> None:
    def change(request: TableRequest, number: int) -> TableRequest:
        return replace(request, capture=capture, capture_id=number)

    put_request(config, table, change)


def is_extracting(config: Config) -> bool:
    """Return whether another process extracts already."""
    return any(one.pid for one in processes(config) if one.name == "extract")


class FlexCdcRunning(PenstockError):
    """The pid file names a running process of ours."""

    code = "FX55"


class FlexCdcFileUnusable(PenstockError):
    """A file that the settings or the command line name cannot be written. fields: key, path."""

    code = "FX57"


def _open_named(path: Path, key: str, mode: str) -> IO[str]:
    """Open a file that a setting names. Raises FlexCdcFileUnusable."""
    try:
        opened: IO[str] = path.open(mode, encoding="utf-8", buffering=1)
    except OSError as error:
        raise FlexCdcFileUnusable(
            f"{key}: {path} cannot be written: {error.strerror}",
            hint=f"Create its folder, mkdir -p {path.parent}, and let this user write there; or "
            f"correct {key}. Then give the same command again.",
            key=key,
            path=str(path),
        ) from error
    return opened


@contextmanager
def pid_file(path: Path | None, say: Callable[[str], object]) -> Iterator[None]:
    """Keep our process id in a file during the block; None: nowhere. Raises FlexCdcRunning."""
    if path is None:
        yield
        return
    if path.exists():
        holder = holder_of(path)
        if holder and holder != os.getpid():
            raise FlexCdcRunning(
                f"Already running! process {holder}, says {path}",
                hint=f"End it first: kill {holder}",
                pid=holder,
            )
        say("Stale lockfile detected.")
    with _open_named(path, "--pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def as_daemon(pid: Path | None) -> None:
    """Continue in the background: the process that was started ends with 0."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    if pid is not None:
        pid.write_text(f"{os.getpid()}\n", encoding="ascii")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


@contextmanager
def error_log(file: Path) -> Iterator[None]:
    """Write the error that ends the block into the file that `error_log` names, emptied first."""
    opened = open_flexcdc(file)
    path = opened.file.absolute().parent / opened.settings.error_log
    with _open_named(path, "error_log", "w") as errors:
        try:
            yield
        except PenstockError as error:
            errors.write(f"{error.code}: {error.message}\n{error.hint}\n")
            raise
        except Exception as error:
            errors.write(f"{type(error).__name__}: {error}\n")
            raise


POLL_S = 0.2


def run_safely(file: Path, options: Sequence[str]) -> None:
    """Run `penstock flexcdc run` with these options until it ends with 0, as consumer_safe.sh does.

    Each failure is noted in failure_log_file and mailed to failure_email_address, if there is a
    program sendmail; the next start is failure_sleep_time seconds later.
    """
    settings = open_flexcdc(file).settings
    log = file.absolute().parent / settings.failure_log_file
    _open_named(log, "failure_log_file", "a").close()
    stop = StopRequest()
    with stop_on_signals(stop, hurry=False):
        before = signal.signal(signal.SIGHUP, lambda *_: stop.ask())
        try:
            while not stop():
                code = _once(
                    [*this_program(), "flexcdc", "--ini", str(file), "run", *options], stop
                )
                if code == 0 or stop():
                    return
                _note(log, settings.failure_email_address, code)
                stop.wait(settings.failure_sleep_time)
        finally:
            signal.signal(signal.SIGHUP, before)


def _once(arguments: Sequence[str], stop: StopRequest) -> int:
    process = subprocess.Popen(list(arguments), stdin=subprocess.DEVNULL, start_new_session=True)
    told = False
    while process.poll() is None:
        if stop() and not told:
            process.send_signal(signal.SIGTERM)
            told = True
        stop.wait(POLL_S) if not told else process.wait()
    return process.returncode


def _note(log: Path, address: str, code: int) -> None:
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} penstock flexcdc run ended with exit code {code}"
    with log.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    sendmail = shutil.which("sendmail")
    if sendmail is not None and address:
        mail = f"To: {address}\nSubject: FlexCDC failed\n\n{text}\n"
        done = subprocess.run([sendmail, "-t"], input=mail.encode(), check=False)
        if done.returncode:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"sendmail ended with exit code {done.returncode}\n")


WAIT_FOR_TABLE_S = 1.0
END_TIMEOUT_S = 60.0


class Extraction:
    """`penstock extract` as a child process. It is started again after a kill; its error is raised
    here.
    """

    def __init__(self, pipeline: Path, diagnostics: IO[str]) -> None:
        """Start it."""
        self._arguments = [*this_program(), "extract", str(pipeline), "--json"]
        self._diagnostics = diagnostics
        self._lines: deque[str] = deque(maxlen=LAST_LINES_KEPT)
        self._restarts = 0
        self._restart_at_s: float | None = None
        self._child = self._start()

    def _start(self) -> Child:
        return Child(self._arguments, on_line=self._on_line)

    def _on_line(self, line: str) -> None:
        self._lines.append(line)
        self._diagnostics.write(line + "\n")

    def check(self) -> bool:
        """Return whether it has ended well. Raises HalfFailed, HalfKilled."""
        if self._restart_at_s is not None:
            if REAL_CLOCK.monotonic_s() >= self._restart_at_s:
                self._restart_at_s = None
                self._child = self._start()
            return False
        code = self._child.poll()
        if code is None or code == 0:
            return code == 0
        self._child.close()
        if code > 0:
            raise make_failure("extract", code, self._lines)
        if self._restarts >= RESTARTS_MAX:
            raise make_killed("extract", code, self._restarts + 1)
        self._restart_at_s = REAL_CLOCK.monotonic_s() + RESTART_WAIT_FIRST_S * 2**self._restarts
        self._restarts += 1
        logger.warning("process killed", process="extract", restarts=self._restarts)
        return False

    def end(self) -> None:
        """End the child in order, or by force if that takes too long."""
        self._child.signal(signal.SIGTERM)
        if self._child.wait(END_TIMEOUT_S) is None:
            self._child.kill_group()
        self._child.close()


def run_flexcdc(
    file: Path,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    follows_only: bool = False,
) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. say: prints a line. warn: prints a warning.

    Raises the error that ends it: uncommitted work in the destination is undone, and the next run
    continues after the committed work. follows_only: `penstock run` extracts.
    """
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        before = signal.signal(signal.SIGHUP, lambda *_: stop.ask())
        stack.callback(signal.signal, signal.SIGHUP, before)
        opened = open_flexcdc(file)
        flexcdc = flexcdc_of(opened, warn=warn, plugins=True)
        _require_state(opened)
        lock = take_lock(opened.config, opened.config.layout.state, FLEXCDC_LOCK)
        stack.callback(lock.release)
        _await_table(opened, stop, say)
        if stop():
            return
        path = opened.directory / "run" / "extract.log"
        diagnostics = stack.enter_context(open_diagnostics(path))
        config = opened.config
        own: list[Extraction] = []

        def is_over() -> bool:
            """Return whether to end. Starts an extraction if no process extracts, because the child
            of a killed run ends late.
            """
            if stop():
                return True
            if own:
                return own[0].check()
            if not follows_only and not is_extracting(config):
                own.append(Extraction(opened.pipeline, diagnostics))
                stack.callback(own[0].end)
            return False

        shown: list[Place] = []

        def on_place(place: Place) -> None:
            if not shown or shown[0].trx != place.trx:
                shown[:] = [place]
                logger.info("changes are in the destination", position=place.position)

        flexcdc.run(is_over, on_place=on_place)


def _require_state(opened: Opened) -> None:
    with flexcdc_of(opened).connect() as (state, _):
        state.require()


def _await_table(opened: Opened, stop: StopRequest, say: Callable[[str], None]) -> None:
    """Wait until there is a table to capture, and let the pipeline capture the wanted tables."""
    if opened.ini is None:
        return
    told = False
    while not stop():
        with flexcdc_of(opened).connect() as (_, changelogs):
            changelogs.refresh()
            known = changelogs.by_table
        if known or opened.settings.auto_changelog:
            settle_capture(opened, known)
            return
        if not told:
            say("no table is captured yet: waiting for `penstock flexcdc add-table`")
            told = True
        stop.wait(WAIT_FOR_TABLE_S)
