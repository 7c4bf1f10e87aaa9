"""Columns of a result: their names and SQL Server's types."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim_sqlserver.encode import Encoder, encoder
from sim_sqlserver.metadata import Column
from sim_sqlserver.sqltypes import MAX, SqlType, parse_type

_BY_OID = {
    16: SqlType("bit"), 21: SqlType("smallint"), 23: SqlType("int"), 20: SqlType("bigint"),
    700: SqlType("real"), 701: SqlType("float"), 1082: SqlType("date"),
    1083: SqlType("time", scale=7), 1114: SqlType("datetime2", scale=7),
    1184: SqlType("datetimeoffset", scale=7), 2950: SqlType("uniqueidentifier"),
    17: SqlType("varbinary", length=8000), 26: SqlType("bigint"),
    19: SqlType("nvarchar", length=128),
}  # fmt: skip
_OPEN_DECIMAL = SqlType("decimal", precision=38, scale=6)
_UNKNOWN_TEXT = SqlType("nvarchar", length=4000)
Rows = Callable[[str], list[tuple[Any, ...]]]


class ColumnTypes:
    """Types of tables' columns in a database, until DDL changes them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Column] = {}
        self._version = -1
        self._lock = threading.Lock()
        self._guid = 0

    def find(self, table: int, number: int, version: int, rows: Rows) -> Column | None:
        """Return a table's column; None if it has none of that number."""
        with self._lock:
            if version != self._version:
                self._known.clear()
                self._version = version
        if (table, number) not in self._known:
            for place, column in read_columns(table, rows):
                self._known[table, place] = column
        return self._known.get((table, number))

    def guid(self, rows: Rows) -> int:
        """Return PostgreSQL's number of uniqueidentifier."""
        if not self._guid:
            self._guid = int(rows("select 'sim.uniqueidentifier'::regtype::oid::int8")[0][0])
        return self._guid


def read_columns(table: int, rows: Rows) -> list[tuple[int, Column]]:
    """Return a relation's columns with their numbers."""
    found = rows(
        "select a.attnum::int, a.attname, t.typname, t.typtype::text, t.oid::int8, a.atttypmod, "
        "coalesce(c.collation_name, ''), a.attnotnull, a.attidentity::text <> '', "
        "a.attgenerated::text <> '' from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "left join sim.collations c on c.table_id = a.attrelid and c.column_number = a.attnum "
        f"where a.attrelid = {table}::oid and a.attnum > 0 and not a.attisdropped order by 1"
    )
    columns = []
    for number, name, type_name, kind, oid, modifier, collation, fixed, identity, computed in found:
        if kind == "d":
            parsed = parse_type(str(type_name))
            sql_type = SqlType(
                parsed.name, parsed.length, parsed.precision, parsed.scale, str(collation)
            )
        elif type_name == "uniqueidentifier":
            sql_type = SqlType("uniqueidentifier")
        else:
            sql_type = postgres_result_type(int(oid), int(modifier))
        columns.append((int(number), Column(str(name), sql_type, not fixed, identity, computed)))
    return columns


def postgres_result_type(oid: int, modifier: int) -> SqlType:
    """Return the type of a result whose type is known in PostgreSQL alone."""
    if oid == 1700:
        if modifier < 4:
            return _OPEN_DECIMAL
        return SqlType(
            "decimal", precision=(modifier - 4) >> 16 & 0xFFFF, scale=(modifier - 4) & 0x7FF
        )
    return _BY_OID.get(oid, _UNKNOWN_TEXT)


def describe(
    result: Any,
    known: Mapping[int, SqlType],
    unnamed: frozenset[int],
    find: Callable[[int, int], Column | None],
    guid: int,
) -> list[tuple[Column, Encoder]]:
    """Return the columns of a result of libpq with the encoders of their values."""
    columns = []
    for place in range(result.nfields):
        oid = result.ftype(place)
        name = (result.fname(place) or b"").decode()
        name = "" if name == "?column?" or place in unnamed else name
        table, number = result.ftable(place), result.ftablecol(place)
        source = find(table, number) if table and number > 0 else None
        if place in known:
            column = Column(name, known[place])
        elif source is not None:
            column = Column(
                name, source.type, source.is_nullable, source.is_identity, source.is_computed
            )
        elif oid == guid:
            column = Column(name, SqlType("uniqueidentifier"))
        else:
            column = Column(name, postgres_result_type(oid, result.fmod(place)))
        columns.append((column, encoder(column.type, oid)))
    return columns


def encode_rows(result: Any, encoders: Sequence[Encoder]) -> bytes:
    """Return the ROW tokens of a result's rows."""
    count = result.ntuples
    get = result.get_value
    parts = [b"\xd1"] * count
    columns = [
        [encode(get(row, place)) for row in range(count)] for place, encode in enumerate(encoders)
    ]
    return b"".join([b"".join(row) for row in zip(parts, *columns, strict=True)])


def fit_columns(
    columns: Sequence[tuple[Column, Encoder]], result: Any
) -> list[tuple[Column, Encoder]]:
    """Return the columns, where a length or scale is open with that of the first rows."""
    out = []
    for place, (column, encode) in enumerate(columns):
        limit = 4000 if column.type is _UNKNOWN_TEXT else 8000
        is_open = column.type is _UNKNOWN_TEXT or column.type == _BY_OID[17]
        values = [result.get_value(row, place) or b"" for row in range(result.ntuples)]
        if is_open and any(len(value) > limit for value in values):
            wide = Column(column.name, SqlType(column.type.name, length=MAX), column.is_nullable)
            out.append((wide, encoder(wide.type, result.ftype(place))))
        elif column.type is _OPEN_DECIMAL and result.ftype(place) == 1700:
            scales = [value[7] + (value[6] << 8) for value in values if value]
            exact = replace(_OPEN_DECIMAL, scale=min(max(scales, default=0), 38))
            out.append((replace(column, type=exact), encoder(exact, 1700)))
        else:
            out.append((column, encode))
    return out
