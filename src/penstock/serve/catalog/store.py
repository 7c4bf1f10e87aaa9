"""SQLite with the catalogue's tables in it, and the functions that bound queries call.

It is in memory, one for each catalogue. A query that takes too many steps is ended.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.functions import REGISTRY, Context, Function
from penstock.serve.catalog.functions_values import time_difference
from penstock.serve.catalog.names import print_reg, read_reg
from penstock.serve.catalog.patterns import is_match
from penstock.serve.catalog.types import (
    BOOL,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    RANGES,
    json_of,
    print_record,
    print_value,
    read_value,
)

_STEPS_MAX = 50_000_000  # of SQLite's machine: about two seconds
_STEPS_BETWEEN = 100_000
_STEPS_PER_CALL = 200  # of our functions, which take about as long as this many steps
_STEPS_PER_LETTER = 1
_VALUE_BYTES_MAX = 24 << 20  # all changes of a slot in one answer
_ANSWER_BYTES_MAX = 64 << 20
_INDEXED = (
    "oid",
    "attrelid",
    "relname",
    "typname",
    "nspname",
    "indexrelid",
    "indrelid",
    "conrelid",
)
_ROWS_MAX = 1_000_000

Row = Mapping[str, Any]


class Store:
    """Tables of the catalogue.

    Attributes:
        held: the columns of each table.
    """

    def __init__(self, context: Context) -> None:
        """Create the functions; the context's session is that of the running query."""
        self._context = context
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES_MAX)
        self._raised: Exception | None = None
        self._steps = 0
        self._fixed_rows: dict[str, int] = {}
        self.held: dict[str, frozenset[str]] = {}
        self._connection.set_progress_handler(self._progress, _STEPS_BETWEEN)
        self._declare()

    def create(self, name: str, columns: Iterable[str], rows: Iterable[Row]) -> None:
        """Create a table with permanent rows. Values are kept as they are: columns have no type."""
        names = [f'"{column}"' for column in columns]
        self._connection.execute(f'CREATE TABLE "{name}" ({", ".join(names)})')
        self.held[name] = frozenset()
        for column in columns:
            if column in _INDEXED:
                self._connection.execute(f'CREATE INDEX "{name}_{column}" ON "{name}" ("{column}")')
        self._columns = getattr(self, "_columns", {})
        self._columns[name] = list(columns)
        self.insert(name, rows)
        found = self._connection.execute(f'SELECT max(rowid) FROM "{name}"').fetchone()
        self._fixed_rows[name] = found[0] or 0

    def hold(self, name: str, columns: Iterable[str]) -> None:
        """Set which columns of a table have values."""
        self.held[name] = frozenset(columns)

    def replace(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows that are not permanent."""
        fixed = self._fixed_rows[name]
        self._connection.execute(f'DELETE FROM "{name}" WHERE rowid > ?', (fixed,))
        self.insert(name, rows)

    def insert(self, name: str, rows: Iterable[Row]) -> None:
        """Add rows; a column that a row leaves out is NULL."""
        columns = self._columns[name]
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f'INSERT INTO "{name}" VALUES ({marks})',
            ([_cell(row.get(column)) for column in columns] for row in rows),
        )

    def run(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a bound query.

        Raises Refused: that of a function, 57014, 54000.
        """
        self._raised, self._steps = None, 0
        found: list[tuple[Any, ...]] = []
        size = 0
        try:
            for row in self._connection.execute(sql, dict(parameters)):
                size += sum(len(cell) for cell in row if isinstance(cell, str))
                if len(found) >= _ROWS_MAX or size > _ANSWER_BYTES_MAX:
                    raise Refused("54000", "the answer has too many rows")
                found.append(row)
        except (sqlite3.Error, OverflowError) as error:
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised from None
            if "too big" in str(error):
                raise Refused("54000", "a value has too many letters") from None
            raise Refused("XX000", f"the catalogue could not run its query: {error}") from error
        return found

    def _spend(self, given: Iterable[Any]) -> None:
        """Count a call as steps. Raises Refused: 57014."""
        letters = sum(len(value) for value in given if isinstance(value, str))
        self._steps += _STEPS_PER_CALL + letters * _STEPS_PER_LETTER
        if self._steps > _STEPS_MAX:
            raise _too_long()

    def _progress(self) -> int:
        self._steps += _STEPS_BETWEEN
        if self._steps > _STEPS_MAX:
            self._raised = _too_long()
            return 1
        return 0

    # -- functions ----------------------------------------------------------------------------

    def _declare(self) -> None:
        for declared in (one for found in REGISTRY.values() for one in found):
            self._function(declared.key, self._wrap(declared))
        context = self._context
        types = context.types
        simple = {
            "pg_read": lambda oid, value: read_value(
                types, oid, value, lambda kind, name: read_reg(context, kind, name)
            ),
            "pg_text": self._text,
            "pg_whole": self._whole,
            "pg_round": lambda oid, value: self._whole(oid, round(value)),
            "pg_calculate": self._calculate,
            "pg_array_cast": self._array_cast,
            "pg_record": self._record,
            "pg_time_difference": time_difference,
            "pg_subscript": _subscript,
            "pg_array_lower": lambda array, one, first: (
                first if one == 1 and _size(array) else None
            ),
            "pg_array_upper": lambda array, one, first: (
                first + _size(array) - 1 if one == 1 and _size(array) else None
            ),
        }
        for name, call in simple.items():
            self._function(name, _strict(call))
        self._function("pg_any", lambda *given: _any(*given))
        self._function("pg_all", lambda *given: _negate(_any(_OPPOSITE[given[0]], *given[1:])))
        self._function("pg_match", _strict(_match))
        self._function("pg_array", lambda *cells: json_of(cells))
        self._function("pg_rows_of", lambda value: json_of([[value]]))
        self._function("pg_join", self._join)
        self._function("pg_greatest", lambda *given: max(_not_null(given), default=None))
        self._function("pg_least", lambda *given: min(_not_null(given), default=None))
        self._aggregate("pg_one", _One)
        self._aggregate("pg_collect", _Collect)
        self._aggregate("pg_rows", _Rows)
        self._aggregate("pg_array_agg", _ArrayAgg)
        self._aggregate("pg_string_agg", _StringAgg)

    def _function(self, name: str, call: Any) -> None:
        def guard(*given: Any) -> Any:
            try:
                self._spend(given)
                return call(*given)
            except Exception as error:
                self._raised = error
                raise

        self._connection.create_function(name, -1, guard)

    def _wrap(self, declared: Function) -> Any:
        context = self._context

        def call(*given: Any) -> Any:
            if declared.strict and None in given:
                return "[]" if declared.returns_set else None
            made = declared.call(context, *given)
            return json_of(made) if declared.returns_set else made

        return call

    def _aggregate(self, name: str, kind: Any) -> None:
        store = self

        class Guarded(kind):  # type: ignore[misc]
            def step(self, *given: Any) -> None:
                try:
                    store._spend(given)
                    super().step(*given)
                except Exception as error:
                    store._raised = error
                    raise

        self._connection.create_aggregate(name, -1, Guarded)

    def _text(self, oid: int, value: Any) -> str | None:
        if self._context.types.base_of(oid)[0] == BOOL:
            return "true" if value else "false"
        context = self._context
        return print_value(
            context.types, oid, value, lambda kind, number: print_reg(context, kind, number)
        )

    def _whole(self, oid: int, value: int) -> int:
        low, high = RANGES.get(oid, (0, 2**32 - 1))
        if not low <= value <= high:
            raise Refused("22003", f"{self._context.types.name(oid)} out of range")
        return value

    def _calculate(self, operator: str, oid: int, one: Any, other: Any) -> Any:
        if operator in "/%" and other == 0:
            raise Refused("22012", "division by zero")
        whole = oid in INTEGERS
        if operator == "/":
            if oid == NUMERIC:
                raise Refused("0A000", "not supported: division of numeric")
            made = _divide(one, other) if whole else one / other
        elif operator == "%":
            made = one - other * _divide(one, other)
        else:
            made = _ARITHMETIC[operator](one, other)
        return self._whole(oid, made) if oid in (INT2, INT4, INT8) else made

    def _array_cast(self, inner: int, outer: int, array: str) -> str:
        context = self._context

        def reg(kind: int, name: str) -> int:
            return read_reg(context, kind, name)

        cells = [None if c is None else self._text(inner, c) for c in json.loads(array)]
        return json_of(
            [None if c is None else read_value(context.types, outer, c, reg) for c in cells]
        )

    def _record(self, oids: str, row: str) -> str:
        kinds = [int(oid) for oid in oids.split(",")]
        context = self._context
        return print_record(
            context.types, kinds, row, lambda kind, number: print_reg(context, kind, number)
        )

    def _join(self, oid: int, array: str | None, separator: str | None, null: Any = None) -> Any:
        if array is None or separator is None:
            return None
        cells = json.loads(array)
        shown = [null if cell is None else self._print(oid, cell) for cell in cells]
        return separator.join(cell for cell in shown if cell is not None)

    def _print(self, oid: int, value: Any) -> str | None:
        context = self._context
        return print_value(
            context.types, oid, value, lambda kind, number: print_reg(context, kind, number)
        )


def _too_long() -> Refused:
    return Refused("57014", "canceling statement: it takes too many steps")


def _cell(value: Any) -> Any:
    return json_of(value) if isinstance(value, list | tuple) else value


def _strict(call: Any) -> Any:
    return lambda *given: None if None in given else call(*given)


def _not_null(given: Iterable[Any]) -> list[Any]:
    return [value for value in given if value is not None]


def _size(array: str) -> int:
    return len(json.loads(array))


def _subscript(array: str, number: int, first: int) -> Any:
    cells = json.loads(array)
    place = number - first
    return cells[place] if 0 <= place < len(cells) else None


def _divide(one: int, other: int) -> int:
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


_ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
}


