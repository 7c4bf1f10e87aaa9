"""Parse TABLE_MAP events, and derive relations from them or check relations against them.

With binlog_row_metadata=FULL the event has names, signedness, character sets, members and keys, and
`relation_of` derives the relation. Otherwise the caller provides one, and `check_relation` refuses
it if the event does not fit: a name is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.codec.mysql.binlog_outcome import Reason, binlog_error
from penstock.codec.mysql.charsets import charset_named, decoder, label_charset
from penstock.codec.mysql.decimals import decimal_shape_is_valid
from penstock.codec.mysql.malformed import Malformed
from penstock.codec.mysql.temporals import FSP_MAX
from penstock.codec.mysql.types import (
    CHARACTER,
    NUMERIC,
    TypeCode,
    WireColumn,
    agrees,
    needs_schema,
    neutral_type,
    type_text,
)
from penstock.model import Column, Identity, PenstockError, Relation

COLUMN_COUNT_MAX = 4096
_STRING_LIKE = (TypeCode.STRING, TypeCode.VAR_STRING)
_ONE_BYTE = (
    TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.BLOB, TypeCode.BLOB_COMPRESSED, TypeCode.GEOMETRY,
    TypeCode.JSON, TypeCode.VECTOR, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP,
)  # fmt: skip
_TWO_BYTES = (TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED, TypeCode.BIT, TypeCode.DECIMAL)
_LENGTH_BYTES = (1, 2, 3, 4)


class ShapeMismatch(PenstockError):
    """A table in the binlog is not the table whose definition is known.

    Names, types and keys cannot be derived from the binlog alone, so the definition must be of the
    same moment. `fields` has `table` and, where one differs, `column`.
    """

    code = "DC61"
    retry = "operator"


class TypeRefused(PenstockError):
    """A column has a type that penstock does not support; `fields` has `table` and `column`."""

    code = "DC62"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMap:
    """Contents of a TABLE_MAP event.

    Attributes:
        body: of the event, after its head, without checksum.
        key: indexes of the primary key in key order; None if the event does not have them.
        key_prefixes: per key column the characters that count, 0 for all.
    """

    table_id: int
    schema: str
    name: str
    columns: tuple[WireColumn, ...]
    key: tuple[int, ...] | None
    key_prefixes: tuple[int, ...]
    flags: int
    body: bytes

    @property
    def has_names(self) -> bool:
        """Return whether the server wrote full metadata."""
        return all(column.name is not None for column in self.columns)


class _Body:
    """Reader of a body's parts. Raises Malformed if the body ends early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def count_left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.count_left():
            raise Malformed
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def length(self) -> int:
        first = self.number(1)
        if first < 0xFB:
            return first
        size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
        if size is None:
            raise Malformed
        return self.number(size)

    def text(self) -> str:
        size = self.number(1)
        text = self.take(size).decode()
        if self.number(1):
            raise Malformed
        return text

    def lengths(self) -> list[int]:
        numbers = []
        while self.count_left():
            numbers.append(self.length())
        return numbers


def table_map(body: bytes, *, is_mariadb: bool, server_version: str = "") -> TableMap:
    """Read a TABLE_MAP event's body (the event without its head of 19 bytes and its checksum).

    is_mariadb, server_version: the server that wrote it; see `Decoder`. An empty version means a
    new server. Raises BinlogBroken (reason event_body), and TypeRefused for a type code that no
    known server has.
    """
    try:
        year = True if is_mariadb else _year_is_numeric(server_version)
        return _table_map(_Body(bytes(body)), is_mariadb, year)
    except (Malformed, ValueError) as error:
        raise binlog_error(Reason.EVENT_BODY, 0) from error


