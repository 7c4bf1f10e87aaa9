"""The capture job: reads PostgreSQL's log and writes change tables, some time after the commits."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import psycopg

from sim_sqlserver.change_rows import CapturedRow, Instance, lsn_bytes, rows_of
from sim_sqlserver.names import literal, quote_name
from sim_sqlserver.pgoutput import Note, Parser, Transaction
from sim_sqlserver.sqltypes import parse_type

POLL_S = 0.05
EMPTY_SCAN_S = 0.25
SESSIONS_KEPT = 200
SCAN_LOCK = 743_202
_EPOCH = datetime.datetime.fromisoformat("2000-01-01")  # naive, in UTC


def slot_name(database: int) -> str:
    """Return the name of a database's slot, by PostgreSQL's number of the database."""
    return f"sim_cdc_{database}"


def make_slot(dsn: str, name: str) -> None:
    """Create a database's slot if it is not there."""
    with psycopg.connect(dsn, dbname=name, autocommit=True) as connection:
        slot = _slot(connection)
        found = connection.execute(
            "select 1 from pg_replication_slots where slot_name = %s", (slot,)
        ).fetchone()
        if found is None:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))


def drop_slot(dsn: str, name: str) -> None:
    """Drop a database's slot if it is there."""
    with psycopg.connect(dsn, dbname=name, autocommit=True) as connection:
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            "where slot_name = %s",
            (_slot(connection),),
        )


