"""Names while a query is bound: expressions with their types, and the visible tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.types import RECORD, UNKNOWN

Fields = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Expression in SQLite's SQL, with its known properties.

    Attributes:
        type: an oid, UNKNOWN for a literal or parameter that may become any.
        name: of the column that it makes.
        strength: how much of a name that is, as in the server.
        origin: table and number of the column that it is.
        literal: its text, if it is a literal.
        parameter: its number, if its type is open.
        fields: of a row.
    """

    sql: str
    type: int
    typmod: int = -1
    name: str = "?column?"
    strength: int = 0
    origin: tuple[int, int] = (0, 0)
    literal: str | None = None
    parameter: int = 0
    fields: Fields = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Query in SQLite's SQL, whose columns are named c1, c2, ... SQLite's parser has a depth
    limit.

    Attributes:
        single: it has at most one row.
        form: `select`, `compound` (of such) or `ordered`: UNION can take it as it is, only from
            the left, or not.
    """

    sql: str
    columns: tuple[Bound, ...]
    single: bool = False
    form: str = "ordered"


@dataclass(slots=True, kw_only=True)
class Item:
    """Table in FROM.

    Attributes:
        columns: by name, in order.
        hidden: those that USING has merged.
        refused: why a column is not available, by its name.
        hidden_refused: as refused, for columns that `*` leaves out.
        hidden_columns: columns that `*` leaves out.
        key: of a row, for GROUP BY.
    """

    alias: str
    columns: list[Bound]
    hidden: set[str] = field(default_factory=set)
    refused: dict[str, Refused] = field(default_factory=dict)
    hidden_refused: dict[str, Refused] = field(default_factory=dict)
    hidden_columns: dict[str, Bound] = field(default_factory=dict)
    key: str = ""

    def find_columns(self, name: str) -> list[Bound]:
        """Return its columns of this name."""
        if name in self.hidden_columns:
            return [self.hidden_columns[name]]
        why = self.refused.get(name) or self.hidden_refused.get(name)
        if why is not None:
            raise why
        return [column for column in self.columns if column.name == name]

    def all(self) -> list[Bound]:
        """Return all columns, in order."""
        if self.refused:
            raise next(iter(self.refused.values()))
        return self.columns


@dataclass(slots=True, kw_only=True)
class Scope:
    """Tables of one SELECT, and of the enclosing queries.

    Attributes:
        bare: columns used outside of aggregates.
        set_calls: calls of functions that return sets in the select list, as JSON in SQLite's SQL.
    """

    parent: Scope | None = None
    items: list[Item] = field(default_factory=list)
    merged: list[Bound] = field(default_factory=list)
    bare: list[tuple[str, str]] = field(default_factory=list)
    inside_aggregate: int = 0
    has_aggregate: bool = False
    may_aggregate: bool = True
    may_return_sets: bool = False
    set_calls: list[str] = field(default_factory=list)

    def column(self, name: str, table: str | None) -> Bound:
        """Return the column for a name. Raises Refused: 42703, 42702, 42P01, 0A000."""
        scope: Scope | None = self
        seen_table = False
        while scope is not None:
            found, seen = scope._here(name, table)
            seen_table = seen_table or seen
            if len(found) > 1:
                raise Refused("42702", f'column reference "{name}" is ambiguous')
            if found:
                item, bound = found[0]
                if not scope.inside_aggregate:
                    scope.bare.append((item.key if item else "", bound.sql))
                return replace(bound, name=name, strength=2)
            if seen:
                break
            scope = scope.parent
        if table is not None and not seen_table:
            raise Refused("42P01", f'missing FROM-clause entry for table "{table}"')
        full = name if table is None else f"{table}.{name}"
        shown = f'"{name}"' if table is None else full
        raise Refused("42703", f"column {shown} does not exist")

    def _here(self, name: str, table: str | None) -> tuple[list[tuple[Item | None, Bound]], bool]:
        if table is not None:
            items = [item for item in self.items if item.alias == table]
            return [(i, b) for i in items for b in i.find_columns(name)], bool(items)
        merged = [(None, column) for column in self.merged if column.name == name]
        if merged:
            return list(merged), False
        found: list[tuple[Item | None, Bound]] = []
        for item in self.items:
            if name not in item.hidden:
                found += [(item, bound) for bound in item.find_columns(name)]
        return found, False

    def star(self, table: str | None) -> Iterator[Bound]:
        """Yield the columns of `*` or `table.*`. Raises Refused: 42P01, 42601."""
        scope: Scope | None = self
        while scope is not None:
            items = [item for item in scope.items if table is None or item.alias == table]
            if items or table is None:
                break
            scope = scope.parent
        if scope is None or not items:
            if table is None:
                raise Refused("42601", "SELECT * with no tables specified is not valid")
            raise Refused("42P01", f'missing FROM-clause entry for table "{table}"')
        if table is None:
            yield from self.merged
        for item in items:
            for bound in item.all():
                if table is not None or bound.name not in item.hidden:
                    scope.bare.append((item.key, bound.sql))
                    yield replace(bound, strength=2)

    def add(self, item: Item) -> None:
        """Make a table visible. Raises Refused: 42712."""
        if any(other.alias == item.alias for other in self.items):
            raise Refused("42712", f'table name "{item.alias}" specified more than once')
        self.items.append(item)


def text(value: str) -> str:
    """Return a text as a literal of SQLite."""
    if "\0" in value:
        raise Refused("22021", "invalid byte sequence for encoding")
    return "'" + value.replace("'", "''") + "'"


def literal(value: str) -> Bound:
    """Return a text whose type is open."""
    return Bound(sql=text(value), type=UNKNOWN, literal=value)


def whole(bound: Bound) -> Bound:
    """Return the row of a function as a single value, as the server prints records."""
    if not bound.fields or bound.type != RECORD:
        return bound
    oids = ",".join(f"{oid}" for _, oid in bound.fields)
    return replace(bound, sql=f"pg_record({text(oids)}, {bound.sql})", fields=())