def _year_is_numeric(mysql_version: str) -> bool | None:
    """Return whether this MySQL uses a signedness bit for a YEAR column; None if unknown.

    8.0.15 does not, 8.0.29 and 9.7 do: seen in their binlogs.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", mysql_version)[:3])
    if not numbers or numbers >= (8, 0, 29):
        return True
    return False if numbers <= (8, 0, 15) else None


def _table_map(body: _Body, is_mariadb: bool, year: bool | None) -> TableMap:
    table_id, flags = body.number(6), body.number(2)
    schema, name = body.text(), body.text()
    count = body.length()
    if not 1 <= count <= COLUMN_COUNT_MAX:
        raise Malformed
    codes = body.take(count)
    metadata = _Body(body.take(body.length()))
    columns = [_column(code, metadata, f"{schema}.{name}") for code in codes]
    if metadata.count_left():
        raise Malformed
    nullable = body.take((count + 7) // 8)
    columns = [
        replace(column, nullable=bool(nullable[index >> 3] >> (index & 7) & 1))
        for index, column in enumerate(columns)
    ]
    optional: dict[int, bytes] = {}
    while body.count_left():
        kind = body.number(1)
        optional[kind] = body.take(body.length())
    key, prefixes = _key(optional, count)
    return TableMap(
        table_id=table_id,
        schema=schema,
        name=name,
        columns=tuple(_describe(columns, optional, is_mariadb, year)),
        key=key,
        key_prefixes=prefixes,
        flags=flags,
        body=body.data,
    )


def _column(code: int, metadata: _Body, table: str) -> WireColumn:
    try:
        kind = TypeCode(code)
    except ValueError as error:
        raise TypeRefused(
            f"column type {code} of the binlog is not known, in {table}",
            hint="Leave the table out of the pipeline, or report which server wrote it.",
            table=table,
        ) from error
    if kind in _ONE_BYTE:
        number = metadata.number(1)
        if kind in (TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP):
            if number > FSP_MAX:
                raise Malformed
            return WireColumn(code=kind, precision=number)
        expected = {TypeCode.FLOAT: (4,), TypeCode.DOUBLE: (8,)}.get(kind, _LENGTH_BYTES)
        if number not in expected:
            raise Malformed
        return WireColumn(code=kind, size=number)
    if kind in _TWO_BYTES:
        low, high = metadata.number(1), metadata.number(1)
        if kind is TypeCode.BIT:
            if low > 7 or not 1 <= high * 8 + low <= 64:
                raise Malformed
            return WireColumn(code=kind, size=high * 8 + low)
        if kind is TypeCode.DECIMAL:
            if not decimal_shape_is_valid(low, high):
                raise Malformed
            return WireColumn(code=kind, precision=low, scale=high)
        return WireColumn(code=kind, size=high << 8 | low)
    if kind in (TypeCode.ENUM, TypeCode.SET, *_STRING_LIKE):
        return _string_column(kind, metadata.number(1), metadata.number(1))
    return WireColumn(code=kind)


def _string_column(kind: TypeCode, first: int, second: int) -> WireColumn:
    """Return a STRING column. One byte holds its real type together with the upper bits of its
    length.
    """
    real, size = kind, second
    if kind in _STRING_LIKE and first:
        if first & 0x30 == 0x30:
            real = TypeCode(first)
        else:
            real = TypeCode(first | 0x30)
            size |= (first & 0x30 ^ 0x30) << 4
    elif first:
        real = TypeCode(first)
    if real is TypeCode.ENUM and size in (1, 2):
        return WireColumn(code=real, size=size)
    if real is TypeCode.SET and size in (1, 2, 3, 4, 8):
        return WireColumn(code=real, size=size)
    if real in _STRING_LIKE:
        return WireColumn(code=TypeCode.STRING, size=size)
    raise Malformed


# --- optional metadata

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_VALUES, _ENUM_VALUES = range(1, 7)
_GEOMETRY, _KEY, _KEY_WITH_PREFIX, _MEMBER_DEFAULT, _MEMBER_CHARSET, _VISIBILITY = range(7, 13)
_VECTOR_DIMENSION = 13
_MEMBERS = frozenset((TypeCode.ENUM, TypeCode.SET))


def _key(optional: dict[int, bytes], count: int) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the primary key. An event with names and without a key means that there is none."""
    if _KEY in optional:
        key = _Body(optional[_KEY]).lengths()
        prefixes = [0] * len(key)
    elif _KEY_WITH_PREFIX in optional:
        pairs = _Body(optional[_KEY_WITH_PREFIX]).lengths()
        if len(pairs) % 2:
            raise Malformed
        key, prefixes = pairs[::2], pairs[1::2]
    else:
        return (() if _NAMES in optional else None), ()
    if any(index >= count for index in key) or len(set(key)) != len(key):
        raise Malformed
    return tuple(key), tuple(prefixes)


