"""Translation of a table's extras from one engine to another: all but its columns and keys.

Extras are defaults, auto-increment, indexes and foreign keys. The source's engine describes them
in common terms (`SchemaSource`), and the target's engine renders those (`SchemaTarget`). None of
it affects a row that is loaded: an extra without an equivalent in the target is left out, with a
sentence that `penstock plan` prints. Pure. Not here: the statements that create tables, and
translation between servers of one engine, where everything has an equivalent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from penstock.codec.types import Mapping as TypeMapping
from penstock.codec.types import Server
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition, TableName
from penstock.ports.registry import PartName, engine_with_types

FIXED_BYTES = 40  # in an index: the longest of the types without a length


# --- the source -----------------------------------------------------------------------------------


class DefaultKind(Enum):
    """Kind of a column's default.

    Attributes:
        LITERAL: a text, unquoted.
        NOW: the moment of the insert.
        OTHER: anything without an equivalent in other engines.
    """

    LITERAL = auto()
    NUMBER = auto()
    BITS = auto()
    BOOL = auto()
    NOW = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Default:
    """Default of a column.

    Attributes:
        value: digits of a number, 0 and 1 of bits, `true` or `false`.
    """

    kind: DefaultKind
    value: str = ""


class IndexPart(NamedTuple):
    """Column of an index.

    Attributes:
        prefix: number of characters in the index; 0: all.
        is_down: the order is descending.
    """

    column: str
    prefix: int = 0
    is_down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Secondary index.

    Attributes:
        unlike: why no other engine can have it; empty if it is over columns.
    """

    name: str
    parts: tuple[IndexPart, ...] = ()
    unlike: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDescription:
    """Extras of a table: all but its columns and keys.

    Attributes:
        defaults: by column; a column whose default is NULL has none.
        numbered: columns that the server counts up, in order.
        foreign_keys: with on_delete and on_update as words in capitals.
        lacking: sentences about extras that have no equivalent in any other engine.
    """

    defaults: Mapping[str, Default]
    numbered: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    lacking: tuple[str, ...] = ()


class SchemaSource(Protocol):
    """Part `schema_source` of a source's engine."""

    def describe(self, definition: TableDefinition) -> SchemaDescription:
        """Return the extras of a table."""
        ...


# --- the target -----------------------------------------------------------------------------------


class SchemaTarget(Protocol):
    """Part `schema_target` of a target's engine.

    Attributes:
        mapping: argument of its methods: how the target holds the column.
    """

    def may_number(
        self,
        definition: TableDefinition,
        description: SchemaDescription,
        column: ColumnDefinition,
        mapping: TypeMapping,
    ) -> bool:
        """Return whether the target can count this column up."""
        ...

    def default_sql(
        self, default: Default, column: ColumnDefinition, mapping: TypeMapping, target: Server
    ) -> str | None:
        """Return a default as SQL of the target; None if the target has no equivalent."""
        ...

    @property
    def index_bytes_max(self) -> int:
        """Maximum total size of an index's columns, bytes."""
        ...

    def index_part(
        self, part: IndexPart, column: ColumnDefinition, mapping: TypeMapping
    ) -> tuple[IndexPart, int] | str:
        """Return a column in an index of the target, with its bytes; or why it cannot be there."""
        ...

    def refuses(self, key: ForeignKey) -> str:
        """Return why a foreign key cannot be created; empty if it can."""
        ...


@dataclass(slots=True, kw_only=True)
class Extras:
    """Extras that a target table gets.

    Attributes:
        defaults: by column, as SQL of the target.
        counted: columns that the target numbers.
        foreign_keys: with on_delete and on_update as words.
        lacking: the extras that the table does not get, and why.
    """

    defaults: dict[str, str] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    foreign_keys: list[ForeignKey] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


SCHEMA_SOURCE_PART: PartName[SchemaSource] = PartName("schema_source")
SCHEMA_TARGET_PART: PartName[SchemaTarget] = PartName("schema_target")


