"""LOBs, XML documents, JSON and long strings: changes that LogMiner shows in several rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sim_oracle import redo
from sim_oracle.columns import INLINE_MAX, LOBS, Column, Row, Value
from sim_oracle.literals import quote
from sim_oracle.redo import Record

if TYPE_CHECKING:
    from sim_oracle.tables import Segment, Table
    from sim_oracle.transactions import Done, Transaction

CHUNK = 1000  # characters of a piece of a long string
NOT_EXECUTABLE = "LOB sql_redo not re-executable"
XML_INFO = "XML sql_redo not re-executable"
UNSUPPORTED_INFO = "Object or Data type Unsupported"
DECLARE = (
    "DECLARE \n loc_c CLOB; \n buf_c VARCHAR2(6156); \n loc_b BLOB; \n buf_b RAW(6156); \n"
    " loc_nc NCLOB; \n buf_nc NVARCHAR2(6156); \n"
)
# Marks of a text that the mining session replaces: table, conditions.
TABLE, WHERE, ALIASED, QUOTED = "\x01T", "\x01W", "\x01A", "\x01Q"
_SUFFIXES = {"CLOB": "c", "NCLOB": "nc", "BLOB": "b"}
Writer = Callable[[], Record]


def is_long(column: Column, value: Value) -> bool:
    """Return whether a VARCHAR2 value is too long for the statement."""
    if column.kind != "VARCHAR2" or not isinstance(value, str):
        return False
    return len(value.encode()) > INLINE_MAX


def is_piece(table: Table, name: str, value: Value) -> bool:
    """Return whether a new value of a column comes in rows of its own."""
    column = table.version.column(name)
    return column.kind in (*LOBS, "XMLTYPE") or is_long(column, value)


def needs_pieces(table: Table, row: Row) -> bool:
    """Return whether an insert needs more than one row of the log."""
    return any(
        column.kind in (*LOBS, "XMLTYPE", "JSON") or is_long(column, row.get(column.name))
        for column in table.version.columns
    )


def make_unsupported(transaction: Transaction, table: Table, segment: Segment) -> Record:
    """Return the row that stands for a change that LogMiner cannot show."""
    return transaction.record(
        redo.UNSUPPORTED, table, segment, text="Unsupported", status=2, info=UNSUPPORTED_INFO
    )


def _tie(transaction: Transaction, done: Done, segment: Segment) -> None:
    """Write the INTERNAL row that has the row id of the statement before it."""
    transaction.write(transaction.record(redo.INTERNAL, done.table, segment, row_id=done.row_id))


def write_insert(
    transaction: Transaction, done: Done, segment: Segment, names: tuple[str, ...]
) -> None:
    """Write an insert with LOBs: a row with empty ones, then their values."""
    table, row = done.table, done.after
    assert row is not None
    columns = [table.version.column(name) for name in names]
    is_basic = table.lob_storage == "BASICFILE"
    inline: Row = {}
    outside: list[tuple[Column, Value]] = []
    for column in columns:
        value = row[column.name]
        if column.kind in LOBS and isinstance(value, str | bytes) and len(value) > table.lob_inline:
            outside.append((column, value))
        elif column.kind in LOBS or column.kind == "JSON":
            inline[column.name] = value
    if is_basic:  # storage out of the row is written first, and the row does not name the column
        _write_outside(transaction, done, segment, outside, is_basic)
    left_out = {column.name for column, _ in outside} if is_basic else set()
    base: Row = {
        column.name: row[column.name]
        for column in columns
        if column.kind != "XMLTYPE" and column.name not in left_out
    }
    transaction.write(
        transaction.record(redo.INSERT, table, segment, new=base, has_empty_lobs=True)
    )
    _tie(transaction, done, segment)
    for column in columns:
        value = row[column.name]
        if column.kind == "XMLTYPE" and isinstance(value, str):
            write_xml(transaction, done, segment, column, value)
        elif is_long(column, value):
            assert isinstance(value, str)
            _write_long(transaction, done, segment, column, value)
    if not is_basic:
        _write_outside(transaction, done, segment, outside, is_basic)
    if inline:
        where = table.version.logged_names(None)
        transaction.write(
            transaction.record(
                redo.UPDATE,
                table,
                segment,
                row_id=done.row_id,
                old=row,
                new=inline,
                where=where,
            )
        )
        empty: Row = {name: _empty(table.version.column(name)) for name in inline}
        done.undo.insert(0, _make_undo(transaction, done, segment, empty))


def _empty(column: Column) -> Value:
    return b"" if column.kind in ("BLOB", "JSON") else ""


def _make_undo(transaction: Transaction, done: Done, segment: Segment, new: Row) -> Writer:
    def write() -> Record:
        return transaction.record(
            redo.UPDATE,
            done.table,
            segment,
            row_id=done.row_id,
            old=done.before or done.after,
            new=new,
            rollback=1,
            has_empty_lobs=True,
        )

    return write


def write_update(
    transaction: Transaction, done: Done, segment: Segment, name: str, value: Value
) -> None:
    """Write a new value of a LOB column: inline as an UPDATE, else as writes and a trim.

    A long string has rows of its own, too.
    """
    column = done.table.version.column(name)
    if isinstance(value, str) and is_long(column, value):
        _write_long(transaction, done, segment, column, value)
        return
    if column.kind == "XMLTYPE":
        if isinstance(value, str):
            write_xml(transaction, done, segment, column, value, is_update=True)
        return
    assert done.before is not None
    if isinstance(value, str | bytes) and len(value) > done.table.lob_inline:
        is_basic = done.table.lob_storage == "BASICFILE"
        _write_outside(transaction, done, segment, [(column, value)], is_basic, trims=True)
        return
    where = done.table.version.logged_names(None)
    transaction.write(
        transaction.record(
            redo.UPDATE,
            done.table,
            segment,
            row_id=done.row_id,
            old=done.after,
            new={name: value},
            where=where,
        )
    )
    old: Row = {name: done.before[name]}
    done.undo.insert(0, _make_undo(transaction, done, segment, old))


def _write_outside(
    transaction: Transaction,
    done: Done,
    segment: Segment,
    values: list[tuple[Column, Value]],
    is_basic: bool,
    *,
    trims: bool = False,
) -> None:
    """Write LOB values out of the row; chunks of several columns may interleave."""
    if not values:
        return
    size = done.table.lob_chunk
    steps = [list(_steps(column, value, size, is_basic, trims)) for column, value in values]
    layout = done.table.lob_layout
    if layout == "block":
        rounds = [
            (column, step, number == 0)
            for number in range(max(map(len, steps)))
            for (column, _), one in zip(values, steps, strict=True)
            for step in one[number : number + 1]
        ]
        for column, (code, text), is_first in rounds:
            write_block(transaction, done, segment, column, code, text, is_first=is_first)
    else:
        for (column, _), one in zip(values, steps, strict=True):
            write_locator(transaction, done, segment, column)
            for code, text in one:
                _write_piece(transaction, done, segment, code, f"\n{text}\n")
            _tie(transaction, done, segment)
    for column, _ in values:
        before = (done.before or {}).get(column.name)
        old: Row = {column.name: _empty(column) if done.before is None else before}
        done.undo.insert(0, _make_undo(transaction, done, segment, old))


def _steps(
    column: Column, value: Value, size: int, is_basic: bool, trims: bool
) -> Iterator[tuple[int, str]]:
    """Yield code and text of the writes of a whole value, and of the trim."""
    assert isinstance(value, str | bytes)
    suffix = _SUFFIXES[column.kind]
    trim = redo.LOB_TRIM, f"  dbms_lob.trim(loc_{suffix}, {len(value)});"
    if trims and is_basic:
        yield redo.LOB_TRIM, f"  dbms_lob.trim(loc_{suffix}, 0);"
    for at in range(0, len(value), size):
        yield redo.LOB_WRITE, write_text(suffix, value[at : at + size], at + 1)
    if trims and not is_basic:
        yield trim


def write_text(suffix: str, data: str | bytes, offset: int) -> str:
    """Return the text of a LOB write."""
    shown = quote(data) if isinstance(data, str) else f"HEXTORAW('{data.hex()}')"
    return (
        f" buf_{suffix} := {shown}; \n"
        f"  dbms_lob.write(loc_{suffix}, {len(data)}, {offset}, buf_{suffix});"
    )


def write_locator(transaction: Transaction, done: Done, segment: Segment, column: Column) -> None:
    """Write the row that opens a LOB column in the layout of 12c to 21c."""
    transaction.write(
        transaction.record(
            redo.LOCATOR,
            done.table,
            segment,
            old=done.after,
            where=done.table.version.logged_names(None),
            text=f"{DECLARE}BEGIN\n{_select(column)}",
            status=2,
            info=NOT_EXECUTABLE,
        )
    )


def _select(column: Column) -> str:
    """Return the locator's select; the mining session replaces the mark by the condition."""
    suffix = _SUFFIXES[column.kind]
    return f' select "{column.name}" into loc_{suffix} from {TABLE} where {WHERE} for update;\n'


