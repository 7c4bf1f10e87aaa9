"""Rows of V$LOGMNR_CONTENTS: what a mining session shows of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sim_oracle import lobs, redo
from sim_oracle.columns import LOBS, Column, Value
from sim_oracle.literals import Nls, internal_literal, literal
from sim_oracle.redo import NO_ADDRESS, OPERATIONS, PARTIAL_SEQUENCE, Record, Xid
from sim_oracle.rowids import PLACEHOLDER
from sim_oracle.tables import Table, TableVersion

PIECE_BYTES = 4000
_ENDS = {
    redo.START: "set transaction read write",
    redo.COMMIT: "commit",
    redo.ROLLBACK: "rollback",
}
MISMATCH = "Dictionary Mismatch"
COLUMNS = (
    "SCN",
    "START_SCN",
    "COMMIT_SCN",
    "TIMESTAMP",
    "XIDUSN",
    "XIDSLT",
    "XIDSQN",
    "XID",
    "PXIDUSN",
    "PXIDSLT",
    "PXIDSQN",
    "PXID",
    "OPERATION",
    "OPERATION_CODE",
    "ROLLBACK",
    "SEG_OWNER",
    "SEG_NAME",
    "TABLE_NAME",
    "SEG_TYPE",
    "ROW_ID",
    "USERNAME",
    "CLIENT_ID",
    "RS_ID",
    "SSN",
    "CSF",
    "THREAD#",
    "DATA_OBJ#",
    "DATA_OBJV#",
    "DATA_OBJD#",
    "STATUS",
    "INFO",
    "SRC_CON_NAME",
    "SRC_CON_ID",
    "SQL_REDO",
    "SQL_UNDO",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of START_LOGMNR that change texts.

    Attributes:
        has_row_ids: Whether statements have a condition on ROWID.
        has_delimiter: Whether statements end with a semicolon.
        is_committed_only: Whether rows are grouped by transaction.
        has_dictionary: Whether object numbers have names.
        tracks_ddl: Whether older table versions have their names.
    """

    has_row_ids: bool = False
    has_delimiter: bool = False
    is_committed_only: bool = False
    has_dictionary: bool = True
    tracks_ddl: bool = False


