"""Cutting a table into ranges of its key, so that several readers can share it.

Together the ranges hold every row once, whatever rows come and go meanwhile: the first is open
below, the last above, each begins where the one before it ends. Bounds are keys of the table, and
they are compared by the server alone: every collation has its own rules for 'a' = 'A' = 'á' and for
trailing blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.connect import Connection, literal, quoted, rows
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

CHUNK_SIZE_BYTES = 64 * 2**20
CHUNK_ROWS_MIN = 1_000
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_NUMBERS = _INTEGERS | {"decimal", "year"}
_BY_NUMBER = frozenset({"bit", "enum", "set"})  # ordered by it, though they print otherwise
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_QUOTED = frozenset({"date", "time", "datetime", "timestamp", "uuid", "inet4", "inet6"})

Bound = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChunk:
    """A range of a table's key. number: from 1. key: the columns; empty: the whole table.

    lower, upper: SQL literals, one per key column; rows from lower on, up to but without upper;
    None: open. row_estimate: for planning and progress.
    """

    table: TableName
    number: int
    key: tuple[str, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    row_estimate: int = 0

    @property
    def condition(self) -> str:
        """The range as SQL, `true` for the whole table."""
        parts = []
        if self.lower is not None:
            parts.append(_from(self.key, self.lower))
        if self.upper is not None:
            parts.append(f"not ({_from(self.key, self.upper)})" if len(self.key) > 1 else
                         f"{quoted(self.key[0])} < {self.upper[0]}")  # fmt: skip
        return " and ".join(parts) or "true"

    def query(self, expressions: Sequence[str]) -> str:
        """The statement that reads these expressions of the chunk's rows."""
        return f"select {', '.join(expressions)} from {quoted(*self.table)} where {self.condition}"


def _from(key: Sequence[str], bound: Bound) -> str:
    """`key >= bound`, column by column: no server uses an index well for row constructors."""
    names = [quoted(name) for name in key]
    alternatives = []
    for place, name in enumerate(names):
        comparison = ">=" if place == len(names) - 1 else ">"
        equal = [f"{names[before]} = {bound[before]}" for before in range(place)]
        alternatives.append(" and ".join([*equal, f"{name} {comparison} {bound[place]}"]))
    if len(names) == 1:
        return alternatives[0]
    # A condition on the first column alone lets the server begin at the right place.
    whole = " or ".join(f"({alternative})" for alternative in alternatives)
    return f"({names[0]} >= {bound[0]} and ({whole}))"


def rows_per_chunk(definition: TableDefinition, size_bytes_target: int = CHUNK_SIZE_BYTES) -> int:
    """How many rows of this table come to about that size, by the server's estimates."""
    if not definition.row_estimate or not definition.size_bytes:
        return CHUNK_ROWS_MIN
    row_bytes = max(definition.size_bytes / definition.row_estimate, 1.0)
    return max(int(size_bytes_target / row_bytes), CHUNK_ROWS_MIN)


def plan_chunks(
    connection: Connection, definition: TableDefinition, *, row_count_target: int | None = None
) -> list[KeyChunk]:
    """Cut a table into chunks of about row_count_target rows.

    A single whole number is cut by the server's estimates, without reading rows; other keys by
    stepping through the key's index. A table without a key, or with floating numbers in it, which
    have no exact text, is one chunk.
    """
    target = row_count_target or rows_per_chunk(definition)
    if target < 1:
        raise ValueError(f"not a number of rows: {target}")
    key = _usable_key(definition)
    whole = KeyChunk(table=definition.name, number=1, row_estimate=definition.row_estimate)
    if not key:
        return [whole]
    if len(key) == 1 and _base(key[0]) in _INTEGERS:
        found = _numeric(connection, definition, key[0], target)
    else:
        found = _sampled(connection, definition, key, target)
    names = tuple(column.name for column in key)
    bounds: list[Bound | None] = [None, *(bound for bound, _ in found), None]
    estimates = [estimate for _, estimate in found]
    return [
        replace(
            whole,
            number=place + 1,
            key=names,
            lower=bounds[place],
            upper=bounds[place + 1],
            row_estimate=estimates[place] if place < len(estimates) else target,
        )
        for place in range(len(bounds) - 1)
    ]


