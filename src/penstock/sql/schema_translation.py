"""What a table has besides columns and keys, translated from one engine to another.

Defaults, auto-increment, indexes, foreign keys. The source's engine describes them in common terms
(`SchemaSource`), and the target's engine renders those (`SchemaTarget`). None of it affects a row
that is loaded: what has no equivalent in the target is left out, with a sentence that
`penstock plan` prints. Pure. Not here: the statements that make tables, and what goes between
servers of one engine, where everything has an equal.
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
from penstock.ports.registry import engine_with_types

FIXED_BYTES = 40  # in an index: the longest of the types that have no length


# --- what there is --------------------------------------------------------------------------------


class DefaultKind(Enum):
    """What a default is. LITERAL: a text, unquoted. NOW: the moment of the insert. OTHER: anything
    that has no equal elsewhere.
    """

    LITERAL = auto()
    NUMBER = auto()
    BITS = auto()
    BOOL = auto()
    NOW = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Default:
    """A column's default. value: digits of a number, 0 and 1 of bits, `true` or `false`."""

    kind: DefaultKind
    value: str = ""


class IndexPart(NamedTuple):
    """A column of an index. prefix: so many characters of it; 0: all. is_down: descending."""

    column: str
    prefix: int = 0
    is_down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A secondary index. unlike: why no other engine can have it; empty: it is over columns."""

    name: str
    parts: tuple[IndexPart, ...] = ()
    unlike: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDescription:
    """A table besides columns and keys. defaults: by column, none for NULL. numbered: columns that
    the server counts up, in order. foreign_keys: with on_delete and on_update as words in capitals.
    lacking: sentences on what has no equal in any other engine.
    """

    defaults: Mapping[str, Default]
    numbered: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    lacking: tuple[str, ...] = ()


class SchemaSource(Protocol):
    """A source's engine: its part `schema_source`."""

    def describe(self, definition: TableDefinition) -> SchemaDescription:
        """What a table has."""
        ...


# --- what becomes of it ---------------------------------------------------------------------------


class SchemaTarget(Protocol):
    """A target's engine: its part `schema_target`. mapping: how the target holds the column."""

    def may_number(
        self,
        definition: TableDefinition,
        description: SchemaDescription,
        column: ColumnDefinition,
        mapping: TypeMapping,
    ) -> bool:
        """Whether the target can count this column up."""
        ...

    def default_sql(
        self, default: Default, column: ColumnDefinition, mapping: TypeMapping, target: Server
    ) -> str | None:
        """A default as SQL of the target; None where it has no equal."""
        ...

    @property
    def index_bytes_max(self) -> int:
        """How long the columns of an index may be in total, bytes."""
        ...

    def index_part(
        self, part: IndexPart, column: ColumnDefinition, mapping: TypeMapping
    ) -> tuple[IndexPart, int] | str:
        """A column in an index of the target, with its bytes; or why it cannot be."""
        ...

    def refuses(self, key: ForeignKey) -> str:
        """Why a foreign key cannot be made; empty where it can."""
        ...


@dataclass(slots=True, kw_only=True)
class Extras:
    """What a table gets besides columns and keys. lacking: what it does not get, and why.

    defaults: by column, as SQL of the target. counted: columns that the target numbers.
    foreign_keys: with on_delete and on_update as words.
    """

    defaults: dict[str, str] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    foreign_keys: list[ForeignKey] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def extras_of(
    definition: TableDefinition,
    source: Server,
    target: Server,
    mappings: Mapping[str, TypeMapping],
) -> Extras:
    """What of a table's extras has an equal in a target of another engine."""
    there: SchemaSource = engine_with_types(source.engine).part("schema_source")
    here: SchemaTarget = engine_with_types(target.engine).part("schema_target")
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
    """The index as the target can have it, or why it cannot."""
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
    """The current time, with as many fractional digits as the target's column has."""
    digits = _FRACTION.search(mapping.target_type)
    return f"current_timestamp({digits[1]})" if digits else "current_timestamp"


def bits_sql(bits: str, mapping: TypeMapping) -> str:
    """Bits for a column of bits, or as a number for one of another type."""
    if not mapping.target_type.startswith("bit"):
        return str(int(bits or "0", 2))
    width = length_of(mapping.target_type, 1)
    return f"B'{bits.zfill(width)}'"


def base_of(type_text: str) -> str:
    """The first word of a type, in small letters."""
    return type_text.lower().partition("(")[0].partition(" ")[0]


def length_of(type_text: str, otherwise: int) -> int:
    """The first number of a type's text."""
    found = re.search(r"\d+", type_text)
    return int(found[0]) if found else otherwise


def short_name(name: str, fits: Callable[[str], bool]) -> str:
    """A name that fits: itself, or its beginning and a number made from all of it."""
    if fits(name):
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    kept = name
    while not fits(f"{kept}_{digest}"):
        kept = kept[:-1]
    return f"{kept}_{digest}"


def tables_by_name(definitions: Sequence[TableDefinition]) -> dict[TableName, TableDefinition]:
    """Definitions by their names in the source."""
    return {definition.name: definition for definition in definitions}
