"""Database `wirekite` in the target: progress and action tables, and what the loader keeps there.

As `engines/postgres/target/progress.py`, which says what the tables are for; `wirekite_merge`, of
our own, holds a stamp for each merge table. Times are moments: TIMESTAMP columns show them in the
reader's time zone, as `now()` does. Plain PyMySQL and no Spark, so that every process may import
this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql

from penstock.engines.mysql.connect import Connection, rows, run, server_errors, value
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.ports.refusals import (
    ActionUnknown,
    AppliedByAnother,
    ProgressUnwritable,
    TargetFollowsAnotherLog,
)
from penstock.ports.target import SCHEMA, Applied, FileProgress, TableRecord, is_shared
from penstock.sql.record_text import shape_fields, shape_text

ACTIONS = ("RUN", "PAUSE", "STOP")
NAME_LENGTH_MAX = 64
MERGE_NAME_LENGTH_MAX = 61  # leaves room for which set and phase it is
LOCK_NAME = "penstock wirekite"
LOCK_WAIT_S = 30
NOT_THERE = (1049, 1146)  # the database, the table
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - DATETIME columns have no time zone: UTC

OPTIONS = "engine = InnoDB row_format = dynamic default character set utf8mb4 collate utf8mb4_bin"
# Two defaults are written out: without them older servers set start_time at every update.
TABLES: Mapping[str, str] = {
    "wirekite_progress": f"""
        create table if not exists {SCHEMA}.wirekite_progress (
            source       varchar(256) not null,
            target       varchar(256) not null,
            operation    varchar(2) not null,
            transmission varchar(1) not null,
            mark         varchar(64) null,
            table_name   varchar(256) null,
            start_time   timestamp not null default current_timestamp,
            finish_time  timestamp null default null,
            restarts     int default 0 not null,
            primary key (source, target)
        ) {OPTIONS}
    """,
    "wirekite_action": f"""
        create table if not exists {SCHEMA}.wirekite_action (
            action varchar(8) not null primary key
        ) {OPTIONS}
    """,
    "wirekite_log": f"""
        create table if not exists {SCHEMA}.wirekite_log (
            only_row         tinyint not null default 1 primary key,
            log_id           varchar(255) not null,
            applied_segment  bigint not null default -1,
            applied_gsn      bigint not null default 0,
            applied_trx      bigint not null default 0,
            applied_position decimal(39, 0) unsigned not null default 0,
            applied_commit   datetime(6) null
        ) {OPTIONS}
    """,
    "wirekite_table": f"""
        create table if not exists {SCHEMA}.wirekite_table (
            source_schema varchar(64) not null,
            source_name   varchar(64) not null,
            target_schema varchar(64) not null,
            target_name   varchar(64) not null,
            merge_name    varchar(64) not null unique,
            made          boolean not null,
            columns       longtext null,
            primary key (source_schema, source_name)
        ) {OPTIONS}
    """,
    "wirekite_apart": f"""
        create table if not exists {SCHEMA}.wirekite_apart (
            source_schema    varchar(64) not null,
            source_name      varchar(64) not null,
            state            varchar(16) not null,
            copy_id          bigint not null,
            start_position   decimal(39, 0) unsigned not null,
            applied_segment  bigint not null,
            applied_gsn      bigint not null,
            applied_trx      bigint not null,
            applied_position decimal(39, 0) unsigned not null,
            since            datetime(6) not null,
            primary key (source_schema, source_name)
        ) {OPTIONS}
    """,
    "wirekite_merge": f"""
        create table if not exists {SCHEMA}.wirekite_merge (
            merge_name varchar(64) not null primary key,
            stamp      bigint not null,
            shape      longtext not null
        ) {OPTIONS}
    """,
}
FIRST_ACTION = (
    f"insert into {SCHEMA}.wirekite_action select 'RUN' from dual"
    f" where not exists (select 1 from {SCHEMA}.wirekite_action)"
)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """A transaction, rolled back whole on any error.

    Also where the server has rolled back only the statement, as after a lock wait timeout.
    Raises what `server_errors` does where it cannot be begun or committed.
    """
    with server_errors("beginning a transaction"):
        connection.begin()
    try:
        yield
        with server_errors("committing"):
            connection.commit()
    except BaseException:
        if connection.open:
            try:
                connection.rollback()
            except pymysql.Error:
                connection.close()  # the server rolls back what cannot be committed any more
        raise


def ensure_tables(connection: Connection) -> None:
    """Make the database and its tables where missing. Raises ProgressUnwritable."""
    present = {
        row["table_name"]
        for row in rows(
            connection,
            "select table_name from information_schema.tables where table_schema = %s",
            (SCHEMA,),
            doing="looking for our tables",
        )
    }
    if set(TABLES) <= present:
        return
    try:
        with named_lock(connection):
            run(connection, f"create database if not exists {SCHEMA}", doing="making our database")
            for name, statement in TABLES.items():
                if name not in present:
                    run(connection, statement, doing=f"making table {SCHEMA}.{name}")
            run(connection, FIRST_ACTION, doing="writing the first action")
    except PrivilegeMissing as error:
        user = value(connection, "select current_user()", doing="asking who we are")
        raise ProgressUnwritable(
            f"database {SCHEMA} cannot be made or written: {error.message}",
            hint=f"As an administrator, run: create database {SCHEMA}; grant all on {SCHEMA}.* to "
            f"{user};",
        ) from error


@contextmanager
def named_lock(connection: Connection) -> Iterator[None]:
    """Let one session at a time do this; `if not exists` alone does not make it safe."""
    with server_errors("waiting for others who make our tables"):
        run(connection, "do get_lock(%s, %s)", (LOCK_NAME, LOCK_WAIT_S), doing="locking our tables")
    try:
        yield
    finally:
        if connection.open:
            run(connection, "do release_lock(%s)", (LOCK_NAME,), doing="unlocking our tables")


def read_action(connection: Connection) -> str:
    """The word in wirekite_action: RUN, PAUSE or STOP; RUN when there is no row or no table."""
    found = read_if_there(connection, f"select action from {SCHEMA}.wirekite_action limit 1")
    word = "RUN" if not found else str(found[0]["action"]).strip().upper()
    if word not in ACTIONS:
        raise ActionUnknown(
            f"wirekite.wirekite_action holds {word!r}, expected RUN, PAUSE or STOP",
            hint="Run: update wirekite.wirekite_action set action = 'RUN';",
        )
    return word


def set_action(connection: Connection, action: str) -> None:
    """Write RUN, PAUSE or STOP. Raises ActionUnknown for another word."""
    if action not in ACTIONS:
        raise ActionUnknown(f"no such action: {action!r}", hint="Use RUN, PAUSE or STOP.")
    doing, table = "writing the action", f"{SCHEMA}.wirekite_action"
    with transaction(connection):
        if rows(connection, f"select 1 from {table} for update", doing=doing):
            run(connection, f"update {table} set action = %s", (action,), doing=doing)
        else:
            run(connection, f"insert into {table} values (%s)", (action,), doing=doing)


def read_if_there(connection: Connection, sql: str, values: object = None) -> list[dict[str, Any]]:
    """The rows of a query; none where its table does not exist."""
    try:
        return rows(connection, sql, values, doing="reading our tables")
    except StatementFailed as error:
        if error.fields.get("errno") not in NOT_THERE:
            raise
        return []


# --- the log this target follows, and shared ones -------------------------------------------------


def _place_of(log_id: str) -> str:
    return f"{SCHEMA}.{'wirekite_staged' if is_shared(log_id) else 'wirekite_log'}"


def bind_log(connection: Connection, log_id: str) -> Applied:
    """Bind the target to a change log, or check that it is bound to it; how far it is applied.

    Raises TargetFollowsAnotherLog, since GSNs of two logs cannot be compared.
    """
    if is_shared(log_id):
        return read_applied(connection, log_id)
    run(
        connection,
        f"insert ignore into {SCHEMA}.wirekite_log (log_id) values (%s)",
        (log_id,),
        doing="binding the target to the log",
    )
    found = value(
        connection, f"select log_id from {SCHEMA}.wirekite_log", doing="reading the log's name"
    )
    if found != log_id:
        raise TargetFollowsAnotherLog(
            f"the target follows change log {found or 'unknown'}, this pipeline's is {log_id}",
            hint="Use the directory of the pipeline that loaded this target, another target "
            "server, or give up its state: drop database wirekite; and load afresh.",
        )
    return read_applied(connection)


def forget_log(connection: Connection) -> None:
    """Drop the binding and all progress rows and table shapes: before a load from scratch."""
    with transaction(connection):
        for table in ("wirekite_log", "wirekite_progress", "wirekite_table", "wirekite_apart"):
            run(connection, f"delete from {SCHEMA}.{table}", doing="forgetting the log")


def read_applied(
    connection: Connection, log_id: str = "", *, for_update: bool = False, for_share: bool = False
) -> Applied:
    """How far the log is applied; all zero when nothing is, or there is no table yet.

    log_id: of a shared log; otherwise it is the one log that the target follows. for_update,
    for_share: lock the row until the transaction ends.
    """
    found = read_if_there(
        connection,
        "select applied_segment, applied_gsn, applied_trx, applied_position, applied_commit"
        f"  from {_place_of(log_id)}"
        + (" where log_id = %s" if is_shared(log_id) else "")
        + (" for update" if for_update else " lock in share mode" if for_share else ""),
        (log_id,) if is_shared(log_id) else None,
    )
    if not found:
        return Applied()
    row = found[0]
    return Applied(
        segment=row["applied_segment"],
        gsn=row["applied_gsn"],
        trx=row["applied_trx"],
        position=int(row["applied_position"]),
        commit_time_us=microseconds(row["applied_commit"]),
    )


def refused(before: Applied) -> AppliedByAnother:
    """The error for a target that is not where this loader left it."""
    return AppliedByAnother(
        f"the target's applied position is no longer gsn {before.gsn}",
        hint="Let one loader work on a target: stop the other `penstock run` or `penstock load`.",
    )


def advance(connection: Connection, *, log_id: str, before: Applied, after: Applied) -> None:
    """Move the applied position inside the batch's transaction.

    connection: one that counts the rows it found. Raises AppliedByAnother when it is not where this
    loader left it: then the transaction must be rolled back.
    """
    changed = run(
        connection,
        f"""
        update {_place_of(log_id)}
           set applied_segment = %s, applied_gsn = %s, applied_trx = %s, applied_position = %s,
               applied_commit = %s
         where log_id = %s and applied_segment = %s and applied_gsn = %s and applied_position = %s
        """,
        (
            after.segment,
            after.gsn,
            after.trx,
            after.position,
            utc(after.commit_time_us),
            log_id,
            before.segment,
            before.gsn,
            before.position,
        ),
        doing="moving the applied position",
    )
    if changed != 1:
        raise refused(before)


# --- rows of wirekite_progress --------------------------------------------------------------------

BEGIN_ROW = f"""
    insert into {SCHEMA}.wirekite_progress
           (source, target, operation, transmission, mark, table_name, start_time)
    values (%s, %s, %s, 'F', %s, %s, current_timestamp)
        on duplicate key update
           restarts = restarts + case when finish_time is null then 1 else 0 end