def _describe(
    columns: list[WireColumn], optional: dict[int, bytes], is_mariadb: bool, year: bool | None
) -> list[WireColumn]:
    """Return the columns with the contents of the optional fields."""
    signed = _signedness(optional.get(_SIGNEDNESS), columns, year)
    columns = [
        one if unsigned is None else replace(one, unsigned=unsigned)
        for one, unsigned in zip(columns, signed, strict=True)
    ]
    visible = _bits(optional.get(_VISIBILITY), columns, lambda _: True)
    columns = [replace(one, visible=bit) for one, bit in zip(columns, visible, strict=True)]
    # The servers do not agree on what a character column is.
    counted = CHARACTER | {TypeCode.GEOMETRY if is_mariadb else TypeCode.VECTOR}
    kinds = (_DEFAULT_CHARSET, _COLUMN_CHARSET)
    columns = _with_collations(columns, optional, kinds, counted)
    kinds = (_MEMBER_DEFAULT, _MEMBER_CHARSET)
    columns = _with_collations(columns, optional, kinds, _MEMBERS)
    if _NAMES in optional:
        names = _Body(optional[_NAMES])
        columns = [replace(one, name=names.take(names.number(1)).decode()) for one in columns]
        if names.count_left():
            raise Malformed
    for code, kind in ((TypeCode.SET, _SET_VALUES), (TypeCode.ENUM, _ENUM_VALUES)):
        if kind in optional:
            columns = _with_labels(columns, code, _Body(optional[kind]))
    for code, kind, name in (
        (TypeCode.GEOMETRY, _GEOMETRY, "geometry"),
        (TypeCode.VECTOR, _VECTOR_DIMENSION, "dimension"),
    ):
        if kind in optional:
            numbers = iter(_Body(optional[kind]).lengths())
            columns = [
                replace(one, **{name: next(numbers, None)}) if one.code is code else one  # type: ignore[arg-type]
                for one in columns
            ]
    if any((one.geometry or 0) > 7 for one in columns):
        raise Malformed
    return columns


def _signedness(
    data: bytes | None, columns: list[WireColumn], year: bool | None
) -> list[bool | None]:
    """Return whether each number is unsigned; None for other columns and if it is unknown.

    `year` is as in `_year_is_numeric`; if both readings are possible, the result is where they
    agree. A YEAR is always unsigned, whatever its bit says.
    """
    if data is None:
        return [None] * len(columns)
    count = sum(column.code in NUMERIC for column in columns)
    if year is None and count > 8 * len(data):
        year = False
    others = NUMERIC - {TypeCode.YEAR}
    readings = []
    if year is not False:
        readings.append(_bits(data, columns, lambda one: one.code in NUMERIC))
    if year is not True:
        readings.append(_bits(data, columns, lambda one: one.code in others))
    return [
        True if column.code is TypeCode.YEAR else found[0] if len(set(found)) == 1 else None
        for column, found in zip(columns, zip(*readings, strict=True), strict=True)
    ]


def _bits(
    data: bytes | None, columns: list[WireColumn], counts: Callable[[WireColumn], bool]
) -> list[bool | None]:
    """Return one bit, most significant first, for each column that `counts` accepts; None for the
    others.
    """
    bits: list[bool | None] = []
    at = 0
    for column in columns:
        if data is None or not counts(column):
            bits.append(None)
            continue
        if at >> 3 >= len(data):
            raise Malformed
        bits.append(bool(data[at >> 3] << (at & 7) & 0x80))
        at += 1
    return bits


def _with_collations(
    columns: list[WireColumn],
    optional: dict[int, bytes],
    kinds: tuple[int, int],
    codes: frozenset[TypeCode],
) -> list[WireColumn]:
    """Set the collations of the columns with these codes, from either of the two forms."""
    counted = [index for index, column in enumerate(columns) if column.code in codes]
    default_kind, column_kind = kinds
    if column_kind in optional:
        collations = _Body(optional[column_kind]).lengths()
    elif default_kind in optional:
        default, *pairs = _Body(optional[default_kind]).lengths()
        others = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if others and max(others) >= len(counted):
            raise Malformed
        collations = [others.get(place, default) for place in range(len(counted))]
    else:
        return columns
    if len(collations) != len(counted):
        raise Malformed
    out = list(columns)
    for index, collation in zip(counted, collations, strict=True):
        out[index] = replace(out[index], collation=collation)
    return out