def _match(operator: str, value: str, pattern: str, escape: str = "\\") -> int:
    return int(is_match(operator, value, pattern, escape))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "~~": lambda a, b: _match("~~", a, b),
    "~~*": lambda a, b: _match("~~*", a, b),
    "~": lambda a, b: _match("~", a, b),
    "~*": lambda a, b: _match("~*", a, b),
    "!~~": lambda a, b: not _match("~~", a, b),
    "!~~*": lambda a, b: not _match("~~*", a, b),
    "!~": lambda a, b: not _match("~", a, b),
    "!~*": lambda a, b: not _match("~*", a, b),
}
_OPPOSITE = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "~~": "!~~",
    "~~*": "!~~*",
    "~": "!~",
    "~*": "!~*",
}


def _any(operator: str, left: Any, array: str | None) -> int | None:
    """Return `left operator ANY (array)` with the logic of NULL."""
    if array is None:
        return None
    unknown = False
    for cell in json.loads(array):
        if left is None or cell is None:
            unknown = True
        elif _COMPARE[operator](left, cell):
            return 1
    return None if unknown else 0


def _negate(value: int | None) -> int | None:
    return None if value is None else 1 - value


class _One:
    """Value of a subquery that may have at most one row."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def step(self, value: Any) -> None:
        if self._values:
            raise Refused("21000", "more than one row returned by a subquery used as an expression")
        self._values.append(value)

    def finalize(self) -> Any:
        return self._values[0] if self._values else None


class _Collect:
    """All values as an array. Without rows SQLite returns NULL, as for all our aggregates."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def step(self, value: Any) -> None:
        self._values.append(value)

    def finalize(self) -> str:
        return json_of(self._values)