"""

END_ROW = f"""
    insert into {SCHEMA}.wirekite_progress
           (source, target, operation, transmission, mark, table_name, start_time, finish_time)
    values (%(source)s, %(target)s, %(operation)s, 'F', %(mark)s, %(table)s, current_timestamp,
            case when %(finished)s then current_timestamp end)
        on duplicate key update
           mark = %(mark)s,
           operation = %(operation)s,
           finish_time = case when %(finished)s then current_timestamp end
"""


def begin_files(connection: Connection, files: Iterable[str]) -> None:
    """Insert the CL rows of a batch that begins; a row left open by a crash counts a restart."""
    with server_errors("writing progress rows"), transaction(connection):
        for file in files:
            run(connection, BEGIN_ROW, (file, "CL", "CL", None, None), doing="writing progress")


def end_files(connection: Connection, files: Iterable[FileProgress]) -> None:
    """Write the CL rows of an applied batch; call inside its transaction."""
    for file in files:
        row = _end_row(file.file, "CL", "CL", str(file.mark), None, finished=file.finished)
        run(connection, END_ROW, row, doing="writing progress rows")


def begin_segment(connection: Connection, *, slot: str, file: str, mark: str) -> None:
    """Insert the CE row of a segment that opens.

    mark: the position from which it can be rebuilt. A row left open by a crash counts a restart.
    """
    run(connection, BEGIN_ROW, (slot, file, "CE", mark, None), doing="writing progress rows")


def end_segment(connection: Connection, *, slot: str, file: str, mark: str) -> None:
    """Close the CE row of a segment. mark: the position behind its last COMMIT."""
    row = _end_row(slot, file, "CE", mark, None, finished=True)
    run(connection, END_ROW, row, doing="writing progress rows")


def finished_segments(connection: Connection, slot: str) -> set[str]:
    """The files whose CE row is closed, to repair what a crash left out."""
    found = rows(
        connection,
        f"select target from {SCHEMA}.wirekite_progress"
        " where operation = 'CE' and source = %s and finish_time is not null",
        (slot,),
        doing="reading progress rows",
    )
    return {row["target"] for row in found}


def begin_chunk(connection: Connection, *, table: TableName, number: int) -> None:
    """Insert the DL row of a chunk of the bulk load: source is `schema.table.N`."""
    row = (f"{table}.{number}", "DL", "DL", None, str(table))
    run(connection, BEGIN_ROW, row, doing="writing progress rows")


def end_chunk(connection: Connection, *, table: TableName, number: int, row_count: int) -> None:
    """Close the DL row of a chunk, inside the transaction that wrote its rows."""
    row = _end_row(f"{table}.{number}", "DL", "DL", str(row_count), str(table), finished=True)
    run(connection, END_ROW, row, doing="writing progress rows")


def finished_chunks(connection: Connection, table: TableName) -> dict[int, int]:
    """Chunk number to rows committed, of the chunks of a table that are done."""
    found = rows(
        connection,
        f"select source, mark from {SCHEMA}.wirekite_progress"
        " where operation = 'DL' and table_name = %s and finish_time is not null",
        (str(table),),
        doing="reading progress rows",
    )
    return {int(row["source"].rpartition(".")[2]): int(row["mark"]) for row in found}


def all_finished_chunks(connection: Connection) -> dict[str, dict[int, int]]:
    """`finished_chunks` of all tables at once, by the table's name as text."""
    found: dict[str, dict[int, int]] = {}
    for row in rows(
        connection,
        f"select table_name, source, mark from {SCHEMA}.wirekite_progress"
        " where operation = 'DL' and finish_time is not null",
        doing="reading progress rows",
    ):
        chunks = found.setdefault(row["table_name"], {})
        chunks[int(row["source"].rpartition(".")[2])] = int(row["mark"])
    return found


