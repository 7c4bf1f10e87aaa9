"""Both ends of a pipeline for one column: created, filled, read as in the log, written, compared.

A `Side` is a database of a real server. A value is read from a source as the log would hold it: in
its neutral type if it fits, otherwise as text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Protocol
from uuid import UUID

import psycopg
import pyarrow as pa
import pymysql

from penstock.codec.mysql.values import ewkb_hex
from penstock.codec.types import (
    Choices,
    Engine,
    Mapping,
    Server,
    fill_template,
    map_column,
    prepare_values,
)
from penstock.codec.types.source_type import GEOMETRIES, SourceType
from penstock.engines.mysql.connect import connect as mysql_connect
from penstock.engines.mysql.source.catalog import captured_tables as mysql_captured
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, literal
from penstock.engines.postgres.source.catalog import captured_tables
from penstock.engines.postgres.target.target import staging_of
from penstock.model import Column, ColumnDefinition

_MICROSECONDS = "case when isfinite({}) then trunc(extract(epoch from {}) * 1000000)::text end"
# Per neutral type: Arrow's type, SQL of the number that it holds, and the type of that number.
ARROW: dict[str, tuple[pa.DataType, str, pa.DataType]] = {
    "date": (
        pa.date32(),
        "case when isfinite({}) then ({} - date '1970-01-01')::text end",
        pa.int32(),
    ),
    "time": (pa.time64("us"), "(extract(epoch from {}) * 1000000)::bigint::text", pa.int64()),
    "timestamp": (pa.timestamp("us"), _MICROSECONDS, pa.int64()),
    "timestamptz": (pa.timestamp("us"), _MICROSECONDS, pa.int64()),
}
WIDENED = frozenset(("date", "time", "timestamp", "timestamptz"))
Value = str | bytes | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A value as it is staged in the target: its neutral type, and its text or bytes.

    Attributes:
        printed: Text that the source prints, which is the value once its column is widened.
    """

    neutral: str
    value: Value
    printed: str = ""


class Side(Protocol):
    """One end.

    Attributes:
        server: Engine and version.
    """

    server: Server

    def make(self, table: str, type_text: str) -> None:
        """Create a table (id, v)."""

    def put(self, table: str, number: int, expression: str) -> str:
        """Insert a row with this SQL as v; return the error's text, or empty."""

    def texts(self, table: str, template: str) -> dict[int, str | None]:
        """Return the results of a template, by id."""


@dataclass
class PostgresSide:
    """A PostgreSQL database."""

    connection: psycopg.Connection
    server: Server

    def make(self, table: str, type_text: str) -> None:
        """Create a table (id, v)."""
        self.connection.execute(f"create table public.{table} (id int, v {type_text})".encode())

    def put(self, table: str, number: int, expression: str) -> str:
        """Insert a row; return the error's text, or empty."""
        sql = f"insert into public.{table} values ({number}, {expression})"
        try:
            self.connection.execute(sql.encode())
        except psycopg.Error as error:
            return str(error)
        return ""

    def texts(self, table: str, template: str) -> dict[int, str | None]:
        """Return the results of a template, by id."""
        sql = f"select id, {fill_template(template, chr(34) + 'v' + chr(34))} from public.{table}"
        return dict(self.connection.execute(sql.encode()).fetchall())

    def column(self, table: str) -> ColumnDefinition:
        """Return the column v as the catalogue reader has it."""
        (definition,) = captured_tables(self.connection, [f"public.{table}"])
        return definition.columns[1]

    def read(self, table: str) -> dict[int, Waiting]:
        """Return each value as the log would have it, by id."""
        column = self.column(table)
        printed = self.texts(table, "case when {} is distinct from null then format('%s', {}) end")
        numbers: dict[int, str | None] = {}
        if column.neutral in ARROW:
            numbers = self.texts(table, ARROW[column.neutral][1])
        return {
            number: _postgres_waiting(column, text, numbers.get(number))
            for number, text in printed.items()
        }

    def operand(self, waiting: Waiting, column: ColumnDefinition) -> str:
        """Return the SQL of a value that is staged here."""
        if waiting.value is None:
            return "null"
        if isinstance(waiting.value, bytes):
            return f"'\\x{waiting.value.hex()}'::bytea"
        if "\0" in waiting.value:
            return f"convert_from('\\x{waiting.value.encode().hex()}', 'UTF8')"
        kept = Column(name="v", source_type=column.type_text, neutral=waiting.neutral)
        text = waiting.value
        if text[:5] == "0000-" and waiting.neutral in WIDENED:
            text = f"0001{text[4:]} BC"  # in Arrow a number, which needs no such text
        return f"{literal(text)}::{staging_of(kept).sql}"


