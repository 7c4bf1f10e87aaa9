"""Status of a pipeline, read from the log, the target and the state files only.

No process of ours is asked: a status is correct whether or not one runs. It has the state of the
base, the last report of a merging process, and the state of each table. Not here: showing it
(`pipeline/display.py`, `live.py`), and the two servers' sides (`lag.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.manifest import NAME as BASE
from penstock.base.manifest import load_manifest
from penstock.control.pipeline.display import human_bytes, human_count, human_seconds
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.outages import (
    SIDES,
    Outage,
    Outages,
    Retry,
    date_outages,
    outage_lines,
    read_retries,
    utc_text,
)
from penstock.control.pipeline.running import ProcessState, processes
from penstock.control.pipeline.servers import base_place
from penstock.control.status.consumer_list import ConsumerLine, consumer_lines
from penstock.control.status.lag import Lag, TargetState, assess_lag, read_target_state
from penstock.control.status.serve_status import ServeSeen, read_serve
from penstock.control.tables.lake_upkeep import facts_dict
from penstock.control.tables.table_list import LEFT_OUT, TableLine, lines_from
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.waits import Waits, read_waits
from penstock.load.bulk_progress import TableProgress, share_of
from penstock.load.loader_state import LoaderState, read_loader_state
from penstock.log.layout import list_segments
from penstock.merge.stream import STATUS_FILE
from penstock.model import PenstockError, TableName
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.handover import Handover, read_handover
from penstock.ports.identity import SourceIdentity, stored_identity
from penstock.ports.lag import LogEnd, SourceReader, Watermark, open_source
from penstock.ports.positions import PlainPositions, Positions, positions_of
from penstock.ports.progress import ProgressRow, TargetReader, open_target_reader
from penstock.ports.target import SyncState
from penstock.serve.slots import NAME as SERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSeen:
    """State of the base.

    Attributes:
        size_bytes: Size of its files.
        segment: The first segment that is not in it yet.
        segments: Number of segments that it holds.
        segment_bytes: Their size.
        held_bytes: Size of those that no other reader holds.
    """

    tables: int
    rows: int
    size_bytes: int
    segment: int
    segments: int
    segment_bytes: int
    held_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock status --json` prints it."""
        return {
            "tables": self.tables,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "segment": self.segment,
            "segments": self.segments,
            "segment_bytes": self.segment_bytes,
            "held_bytes": self.held_bytes,
        }

    def lines(self) -> Iterator[str]:
        """Yield its lines for people."""
        if not self.tables:
            yield "base: no table is in it yet"
        else:
            through = f"up to segment {self.segment - 1}" if self.segment else "before any segment"
            yield (
                f"base: {count_words(self.tables, 'table')}, {count_words(self.rows, 'row')}, "
                f"{human_bytes(self.size_bytes)}, {through}"
            )
        if self.segments:
            yield (
                f"base: holds {count_words(self.segments, 'segment')} not in it yet, "
                f"{human_bytes(self.segment_bytes)}, {human_bytes(self.held_bytes)} of them alone"
            )


