"""The simulated database: tables, transactions, redo, and the truth about what was committed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sim_oracle import redo
from sim_oracle.columns import Column, Row, fit_value, parse_column
from sim_oracle.errors import ModelMisuse, OraError
from sim_oracle.logs import Logs
from sim_oracle.redo import Address, Record, RedoThread, Xid
from sim_oracle.tables import Segment, Table, make_version
from sim_oracle.transactions import Change, Transaction

START_TIME = datetime(2026, 3, 4, 5, 6, 0)  # noqa: DTZ001 - DATE has no zone
SCNS_OF_A_SECOND = 3
FIRST_OBJECT = 90_000
USER_DDL = "USER DDL (PlSql=0 RecDep=0)"
INTERNAL_DDL = "INTERNAL DDL (PlSql=0 RecDep=1)"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction, as a reader of the log must emit it.

    Attributes:
        xid: Its id.
        scn: Commit SCN.
        thread: Redo thread of its COMMIT row.
        address: Address of its COMMIT row.
        changes: Surviving changes, in order.
        ddl: Text of the statement, of a DDL transaction.
        is_logged: Whether redo has it; a NOLOGGING load is not in the log.
        start_scn: SCN of its start.
    """

    xid: Xid
    scn: int
    thread: int
    address: Address | None
    changes: tuple[Change, ...]
    ddl: str | None = None
    is_logged: bool = True
    start_scn: int = 0


@dataclass(slots=True)
class Settings:
    """Properties that views show and behaviour that differs between releases.

    Attributes:
        version: Release of the instance.
        log_mode: ARCHIVELOG or NOARCHIVELOG.
        minimal_logging: SUPPLEMENTAL_LOG_DATA_MIN.
        all_logging: SUPPLEMENTAL_LOG_DATA_ALL.
        force_logging: FORCE_LOGGING of the database.
        role: DATABASE_ROLE.
        open_mode: OPEN_MODE.
        is_cdb: Whether it is a container database.
        has_partial_ids: Whether undo rows of transactions that began before a window have an
            incomplete XID.
        has_exclusive_start: Whether a window leaves out rows with its first SCN.
        children_commit: Whether children of parallel DML have COMMIT rows.
        mismatch_form: `columns` or `message`, for rows of an older table version.
        doubles_quotes: Whether a quote in a literal of SQL_REDO is doubled; servers with a defect
            leave it as it is.
        undo_scn: Lowest SCN that AS OF can read.
        grants: Privileges of the user; None is all.
        beat_s: Seconds after which open threads write their SCN when V$THREAD is read, as idle
            instances do; None only when the test says so.
        parameters: V$PARAMETER.
    """

    version: str = "19.0.0.0.0"
    log_mode: str = "ARCHIVELOG"
    minimal_logging: str = "YES"
    all_logging: str = "NO"
    force_logging: str = "NO"
    role: str = "PRIMARY"
    open_mode: str = "READ WRITE"
    is_cdb: bool = True
    has_partial_ids: bool = True
    has_exclusive_start: bool = False
    children_commit: bool = True
    mismatch_form: str = "columns"
    doubles_quotes: bool = True
    undo_scn: int = 0
    character_set: str = "AL32UTF8"
    grants: frozenset[str] | None = None
    beat_s: float | None = None
    parameters: dict[str, str] = field(
        default_factory=lambda: {
            "archive_lag_target": "0",
            "undo_retention": "900",
            "max_string_size": "STANDARD",
            "enable_goldengate_replication": "FALSE",
            "db_block_size": "8192",
        }
    )