def _with_labels(columns: list[WireColumn], code: TypeCode, body: _Body) -> list[WireColumn]:
    out = []
    for column in columns:
        if column.code is code:
            labels = [body.take(body.length()) for _ in range(body.length())]
            charset = label_charset(column.charset or "utf8mb4")
            out.append(replace(column, labels=tuple(map(decoder(charset), labels))))
        else:
            out.append(column)
    if body.count_left():
        raise Malformed
    return out


# --- relations


def relation_of(
    table: TableMap, *, is_mariadb: bool, text_columns: Sequence[int] = ()
) -> Relation | None:
    """Return the relation that an event with full metadata describes; None if something is missing.

    Before images of a table with a key have the key, those of a table without one have all columns.
    text_columns: indexes of columns that are kept as text because of earlier values. Raises
    TypeRefused.
    """
    if not table.has_names or table.key is None:
        return None
    if any(_is_open(column, is_mariadb) for column in table.columns):
        return None
    columns = []
    for index, wire in enumerate(table.columns):
        refuse_type(table, wire, wire.name or "")
        text = type_text(wire)
        neutral = "string" if index in text_columns else neutral_type(text)
        columns.append(
            Column(name=wire.name or "", source_type=text, neutral=neutral, nullable=wire.nullable)
        )
    key = table.key if not any(table.key_prefixes) else ()
    return Relation(
        schema=table.schema,
        name=table.name,
        columns=tuple(columns),
        key=key,
        before=key or tuple(range(len(columns))),
        identity=Identity.DEFAULT if key else Identity.FULL,
    )


def _is_open(column: WireColumn, is_mariadb: bool) -> bool:
    """Return whether the event does not determine a column's type."""
    if column.code in NUMERIC:
        return column.unsigned is None
    if column.code in CHARACTER:
        return column.collation is None or needs_schema(column, is_mariadb)
    if column.code in _MEMBERS:
        return column.labels is None
    return needs_schema(column, is_mariadb)


def refuse_type(table: TableMap, column: WireColumn, name: str) -> None:
    """Raise TypeRefused for a type that is known and not supported."""
    if column.code is TypeCode.VECTOR:
        raise TypeRefused(
            f"column {name} of {table.schema}.{table.name} is a {type_text(column)}, which "
            "penstock does not support",
            hint="Leave the table out of the pipeline, or keep the vector in a json or blob "
            "column.",
            table=f"{table.schema}.{table.name}",
            column=name,
        )
    if column.charset is None and column.collation is not None:
        raise TypeRefused(
            f"column {name} of {table.schema}.{table.name} has the unknown collation "
            f"{column.collation}",
            hint="Show it with `select * from information_schema.collations where id = "
            f"{column.collation}` and report it.",
            table=f"{table.schema}.{table.name}",
            column=name,
        )


def check_relation(
    table: TableMap, relation: Relation, charsets: Sequence[str | None] = ()
) -> None:
    """Check that a relation fits this event's table.

    charsets: for each column the character set in the catalogue (None: not a character column);
    required if the event has none. Raises ShapeMismatch, TypeRefused.
    """
    place = f"{table.schema}.{table.name}"
    if (relation.schema, relation.name) != (table.schema, table.name):
        raise _mismatch(place, "", f"is bound as {relation.full_name}")
    if len(relation.columns) != len(table.columns):
        raise _mismatch(place, "", f"has {len(table.columns)} columns, not {len(relation.columns)}")
    for index, (wire, column) in enumerate(zip(table.columns, relation.columns, strict=True)):
        refuse_type(table, wire, column.name)
        if wire.name is not None and wire.name != column.name:
            raise _mismatch(place, column.name, f"is called {wire.name}")
        if wire.nullable != column.nullable:
            said = "may be null" if wire.nullable else "is not null"
            raise _mismatch(place, column.name, f"{said} in the binlog")
        given = charsets[index] if index < len(charsets) else None
        charset = wire.charset or charset_named(given or "") or ""
        if not agrees(wire, column.base_type or column.source_type, charset):
            raise _mismatch(
                place, column.name, f"is {type_text(wire)} in the binlog, not {column.source_type}"
            )


def _mismatch(table: str, column: str, what: str) -> ShapeMismatch:
    subject = f"column {column} of {table}" if column else f"table {table}"
    fields = {"table": table} | ({"column": column} if column else {})
    return ShapeMismatch(
        f"{subject} {what}",
        hint="Run `set global binlog_row_metadata = 'FULL'` so that the binlog itself says what "
        "tables look like, then load the table again.",
        **fields,
    )
