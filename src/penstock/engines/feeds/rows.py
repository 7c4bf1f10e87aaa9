"""Staged mutations of one table as rows of the change log, and the shapes of these rows.

An upsert is an update of its key, whether the target has the row or not: the loader inserts missing
rows. Columns that a line does not have are ABSENT: the row keeps its value, or gets its default. If
the row was deleted just before, and one batch may apply both, the default is written.

A shape has the columns of the target's table that its feeds mention. It holds for whole windows.
When a line has a column that no earlier line had, or a value that only text can hold, the shape is
replaced and the window is read again from its beginning (ShapeChanged), so that a target
transaction never ends at a change of shape inside a window. The columns found are stored beside the
log (`shapes.json`). Not here: values (`values.py`), numbers of rows (`extraction.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.columns import after_type, arrow_type, batch_schema, before_type
from penstock.engines.feeds.values import NULL, NotNeutral, column_of
from penstock.host.state_file import StateFiles
from penstock.model import (
    Column,
    ColumnDefinition,
    Op,
    PenstockError,
    Relation,
    Rows,
    TableDefinition,
)
from penstock.model.hlc import Hlc
from penstock.ports.feeds import StagedTable, has_other_key_order

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


UNSENT = b""


@dataclass(frozen=True, slots=True)
class Unfit(Exception):
    """Rows need another shape of their table: with new columns, or columns that become text."""

    table: StagedTable
    seen: frozenset[str] = frozenset()
    text: frozenset[str] = frozenset()


class Reader:
    """Reader of lines of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        names = {f"c{number}": name for number, name in enumerate(shape.names)}
        line = msgspec.defstruct(
            "Line",
            [(field, msgspec.Raw, msgspec.Raw(UNSENT)) for field in names],
            rename=names,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._fields = {name: field for field, name in names.items()}
        self._lines = msgspec.json.Decoder(list[line])  # type: ignore[valid-type]
        self._keys = msgspec.json.Decoder(list[list[msgspec.Raw]])

    def rows(
        self,
        batch: pa.RecordBatch,
        gsn: npt.NDArray[np.int64],
        trx: npt.NDArray[np.int64],
        made_again: Sequence[int] = (),
    ) -> Rows:
        """Return the rows of a batch of mutations. Raises Unfit, SchemaDriftDetected.

        made_again: places of upserts whose row was deleted just before.
        """
        afters = batch.column("after").to_pylist()
        self._check_key_order(batch, afters)
        is_upsert = np.array([one is not None and one != NULL for one in afters], np.bool_)
        lines = self._decode([one for one in afters if one is not None and one != NULL])
        sent = self._read_upserts(batch, lines, is_upsert)
        self._fill(sent, is_upsert, batch, made_again)
        keys = self._read_deletes(batch, ~is_upsert)
        relation = self.shape.relation
        images, absent = [], np.zeros((len(is_upsert), len(relation.columns)), np.bool_)
        for place, column in enumerate(relation.columns):
            found = sent[column.name]
            if UNSENT in found:
                missing = [not value for value in found]
                absent[np.flatnonzero(is_upsert)[missing], place] = True
                found = [value or NULL for value in found]
            images.append(self._spread(place, found, is_upsert))
        befores = [
            self._spread(index, keys[relation.columns[index].name], ~is_upsert)
            for index in relation.before
        ]
        after = pa.StructArray.from_arrays(
            images, fields=list(after_type(relation)), mask=pa.array(~is_upsert)
        )
        before = pa.StructArray.from_arrays(
            befores, fields=list(before_type(relation)), mask=pa.array(is_upsert)
        )
        columns = [
            pa.array(gsn),
            pa.array(trx),
            pa.array(np.where(is_upsert, int(Op.UPDATE), int(Op.DELETE)).astype(np.uint8)),
            _bitmaps(absent),
            after,
            before,
        ]
        return Rows(
            relation=relation,
            batch=pa.RecordBatch.from_arrays(columns, schema=batch_schema(relation)),
        )

    # -- lines -------------------------------------------------------------------------------

    def _check_key_order(self, batch: pa.RecordBatch, afters: Sequence[bytes | None]) -> None:
        """Raise SchemaDriftDetected if the table's key has another order than the source's."""
        if len(self.shape.key) < 2:
            return
        images = zip(
            batch.column("key").to_pylist(),
            afters,
            batch.column("before").to_pylist(),
            strict=True,
        )
        for row, (key, after, before) in enumerate(images):
            image = before if after is None or after == NULL else after
            if has_other_key_order(self.shape.key, key, image):
                what = f"the key columns ({', '.join(self.shape.key)}) are in another order than "
                raise self._drift(f"{what}the source's", batch, row)

    def _decode(self, afters: list[bytes]) -> list[Any]:
        try:
            return self._lines.decode(b"[" + b",".join(afters) + b"]")
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            raise self._drift(str(error)) from error

    def _read_upserts(
        self, batch: pa.RecordBatch, lines: list[Any], is_upsert: npt.NDArray[np.bool_]
    ) -> dict[str, list[bytes]]:
        """Return the raw values of the upserts by column of the relation; empty if not sent."""
        shape = self.shape
        fields = self._fields
        new = [
            name
            for name in shape.names
            if name not in shape.seen
            and name not in shape.key
            and name not in shape.ignored
            and any(map(bytes, map(attrgetter(fields[name]), lines)))
        ]
        if new:
            raise Unfit(shape.table, seen=frozenset(new))
        sent = {
            column.name: list(map(bytes, map(attrgetter(fields[column.name]), lines)))
            for column in shape.relation.columns
        }
        for name in shape.key:
            if UNSENT not in sent[name] and NULL not in sent[name]:
                continue
            for place, value in enumerate(sent[name]):
                if not value or value == NULL:
                    row = int(np.flatnonzero(is_upsert)[place])
                    raise self._drift(f"the key column {name} is missing", batch, row)
        return sent

    def _fill(
        self,
        sent: dict[str, list[bytes]],
        is_upsert: npt.NDArray[np.bool_],
        batch: pa.RecordBatch,
        made_again: Sequence[int],
    ) -> None:
        """Write defaults for columns that rows inserted after a delete do not have."""
        places = np.cumsum(is_upsert) - 1
        for row in made_again:
            for name, values in sent.items():
                if values[places[row]] == UNSENT:
                    value = self.shape.defaults.get(name)
                    if value is None:
                        what = f"the column {name} is missing, and has no constant default"
                        raise self._drift(what, batch, row)
                    values[places[row]] = value

    def _read_deletes(
        self, batch: pa.RecordBatch, is_delete: npt.NDArray[np.bool_]
    ) -> dict[str, list[bytes]]:
        """Return the raw values of the deletes by column of the key."""
        texts = batch.column("key").filter(pa.array(is_delete)).to_pylist()
        keys = self._keys.decode("[" + ",".join(texts) + "]")
        width = len(self.shape.key)
        for place, key in enumerate(keys):
            if len(key) != width:
                row = int(np.flatnonzero(is_delete)[place])
                what = f"a delete names {len(key)} key columns, the table has {width}"
                raise self._drift(what, batch, row)
        return {name: [bytes(key[at]) for key in keys] for at, name in enumerate(self.shape.key)}

    def _spread(self, place: int, values: list[bytes], where: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the values of a column at these rows, NULL at the others. Raises Unfit."""
        column = self.shape.relation.columns[place]
        if not values:
            return pa.nulls(len(where), arrow_type(column.neutral))
        try:
            found = column_of(column, values)
        except NotNeutral as error:
            if column.neutral != "string":
                raise Unfit(self.shape.table, text=frozenset({column.name})) from error
            raise self._drift(f"column {column.name} cannot be {error.args[1]}") from error
        except (ArithmeticError, RecursionError, UnicodeDecodeError, msgspec.DecodeError) as error:
            # Staged before the receiver refused such values.
            raise self._drift(f"column {column.name} has a value that is not read") from error
        if where.all():
            return found
        places = np.cumsum(where) - 1
        return found.take(pa.array(places, mask=~where))

    def _drift(
        self, what: str, batch: pa.RecordBatch | None = None, row: int = 0
    ) -> SchemaDriftDetected:
        table = self.shape.table
        place = ""
        if batch is not None:
            time = Hlc(batch.column("nanos")[row].as_py(), batch.column("logical")[row].as_py())
            place = f", key {batch.column('key')[row].as_py()} at {time}"
        return SchemaDriftDetected(
            f"schema drift detected in {table}{place}: {what}",
            hint=f"Alter the target's table {table} like the source's; then the staged rows are "
            "applied.",
            table=str(table),
        )


def _bitmaps(absent: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the column `absent`: bits, least significant first; null if everything was sent."""
    some = np.flatnonzero(absent.any(axis=1))
    if not len(some):
        return pa.nulls(len(absent), pa.binary())
    packed = np.packbits(absent, axis=1, bitorder="little")
    found: list[bytes | None] = [None] * len(absent)
    for row in some.tolist():
        found[row] = packed[row].tobytes()
    return pa.array(found, pa.binary())