def forget_chunks(connection: Connection, table: TableName) -> None:
    """Delete the DL rows of a table that is loaded afresh."""
    run(
        connection,
        f"delete from {SCHEMA}.wirekite_progress where operation = 'DL' and table_name = %s",
        (str(table),),
        doing="forgetting chunks",
    )


def _end_row(
    source: str, target: str, operation: str, mark: str, table: str | None, *, finished: bool
) -> dict[str, object]:
    return {
        "source": source,
        "target": target,
        "operation": operation,
        "mark": mark,
        "table": table,
        "finished": finished,
    }


# --- shapes of captured tables --------------------------------------------------------------------


def read_tables(connection: Connection) -> dict[TableName, TableRecord]:
    """All captured tables, by source name."""
    found = rows(
        connection,
        "select source_schema, source_name, target_schema, target_name, merge_name, made, columns"
        f"  from {SCHEMA}.wirekite_table",
        doing="reading the captured tables",
    )
    records = {}
    for row in found:
        source = TableName(row["source_schema"], row["source_name"])
        records[source] = TableRecord(
            source=source,
            target=TableName(row["target_schema"], row["target_name"]),
            merge_name=row["merge_name"],
            made=bool(row["made"]),
            **shape_fields(row["columns"]),
        )
    return records


def write_tables(connection: Connection, records: Sequence[TableRecord]) -> None:
    """Insert or replace records; `made` once true stays true."""
    for record in records:
        run(
            connection,
            f"""
            insert into {SCHEMA}.wirekite_table values (%s, %s, %s, %s, %s, %s, %s)
                on duplicate key update
                   target_schema = values(target_schema),
                   target_name = values(target_name),
                   merge_name = values(merge_name),
                   made = made or values(made),
                   columns = values(columns)
            """,
            _table_row(record),
            doing="recording a captured table",
        )