def _slot(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute(
        "select oid::int8 from pg_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return slot_name(row[0])


class Capture:
    """Capture job of a database: a thread that scans until it is stopped.

    Attributes:
        lock: Held while a scan runs.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn, self._name = dsn, name
        self.lock = threading.RLock()
        self._stopped = threading.Event()
        self._samples: deque[tuple[float, int]] = deque()
        self._seen = 0
        self._mapped_at = self._scanned_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None
        self._poll_s = POLL_S
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(30)
        with self.lock:
            if self._connection is not None:
                self._connection.close()

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_s):
            try:
                with self.lock:
                    if self._stopped.is_set():
                        return
                    self._poll_s = float(self._setting("poll_s", str(POLL_S)))
                    if self._setting("agent", "1") == "1" and self._setting("capture", "1") == "1":
                        self.scan()
            except psycopg.Error as error:
                if self._connection is None or self._connection.closed:
                    return  # the database is gone, or its server
                self._note_failure(error)

    def _note_failure(self, error: psycopg.Error) -> None:
        """Note an error that stops the scan at one place; the next scan tries again."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            self._note_error(error)

    def _note_error(self, error: psycopg.Error) -> None:
        with psycopg.connect(self._dsn, dbname=self._name, autocommit=True) as connection:
            connection.execute(
                "insert into sim.cdc_errors values (1, 4, clock_timestamp() at time zone 'utc', "
                "22859, 16, 1, %s, null, null, null)",
                (f"Log Scan process failed: {error}",),
            )

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn, dbname=self._name, autocommit=True)
            self._connection.execute(
                "set timezone = 'UTC'; set extra_float_digits = 3; set synchronous_commit = on"
            )
        return self._connection

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._open().execute(statement.encode(), prepare=False)
        return cursor.fetchall() if cursor.description else []

    def _setting(self, name: str, left_out: str) -> str:
        found = self._rows(f"select sim.setting({literal(name)}, {literal(left_out)})")
        return str(found[0][0])

    # --- scans ------------------------------------------------------------------------------------

    def scan(self, *, is_forced: bool = False) -> int:
        """Capture what was committed longer ago than the lag; return the number of transactions.

        Another simulator over the same server waits, and then finds nothing left to do.
        """
        self._rows(f"select pg_advisory_lock({SCAN_LOCK})")
        try:
            return self._scan(is_forced=is_forced)
        finally:
            self._rows(f"select pg_advisory_unlock({SCAN_LOCK})")

    def _scan(self, *, is_forced: bool) -> int:
        if not self._rows("select to_regclass('cdc.change_tables')")[0][0]:
            return 0
        if is_forced:  # what is committed may not be flushed yet, and only flushed WAL is decoded
            self._rows("select pg_logical_emit_message(true, 'sim_flush', '')")
        now = int(self._rows("select (pg_current_wal_flush_lsn() - '0/0')::int8")[0][0])
        limit = self._limit(now, is_forced=is_forced)
        if limit <= self._seen:
            self._empty_scan()
            return 0
        start = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        transactions = list(self._read(limit))
        maxtrans = int(self._setting("maxtrans", "500"))
        for first in range(0, len(transactions), maxtrans):
            self._capture(transactions[first : first + maxtrans], start)
        self._finish(limit, bool(transactions))
        self._seen = limit
        return len(transactions)

    def _limit(self, now: int, *, is_forced: bool) -> int:
        """Return the place in the log up to which commits are older than the lag."""
        lag_s = 0.0 if is_forced else float(self._setting("lag_s", "0"))
        clock = time.monotonic()
        self._samples.append((clock, now))
        limit = 0
        while self._samples and self._samples[0][0] <= clock - lag_s:
            limit = self._samples.popleft()[1]
        if lag_s == 0:
            self._samples.clear()
            limit = now
        return limit

    def _read(self, limit: int) -> Iterable[Transaction]:
        """Yield the transactions up to a place that are not captured yet."""
        slot = _slot(self._open())
        place = f"{limit >> 32:X}/{limit & 0xFFFFFFFF:X}"
        done = int(self._rows("select (place - '0/0')::int8 from sim.capture_state")[0][0])
        found = self._rows(
            f"select (lsn - '0/0')::int8, data from pg_logical_slot_peek_binary_changes("
            f"{literal(slot)}, {literal(place)}, null, 'proto_version', '1', "
            "'publication_names', 'sim_cdc', 'messages', 'true')"
        )
        parser = Parser()
        for at, data in found:
            transaction = parser.read(at, bytes(data))
            if transaction is not None and transaction.place >= done:
                yield transaction

    def _finish(self, limit: int, has_work: bool) -> None:
        """Move the slot, and the clock of an idle database."""
        idle_s = float(self._setting("idle_s", "1"))
        if not has_work:
            self._empty_scan()
            if time.monotonic() - self._mapped_at > idle_s:
                self._map_idle(limit - 1)
        place = f"{limit >> 32:X}/{limit & 0xFFFFFFFF:X}"
        self._rows(
            f"update sim.capture_state set place = greatest(place, {literal(place)}::pg_lsn)"
        )
        slot = _slot(self._open())
        self._rows(f"select pg_replication_slot_advance({literal(slot)}, {literal(place)})")

    def _map_idle(self, place: int) -> None:
        self._mapped_at = time.monotonic()
        lsn = lsn_bytes(place).hex()
        self._rows(
            f"insert into cdc.lsn_time_mapping select '\\x{lsn}', t, t, '\\x00', '\\x{'00' * 10}' "
            "from (select sim.store_datetime(clock_timestamp() at time zone 'utc')) as x(t) "
            "on conflict do nothing"
        )

    def _empty_scan(self) -> None:
        if time.monotonic() - self._scanned_at < EMPTY_SCAN_S:
            return
        self._scanned_at = time.monotonic()
        now = "clock_timestamp() at time zone 'utc'"
        changed = self._rows(
            f"update sim.scan_sessions set end_time = {now}, "
            "empty_scan_count = empty_scan_count + 1 "
            "where session_id = (select max(session_id) from sim.scan_sessions) and tran_count = 0 "
            "returning 1"
        )
        if not changed:
            self._rows(
                f"insert into sim.scan_sessions (start_time, end_time, duration, scan_phase, "
                f"empty_scan_count) values ({now}, {now}, 0, 'Done', 1)"
            )

    # --- writing ----------------------------------------------------------------------------------

    def _capture(self, transactions: list[Transaction], start: datetime.datetime) -> None:
        connection = self._open()
        with connection.transaction():
            commands = 0
            last: Transaction | None = None
            for transaction in transactions:
                written = self._write(transaction)
                if written:
                    commands += written
                    last = transaction
            if last is not None:
                self._session(len(transactions), commands, last, start)
            place = transactions[-1].place + 1
            self._rows(
                f"update sim.capture_state set place = '{place >> 32:X}/{place & 0xFFFFFFFF:X}'"
            )

    def _session(
        self, count: int, commands: int, last: Transaction, start: datetime.datetime
    ) -> None:
        commit = _EPOCH + datetime.timedelta(microseconds=last.time_us)
        lsn = _text(lsn_bytes(last.place))
        latency = max(int((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - commit)
                          .total_seconds()), 0)  # fmt: skip
        self._rows(
            "insert into sim.scan_sessions (start_time, end_time, duration, scan_phase, "
            "tran_count, command_count, latency, last_commit_lsn, last_commit_time, "
            "last_commit_cdc_lsn, "
            f"last_commit_cdc_time) values ({literal(start.isoformat())}, clock_timestamp() at "
            f"time zone 'utc', 0, 'Done', {count}, {commands}, {latency}, {literal(lsn)}, "
            f"{literal(commit.isoformat())}, {literal(lsn)}, {literal(commit.isoformat())})"
        )
        self._rows(
            "delete from sim.scan_sessions where session_id < "
            f"(select max(session_id) from sim.scan_sessions) - {SESSIONS_KEPT}"
        )

    def _write(self, transaction: Transaction) -> int:
        """Write the rows of a transaction; return how many there were."""
        lsn = lsn_bytes(transaction.place)
        instances = self._instances(lsn)
        for part in transaction.parts:
            if isinstance(part, Note) and part.prefix == "sim_ddl":
                self._ddl(part, instances)
        rows: dict[int, list[CapturedRow]] = defaultdict(list)
        by_number = {}
        for instance, row in rows_of(transaction, instances, self._keys()):
            rows[instance.number].append(row)
            by_number[instance.number] = instance
        for number, found in rows.items():
            self._copy(by_number[number], lsn, found)
        if rows:
            self._map(transaction, lsn)
        return sum(map(len, rows.values()))

    def _instances(self, lsn: bytes) -> dict[int, list[Instance]]:
        """Return the instances that capture a commit, by table."""
        found = self._rows(
            "select t.object_id, t.source_object_id, t.capture_instance::text, t.start_lsn, "
            "array_agg(c.column_name::text order by c.column_ordinal), "
            "array_agg(ty.typname::text order by c.column_ordinal), "
            "array_agg(d.column_ordinal is not null order by c.column_ordinal) "
            "from cdc.change_tables t join cdc.captured_columns c on c.object_id = t.object_id "
            "join pg_attribute a on a.attrelid = t.object_id::oid "
            'and a.attname = c.column_name::text collate "C" '
            "join pg_type ty on ty.oid = a.atttypid "
            "left join sim.cdc_dropped d on d.object_id = c.object_id "
            "and d.column_ordinal = c.column_ordinal "
            "group by t.object_id"
        )
        instances: dict[int, list[Instance]] = defaultdict(list)
        for number, table, name, start, columns, types, dropped in found:
            if bytes(start) > lsn:
                continue
            kinds = [_kind(text) for text in types]
            instances[table].append(
                Instance(
                    number=number,
                    table=table,
                    name=name,
                    start=bytes(start),
                    columns=columns,
                    large=frozenset(p for p, kind in enumerate(kinds) if kind),
                    texts=frozenset(p for p, kind in enumerate(kinds) if kind == "text"),
                    dropped={place for place, is_gone in enumerate(dropped) if is_gone},
                )
            )
        return instances

    def _keys(self) -> dict[int, list[str]]:
        found = self._rows(
            "select i.indrelid::int, array_agg(a.attname::text) from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any (i.indkey) "
            "where i.indisprimary and i.indrelid::int in "
            "(select source_object_id from cdc.change_tables) group by 1"
        )
        return dict(found)

    def _copy(self, instance: Instance, lsn: bytes, rows: list[CapturedRow]) -> None:
        table = f"cdc.{quote_name(instance.name + '_CT')}"
        has_command = bool(
            self._rows(
                f"select 1 from pg_attribute where attrelid = {instance.number}::oid "
                "and attname = '__$command_id' and not attisdropped"
            )
        )
        names = ["__$start_lsn", "__$seqval", "__$operation", "__$update_mask", *instance.columns]
        listed = ", ".join(quote_name(name) for name in names)
        listed += ', "__$command_id"' if has_command else ""
        lines = []
        start = b"\\\\x" + lsn.hex().encode()
        for row in rows:
            fields = [
                start,
                b"\\\\x" + row.seqval.hex().encode(),
                str(row.operation).encode(),
                b"\\\\x" + row.mask.hex().encode(),
            ]
            fields += [b"\\N" if v is None else _escape(v) for v in row.values]
            if has_command:
                fields.append(str(row.command).encode())
            lines.append(b"\t".join(fields))
        statement = f"copy {table} ({listed}) from stdin".encode()
        with self._open().cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"\n".join(lines) + b"\n")

    def _map(self, transaction: Transaction, lsn: bytes) -> None:
        end = _EPOCH + datetime.timedelta(microseconds=transaction.time_us)
        begun = next(
            (p.content for p in transaction.parts if isinstance(p, Note) and p.prefix == "sim"),
            end.isoformat(sep=" "),
        )
        first = lsn_bytes(transaction.parts[0].place).hex()
        self._mapped_at = time.monotonic()
        self._rows(
            f"insert into cdc.lsn_time_mapping values ('\\x{lsn.hex()}', "
            f"sim.store_datetime({literal(begun)}), "
            f"sim.store_datetime({literal(end.isoformat())}), "
            f"'\\x{transaction.xid.to_bytes(6, 'big').hex()}', '\\x{first}') on conflict do nothing"
        )

    def _ddl(self, note: Note, instances: dict[int, list[Instance]]) -> None:
        """Write ddl_history; follow changed types, and note columns that are gone."""
        told = json.loads(note.content)
        live = {int(number): shown for number, shown in told["columns"].items()}
        for instance in instances.get(told["table"], ()):
            captured = self._rows(
                "select column_ordinal, column_id, column_name::text from cdc.captured_columns "
                f"where object_id = {instance.number}"
            )
            is_update = False
            for ordinal, number, name in captured:
                if number not in live:
                    instance.dropped.add(ordinal - 1)
                    self._rows(
                        f"insert into sim.cdc_dropped values ({instance.number}, {ordinal}) "
                        "on conflict do nothing"
                    )
                else:
                    is_update |= self._follow_type(instance, name, live[number][1])
            self._rows(
                f"insert into cdc.ddl_history values ({told['table']}, {instance.number}, "
                f"{int(is_update)}, {literal(told['command'])}, "
                f"'\\x{lsn_bytes(note.place).hex()}', "
                f"sim.store_datetime({literal(told['time'])}))"
            )

    def _follow_type(self, instance: Instance, name: str, wanted: str) -> bool:
        table = f"cdc.{quote_name(instance.name + '_CT')}"
        now = self._rows(
            f"select sim.type_spelling(atttypid, atttypmod) from pg_attribute "
            f"where attrelid = {instance.number}::oid and attname = {literal(name)}"
        )
        if not now or now[0][0] == wanted:
            return False
        column = quote_name(name)
        self._rows(
            f"alter table {table} alter {column} type {wanted} using {column}::text::{wanted}"
        )
        return True


def _kind(type_name: str) -> str:
    """Return text for text, ntext and image; max for other large types; empty for the rest."""
    try:
        parsed = parse_type(type_name)
    except ValueError:
        return ""
    if parsed.name in ("text", "ntext", "image"):
        return "text"
    return "max" if parsed.is_max else ""


def _text(lsn: bytes) -> str:
    shown = lsn.hex()
    return f"{shown[:8]}:{shown[8:16]}:{shown[16:]}"


def _escape(value: bytes) -> bytes:
    if b"\\" in value or b"\n" in value or b"\t" in value or b"\r" in value:
        value = value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        value = value.replace(b"\t", b"\\t").replace(b"\r", b"\\r")
    return value
