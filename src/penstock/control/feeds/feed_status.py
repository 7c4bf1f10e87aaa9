"""State of `penstock stage`, read from the staging database and the target only.

So it is right in any instance, and if none runs. Only the worker of a target schema knows its
present mode and the last problem: it notes them in the table memo of the staging database, with
their writer and time, so that every instance can show them. Not here: showing it
(`feed_show.py`).
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from penstock.control.pipeline.display import human_seconds
from penstock.control.pipeline.outages import Outage, Outages, outage_lines
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.config import Config
from penstock.ports.feeds import (
    Group,
    GroupState,
    StagedRows,
    StagingDatabase,
    StagingSession,
    group_name,
    lease_of,
    log_id_of,
    staging_at,
    time_through,
)
from penstock.ports.progress import SharedProgress, open_shared_progress
from penstock.ports.row_apply import RowSession, row_target_at

logger = structlog.get_logger(__name__)
KEY = "stage "


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Error that ended a tenure. at_us: UTC, microseconds since 1970."""

    at_us: int
    code: str
    error: str
    hint: str = ""


class GroupNote(msgspec.Struct, frozen=True, kw_only=True):
    """Note about a group.

    Attributes:
        mode: Empty before there was one; in force since mode_us, set by hostname.
        dead_letters: Their table.
    """

    mode: str = ""
    mode_us: int = 0
    hostname: str = ""
    dead_letters: str = ""
    problem: Problem | None = None


def read_note(session: StagingSession, group: Group) -> GroupNote:
    """Return the note of a group; an empty one if there is none, or another release's."""
    found = session.get_memo(KEY + group_name(group))
    if found is None:
        return GroupNote()
    try:
        return msgspec.json.decode(found, type=GroupNote)
    except msgspec.DecodeError:
        logger.warning("note of a group not readable", group=group_name(group))
        return GroupNote()


class Notes:
    """Writer of one group's note, if something has changed. Used by one thread.

    If a note cannot be written, it is written with the next one: it never delays the work.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        *,
        dead_letters: str,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Begin; nothing is written yet."""
        self._database, self._group, self._clock = database, group, clock
        self._dead_letters = dead_letters
        self._mode = ""
        self._problem: Problem | None = None

    def mode_is(self, session: StagingSession, mode: str) -> None:
        """Note the present mode of the group."""
        if mode == self._mode:
            return
        try:
            known = read_note(session, self._group)
            hostname = socket.gethostname()
            is_new = (known.mode, known.hostname) != (mode, hostname)
            self._write(
                session,
                msgspec.structs.replace(
                    known,
                    mode=mode,
                    mode_us=self._clock.now_us() if is_new else known.mode_us,
                    hostname=hostname,
                    dead_letters=self._dead_letters,
                    problem=self._problem or known.problem,
                ),
            )
        except PenstockError as error:
            self._not_written(error)
        else:
            self._mode = mode

    def note_problem(self, error: PenstockError) -> None:
        """Note the error with which the group's work has just ended."""
        shown = error.as_dict()
        self._problem = Problem(
            at_us=self._clock.now_us(),
            code=str(shown["code"]),
            error=str(shown["error"]),
            hint=error.hint,
        )
        self._mode = ""  # so that the next tenure says in which mode it is
        try:
            with self._database.open_session() as session:
                known = read_note(session, self._group)
                self._write(session, msgspec.structs.replace(known, problem=self._problem))
        except PenstockError as failed:
            self._not_written(failed)

    def _write(self, session: StagingSession, note: GroupNote) -> None:
        session.put_memo(KEY + group_name(self._group), msgspec.json.encode(note))

    def _not_written(self, error: PenstockError) -> None:
        logger.warning("note not written", group=group_name(self._group), error=error.message)