def read_base(config: Config) -> BaseSeen | None:
    """Read the state from the files; None if the log has no base. Raises CheckpointCorrupt."""
    if not config.has_base:
        return None
    place = base_place(config)
    manifest = load_manifest(place.directory)
    found: list[tuple[int, int]] = []
    for file in list_segments(place.links, place.extension):
        with suppress(FileNotFoundError, FileMissing):  # released meanwhile
            stat = file.path.stat()
            found.append((stat.st_size, stat.st_nlink))
    tables = manifest.tables if manifest is not None else ()
    return BaseSeen(
        tables=len(tables),
        rows=sum(table.row_count for table in tables),
        size_bytes=manifest.size_bytes if manifest is not None else 0,
        segment=manifest.segment if manifest is not None else 0,
        segments=len(found),
        segment_bytes=sum(size for size, _ in found),
        held_bytes=sum(size for size, names in found if names == 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSeen:
    """Content of run/merge.json; empty before the first time. Times are microseconds since 1970."""

    facts: Mapping[str, Any]

    def lines(self, now_us: int) -> Iterator[tuple[str, bool]]:
        """Yield lines for people, each with whether it is trouble."""
        facts = self.facts
        if not facts:
            yield "merge: it has not run yet", False
            return
        held = facts["held_by"]
        for one in facts["inputs"]:
            if one.get("is_over"):
                yield f"log {one['name']}: ended, all of it is merged", False
                continue
            resolved = one["resolved_us"]
            upto = f"known up to {human_seconds((now_us - resolved) / 1e6)} ago" if resolved else ""
            behind = f"{count_words(one['behind'], 'transaction')} to be merged"
            text = f"log {one['name']}: merged up to transaction {one['trx']}, {behind}"
            yield ", ".join(filter(None, (text, upto))), False
        if facts["held_s"]:
            waits = human_seconds(facts["held_s"])
            yield (
                f"merge: waits for {', '.join(held)} for {waits}: nothing new comes from there; "
                "heartbeatSeconds in its pipeline file moves an idle log on",
                True,
            )
        joined, alone = facts["joined_count"], facts["unjoined_count"]
        if joined or alone:
            text = f"global transactions: {human_count(joined)} joined"
            yield f"{text}, {human_count(alone)} parts alone", bool(alone)
        if facts["left_out_count"]:
            yield f"left out: {human_count(facts['left_out_count'])} markers of one log", True
        if facts["clock_skew_us"] > facts["clock_skew_max_us"]:
            yield f"clocks differ by {human_seconds(facts['clock_skew_us'] / 1e6)}", True


def read_merge(config: Config) -> MergeSeen | None:
    """Return the last report of the merging process; None if nothing is merged."""
    if config.merge is None:
        return None
    try:
        data = REAL_FILES.read_whole(config.layout.run / STATUS_FILE)
    except FileMissing:
        return MergeSeen(facts={})
    return MergeSeen(facts=msgspec.json.decode(data))


NAME = "penstock status"
OTHERS = (BASE, SERVE)  # they have links as consumers have, and lines of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of a pipeline.

    Attributes:
        target: The state as of target_read_us if the target could not be asked now; if it was never
            asked, `target.unknown` is set. Without a target, that of the file in the pipeline's
            directory.
        lag: None if a server could not be asked.
        outages: Servers that could not be asked.
        retries: Failed work that processes try again.
        read_us: When this was read.
        tables: Those for which there is a request.
        loader: Last report of a loader, which may have ended.
        positions: The form in which the source writes them.
        merge: Of a pipeline with [merge], the last report of its merging process.
        base: The base of the log.
        has_target: Whether there is a target.
        waits: The things that a process waits for at the source.
        consumers: Those of the log; only `read_status` reads them.
        serve: The server of the log; only `read_status` reads it.
    """

    pipeline: str
    mode: str
    directory: Path
    identity: SourceIdentity | None
    processes: tuple[ProcessState, ...]
    handover: Handover | None
    log: LogEnd
    target: TargetState
    lag: Lag | None
    has_target: bool = True
    tables: tuple[TableLine, ...] = ()
    outages: tuple[Outage, ...] = ()
    retries: tuple[Retry, ...] = ()
    read_us: int = 0
    target_read_us: int = 0
    merge: MergeSeen | None = None
    base: BaseSeen | None = None
    waits: Waits | None = None
    loader: LoaderState | None = None
    positions: Positions = field(default_factory=PlainPositions, compare=False)
    consumers: tuple[ConsumerLine, ...] | None = None
    serve: ServeSeen | None = None

    def outage(self, side: str) -> Outage | None:
        """Return the outage of one server: source or target."""
        return next((one for one in self.outages if one.side == side), None)

    @property
    def source_error(self) -> str:
        """Reason why the source cannot be asked; empty if it can."""
        outage = self.outage("source")
        return outage.error if outage is not None else ""

    @property
    def running(self) -> list[str]:
        """Names of the processes that run."""
        return [process.name for process in self.processes if process.pid]

    @property
    def running_loader(self) -> LoaderState | None:
        """Report of the running loader; also None until it has reported."""
        pids = [process.pid for process in self.processes if process.name == "load"]
        return self.loader if self.loader is not None and self.loader.pid in pids else None

    @property
    def why_no_lag(self) -> str:
        """Reason why the lag is not known."""
        if self.mode == "data":
            return "this pipeline follows no changes"
        if self.lag is not None and self.lag.seconds is None:
            return self.lag.unknown
        return ", ".join(one.words for one in self.outages) or "nothing is extracted yet"

    @property
    def lag_words(self) -> str:
        """Lag for people: `2.0 s`, `at most 2.0 s`, `unknown: why`."""
        return self.lag.words if self.lag is not None else f"unknown: {self.why_no_lag}"

    def lag_dict(self) -> dict[str, Any]:
        """Return the lag as `penstock lag --json` prints it; lag_seconds is null if not known."""
        if self.lag is not None:
            return self.lag.as_dict()
        return {
            "lag_seconds": None,
            "lag_is_at_most": False,
            "lag_unknown": self.why_no_lag,
            "log_position": self.positions.text(self.log.end.position),
            "unreachable": [one.as_dict() for one in self.outages],
            "tried_again": [one.as_dict() for one in self.retries],
        }

    def outage_lines(self) -> list[str]:
        """Return the servers that cannot be asked, since when, and the next tries, for people."""
        running = [name for name in self.running if name != "run"]
        lines = outage_lines(self.outages, self.retries, running=running, now_us=self.read_us)
        return [*lines, *(self.waits.lines() if self.waits is not None else ())]

    def as_dict(self) -> dict[str, Any]:
        """Return the status as `penstock status --json` prints it."""
        return {
            "pipeline": self.pipeline,
            "mode": self.mode,
            "directory": str(self.directory),
            "processes": {process.name: process.pid or None for process in self.processes},
            "action": None if self.target.unknown else self.target.action,
            "restarts": None if self.target.unknown else self.target.restarts,
            "handover": self.handover.as_dict() if self.handover else None,
            "bulk": msgspec.to_builtins(self.target.bulk),
            "apart": {str(line.table): line.state for line in self.tables if not line.follows},
            "apart_errors": {
                str(line.table): {"code": line.code, "error": line.error, "hint": line.hint}
                for line in self.tables
                if line.error
            },
            "log": {
                "log_id": self.log.log_id,
                "segments": self.log.segments,
                "size_bytes": self.log.size_bytes,
                "next_segment": self.log.number_next,
                "gsn": self.log.end.gsn,
                "trx": self.log.end.trx,
                "position": self.positions.text(self.log.end.position),
                "done": self.log.done,
            },
            "applied": None
            if self.target.unknown or not self.has_target
            else {
                "gsn": self.target.applied.gsn,
                "trx": self.target.applied.trx,
                "position": self.positions.text(self.target.applied.position),
            },
            "extracted_files": [_row_dict(row) for row in self.target.extracted],
            "loaded_files": [_row_dict(row) for row in self.target.loaded],
            "lag": self.lag.as_dict() if self.lag else None,
            "source_error": self.source_error,
            "unreachable": [one.as_dict() for one in self.outages],
            "tried_again": [one.as_dict() for one in self.retries],
            "waits_for": self.waits.as_dict() if self.waits is not None else None,
            "target_read_at": utc_text(self.target_read_us) if self.target_read_us else None,
            **({"lake": facts_dict(self.target.lake)} if self.target.lake else {}),
            **({"merge": dict(self.merge.facts)} if self.merge is not None else {}),
            **({"base": self.base.as_dict()} if self.base is not None else {}),
            **self._readers_dict(),
        }

    def _readers_dict(self) -> dict[str, Any]:
        """Return the consumers and the server of the log, if they were read."""
        if self.consumers is None:
            return {}
        return {
            "consumers": [one.as_dict() for one in self.consumers],
            "serve": self.serve.as_dict() if self.serve is not None else None,
        }


def _row_dict(row: ProgressRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "mark": row.mark,
        "start_time": _utc_text(row.start_time),
        "finish_time": _utc_text(row.finish_time) if row.finish_time else None,
    }


def _utc_text(moment: datetime) -> str:
    return moment.replace(tzinfo=UTC).isoformat()


class StatusReader:
    """Reader of a status, repeatedly, on connections that stay open. Used by one thread."""

    def __init__(self, config: Config, *, clock: Clock = REAL_CLOCK) -> None:
        """Prepare; nothing is connected before the first read."""
        self._config = config
        self._clock = clock
        self._outages = Outages(clock)
        self._last = TargetState(unknown=True)
        # Without a target the progress is in a file, which can have trouble, too.
        self._side = "target" if config.has_target else "progress file"
        self.asking = ""  # the server that is being asked: it may never answer
        self._last_us = 0
        self._target: TargetReader | None = None
        self._source: SourceReader | None = None
        self._watermark = Watermark()

    def read(self, *, look_into_open: bool = True) -> Status:
        """Return the present status. look_into_open: read the open segment's end too.

        The status names a server that cannot be asked. Raises the errors of the pipeline's files.
        """
        config = self._config
        log = read_log_end(config, look_into_open=look_into_open)
        away = self._ask_target()
        target, now = self._last, processes(config)
        lag, source_away = self._lag(log, target, asked=away is None)
        retries = read_retries(config, now)
        return Status(
            pipeline=config.pipeline.name,
            mode=str(config.pipeline.mode),
            directory=config.directory,
            identity=stored_identity(config),
            processes=now,
            handover=read_handover(config),
            log=log,
            target=target,
            lag=lag,
            has_target=config.has_target,
            tables=self._tables(target),
            outages=date_outages([one for one in (source_away, away) if one is not None], retries),
            retries=retries,
            read_us=self._clock.now_us(),
            target_read_us=self._last_us,
            merge=read_merge(config),
            base=read_base(config),
            waits=read_waits(config.layout.run, self._clock),
            loader=read_loader_state(config.layout.run),
            positions=positions_of(config),
        )

    def _tables(self, target: TargetState) -> tuple[TableLine, ...]:
        """Return the requested tables; only the target knows their states."""
        lines = lines_from(self._config, target.table_syncs, applied_gsn=target.applied.gsn)
        if not target.unknown:
            return tuple(lines)
        return tuple(
            line if line.error else replace(line, state="unknown", wanted="") for line in lines
        )

    def _ask_target(self) -> Outage | None:
        """Ask the target for its state; return why not, if it cannot be asked."""
        self.asking = self._side
        try:
            if self._target is None or self._target.is_closed:
                self._target = open_target_reader(self._config.target.url, application_name=NAME)
            self._last = read_target_state(self._target, self._config)
        except PenstockError as error:
            if self._target is not None:
                self._target.close()
            return self._outages.note_failure(self._side, error)
        self._last_us = self._clock.now_us()
        self._outages.note_answer(self._side)
        return None

    def _lag(
        self, log: LogEnd, target: TargetState, *, asked: bool
    ) -> tuple[Lag | None, Outage | None]:
        """Return the lag, or why the source cannot be asked. asked: the target's state is new."""
        if not self._config.pipeline.mode.has_change:
            return None, None
        self.asking = "source"
        try:
            if self._source is None or self._source.is_closed:
                self._source = open_source(self._config, application_name=NAME)
            state = self._source.state(log)
        except PenstockError as error:
            if self._source is not None:
                self._source.close()
            return None, self._outages.note_failure("source", error)
        self._outages.note_answer("source")
        self._watermark.look(state.position, state.now_us)
        seen_us = self._watermark.note_reached(log.end.position)
        if not asked and self._config.has_target:
            return None, None
        return assess_lag(self._config, state, log, target, watermark_us=seen_us), None

    def close(self) -> None:
        """Close both connections."""
        for connection in (self._target, self._source):
            if connection is not None:
                connection.close()


def read_status(config: Config) -> Status:
    """Return the status from a single look. The time at which an outage began is known only if a
    process reports it.
    """
    reader = StatusReader(config)
    try:
        found = reader.read()
    finally:
        reader.close()
    known = {SIDES[retry.process] for retry in found.retries}
    outages = (one if one.side in known else replace(one, since_us=0) for one in found.outages)
    return replace(
        found,
        outages=tuple(outages),
        consumers=tuple(
            one for one in consumer_lines(config, with_target=False) if one.name not in OTHERS
        ),
        serve=read_serve(config, found.log),
    )


class TableState(StrEnum):
    """State of a table."""

    UNKNOWN = "not known"
    WAITING = "waits for the bulk load"
    LOADING = "bulk load"
    LOADED = "loaded"
    FOLLOWED = "follows changes"
    STOPPED = "stopped"
    PAUSED = "paused"
    COPYING = "rows are copied"
    CATCHING_UP = "catches up"
    REMOVED = "removed"
    ISOLATED = "left behind"
    UNCAPTURED = "waits for the extractor"
    REFUSED = "refused"
    LEFT_OUT = "left out"


TABLE_SYNC = {
    SyncState.PAUSED: TableState.PAUSED,
    SyncState.COPYING: TableState.COPYING,
    SyncState.CATCHING_UP: TableState.CATCHING_UP,
    SyncState.REMOVED: TableState.REMOVED,
    SyncState.ISOLATED: TableState.ISOLATED,
}
ASKED = {
    "waiting": TableState.UNCAPTURED,
    "refused": TableState.REFUSED,
    LEFT_OUT: TableState.LEFT_OUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts of one table. share: loaded share in the bulk load, 0 to 1; None if there is none.

    wanted: the requested state, as in `penstock table ls`; empty if it is reached. code, error,
    hint: why the table is stopped.
    """

    table: TableName
    state: TableState
    share: float | None
    wanted: str = ""
    code: str = ""
    error: str = ""
    hint: str = ""


def table_facts(
    status: Status, names: Iterable[TableName], *, whole: bool = False
) -> list[TableFacts]:
    """Return the facts of every table, by name.

    names: those that the log follows, or whose changes are counted. whole: these are all that are
    followed now; others of the bulk load have another name by now, or were removed.
    """
    bulk = status.target.bulk
    loading = {item.table: item for item in bulk.tables} if bulk is not None else {}
    syncing = {
        t: TABLE_SYNC[row.state]
        for t, row in status.target.table_syncs.items()
        if row.state in TABLE_SYNC
    }
    asked = {line.table: line for line in status.tables}
    every = {*names, *syncing, *asked}
    if not whole:
        every |= {*loading, *_captured_tables(status)}
    facts = []
    for table in sorted(every):
        line = asked.get(table) or TableLine(table=table, state="")
        state = syncing.get(table) or ASKED.get(line.state) or _state(status, loading.get(table))
        facts.append(
            TableFacts(
                table=table,
                state=state,
                share=_share(loading.get(table)),
                wanted=line.wanted,
                code=line.code,
                error=line.error,
                hint=line.hint,
            )
        )
    return facts


def _captured_tables(status: Status) -> list[TableName]:
    tables = status.handover.tables if status.handover is not None else ()
    return [TableName(*text.split(".", 1)) for text in tables if text.count(".") == 1]


def _state(status: Status, progress: TableProgress | None) -> TableState:
    if status.target.unknown:
        return TableState.UNKNOWN
    bulk = status.target.bulk
    if status.mode != "change" and (bulk is None or bulk.phase != "done"):
        if progress is None or (progress.chunks_done == 0 and progress.rows_done == 0):
            return TableState.WAITING
        if progress.chunks_done < progress.chunks_total:
            return TableState.PAUSED if status.target.action == "PAUSE" else TableState.LOADING
        return TableState.LOADED
    if status.mode == "data":
        return TableState.LOADED
    if status.target.action == "PAUSE":
        return TableState.PAUSED
    running = _running(status)
    is_followed = running["extract"] and (running["load"] or not status.has_target)
    return TableState.FOLLOWED if is_followed else TableState.STOPPED


def _running(status: Status) -> Mapping[str, bool]:
    return {process.name: bool(process.pid) for process in status.processes}


def _share(progress: TableProgress | None) -> float | None:
    if progress is None:
        return None
    return share_of(progress)
