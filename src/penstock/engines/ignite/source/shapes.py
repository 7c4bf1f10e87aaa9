"""Shapes of caches: a cache is a table, and its columns follow from the values put into it.

Key columns come first, then those of values: `_key` and `_val` for a value that is not an
object, otherwise the fields of the object. A column is added when a type, a table's definition
or a value has it, and gets a type that holds more when a value needs it; it is never dropped
while the cache exists. The shapes are stored beside the log, so that versions do not change. Not
here: rows (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.codec.ignite.cache_config import CacheConfig, QueryEntity, read_cache_config
from penstock.codec.ignite.kinds import find_declared, holder, neutral_of, of_field
from penstock.codec.ignite.types import BinaryType, cache_id
from penstock.engines.ignite.directory import NodeDirectory
from penstock.host.state_file import StateFiles
from penstock.model import Column, Relation, TableName

SHAPES_FILE = "caches.json"
SCANNED_FILE = "scanned-caches.json"  # of caches that the log does not know yet
SCHEMA = "public"
KEY, VALUE, TYPE, EXPIRES, PRIMARY, RAW = (
    "_key", "_val", "_type", "_expire_time", "_primary", "_raw",
)  # fmt: skip
SIDES = OF_KEY, OF_VALUE, OF_ENTRY = "key", "value", "entry"


def table_of(cache: str) -> TableName:
    """Return the table of a cache."""
    return TableName(SCHEMA, cache)


class KeptColumn(msgspec.Struct, kw_only=True):
    """A column.

    Attributes:
        side: whether the key has it, the value or the entry.
        field: field of the object; empty: the key or value itself.
        kind: type, as named by `codec.ignite.kinds`.
        missing: text of the value in existing rows.
    """

    name: str
    side: str
    field: str
    kind: str
    neutral: str
    missing: str | None = None


class KeptShape(msgspec.Struct, kw_only=True):
    """Stored state of a cache.

    Attributes:
        version: version of its relation.
        columns, shape: of this version; shape is the relation's description of them.
        types: names of its values' types.
        has_rows: rows of it were delivered, or copied, at some time.
        since: position of the first delivered row.
    """

    version: int = 0
    columns: list[KeptColumn] = []
    shape: list[tuple[str, str, str, str | None]] = []
    types: list[str] = []
    has_rows: bool = False
    since: int = 0


class DeclaredColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a SQL table. side, field: as in KeptColumn; kind: None if it is not known."""

    name: str
    side: str
    field: str
    kind: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a cache in the log. columns: in the order of the relation's."""

    relation: Relation
    columns: tuple[KeptColumn, ...]


