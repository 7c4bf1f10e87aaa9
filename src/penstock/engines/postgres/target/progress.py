"""Schema `wirekite` in the target: progress and action tables, and what the loader keeps there.

`wirekite_progress` and `wirekite_action` are document 000's, with the choices it leaves open made
as ARCHITECTURE.md says. Three tables are our own: `wirekite_log` binds the target to one change log
and holds how far it is applied, `wirekite_table` holds the captured tables' shapes as applied,
`wirekite_apart` the tables with a table sync (`ports/table_sync.py`).
Times are UTC. Plain psycopg and no Spark, so that every process may import this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import psycopg

from penstock.model import TableName
from penstock.ports.refusals import (
    ActionUnknown,
    AppliedByAnother,
    ProgressUnwritable,
    TargetFollowsAnotherLog,
)
from penstock.ports.target import Applied, FileProgress, TableRecord, is_shared
from penstock.sql.record_text import shape_fields, shape_text

SCHEMA = "wirekite"
ACTIONS = ("RUN", "PAUSE", "STOP")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the progress columns have no time zone: UTC

TABLES = (
    """
    create table if not exists wirekite.wirekite_progress (
        source       varchar(256),
        target       varchar(256),
        operation    varchar(2) not null,
        transmission varchar(1) not null,
        mark         varchar(64) null,
        table_name   varchar(256) null,
        start_time   timestamp not null,
        finish_time  timestamp null,
        restarts     int default 0 not null,
        primary key (source, target)
    )
    """,
    """
    create table if not exists wirekite.wirekite_action (
        action varchar(8) not null
    )
    """,
    """
    create table if not exists wirekite.wirekite_log (
        only_row         boolean primary key default true check (only_row),
        log_id           text not null,
        applied_segment  bigint not null default -1,
        applied_gsn      bigint not null default 0,
        applied_trx      bigint not null default 0,
        applied_position numeric(39) not null default 0,
        applied_commit   timestamp null
    )
    """,
    """
    create table if not exists wirekite.wirekite_table (
        source_schema varchar(63) not null,
        source_name   varchar(63) not null,
        target_schema varchar(63) not null,
        target_name   varchar(63) not null,
        merge_name    varchar(63) not null unique,
        made          boolean not null,
        columns       text null,
        primary key (source_schema, source_name)
    )
    """,
    """
    create table if not exists wirekite.wirekite_apart (
        source_schema    varchar(63) not null,
        source_name      varchar(63) not null,
        state            varchar(16) not null,
        copy_id          bigint not null,
        start_position   numeric(39) not null,
        applied_segment  bigint not null,
        applied_gsn      bigint not null,
        applied_trx      bigint not null,
        applied_position numeric(39) not null,
        since            timestamp not null,
        primary key (source_schema, source_name)
    )
    """,
    """
    insert into wirekite.wirekite_action
    select 'RUN' where not exists (select from wirekite.wirekite_action)
    """,
)


def ensure_tables(connection: psycopg.Connection) -> None:
    """Make the schema and its tables where missing. Raises ProgressUnwritable."""
    try:
        with connection.transaction():
            # Two processes may come at once; `if not exists` alone does not make that safe.
            connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
            found = connection.execute("select to_regnamespace('wirekite')").fetchone()
            if found is None or found[0] is None:
                connection.execute("create schema wirekite")
            present = connection.execute(
                "select count(*) from pg_tables where schemaname = 'wirekite' and tablename like"
                " 'wirekite\\_%'"
            ).fetchone()
            if present is None or present[0] < len(TABLES) - 1:
                for statement in TABLES:
                    connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        user, database = connection.info.user, connection.info.dbname
        raise ProgressUnwritable(
            f"schema wirekite cannot be made in database {database}: {error.diag.message_primary}",
            hint=f'As its owner, run: create schema wirekite authorization "{user}"; or: '
            f'grant create on database "{database}" to "{user}";',
        ) from error


def read_action(connection: psycopg.Connection) -> str:
    """Return the word in wirekite_action: RUN, PAUSE or STOP; RUN if no row or table exists."""
    try:
        row = connection.execute("select action from wirekite.wirekite_action limit 1").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return "RUN"
    word = "RUN" if row is None else str(row[0]).strip().upper()
    if word not in ACTIONS:
        raise ActionUnknown(
            f"wirekite.wirekite_action holds {word!r}, expected RUN, PAUSE or STOP",
            hint="Run: update wirekite.wirekite_action set action = 'RUN';",
        )
    return word


def set_action(connection: psycopg.Connection, action: str) -> None:
    """Write RUN, PAUSE or STOP. Raises ActionUnknown for another word."""
    if action not in ACTIONS:
        raise ActionUnknown(f"no such action: {action!r}", hint="Use RUN, PAUSE or STOP.")
    with connection.transaction():
        changed = connection.execute("update wirekite.wirekite_action set action = %s", (action,))
        if changed.rowcount == 0:
            connection.execute("insert into wirekite.wirekite_action values (%s)", (action,))


# --- the log this target follows, and shared ones -------------------------------------------------

# A row for each log that instances share. It is made when one of them first takes it over.
SHARED_TABLE = """
    create table if not exists wirekite.wirekite_staged (
        log_id           text primary key,
        applied_segment  bigint not null default -1,
        applied_gsn      bigint not null default 0,
        applied_trx      bigint not null default 0,
        applied_position numeric(39) not null default 0,
        applied_commit   timestamp null,
        holder           text not null default '',
        taken_over       timestamp null
    )
