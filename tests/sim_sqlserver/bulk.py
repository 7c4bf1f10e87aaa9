"""Bulk load: INSERT BULK, then a message with metadata and rows (MS-TDS 2.2.6.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim_sqlserver import ddl
from sim_sqlserver.ddl_parse import Name, Reader
from sim_sqlserver.decode import Cursor, Value, read_type
from sim_sqlserver.decode import Reader as ValueReader
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Statement
from sim_sqlserver.names import quote_name

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

CHUNK_BYTES = 1 << 18
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(slots=True)
class BulkLoad:
    """Content of INSERT BULK.

    Attributes:
        options: Upper-case words of WITH.
    """

    table: Name
    columns: list[str]
    options: frozenset[str]

    @classmethod
    def parse(cls, statement: Statement) -> BulkLoad:
        """Read INSERT BULK t (a int, ..) WITH (..)."""
        reader = Reader(statement.text, statement.tokens)
        reader.need("INSERT", "BULK")
        table = reader.name()
        columns: list[str] = []
        if reader.take("("):
            while True:
                columns.append(reader.identifier())
                _skip_definition(reader)
                if not reader.take(","):
                    break
            reader.need(")")
        words: frozenset[str] = frozenset()
        if reader.take("WITH"):
            start = reader.at
            reader.read_parenthesised()
            words = frozenset(t.upper for t in statement.tokens[start : reader.at] if t.upper)
        return cls(table, columns, words)


def _skip_definition(reader: Reader) -> None:
    depth = 0
    while not reader.is_done:
        mark = reader.mark()
        if depth == 0 and mark in (",", ")"):
            return
        depth += {"(": 1, ")": -1}.get(mark, 0)
        reader.at += 1


def load(session: Session, body: bytes) -> int:
    """Write the rows of a bulk load's message; return how many there were."""
    bulk = session.bulk
    session.bulk = None
    if bulk is None:
        raise SqlError(4022, "Bulk load data was expected but not sent.")
    cursor = Cursor(body)
    names, readers = read_metadata(cursor)
    number = ddl.table_id(session, bulk.table)
    table = ddl.qualify(session, bulk.table)
    columns = [ddl.column_spelling(session, number, name) for name in names]
    identity = {c.name for c in session.columns_of(*_parts(session, bulk.table)) if c.is_identity}
    keeps = "KEEP_IDENTITY" in bulk.options or session.identity_table == number
    kept = [place for place, name in enumerate(columns) if keeps or name not in identity]
    listed = ", ".join(quote_name(columns[place]) for place in kept)
    statement = f"copy {table} ({listed}) from stdin"
    with session.statement(writes=True, needs_block=True):
        _without_checks(session, bulk, number)
        rows = session.backend.copy_in(statement, encode_lines(cursor, readers, kept))
        session.backend.run("set local session_replication_role = origin; set local sim.bulk = '0'")
        session.rows(f"select sim.check_keys({number})")
        if keeps and identity:
            session.rows(f"select sim.bump_identity({number})")
    return rows


def _parts(session: Session, name: Name) -> tuple[str, str]:
    return session.spelling(name[0] or "dbo"), session.spelling(name[1])


def _without_checks(session: Session, bulk: BulkLoad, number: int) -> None:
    """Let triggers and foreign keys rest, unless the options want them."""
    if "FIRE_TRIGGERS" not in bulk.options:
        session.backend.run("set local sim.bulk = '1'")
    if "CHECK_CONSTRAINTS" in bulk.options:
        return
    # Without foreign keys, PostgreSQL checks the keys as always.
    if session.rows(f"select sim.distrust({number})")[0][0]:
        session.backend.run("set local session_replication_role = replica")


def read_metadata(cursor: Cursor) -> tuple[list[str], list[ValueReader]]:
    """Read COLMETADATA; return the columns' names and the readers of their values."""
    if cursor.byte() != 0x81:
        raise SqlError(4804, "Premature end-of-message while reading the bulk load's metadata.")
    names, readers = [], []
    for _ in range(cursor.short()):
        cursor.take(6)
        sql_type, read = read_type(cursor)
        if sql_type.name in ("text", "ntext", "image"):
            for _ in range(cursor.byte()):
                cursor.text(cursor.short())
            read = _with_pointer(read)
        names.append(cursor.text(cursor.byte()))
        readers.append(read)
    return names, readers


def _with_pointer(read: ValueReader) -> ValueReader:
    def read_value(cursor: Cursor) -> Value:
        size = cursor.byte()
        if size == 0:
            return None
        cursor.take(size + 8)
        return read(cursor)

    return read_value


def encode_lines(cursor: Cursor, readers: list[ValueReader], kept: list[int]) -> Iterator[bytes]:
    """Yield the rows as lines for COPY, many at a time."""
    lines: list[str] = []
    size = 0
    is_all = kept == list(range(len(readers)))
    data, end = cursor.data, len(cursor.data)
    while cursor.at < end:
        token = data[cursor.at]
        cursor.at += 1
        if token == 0xD1:
            values = [read(cursor) for read in readers]
        elif token == 0xD2:
            values = _read_compressed(cursor, readers)
        elif token == 0xFD:
            break
        else:
            raise SqlError(4804, f"unexpected token {token:#x} in a bulk load")
        if not is_all:
            values = [values[place] for place in kept]
        line = "\t".join([_field(value) for value in values])
        lines.append(line)
        size += len(line)
        if size > CHUNK_BYTES:
            yield ("\n".join(lines) + "\n").encode()
            lines, size = [], 0
    if lines:
        yield ("\n".join(lines) + "\n").encode()


def _read_compressed(cursor: Cursor, readers: list[ValueReader]) -> list[Value]:
    bits = cursor.take((len(readers) + 7) // 8)
    return [
        None if bits[place // 8] >> (place % 8) & 1 else read(cursor)
        for place, read in enumerate(readers)
    ]


def _field(value: Value) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, str):
        if "\0" in value:
            raise SqlError(2628, "The simulator cannot store the character 0.")
        return value.translate(_ESCAPES)
    if isinstance(value, bytes):
        return "\\\\x" + value.hex()
    if isinstance(value, float):
        return repr(value)
    return format(value, "f") if not isinstance(value, int) else str(value)
