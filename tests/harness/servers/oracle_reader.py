"""A small reader of LogMiner for the tests of the model, with defects that can be planted.

It is written from the reference, uses the driver only, and re-reads every window from the oldest
open transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.servers.oracle_text import DOUBLED, decode, parse, parse_lob
from sim_oracle import oracledb

DEFECTS = (
    "undo takes the oldest change",
    "RS_ID is an identity",
    "a commit on an equal SCN is dropped",
    "rows below the low watermark are lost",
    "thread 2 is forgotten",
    "a log that was switched after its choice is taken as read",
    "a statement's pieces are read one by one",
    "a window is closed by SCN while redo arrives late",
    "a transaction open at the start is missed",
)
PLACEHOLDER = "A" * 18
PARTIAL = 2**32 - 1
RETRIES = 8
DATABASE = """SELECT DBID, NAME, RESETLOGS_CHANGE#, RESETLOGS_TIME, LOG_MODE,
 SUPPLEMENTAL_LOG_DATA_MIN, SUPPLEMENTAL_LOG_DATA_ALL, FORCE_LOGGING, CDB, DATABASE_ROLE, OPEN_MODE
 FROM V$DATABASE"""
LOG = """SELECT GROUP#, THREAD#, SEQUENCE#, BYTES, ARCHIVED, STATUS, FIRST_CHANGE#, NEXT_CHANGE#
 FROM V$LOG"""
LOG_FILE = "SELECT GROUP#, STATUS, TYPE, MEMBER FROM V$LOGFILE"
ARCHIVED = """SELECT NAME, DEST_ID, THREAD#, SEQUENCE#, RESETLOGS_CHANGE#, RESETLOGS_TIME,
 FIRST_CHANGE#, NEXT_CHANGE#, BLOCKS, BLOCK_SIZE, DICTIONARY_BEGIN, DICTIONARY_END
 FROM V$ARCHIVED_LOG WHERE NAME IS NOT NULL AND ARCHIVED = 'YES' AND DELETED = 'NO'
 AND STATUS = 'A' AND STANDBY_DEST = 'NO' AND NEXT_CHANGE# > :low"""
THREAD = """SELECT THREAD#, STATUS, ENABLED, ENABLE_CHANGE#, CHECKPOINT_CHANGE#, LAST_REDO_CHANGE#
 FROM V$THREAD"""
OPEN = "SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM GV$TRANSACTION"
ADD = "BEGIN DBMS_LOGMNR.ADD_LOGFILE(LOGFILENAME => :name, OPTIONS => DBMS_LOGMNR.{}); END;"
START = """BEGIN DBMS_LOGMNR.START_LOGMNR(STARTSCN => :low, ENDSCN => :high,
 OPTIONS => DBMS_LOGMNR.DICT_FROM_ONLINE_CATALOG + DBMS_LOGMNR.NO_ROWID_IN_STMT
 + DBMS_LOGMNR.NO_SQL_DELIMITER); END;"""
END = "BEGIN DBMS_LOGMNR.END_LOGMNR; END;"
CONTENTS = """SELECT SCN, XIDUSN, XIDSLT, XIDSQN, PXIDUSN, PXIDSLT, PXIDSQN, OPERATION_CODE,
 ROLLBACK, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, SSN, CSF, THREAD#, DATA_OBJ#, DATA_OBJV#,
 DATA_OBJD#, STATUS, INFO, TIMESTAMP, SRC_CON_NAME, SQL_REDO FROM V$LOGMNR_CONTENTS
 WHERE OPERATION_CODE IN (6, 7, 34, 36) OR (SRC_CON_NAME = :pdb AND OPERATION_CODE IN
 (0, 1, 2, 3, 5, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255))"""
COLUMNS = """SELECT OWNER, TABLE_NAME, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION,
 DATA_SCALE, NULLABLE, COLUMN_ID, HIDDEN_COLUMN, VIRTUAL_COLUMN, CHAR_LENGTH, CHAR_USED
 FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name ORDER BY INTERNAL_COLUMN_ID"""
