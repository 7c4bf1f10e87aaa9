"""Sending of merge rows into a merge table, by LOAD DATA LOCAL from memory. Runs in the workers.

If the server refuses LOAD DATA LOCAL (`local_infile = 0`), rows are sent by INSERT with many rows
per statement. They are sent in a transaction that first checks whether the merge table is still
meant for them, so late rows from a worker of a given-up batch are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import structlog
from pymysql.constants import COMMAND

from penstock.codec.columns import cast_exactly
from penstock.engines.mysql.connect import Connection, connect, quote, statement_error, value
from penstock.engines.mysql.connect import rows as rows_of
from penstock.engines.mysql.target.claims import claim_staging
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.engines.mysql.target.rows import FIELDS, lines, tuples
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectionLost, ServerBusy, StatementInterrupted
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.ports.target import SCHEMA, StagingChanged, StagingFailed, StagingLost, ValueRefused

logger = structlog.get_logger(__name__)

WORKER_NAME = "penstock worker"
LOCK_WAIT_S = 60
# A machine of ours that vanishes leaves a session in a transaction, whose locks others wait for.
# They end it (`claims.py`), and the server ends it after twice as long. No transaction here is idle
# for nearly as long.
VANISHED_S = 50
IDLE_MAX_S = 20.0  # a session idle for longer is not used again: the server may be about to end it
PACKET_BYTES = 2**20
# An INSERT may not be longer than the server's max_allowed_packet, and need not be that long.
INSERT_BYTES_MAX = 8 * 2**20
FILE_NAME = "penstock"
NOT_ALLOWED = 1227
TRUNCATED = 1265

# Merge tables hold nothing that a replica of the target needs. Skipped silently if not allowed.
WITHOUT_LOG = "set session sql_log_bin = 0"


# As `connect` has it, but not strict: as in LOAD DATA LOCAL, warnings are counted instead.
COUNTING = "'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'"


@dataclass(frozen=True, slots=True)
class StagingSession:
    """Connection of a worker. takes_files: LOAD DATA LOCAL is allowed. packet_bytes: see above."""

    connection: Connection
    takes_files: bool
    packet_bytes: int


_sessions: dict[tuple[int, str], StagingSession] = {}
_used_s: dict[tuple[int, str], float] = {}  # when each was last at work


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Merge table that a worker fills. table: the source's name. stamp: see `MergeTables`."""

    url: str
    table: TableName
    staging: str
    stamp: int
    relation: Relation


def send(place: Destination, batches: Iterable[pa.RecordBatch]) -> int:
    """Append batches of the layout to a merge table; return the number of rows.

    Raises StagingFailed, StagingLost, StagingChanged, or the errors of the batches' iterator.
    """
    try:
        session = _session(place.url)
        sent = _send(session, place, batches)
        _used_s[os.getpid(), place.url] = REAL_CLOCK.monotonic_s()
        return sent
    except pymysql.Error as error:
        _forget(place.url)
        raise _staging_error(place, error) from error
    except BaseException:
        _forget(place.url)
        raise


def _send(session: StagingSession, place: Destination, batches: Iterable[pa.RecordBatch]) -> int:
    connection = session.connection
    layout = MergeLayout(place.relation)
    table = quote(SCHEMA, place.staging)
    claim_staging(connection, place.staging)
    connection.begin()
    _check_stamp(connection, place)
    put = put_rows(session, table, layout, batches)
    if not put.is_whole:
        raise refused_rows(connection, place.table, layout, put)
    connection.commit()
    return put.rows


@dataclass(frozen=True, slots=True)
class PutRows:
    """Numbers of sent and stored rows, and whether the server changed none of them.

    If all is well, there is one warning for each value that is the 0 of an ENUM.
    """

    rows: int
    taken: int
    is_unchanged: bool

    @property
    def is_whole(self) -> bool:
        """Return whether all rows are stored as they were sent."""
        return self.is_unchanged and self.rows == self.taken