class Renderer:
    """Turn records into rows for one mining session.

    Args:
        nls: Settings of the session.
        options: Options of START_LOGMNR.
        start_scn: First SCN of the window.
        find_table: Returns the table with a DATA_OBJ# now, or None.
        has_partial_ids: Whether undo rows of earlier transactions have incomplete XIDs.
        mismatch_form: `columns` or `message`, for rows of older table versions.
    """

    def __init__(
        self,
        nls: Nls,
        options: Options,
        start_scn: int,
        find_table: Callable[[int], Table | None],
        *,
        has_partial_ids: bool,
        mismatch_form: str,
        containers: dict[str, int],
    ) -> None:
        self._nls = nls
        self._options = options
        self._start_scn = start_scn
        self._find_table = find_table
        self._has_partial_ids = has_partial_ids
        self._mismatch_form = mismatch_form
        self._containers = containers

    def rows(self, record: Record, commit_scn: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a record: one, or pieces of at most 4000 bytes."""
        names = self._names(record)
        key: tuple[Any, ...] = (
            self._nls,
            self._options,
            names.is_mismatch,
            names.table,
            self._mismatch_form,
        )
        key += (self._is_partial(record), commit_scn)
        if record.shown is None or record.shown[0] != key:
            record.shown = key, self._render(record, names, commit_scn)
        return record.shown[1]

    def _render(
        self, record: Record, names: _Names, commit_scn: int | None
    ) -> list[tuple[Any, ...]]:
        text, status, info = record.text, record.status, record.info
        if names.is_mismatch and record.code in (redo.INSERT, redo.UPDATE, redo.DELETE):
            status, info = 2, MISMATCH
        if names.is_mismatch and self._mismatch_form == "message" and record.version is not None:
            text = "Dictionary Version Mismatch" if record.code == redo.UPDATE else text
        if text is None:
            text = self._text(record, names)
        elif not record.is_final and lobs.TABLE in text:
            text = self._fill(record, names, text)
        pieces = split(text) if text is not None else [None]
        last = len(pieces) - 1
        return [
            self._row(record, names, piece, number, number < last, status, info, commit_scn)
            for number, piece in enumerate(pieces)
        ]

    # ------------------------------------------------------------------ columns

    def _row(
        self,
        record: Record,
        names: _Names,
        text: str | None,
        piece: int,
        continues: bool,
        status: int,
        info: str | None,
        commit_scn: int | None,
    ) -> tuple[Any, ...]:
        xid, address = record.xid, record.address
        assert address is not None
        is_partial = self._is_partial(record)
        if is_partial:
            xid = Xid(xid.usn, xid.slot, PARTIAL_SEQUENCE)
        hides = record.hides_address and is_partial
        parent = record.parent or xid
        segment = record.segment
        code = record.code
        return (
            record.scn,
            record.start_scn if commit_scn is not None else None,
            commit_scn,
            record.time,
            *xid,
            xid.raw,
            *parent,
            parent.raw,
            record.operation or OPERATIONS[code],
            code,
            record.rollback,
            names.owner,
            names.segment,
            names.table,
            None if segment is None else "TABLE",
            record.row_id or PLACEHOLDER,
            record.user,
            None,
            NO_ADDRESS if hides else address.text(piece),
            piece,
            int(continues),
            0 if record.hides_thread else record.thread,
            0 if segment is None else segment.object_id,
            _version_number(record),
            record.physical_id,
            status,
            info,
            record.container,
            self._containers.get(record.container, 1),
            text,
            None,
        )

    def _is_partial(self, record: Record) -> bool:
        if not self._has_partial_ids or record.start_scn >= self._start_scn:
            return False
        return bool(record.rollback) or record.code == redo.ROLLBACK

    def _names(self, record: Record) -> _Names:
        version, segment = record.version, record.segment
        if version is None or segment is None:
            owner, table = record.named or (None, None)
            return _Names(owner, table, table, None)
        suffix = f",{segment.partition}" if segment.partition is not None else ""
        if not self._options.has_dictionary:
            return _Names("UNKNOWN", f"OBJ# {segment.object_id}", version.name, version, True)
        now = self._find_table(segment.object_id)
        if now is None and not self._options.tracks_ddl and record.code != redo.DDL:
            return _Names("UNKNOWN", f"OBJ# {segment.object_id}", version.name, version, True)
        if now is not None and not self._options.tracks_ddl and now.name != version.name:
            # The online catalog has the new name of a renamed table for older redo as well.
            version = replace(version, name=now.name)
        is_older = now is None or now.version.number != version.number
        is_mismatch = is_older and not self._options.tracks_ddl and record.code != redo.DDL
        return _Names(version.owner, version.name, version.name + suffix, version, is_mismatch)

    # ------------------------------------------------------------------ texts

    def _text(self, record: Record, names: _Names) -> str | None:
        code = record.code
        end = ";" if self._options.has_delimiter else ""
        if code in _ENDS:
            return _ENDS[code] + end
        if record.version is None or code not in (redo.INSERT, redo.UPDATE, redo.DELETE):
            return None
        if code == redo.INSERT:
            text = self._insert(record, names)
        else:
            text = self._change(record, names)
        return text + end

    def _insert(self, record: Record, names: _Names) -> str:
        assert record.new is not None
        columns = ",".join(f'"{names.column(name)}"' for name in record.new)
        values = ",".join(self._value(record, names, *item) for item in record.new.items())
        return f"insert into {names.full_name}({columns}) values ({values})"

    def _change(self, record: Record, names: _Names) -> str:
        if record.code == redo.UPDATE:
            assert record.new is not None
            pairs = (
                f'"{names.column(name)}" = {self._value(record, names, name, value)}'
                for name, value in record.new.items()
            )
            text = f"update {names.full_name} set {', '.join(pairs)}"
        else:
            text = f"delete from {names.full_name}"
        conditions = []
        if not record.rollback and record.where:
            conditions.append(self._where(record, names))
        if record.rollback or self._options.has_row_ids:
            conditions.append(f"ROWID = '{record.row_id}'")
        return f"{text} where {' and '.join(conditions)}" if conditions else text

    def _where(self, record: Record, names: _Names, alias: str = "") -> str:
        assert record.old is not None
        parts = []
        for name in record.where:
            value = record.old[name]
            column = f'{alias}"{names.column(name)}"'
            if value is None:
                parts.append(f"{column} IS NULL")
            else:
                parts.append(f"{column} = {self._literal(names, name, value)}")
        return " and ".join(parts)

    def _value(self, record: Record, names: _Names, name: str, value: Value) -> str:
        if record.has_empty_lobs:
            kind = names.kind(name)
            if kind in LOBS:
                return "EMPTY_BLOB()" if kind == "BLOB" else "EMPTY_CLOB()"
            if kind == "JSON":
                return "/* JSON */ EMPTY_BLOB()"
        return self._literal(names, name, value)

    def _literal(self, names: _Names, name: str, value: Value) -> str:
        column = names.declaration(name)
        if names.is_mismatch:
            return internal_literal(column, value)
        return literal(column, value, self._nls)

    def _fill(self, record: Record, names: _Names, text: str) -> str:
        aliased = self._where(record, names, "a.")
        text = text.replace(lobs.TABLE, names.full_name, 1)
        text = text.replace(lobs.WHERE, self._where(record, names), 1)
        text = text.replace(lobs.ALIASED, aliased, 1)
        return text.replace(lobs.QUOTED, aliased.replace("'", "''"), 1)


@dataclass(slots=True)
class _Names:
    """Names that a session's dictionary has for a record."""

    owner: str | None
    table: str | None
    segment: str | None
    version: TableVersion | None
    is_mismatch: bool = False

    @property
    def full_name(self) -> str:
        return f'"{self.owner}"."{self.table}"'

    def declaration(self, name: str) -> Column:
        assert self.version is not None
        return self.version.column(name)

    def kind(self, name: str) -> str:
        return self.declaration(name).kind

    def column(self, name: str) -> str:
        if not self.is_mismatch:
            return name
        assert self.version is not None
        names = [column.name for column in self.version.columns]
        return f"COL {names.index(name) + 1}"


def _version_number(record: Record) -> int:
    if record.version is None:
        return 1 if record.named is not None else 0
    return record.version.number


def split(text: str) -> list[str | None]:
    """Return pieces of at most 4000 bytes, cut between characters only."""
    if len(text) * 4 <= PIECE_BYTES or len(text.encode()) <= PIECE_BYTES:
        return [text]
    data, pieces, at = text.encode(), [], 0
    while at < len(data):
        end = min(at + PIECE_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(data[at:end].decode())
        at = end
    return list(pieces)


def as_dicts(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return rows by column name."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]