@dataclass
class Shapes:
    """Shapes of caches, by name.

    Attributes:
        declared: returns the columns of a cache that is a SQL table, in order; empty for
        another.
        position: position of the next rows.
    """

    files: StateFiles
    declared: Callable[[str], Sequence[DeclaredColumn]] = lambda _: ()
    position: int = 0
    _kept: dict[str, KeptShape] = field(default_factory=dict)
    _shapes: dict[str, Shape] = field(default_factory=dict)

    def load(self, position: int | None = None) -> None:
        """Load the stored state. Raises CheckpointCorrupt.

        position: end of the log. Rows that were delivered at it or after it are not in the log.
        """
        scanned = self.files.load(SCANNED_FILE, dict[str, KeptShape]) or {}
        known = self.files.load(SHAPES_FILE, dict[str, KeptShape]) or {}
        self.take({**scanned, **known})
        for kept in self._kept.values():
            if position is not None and kept.since and kept.since >= position:
                kept.has_rows, kept.since = False, 0

    def take(self, kept: Mapping[str, KeptShape]) -> None:
        """Begin with known shapes."""
        self._kept = dict(kept)
        self._shapes = {}

    def all_kept(self) -> Mapping[str, KeptShape]:
        """Return the stored state of each cache."""
        return self._kept

    def names(self) -> list[str]:
        """Return the names of the known caches."""
        return sorted(self._kept)

    def of(self, cache: str, cache_id: int) -> Shape:
        """Return the shape of the next rows; a new version is stored before it is returned."""
        found = self._shapes.get(cache)
        if found is None:
            found = self._shapes[cache] = self._make(cache, cache_id)
        return found

    def relations(self) -> tuple[Relation, ...]:
        """Return the relations of the caches that have rows."""
        known = sorted(name for name, one in self._kept.items() if one.has_rows)
        return tuple(self.of(name, cache_id(name)).relation for name in known)

    def has_rows(self, cache: str) -> bool:
        """Return whether rows of the cache may be in the log."""
        return cache in self._kept and self._kept[cache].has_rows

    def begin_again(self, cache: str) -> None:
        """Forget a recreated cache, except for the number of its version."""
        kept = self._of(cache)
        kept.columns, kept.types = [], []
        self._shapes.pop(cache, None)

    def learn(self, found: Mapping[str, KeptShape]) -> None:
        """Store the shapes of caches that are added while the log continues."""
        self.take({**self._kept, **found})
        self.files.save(SHAPES_FILE, self._kept)

    # -- growing -----------------------------------------------------------------------------

    def declare(self, cache: str) -> None:
        """Add the columns of a SQL table."""
        for one in self.declared(cache):
            if one.kind is not None:
                self._put(cache, one.side, one.field, one.kind, one.name)

    def object(self, cache: str, side: str, found: BinaryType) -> None:
        """Add the fields of a type."""
        for name, shown in found.fields.items():
            kind = of_field(shown)
            if kind is not None:
                self.hold(cache, side, name, kind)

    def hold(self, cache: str, side: str, name: str, kind: str) -> None:
        """Let a column hold values of this type. name: the field; empty for the value itself."""
        named = {(one.side, one.field): one.name for one in self.declared(cache)}
        self._put(cache, side, name, kind, named.get((side, name), ""))

    def hold_text(self, cache: str, column: str) -> None:
        """Store a column as text: its type stays, and a value does not fit its neutral type."""
        for one in self._of(cache).columns:
            if one.name == column:
                one.neutral = "string"
        self._shapes.pop(cache, None)

    def take_type(self, cache: str, shown: str) -> None:
        """Note the type of a value; with the second type, a column for it is added."""
        kept = self._of(cache)
        if shown in kept.types:
            return
        kept.types.append(shown)
        if len(kept.types) > 1:
            self.hold(cache, OF_ENTRY, TYPE, "varchar")
            next(one for one in kept.columns if one.name == TYPE).missing = kept.types[0]

    def _put(self, cache: str, side: str, of: str, kind: str, name: str) -> None:
        kept = self._of(cache)
        there = next((one for one in kept.columns if (one.side, one.field) == (side, of)), None)
        if there is None:
            taken = {one.name.lower() for one in kept.columns}
            name = _free(name or of or (KEY if side == OF_KEY else VALUE), side, taken)
            kept.columns.append(
                KeptColumn(name=name, side=side, field=of, kind=kind, neutral=neutral_of(kind))
            )
        else:
            wider = holder([there.kind, kind])
            if wider == there.kind:
                return
            is_text = there.neutral == "string"  # a column that holds more is stored as text, too
            there.kind, there.neutral = wider, "string" if is_text else neutral_of(wider)
        self._shapes.pop(cache, None)

    def _of(self, cache: str) -> KeptShape:
        return self._kept.setdefault(cache, KeptShape())

    def known_relation(self, cache: str, cache_id: int) -> Relation | None:
        """Return a cache's relation as far as it is known, without storing it; None if it has no
        column.
        """
        if not self._of(cache).columns:
            self.declare(cache)
        columns = self._sort_columns(cache)
        return relation_of(cache, cache_id, columns) if columns else None

    def _make(self, cache: str, cache_id: int) -> Shape:
        kept = self._of(cache)
        columns = self._sort_columns(cache)
        shape = [(one.name, one.kind, one.neutral, one.missing) for one in columns]
        if shape != kept.shape or not kept.has_rows:
            kept.version += shape != kept.shape
            kept.since = kept.since if kept.has_rows else self.position
            kept.shape, kept.has_rows = shape, True
            self.files.save(SHAPES_FILE, self._kept)
        return Shape(
            relation=replace(relation_of(cache, cache_id, columns), version=kept.version),
            columns=tuple(columns),
        )

    def _sort_columns(self, cache: str) -> list[KeptColumn]:
        """Return the columns: those of the table in its order, then those of key, value and
        entry.
        """
        order = {(one.side, one.field): at for at, one in enumerate(self.declared(cache))}
        last = len(order)

        def place(one: KeptColumn) -> int:
            return order.get((one.side, one.field), last + SIDES.index(one.side))

        return sorted(self._of(cache).columns, key=place)


