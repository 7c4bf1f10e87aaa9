"""Column types of random histories: declarations, values and all literal forms of defaults."""

from __future__ import annotations

from dataclasses import dataclass

MYSQL, MARIADB, POSTGRES = "mysql", "mariadb", "postgres"
SQLSERVER, ORACLE = "sqlserver", "oracle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type.

    Attributes:
        declared: as CREATE TABLE has it.
        values: literals that every engine holds.
        defaults: literals of DEFAULT; none if the type cannot have a default.
        computed: expressions of DEFAULT that are not constants.
        family: a conversion within a family keeps most values.
        needs: statements that create the type's parts.
        is_key: it can be the type of a key.
    """

    declared: str
    values: tuple[str, ...]
    defaults: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    family: str = ""
    needs: tuple[str, ...] = ()
    is_key: bool = False


def _all_of(*types: ColumnType) -> tuple[ColumnType, ...]:
    return types


_INT_VALUES = ("0", "1", "5", "100", "-7")
_TEXT_VALUES = ("'a'", "'A'", "'b c'", "'it''s'", "''", "'é'", "'tail '", "'😀'")
_MY_TEXT_DEFAULTS = (
    "'a'",
    "'a' 'b'",
    "x'4142'",
    "0x4142",
    "_utf8mb4'é'",
    "_latin1'abc'",
    "N'é'",
    "'it''s'",
    "'back\\\\slash'",
    "''",
    "'ab  '",
    "b'01000001'",
    "'7'",
    "12",
)
_MY_INT_DEFAULTS = ("7", "'7'", "1.6", "-1", "true", "0x41", "b'101'", "1e2", "-.5", "+3", "x'41'")
_MY_TIMES = (
    "'2024-01-02 03:04:05'",
    "TIMESTAMP'2024-01-02 03:04:05'",
    "20240102030405",
    "'2024-01-02 03:04:05.6789'",
    "'2024-01-02'",
    "'20240102'",
    "'24-1-2 3:4:5'",
)
_MY_TIME_VALUES = ("'2020-02-29 12:00:00'", "'1999-12-31 23:59:59'", "'2024-06-01 00:30:00'")

MY_TYPES = _all_of(
    ColumnType(declared="tinyint", values=_INT_VALUES, defaults=_MY_INT_DEFAULTS, family="number"),
    ColumnType(declared="smallint", values=_INT_VALUES, defaults=_MY_INT_DEFAULTS, family="number"),
    ColumnType(
        declared="int",
        values=(*_INT_VALUES, "70000"),
        defaults=_MY_INT_DEFAULTS,
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="int unsigned",
        values=("0", "5", "4000000000"),
        defaults=("7", "'7'", "1.6", "0x41"),
        family="number",
    ),
    ColumnType(
        declared="bigint",
        values=(*_INT_VALUES, "9000000000"),
        defaults=_MY_INT_DEFAULTS,
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="decimal(10,2)",
        values=("0", "1.25", "-3.5", "12345.67"),
        defaults=("1.235", "-.5", "'1.2'", "1e1", "7", "0x41"),
        family="number",
    ),
    ColumnType(
        declared="decimal(14,4)",
        values=("0", "1.2345", "-3.5"),
        defaults=("1.23456", "'1.2'"),
        family="number",
    ),
    ColumnType(
        declared="float", values=("0", "1.5", "-0.25"), defaults=("1.5", "1e3", ".25", "'2.5'")
    ),
    ColumnType(
        declared="double", values=("0", "0.1", "-1e10"), defaults=("0.1", "1e-3", ".25", "'2.5'")
    ),
    ColumnType(
        declared="varchar(20)",
        values=_TEXT_VALUES,
        defaults=_MY_TEXT_DEFAULTS,
        family="text",
        is_key=True,
    ),
    ColumnType(
        declared="varchar(40)", values=_TEXT_VALUES, defaults=_MY_TEXT_DEFAULTS, family="text"
    ),
    ColumnType(
        declared="char(10)",
        values=("'a'", "'A'", "'xy'", "''", "'é'"),
        defaults=("'a'", "'ab  '", "x'4142'", "N'é'", "''"),
        family="text",
    ),
    ColumnType(
        declared="varchar(20) character set latin1",
        values=("'a'", "'A'", "'é'", "''"),
        defaults=("'a'", "'é'", "x'e9'", "_utf8mb4'é'", "'a' 'b'"),
        family="text",
    ),
    ColumnType(
        declared="varchar(20) collate utf8mb4_bin",
        values=("'a'", "'A'", "'😀'"),
        defaults=("'a'", "'😀'"),
        family="text",
        is_key=True,
    ),
    ColumnType(declared="text", values=_TEXT_VALUES, family="text"),
    ColumnType(
        declared="varbinary(20)",
        values=("'ab'", "x'00ff'", "''"),
        defaults=("x'00ff'", "'ab'", "0x41", "b'1'", "''"),
        family="bytes",
    ),
    ColumnType(
        declared="binary(5)",
        values=("'ab'", "x'00ff'", "''"),
        defaults=("'ab'", "x'00ff'", "0x41"),
        family="bytes",
    ),
    ColumnType(declared="blob", values=("'ab'", "x'00ff'"), family="bytes"),
    ColumnType(
        declared="date",
        values=("'2020-02-29'", "'1999-12-31'"),
        defaults=("'2024-01-02'", "DATE'2024-01-02'", "20240102", "'20240102'", "'24-1-2'"),
        family="moment",
    ),
    ColumnType(
        declared="datetime",
        values=_MY_TIME_VALUES,
        defaults=_MY_TIMES,
        computed=("current_timestamp",),
        family="moment",
    ),
    ColumnType(
        declared="datetime(3)",
        values=_MY_TIME_VALUES,
        defaults=_MY_TIMES,
        computed=("current_timestamp(3)",),
        family="moment",
    ),
    ColumnType(
        declared="timestamp",
        values=_MY_TIME_VALUES,
        defaults=_MY_TIMES,
        computed=("current_timestamp",),
        family="moment",
    ),
    ColumnType(
        declared="time",
        values=("'01:02:03'", "'-00:00:10'", "'100:00:00'"),
        defaults=("'01:02:03'", "10203", "'1 2:3:4'", "TIME'01:02:03'", "'01:02:03.6'"),
    ),
    ColumnType(
        declared="year", values=("1999", "2024"), defaults=("70", "0", "'70'", "2024", "'0'", "1")
    ),
    ColumnType(
        declared="bit(8)", values=("b'101'", "7"), defaults=("b'101'", "5", "'5'", "0x41", "x'41'")
    ),
    ColumnType(declared="bool", values=("true", "false"), defaults=("true", "'1'", "0")),
    ColumnType(
        declared="enum('a','b','C')",
        values=("'a'", "'b'", "'C'"),
        defaults=("'a'", "'B'", "'c'"),
        family="label",
    ),
    ColumnType(
        declared="enum('a','b','C','d')",
        values=("'a'", "'b'", "'d'"),
        defaults=("'a'", "'D'"),
        family="label",
    ),
    ColumnType(
        declared="enum('A','b','c')",
        values=("'A'", "'b'"),
        defaults=("'a'",),
        family="label",
    ),
    ColumnType(
        declared="set('a','b','c')",
        values=("'a'", "'a,c'", "''"),
        defaults=("'c,a'", "'A'", "''"),
        family="set",
    ),
    ColumnType(
        declared="set('A','b','c','d')",
        values=("'A'", "'d'"),
        defaults=("'d,a'",),
        family="set",
    ),
    ColumnType(declared="json", values=("'{\"a\": 1}'", "'[1, 2]'", "'\"x\"'")),
)

_PG_INTS = ("7", "'7'", "-1", "3+4", "1.6::int", "length('abc')")
_PG_TEXTS = (
    "'a'",
    "'it''s'",
    "E'a\\nb'",
    "U&'\\0061b'",
    "$$x y$$",
    "'a'||'b'",
    "upper('x')",
    "''",
    "'back\\slash'",
    "'tail  '",
    "'é😀'",
    "7",
)
PG_TYPES = _all_of(
    ColumnType(declared="smallint", values=_INT_VALUES, defaults=_PG_INTS, family="number"),
    ColumnType(
        declared="integer",
        values=(*_INT_VALUES, "70000"),
        defaults=_PG_INTS,
        computed=("(random()*100)::int",),
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="bigint",
        values=(*_INT_VALUES, "9000000000"),
        defaults=_PG_INTS,
        family="number",
        is_key=True,
    ),
    ColumnType(
        declared="numeric(10,2)",
        values=("0", "1.25", "-3.5"),
        defaults=("1.235", "'1.2'", "1e1", "-.5"),
        family="number",
    ),
    ColumnType(
        declared="numeric", values=("0", "1.25", "1e5"), defaults=("1.235", "10"), family="number"
    ),
    ColumnType(declared="real", values=("0", "1.5"), defaults=("1.5", "'2.5'"), family="number"),
    ColumnType(
        declared="double precision",
        values=("0", "0.1", "-1e10"),
        defaults=("0.1", "1e-3"),
        computed=("random()",),
        family="number",
    ),
    ColumnType(
        declared="boolean", values=("true", "false"), defaults=("true", "'yes'", "1=2", "null")
    ),
    ColumnType(
        declared="text",
        values=_TEXT_VALUES,
        defaults=_PG_TEXTS,
        computed=("md5(random()::text)", "current_user"),
        family="text",
    ),
    ColumnType(
        declared="varchar(20)",
        values=_TEXT_VALUES,
        defaults=_PG_TEXTS,
        family="text",
        is_key=True,
    ),
    ColumnType(
        declared="char(10)",
        values=("'a'", "'xy'", "''"),
        defaults=("'a'", "'ab  '", "''"),
        family="text",
    ),
    ColumnType(
        declared="bytea", values=("'\\x00ff'", "'\\x'"), defaults=("'\\x00ff'", "'\\x41'::bytea")
    ),
    ColumnType(
        declared="date",
        values=("'2020-02-29'", "'1999-12-31'"),
        defaults=("'2024-01-02'", "date '2024-01-02'", "'Jan 2 2024'"),
        computed=("current_date",),
        family="moment",
    ),
    ColumnType(
        declared="timestamp",
        values=("'2020-02-29 12:00:00'", "'1999-12-31 23:59:59.123456'"),
        defaults=("'2024-01-02 03:04:05.6789'", "timestamp '2024-01-02'"),
        computed=("now()", "clock_timestamp()"),
        family="moment",
    ),
    ColumnType(
        declared="timestamptz",
        values=("'2020-02-29 12:00:00+02'", "'1999-12-31 23:59:59.123456+00'"),
        defaults=("'2024-01-02 03:04:05'", "'2024-01-02 03:04:05+05'"),
        computed=("now()",),
        family="moment",
    ),
    ColumnType(
        declared="timestamp(3)",
        values=("'2020-02-29 12:00:00.123'",),
        defaults=("'2024-01-02 03:04:05.6789'",),
        family="moment",
    ),
    ColumnType(
        declared="time", values=("'01:02:03'", "'23:59:59.5'"), defaults=("'01:02:03'", "'1:2'")
    ),
    ColumnType(
        declared="interval", values=("'1 day'", "'1:02:03'"), defaults=("'1 day 2:00'", "'P1Y2M'")
    ),
    ColumnType(
        declared="uuid",
        values=("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
        defaults=("'A0EEBC999C0B4EF8BB6D6BB9BD380A12'",),
        computed=("gen_random_uuid()",),
    ),
    ColumnType(
        declared="jsonb", values=("'{\"a\": 1}'", "'[1,2]'"), defaults=("'{}'", "'[1, 2.50]'")
    ),
    ColumnType(declared="json", values=("'{\"a\":  1}'",), defaults=("'{}'",)),
    ColumnType(declared="bit(8)", values=("b'00000101'",), defaults=("b'11111111'", "x'41'")),
    ColumnType(declared="bit varying(8)", values=("b'101'",), defaults=("b'1'",)),
    ColumnType(
        declared="integer[]", values=("'{1,2}'", "'{}'"), defaults=("'{1,NULL}'", "array[1]")
    ),
    ColumnType(declared="text[]", values=("'{a,\"b c\"}'",), defaults=("'{}'", "array['x','y']")),
    ColumnType(declared="inet", values=("'10.0.0.1'", "'::1'"), defaults=("'10.0.0.0/8'",)),
    ColumnType(
        declared="mood",
        values=("'sad'", "'ok'"),
        defaults=("'ok'", "'sad'::mood"),
        needs=("create type mood as enum ('sad', 'ok', 'happy')",),
        family="label",
    ),
    ColumnType(
        declared="mood2",
        values=("'x'", "'ok'"),
        defaults=("'ok'",),
        needs=("create type mood2 as enum ('x', 'ok')",),
        family="label",
    ),
    ColumnType(
        declared="posint",
        values=("5", "1"),
        defaults=("7",),
        needs=("create domain posint as integer check (value > 0)",),
        family="number",
    ),
)
TYPES = {MYSQL: MY_TYPES, MARIADB: MY_TYPES, POSTGRES: PG_TYPES}
