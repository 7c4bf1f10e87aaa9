"""`penstock flexcdc`: the commands over consumer.ini, or over a pipeline file with [flexcdc].

With consumer.ini, a pipeline file of our own is beside it, and the change log in its directory;
`run` extracts in a child process and follows the log in this one.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.cleanup import Cleaned, clean, interval_before
from penstock.consume.flexcdc.following import FlexCdc, FlexCdcPipeline
from penstock.consume.flexcdc.ini import Ini, read_ini
from penstock.consume.flexcdc.state import Place, State
from penstock.consume.plugins import load_plugins
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import check_not_running, processes
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.pipeline.table_requests import put_request
from penstock.control.run.extract_process import extract_changes
from penstock.host.files import REAL_FILES
from penstock.log.durable import read_durable
from penstock.log.layout import list_segments
from penstock.log.links import enable
from penstock.log.segment import open_segment
from penstock.log.state import load_state
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
        pipeline: The pipeline file; with consumer.ini it exists once `setup` was run.
        ini: Set for consumer.ini.
    """

    file: Path
    settings: FlexCdcSettings
    source: str = field(repr=False)
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
    """Return the folder of our names of segments: we are one of the pipeline's consumers."""
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
        f"url = {_quote(opened.source.replace('${', '$${'))}",
        f"tables = [{', '.join(map(_quote, patterns))}]",
        "",
        "[changeExtractor]",
        "fullBeforeImages = true",
        f"binlogFile = {_quote(file)}",
        f"binlogPosition = {offset}",
    ]
    text = "\n".join(lines) + "\n"
    REAL_FILES.replace(opened.pipeline, text.encode(), is_secret=True)  # the source's password


def patterns_of(settings: FlexCdcSettings, tables: Iterable[TableName]) -> list[str]:
    """Return the captured patterns: whole databases with auto_changelog; otherwise these tables.

    A pipeline must capture something: one that waits for its first table names its own state table.
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
