"""Comparison by `penstock verify` for MySQL and MariaDB; see `Verifier` of `ports/verify.py`.

The sessions are in transactions with consistent snapshots: at the source the sessions of
`engines.mysql.source.snapshot`, in the target sessions that begin while the loader is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS, BinlogPosition
from penstock.engines.mysql.connect import connect, run
from penstock.engines.mysql.log_start import stored_resume_state
from penstock.engines.mysql.source.snapshot import APPLICATION_NAME as SNAPSHOT_NAME
from penstock.engines.mysql.source.snapshot import open_snapshots, read_choices
from penstock.engines.mysql.source.strategies import NoConsistentPoint, Strategy
from penstock.engines.mysql.source.unread import has_changes
from penstock.engines.mysql.verify.reader import MySQLVerifyReader
from penstock.model import TableDefinition
from penstock.model.patterns import Selection
from penstock.ports.config import Config
from penstock.ports.verify import APPLICATION_NAME, PART_BYTES, SourcePoint, Verifier, VerifyReader

ISOLATION = "set session transaction isolation level repeatable read"
BEGIN = "start transaction with consistent snapshot, read only"


class MySQLVerifier(Verifier):
    """Verifier of a MySQL or MariaDB server."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        tables: Callable[[], Sequence[TableDefinition]],
        tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[VerifyReader, SourcePoint]]:
        """Open sessions that are all in snapshots at one position of the binlog.

        Raises NoConsistentPoint if the account may use no strategy that gives exactly one position,
        and the errors of taking snapshots.
        """
        url, found = config.source.url, tables()
        follows = config.pipeline.mode.has_change
        with connect(url, application_name=SNAPSHOT_NAME) as connection:
            among = [
                choice
                for choice in read_choices(connection, found, follows=follows)
                if choice.strategy is not Strategy.LOCK_FREE
            ]
        if not among:
            raise NoConsistentPoint(
                "the tables cannot be compared at one point: the account may not lock for a moment",
                hint="Run at the server: grant reload on *.* to 'USER'@'HOST'; or lock tables on "
                "them.",
            )
        with (
            open_snapshots(
                url,
                found,
                count=sessions + 1,
                among=among,
                on_choice=lambda one: tell(str(one)),
                follows=follows,
            ) as taken,
            MySQLVerifyReader(url, taken.connections, part_bytes=part_bytes) as reader,
        ):
            position = taken.status.position
            ordinal = position.ordinal + (_shift(config) << BINLOG_OFFSET_BITS)
            yield reader, SourcePoint(position=ordinal, text=str(position))

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[VerifyReader]:
        """Open sessions that see the same rows, because no writer is active at the beginning."""
        with ExitStack() as stack:
            opened = []
            for _ in range(sessions + 1):
                connection = stack.enter_context(
                    closing(connect(url, application_name=APPLICATION_NAME))
                )
                run(connection, ISOLATION, doing="preparing a snapshot")
                opened.append(connection)
            for connection in opened:
                run(connection, BEGIN, doing="taking a snapshot")
            yield stack.enter_context(MySQLVerifyReader(url, opened, part_bytes=part_bytes))

    def nudge(self, url: str) -> None:
        """Do nothing: a binlog's end is reported without a nudge."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        resume_state = stored_resume_state(config)
        if resume_state is None or not since:
            return ""
        shift = resume_state.mark.shift << BINLOG_OFFSET_BITS
        found = has_changes(
            config.source.url,
            start=BinlogPosition(since - shift, resume_state.mark.base),
            until=BinlogPosition(point.position - shift, resume_state.mark.base),
            takes=Selection.parse(config.source.tables).takes,
            names=[table.name.name for table in tables()],
        )
        return "the binlog has changes that are not read yet" if found else ""


VERIFIER: Verifier = MySQLVerifier()


def _shift(config: Config) -> int:
    """Return how much larger file numbers are in our log than on the present server."""
    resume_state = stored_resume_state(config)
    return resume_state.mark.shift if resume_state is not None else 0