def put_rows(
    session: StagingSession, table: str, layout: MergeLayout, batches: Iterable[pa.RecordBatch]
) -> PutRows:
    """Append batches of the layout to a table of its columns, in a session that is not strict.

    table: quoted. Raises pymysql.Error, or the errors of the batches' iterator.
    """
    connection = session.connection
    names = ", ".join(quote(name) for name in layout.schema.names)
    counted = _Counted(batches, layout.without_label(), layout.floats())
    if session.takes_files:
        statement = f"load data local infile '{FILE_NAME}' into table {table} character set binary"
        result = load_local(connection, f"{statement} {FIELDS} ({names})", map(lines, counted))
        taken, warnings = result
        if warnings and counted.without_label:
            warnings = all_warnings(connection)
    else:
        taken = warnings = 0
        room = min(INSERT_BYTES_MAX, session.packet_bytes - 2**16)
        for batch in counted:
            for piece in tuples(batch, bytes_max=room):
                head = f"insert into {table} ({names}) values ".encode()
                taken += int(connection.query(head + piece))
                if connection._result.warning_count:
                    warnings += all_warnings(connection)
    return PutRows(counted.rows, taken, warnings == counted.without_label)


class _Counted:
    """Iterator over batches that counts their rows.

    without_label: number of values that are the 0 of an ENUM. The server stores each of them with
    one warning; any further warning is about another value.
    """

    def __init__(
        self, batches: Iterable[pa.RecordBatch], labels: tuple[str, ...], floats: tuple[str, ...]
    ) -> None:
        """Keep the parts.

        floats: columns written with all digits, because the shortest form may be out of range.
        """
        self._batches = batches
        self._labels = labels
        self._floats = floats
        self.rows = 0
        self.without_label = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.num_rows:
                self.rows += batch.num_rows
                for name in self._labels:
                    empty = pc.equal(batch.column(name), "")
                    self.without_label += pc.sum(empty).as_py() or 0
                for name in self._floats:
                    place = batch.schema.get_field_index(name)
                    wide = cast_exactly(batch.column(name), pa.float64())
                    batch = batch.set_column(place, name, wide)
                yield batch


_LOADED = re.compile(rb"Records: (\d+) +Deleted: \d+ +Skipped: (\d+)")


def load_local(connection: Connection, sql: str, pieces: Iterable[bytes]) -> tuple[int, int]:
    """Run a LOAD DATA LOCAL statement with these pieces; return the numbers of rows and warnings.

    Skipped rows are not counted. The server names the file that it wants. Any other name than ours
    is refused, because a program that answers in the server's place could request any local file.
    Raises pymysql.Error.
    """
    connection._execute_command(COMMAND.COM_QUERY, sql)
    packet = connection._read_packet()
    if not packet.is_load_local_packet():
        raise pymysql.err.OperationalError(2027, "the server did not ask for the rows")
    if packet.get_all_data()[1:] != FILE_NAME.encode():
        connection._force_close()
        raise pymysql.err.OperationalError(2027, "the server asked for a file that is not ours")
    try:
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, len(view), PACKET_BYTES):
                _write_packet(connection, view[at : at + PACKET_BYTES])
    except BaseException:
        connection._force_close()  # an empty packet would end the rows as if they were complete
        raise
    connection.write_packet(b"")
    answer = connection._read_packet()
    answer.advance(1)
    answer.read_length_encoded_integer()  # a row that REPLACE replaces counts twice
    answer.read_length_encoded_integer()
    _, warning_count = answer.read_struct("<HH")
    said = _LOADED.search(answer.read_all())
    if said is None:
        raise pymysql.err.OperationalError(2027, "the server does not say what it has loaded")
    return int(said[1]) - int(said[2]), int(warning_count)


def _write_packet(connection: Connection, payload: memoryview) -> None:
    """Write a packet as PyMySQL's `write_packet`, which copies the payload three times."""
    head = len(payload).to_bytes(3, "little") + bytes([connection._next_seq_id])
    connection._write_bytes(b"".join((head, payload)))
    connection._next_seq_id = (connection._next_seq_id + 1) % 256


def all_warnings(connection: Connection) -> int:
    """Return the number of warnings of the last statement; packets count only up to 65,535.

    The warnings are kept: selecting their number as a variable would make the server forget them.
    """
    return int(value(connection, "show count(*) warnings", doing="counting warnings"))


def _check_stamp(connection: Connection, place: Destination) -> None:
    """Lock the merge table's stamp until the commit, and check that it is ours."""
    found = value(
        connection,
        f"select stamp from {SCHEMA}.wirekite_merge where merge_name = %s lock in share mode",
        (place.staging,),
        doing=f"staging {place.table}",
    )
    if found != place.stamp:
        raise StagingChanged(
            f"merge table {place.staging} belongs to another batch now",
            hint="penstock stages the batch again.",
        )


