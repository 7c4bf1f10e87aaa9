"""A table of many types, its rows as the log keeps them, and conditions over its columns."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa

from penstock.codec.columns import arrow_type
from penstock.codec.postgres.pgtext import Unfit, cell_reader
from penstock.codec.postgres.pgtypes import neutral_type
from penstock.model import Column, Relation

# A column's type, its oid and modifier, its values as SQL, and constants that are near to them.
KINDS: dict[str, tuple[str, int, int, list[str], list[str]]] = {
    "b": ("boolean", 16, -1, ["true", "false"], ["true", "false", "'t'", "'off'", "'ye'"]),
    "i2": (
        "smallint", 21, -1, ["-32768", "0", "1", "32767"],
        ["0", "1", "-32768", "32768", "0.5", "'1'", "' 1 '", "1.0", "'1_0'", "2147483648"],
    ),
    "i4": (
        "integer", 23, -1, ["-2147483648", "-1", "0", "2147483647"],
        ["0", "-1", "2147483648", "'-1'", "0.0", "-1.00", "1e9", "99999999999999999999", "1e1"],
    ),
    "i8": (
        "bigint", 20, -1, ["-9223372036854775808", "0", "9223372036854775807", "9007199254740993"],
        ["0", "9223372036854775807", "9223372036854775808", "9007199254740993",
         "'9007199254740992'", "9223372036854775807.5", "0.5::float8"],
    ),
    "n": (
        "numeric(12,3)", 1700, (12 << 16 | 3) + 4, ["-1.500", "0", "123456789.125", "0.001"],
        ["0", "0.001", "-1.5", "'-1.5'", "123456789.125", "1e30", "0.00100", "'NaN'", "1.5e-3",
         "99999999999999999999999999999999999999"],
    ),
    "w": (
        "numeric(38,0)", 1700, (38 << 16 | 0) + 4, ["9" * 38, "-" + "9" * 38, "0"],
        ["0", "9" * 38, "0.01", "9" * 38 + ".01", "0.00000001"],
    ),
    "u": ("numeric", 1700, -1, ["1.10", "'NaN'", "0"], ["0", "1.1", "'NaN'"]),
    "r": (
        "real", 700, -1, ["0.1", "'-0'", "0", "'NaN'", "'Infinity'", "'-Infinity'", "1e30",
         "16777216"],
        ["0.1", "'0.1'", "0", "'-0'", "'NaN'", "'Infinity'", "'-inf'", "0.1::float8",
         "'0.1'::real", "16777217", "'16777217'", "1e30", "'1e30'", "'1e39'", "1e39",
         "1.00000017881393432617187499", "'1.00000017881393432617187499'"],
    ),
    "d": (
        "double precision", 701, -1,
        ["0.1", "'-0'", "0", "'NaN'", "'Infinity'", "'-Infinity'", "1e300", "9007199254740992"],
        ["0.1", "'0.1'", "0", "'-0'", "'NaN'", "'Infinity'", "'-Infinity'", "0.1::real",
         "9007199254740993", "'9007199254740993'", "1e300", "1e309", "'nan'", "'+1e5'", "'.5'"],
    ),
    "t": (
        "text", 25, -1, ["''", "'a'", "'A'", "'ä'", "'a%'", "E'a\\nb'", "'a '", "E'a\\\\b'"],
        ["'a'", "''", "'a '", "E'a\\nb'", "'ä'", "$$a$$", "E'a\\\\b'"],
    ),
    "v": ("varchar(5)", 1043, 9, ["''", "'abc'", "'a'"], ["'abc'", "'a'", "'a '", "'a'::varchar"]),
    "c": ("char(5)", 1042, 9, ["'a'", "'abcde'"], ["'a'", "'a    '", "'abcde'"]),
    "y": ("bytea", 17, -1, ["'\\x00'", "''"], ["'\\x00'"]),
    "da": (
        "date", 1082, -1, ["'2024-02-29'", "'0001-01-01'", "'0044-03-15 BC'"],
        ["'2024-02-29'", "'2024-2-29'", "'20240229'", "'0001-01-01'", "'2024-02-30'",
         "date '2024-02-29'", "'0044-03-15 BC'", "'infinity'", "'2024-02-29 10:00:00'"],
    ),
    "di": ("date", 1082, -1, ["'infinity'", "'2024-02-29'"], ["'2024-02-29'", "'infinity'"]),
    "ts": (
        "timestamp", 1114, -1,
        ["'2024-02-29 10:00:00'", "'2024-02-29 00:00:00'", "'1999-12-31 23:59:59.999999'"],
        ["'2024-02-29 10:00:00'", "'2024-02-29'", "'2024-02-29T10:00:00'",
         "'2024-02-29 10:00:00+05'", "'1999-12-31 23:59:59.9999994'", "'2024-02-29 10:00'",
         "'2024-02-28 24:00:00'", "'2024-02-29T10:00:00Z'", "'24-02-29 10:00:00'"],
    ),
    "tz": (
        "timestamptz", 1184, -1, ["'2024-02-29 10:00:00+00'", "'2024-02-29 12:00:00+02'"],
        ["'2024-02-29 10:00:00+00'", "'2024-02-29 12:00:00+02'", "'2024-02-29 10:00:00'",
         "'2024-02-29 10:00:00Z'", "'2024-02-29'", "'2024-02-29T10:00:00.0+00:00'",
         "'2024-02-29 10:00:00-0030'"],
    ),
    "ti": ("time", 1083, -1, ["'10:00:00'"], ["'10:00:00'"]),
    "g": (
        "uuid", 2950, -1,
        ["'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
        ["'00000000-0000-0000-0000-000000000001'", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'",
         "'{00000000-0000-0000-0000-000000000001}'", "'00000000 0000 0000 0000 000000000001'",
         "'0000-0000000000000000000000000001'"],
    ),
    "j": ("jsonb", 3802, -1, ["'1'"], ["'1'"]),
    "bi": ("bit(3)", 1560, 3, ["B'101'"], ["B'101'", "'101'"]),
}  # fmt: skip
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")
PATTERNS = ("'a%'", "'%'", "'_'", "''", r"'a\%'", r"E'a\\\\b'", r"'a\'", "'A'", "'%b'", "null")
NUMBERS = ("i2", "i4", "i8", "n", "w", "u", "r", "d")


def definition(table: str = "item") -> str:
    """Return the statement that creates the table."""
    columns = ", ".join(f"{name} {kind[0]}" for name, kind in KINDS.items())
    return f"create table {table} (id int primary key, {columns})"


def fillings(table: str = "item") -> Iterator[str]:
    """Yield the statements that fill it: every value beside NULL and beside others."""
    count = max(len(kind[3]) for kind in KINDS.values()) + 1
    for number in range(2 * count):
        cells = []
        for place, (_, _, _, values, _) in enumerate(KINDS.values()):
            at = (number + place * (number >= count)) % (len(values) + 1)
            cells.append("null" if at == len(values) else values[at])
        yield f"insert into {table} values ({number}, {', '.join(cells)})"


def relation_of(rows: list[tuple[str | None, ...]]) -> tuple[Relation, dict[str, pa.Array]]:
    """Return the table's shape and its rows as the log keeps them. rows: texts as printed.

    A column with a value that its neutral type cannot hold is kept as text, as in the log.
    """
    columns, values = [], {}
    for place, (name, (kind, oid, typmod, *_)) in enumerate(
        {"id": ("integer", 23, -1, [], []), **KINDS}.items()
    ):
        texts = [row[place] for row in rows]
        column = Column(
            name=name, source_type=kind, neutral=neutral_type(oid, typmod), type_oid=oid,
            typmod=typmod,
        )  # fmt: skip
        try:
            found = _read(column, texts)
        except Unfit:
            column = Column(
                name=name, source_type=kind, neutral="string", type_oid=oid, typmod=typmod
            )
            found = _read(column, texts)
        columns.append(column)
        values[name] = found
    shape = Relation(
        schema="public",
        name="item",
        columns=tuple(columns),
        key=(0,),
        before=tuple(range(len(columns))),
    )
    return shape, values


def _read(column: Column, texts: list[str | None]) -> pa.Array:
    reader, kind = cell_reader(column), arrow_type(column.neutral)
    cells = [None if text is None else reader(text.encode()) for text in texts]
    plain = {"date": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.int64()}
    plain["time"] = pa.int64()
    return pa.array(cells, plain.get(column.neutral, kind)).cast(kind)


def conditions(seed: int, count: int) -> Iterator[str]:
    """Yield conditions: each comparison of each column with each constant, then drawn ones."""
    for name, (_, _, _, _, constants) in KINDS.items():
        yield f"{name} is null"
        yield f"{name} is not null"
        for constant in (*constants, "null"):
            for operator in OPERATORS:
                yield f"{name} {operator} {constant}"
            yield f"{constant} < {name}"
            yield f"{name} between {constant} and {constants[0]}"
        for one, other in zip(constants, [*constants[1:], "null"], strict=True):
            yield f"{name} in ({one}, {other})"
            yield f"{name} in ({one})"
            yield f"{name} not in ({other}, {one})"
    for name in ("t", "v", "c"):
        for pattern in PATTERNS:
            yield f"{name} like {pattern}"
            yield f"{name} not like {pattern}"
    for one in NUMBERS:
        for other in NUMBERS:
            for operator in OPERATORS:
                yield f"{one} {operator} {other}"
    yield from ("b", "not b", "b is true", "b is not false", "b is unknown", "true", "false")
    yield from ("ctid = '(0,1)'", "item.id = 1", "other.id = 1", "id = 1 and null", "null is null")
    drawn = random.Random(seed)
    for _ in range(count):
        yield _draw_condition(drawn, 3)


def _draw_condition(drawn: random.Random, depth: int) -> str:
    if depth and drawn.random() < 0.6:
        word = drawn.choice((" and ", " or "))
        joined = word.join(_draw_condition(drawn, depth - 1) for _ in range(drawn.randint(2, 3)))
        return f"not ({joined})" if drawn.random() < 0.3 else f"({joined})"
    name = drawn.choice(list(KINDS))
    constants = KINDS[name][4]
    return f"{name} {drawn.choice(OPERATORS)} {drawn.choice((*constants, 'null'))}"