"""
TAKE_OVER = """
    insert into wirekite.wirekite_staged as s (log_id, holder, taken_over)
    values (%s, %s, clock_timestamp() at time zone 'utc')
        on conflict (log_id) do update
       set applied_segment = s.applied_segment + 1,
           holder = excluded.holder,
           taken_over = excluded.taken_over
"""


def _place_of(log_id: str) -> str:
    return f"wirekite.{'wirekite_staged' if is_shared(log_id) else 'wirekite_log'}"


def take_over(connection: psycopg.Connection, log_id: str, holder: str) -> Applied:
    """See `SharedProgress`."""
    _ensure_shared_table(connection)
    connection.execute(TAKE_OVER, (log_id, holder))
    return read_applied(connection, log_id)


def _ensure_shared_table(connection: psycopg.Connection) -> None:
    ensure_tables(connection)
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
        connection.execute(SHARED_TABLE)


def ensure_shared(connection: psycopg.Connection, log_id: str) -> None:
    """Insert the row of a shared log unless it is there."""
    if holder_of(connection, log_id) is None:
        _ensure_shared_table(connection)
        connection.execute(
            "insert into wirekite.wirekite_staged (log_id) values (%s) on conflict do nothing",
            (log_id,),
        )


def holder_of(connection: psycopg.Connection, log_id: str) -> str | None:
    """Return who has taken a shared log over last; None if it has no row."""
    try:
        row = connection.execute(
            "select holder from wirekite.wirekite_staged where log_id = %s", (log_id,)
        ).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return None if row is None else str(row[0])


def bind_log(connection: psycopg.Connection, log_id: str) -> Applied:
    """Bind the target to a change log, or check that it is bound to it; how far it is applied.

    Raises TargetFollowsAnotherLog, since GSNs of two logs cannot be compared.
    """
    if is_shared(log_id):
        return read_applied(connection, log_id)
    with connection.transaction():
        connection.execute(
            "insert into wirekite.wirekite_log (log_id) values (%s) on conflict do nothing",
            (log_id,),
        )
        row = connection.execute("select log_id from wirekite.wirekite_log for update").fetchone()
    if row is None or row[0] != log_id:
        raise TargetFollowsAnotherLog(
            f"the target follows change log {row[0] if row else 'unknown'}, this pipeline's is "
            f"{log_id}",
            hint="Use the directory of the pipeline that loaded this target, another target "
            "database, or give up its state: drop schema wirekite cascade; and load afresh.",
        )
    return read_applied(connection)


def forget_log(connection: psycopg.Connection) -> None:
    """Drop the binding and all progress rows and table shapes: before a load from scratch."""
    with connection.transaction():
        connection.execute("delete from wirekite.wirekite_log")
        connection.execute("delete from wirekite.wirekite_progress")
        connection.execute("delete from wirekite.wirekite_table")
        connection.execute("delete from wirekite.wirekite_apart")


def read_applied(
    connection: psycopg.Connection,
    log_id: str = "",
    *,
    for_update: bool = False,
    for_share: bool = False,
) -> Applied:
    """Read how far the log is applied; all zero if nothing is, or there is no table yet.

    log_id: of a shared log; empty for the one log that the target follows. for_update,
    for_share: lock the row until the transaction ends.
    """
    query = (
        "select applied_segment, applied_gsn, applied_trx, applied_position, applied_commit"
        f"  from {_place_of(log_id)}"
    )
    where, values = (" where log_id = %s", (log_id,)) if log_id else ("", ())
    where += " for update" if for_update else " for share" if for_share else ""
    try:
        row = connection.execute(query + where, values).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return Applied()
    if row is None:
        return Applied()
    return Applied(
        segment=row[0],
        gsn=row[1],
        trx=row[2],
        position=int(row[3]),
        commit_time_us=microseconds(row[4]),
    )


def advance(
    connection: psycopg.Connection, *, log_id: str, before: Applied, after: Applied
) -> None:
    """Move the applied position inside the batch's transaction.

    Raises AppliedByAnother when it is not where this loader left it: then the
    transaction must be rolled back.
    """
    changed = connection.execute(
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
    )
    if changed.rowcount != 1:
        raise AppliedByAnother(
            f"the target's applied position is no longer gsn {before.gsn}",
            hint="Let one loader work on a target: stop the other `penstock run` or "
            "`penstock load`.",
        )


# --- rows of wirekite_progress --------------------------------------------------------------------

BEGIN_ROW = """
    insert into wirekite.wirekite_progress as p
           (source, target, operation, transmission, mark, table_name, start_time)
    values (%s, %s, %s, 'F', %s, %s, clock_timestamp() at time zone 'utc')
        on conflict (source, target) do update
       set restarts = p.restarts + case when p.finish_time is null then 1 else 0 end