def add_table(connection: Connection, record: TableRecord) -> None:
    """Insert the record of a table unless it, or another with its merge name, is there already."""
    run(
        connection,
        f"insert ignore into {SCHEMA}.wirekite_table values (%s, %s, %s, %s, %s, %s, %s)",
        _table_row(record),
        doing="recording a captured table",
    )


def _table_row(record: TableRecord) -> tuple[object, ...]:
    return (
        *record.source,
        *record.target,
        record.merge_name,
        record.made,
        shape_text(record),
    )


def merge_name(table: TableName, taken: Mapping[str, TableName]) -> str:
    """The name of a table's merge table: `<table>_wkm` when it fits and is free.

    As `engines/postgres/target/progress.py`, with lengths in characters, and no two names that
    differ in case alone: where names have no case, they would be one.
    """
    wanted = f"{table.name}_wkm"
    others = {name.lower(): of for name, of in taken.items()}
    if len(wanted) <= MERGE_NAME_LENGTH_MAX and others.get(wanted.lower(), table) == table:
        return wanted
    digest = hashlib.sha256("\0".join(table).encode()).hexdigest()[:8]
    return f"{table.name[: MERGE_NAME_LENGTH_MAX - len(digest) - 5]}_{digest}_wkm"


class Records:
    """What `wirekite_table` says, as one connection has read it; see
    `engines/postgres/target/progress.py`.
    """

    def __init__(self, connection: Connection) -> None:
        """connection: autocommit."""
        self._connection = connection
        self._known: dict[TableName, TableRecord] = {}

    def get(self, source: TableName, target: TableName) -> TableRecord:
        """The record of a captured table, made when it is the first time."""
        while source not in self._known:
            self._known = read_tables(self._connection)
            if source not in self._known:
                self._add(source, target)  # nothing happens when its merge name was taken just now
        return self._known[source]

    def _add(self, source: TableName, target: TableName) -> None:
        taken = {record.merge_name: record.target for record in self._known.values()}
        name = merge_name(target, taken)
        record = TableRecord(
            source=source, target=target, merge_name=name, made=False, columns=None
        )
        add_table(self._connection, record)

    def put(self, record: TableRecord) -> None:
        """Write a record, whatever was there."""
        write_tables(self._connection, [record])
        self._known[record.source] = record

    def forget(self) -> None:
        """Read again when next needed: after a failure."""
        self._known.clear()


def utc(microseconds_: int) -> datetime | None:
    """Microseconds since 1970 as the naive UTC time that wirekite_log holds; 0 is None."""
    return _EPOCH + timedelta(microseconds=microseconds_) if microseconds_ else None


def microseconds(moment: datetime | None) -> int:
    """The inverse of `utc`; aware times are converted."""
    if moment is None:
        return 0
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // timedelta(microseconds=1)
