"""Transactions of the model: changes, savepoints, undo, commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_oracle import lobs, redo
from sim_oracle.columns import WHOLE_ROW_UNSUPPORTED, Row, fit_value
from sim_oracle.errors import Blocked, ModelMisuse, OraError
from sim_oracle.redo import Record, Xid

if TYPE_CHECKING:
    from sim_oracle.database import Database
    from sim_oracle.tables import Segment, Table

_STATEMENTS = (redo.INSERT, redo.UPDATE, redo.DELETE)
ARRAY_MAX = 255  # rows of one record of a bulk DELETE
_MODES = ("ROW SHARE", "ROW EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE")
# Modes of LOCK TABLE that one mode does not let others have.
_CONFLICTS = {
    "ROW SHARE": {"EXCLUSIVE"},
    "ROW EXCLUSIVE": {"SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"},
    "SHARE": {"ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"},
    "SHARE ROW EXCLUSIVE": {"ROW EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"},
    "EXCLUSIVE": set(_MODES),
}


class Change(NamedTuple):
    """A change of one row, or a truncation.

    Attributes:
        op: c, u, d, or t (truncate).
        before: Complete row before; None for c and t.
        after: Complete row after; None for d and t.
    """

    op: str
    owner: str
    table: str
    before: Row | None
    after: Row | None
    row_id: str | None


@dataclass(slots=True, eq=False)
class Done:
    """A change that a transaction made and may undo.

    Attributes:
        kind: I, U or D.
        before: Row before it.
        after: Row after it.
        undo: Records that reverse it, newest first, as functions that write them.
        is_folded: Whether the change before it has its values: a LOB of an inserted row.
    """

    kind: str
    table: Table
    row_id: str
    before: Row | None
    after: Row | None
    undo: list[Callable[[], Record]] = field(default_factory=list)
    is_folded: bool = False


class Transaction:
    """A transaction.

    Attributes:
        xid: Its id.
        start_scn: SCN of its START record; 0 before the first change.
        changes: Changes that were not undone, oldest first.
        late: When its records are written.
        shuffle: Source of the order of undo rows of different row ids; None keeps the strict
            reverse order.
    """

    def __init__(
        self,
        database: Database,
        thread: int,
        xid: Xid,
        late: str,
        user: str,
        container: str,
        parent: Transaction | None,
    ) -> None:
        self.database = database
        self.thread = thread
        self.xid = xid
        self.late = late
        self.user = user
        self.container = container
        self.parent = parent
        self.children: list[Transaction] = []
        self.start_scn = 0
        self.changes: list[Done] = []
        self.savepoints: dict[str, int] = {}
        self.is_open = True
        self.shuffle: random.Random | None = None
        self._strand: list[Record] = []
        if parent is not None:
            parent.start()
            parent.children.append(self)

    # ------------------------------------------------------------------ redo

    def start(self) -> None:
        """Write the START record, if there is none yet."""
        if self.start_scn or not self.is_open:
            return
        self.database.join_thread(self.thread)
        self.start_scn = self.database.scn
        record = self.record(redo.START)
        if self.late == "whole":
            self._strand.append(record)
        else:
            self.database.logs.write(record)

    def record(
        self, code: int, table: Table | None = None, segment: Segment | None = None, **fields: Any
    ) -> Record:
        """Return a record of this transaction, which write() writes."""
        made = self.database.make_record(
            self.thread, self.xid, code, self.start_scn or self.database.scn, self.user
        )
        made.container = self.container
        if self.parent is not None:
            made.parent = self.parent.xid
        if table is not None:
            made.version = table.version
            made.segment = segment or next(iter(table.segments.values()))
            made.physical_id = made.segment.data_object_id
            made.container = table.container
        for name, value in fields.items():
            setattr(made, name, value)
        if table is not None and table.is_temporary and code in _STATEMENTS:
            made.text, made.row_id = "/* No SQL_REDO for temporary tables */", None
        return made

    def write(self, record: Record) -> Record:
        """Write a record into the log or into the private strand."""
        self.start()
        if self.late == "no":
            self.database.logs.write(record)
        else:
            self._strand.append(record)
        return record

    def flush(self) -> None:
        """Write the private strand into the log."""
        for record in self._strand:
            self.database.logs.write(record)
        self._strand.clear()

    @property
    def has_strand(self) -> bool:
        """Return whether records wait in the private strand."""
        return bool(self._strand)

    # ------------------------------------------------------------------ statements

    def insert(
        self, table: Table, row: Row, *, columns: Sequence[str] = (), direct: bool = False
    ) -> str:
        """Insert a row and return its row id.

        Args:
            table: The table.
            row: Values by column; missing ones are NULL.
            columns: Columns that the row of LogMiner names; all by default.
            direct: Whether it is a direct-path insert with logging.

        Raises:
            OraError: 1, the key exists: the row was written and undone at once.
            Blocked: Another transaction holds the key.
        """
        self._check_open(table)
        self._check_table_lock(table)
        full = self._fit_row(table, row)
        key = table.key_of(full)
        self._check_key(table, key)
        is_duplicate = key is not None and key in table.keys
        segment = table.segment_of(full)
        row_id = segment.new_row_id(reuse=not direct)
        names = tuple(columns) or tuple(full)
        if is_duplicate:
            # The row piece is written before the index refuses the key.
            plain = {name: value for name, value in full.items() if name in names}
            self._write_insert(table, segment, row_id, plain, direct)
            self.write(self._undo_insert(table, segment, row_id))
            segment.free.append(row_id)
            raise OraError(1, f"{table.version.owner}.{table.name}_PK")
        done = Done("I", table, row_id, None, full)
        table.put(row_id, full)
        table.locks[row_id] = self
        self.changes.append(done)
        if lobs.needs_pieces(table, full):
            lobs.write_insert(self, done, segment, names)
        else:
            shown = {name: full[name] for name in names}
            self._write_insert(table, segment, row_id, shown, direct)
        done.undo.append(lambda: self._undo_insert(table, segment, row_id))
        return row_id

    def _write_insert(
        self, table: Table, segment: Segment, row_id: str, row: Row, direct: bool
    ) -> None:
        kinds = {column.kind for column in table.version.columns}
        if kinds & WHOLE_ROW_UNSUPPORTED:
            self.write(lobs.make_unsupported(self, table, segment))
            return
        operation = "DIRECT INSERT" if direct else None
        self.write(
            self.record(
                redo.INSERT, table, segment, row_id=row_id, new=dict(row), operation=operation
            )
        )

    def _undo_insert(self, table: Table, segment: Segment, row_id: str) -> Record:
        return self.record(redo.DELETE, table, segment, row_id=row_id, rollback=1)

    def update(self, table: Table, row_id: str, values: Row) -> str:
        """Update a row and return its row id, which differs if the row moved to a partition.

        Raises:
            OraError: 1, the new key exists.
            Blocked: Another transaction changed the row or holds the new key.
        """
        self._check_open(table)
        before = self.lock(table, row_id)
        changed = self._fit_changes(table, values)
        after = {**before, **changed}
        key = table.key_of(after)
        if key != table.key_of(before):
            self._check_key(table, key)
        is_duplicate = key is not None and table.keys.get(key, row_id) != row_id
        segment = table.segment_at(row_id)
        if table.segment_of(after) is not segment and not is_duplicate:
            self.delete(table, row_id)
            return self.insert(table, after)
        pieces = {
            name: value for name, value in changed.items() if lobs.is_piece(table, name, value)
        }
        plain = {name: value for name, value in changed.items() if name not in pieces}
        if is_duplicate:
            self._write_update(table, segment, row_id, before, plain)
            self.write(self._undo_update(table, segment, row_id, before, tuple(plain)))
            raise OraError(1, f"{table.version.owner}.{table.name}_PK")
        table.take(row_id)
        table.put(row_id, after)
        self._hold_key(table, before)
        done = Done("U", table, row_id, before, after)
        self.changes.append(done)
        if plain:
            self._write_update(table, segment, row_id, before, plain)
            done.undo.insert(
                0, lambda: self._undo_update(table, segment, row_id, before, tuple(plain))
            )
        for name, value in pieces.items():
            lobs.write_update(self, done, segment, name, value)
        return row_id

    def _write_update(
        self, table: Table, segment: Segment, row_id: str, before: Row, plain: Row
    ) -> None:
        kinds = {column.kind for column in table.version.columns}
        if kinds & WHOLE_ROW_UNSUPPORTED:
            self.write(lobs.make_unsupported(self, table, segment))
            return
        where = table.version.logged_names(plain)
        record = self.record(
            redo.UPDATE, table, segment, row_id=row_id, old=before, new=dict(plain), where=where
        )
        if not where:
            record.status, record.info = 3, "no supplemental log data found"
        elif any(column.kind == "LONG" for column in table.version.columns):
            record.status = 2  # usable nevertheless
        self.write(record)

    def _undo_update(
        self, table: Table, segment: Segment, row_id: str, before: Row, names: tuple[str, ...]
    ) -> Record:
        new = {name: before[name] for name in names}
        return self.record(
            redo.UPDATE, table, segment, row_id=row_id, old=before, new=new, rollback=1
        )

    def delete(self, table: Table, row_id: str) -> None:
        """Delete a row."""
        self._delete(table, row_id, None)

    def delete_many(self, table: Table, row_ids: Iterable[str]) -> None:
        """Delete rows by one statement: array records whose rows share RS_ID and SSN."""
        first: Record | None = None
        for number, row_id in enumerate(row_ids):
            first = None if number % ARRAY_MAX == 0 else first
            record = self._delete(table, row_id, first)
            first = first or record

    def _delete(self, table: Table, row_id: str, first: Record | None) -> Record:
        self._check_open(table)
        before = self.lock(table, row_id)
        segment = table.segment_at(row_id)
        table.take(row_id)
        self._hold_key(table, before)
        done = Done("D", table, row_id, before, None)
        self.changes.append(done)
        where = table.version.logged_names(None)
        record = self.record(
            redo.DELETE, table, segment, row_id=row_id, old=before, where=where, array=first
        )
        if not where:
            record.status, record.info = 3, "no supplemental log data found"
        self.write(record)

        def undo() -> Record:
            return self.record(
                redo.INSERT, table, segment, row_id=row_id, new=dict(before), rollback=1
            )

        done.undo.append(undo)
        return record

    def insert_many(
        self, table: Table, rows: Iterable[Row], *, save_exceptions: bool = False
    ) -> list[int]:
        """Insert rows by one array statement; return the places of refused rows.

        Without SAVE EXCEPTIONS the first refused row undoes the whole statement.
        """
        mark, refused = len(self.changes), []
        for number, row in enumerate(rows):
            try:
                self.insert(table, row)
            except OraError:
                if not save_exceptions:
                    self.undo_to(mark)
                    raise
                refused.append(number)
            except Blocked:
                self.undo_to(mark)
                raise
        return refused

    def update_many(self, table: Table, changes: Iterable[tuple[str, Row]]) -> None:
        """Update rows by one statement, whose keys are checked at its end.

        Raises:
            OraError: 1, a key exists twice at the end: all of it was undone.
            Blocked: Another transaction holds a new key.
        """
        mark = len(self.changes)
        listed = list(changes)
        befores = {row_id: self.lock(table, row_id) for row_id, _ in listed}
        for row_id, values in listed:
            after = {**befores[row_id], **self._fit_changes(table, values)}
            self._check_key(table, table.key_of(after))
        for row_id, _ in listed:
            table.take(row_id)
        taken: set[Any] = set()
        for row_id, values in listed:
            before = befores[row_id]
            segment = table.segment_at(row_id)
            changed = self._fit_changes(table, values)
            after = {**before, **changed}
            self._write_update(table, segment, row_id, before, changed)
            done = Done("U", table, row_id, before, after)
            done.undo.append(self._make_undo(table, segment, row_id, before, tuple(changed)))
            self.changes.append(done)
            taken.add(table.key_of(after))
        has_key = bool(table.version.key)
        is_duplicate = has_key and (
            len(taken) < len(listed) or any(key in table.keys for key in taken)
        )
        for done in self.changes[mark:]:
            assert done.after is not None
            table.rows[done.row_id] = done.after
        if is_duplicate:
            self.undo_to(mark)
            raise OraError(1, f"{table.version.owner}.{table.name}_PK")
        for done in self.changes[mark:]:
            assert done.after is not None
            assert done.before is not None
            table.put(done.row_id, done.after)
            self._hold_key(table, done.before)

    def _make_undo(
        self, table: Table, segment: Segment, row_id: str, before: Row, names: tuple[str, ...]
    ) -> Callable[[], Record]:
        return lambda: self._undo_update(table, segment, row_id, before, names)

    def select_for_update(self, table: Table, row_id: str) -> None:
        """Lock a row: a row of the log that is not data."""
        self.lock(table, row_id)
        name = f'"{table.version.owner}"."{table.name}"'
        text = f"select * from {name} where ROWID = '{row_id}' for update;"
        self.write(self.record(redo.SELECT_FOR_UPDATE, table, row_id=row_id, text=text))

    # ------------------------------------------------------------------ checks

    def _check_open(self, table: Table) -> None:
        if not self.is_open:
            raise ModelMisuse("the transaction has ended")
        if table.is_dropped:
            raise OraError(942)
        self.start()
        self.database.join_thread(self.thread)

    def _fit_row(self, table: Table, row: Row) -> Row:
        unknown = row.keys() - {column.name for column in table.version.columns}
        if unknown:
            raise OraError(904, f'"{min(unknown)}"')
        columns = [column for column in table.version.columns if not column.is_virtual]
        return {column.name: fit_value(column, row.get(column.name)) for column in columns}

    def _fit_changes(self, table: Table, values: Row) -> Row:
        full_name = f'"{table.version.owner}"."{table.name}"'
        for name, value in values.items():
            column = table.version.column(name)
            if not column.is_nullable and (value is None or (value == "" and not column.is_lob)):
                raise OraError(1407, f'{full_name}."{name}"')
        return {name: fit_value(table.version.column(name), values[name]) for name in values}

    def lock(self, table: Table, row_id: str) -> Row:
        """Lock a row and return it; raises Blocked if another transaction has it."""
        holder = table.locks.get(row_id)
        if holder is not None and holder is not self:
            raise Blocked(row_id)
        self._check_table_lock(table)
        if row_id not in table.rows:
            raise ModelMisuse(f"no row {row_id}")
        table.locks[row_id] = self
        return table.rows[row_id]

    def _check_table_lock(self, table: Table) -> None:
        for holder, mode in table.table_locks.items():
            if holder is not self and mode in ("EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE"):
                raise Blocked(table.name)

    def lock_table(self, table: Table, mode: str) -> None:
        """Lock a table; raises Blocked if others hold it or its rows in a mode that conflicts."""
        self.start()
        others = {one: held for one, held in table.table_locks.items() if one is not self}
        writers = {one for one in table.locks.values() if one is not self}
        conflicts = _CONFLICTS[mode]
        if any(held in conflicts for held in others.values()):
            raise Blocked(table.name)
        if writers and "ROW EXCLUSIVE" in conflicts:
            raise Blocked(table.name)
        held = table.table_locks.get(self)
        if held is None or _MODES.index(held) < _MODES.index(mode):
            table.table_locks[self] = mode

    def _check_key(self, table: Table, key: tuple[Any, ...] | None) -> None:
        if key is None:
            return
        holder = table.key_locks.get(key)
        if holder is not None and holder is not self:
            raise Blocked(key)
        row_id = table.keys.get(key)
        if row_id is not None and table.locks.get(row_id) not in (None, self):
            raise Blocked(key)

    def _hold_key(self, table: Table, row: Row) -> None:
        key = table.key_of(row)
        if key is not None:
            table.key_locks[key] = self

    # ------------------------------------------------------------------ ends

    def savepoint(self, name: str) -> None:
        """Set a savepoint."""
        self.savepoints[name] = len(self.changes)

    def rollback_to(self, name: str) -> None:
        """Undo all changes since a savepoint."""
        if name not in self.savepoints:
            raise OraError(1086, name)
        mark = self.savepoints[name]
        self.undo_to(mark)
        self.savepoints = {one: at for one, at in self.savepoints.items() if at <= mark}

    def undo_to(self, mark: int) -> None:
        """Undo all changes after the first ones."""
        undone = self.changes[mark:]
        del self.changes[mark:]
        writers: list[tuple[str, Callable[[], Record]]] = []
        for done in reversed(undone):
            self._restore(done)
            writers += [(done.row_id, write) for write in done.undo]
        for write in self._order(writers):
            self.database.tick(self.database.scn % 2)
            self.write(write())

    def _order(self, writers: list[tuple[str, Callable[[], Record]]]) -> list[Callable[[], Record]]:
        """Return undo rows newest first within a row id, in any order between row ids."""
        if self.shuffle is None:
            return [write for _, write in writers]
        by_row: dict[str, list[Callable[[], Record]]] = {}
        for row_id, write in writers:
            by_row.setdefault(row_id, []).append(write)
        order = [row_id for row_id, _ in writers]
        self.shuffle.shuffle(order)
        return [by_row[row_id].pop(0) for row_id in order]

    def _restore(self, done: Done) -> None:
        """Give the table back the row from before a change."""
        table = done.table
        if done.kind == "I":
            table.take(done.row_id)
            table.locks.pop(done.row_id, None)
            table.segment_at(done.row_id).free.append(done.row_id)
            return
        assert done.before is not None
        if done.kind == "U":
            table.take(done.row_id)
        table.put(done.row_id, done.before)

    def rollback(self) -> None:
        """Undo all changes and end."""
        for child in self.children:
            child.rollback()
        if self.start_scn:
            self.undo_to(0)
            self.database.tick()
            record = self.record(
                redo.ROLLBACK, hides_address=self.database.settings.has_partial_ids
            )
            self.write(record)
            self.flush()
        self._end()

    def commit(
        self,
        *,
        ddl: str | None = None,
        changes: tuple[Change, ...] = (),
        same_scn: bool = False,
    ) -> int:
        """Commit and return the commit SCN; 0 if nothing was changed.

        Args:
            ddl: Text of the statement, if it is a DDL transaction.
            changes: Changes that have no rows, as a truncation.
            same_scn: Whether to use the last commit's SCN again where that is possible.
        """
        from sim_oracle.database import Committed

        database = self.database
        for child in self.children:
            child.commit(same_scn=True)
        if not self.start_scn:
            self._end()
            return 0
        database.join_thread(self.thread)
        if not same_scn:
            database.tick()
        self.flush()
        net = (*changes, *self._net())
        has_row = self.parent is None or database.settings.children_commit
        record = self.record(redo.COMMIT)
        if has_row:
            database.logs.write(record)
        self._store(record.scn)
        if has_row:
            own = [*net]
            for child in self.children:
                own += [] if database.settings.children_commit else child._net()
            committed = Committed(
                self.xid,
                record.scn,
                self.thread,
                record.address,
                tuple(own),
                ddl,
                start_scn=self.start_scn,
            )
            database.record_commit(committed)
        self._end()
        return record.scn

    def _net(self) -> list[Change]:
        """Return the surviving changes; temporary tables have none."""
        out = []
        for done in self.changes:
            if done.table.is_temporary:
                continue
            op = {"I": "c", "U": "u", "D": "d"}[done.kind]
            version = done.table.version
            out.append(
                Change(op, version.owner, version.name, done.before, done.after, done.row_id)
            )
        return out

    def _store(self, scn: int) -> None:
        for done in self.changes:
            done.table.record_version(done.row_id, scn, done.after)
            if done.kind == "D":
                done.table.segment_at(done.row_id).free.append(done.row_id)

    def _end(self) -> None:
        self.is_open = False
        self.database.open.pop(self.xid, None)
        for table in (
            {done.table for done in self.changes}
            | {one for one in self.database.tables.values() if self in one.locks.values()}
            | {one for one in self.database.tables.values() if self in one.key_locks.values()}
            | {one for one in self.database.tables.values() if self in one.table_locks}
        ):
            table.locks = {row: one for row, one in table.locks.items() if one is not self}
            table.table_locks.pop(self, None)
            table.key_locks = {key: one for key, one in table.key_locks.items() if one is not self}

    def forget(self) -> None:
        """End without a record, as a crash does."""
        for done in reversed(self.changes):
            self._restore(done)
        self._strand.clear()
        self._end()