"""

END_ROW = """
    insert into wirekite.wirekite_progress as p
           (source, target, operation, transmission, mark, table_name, start_time, finish_time)
    values (%(source)s, %(target)s, %(operation)s, 'F', %(mark)s, %(table)s,
            clock_timestamp() at time zone 'utc',
            case when %(finished)s then clock_timestamp() at time zone 'utc' end)
        on conflict (source, target) do update
       set mark = excluded.mark,
           operation = excluded.operation,
           finish_time = excluded.finish_time
"""


def begin_files(connection: psycopg.Connection, files: Iterable[str]) -> None:
    """Insert the CL rows of a batch that begins; a row left open by a crash counts a restart."""
    rows = [(file, "CL", "CL", None, None) for file in files]
    with connection.cursor() as cursor:
        cursor.executemany(BEGIN_ROW, rows)


def end_files(connection: psycopg.Connection, files: Iterable[FileProgress]) -> None:
    """Write the CL rows of an applied batch; call inside its transaction."""
    rows = [
        _end_row(file.file, "CL", "CL", str(file.mark), None, finished=file.finished)
        for file in files
    ]
    with connection.cursor() as cursor:
        cursor.executemany(END_ROW, rows)


def begin_segment(connection: psycopg.Connection, *, slot: str, file: str, mark: str) -> None:
    """Insert the CE row of a segment that opens.

    mark: the position from which it can be rebuilt. A row left open by a crash counts a restart.
    """
    connection.execute(BEGIN_ROW, (slot, file, "CE", mark, None))


def end_segment(connection: psycopg.Connection, *, slot: str, file: str, mark: str) -> None:
    """Close the CE row of a segment. mark: the position behind its last COMMIT."""
    connection.execute(END_ROW, _end_row(slot, file, "CE", mark, None, finished=True))


def finished_segments(connection: psycopg.Connection, slot: str) -> set[str]:
    """Return the files whose CE row is closed, to repair what a crash left out."""
    rows = connection.execute(
        "select target from wirekite.wirekite_progress"
        " where operation = 'CE' and source = %s and finish_time is not null",
        (slot,),
    ).fetchall()
    return {row[0] for row in rows}


def begin_chunk(connection: psycopg.Connection, *, table: TableName, number: int) -> None:
    """Insert the DL row of a chunk of the bulk load: source is `schema.table.N`."""
    connection.execute(BEGIN_ROW, (f"{table}.{number}", "DL", "DL", None, str(table)))


def end_chunk(
    connection: psycopg.Connection, *, table: TableName, number: int, row_count: int
) -> None:
    """Close the DL row of a chunk, inside the transaction that wrote its rows."""
    row = _end_row(f"{table}.{number}", "DL", "DL", str(row_count), str(table), finished=True)
    connection.execute(END_ROW, row)


def finished_chunks(connection: psycopg.Connection, table: TableName) -> dict[int, int]:
    """Chunk number to rows committed, of the chunks of a table that are done."""
    rows = connection.execute(
        "select source, mark from wirekite.wirekite_progress"
        " where operation = 'DL' and table_name = %s and finish_time is not null",
        (str(table),),
    ).fetchall()
    return {int(source.rpartition(".")[2]): int(mark) for source, mark in rows}


def all_finished_chunks(connection: psycopg.Connection) -> dict[str, dict[int, int]]:
    """`finished_chunks` of all tables at once, by the table's name as text."""
    found: dict[str, dict[int, int]] = {}
    for table, source, mark in connection.execute(
        "select table_name, source, mark from wirekite.wirekite_progress"
        " where operation = 'DL' and finish_time is not null"
    ).fetchall():
        found.setdefault(table, {})[int(source.rpartition(".")[2])] = int(mark)
    return found


