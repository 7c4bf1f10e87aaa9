"""Cut a table into ranges of its key, so that several readers can share it.

Together the ranges hold every row once, whatever rows are inserted and deleted meanwhile: the first
is open below, the last above, and each begins where the previous one ends. Bounds are keys of the
table, printed and compared by the server alone: a `uniqueidentifier` is ordered by its last six
bytes first (reference, S13), and each collation has its own rules. A table without a usable key is
one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.codec.sqlserver.types import SqlServerType, parse_type
from penstock.engines.sqlserver.connect import Connection, literal, quote
from penstock.engines.sqlserver.reading import statements
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from penstock.ports.bulk import rows_per_chunk
from penstock.sql.key_ranges import Bound, at_least, between

_NUMBERS = frozenset(("tinyint", "smallint", "int", "bigint", "decimal", "bit"))
_MONEY = frozenset(("money", "smallmoney"))
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar"))
_BYTES = frozenset(("binary", "varbinary", "rowversion"))
_MOMENTS = frozenset(("date", "time", "datetime", "smalldatetime", "datetime2", "datetimeoffset"))
_STYLES = {"date": 23, "time": 121}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChunk:
    """A range of a table's key.

    Attributes:
        number: counted from 1.
        key: the columns; empty for the whole table.
        lower: T-SQL of a value per key column; rows from there on; None if open.
        upper: T-SQL of a value per key column; rows before there; None if open.
        row_estimate: for planning and progress.
    """

    table: TableName
    number: int
    key: tuple[str, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    row_estimate: int = 0

    @property
    def condition(self) -> str:
        """The range as T-SQL; empty for the whole table."""
        return between([quote(name) for name in self.key], self.lower, self.upper)

    def query(self, expressions: Sequence[str]) -> str:
        """Return the statement that reads these expressions of the chunk's rows."""
        return statements.rows(self.table, expressions, self.condition)


def plan_chunks(
    connection: Connection, definition: TableDefinition, *, row_count_target: int | None = None
) -> list[KeyChunk]:
    """Cut a table into chunks of about row_count_target rows, by steps through its key's index."""
    target = row_count_target or rows_per_chunk(definition)
    if target < 1:
        raise ValueError(f"not a number of rows: {target}")
    whole = KeyChunk(table=definition.name, number=1, row_estimate=definition.row_estimate)
    key = usable_key(definition)
    if not key:
        return [whole]
    bounds = _step(connection, definition.name, key, target)
    names = tuple(column.name for column in key)
    ends: list[Bound | None] = [None, *bounds, None]
    estimate = target if bounds else definition.row_estimate
    return [
        replace(
            whole,
            number=place + 1,
            key=names,
            lower=ends[place],
            upper=ends[place + 1],
            row_estimate=estimate,
        )
        for place in range(len(ends) - 1)
    ]


def usable_key(definition: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns of the key if each of them has an exact text; else an empty list.

    They are in the order of the key, which is that of its index.
    """
    if definition.identity is Identity.FULL:
        return []
    by_name = {column.name: column for column in definition.columns}
    names = definition.primary_key or definition.identity_columns
    key = [by_name[name] for name in names]
    known = _NUMBERS | _MONEY | _TEXTS | _BYTES | _MOMENTS | {"uniqueidentifier"}
    is_known = all(parse_type(column.type_text).base in known for column in key)
    return key if is_known and not any(column.generated for column in key) else []


def _step(
    connection: Connection, table: TableName, key: Sequence[ColumnDefinition], target: int
) -> list[Bound]:
    """Return every target-th key, each found from the previous one."""
    quoted = [quote(column.name) for column in key]
    printers = [read_and_write(column) for column in key]
    listed = [f"{text} AS k{place}" for place, (text, _) in enumerate(printers)]
    bounds: list[Bound] = []
    while True:
        where = at_least(quoted, bounds[-1]) if bounds else ""
        sql = statements.next_key(table, listed, quoted, where)
        found = connection.execute(sql, target)
        if not found:
            return bounds
        bounds.append(
            tuple(write(str(value)) for (_, write), value in zip(printers, found[0], strict=True))
        )


def read_and_write(column: ColumnDefinition) -> tuple[str, Callable[[str], str]]:
    """Return the expression for a value's exact text, and the function that makes T-SQL of it.

    A text is converted in the column's own collation, so that it is compared as in the index.
    """
    name, kind = quote(column.name), parse_type(column.type_text)
    if kind.base in _NUMBERS:
        return f"CONVERT(varchar(41), {name})", lambda text: text
    if kind.base in _MONEY:
        return f"CONVERT(varchar(41), {name}, 2)", lambda text: f"CONVERT({kind.text}, '{text}')"
    if kind.base in _BYTES:
        return f"CONVERT(varchar(max), {name}, 1)", lambda text: text
    if kind.base == "uniqueidentifier":
        return f"CONVERT(varchar(36), {name})", lambda text: f"CONVERT({kind.text}, '{text}')"
    if kind.base in _MOMENTS:
        style = _STYLES.get(kind.base, 126)
        return (
            f"CONVERT(varchar(34), {name}, {style})",
            lambda text: f"CONVERT({kind.text}, '{text}', {style})",
        )
    return name, _text_writer(kind, column.collation)


def _text_writer(kind: SqlServerType, collation: str | None) -> Callable[[str], str]:
    collated = f" COLLATE {collation}" if collation else ""
    if kind.base in ("nchar", "nvarchar"):
        return lambda text: f"{literal(text)}{collated}"

    def write(text: str) -> str:
        """Return a literal of one byte per character, whose code page is that of the column."""
        if text.isascii():
            return f"{literal(text).removeprefix('N')}{collated}"
        return f"CONVERT({kind.text}, {literal(text)}{collated})"

    return write