NAME = "penstock status"
STAGING, TARGET = "staging database", "target"
DEAD_LETTERS_MAX = 10_000
TABLES_INTERVAL_S = 60.0
FAR_BEHIND_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """Status of one target schema. A value of None is not known.

    Attributes:
        loaded: Time up to which the target itself says that windows were loaded into it; ZERO: none
            was.
        dead_letters: Their number, DEAD_LETTERS_MAX at most; 0 if there is no table of them.
        now_us: When it was read.
    """

    group: Group
    state: GroupState
    note: GroupNote = field(default_factory=GroupNote)
    mode_setting: StageMode
    loaded: Hlc | None
    dead_letters: int | None
    now_us: int

    @property
    def name(self) -> str:
        """Name in the table checkpoints."""
        return group_name(self.group)

    @property
    def mode(self) -> str:
        """Present mode; empty if it is not known."""
        return self.note.mode or (
            "" if self.mode_setting is StageMode.AUTO else self.mode_setting.value
        )

    @property
    def holder(self) -> str:
        """Host that works on the schema; empty if there is none."""
        held = self.state.holder
        return held.hostname if held is not None and held.expires > self.state.now else ""

    @property
    def committed_time(self) -> Hlc | None:
        """Time up to which everything is applied; None before anything is."""
        return _real_time(self.state.window.committed)

    @property
    def proposed_time(self) -> Hlc | None:
        """Time up to which everything has been received; None before anything is resolved."""
        return _real_time(self.state.window.proposed)

    @property
    def lag_s(self) -> float | None:
        """Lag of the target now, in seconds."""
        return self._age_s(self.committed_time)

    @property
    def proposed_lag_s(self) -> float | None:
        """Lag of the received changes now, in seconds."""
        return self._age_s(self.proposed_time)

    @property
    def oldest_s(self) -> float | None:
        """Age of the first waiting row; None also if none waits."""
        times = [rows.oldest for rows in self.state.tables.values() if rows.oldest is not None]
        return self._age_s(min(times)) if times else None

    @property
    def rows(self) -> int | None:
        """Number of rows that are staged and not retired."""
        return _sum([rows.rows for rows in self.state.tables.values()])

    @property
    def waiting(self) -> int | None:
        """Number of rows that are staged and not applied."""
        return _sum([rows.waiting for rows in self.state.tables.values()])

    @property
    def size_bytes(self) -> int | None:
        """Size of all mutation tables."""
        return _sum([rows.size_bytes for rows in self.state.tables.values()])

    @property
    def is_estimate(self) -> bool:
        """Return whether rows and waiting are estimates."""
        return any(rows.is_estimate for rows in self.state.tables.values())

    @property
    def is_far_behind(self) -> bool:
        """Return whether a feed's beginning, or much else, is still to be applied."""
        if not self.rows:
            return False
        lag_s = self.lag_s
        return lag_s is None or lag_s >= FAR_BEHIND_S

    @property
    def problem_is_over(self) -> bool:
        """Return whether something was applied after the problem of the note."""
        problem, applied_at = self.note.problem, self.state.applied_at
        if problem is None or applied_at is None:
            return False
        return applied_at.timestamp() * 1e6 > problem.at_us

    @property
    def lag_words(self) -> str:
        """Lag for people: `2.0 s`, `unknown: why`."""
        return human_seconds(self.lag_s) if self.lag_s is not None else f"unknown: {self._why}"

    @property
    def _why(self) -> str:
        if self.proposed_time is None:
            return "no resolved timestamp has come; make the feed WITH resolved"
        return "nothing is committed yet"

    def _age_s(self, time: Hlc | None) -> float | None:
        return None if time is None else max(0.0, self.now_us / 1e6 - time.nanos / 1e9)

    def as_dict(self) -> dict[str, Any]:
        """Return the object as JSON has it; null is not known."""
        held = self.state.holder
        return {
            "schema": self.name,
            "mode": self.mode or None,
            "lease": None
            if held is None
            else {
                "hostname": held.hostname,
                "expires": held.expires.isoformat(),
                "is_held": bool(self.holder),
            },
            "committed": None if self.committed_time is None else str(self.committed_time),
            "proposed": None if self.proposed_time is None else str(self.proposed_time),
            "applied_at": None
            if self.state.applied_at is None
            else self.state.applied_at.isoformat(),
            "loaded": None if self.loaded is None else str(self.loaded),
            "lag_seconds": _round(self.lag_s),
            "proposed_lag_seconds": _round(self.proposed_lag_s),
            "rows": self.rows,
            "waiting": self.waiting,
            "oldest_waiting_seconds": _round(self.oldest_s),
            "is_estimate": self.is_estimate,
            "size_bytes": self.size_bytes,
            "dead_letters": self.dead_letters,
            "problem": msgspec.to_builtins(self.note.problem),
            "problem_is_over": self.problem_is_over,
            "tables": {table.name: _rows(rows) for table, rows in self.state.tables.items()},
        }