class _Rows:
    """All rows as an array of arrays."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def step(self, *cells: Any) -> None:
        self._rows.append(cells)

    def finalize(self) -> str:
        return json_of(self._rows)


class _Ordered:
    """Aggregate over values in an order. Each sort key has flags: 2 for DESC, 1 for NULLS FIRST."""

    keep_null = True

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[Any, ...], Any]] = []
        self._distinct, self._separator = False, ""

    def step(self, distinct: int, separator: Any, value: Any, *keys: Any) -> None:
        self._distinct = bool(distinct)
        if value is None and not self.keep_null:
            return
        if separator is not None:
            self._separator = separator
        self._rows.append((keys, value))

    def values(self) -> list[Any]:
        """Return all values, in their order."""
        rows = self._rows
        count = len(rows[0][0]) // 2 if rows else 0
        for number in reversed(range(count)):
            flags = rows[0][0][2 * number]
            nulls = [row for row in rows if row[0][2 * number + 1] is None]
            others = [row for row in rows if row[0][2 * number + 1] is not None]
            others.sort(key=lambda row: row[0][2 * number + 1], reverse=bool(flags & 2))
            rows = nulls + others if flags & 1 else others + nulls
        found = [value for _, value in rows]
        if not self._distinct:
            return found
        unique = list(dict.fromkeys(found))
        return sorted(unique, key=lambda value: (value is None, value))


class _ArrayAgg(_Ordered):
    def finalize(self) -> str | None:
        return json_of(self.values()) if self._rows else None


class _StringAgg(_Ordered):
    keep_null = False

    def finalize(self) -> str | None:
        return self._separator.join(self.values()) if self._rows else None