class Database:
    """A database with its redo.

    Attributes:
        name: Name of the database.
        pdbs: Names of its pluggable databases.
        scn: Next SCN that a change gets.
        tables: Tables by (container, owner, name).
        open: Open transactions by id.
        logs: Its redo.
        settings: Properties and behaviour.
        unrecoverable_scn: SCN of the last NOLOGGING load; 0 if there was none.
        dbid: DBID.
        users: Names of the users, which are the schemas.
    """

    def __init__(
        self, name: str = "ORCL", pdbs: Iterable[str] = ("SHOPPDB",), *, scn: int = 8_800_000
    ) -> None:
        self.name = name
        self.pdbs = list(pdbs)
        self.dbid = 1_600_000_000
        self.first_scn = self.scn = scn
        self.settings = Settings()
        self.tables: dict[tuple[str, str, str], Table] = {}
        self.dropped: list[Table] = []
        self.open: dict[Xid, Transaction] = {}
        self.committed: list[Committed] = []
        self.logs = Logs(name, scn, START_TIME)
        self.logs.before_switch = self._flush_strands
        self.add_thread(1)
        self.unrecoverable_scn = 0
        self.users = {"SYS", "SYSTEM", "SHOP"}
        self._objects = itertools.count(FIRST_OBJECT + 1)
        self._transactions = itertools.count(1)
        self._last_thread = 1
        self._beaten_at = 0.0

    # ------------------------------------------------------------------ time

    @property
    def now(self) -> datetime:
        """Return the time of the current SCN."""
        return self.time_of(self.scn)

    def time_of(self, scn: int) -> datetime:
        """Return the time of an SCN."""
        return START_TIME + timedelta(seconds=(scn - self.first_scn) // SCNS_OF_A_SECOND)

    def tick(self, count: int = 1) -> int:
        """Move the SCN on and return it."""
        self.scn += count
        return self.scn

    def read_scn(self) -> int:
        """Return CURRENT_SCN; later commits have a higher one."""
        scn = self.scn
        self.scn += 1
        return scn

    # ------------------------------------------------------------------ threads and logs

    def add_thread(self, number: int, sequence: int = 420) -> RedoThread:
        """Enable another redo thread, as a new instance of a RAC does."""
        return self.logs.add_thread(number, self.tick(), self.now, sequence)

    def switch(self, thread: int = 1) -> None:
        """Switch the log of a thread."""
        self.logs.switch(self.logs.threads[thread], self.tick(), self.now)
        self.tick()

    def archive_current(self) -> None:
        """Switch all open threads and wait for the archives: ALTER SYSTEM ARCHIVE LOG CURRENT."""
        for thread in self.logs.threads.values():
            if thread.status == "OPEN":
                self.switch(thread.number)
        self.logs.run_archiver(self.now, everything=True)

    def beat(self) -> None:
        """Let every open thread write its SCN, as idle instances do every few seconds."""
        for thread in self.logs.threads.values():
            if thread.status == "OPEN":
                thread.last_scn = self.scn
        self.tick()

    def close_thread(self, number: int) -> None:
        """Stop an instance; its open transactions are rolled back."""
        for transaction in [one for one in self.open.values() if one.thread == number]:
            transaction.rollback()
        self.logs.close_thread(self.logs.threads[number], self.tick(), self.now)
        self.tick()

    def open_thread(self, number: int) -> None:
        """Start a stopped instance again."""
        thread = self.logs.threads[number]
        self.logs.open_thread(thread, self.tick(), self.now)
        thread.last_scn = self.scn
        self.tick()

    def beat_if_due(self) -> None:
        """Beat if `settings.beat_s` says so and that many seconds have passed."""
        if self.settings.beat_s is None:
            return
        now = time.monotonic()
        if now - self._beaten_at >= self.settings.beat_s:
            self._beaten_at = now
            self.beat()

    def flush(self, thread: int | None = None) -> None:
        """Write all private strands, of one thread or of all."""
        for number, one in self.logs.threads.items():
            if thread in (None, number):
                self._flush_strands(one)

    def _flush_strands(self, thread: RedoThread) -> None:
        for transaction in self.open.values():
            if transaction.thread == thread.number:
                transaction.flush()

    def mark_gap(self, thread: int = 1) -> None:
        """Write a MISSING_SCN record, as LogMiner shows for a hole in a log."""
        record = self.make_record(thread, Xid(0, 0, 0), redo.MISSING_SCN, self.scn)
        record.info = "MISSING_SCN"
        self.logs.write(record)

    def build_dictionary(self) -> None:
        """Store the dictionary in the redo: DBMS_LOGMNR_D.BUILD(.. STORE_IN_REDO_LOGS)."""
        self.logs.threads[1].log.has_dictionary = True
        self.switch(1)

    def make_record(
        self, thread: int, xid: Xid, code: int, start_scn: int, user: str = "SHOP_APP"
    ) -> Record:
        """Return a record of the current SCN."""
        container = self.pdbs[0] if self.pdbs and self.settings.is_cdb else "CDB$ROOT"
        return Record(self.scn, thread, xid, code, start_scn, self.now, user, container)

    # ------------------------------------------------------------------ transactions

    def begin(
        self,
        thread: int = 1,
        *,
        late: str = "no",
        xid: Xid | None = None,
        user: str = "SHOP_APP",
        container: str | None = None,
        parent: Transaction | None = None,
    ) -> Transaction:
        """Begin a transaction.

        Args:
            thread: Redo thread of its instance.
            late: When its records are written: `no` at once, `rows` at the commit except for its
                start, `whole` all at the commit.
            xid: Its id; slots and undo segments are used again by default.
            user: Name that the log shows.
            container: PDB of its tables.
            parent: Coordinator of parallel DML.
        """
        if self.logs.threads[thread].status != "OPEN":
            raise ModelMisuse(f"thread {thread} is closed")
        self._join_thread(thread)
        number = next(self._transactions)
        if xid is None:
            usn = (1 + number % 9) + 10 * (thread - 1)
            xid = Xid(usn, number % 24, 500 + number)
            while any(one[:2] == xid[:2] for one in self.open):  # a slot has one transaction
                xid = Xid(xid.usn, (xid.slot + 1) % 64, xid.sequence)
        if xid in self.open:
            raise ModelMisuse(f"{xid} is open")
        chosen = container or (self.pdbs[0] if self.pdbs else "CDB$ROOT")
        transaction = Transaction(self, thread, xid, late, user, chosen, parent)
        self.open[xid] = transaction
        return transaction

    def _join_thread(self, thread: int) -> None:
        # An SCN that one instance used is not used by another one after it.
        if thread != self._last_thread:
            self.tick()
            self._last_thread = thread

    def join_thread(self, thread: int) -> None:
        """Move the SCN on if another instance made the last change."""
        self._join_thread(thread)

    def commit_empty(self, thread: int = 1) -> None:
        """Write a transaction without rows, whose COMMIT row shows THREAD# 0."""
        self._join_thread(thread)
        self.tick()
        xid = Xid(1 + next(self._transactions) % 9, 63, 400_000 + next(self._transactions))
        for code in (redo.START, redo.COMMIT):
            record = self.make_record(thread, xid, code, self.scn)
            record.hides_thread = True
            self.logs.write(record)

    def record_commit(self, committed: Committed) -> None:
        """Add a transaction to the truth."""
        self.committed.append(committed)

    def truth(self, after_scn: int = 0, *, is_logged: bool = True) -> list[Committed]:
        """Return the transactions with changes or DDL, in the order in which readers emit them."""
        chosen = [
            one
            for one in self.committed
            if one.scn > after_scn and (one.is_logged or not is_logged)
            if one.changes or one.ddl
        ]
        return sorted(chosen, key=lambda one: (one.scn, one.thread, one.address or ()))

    # ------------------------------------------------------------------ tables

    def table(self, owner: str, name: str, container: str | None = None) -> Table:
        """Return a table; raises OraError 942."""
        chosen = container or (self.pdbs[0] if self.pdbs else "CDB$ROOT")
        try:
            return self.tables[(chosen, owner, name)]
        except KeyError:
            raise OraError(942) from None

    def find_table(self, object_id: int) -> Table | None:
        """Return the table that has a DATA_OBJ# now."""
        for table in self.tables.values():
            if any(one.object_id == object_id for one in table.segments.values()):
                return table
        return None

    def add_table(
        self,
        owner: str,
        name: str,
        columns: dict[str, str],
        *,
        key: Iterable[str] = (),
        supplemental: str = "ALL",
        container: str | None = None,
        partitions: Iterable[str] = (),
        object_id: int | None = None,
        **flags: Any,
    ) -> Table:
        """Add a table without writing redo."""
        chosen = container or (self.pdbs[0] if self.pdbs else "CDB$ROOT")
        number = object_id or self._find_free_number()
        version = make_version(
            owner, name, columns, key=key, supplemental=supplemental, object_id=number
        )
        named = {partition: next(self._objects) for partition in partitions}
        table = Table(chosen, version, partitions=named, first_scn=self.scn, **flags)
        self.tables[(chosen, owner, name)] = table
        self.users.add(owner)
        return table

    def _find_free_number(self) -> int:
        return next(one for one in self._objects if self.find_table(one) is None)

    def define_table(
        self, owner: str, name: str, columns: tuple[Column, ...], text: str, **flags: Any
    ) -> Table:
        """Create a table of columns with a DDL row; its keys are added later."""
        table = self.add_table(owner, name, {}, **flags)
        table.version = replace(table.version, columns=columns)
        self.ddl(text, None, named=(owner, name), container=table.container)
        table.first_scn = self.scn
        self.tick()
        return table

    def forget_table(self, table: Table) -> None:
        """Remove a table whose creation failed."""
        del self.tables[(table.container, table.version.owner, table.name)]
        table.is_dropped = True

    def new_object_number(self) -> int:
        """Return a number for a new object."""
        return next(self._objects)

    def rows_at(self, table: Table, scn: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows that AS OF SCN reads, with their row ids.

        Raises:
            OraError: 8181 of an SCN that was not yet or belongs to an earlier incarnation, 1555 if
                undo is gone, 1466 if the definition has changed since.
        """
        if scn > self.scn or scn < self.first_scn:
            raise OraError(8181)
        if scn < self.settings.undo_scn:
            raise OraError(1555, 9)
        if scn < table.first_scn:
            raise OraError(1466)
        return table.at(scn)

    # ------------------------------------------------------------------ DDL

    def ddl(
        self,
        text: str,
        table: Table | None,
        *,
        thread: int = 1,
        info: str = USER_DDL,
        named: tuple[str, str] = ("SHOP", "X"),
        container: str | None = None,
    ) -> None:
        """Write a DDL statement as its own transaction."""
        self._join_thread(thread)
        if container is None and table is not None:
            container = table.container
        transaction = self.begin(thread, container=container)
        transaction.start()
        self.tick()
        record = self.make_record(thread, transaction.xid, redo.DDL, transaction.start_scn)
        record.text, record.info = text, info
        record.container = transaction.container
        if table is None:
            record.named = named
        else:
            record.version = table.version
            record.segment = next(iter(table.segments.values()))
            record.physical_id = record.segment.data_object_id
            record.container = table.container
        transaction.write(record)
        changes: tuple[Change, ...] = ()
        if text.lower().startswith("truncate") and table is not None:
            changes = (Change("t", table.version.owner, table.name, None, None, None),)
        transaction.commit(ddl=text if info == USER_DDL else None, changes=changes)

    def _alter(self, table: Table, columns: tuple[Column, ...], text: str | None) -> None:
        """Give a table other columns. text: None if the statement has its row already."""
        if table.locks or table.table_locks:
            raise OraError(54)
        version = table.version
        table.version = replace(version, number=version.number + 1, columns=columns)
        if text is not None:
            self.ddl(text, table)
        table.first_scn = self.scn
        self.tick()

    def add_column(self, table: Table, name: str, declaration: str, text: str = "") -> None:
        """Add a column, which is NULL in existing rows."""
        version = table.version
        if not text:
            text = f'alter table {version.owner}.{version.name} add ("{name}" {declaration})'
        self._alter(table, (*version.columns, parse_column(name, declaration)), text)
        self._rewrite_rows(table, lambda row: {**row, name: None})

    def append_column(self, table: Table, column: Column, text: str | None, value: Any) -> None:
        """Add a column whose value existing rows have by its default, without redo of rows."""
        self._alter(table, (*table.version.columns, column), text)
        if not column.is_virtual:
            self._rewrite_rows(table, lambda row: {**row, column.name: fit_value(column, value)})

    def replace_columns(self, table: Table, columns: tuple[Column, ...], text: str | None) -> None:
        """Change declarations of columns whose names stay."""
        self._alter(table, columns, text)

    def rename_table(self, table: Table, name: str, text: str) -> None:
        """Rename a table; the dictionary has its rows under the new name."""
        version = table.version
        self.ddl(text, table)
        del self.tables[(table.container, version.owner, version.name)]
        table.version = replace(version, name=name)
        self.tables[(table.container, version.owner, name)] = table
        table.first_scn = self.scn
        self.tick()

    def move(self, table: Table, text: str) -> None:
        """Move the rows to new segments: all row ids change."""
        if table.locks or table.table_locks:
            raise OraError(54)
        self.ddl(text, table)
        rows = list(table.rows.values())
        table.rows.clear()
        table.history.clear()
        for segment in table.segments.values():
            segment.data_object_id = next(self._objects)
            segment.next_row, segment.free = 0, []
        for row in rows:
            row_id = table.segment_of(row).new_row_id(reuse=False)
            table.rows[row_id] = row
            table.record_version(row_id, self.scn, row)
        table.index_rows()
        table.first_scn = self.scn
        self.tick()

    def drop_column(self, table: Table, name: str, text: str | None = "") -> None:
        """Drop a column."""
        version = table.version
        kept = tuple(column for column in version.columns if column.name != name)
        if text == "":
            text = f'alter table "{version.owner}"."{version.name}" drop column "{name}"'
        self._alter(table, kept, text)
        self._rewrite_rows(table, lambda row: {k: v for k, v in row.items() if k != name})

    def rename_column(self, table: Table, old: str, new: str, text: str = "") -> None:
        """Rename a column."""
        version = table.version
        if not text:
            text = (
                f'ALTER TABLE "{version.owner}"."{version.name}" RENAME COLUMN "{old}" TO "{new}";'
            )
        columns = tuple(
            replace(column, name=new if column.name == old else column.name)
            for column in version.columns
        )
        key = tuple(new if name == old else name for name in version.key)
        table.version = replace(version, key=key)
        self._alter(table, columns, text)
        self._rewrite_rows(table, lambda row: {(new if k == old else k): v for k, v in row.items()})

    def _rewrite_rows(self, table: Table, change: Any) -> None:
        for row_id, row in list(table.rows.items()):
            table.rows[row_id] = change(row)
        table.index_rows()
        for versions in table.history.values():
            # Only SCNs after the DDL can be read, so the newest version is enough.
            scn, newest = versions[-1]
            versions[:] = [(scn, None if newest is None else change(newest))]

    def truncate(self, table: Table, text: str = "") -> None:
        """Truncate a table: a DDL row, and a new physical id."""
        if table.locks or table.table_locks:
            raise OraError(54)
        version = table.version
        self.ddl(text or f"truncate table {version.owner}.{version.name}", table)
        for segment in table.segments.values():
            segment.data_object_id = next(self._objects)
            segment.next_row, segment.free = 0, []
        table.rows.clear()
        table.index_rows()
        table.history.clear()
        table.first_scn = self.scn
        self.tick()

    def drop_table(self, table: Table, text: str = "") -> None:
        """Drop a table, to the recycle bin."""
        if table.locks or table.table_locks:
            raise OraError(54)
        version = table.version
        bin_name = f'"BIN$Tq1xIvZ0KpngU8gBqMCb+{version.object_id}==$0"'
        self.ddl(text or f"drop table {version.owner}.{version.name} AS {bin_name} ", table)
        del self.tables[(table.container, version.owner, version.name)]
        table.is_dropped = True
        self.dropped.append(table)

    def create_table(self, owner: str, name: str, columns: dict[str, str], **flags: Any) -> Table:
        """Create a table with a DDL row."""
        table = self.add_table(owner, name, columns, **flags)
        listed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        self.ddl(f'create table "{owner}"."{name}" ({listed})', None, named=(owner, name))
        table.first_scn = self.scn
        self.tick()
        return table

    # ------------------------------------------------------------------ loads

    def load_without_logging(self, table: Table, rows: Iterable[Row]) -> None:
        """Load rows with NOLOGGING: the log has nothing of them."""
        self.tick()
        changes = []
        for row in rows:
            segment: Segment = table.segment_of(row)
            row_id = segment.new_row_id(reuse=False)
            table.put(row_id, dict(row))
            table.record_version(row_id, self.scn, dict(row))
            changes.append(Change("c", table.version.owner, table.name, None, dict(row), row_id))
        xid = Xid(1, 0, 900_000 + next(self._transactions))
        self.unrecoverable_scn = self.scn
        self.committed.append(Committed(xid, self.scn, 1, None, tuple(changes), is_logged=False))
        self.tick()

    # ------------------------------------------------------------------ restores

    def restore(self, scn: int) -> None:
        """Restore the database to an SCN and open it with RESETLOGS: a new incarnation."""
        for transaction in list(self.open.values()):
            transaction.forget()
        self.committed = [one for one in self.committed if one.scn <= scn]
        for table in self.tables.values():
            table.rows, table.locks, table.key_locks = {}, {}, {}
            table.index_rows()
            for row_id, versions in table.history.items():
                kept = [one for one in versions if one[0] <= scn]
                table.history[row_id] = kept
                newest = kept[-1][1] if kept else None
                if newest is not None:
                    table.put(row_id, dict(newest))
            for segment in table.segments.values():
                segment.free = []
        self.scn = scn + 1
        self.logs.reset(self.scn, self.now)
        self.first_scn = min(self.first_scn, self.scn)
        self.tick()
