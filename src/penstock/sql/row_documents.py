"""Rows as JSON objects on their way into a table, and the column of each property.

SQL engines share this part of `ports.row_apply`. Pure. Not here: the conversion of a JSON value to
a column's type, and the statements (the engines' `row_apply`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from penstock.model import ColumnDefinition, TableDefinition
from penstock.ports.feeds import Mutation, has_other_key_order
from penstock.ports.row_apply import RowKeyMissing, RowRules, ValueUnfit, schema_drift, value_unfit

Fields = dict[str, msgspec.Raw]
VALUE = "$0"
"""Placeholder of the value in an expression of the user's module."""
EXPONENT_MAX = 10_000
_NULL = msgspec.Raw(b"null")
_FIELDS = msgspec.json.Decoder(Fields)
_KEY = msgspec.json.Decoder(list[msgspec.Raw])
# Searched in a whole object: most objects have no match, and their values are not looked at.
_MAY_HAVE_EXPONENT = re.compile(rb"[0-9][eE][+-]?[0-9]")
_EXPONENT = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?[eE]([+-]?[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Rows with the same columns and different keys.

    Attributes:
        columns: those written from a property, in the table's order.
        properties: names of these columns in the rows.
        rows: values by property; properties without a column are removed.
    """

    columns: tuple[ColumnDefinition, ...]
    properties: tuple[str, ...]
    rows: list[Fields] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)

    def chunks(self, count: int) -> Iterable[Documents]:
        """Yield the same rows in parts of at most `count` rows."""
        for start in range(0, len(self.rows), count):
            yield Documents(
                columns=self.columns,
                properties=self.properties,
                rows=self.rows[start : start + count],
                mutations=self.mutations[start : start + count],
            )

    def without(self, places: Iterable[int]) -> Documents:
        """Return the documents without these rows."""
        gone = set(places)
        kept = [place for place in range(len(self.rows)) if place not in gone]
        return self.only(kept)

    def only(self, places: Sequence[int]) -> Documents:
        """Return the documents with only these rows."""
        return Documents(
            columns=self.columns,
            properties=self.properties,
            rows=[self.rows[place] for place in places],
            mutations=[self.mutations[place] for place in places],
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns for objects with the same properties."""

    columns: tuple[ColumnDefinition, ...]
    properties: tuple[str, ...]
    key: tuple[str, ...]  # properties
    dropped: tuple[str, ...]
    unmapped: tuple[str, ...]
    added: tuple[str, ...]  # properties of columns whose expression needs none


def key_columns(table: TableDefinition) -> tuple[ColumnDefinition, ...]:
    """Return the columns of the primary key, in its order. Raises RowKeyMissing."""
    by_name = {column.name: column for column in table.columns}
    if not table.primary_key:
        raise RowKeyMissing(
            f"target table {table.name} has no primary key",
            hint=f"Give it the source's: alter table {table.name} add primary key (...);",
            table=str(table.name),
        )
    return tuple(by_name[name] for name in table.primary_key)


def fields_of(table: TableDefinition, mutation: Mutation, document: bytes) -> Fields:
    """Return the properties of an object. Raises SchemaDrift if it is not an object."""
    try:
        return _FIELDS.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise schema_drift(str(table.name), f"not an object: {error}", mutation) from error


def by_columns(
    table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]
) -> list[Documents]:
    """Return the rows grouped by their columns; of rows with the same key only the last.

    Raises SchemaDrift, RowKeyMissing.
    """
    key_columns(table)
    layouts: dict[tuple[str, ...], _Layout] = {}
    groups: dict[tuple[str, ...], Documents] = {}
    seen: dict[tuple[bytes, ...], tuple[Documents, int]] = {}
    for mutation in mutations:
        assert mutation.after is not None
        _check_key_order(table, mutation)
        fields = fields_of(table, mutation, mutation.after)
        if _MAY_HAVE_EXPONENT.search(mutation.after):
            fields = {name: plain_number(raw) for name, raw in fields.items()}
        names = tuple(fields)
        layout = layouts.get(names)
        if layout is None:
            layout = layouts[names] = _layout(table, rules, names, mutation)
        extras = {name: fields.pop(name) for name in layout.unmapped}
        for name in layout.dropped:
            del fields[name]
        if rules.extras:
            fields[rules.extras] = msgspec.Raw(msgspec.json.encode(extras))
        for name in layout.added:
            fields[name] = _NULL
        group = groups.get(layout.properties)
        if group is None:
            group = Documents(columns=layout.columns, properties=layout.properties)
            groups[layout.properties] = group
        key = tuple(bytes(fields[name]) for name in layout.key)
        earlier = seen.get(key)
        if earlier is not None:
            earlier[0].mutations[earlier[1]] = _GONE
        seen[key] = (group, len(group.rows))
        group.rows.append(fields)
        group.mutations.append(mutation)
    return [
        group.without(place for place, one in enumerate(group.mutations) if one is _GONE)
        for group in groups.values()
    ]


def _check_key_order(table: TableDefinition, mutation: Mutation) -> None:
    """Raise SchemaDrift if the target's key columns are in another order than the source's."""
    image = mutation.before if mutation.after is None else mutation.after
    if has_other_key_order(table.primary_key, mutation.key, image):
        key = ", ".join(table.primary_key)
        what = f"the key columns ({key}) are in another order than the source's"
        raise schema_drift(str(table.name), what, mutation)


def _layout(
    table: TableDefinition, rules: RowRules, names: tuple[str, ...], mutation: Mutation
) -> _Layout:
    by_name = {column.name: column for column in table.columns}
    folded = {column.name.lower(): column for column in table.columns}
    found: dict[str, tuple[ColumnDefinition, str]] = {}
    dropped, unmapped = [], []
    for name in names:
        column = by_name.get(name) or folded.get(name.lower())
        if name in rules.ignore or (column is not None and column.name in rules.ignore):
            dropped.append(name)
        elif column is None or column.name in found or column.name == rules.extras:
            unmapped.append(name)
        elif column.generated:
            dropped.append(name)
        else:
            found[column.name] = column, name
    if unmapped and not rules.extras:
        raise schema_drift(
            str(table.name), f"unexpected columns [{' '.join(sorted(unmapped))}]", mutation
        )
    if rules.extras:
        found[rules.extras] = by_name[rules.extras], rules.extras
    written_keys = [name for name in table.primary_key if not by_name[name].generated]
    missing = [name for name in written_keys if name not in found]
    if missing:
        raise schema_drift(
            str(table.name), f"missing PK column {', '.join(sorted(missing))}", mutation
        )
    if len(written_keys) < len(table.primary_key):
        raise RowKeyMissing(
            f"the primary key of target table {table.name} has a generated column",
            hint="Make its primary key of columns that the source has.",
            table=str(table.name),
        )
    added = [name for name, sql in rules.exprs.items() if name not in found and VALUE not in sql]
    found.update((name, (by_name[name], name)) for name in added)
    ordered = [found[column.name] for column in table.columns if column.name in found]
    return _Layout(
        columns=tuple(column for column, _ in ordered),
        properties=tuple(name for _, name in ordered),
        key=tuple(found[name][1] for name in table.primary_key),
        dropped=tuple(dropped),
        unmapped=tuple(unmapped),
        added=tuple(added),
    )


_GONE = Mutation.__new__(Mutation)


def by_key(table: TableDefinition, mutations: Sequence[Mutation]) -> Documents:
    """Return the keys of rows as objects of the key's columns.

    Raises SchemaDrift, RowKeyMissing.
    """
    columns = key_columns(table)
    names = tuple(column.name for column in columns)
    keys = Documents(columns=columns, properties=names)
    for mutation in mutations:
        _check_key_order(table, mutation)
        try:
            values = _KEY.decode(mutation.key)
        except (msgspec.DecodeError, RecursionError) as error:
            raise schema_drift(str(table.name), f"no array as key: {error}", mutation) from error
        if len(values) != len(columns):
            raise schema_drift(
                str(table.name),
                f"inconsistent number of key columns: received {len(values)} expect {len(columns)}",
                mutation,
            )
        keys.rows.append({name: plain_number(raw) for name, raw in zip(names, values, strict=True)})
        keys.mutations.append(mutation)
    return keys


def plain_number(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a number's digits without an exponent, as integers need; anything else unchanged."""
    text = bytes(raw)
    match = _EXPONENT.fullmatch(text)
    if match is None or abs(int(match[1])) > EXPONENT_MAX:
        return raw
    return msgspec.Raw(format(Decimal(text.decode()), "f").encode())


def as_document(fields: Fields) -> bytes:
    """Return the object's JSON."""
    return msgspec.json.encode(fields)


def lenient(
    table: TableDefinition, rules: RowRules, fields: Fields
) -> tuple[dict[str, msgspec.Raw], dict[str, msgspec.Raw]]:
    """Return the values that have a column, by column, and the properties without one."""
    names = {column.name.lower(): column for column in table.columns}
    mapped, others = {}, {}
    for name, raw in fields.items():
        column = names.get(name.lower())
        if name in rules.ignore or (column is not None and column.name in rules.ignore):
            continue
        if column is None or column.name == rules.extras:
            others[name] = raw
        elif not column.generated:
            mapped[column.name] = plain_number(raw)
    return mapped, others


def show_row(canonical: Fields, others: Fields, extras: str) -> bytes:
    """Return a row as a function of the user's module sees it, with the contents of extras as
    properties.

    Args:
        canonical: the row's columns as the target spells them.
        others: properties without a column.
        extras: the column that holds other properties.
    """
    kept = {name: raw for name, raw in canonical.items() if name != extras}
    held = bytes(canonical[extras]) if extras in canonical else b"null"
    inside = _FIELDS.decode(held) if held.startswith(b"{") else {}
    return msgspec.json.encode({**inside, **others, **kept})


def absent_required(table: TableDefinition, documents: Documents) -> list[ColumnDefinition]:
    """Return the columns that an insert must give a value, though the rows have none.

    Their value is read back from the target.
    """
    written = set(documents.names)
    return [
        column
        for column in table.columns
        if column.name not in written
        and column.not_null
        and column.default is None
        and not column.generated
        and not column.identity_kind
    ]


def unfit(table: TableDefinition, column: ColumnDefinition) -> ValueUnfit:
    """Return the error for a value that a column cannot hold."""
    return value_unfit(str(table.name), column.name, column.type_text)
