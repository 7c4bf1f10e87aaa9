"""Lag of a MySQL or MariaDB source: its binlog's end, and the part that our log has not read.

These servers do not know how far readers are. Our position is the log's own end, and the first
transaction after it is looked up in the binlog, by connecting briefly as a replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS, BinlogPosition
from penstock.engines.mysql.connect import Connection, rows
from penstock.engines.mysql.log_start import stored_resume_state
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.resume_state import ResumeState
from penstock.engines.mysql.source.status import (
    LogFile,
    binlog_files,
    read_clock,
    read_file_time,
    read_first_commit,
    read_identity,
    read_status,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.handover import log_begin
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread

LOOK_INTERVAL_S = 5.0


class SourceReplaced(PenstockError):
    """The change log's binlog positions are those of another server than the one that answers."""

    code = "CT38"
    retry = "operator"


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of binlog files by their number in our log; a call returns bytes between positions."""

    of: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, first: int, last: int) -> int:
        """Return the bytes between two positions; files in between count whole.

        Returns 0 if last is not after first.
        """
        if last <= first:
            return 0
        low, high = BinlogPosition(first), BinlogPosition(last)
        files = sum(size for number, size in self.of.items() if low.number <= number < high.number)
        return max(files + high.offset - low.offset, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """First commit found after a position of the binlog, which ended at `end`. at_s: monotonic."""

    here: BinlogPosition
    end: BinlogPosition
    commit_us: int | None
    at_s: float


class MySQLLagReader(SourceReader):
    """Lag reader of a MySQL or MariaDB source; see `ports.lag.SourceReader`."""

    def __init__(self, config: Config, application_name: str, *, clock: Clock = REAL_CLOCK) -> None:
        """Connect to the source. Raises the typed errors of a connection."""
        self._config = config
        self._clock = clock
        self._connection: Connection = open_catalog(
            config.source.url, application_name=application_name
        )
        self._looked: _Look | None = None
        self._oldest: tuple[str, int] | None = None

    @property
    def is_closed(self) -> bool:
        return not self._connection.open

    def state(self, log: LogEnd) -> SourceState:
        """Return the source's state.

        Raises SourceReplaced; LogPurged if the next transactions are gone.
        """
        connection = self._connection
        now_us = read_clock(connection)
        end = read_status(connection).position
        resume_state = stored_resume_state(self._config)
        shift = resume_state.mark.shift if resume_state is not None else 0
        if resume_state is not None:
            self._check_same(resume_state)
        sizes = _Sizes(
            {
                BinlogPosition.at(file.name, 0).number + shift: file.size_bytes
                for file in binlog_files(connection)
            }
        )
        position = end.ordinal + (shift << BINLOG_OFFSET_BITS)
        read_to = log.end.position or log_begin(self._config)
        unread = None
        if 0 < read_to < position:
            base = resume_state.mark.base if resume_state is not None else end.base
            here = BinlogPosition(read_to - (shift << BINLOG_OFFSET_BITS), base)
            unread = self._first_unread(here, end, log)
        return SourceState(
            position=position,
            slot_exists=bool(read_to),
            slot_active=log.has_writer,
            confirmed=read_to,
            now_us=now_us,
            unread=Unread(commit_us=unread),
            bytes_between=sizes,
        )

    def _check_same(self, resume_state: ResumeState) -> None:
        identity = read_identity(self._connection)
        if identity.name != resume_state.server:
            raise SourceReplaced(
                f"the source is {identity.name} now, and the change log holds binlog positions of "
                f"{resume_state.server}",
                hint="The lag is known again once the extractor has continued with this server; "
                "see "
                f"`penstock status {self._config.path.name}`.",
            )

    def _first_unread(self, here: BinlogPosition, end: BinlogPosition, log: LogEnd) -> int | None:
        """Return when the first transaction after our log was committed; None if there is none.

        The transaction found stays the first while our log does not move. When the log moves,
        penstock does not look each time: the commit time is at least that of the transaction found
        before and that of the log's end.
        """
        known, now_s = self._looked, self._clock.monotonic_s()
        if known is not None and known.commit_us is not None:
            if known.here == here:
                return known.commit_us
            if now_s - known.at_s < LOOK_INTERVAL_S:
                return max(known.commit_us, log.end.commit_time_us)
        elif known is not None and (known.here, known.end) == (here, end):
            return None
        found = read_first_commit(self._config.source.url, here)
        self._looked = _Look(here=here, end=end, commit_us=found, at_s=now_s)
        return found

    def retention(self) -> Retention | None:
        """Return the size of the binlog files, which the server keeps by its own rules."""
        files = binlog_files(self._connection)
        if not files:
            return None
        began_us = self._began_us(files[0])
        now_us = self._clock.now_us()
        return Retention(
            size_bytes=sum(file.size_bytes for file in files),
            age_s=max((now_us - began_us) / 1e6, 0.0),
            left_bytes=None,
            state="by time",
            expires_s=_expires_s(self._connection),
        )

    def _began_us(self, oldest: LogFile) -> int:
        if self._oldest is None or self._oldest[0] != oldest.name:
            self._oldest = (oldest.name, read_file_time(self._config.source.url, oldest.name))
        return self._oldest[1]

    def close(self) -> None:
        self._connection.close()


def _expires_s(connection: Connection) -> float | None:
    """Return how long the server keeps a binlog file; None if it is deleted only by hand."""
    found = {
        row["variable_name"].lower(): str(row["value"])
        for row in rows(
            connection,
            "show global variables where variable_name in ('binlog_expire_logs_seconds',"
            " 'expire_logs_days', 'binlog_expire_logs_auto_purge')",
            doing="asking how long binlogs are kept",
        )
    }
    if found.get("binlog_expire_logs_auto_purge") == "OFF":
        return None
    days = float(found.get("expire_logs_days") or 0)
    return float(found.get("binlog_expire_logs_seconds") or 0) or days * 86_400 or None