def copy_shape(kept: KeptShape) -> KeptShape:
    """Return a copy, which may grow independently."""
    return msgspec.convert(msgspec.to_builtins(kept), KeptShape)


def relation_of(cache: str, cache_id: int, columns: Sequence[KeptColumn]) -> Relation:
    """Return the relation of these columns, without its version."""
    made = tuple(
        Column(
            name=one.name,
            source_type=one.kind,
            neutral=one.neutral,
            base_type=one.kind,
            nullable=one.side != OF_KEY,
            missing=one.missing,
        )
        for one in columns
    )
    key = tuple(at for at, one in enumerate(columns) if one.side == OF_KEY)
    schema, name = table_of(cache)
    return Relation(
        schema=schema,
        name=name,
        columns=made,
        key=key,
        before=key,
        source_id=cache_id & 0xFFFFFFFF,
    )


def _free(name: str, side: str, taken: Iterable[str]) -> str:
    """Return an unused name, compared without case: a taken one gets a prefix, `_val_` for a
    value's field.
    """
    while name.lower() in taken:
        name = f"{VALUE if side == OF_VALUE else KEY}_{name}"
    return name


NOTHING: Sequence[DeclaredColumn] = ()


class Declared:
    """Declarations of a node's caches; a file is read again when it has changed."""

    def __init__(self, directory: NodeDirectory) -> None:
        self._directory = directory
        self._known: dict[str, tuple[int, Sequence[DeclaredColumn]]] = {}

    def of(self, cache: str) -> Sequence[DeclaredColumn]:
        """Return the columns of a cache, in order; the same object until they change.

        Returns an empty list for a cache without a table, and for one that is gone. Raises
        CacheConfigBroken, CacheConfigUnknown.
        """
        path = self._directory.config_path(cache)
        if path is None:
            return NOTHING
        stamp = path.stat().st_mtime_ns
        known = self._known.get(cache)
        if known is None or known[0] != stamp:
            config = read_cache_config(path.read_bytes(), str(path))
            known = self._known[cache] = stamp, tuple(columns_of(config))
        return known[1]


def columns_of(config: CacheConfig) -> list[DeclaredColumn]:
    """Return the columns that the tables of a cache declare: each once, under its first name."""
    found: dict[tuple[str, str], DeclaredColumn] = {}
    for entity in config.entities:
        for column in _columns(entity):
            found.setdefault((column.side, column.field), column)
    return list(found.values())


def _columns(entity: QueryEntity) -> Iterator[DeclaredColumn]:
    if entity.key_field is None and not entity.key_fields and entity.key_type:
        yield _column(KEY, OF_KEY, "", find_declared(entity.key_type))
    for name, java_class in entity.fields.items():
        if "." in name:
            continue  # a field inside a field
        kind = find_declared(java_class, entity.precision.get(name, -1), entity.scale.get(name, -1))
        shown = entity.aliases.get(name, name)
        if name == entity.key_field:
            yield _column(shown, OF_KEY, "", kind)
        elif name == entity.value_field:
            yield _column(shown, OF_VALUE, "", kind)
        else:
            yield _column(shown, OF_KEY if name in entity.key_fields else OF_VALUE, name, kind)
    if not entity.fields and entity.value_type:
        yield _column(VALUE, OF_VALUE, "", find_declared(entity.value_type))


def _column(name: str, side: str, field: str, kind: str | None) -> DeclaredColumn:
    return DeclaredColumn(name=name, side=side, field=field, kind=kind)