def extras_of(
    definition: TableDefinition,
    source: Server,
    target: Server,
    mappings: Mapping[str, TypeMapping],
) -> Extras:
    """Return the extras of a table that have an equivalent in a target of another engine."""
    engine = engine_with_types(target.engine)
    if SCHEMA_TARGET_PART not in engine.parts:
        return Extras()  # a lake has none of them
    there = engine_with_types(source.engine).part(SCHEMA_SOURCE_PART)
    here = engine.part(SCHEMA_TARGET_PART)
    description = there.describe(definition)
    extras = Extras()
    for column in definition.columns:
        mapping = mappings.get(column.name)
        if mapping is None or not mapping.target_type or column.generated:
            continue
        if column.name in description.numbered:
            if here.may_number(definition, description, column, mapping):
                extras.counted.append(column.name)
            else:
                extras.lacking.append(f"column {column.name} is not counted up by the target")
        elif (default := description.defaults.get(column.name)) is not None:
            sql = here.default_sql(default, column, mapping, target)
            if sql is None:
                extras.lacking.append(
                    f"column {column.name} has no default: {column.default} has no equal there"
                )
            else:
                extras.defaults[column.name] = sql
    extras.lacking += description.lacking
    for index in description.indexes:
        found = _index_there(index, definition, mappings, here)
        if isinstance(found, str):
            extras.lacking.append(f"index {index.name} is not made: {found}")
        else:
            extras.indexes.append(found)
    for key in description.foreign_keys:
        if reason := here.refuses(key):
            extras.lacking.append(f"foreign key {key.name} is not made: {reason}")
        else:
            extras.foreign_keys.append(key)
    return extras


def _index_there(
    index: Index,
    definition: TableDefinition,
    mappings: Mapping[str, TypeMapping],
    here: SchemaTarget,
) -> Index | str:
    """Return the index as the target can have it; if it cannot, why not."""
    if index.unlike:
        return index.unlike
    columns = {column.name: column for column in definition.columns}
    room = here.index_bytes_max
    made = []
    for part in index.parts:
        mapping = mappings.get(part.column)
        if mapping is None or not mapping.target_type:
            return f"column {part.column} is not in the target"
        found = here.index_part(part, columns[part.column], mapping)
        if isinstance(found, str):
            return found
        room -= found[1]
        made.append(found[0])
    if room < 0:
        return "its columns are longer than an index may be"
    return Index(name=index.name, parts=tuple(made))


# --- as SQL ---------------------------------------------------------------------------------------

_FRACTION = re.compile(r"(?:timestamp|datetime)\((\d)\)")


def now_sql(mapping: TypeMapping) -> str:
    """Return the current time as SQL, with as many fractional digits as the target's column."""
    digits = _FRACTION.search(mapping.target_type)
    return f"current_timestamp({digits[1]})" if digits else "current_timestamp"


def bits_sql(bits: str, mapping: TypeMapping) -> str:
    """Return bits for a column of bits, or as a number for a column of another type."""
    if not mapping.target_type.startswith("bit"):
        return str(int(bits or "0", 2))
    width = length_of(mapping.target_type, 1)
    return f"B'{bits.zfill(width)}'"


def base_of(type_text: str) -> str:
    """Return the first word of a type, in lower case."""
    return type_text.lower().partition("(")[0].partition(" ")[0]


def length_of(type_text: str, otherwise: int) -> int:
    """Return the first number in a type's text."""
    found = re.search(r"\d+", type_text)
    return int(found[0]) if found else otherwise


def short_name(name: str, fits: Callable[[str], bool]) -> str:
    """Return a name that fits: the name itself, or its beginning and a hash of all of it."""
    if fits(name):
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    kept = name
    while not fits(f"{kept}_{digest}"):
        kept = kept[:-1]
    return f"{kept}_{digest}"


def tables_by_name(definitions: Sequence[TableDefinition]) -> dict[TableName, TableDefinition]:
    """Return the definitions keyed by their names in the source."""
    return {definition.name: definition for definition in definitions}