def _postgres_waiting(column: ColumnDefinition, text: str | None, number: str | None) -> Waiting:
    """Return the staged value. number: days or microseconds of a finite date or time."""
    neutral = column.neutral
    if text is None:
        return Waiting(neutral, None)
    if neutral == "binary":
        is_bytes = column.base_type == "bytea"
        return Waiting(neutral, bytes.fromhex(text[2:]) if is_bytes else text.encode())
    if neutral == "bool":
        return Waiting(neutral, "1" if text == "t" else "0")
    if neutral in ARROW:
        bits = 31 if neutral == "date" else 63
        fits = number is not None and abs(int(number)) < 2**bits and not text.startswith("24:")
        return Waiting(
            neutral if fits else "string", _arrow(neutral, number) if fits else text, text
        )
    if neutral.startswith("decimal") and text == "NaN":
        return Waiting("string", text)
    return Waiting(neutral, text)


def _arrow(neutral: str, number: str | None) -> str:
    """Return Arrow's text of a date or time."""
    return str(
        pa.array([int(number or 0)])
        .cast(ARROW[neutral][2])
        .cast(ARROW[neutral][0])
        .cast(pa.string())[0]
    )


def _hex(text: str) -> str:
    return f"convert(_utf8mb4 x'{text.encode().hex()}' using utf8mb4)"


@dataclass
class MySQLSide:
    """A database of MySQL or MariaDB.

    Attributes:
        database: Its name.
    """

    connection: Any
    server: Server
    database: str
    raw: Any = field(default=None)

    def make(self, table: str, type_text: str) -> None:
        """Create a table (id, v)."""
        with self.connection.cursor() as cursor:
            # Without "null" an old server gives a TIMESTAMP a default of its own.
            cursor.execute(f"create table {table} (id int, v {type_text} null)")

    def put(self, table: str, number: int, expression: str) -> str:
        """Insert a row; return the error's text, or empty. Warnings count as errors."""
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(f"insert into {table} values ({number}, {expression})")
                cursor.execute("show warnings")
                told = cursor.fetchall()
            except pymysql.Error as error:
                return str(error)
        return str(told) if told else ""

    def texts(self, table: str, template: str) -> dict[int, str | None]:
        """Return the results of a template, by id."""
        with self.connection.cursor() as cursor:
            cursor.execute(f"select id, {fill_template(template, '`v`')} from {table}")
            return {row[0]: _text(row[1]) for row in cursor.fetchall()}

    def column(self, table: str) -> ColumnDefinition:
        """Return the column v as the catalogue reader has it."""
        (definition,) = mysql_captured(self.connection, [f"{self.database}.{table}"])
        return definition.columns[1]

    def read(self, table: str) -> dict[int, Waiting]:
        """Return each value as the log would have it, by id."""
        column = self.column(table)
        kind = SourceType.of(column, self.server.engine)
        template = "convert({} using utf8mb4)"
        if kind.base in ("bit", "year", "float", "double") or kind.zerofill:
            template = "cast({} + 0 as char)" if kind.base != "float" else "cast({} + 0e0 as char)"
        elif column.neutral == "binary" or kind.base in GEOMETRIES:
            template = "lower(hex({}))"
        elif column.neutral != "string" or kind.base in ("json", "uuid", "inet4", "inet6"):
            template = "cast({} as char)"
        found = self.texts(table, template)
        return {number: _mysql_waiting(kind, text) for number, text in found.items()}

    def operand(self, waiting: Waiting, column: ColumnDefinition) -> str:
        """Return the SQL of a value that is staged here: text, or bytes."""
        if waiting.value is None:
            return "null"
        if isinstance(waiting.value, bytes):
            return f"x'{waiting.value.hex()}'"
        return _hex(waiting.value)