def warnings_said(connection: Connection) -> list[tuple[int, str]]:
    """Return numbers and texts of those warnings of the last statement that the server kept."""
    found = rows_of(connection, "show warnings", doing="reading warnings")
    return [(int(row["code"]), str(row["message"])) for row in found]


def column_said(text: str) -> str:
    """Return the column that a warning names; empty if it names none or is not in English."""
    _, named, rest = text.rpartition(" for column '")
    return rest.rpartition("' at row ")[0] if named else ""


def not_of_labels(said: list[tuple[int, str]], labels: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return the warnings that are not about the 0 of an ENUM."""
    return [
        (number, text)
        for number, text in said
        if number != TRUNCATED or column_said(text) not in ("", *labels)
    ]


def refused_rows(
    connection: Connection, table: TableName, layout: MergeLayout, put: PutRows
) -> PenstockError:
    """Return the error for the server's warnings, without the values that they name."""
    labels = layout.without_label()
    said = warnings_said(connection)
    if not said:
        return StagingFailed(
            f"staging {table}: the server took {put.taken} rows of {put.rows}",
            hint=f"Please report it. {LOAD_AFRESH}",
            table=str(table),
        )
    number, text = (not_of_labels(said, labels) or said)[0]
    column = column_said(text)
    which = f"a value of column {column}" if column else "a value"
    return ValueRefused(
        f"staging {table}: the server cannot hold {which} (error {number})",
        hint="The value is out of the range of MySQL's type: have the column as text in the "
        "target, or leave the table out.",
        table=str(table),
        errno=number,
    )


def _staging_error(place: Destination, error: pymysql.Error) -> PenstockError:
    typed = statement_error(f"staging {place.table} into {place.staging}", error)
    if isinstance(typed, ConnectionLost | StatementInterrupted | ServerBusy):
        return StagingLost(typed.message, hint="penstock retries automatically.", **typed.fields)
    return StagingFailed(
        typed.message,
        hint=f"Please report it. {LOAD_AFRESH}",
        **typed.fields | {"table": str(place.table)},
    )


# --- connections ----------------------------------------------------------------------------------


def _session(url: str) -> StagingSession:
    """Return the worker's own connection to the target; a forked child opens another."""
    key = (os.getpid(), url)
    if REAL_CLOCK.monotonic_s() - _used_s.get(key, float("inf")) > IDLE_MAX_S:
        _forget(url)
    if key not in _sessions:
        for pid, other in list(_sessions):  # a worker serves one target at a time
            if pid == key[0]:
                _forget(other)
        _sessions[key] = _open(url)
    return _sessions[key]


def _open(url: str) -> StagingSession:
    options = {
        "innodb_lock_wait_timeout": str(LOCK_WAIT_S),
        "lock_wait_timeout": str(LOCK_WAIT_S),
        "net_read_timeout": str(VANISHED_S),
        "wait_timeout": str(VANISHED_S),
        "sql_mode": COUNTING,
    }
    connection = connect(url, application_name=WORKER_NAME, local_infile=True, options=options)
    try:
        facts = value(connection, "select @@local_infile", doing="looking at the target")
        room = value(connection, "select @@max_allowed_packet", doing="looking at the target")
        without_log(connection)
    except BaseException:
        connection.close()
        raise
    if not facts:
        logger.warning(
            "the target accepts no LOAD DATA LOCAL, rows are sent with INSERT",
            hint="Run: set global local_infile = 1;",
        )
    return StagingSession(connection, takes_files=bool(facts), packet_bytes=int(room))


def without_log(connection: Connection) -> bool:
    """Exclude this session's writes from the target's binlog if allowed; return whether it is."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(WITHOUT_LOG)
    except pymysql.Error as error:
        if error.args[0] != NOT_ALLOWED:
            raise
        return False
    return True


def _forget(url: str) -> None:
    """Drop a connection after an error, when it may be in the middle of a statement."""
    _used_s.pop((os.getpid(), url), None)
    session = _sessions.pop((os.getpid(), url), None)
    if session is not None:
        session.connection._force_close()