def _write_piece(
    transaction: Transaction, done: Done, segment: Segment, code: int, text: str
) -> None:
    transaction.write(
        transaction.record(
            code, done.table, segment, text=text, status=2, info=NOT_EXECUTABLE, is_final=True
        )
    )


def write_block(
    transaction: Transaction,
    done: Done,
    segment: Segment,
    column: Column,
    code: int,
    text: str,
    *,
    has_row_id: bool = False,
    is_first: bool = True,
) -> None:
    """Write a LOB row as a whole block; an INTERNAL row is before a statement's first one."""
    row_id = done.row_id if has_row_id else None
    if is_first:
        locator = transaction.record(redo.LOCATOR, done.table, segment, row_id=row_id)
        locator.operation = "INTERNAL"
        transaction.write(locator)
    transaction.write(
        transaction.record(
            code,
            done.table,
            segment,
            row_id=row_id if code != redo.LOB_ERASE else None,
            old=done.after,
            where=done.table.version.logged_names(None),
            text=f"{DECLARE} e_len NUMBER; \nBEGIN\n{_select(column)}\n{text}\nEND;",
            status=2,
            info=NOT_EXECUTABLE,
        )
    )
    if not has_row_id:
        _tie(transaction, done, segment)


def edit_lob(
    transaction: Transaction,
    table: Table,
    row_id: str,
    name: str,
    *,
    write: tuple[int, str | bytes] | None = None,
    erase: tuple[int, int] | None = None,
) -> None:
    """Change a part of a LOB: write at an offset from 1, or erase (length, offset).

    The redo does not have the rest of the value.
    """
    from sim_oracle.transactions import Done

    column = table.version.column(name)
    suffix = _SUFFIXES[column.kind]
    before = transaction.lock(table, row_id)
    old = before[name]
    assert isinstance(old, str | bytes)
    blank = "\0" if isinstance(old, bytes) else " "
    filler: str | bytes = blank.encode() if isinstance(old, bytes) else blank
    if write is not None:
        offset, data = write
        code, text = redo.LOB_WRITE, write_text(suffix, data, offset)
    else:
        assert erase is not None
        length, offset = erase
        data = filler * length
        code = redo.LOB_ERASE
        text = f" e_len := {length}; \n  dbms_lob.erase(loc_{suffix}, e_len, {offset});"
    head, tail = old[: offset - 1], old[offset - 1 + len(data) :]
    value: Value = head + data + tail  # type: ignore[operator]
    after = {**before, name: value}
    done = Done("U", table, row_id, before, after)
    table.put(row_id, after)
    transaction.changes.append(done)
    segment = table.segment_at(row_id)
    write_block(transaction, done, segment, column, code, text, has_row_id=True)
    done.undo.append(_make_undo(transaction, done, segment, {name: old}))