def forget_chunks(connection: psycopg.Connection, table: TableName) -> None:
    """Delete the DL rows of a table that is loaded afresh."""
    connection.execute(
        "delete from wirekite.wirekite_progress where operation = 'DL' and table_name = %s",
        (str(table),),
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


def read_tables(connection: psycopg.Connection) -> dict[TableName, TableRecord]:
    """Return all captured tables, by source name."""
    rows = connection.execute(
        "select source_schema, source_name, target_schema, target_name, merge_name, made, columns"
        "  from wirekite.wirekite_table"
    ).fetchall()
    records = {}
    for row in rows:
        records[TableName(row[0], row[1])] = TableRecord(
            source=TableName(row[0], row[1]),
            target=TableName(row[2], row[3]),
            merge_name=row[4],
            made=row[5],
            **shape_fields(row[6]),
        )
    return records


def write_tables(connection: psycopg.Connection, records: Sequence[TableRecord]) -> None:
    """Insert or replace records; `made` once true stays true."""
    with connection.cursor() as cursor:
        cursor.executemany(
            """
            insert into wirekite.wirekite_table as t
            values (%s, %s, %s, %s, %s, %s, %s)
                on conflict (source_schema, source_name) do update
               set target_schema = excluded.target_schema,
                   target_name = excluded.target_name,
                   merge_name = excluded.merge_name,
                   made = t.made or excluded.made,
                   columns = excluded.columns
            """,
            [_table_row(record) for record in records],
        )


def add_table(connection: psycopg.Connection, record: TableRecord) -> None:
    """Insert the record of a table unless it, or another with its merge name, is there already.

    Of two connections that come at once one waits for the other, and then finds its record.
    """
    with connection.transaction():
        connection.execute(
            """
            insert into wirekite.wirekite_table
            values (%s, %s, %s, %s, %s, %s, %s)
                on conflict do nothing
            """,
            _table_row(record),
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
    """Return the name of a table's merge table: `<table>_wkm` when it fits and is free.

    taken: merge names in use and the target tables they belong to. A name that is taken by the
    table of another schema, or longer than 63 bytes, is cut and gets eight hex digits of a hash
    of the whole name before the suffix, so that it is the same in every run.
    """
    wanted = f"{table.name}_wkm"
    if len(wanted.encode()) <= 60 and taken.get(wanted, table) == table:
        return wanted
    digest = hashlib.sha256("\0".join(table).encode()).hexdigest()[:8]
    stem = table.name.encode()[: 60 - len(digest) - 5].decode(errors="ignore")
    return f"{stem}_{digest}_wkm"


def utc(microseconds_: int) -> datetime | None:
    """Microseconds since 1970 as the naive UTC time that the progress tables hold; 0 is None."""
    return _EPOCH + timedelta(microseconds=microseconds_) if microseconds_ else None


def microseconds(moment: datetime | None) -> int:
    """Return the inverse of `utc`; aware times are converted."""
    if moment is None:
        return 0
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Records:
    """Contents of `wirekite.wirekite_table`, as one connection has read them."""

    def __init__(self, connection: psycopg.Connection) -> None:
        """connection: autocommit, or in the transaction that the records belong to."""
        self._connection = connection
        self._known: dict[TableName, TableRecord] = {}

    def get(self, source: TableName, target: TableName) -> TableRecord:
        """Return the record of a captured table, made when it is the first time."""
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