NLS = {
    "NLS_DATE_FORMAT": "YYYY-MM-DD HH24:MI:SS",
    "NLS_TIMESTAMP_FORMAT": "YYYY-MM-DD HH24:MI:SS.FF9",
    "NLS_TIMESTAMP_TZ_FORMAT": "YYYY-MM-DD HH24:MI:SS.FF9 TZH:TZM",
    "NLS_NUMERIC_CHARACTERS": ".,",
    "TIME_ZONE": "00:00",
}
DML = {1: "insert", 2: "delete", 3: "update"}
UNDOES = {1: 2, 2: 1, 3: 3}
TRANSIENT = (310, 334, 1368, 1284, 1291, 1289)


@dataclass(slots=True)
class Row:
    """A row of the log, with the texts of its pieces."""

    scn: int
    xid: tuple[int, int, int]
    code: int
    rollback: int
    owner: str
    table: str
    row_id: str
    rs_id: str
    thread: int
    pieces: list[str]
    tied: str | None = None
    lob_rows: list[Row] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Return the row id that the row has, or that a later row gave it."""
        return self.tied or self.row_id


@dataclass(slots=True)
class Emitted:
    """A transaction as the reader emits it.

    Attributes:
        changes: Changed rows: table, row id, and the new values; None for a deleted row, and an
            absent row id for a truncation.
    """

    xid: tuple[int, int, int]
    scn: int
    changes: list[tuple[str, str | None, dict[str, Any] | None]]
    ddl: str | None = None


class Reader:
    """A reader of one PDB's changes.

    Attributes:
        emitted: Emitted transactions, in order.
        low: SCN from which the next window is read.
        start_scn: Commits up to here are in the snapshot.
    """

    def __init__(self, root: Any, pdb: Any, name: str, defects: frozenset[str]) -> None:
        self.root, self.pdb, self.name, self.defects = root, pdb, name, defects
        assert defects <= set(DEFECTS)
        for key, value in NLS.items():
            root.cursor().execute(f"ALTER SESSION SET {key} = '{value}'")
        self.emitted: list[Emitted] = []
        self._kinds: dict[tuple[str, str], dict[str, str]] = {}
        self._last: tuple[int, set[Any]] = (0, set())
        self.start_scn = self.low = self.end = 0
        self._held: dict[Any, list[Row]] = {}
        self._ignored: set[Any] = set()
        self.is_listening = True
        self.before_fetch: Callable[[], None] = lambda: None

    def _all(self, text: str, connection: Any = None, **binds: Any) -> list[Any]:
        cursor = (connection or self.root).cursor()
        cursor.arraysize = 1000
        return cursor.execute(text, binds).fetchall()

    def _has(self, defect: int) -> bool:
        return DEFECTS[defect] in self.defects

    def begin(self) -> int:
        """Take the position; return the SCN of the snapshot."""
        first = self._all("SELECT CURRENT_SCN FROM V$DATABASE")[0][0]
        starts = [row[3] for row in self._all(OPEN)]
        self.start_scn = self._all("SELECT CURRENT_SCN FROM V$DATABASE")[0][0]
        self.low = min([first, *starts])
        if self._has(8):
            self.low = self.start_scn + 1
        self.end = self.start_scn
        return self.start_scn

    # ------------------------------------------------------------------ logs

    def _choose(self, low: int) -> list[str]:
        """Return the files that have the redo from an SCN on."""
        resetlogs = self._all(DATABASE)[0][2:4]
        chosen: dict[tuple[int, int], str] = {}
        members: dict[int, str] = {}
        for group, _, _, member in self._all(LOG_FILE):
            members[group] = min(member, members.get(group, member))
        for row in self._all(ARCHIVED, low=low):
            if tuple(row[4:6]) == tuple(resetlogs):
                chosen[(row[2], row[3])] = row[0]
        for group, thread, sequence, _, archived, status, _, following in self._all(LOG):
            if status == "CURRENT" or (
                status in ("ACTIVE", "INACTIVE") and archived == "NO" and following > low
            ):
                chosen[(thread, sequence)] = members[group]
        if self._has(4):
            chosen = {key: name for key, name in chosen.items() if key[0] == 1}
        for thread in {key[0] for key in chosen}:
            numbers = sorted(sequence for one, sequence in chosen if one == thread)
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a gap between logs"
        return [chosen[key] for key in sorted(chosen)]

    def _find_end(self) -> int:
        ends = [row[5] for row in self._all(THREAD) if row[1] == "OPEN"]
        return min(ends)

    # ------------------------------------------------------------------ windows

    def step(self) -> bool:
        """Read one window; return whether there was one."""
        starts = [row[3] for row in self._all(OPEN)]
        end = self._find_end()
        if end <= self.end or end <= self.low:
            return False
        rows = self._read(self.low - 1, end)
        if self._has(7):
            rows = [row for row in rows if row.scn > self.end or self.low <= self.start_scn]
        held = self._held if self._has(7) else {}
        lows = self._assemble(rows, held)
        self.end = end
        if self._has(7):
            self.low, self._held = end + 1, held
        elif self._has(3):
            self.low = end
        else:
            self.low = min([end, *lows, *starts])
        return True

    def _read(self, low: int, high: int) -> list[Row]:
        for attempt in itertools.count(1):
            try:
                return self._mine(low, high, [])
            except oracledb.DatabaseError as error:
                code = error.args[0].code
                if code not in TRANSIENT or attempt == RETRIES:
                    raise
        raise AssertionError

    def _mine(self, low: int, high: int, out: list[Row]) -> list[Row]:
        cursor = self.root.cursor()
        option = "NEW"
        for name in self._choose(low):
            cursor.execute(ADD.format(option), name=name)
            option = "ADDFILE"
        self.before_fetch()
        try:
            cursor.execute(START, low=low, high=high)
            cursor.arraysize = 50
            cursor.execute(CONTENTS, pdb=self.name)
            while rows := cursor.fetchmany():
                self._collect(rows, out)
        except oracledb.DatabaseError:
            if not self._has(5):
                raise
        cursor.execute(END)
        return out

    def _collect(self, rows: list[Any], out: list[Row]) -> None:
        for row in rows:
            text = row[23] or ""
            if out and out[-1].pieces[-1:] == ["..."]:
                out[-1].pieces[-1:] = [text, "..."] if row[14] else [text]
                continue
            made = Row(
                row[0], tuple(row[1:4]), row[7], row[8], row[9], row[10], row[11], row[12],
                row[15], [text, "..."] if row[14] else [text],
            )  # fmt: skip
            out.append(made)

    # ------------------------------------------------------------------ transactions

    def _assemble(self, rows: list[Row], held: dict[Any, list[Row]]) -> list[int]:
        """Emit the committed transactions; return the start SCNs of open ones."""
        starts: dict[Any, int] = {key: found[0].scn for key, found in held.items() if found}
        seen: set[Any] = set()
        for row in rows:
            if self._has(1) and row.code in DML and (row.thread, row.rs_id) in seen:
                continue
            seen.add((row.thread, row.rs_id))
            xid = self._whole(row.xid, held)
            if row.code == 6:
                held[xid], starts[xid] = [], row.scn
            elif row.code == 34:
                raise AssertionError("a gap in the log")
            elif row.code == 7:
                self._commit(xid, row, held.pop(xid, []))
                starts.pop(xid, None)
            elif row.code == 36:
                held.pop(xid, None)
                starts.pop(xid, None)
            elif xid in held:
                self._hold(held[xid], row)
            elif self._has(8) or self._has(3) or self._has(7):
                held[xid] = [row]  # the start was not seen
        return list(starts.values())

    def _hold(self, rows: list[Row], row: Row) -> None:
        text = row.pieces[0]
        if row.rollback:
            self._undo(rows, row)
        elif row.code == 0:
            _tie(rows, row)
        elif row.code == 25 or text.startswith("/* No SQL_REDO") or (row.code == 9 and not text):
            return  # not data: a lock, a temporary table, the row before a whole block
        else:
            rows.append(row)

    def _whole(self, xid: tuple[int, int, int], held: dict[Any, Any]) -> tuple[int, int, int]:
        if xid[2] != PARTIAL:
            return xid
        return next((one for one in held if one[:2] == xid[:2]), xid)

    def _undo(self, rows: list[Row], undo: Row) -> None:
        wanted = UNDOES[undo.code]
        places = [
            place
            for place, one in enumerate(rows)
            if one.where == undo.row_id
            and (one.code == wanted or (wanted == 3 and one.code in (9, 10, 11)))
        ]
        if not places:
            return
        place = places[0] if self._has(0) else places[-1]
        if rows[place].code in (10, 11):
            # One undo row reverses all LOB rows of a statement and a column.
            self._undo_lob(rows, place)
        else:
            del rows[place]

    def _undo_lob(self, rows: list[Row], place: int) -> None:
        column = _column_at(rows, place)
        while place >= 0 and rows[place].code in (9, 10, 11):
            if _column_at(rows, place) == column:
                row = rows.pop(place)
                if row.code == 9 and row.pieces[0]:
                    return
                if _is_first(row):
                    return
            place -= 1

    def _commit(self, xid: Any, row: Row, rows: list[Row]) -> None:
        last, seen = self._last
        is_known = row.scn < last or (row.scn == last and (xid in seen or self._has(2)))
        if row.scn <= self.start_scn or is_known:
            return
        self._last = (row.scn, {*seen, xid} if row.scn == last else {xid})
        changes: list[Any] = []
        ddl = None
        lob: dict[tuple[str, str], Any] = {}
        for number, one in enumerate(rows):
            if one.code == 5:
                ddl = one.pieces[0]
                if ddl.lower().startswith("truncate"):
                    changes.append((one.table, None, None))
                self._kinds.pop((one.owner, one.table), None)
            elif one.code in DML:
                changes.append(self._change(one))
            elif one.code in (10, 11, 28, 29):
                self._change_lob(rows, number, lob, changes)
        if changes or ddl:
            self.emitted.append(Emitted(xid, row.scn, changes, ddl))

    def _kinds_of(self, row: Row) -> dict[str, str]:
        key = (row.owner, row.table)
        if key not in self._kinds:
            listed = self._all(COLUMNS, self.pdb, owner=row.owner, name=row.table)
            self._kinds[key] = {one[2]: one[3] for one in listed}
        return self._kinds[key]

    def _change(self, row: Row) -> Any:
        if self._has(6):
            text = "".join(one.replace("''", DOUBLED) for one in row.pieces)
        else:
            text = "".join(row.pieces)
        kinds = self._kinds_of(row)
        statement = parse(text)
        assert statement.kind == DML[row.code]
        if statement.kind == "delete":
            return row.table, row.where, None
        tokens = {**statement.old, **statement.new}
        values = {name: decode(kinds[name], token) for name, token in tokens.items()}
        return row.table, row.where, values

    def _change_lob(self, rows: list[Row], number: int, lob: Any, changes: list[Any]) -> None:
        row = rows[number]
        column = _column_at(rows, number)
        step = parse_lob("".join(row.pieces))
        key = (row.where, column)
        value = lob.get(key)
        if step.data is not None:
            if step.offset == 1:
                value = step.data
            else:
                is_next = value is not None and len(value) == step.offset - 1
                assert is_next, "a LOB that is written in its middle"
                value = value + step.data
        elif step.size is not None and value is not None:
            value = value[: step.size]
        lob[key] = value
        if value is not None:
            changes.append((row.table, row.where, {column: value}))


def _is_first(row: Row) -> bool:
    step = parse_lob("".join(row.pieces)) if row.code in (10, 11) else None
    return step is not None and step.column is not None and step.offset == 1


def _column_at(rows: list[Row], place: int) -> str | None:
    """Return the column of a LOB row: its own, or that of the locator before it."""
    while place >= 0:
        step = parse_lob("".join(rows[place].pieces))
        if step.column is not None or rows[place].code not in (9, 10, 11):
            return step.column
        place -= 1
    return None


def _tie(rows: list[Row], tie: Row) -> None:
    """Give the LOB rows before an INTERNAL row its row id."""
    for row in reversed(rows):
        if row.row_id != PLACEHOLDER or row.tied is not None:
            return
        if row.table == tie.table:
            row.tied = tie.row_id
