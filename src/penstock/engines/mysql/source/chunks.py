"""Cut a table into ranges of its key, so that several readers can share it.

Together the ranges hold every row once, whatever rows are inserted and deleted meanwhile: the first
is open below, the last above, and each begins where the previous one ends. Bounds are keys of the
table, and only the server compares them: every collation has its own rules for 'a' = 'A' = 'á' and
for trailing blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.connect import Connection, literal, quote, rows
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from penstock.ports.bulk import rows_per_chunk

SELECTS_AT_ONCE = 100  # in one statement
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_NUMBERS = _INTEGERS | {"decimal", "year"}
_BY_NUMBER = frozenset({"bit", "enum", "set"})  # ordered by number, not as printed
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_QUOTED = frozenset({"date", "time", "datetime", "timestamp", "uuid", "inet4", "inet6"})

Bound = tuple[str, ...]
_Found = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChunk:
    """A range of a table's key.

    Attributes:
        number: counted from 1.
        key: the columns; empty for the whole table.
        lower: SQL literals, one per key column; rows from there on; None if open.
        upper: SQL literals, one per key column; rows before there; None if open.
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
        """The range as SQL, `true` for the whole table."""
        parts = []
        if self.lower is not None:
            parts.append(_from(self.key, self.lower))
        if self.upper is not None:
            parts.append(f"not ({_from(self.key, self.upper)})" if len(self.key) > 1 else
                         f"{quote(self.key[0])} < {self.upper[0]}")  # fmt: skip
        return " and ".join(parts) or "true"

    def query(self, expressions: Sequence[str]) -> str:
        """Return the statement that reads these expressions of the chunk's rows."""
        return f"select {', '.join(expressions)} from {quote(*self.table)} where {self.condition}"


def _from(key: Sequence[str], bound: Bound) -> str:
    """Return `key >= bound`, column by column: no server uses an index well for row
    constructors.
    """
    names = [quote(name) for name in key]
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


def plan_chunks(
    connection: Connection, definition: TableDefinition, *, row_count_target: int | None = None
) -> list[KeyChunk]:
    """Cut a table into chunks of about row_count_target rows.

    A key of one whole number is cut by the server's estimates, without reading rows; other keys by
    stepping through the key's index. A table without a key, or with floating-point numbers in it,
    which have no exact text, is one chunk.
    """
    target = row_count_target or rows_per_chunk(definition)
    return plan_all_chunks(connection, [(definition, target)])[definition.name]


def plan_all_chunks(
    connection: Connection, wanted: Sequence[tuple[TableDefinition, int]]
) -> dict[TableName, list[KeyChunk]]:
    """Cut several tables, see `plan_chunks`, each into chunks of about so many rows.

    One statement asks for the next facts of all of them, so the number of statements depends on the
    largest table, not on the number of tables.
    """
    for _, target in wanted:
        if target < 1:
            raise ValueError(f"not a number of rows: {target}")
    keyed = [
        _Keyed(definition, tuple(key), target)
        for definition, target in wanted
        if (key := _usable_key(definition))
    ]
    bounds = _numeric(connection, [one for one in keyed if one.is_integer])
    bounds |= _sample_keys(connection, [one for one in keyed if not one.is_integer])
    keys = {one.table: one for one in keyed}
    return {
        definition.name: _chunks(definition, keys.get(definition.name), bounds, target)
        for definition, target in wanted
    }


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A table that can be cut by its key, into chunks of about `target` rows."""

    definition: TableDefinition
    key: tuple[ColumnDefinition, ...]
    target: int

    @property
    def table(self) -> TableName:
        return self.definition.name

    @property
    def is_integer(self) -> bool:
        return len(self.key) == 1 and _base(self.key[0]) in _INTEGERS


def _chunks(
    definition: TableDefinition,
    keyed: _Keyed | None,
    bounds: Mapping[TableName, Sequence[tuple[Bound, int]]],
    target: int,
) -> list[KeyChunk]:
    whole = KeyChunk(table=definition.name, number=1, row_estimate=definition.row_estimate)
    if keyed is None:
        return [whole]
    found = bounds.get(definition.name, ())
    names = tuple(column.name for column in keyed.key)
    ends: list[Bound | None] = [None, *(bound for bound, _ in found), None]
    estimates = [estimate for _, estimate in found]
    return [
        replace(
            whole,
            number=place + 1,
            key=names,
            lower=ends[place],
            upper=ends[place + 1],
            row_estimate=estimates[place] if place < len(estimates) else target,
        )
        for place in range(len(ends) - 1)
    ]


def _together(connection: Connection, selects: Sequence[str], *, explain: bool = False) -> _Found:
    """Return the rows of many selects, combined into few statements. explain: use EXPLAIN's rows.

    A row's `place` says which select it belongs to; EXPLAIN's rows have `id`, counted from 1.
    """
    found: _Found = []
    for at in range(0, len(selects), SELECTS_AT_ONCE):
        some = selects[at : at + SELECTS_AT_ONCE]
        statement = " union all ".join(some)
        if explain:
            statement = f"explain format = traditional {statement}"
        found += rows(connection, statement, doing="planning the chunks of tables")
    return found


def _base(column: ColumnDefinition) -> str:
    parsed = parse_type(column.type_text)
    return parsed.base if parsed is not None else ""


def _usable_key(definition: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns of the key if each of them has an exact text; else an empty list."""
    if definition.identity is Identity.FULL:
        return []
    by_name = {column.name: column for column in definition.columns}
    key = [by_name[name] for name in definition.identity_columns]
    known = _NUMBERS | _BY_NUMBER | _TEXTS | _BYTES | _QUOTED
    return key if all(_base(column) in known for column in key) else []