def _base(column: ColumnDefinition) -> str:
    parsed = parse_type(column.type_text)
    return parsed.base if parsed is not None else ""


def _usable_key(definition: TableDefinition) -> list[ColumnDefinition]:
    """The columns of the key, when each of them has an exact text."""
    if definition.identity is Identity.FULL:
        return []
    by_name = {column.name: column for column in definition.columns}
    key = [by_name[name] for name in definition.identity_columns]
    known = _NUMBERS | _BY_NUMBER | _TEXTS | _BYTES | _QUOTED
    return key if all(_base(column) in known for column in key) else []


def _read_and_write(column: ColumnDefinition) -> tuple[str, Callable[[str], str]]:
    """The expression that gives a value's exact text, and how that becomes a literal."""
    name, base = quoted(column.name), _base(column)
    if base in _NUMBERS:
        return f"cast({name} as char)", lambda text: text
    if base in _BY_NUMBER:
        return f"cast({name} + 0 as char)", lambda text: text
    if base in _BYTES:
        return f"hex({name})", lambda text: f"x'{text}'"
    if base in _QUOTED:
        return f"cast({name} as char)", literal
    introduced = f"_{column.charset} x'{{}}' collate {column.collation}"
    return f"hex({name})", introduced.format


# -- a single whole number -------------------------------------------------------------------------


def _numeric(
    connection: Connection, definition: TableDefinition, column: ColumnDefinition, target: int
) -> list[tuple[Bound, int]]:
    """Bounds between the least and the greatest value, each with the estimate below it."""
    name, doing = quoted(column.name), f"planning the chunks of {definition.name}"
    table = quoted(*definition.name)
    ends = rows(
        connection,
        f"select cast(min({name}) as char) as low, cast(max({name}) as char) as high from {table}",
        doing=doing,
    )[0]
    if ends["low"] is None:
        return []

    def estimate(low: int, high: int) -> int:
        explained = rows(
            connection,
            f"explain format = traditional select {name} from {table} "
            f"where {name} between {low} and {high}",
            doing=doing,
        )
        return int(explained[0]["rows"] or 0)

    pieces: list[tuple[int, int]] = []  # first value, estimate

    def cut(low: int, high: int) -> None:
        count = estimate(low, high)
        if count <= target or low == high:
            pieces.append((low, count))
            return
        middle = (low + high) // 2
        cut(low, middle)
        cut(middle + 1, high)

    cut(int(ends["low"]), int(ends["high"]))
    bounds: list[tuple[Bound, int]] = []
    gathered = pieces[0][1]
    for low, count in pieces[1:]:
        if gathered + count > target:
            bounds.append(((str(low),), gathered))
            gathered = 0
        gathered += count
    return bounds


# -- every other key -------------------------------------------------------------------------------


def _sampled(
    connection: Connection,
    definition: TableDefinition,
    key: Sequence[ColumnDefinition],
    target: int,
) -> list[tuple[Bound, int]]:
    """Every target-th key, found from the last one on."""
    names = tuple(column.name for column in key)
    forms = [_read_and_write(column) for column in key]
    listed = ", ".join(f"{expression} as c{place}" for place, (expression, _) in enumerate(forms))
    order = ", ".join(quoted(name) for name in names)
    bounds: list[tuple[Bound, int]] = []
    while True:
        condition = _from(names, bounds[-1][0]) if bounds else "true"
        found = rows(
            connection,
            f"select {listed} from {quoted(*definition.name)} where {condition} "
            f"order by {order} limit 1 offset {target}",
            doing=f"planning the chunks of {definition.name}",
        )
        if not found:
            return bounds
        texts = [str(found[0][f"c{place}"]) for place in range(len(forms))]
        bound = tuple(write(text) for text, (_, write) in zip(texts, forms, strict=True))
        bounds.append((bound, target))