def _rows(rows: StagedRows) -> dict[str, Any]:
    return {
        "rows": rows.rows,
        "waiting": rows.waiting,
        "oldest_waiting": None if rows.oldest is None else str(rows.oldest),
        "is_estimate": rows.is_estimate,
        "size_bytes": rows.size_bytes,
    }


def _real_time(time: Hlc) -> Hlc | None:
    # A partition without anything has the checkpoint 1.0000000001.
    return time if time.nanos > 1 else None


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """Status of all target schemas of a pipeline.

    schemas: None while the staging database is away.
    """

    pipeline: str
    mode_setting: StageMode
    directory: Path
    schemas: tuple[SchemaStatus, ...] | None
    outages: tuple[Outage, ...]
    read_us: int

    @property
    def lag_s(self) -> float | None:
        """Lag of the schema that is furthest behind; None if the lag of one is not known."""
        lags = [one.lag_s for one in self.schemas or ()]
        known = [lag_s for lag_s in lags if lag_s is not None]
        return max(known) if known and len(known) == len(lags) else None

    @property
    def why_no_lag(self) -> str:
        """Reason why the lag is not known."""
        if self.schemas is None:
            return ", ".join(one.words for one in self.outages)
        why = [f"{one.name}: {one._why}" for one in self.schemas if one.lag_s is None]
        return "; ".join(why) or "nothing has been received yet"

    @property
    def lag_words(self) -> str:
        """Lag for people."""
        return (
            human_seconds(self.lag_s) if self.lag_s is not None else f"unknown: {self.why_no_lag}"
        )

    def outage_lines(self) -> list[str]:
        """Return the servers that cannot be asked, for people."""
        return outage_lines(self.outages, (), running=["stage"], now_us=self.read_us)

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock status --json` prints it."""
        return {
            "pipeline": self.pipeline,
            "mode": self.mode_setting.value,
            "directory": str(self.directory),
            "lag_seconds": _round(self.lag_s),
            "lag_unknown": None if self.lag_s is not None else self.why_no_lag,
            "schemas": None
            if self.schemas is None
            else [schema.as_dict() for schema in self.schemas],
            "unreachable": [one.as_dict() for one in self.outages],
            "read_at": datetime.fromtimestamp(self.read_us / 1e6, UTC).isoformat(),
        }

    def lag_dict(self) -> dict[str, Any]:
        """Return the lag as `penstock lag --json` prints it."""
        keys = ("schema", "committed", "proposed", "lag_seconds", "proposed_lag_seconds", "waiting")
        whole = self.as_dict()
        return {
            "lag_seconds": whole["lag_seconds"],
            "lag_unknown": whole["lag_unknown"],
            "schemas": whole["schemas"]
            and [{key: schema[key] for key in keys} for schema in whole["schemas"]],
            "unreachable": whole["unreachable"],
        }


class StageStatusReader:
    """Reader of a status, repeatedly, on sessions that stay open. Used by one thread."""

    def __init__(self, config: Config, *, clock: Clock = REAL_CLOCK) -> None:
        """Prepare; nothing is connected before the first read."""
        assert config.stage is not None, "a file for changefeeds"
        assert config.staging is not None, "a file for changefeeds"
        self._config, self._clock = config, clock
        self._section = config.stage
        self._database = staging_at(config.staging.url)
        self._schemas = TargetSchemas(config)
        self._outages = Outages(clock)
        self._stacks = {STAGING: ExitStack(), TARGET: ExitStack()}
        self._session: StagingSession | None = None
        self._target: tuple[SharedProgress, RowSession] | None = None
        self._tables: dict[Group, tuple[float, frozenset[str]]] = {}

    def read(self) -> StageStatus:
        """Return the present status. It names a server that cannot be asked."""
        outages: list[Outage] = []
        now_us = self._clock.now_us()
        found: list[SchemaStatus] | None = None
        try:
            if self._session is None:
                self._session = self._stacks[STAGING].enter_context(self._database.open_session())
            session = self._session
            found = [self._schema(session, group, now_us) for group in self._groups(session)]
        except PenstockError as error:
            self._close(STAGING)
            found = None
            outages.append(self._outages.note_failure(STAGING, error))
        else:
            self._outages.note_answer(STAGING)
        if found is not None:
            found, outage = self._with_target(found)
            outages += [outage] if outage is not None else []
        return StageStatus(
            pipeline=self._config.pipeline.name,
            mode_setting=self._section.mode,
            directory=self._config.directory,
            schemas=None if found is None else tuple(found),
            outages=tuple(outages),
            read_us=now_us,
        )

    def _groups(self, session: StagingSession) -> list[Group]:
        """Return the groups of this target for which something was received."""
        named = (self._schemas.group_of(name) for name in session.group_names())
        found = {group for group in named if group is not None}
        staged = session.staged_groups()
        found |= {one for one in staged if self._schemas.group_of(group_name(one)) == one}
        return sorted(found)

    def _schema(self, session: StagingSession, group: Group, now_us: int) -> SchemaStatus:
        return SchemaStatus(
            group=group,
            state=session.look(group, lease_of(group)),
            note=read_note(session, group),
            mode_setting=self._section.mode,
            loaded=None,
            dead_letters=None,
            now_us=now_us,
        )

    def _with_target(self, schemas: list[SchemaStatus]) -> tuple[list[SchemaStatus], Outage | None]:
        """Return the schemas with the target's facts, or why it cannot be asked."""
        try:
            if self._target is None:
                self._target = self._connect()
            progress, rows = self._target
            asked = [self._ask(one, progress, rows) for one in schemas]
        except PenstockError as error:
            self._close(TARGET)
            return schemas, self._outages.note_failure(TARGET, error)
        self._outages.note_answer(TARGET)
        return asked, None

    def _connect(self) -> tuple[SharedProgress, RowSession]:
        stack, url = self._stacks[TARGET], self._config.target.url
        progress = open_shared_progress(url, application_name=NAME)
        stack.callback(progress.close)
        return progress, stack.enter_context(row_target_at(url).open_session())

    def _ask(
        self, schema: SchemaStatus, progress: SharedProgress, rows: RowSession
    ) -> SchemaStatus:
        applied = progress.read_shared(log_id_of(self._config, schema.group))
        table = schema.note.dead_letters or self._section.dlq_table_name
        return replace(
            schema,
            loaded=time_through(applied.position),
            dead_letters=self._letters(rows, schema.group, table),
        )

    def _letters(self, rows: RowSession, group: Group, table: str) -> int:
        """Return their number, up to a limit. Whether the table exists is checked periodically."""
        now_s = self._clock.monotonic_s()
        read_s, names = self._tables.get(group, (float("-inf"), frozenset[str]()))
        if now_s - read_s > TABLES_INTERVAL_S:
            names = frozenset(rows.tables(group))
            self._tables[group] = now_s, names
        if table not in names:
            return 0
        place = rows.quote(group[-1], table)
        some = f"select 1 as one from {place} limit {DEAD_LETTERS_MAX}"
        ((count,),) = rows.query(f"select count(*) from ({some}) as letters", ())
        return int(count)

    def _close(self, side: str) -> None:
        stack = self._stacks[side]
        self._stacks[side] = ExitStack()
        if side == STAGING:
            self._session = None
        else:
            self._target = None
        stack.close()

    def close(self) -> None:
        """Close the sessions."""
        for side in self._stacks:
            self._close(side)


def read_stage_status(config: Config) -> StageStatus:
    """Return the status, once."""
    reader = StageStatusReader(config)
    try:
        return reader.read()
    finally:
        reader.close()