def _read_and_write(column: ColumnDefinition) -> tuple[str, Callable[[str], str]]:
    """Return the expression for a value's exact text, and the function that makes a literal
    of it.
    """
    name, base = quote(column.name), _base(column)
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
    connection: Connection, tables: Sequence[_Keyed]
) -> dict[TableName, list[tuple[Bound, int]]]:
    """Return bounds between the least and the greatest value, each with the estimate below it."""
    open_ranges = [
        _Range(tables[int(row["place"])], int(row["low"]), int(row["high"]))
        for row in _together(connection, [_ends(place, one) for place, one in enumerate(tables)])
        if row["low"] is not None
    ]
    pieces: dict[TableName, list[tuple[int, int]]] = {}  # first value, estimate
    while open_ranges:
        counts = _estimates(connection, open_ranges)
        halved: list[_Range] = []
        for one, count in zip(open_ranges, counts, strict=True):
            if count <= one.of.target or one.low == one.high:
                pieces.setdefault(one.of.table, []).append((one.low, count))
                continue
            middle = (one.low + one.high) // 2
            halved += [_Range(one.of, one.low, middle), _Range(one.of, middle + 1, one.high)]
        open_ranges = halved
    targets = {one.table: one.target for one in tables}
    return {table: _join_small(sorted(found), targets[table]) for table, found in pieces.items()}


@dataclass(frozen=True, slots=True)
class _Range:
    """Values of a key, from low to high, both included."""

    of: _Keyed
    low: int
    high: int


def _ends(place: int, one: _Keyed) -> str:
    name = quote(one.key[0].name)
    return (
        f"select {place} as place, cast(min({name}) as char) as low,"
        f" cast(max({name}) as char) as high from {quote(*one.table)}"
    )


def _estimates(connection: Connection, ranges: Sequence[_Range]) -> list[int]:
    """Return how many rows the server estimates to be in each range."""
    counts = []
    for at in range(0, len(ranges), SELECTS_AT_ONCE):
        some = ranges[at : at + SELECTS_AT_ONCE]
        selects = [
            f"select {quote(one.of.key[0].name)} from {quote(*one.of.table)}"
            f" where {quote(one.of.key[0].name)} between {one.low} and {one.high}"
            for one in some
        ]
        explained = _together(connection, selects, explain=True)
        by_select = {int(row["id"]): int(row["rows"] or 0) for row in explained if row["id"]}
        counts += [by_select[number] for number in range(1, len(some) + 1)]
    return counts


def _join_small(pieces: Sequence[tuple[int, int]], target: int) -> list[tuple[Bound, int]]:
    """Join neighbours that are small enough together."""
    bounds: list[tuple[Bound, int]] = []
    gathered = pieces[0][1]
    for low, count in pieces[1:]:
        if gathered + count > target:
            bounds.append(((str(low),), gathered))
            gathered = 0
        gathered += count
    return bounds


# -- every other key -------------------------------------------------------------------------------


def _sample_keys(
    connection: Connection, tables: Sequence[_Keyed]
) -> dict[TableName, list[tuple[Bound, int]]]:
    """Return every target-th key, each found from the previous one."""
    bounds: dict[TableName, list[tuple[Bound, int]]] = {one.table: [] for one in tables}
    width = max((len(one.key) for one in tables), default=0)
    waiting = list(range(len(tables)))
    while waiting:
        selects = [_next(place, tables[place], bounds, width) for place in waiting]
        waiting = []
        for row in sorted(_together(connection, selects), key=lambda row: int(row["place"])):
            place = int(row["place"])
            one = tables[place]
            writers = [_read_and_write(column)[1] for column in one.key]
            bound = tuple(write(str(row[f"c{at}"])) for at, write in enumerate(writers))
            bounds[one.table].append((bound, one.target))
            waiting.append(place)
    return bounds


def _next(
    place: int, one: _Keyed, bounds: Mapping[TableName, Sequence[tuple[Bound, int]]], width: int
) -> str:
    """Return the select of the key that is `target` rows after the last bound."""
    names = tuple(column.name for column in one.key)
    texts = [_read_and_write(column)[0] for column in one.key]
    texts += ["null"] * (width - len(texts))
    listed = ", ".join(f"{text} as c{at}" for at, text in enumerate(texts))
    found = bounds[one.table]
    condition = _from(names, found[-1][0]) if found else "true"
    order = ", ".join(quote(name) for name in names)
    return (
        f"(select {place} as place, {listed} from {quote(*one.table)} where {condition} "
        f"order by {order} limit 1 offset {one.target})"
    )