def _six_digits(text: str) -> str:
    """Return a time as Arrow prints it."""
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}"


def _is_day(text: str) -> bool:
    try:
        # Python has no year 0; it has the same days as 2000.
        date.fromisoformat(f"2000{text[4:]}" if text.startswith("0000") else text)
    except ValueError:
        return False
    return True


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else str(value)


def _mysql_waiting(kind: SourceType, text: str | None) -> Waiting:
    neutral = kind.neutral
    if text is None:
        return Waiting(neutral, None)
    if neutral == "binary":
        return Waiting(neutral, bytes.fromhex(text))
    if kind.base in GEOMETRIES:
        return Waiting(neutral, ewkb_hex(bytes.fromhex(text)))
    if neutral == "uuid":
        return Waiting(neutral, str(UUID(text)))
    if neutral in ("date", "timestamp", "timestamptz"):
        if not _is_day(text[:10]):
            return Waiting("string", text)
        return Waiting(neutral, text if neutral == "date" else _six_digits(text), text)
    if neutral == "time":
        if text[0] == "-" or text >= "24":
            return Waiting("string", text)
        return Waiting(neutral, _six_digits(text), text)
    return Waiting(neutral, text)


@dataclass
class Outcome:
    """Results of a column's values, by id.

    Attributes:
        source: Texts of the source that are compared.
        target: Texts of the target that are compared.
        errors: Reason why a value was not written.
    """

    mapping: Mapping
    source: dict[int, str | None]
    target: dict[int, str | None]
    errors: dict[int, str]


def carry(
    source: PostgresSide | MySQLSide,
    target: PostgresSide | MySQLSide,
    table: str,
    into: str,
    choices: Choices,
    *,
    as_text: bool = False,
) -> Outcome:
    """Copy a filled column by the table's rules. as_text: as if the log had widened it."""
    column = source.column(table)
    plain = map_column(column, source.server, target.server, choices=choices)
    target.make(into, plain.target_type)
    errors: dict[int, str] = {}
    for number, waiting in source.read(table).items():
        held = waiting
        if as_text and waiting.printed:
            held = Waiting("string", waiting.printed)
        mapping = map_column(
            replace(column, neutral=held.neutral), source.server, target.server, choices=choices
        )
        assert mapping.target_type == plain.target_type
        assert mapping.equal == plain.equal
        if isinstance(held.value, str):
            sent = prepare_values(pa.array([held.value]), mapping.write.prepare)[0].as_py()
            held = Waiting(held.neutral, sent)
        expression = fill_template(mapping.write.sql, target.operand(held, column))
        if error := target.put(into, number, expression):
            errors[number] = error
    return Outcome(
        mapping=plain,
        source=source.texts(table, plain.equal.source),
        target=target.texts(into, plain.equal.target),
        errors=errors,
    )


@contextlib.contextmanager
def postgres_side(url: str) -> Iterator[PostgresSide]:
    """Open a PostgreSQL database, with the settings that texts need."""
    with connect(url, application_name="types", options=EXACT_TEXT_SETTINGS) as connection:
        version = connection.info.server_version // 10_000
        yield PostgresSide(connection, Server(engine=Engine.POSTGRESQL, version=(version,)))


@contextlib.contextmanager
def mysql_side(url: str) -> Iterator[MySQLSide]:
    """Open a database of MySQL or MariaDB, with the session that penstock uses."""
    connection = mysql_connect(url, application_name="types")
    try:
        found = connection.server
        server = Server(engine=Engine(found.flavour.value), version=found.number)
        yield MySQLSide(connection, server, url.rpartition("/")[2])
    finally:
        connection.close()


def find_lost(outcome: Outcome) -> set[int]:
    """Return the values that were not written, or became NULL in the target."""
    nulls = {n for n, text in outcome.target.items() if text is None}
    return outcome.errors.keys() | nulls
