"""The keeper of a pipeline's base: it reads missing tables from the source, then updates the base.

It is a thread of the load process, with its Spark session. Tables are read at a consistent point of
their own after the log's beginning: the log's later changes are added afterwards, so after any
crash the next start reads those tables again that no manifest has.

The base of a merged log is the fold of the merged log itself. It has the rows of its logs' bases
(`merge/extraction.py`), so nothing is read from servers: a table is in the base, without files, as
soon as a closed segment knows it, and compaction does the rest. Not here: the jobs
(`penstock.load.base`), and reading the base (`penstock.base`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from penstock.base.manifest import BaseTable, Manifest, load_manifest, remove_others, save_manifest
from penstock.base.shapes import note_copied
from penstock.control.pipeline.servers import base_place, followed_tables, source_tables
from penstock.control.pipeline.table_requests import read_answers, read_requests
from penstock.control.run.consumer_snapshot import reading_of
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.retry import Backoff, Patience
from penstock.host.state_file import StateFile
from penstock.host.supervised import SupervisedThread
from penstock.load.base import BaseHole, Compaction, read_tables, table_of
from penstock.load.base_job import ReadTask
from penstock.load.session import Session, SessionKeeper
from penstock.log import links
from penstock.log.layout import LogState, list_segments, load_state
from penstock.log.segment import open_segment
from penstock.merge.state import STATE_FILE, MergeState
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.table_requests import Capture, TableRequests
from penstock.ports.bulk import Planner, PointUnfit, open_planner
from penstock.ports.config import Config
from penstock.ports.tables import tables_at


def add_tables(config: Config, manifest: Manifest, log: LogState, seen: set[int]) -> Manifest:
    """Return the base with the tables that closed segments know; itself if none is new.

    seen: numbers of examined segments; new ones are added. Before the logs are of one moment
    the base has no tables.
    """
    if manifest.is_empty and not _is_settled(config, log):
        return manifest
    place = base_place(config)
    known = {table.table for table in (*manifest.tables, *manifest.unread)}
    added: list[BaseTable] = []
    for file in list_segments(place.links, place.extension):
        if file.number in seen or file.number < manifest.segment:
            continue
        with open_segment(file.path, extension=place.extension) as segment:
            for totals in segment.tables:
                name = TableName(totals.schema, totals.name)
                if name not in known:
                    known.add(name)
                    relation = segment.relation(totals.id)
                    added.append(
                        BaseTable(schema=name.schema, name=name.name, relations=(relation,))
                    )
        seen.add(file.number)
    if not added:
        return manifest
    tables = (*manifest.tables, *added)
    return replace(manifest, number=manifest.number + 1, tables=tables)


def capture_id_of(requests: TableRequests, table: TableName) -> int:
    """Return the number of the request to capture a table; 0 if none asks for it."""
    request = requests.of(table)
    return request.capture_id if request.capture is Capture.ADDED else 0


def keep_captured(
    manifest: Manifest, followed: Collection[TableName], requests: TableRequests
) -> Manifest:
    """Return the base with those of its tables that were captured all the time; itself if all were.

    A table that was removed and captured again lacks the changes in between, and is read again.
    """
    kept = tuple(
        one
        for one in manifest.tables
        if one.table in followed and one.capture_id == capture_id_of(requests, one.table)
    )
    if kept == manifest.tables:
        return manifest
    return replace(manifest, number=manifest.number + 1, tables=kept)


def _is_settled(config: Config, log: LogState) -> bool:
    """Return whether the closed segments reach the point where the states of the begin are one."""
    entries = StateFile(config.layout.state / STATE_FILE, list[MergeState]).load() or []
    return any(one.has_base and not one.settles_us and one.trx <= log.end.trx for one in entries)


def hole_in_merged(config: Config, error: BaseHole) -> BaseHole:
    """Return the error with a hint for merged logs: changes that a merged log has lost exist
    nowhere else.
    """
    return BaseHole(
        error.message,
        hint="A merged log is read from its beginning. Begin again: give the merge another name in "
        f"[pipeline] of {config.path.name}, and a directory of its own.",
        **error.fields,
    )


logger = structlog.get_logger(__name__)
POLL_S = 0.5
TABLES_S = 5.0  # between two questions to the source about new tables
ATTEMPTS_MAX = 5
RETRIES = Backoff(first_s=0.5, longest_s=30.0, attempts=10_000)


class BaseUnread(PenstockError):
    """Tables of the base were rewritten again and again while they were read."""

    code = "BA03"
    retry = "backoff"


class BaseKeeper:
    """Context manager: its thread works while the block is open."""

    def __init__(self, config: Config, sessions: SessionKeeper, *, owns_session: bool) -> None:
        """Prepare the thread. owns_session: renew the session when it is lost, because nothing else
        does.
        """
        self._config, self._sessions, self._owns = config, sessions, owns_session
        self._place = base_place(config)
        self._compaction = Compaction(self._place, is_merged=config.merge is not None)
        self._ended = threading.Event()
        self._thread = SupervisedThread("base", self._run, wait=self._ended.wait)
        self._tables_s = -TABLES_S
        self._seen: set[int] = set()

    def __enter__(self) -> BaseKeeper:
        """Begin."""
        REAL_FILES.make_directory(self._place.directory)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread. A running job is given up, and the next start removes the files that it
        wrote.
        """
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        patience = Patience(RETRIES)
        remove_others(self._place.directory, load_manifest(self._place.directory))
        while not self._ended.is_set():
            try:
                worked = self._step()
            except PenstockError as error:
                if self._ended.is_set():
                    return
                logger.warning("base not moved on", error=error.message)
                if self._owns and self._sessions.is_lost:
                    self._sessions.renew()
                self._ended.wait(patience.wait_s(error) or RETRIES.longest_s)
            else:
                patience.note_progress()
                if not worked:
                    self._ended.wait(POLL_S)

    def _step(self) -> bool:
        """Do what is due; return whether there was anything."""
        log = load_state(self._config.layout.log)
        if log is None or not log.end.position or not self._sessions.wait(self._ended.is_set):
            return False
        manifest = load_manifest(self._place.directory)
        if manifest is not None and manifest.log_id != log.log_id:
            manifest = None
        if manifest is None:
            manifest = self._make_begin(log)
        session = self._sessions.get().with_jobs("base")
        if self._config.merge is not None:
            found = add_tables(self._config, manifest, log, self._seen)
            if found is not manifest:
                save_manifest(self._place.directory, found)
                return True
        elif self._looks(manifest):
            requests = read_requests(self._config)
            followed = self._read_followed(requests)
            kept = keep_captured(manifest, {one.name for one in followed}, requests)
            if kept is not manifest:
                manifest = kept
                save_manifest(self._place.directory, manifest)
            missing = [one for one in followed if manifest.of(one.name) is None]
            if missing:
                self._read(session, manifest, missing, requests)
                return True
        try:
            due = [] if manifest.is_empty else self._compaction.due(manifest)
        except BaseHole as error:
            if self._config.merge is not None:
                raise hole_in_merged(self._config, error) from error
            logger.warning("base is read again", reason=error.message)
            save_manifest(self._place.directory, self._make_begin(log))
            return True
        if due:
            self._compaction.step(session, manifest, due)
        return bool(due)

    def _make_begin(self, log: LogState) -> Manifest:
        """Return a base without tables. Begins to keep the links that the base will need."""
        links.enable(self._place.links)
        if self._config.merge is not None:
            return Manifest(log_id=log.log_id, number=0, segment=0, gsn=0)
        now = load_state(self._config.layout.log) or log
        return Manifest(log_id=log.log_id, number=0, segment=now.number_next, gsn=0)

    def _looks(self, manifest: Manifest) -> bool:
        """Return whether to ask the source for its tables now."""
        now_s = REAL_CLOCK.monotonic_s()
        if manifest.tables and now_s - self._tables_s < TABLES_S:
            return False
        self._tables_s = now_s
        return True

    def _read_followed(self, requests: TableRequests) -> list[TableDefinition]:
        """Return the tables whose changes are in the log under their present names.

        They are read now, because an earlier list would lack new ones. Changes of a renamed table
        keep its old name in the log until its new name is captured: until then, and as long as a
        request for a table is open, the base would never see them.
        """
        known = followed_tables(self._config)
        if known is None:
            return []
        answers = read_answers(self._config)
        asked = {
            one.table
            for one in requests.tables
            if one.capture is Capture.ADDED and not answers.is_done(one)
        }
        found = source_tables(self._config)
        return [one for one in found if known.has(one.name) and one.name not in asked]

    def _read(
        self,
        session: Session,
        manifest: Manifest,
        tables: Sequence[TableDefinition],
        requests: TableRequests,
    ) -> None:
        for _ in range(ATTEMPTS_MAX):
            with open_planner(self._config) as planner:
                try:
                    made = self._read_at(session, manifest, tables, planner, requests)
                except PointUnfit as error:
                    logger.info("tables are read at a later point", reason=error.message)
                    continue
            save_manifest(self._place.directory, made)
            remove_others(self._place.directory, made)
            return
        raise BaseUnread(
            f"tables were rewritten {ATTEMPTS_MAX} times while they were read for the base",
            hint="Nothing to do: they are read again later.",
        )

    def _read_at(
        self,
        session: Session,
        manifest: Manifest,
        tables: Sequence[TableDefinition],
        planner: Planner,
        requests: TableRequests,
    ) -> Manifest:
        """Read all rows of these tables at one point. Raises PointUnfit."""
        at = planner.fresh_point()
        shift = tables_at(self._config.source.url).shift(self._config)
        ordinal = at.position.ordinal + shift
        tasks: list[ReadTask] = []
        relations = {}
        for definition in tables:
            reading = reading_of(self._config, planner, at, definition)
            relation = note_copied(reading.relation, ordinal)
            relations[definition.name] = relation
            tasks += [
                ReadTask(
                    chunk=task,
                    relation=relation,
                    dialect=reading.dialect,
                    directory=self._place.directory,
                )
                for task in reading.tasks
            ]
        written, gone = read_tables(session, tasks)
        if gone:
            raise PointUnfit(f"{min(gone)} cannot be read at {at.position} any more")
        end = planner.release()
        settled = max(
            [ordinal, *(one.ordinal + shift for one in (at.settled, end) if one is not None)]
        )
        made = [
            replace(
                table_of(relation, written.get(name, ()), ordinal=ordinal, settled=settled),
                capture_id=capture_id_of(requests, name),
            )
            for name, relation in relations.items()
        ]
        logger.info(
            "base read",
            position=str(at.position),
            tables=len(made),
            row_count=sum(table.row_count for table in made),
        )
        return replace(manifest, number=manifest.number + 1, tables=(*manifest.tables, *made))
