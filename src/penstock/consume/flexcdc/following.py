"""FlexCDC at work: it follows the change log from the stored place until it is told to stop.

Not here: writing the log (`penstock extract`), and the output of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.codec.types import NO_CHOICES, Choices, Engine, parse_choices
from penstock.codec.types.mapping import ERROR
from penstock.consume.flexcdc.calling import PluginCaller, failures_of
from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.images import ImageOptions
from penstock.consume.flexcdc.reading import Progress, SegmentWalk, Sink
from penstock.consume.flexcdc.state import Place, State, behind
from penstock.consume.flexcdc.writing import ChangelogWriter, SourceServer
from penstock.consume.plugins import Plugin, Transaction
from penstock.consume.plugins.base import Instance
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectFailed
from penstock.host.files import FileMissing
from penstock.host.state_of_log import StateOfOtherLog, check_log_id
from penstock.log.layout import EXTENSION_DEFAULT, SegmentFile, load_state, missing
from penstock.log.links import release
from penstock.log.listing import Listing, ReaderErrors, SavedSegment
from penstock.log.segment import Segment, SegmentOpener
from penstock.model import PenstockError, TableName
from penstock.model.sections import FlexCdcSettings
from penstock.ports.changelog import (
    ChangelogSession,
    ChangelogSource,
    Origin,
    changelog_source,
    open_changelogs,
)
from penstock.ports.tables import tables_at

logger = structlog.get_logger()

APPLICATION_NAME = "penstock flexcdc"
IDLE_S = 1.0  # FlexCDC's sleep when there is nothing, which then grows by sleep_increment
STOP_CHECK_S = 0.5
REFRESH_S = 1.0  # interval for reading the captured tables
FILES_S = 30.0  # interval for asking the source for the files of its log
BEGIN_ANEW = (
    "Name the destination of this log; or begin again: `penstock flexcdc --ini FILE setup "
    "--force`, and read the tables again."
)


class LogOther(StateOfOtherLog):
    """The state is the position in another change log. Fields: place, expected, actual."""

    code = "FX05"


class LogBegins(PenstockError):
    """The change log begins after the place up to which it was read."""

    code = "FX06"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexCdcPipeline:
    """Settings and directories of a FlexCDC.

    Attributes:
        settings: settings.dest is the destination.
        source: URL of the source.
        log: directory of segments.
        links: directory of our own links to them, which are removed once they are read.
        position_text: prints positions.
        extension: of segments.
        sections: settings for plugins.
        directory: base of relative paths in them.
        warn: receives the warnings of raise_warnings.
    """

    settings: FlexCdcSettings
    source: str = field(repr=False)
    log: Path
    links: Path
    position_text: Callable[[int], str]
    extension: str = EXTENSION_DEFAULT
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    directory: Path = Path()
    warn: Callable[[str], None] = lambda _: None


class FlexCdc(Instance):
    """FlexCDC with its connections, and the `Instance` of plugins. A context manager."""

    def __init__(
        self,
        pipeline: FlexCdcPipeline,
        *,
        plugins: Sequence[tuple[str, Plugin]] = (),
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Set the parts; `connect` connects."""
        self.pipeline = pipeline
        self._settings = pipeline.settings
        self._plugins = plugins
        self._clock = clock
        self._facts: ChangelogSource = changelog_source(pipeline.source)
        self._session: ChangelogSession | None = None
        self._source: Any = None
        self._changelogs: Changelogs | None = None
        self._caller: PluginCaller | None = None
        self._origin: Origin | None = None
        self._refresh_at_s = self._files_at_s = 0.0

    # -- for plugins -----------------------------------------------------------------------------

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        return self.pipeline.sections

    @property
    def mvlogList(self) -> Mapping[str, str]:  # noqa: N802 - FlexCDC's name
        known = self._changelogs.by_table if self._changelogs is not None else {}
        return {str(table): changelog.name for table, changelog in known.items()}

    def get_source(self, new: bool = False) -> Any:
        if new:
            return self._facts.connect(self.pipeline.source)
        if self._source is None:
            self._source = self._facts.connect(self.pipeline.source)
        return self._source

    def get_dest(self, new: bool = False) -> Any:
        if new:
            return changelog_source(self._settings.dest).connect(self._settings.dest)
        return self.session.driver

    def columns(self, db: str, table: str) -> Mapping[str, str]:
        assert self._changelogs is not None, "connected"
        changelog = self._changelogs.changelog(TableName(db, table))
        return dict(list((self.session.shape(changelog) or {}).items())[4:])

    def key(self, db: str, table: str) -> Sequence[str]:
        return self._caller.key(db, table) if self._caller is not None else ()

    @property
    def origin(self) -> Origin:
        if self._origin is None:
            self._origin = self._facts.origin(self.pipeline.source)
        return self._origin

    @property
    def transaction(self) -> Transaction:
        assert self._caller is not None, "in commit_trx only"
        return self._caller.transaction

    @property
    def directory(self) -> Path:
        return self.pipeline.directory

    # -- connected -------------------------------------------------------------------------------

    @property
    def session(self) -> ChangelogSession:
        """Session on the destination, while it is connected."""
        assert self._session is not None, "connected"
        return self._session

    @contextmanager
    def connect(self) -> Iterator[tuple[State, Changelogs]]:
        """Connect to the destination for a while. Raises the errors of connecting."""
        types = tables_at(self.pipeline.source).server_of(self.pipeline.source).engine
        self._session = open_changelogs(
            self._settings.dest,
            namespace=self._settings.database,
            source_types=types,
            choices=choices_of(self._settings.types, types),
            application_name=APPLICATION_NAME,
        )
        try:
            state = State(self._session, self._settings.names)
            self._changelogs = Changelogs(
                state,
                self._settings,
                self._define,
                self._warn_if_wanted,
                may_drop=self._facts.KNOWS_RENAMES,
            )
            yield state, self._changelogs
        finally:
            self._session.close()
            if self._source is not None:
                self._source.close()
                self._source = None

    def _define(self, table: TableName) -> Any:
        return self._facts.definition(self.pipeline.source, table)

    def _warn_if_wanted(self, text: str) -> None:
        logger.warning("flexcdc", warning=text)
        if self._settings.raise_warnings:
            self.pipeline.warn(text)

    # -- run -------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool], *, on_place: Callable[[Place], None]) -> None:
        """Follow the log until `stop`.

        Plugins are initialised before anything is connected, and closed at the end, after an
        error, too.

        Args:
            stop: returns whether to stop.
            on_place: called with the place that the destination has.
        """
        begun: list[tuple[str, Plugin]] = []
        try:
            for name, plugin in self._plugins:
                begun.append((name, plugin))
                with failures_of(name, "plugin_init"):
                    plugin.plugin_init(self)
            with self.connect() as (state, changelogs):
                state.require()
                self._follow(state, changelogs, stop, on_place)
        except BaseException:
            self._end(begun)  # the first error is reported
            raise
        for error in self._end(begun):
            raise error

    def _end(self, plugins: Sequence[tuple[str, Plugin]]) -> list[PenstockError]:
        """Close each of these plugins; return the errors of those that fail."""
        errors = []
        for name, plugin in plugins:
            try:
                with failures_of(name, "plugin_deinit"):
                    plugin.plugin_deinit(self)
            except PenstockError as error:
                logger.warning("plugin failed at the end", plugin=name, error=error.message)
                errors.append(error)
        return errors

    def _follow(
        self,
        state: State,
        changelogs: Changelogs,
        stop: Callable[[], bool],
        on_place: Callable[[Place], None],
    ) -> None:
        server = SourceServer(
            number=self._facts.server_id(self.pipeline.source),
            has_files=bool(self._facts.files(self.pipeline.source)),
        )
        sink = self._sink(state, changelogs, server)
        listing = self._opened_listing()
        opener = SegmentOpener(self.pipeline.extension)
        progress = self._load_progress(state)
        is_pending = True
        idle_s = 0.0
        try:
            while not stop():
                self._look(state, changelogs, server)
                place = progress.place
                saved = SavedSegment(segment=place.segment + 1, log_id=place.log_id)
                files = listing.look(saved, is_pending=is_pending)
                for file in files:
                    if stop():
                        return
                    self._look(state, changelogs, server)
                    progress = self._read(opener, file, progress, changelogs, sink, stop)
                    is_pending = is_pending and file.is_open
                    release(
                        self.pipeline.links,
                        through=progress.place.segment,
                        log_id=progress.place.log_id,
                        extension=self.pipeline.extension,
                    )
                    on_place(progress.place)
                if files:
                    idle_s = 0.0
                    continue
                progress = self._move_idle(state, progress, server)
                on_place(progress.place)
                idle_s = min(idle_s + self._settings.sleep_increment, self._settings.sleep_maximum)
                self._wait(listing, IDLE_S + idle_s, stop)
        except BaseException:
            sink.give_up()
            raise
        finally:
            listing.close()

    def _load_progress(self, state: State) -> Progress:
        """Return the stored progress, once a transaction of a killed process has ended.

        Its commit may arrive after the process died, and after a read without a lock.
        """
        self.session.begin()
        place = state.place(lock=True)
        unit = state.last_unit()
        self.session.commit()
        return Progress(place=place, unit=unit)

    def _sink(self, state: State, changelogs: Changelogs, server: SourceServer) -> Sink:
        if self._plugins:
            self._caller = PluginCaller(
                state, changelogs, self._settings, server, self._plugins, self
            )
            return self._caller
        return ChangelogWriter(state, changelogs, self._settings, server)

    def _look(self, state: State, changelogs: Changelogs, server: SourceServer) -> None:
        """Read facts again that may have changed: the captured tables, the source's files."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + REFRESH_S
            changelogs.refresh()
        if server.has_files and now_s >= self._files_at_s:
            self._files_at_s = now_s + FILES_S
            try:
                files = self._facts.files(self.pipeline.source)
            except ConnectFailed as error:
                logger.warning("the source is not reachable", error=error.message)
                return
            self.session.begin()
            state.put_files(server.number, files)
            self.session.commit()

    def _opened_listing(self) -> Listing:
        """Open the listing of our own links. A segment without a link is read under its name in the
        log.
        """
        return Listing(
            self.pipeline.links,
            self.pipeline.log,
            errors=ReaderErrors(
                missed=self._make_missed,
                other_log=LogOther,
                state=f"the place in {self._settings.names.namespace}",
                begin_anew=BEGIN_ANEW,
            ),
            extension=self.pipeline.extension,
            reads_log=True,
        )

    def _make_missed(self, _text: str, last: int, following: int) -> PenstockError:
        return missing(self.pipeline.log, last, following, extension=self.pipeline.extension)

    def _read(
        self,
        opener: SegmentOpener,
        file: SegmentFile,
        progress: Progress,
        changelogs: Changelogs,
        sink: Sink,
        stop: Callable[[], bool],
    ) -> Progress:
        try:
            segment = opener.open(file)
        except FileMissing:
            return progress  # closed and removed since it was found: our own link exists
        with segment:
            progress = replace(progress, place=_enter(segment, progress.place))
            return SegmentWalk(
                segment,
                progress,
                changelogs,
                sink,
                options=ImageOptions(
                    marks=self._settings.mark_updates, skips=self._settings.skip_before_update
                ),
                position_text=self.pipeline.position_text,
                where_of=self._facts.place,
                on_emptied=self._note_emptied,
            ).run(is_done=segment.is_closed and not file.is_open, stop=stop)

    def _note_emptied(self, table: TableName) -> None:
        self._warn_if_wanted(
            f"Detected TRUNCATE on a table! The changelog of {table} has a row of dml_type 0: the "
            "rows before it are gone"
        )

    def _move_idle(self, state: State, progress: Progress, server: SourceServer) -> Progress:
        """Note how far the source was read while no captured change arrived."""
        log, place = load_state(self.pipeline.log), progress.place
        if log is None or log.log_id != place.log_id or log.end.trx != place.trx:
            return progress
        position = self.pipeline.position_text(log.end.position)
        if position == place.position:
            return progress
        moved = behind(place, segment=place.segment, trx=place.trx, position=position)
        self.session.begin()
        state.check_place(place)
        state.move(moved)
        state.put_position(server.number, *self._facts.place(position), in_files=server.has_files)
        self.session.commit()
        return replace(progress, place=moved)

    def _wait(self, listing: Listing, seconds: float, stop: Callable[[], bool]) -> None:
        """Wait until there is more, or the time is over."""
        ends_s = self._clock.monotonic_s() + seconds
        while not stop() and (left_s := ends_s - self._clock.monotonic_s()) > 0:
            waited_s = min(left_s, STOP_CHECK_S)
            begun_s = self._clock.monotonic_s()
            listing.wait(waited_s)
            if self._clock.monotonic_s() - begun_s < waited_s * 0.9:
                return


def _enter(segment: Segment, place: Place) -> Place:
    """Return the place in this segment's log. Raises LogOther, LogBegins."""
    log_id = segment.header.log_id
    if not place.log_id:
        place = replace(place, log_id=log_id, trx=0)
    check_log_id(
        place.log_id, log_id, place="the place in the destination", hint=BEGIN_ANEW, error=LogOther
    )
    if segment.start.trx > place.trx:
        raise LogBegins(
            f"{segment.path.name} begins after transaction {segment.start.trx}, and the log is "
            f"read up to transaction {place.trx}: the changes between are gone",
            hint="Begin again: `penstock flexcdc --ini FILE setup --force`, and read the tables "
            "again.",
            expected=place.trx,
            actual=segment.start.trx,
        )
    return place


def choices_of(types: Mapping[str, str], source: Engine) -> Choices:
    """Return the choices for values that the destination cannot hold; by default an error."""
    chosen = parse_choices(types, source) if types else NO_CHOICES
    return replace(chosen, everything=chosen.everything or ERROR)
