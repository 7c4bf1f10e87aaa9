"""Shapes of rows of a group: the columns of the target's tables that its feeds mention.

A shape holds for whole windows. When a line has a column that no earlier line had, or a value that
only text can hold, the shape is replaced and the window is read again from its beginning
(ShapeChanged), so that a target transaction never ends at a change of shape inside a window. The
columns found are stored beside the log (`shapes.json`). Not here: values (`values.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from penstock.host.state_file import StateFiles
from penstock.model import Column, ColumnDefinition, PenstockError, Relation, TableDefinition
from penstock.ports.feeds import StagedTable

SHAPES_FILE = "shapes.json"


class ShapeChanged(PenstockError):
    """A line inside a window needs another shape of its table: the window is read again."""

    code = "ST40"
    retry = "backoff"


class SchemaDriftDetected(PenstockError):
    """A line has a property without a column in the target's table, or lacks a key column."""

    code = "ST41"
    retry = "operator"


class StagedTableUnknown(PenstockError):
    """Mutations are staged for a table that the target does not have, or that has no key."""

    code = "ST42"
    retry = "operator"


class Remembered(msgspec.Struct, kw_only=True):
    """Stored state of a table.

    Attributes:
        seen: columns that lines had.
        text: columns that are kept as exact text.
        version: of its relation in this log.
        shape: the columns of this version, with types.
    """

    seen: list[str] = []
    text: list[str] = []
    version: int = 0
    shape: list[tuple[str, str, str]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a table in the log.

    Attributes:
        ignored: columns that the target computes.
        names: all columns of the target's table, by which lines are read.
        defaults: defaults of the relation's columns, as JSON.
    """

    table: StagedTable
    relation: Relation
    names: tuple[str, ...]
    ignored: frozenset[str]
    key: tuple[str, ...]
    seen: frozenset[str]
    defaults: Mapping[str, bytes]


@dataclass
class Shapes:
    """Shapes of a group's tables. definitions: reads them from the target's catalogue."""

    definitions: Callable[[], Mapping[StagedTable, TableDefinition]]
    files: StateFiles
    _known: dict[str, Remembered] = field(default_factory=dict)
    _tables: Mapping[StagedTable, TableDefinition] = field(default_factory=dict)
    _shapes: dict[StagedTable, Shape] = field(default_factory=dict)

    def load(self) -> None:
        """Read the catalogue and the stored state. Raises the errors of both."""
        self._known = self.files.load(SHAPES_FILE, dict[str, Remembered]) or {}
        self._tables = self.definitions()
        self._shapes = {}

    def of(self, table: StagedTable) -> Shape:
        """Return the shape of a table's rows. Raises StagedTableUnknown."""
        found = self._shapes.get(table)
        if found is None:
            found = self._shapes[table] = self._make_shape(table)
        return found

    def grow(
        self, table: StagedTable, *, seen: Iterable[str] = (), text: Iterable[str] = ()
    ) -> None:
        """Add columns to a shape, or make columns text whose values only text can hold."""
        kept = self._remember(table)
        kept.seen = sorted({*kept.seen, *seen})
        kept.text = sorted({*kept.text, *text})
        self._shapes.pop(table, None)

    def _remember(self, table: StagedTable) -> Remembered:
        return self._known.setdefault(table.name, Remembered())

    def _make_shape(self, table: StagedTable) -> Shape:
        if table not in self._tables:
            self._tables = self.definitions()  # the table may have been created since
        definition = self._tables.get(table)
        if definition is None or not definition.primary_key:
            what = "the target has no such table" if definition is None else "it has no primary key"
            raise StagedTableUnknown(
                f"mutations are staged for {table}: {what}",
                hint="Create the table in the target with its primary key; then the staged rows "
                "are applied.",
                table=str(table),
            )
        kept = self._remember(table)
        relation = _relation(definition, kept)
        shape = [(one.name, one.source_type, one.neutral) for one in relation.columns]
        if shape != kept.shape:
            kept.version, kept.shape = kept.version + 1, shape
            self.files.save(SHAPES_FILE, self._known)
        return Shape(
            table=table,
            relation=replace(relation, version=kept.version),
            names=tuple(column.name for column in definition.columns),
            ignored=frozenset(one.name for one in definition.columns if one.generated),
            key=definition.primary_key,
            seen=frozenset(kept.seen),
            defaults={
                column.name: value
                for column in definition.columns
                if (value := default_of(column)) is not None
            },
        )


_NUMBER = re.compile(r"\(?(-?\d+(?:\.\d+)?)\)?(?:::.*)?\Z")
_TEXT = re.compile(r"'((?:[^']|'')*)'(?:::.*)?\Z", re.DOTALL)
_WORDS = {"true": b"true", "false": b"false", "null": b"null"}


def default_of(column: ColumnDefinition) -> bytes | None:
    """Return a column's value in a row that does not name it, as JSON; None if it is not known.

    An expression that is not constant counts as NULL if the column may be NULL.
    """
    text = (column.default or "null").strip()
    number, quoted = _NUMBER.match(text), _TEXT.match(text)
    if number is not None:
        return number[1].encode()
    if quoted is not None:
        return msgspec.json.encode(quoted[1].replace("''", "'"))
    word = _WORDS.get(text.partition("::")[0].lower(), b"null")
    return None if word == b"null" and column.not_null else word


def _relation(definition: TableDefinition, kept: Remembered) -> Relation:
    wanted = {*kept.seen, *definition.primary_key}
    columns = [
        Column(
            name=one.name,
            source_type=one.type_text,
            neutral="string" if one.name in kept.text else one.neutral,
            base_type=one.base_type,
            type_oid=one.type_oid,
            typmod=one.typmod,
            nullable=not one.not_null,
        )
        for one in definition.columns
        if one.name in wanted and not one.generated
    ]
    names = [column.name for column in columns]
    key = tuple(sorted(names.index(name) for name in definition.primary_key))
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(columns),
        key=key,
        before=key,
        source_id=definition.source_id,
    )