def write_xml(
    transaction: Transaction,
    done: Done,
    segment: Segment,
    column: Column,
    value: str,
    *,
    is_update: bool = False,
) -> None:
    """Write the rows of an XML document: begin, write, end."""
    if is_update:
        text = f'update {TABLE} a set a."{column.name}" = XMLType(:1)  where {ALIASED}'
        info = "XML sql_redo needs assembly"
        body = f"XML_REDO := HEXTORAW('{value.encode().hex()}'):{len(value.encode())}"
    else:
        text = f'XML DOC BEGIN:  select "{column.name}" from {TABLE} where {WHERE}'
        info = XML_INFO
        body = f"XML_REDO := {quote(value)}\n amount: {len(value)}"
    where = done.table.version.logged_names(None)
    fields = {"row_id": done.row_id, "status": 2}
    table = done.table
    transaction.write(
        transaction.record(
            redo.XML_BEGIN,
            table,
            segment,
            text=text,
            info=info,
            old=done.after,
            where=where,
            **fields,
        )
    )
    transaction.write(
        transaction.record(
            redo.XML_WRITE, table, segment, text=body, info=XML_INFO, is_final=True, **fields
        )
    )
    transaction.write(transaction.record(redo.XML_END, table, segment, row_id=done.row_id))


def _write_long(
    transaction: Transaction, done: Done, segment: Segment, column: Column, value: str
) -> None:
    """Write the rows of a string over 4000 bytes."""
    name = column.name
    begin = (
        "DECLARE\n TempLob CLOB;\n buf_c   VARCHAR2(32767);\n Stmt    CLOB;\nBEGIN\n"
        " DBMS_LOB.CreateTemporary(TempLob, FALSE);\n"
        f" Stmt := 'update {TABLE} a set a.\"{name}\" = :{name} where {QUOTED}';';"
    )
    fields = {"row_id": done.row_id}
    table = done.table
    where = tuple(one for one in table.version.logged_names(None) if one != name)
    transaction.write(
        transaction.record(
            redo.LONG_BEGIN, table, segment, text=begin, old=done.after, where=where, **fields
        )
    )
    for at in range(0, len(value), CHUNK):
        piece = value[at : at + CHUNK]
        text = (
            f" buf_c := {quote(piece)}; \n"
            f"  dbms_lob.write(TempLob, {len(piece)}, {at + 1}, buf_c);\n"
        )
        transaction.write(
            transaction.record(redo.LONG_WRITE, table, segment, text=text, is_final=True, **fields)
        )
    transaction.write(transaction.record(redo.LONG_END, table, segment, **fields))
