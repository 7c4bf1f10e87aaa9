"""Messages of a batch: keys and values in Debezium's envelope, or flat rows. Pure.

A batch becomes columns of texts first, and then bytes objects for the producer. An update that
changes the key is a delete, its tombstone and a creation, which name each other's key in headers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import __version__
from penstock.codec.columns import bits
from penstock.consume.batches import CdcBatch
from penstock.consume.images import find_differing
from penstock.kafka.fields import Field, field_of
from penstock.kafka.json_format import texts_of
from penstock.kafka.modes import Modes
from penstock.kafka.schemas import INT64, STRING, STRUCT, Cells, Schema, flags, same, struct
from penstock.kafka.texts import Texts, text_kernel
from penstock.model import Op, Relation

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
REWRITE = "rewrite"
CONNECTORS = {"yugabytedb": "postgresql"}  # names of Debezium's connectors, by engine
_LSN = ("postgresql",)
_LETTERS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_BLOCK = Schema(
    kind=STRUCT,
    name="event.block",
    version=1,
    optional=True,
    fields={"id": STRING, "total_order": INT64, "data_collection_order": INT64},
)
_DELETED = Schema(kind="string", optional=True, number=18_999)  # no column has this number
_OPTIONAL_INT64 = INT64.as_optional()


class Format(Protocol):
    """Encoder of messages."""

    def encode(self, cells: Cells, count: int, subject: str) -> Texts:
        """Return the messages of so many rows."""
        ...

    def encode_one(
        self, schema: Schema, value: Any, subject: str, *, is_latest: bool = False
    ) -> bytes:
        """Return one message, from Python values.

        is_latest: with the subject's latest schema, which may have other columns.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Form of messages.

    Attributes:
        prefix: Debezium's topic.prefix: the name of the source.
        is_flat: values are rows, without the envelope.
        deletes: for flat values `tombstone` or `rewrite`.
        has_orders: events have the block `transaction`.
    """

    prefix: str
    modes: Modes
    is_flat: bool = False
    deletes: str = "tombstone"
    has_tombstones: bool = True
    has_orders: bool = False
    database: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """Places of a batch's events in their transactions, from 1.

    Attributes:
        total: of each row among all events; of an update that changes the key of its delete.
        collection: of each row among those of its table.
    """

    total: Any
    collection: Any


def find_moved(batch: Any, relation: Relation) -> Any:
    """Return the mask of updates that change the key of a table that has one."""
    none = np.zeros(batch.num_rows, np.bool_)
    if not relation.key or not relation.identifying:
        return none
    before = batch.column("before")
    moved = np.asarray(before.is_valid()) & (batch.column("op").to_numpy() == Op.UPDATE)
    if not moved.any():
        return none
    after, absent = batch.column("after"), _absent(batch)
    differs = none
    for place in relation.key:
        old = before.field(relation.before.index(place))
        unlike = find_differing(after.field(place), old)
        differs = differs | (unlike & ~absent.get(place, none))
    return moved & differs


def _absent(batch: Any) -> dict[int, Any]:
    """Return a mask of rows for each column that some rows lack."""
    masks = batch.column("absent")
    if masks.null_count == len(masks):
        return {}
    found: dict[int, Any] = {}
    coded = masks.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for code, mask in enumerate(coded.dictionary.to_pylist()):
        rows = codes == code
        for place in bits(mask):
            found[place] = found.get(place, np.zeros(len(masks), np.bool_)) | rows
    return found


class TableMessages:
    """Maker of the messages of one table's shape."""

    def __init__(self, relation: Relation, topic: str, style: Style, format_: Format) -> None:
        """Set the schemas.

        Args:
            relation: the shape.
            topic: the table's topic.
            style: form of messages.
            format_: encoder.
        """
        self._relation = relation
        self._topic = topic
        self._style = style
        self._format = format_
        self._kernel = text_kernel()
        is_whole = len(relation.before) == len(relation.columns)
        self._fields = [
            field_of(
                column,
                relation,
                style.modes,
                optional=place not in relation.key and (column.nullable or not is_whole),
            )
            for place, column in enumerate(relation.columns)
        ]
        names = [column.name for column in relation.columns]
        self._value = Schema(
            kind=STRUCT,
            name=f"{topic}.Value",
            optional=not style.is_flat,
            fields={name: f.schema for name, f in zip(names, self._fields, strict=True)},
        )
        if style.is_flat and style.deletes == REWRITE:
            fields = {name: one.as_optional() for name, one in self._value.fields.items()}
            self._value = Schema(
                kind=STRUCT,
                name=self._value.name,
                fields={**fields, "__deleted": _DELETED},
            )
        self._key = Schema(
            kind=STRUCT,
            name=f"{topic}.Key",
            fields={names[at]: self._fields[at].schema for at in relation.key},
        )
        self._source = _source_schema(CONNECTORS.get(style.modes.engine, style.modes.engine))
        self._envelope = Schema(
            kind=STRUCT,
            name=f"{topic}.Envelope",
            version=2,
            fields={
                "before": self._value,
                "after": self._value,
                "source": self._source,
                "transaction": _BLOCK,
                "op": STRING,
                "ts_ms": _OPTIONAL_INT64,
                "ts_us": _OPTIONAL_INT64,
                "ts_ns": _OPTIONAL_INT64,
            },
        )

    # -- rows --------------------------------------------------------------------------------

    def of_batch(self, given: CdcBatch, moved: Any, orders: Orders | None) -> list[Any]:
        """Return the messages of a batch, in order, as (key, value, headers).

        Args:
            given: the batch.
            moved: mask of updates that change the key.
            orders: places in the transactions, if the events have them.
        """
        batch = given.batch
        ops = batch.column("op").to_numpy()
        is_delete = ops == Op.DELETE
        rows = _Rows(self._relation, self._fields, self._style, batch, is_delete)
        keys = self._keys(rows)
        values = self._values(given, rows, ops, moved, orders)
        if not moved.any():
            if not is_delete.any():
                return [(key, value, None) for key, value in zip(keys, values, strict=True)]
            return list(self._with_tombstones(keys, values, is_delete))
        chosen = pa.array(np.flatnonzero(moved))
        gone = batch.take(chosen)
        all_gone = np.ones(gone.num_rows, np.bool_)
        old_rows = _Rows(self._relation, self._fields, self._style, gone, all_gone)
        old_orders = None
        if orders is not None:
            old_orders = Orders(orders.total[moved], orders.collection[moved])
            step = moved.astype(np.int64)
            orders = Orders(orders.total + step, orders.collection + step)
            values = self._values(given, rows, ops, moved, orders)
        letters = np.full(gone.num_rows, Op.DELETE, np.uint8)
        old = self._values(given, old_rows, letters, ~all_gone, old_orders, numbers=gone)
        pairs = iter(zip(self._keys(old_rows), old, strict=True))
        return list(self._with_moved(keys, values, is_delete, moved, pairs))

    def _with_tombstones(
        self, keys: Sequence[Any], values: Sequence[Any], is_delete: Any
    ) -> Iterable[Any]:
        for key, value, is_gone in zip(keys, values, is_delete.tolist(), strict=True):
            if not is_gone:
                yield key, value, None
            else:
                yield from self._deletion(key, value, None)

    def _deletion(self, key: Any, value: Any, headers: Mapping[str, bytes] | None) -> Iterable[Any]:
        style = self._style
        if not style.is_flat or style.deletes == REWRITE:
            yield key, value, headers
        if key is not None and (style.has_tombstones or style.is_flat):
            yield key, None, headers if style.is_flat and style.deletes != REWRITE else None

    def _with_moved(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        is_delete: Any,
        moved: Any,
        old: Any,
    ) -> Iterable[Any]:
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if moved[row]:
                old_key, old_value = next(old)
                yield from self._deletion(old_key, old_value, {NEW_KEY: key})
                yield key, value, {OLD_KEY: old_key}
            elif is_delete[row]:
                yield from self._deletion(key, value, None)
            else:
                yield key, value, None

    def _keys(self, rows: _Rows) -> list[Any]:
        if not self._relation.key:
            return [None] * rows.count
        cells = struct(self._key, [rows.key_cells(at) for at in self._relation.key])
        return self._kernel.cut(*self._format.encode(cells, rows.count, f"{self._topic}-key"))

    def _values(
        self,
        given: CdcBatch,
        rows: _Rows,
        ops: Any,
        moved: Any,
        orders: Orders | None,
        numbers: Any = None,
    ) -> list[Any]:
        batch = given.batch if numbers is None else numbers
        subject = f"{self._topic}-value"
        if self._style.is_flat:
            return self._kernel.cut(*self._format.encode(self._flat(rows), rows.count, subject))
        is_create = (ops == Op.INSERT) | moved
        is_delete = ops == Op.DELETE
        # An update that changes the key is written as a creation.
        old = same(self._value, None)
        if (rows.has_before & ~is_create).any():
            old = struct(self._value, rows.before_cells(), flags(rows.has_before & ~is_create))
        new = same(self._value, None)
        if not is_delete.all():
            new = struct(
                self._value, rows.after_cells(), flags(~is_delete) if is_delete.any() else None
            )
        now = time.time_ns()
        cells = struct(
            self._envelope,
            [
                old,
                new,
                self._source_cells(given, batch, step=0 if numbers is None else -1),
                self._block(batch, orders),
                _letters(ops, moved, is_read=_is_read(given)),
                same(_OPTIONAL_INT64, now // 1_000_000),
                same(_OPTIONAL_INT64, now // 1_000),
                same(_OPTIONAL_INT64, now),
            ],
        )
        return self._kernel.cut(*self._format.encode(cells, rows.count, subject))

    def _flat(self, rows: _Rows) -> Cells:
        if not rows.is_delete.any():
            children = rows.after_cells()
        else:
            children = rows.last_cells(self._value)
        if self._style.deletes == REWRITE:
            texts = pc.if_else(pa.array(rows.is_delete), "true", "false")
            children = [*children, _strings(_DELETED, texts)]
        return struct(self._value, children)

    def _block(self, batch: Any, orders: Orders | None) -> Cells:
        if orders is None:
            return same(_BLOCK, None)
        ids = _strings(STRING, pc.cast(batch.column("trx"), pa.string()))
        return struct(
            _BLOCK,
            [
                ids,
                Cells(schema=INT64, values=orders.total),
                Cells(schema=INT64, values=orders.collection),
            ],
        )

    # -- source and truncates ----------------------------------------------------------------

    def _source_cells(self, given: CdcBatch, batch: Any, step: int) -> Cells:
        """Return the block `source`; step: -1 for deletes of updates, which have two numbers."""
        times = batch.column("commit_time").cast(pa.int64()).to_numpy()
        numbers = {
            "ts_ms": times // 1000,
            "ts_us": times,
            "ts_ns": times * 1000,
            "gsn": batch.column("gsn").to_numpy() + step,
            "txId": batch.column("trx").to_numpy(),
        }
        if "lsn" in self._source.fields:
            numbers["lsn"] = _lsns(batch.column("position"))
        texts = self._source_texts(_snapshot(given))
        children = []
        for name, schema in self._source.fields.items():
            if name in numbers:
                values = np.ascontiguousarray(numbers[name], np.int64)
                children.append(Cells(schema=schema, values=values))
            elif name == "sequence" and "lsn" in numbers:
                lsns = pc.cast(pa.array(numbers["lsn"]), pa.string())
                children.append(
                    _strings(schema, pc.binary_join_element_wise('[null,"', lsns, '"]', ""))
                )
            else:
                children.append(same(schema, texts.get(name)))
        return struct(self._source, children)

    def _source_texts(self, snapshot: str) -> dict[str, str]:
        style, relation = self._style, self._relation
        engine = style.modes.engine
        return {
            "version": __version__,
            "connector": CONNECTORS.get(engine, engine),
            "name": style.prefix,
            "snapshot": snapshot,
            "db": style.database or relation.schema,
            "schema": relation.schema,
            "table": relation.name,
        }

    def of_truncate(self, gsn: int) -> bytes:
        """Return the value of a TRUNCATE after the row with this gsn; it has no key."""
        now = time.time_ns()
        times: dict[str, Any] = {
            "ts_ms": now // 1_000_000,
            "ts_us": now // 1_000,
            "ts_ns": now,
        }
        texts = self._source_texts("false")
        source = {name: {**texts, **times, "gsn": gsn}.get(name) for name in self._source.fields}
        value = {
            "before": None,
            "after": None,
            "source": source,
            "transaction": None,
            "op": "t",
            **times,
        }
        # The table's columns are unknown if it was emptied before its first row since the start.
        is_latest = not self._relation.columns
        return self._format.encode_one(
            self._envelope, value, f"{self._topic}-value", is_latest=is_latest
        )


class _Rows:
    """Images of a batch as cells; each column is converted when it is first needed."""

    def __init__(
        self,
        relation: Relation,
        fields: Sequence[Field],
        style: Style,
        batch: Any,
        is_delete: Any,
    ) -> None:
        self._relation = relation
        self._fields = fields
        self._placeholder = style.modes.placeholder
        self._after, self._before = batch.column("after"), batch.column("before")
        self._absent = _absent(batch)
        self._places = {place: at for at, place in enumerate(relation.before)}
        self._known: dict[int, Cells] = {}
        self.count = batch.num_rows
        self.is_delete = is_delete
        self.has_before = np.asarray(self._before.is_valid())

    def after_cells(self) -> list[Cells]:
        """Return the columns of the rows after the changes."""
        return [self._after_cell(place) for place in range(len(self._fields))]

    def _after_cell(self, place: int) -> Cells:
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._fields[place].cells(self._fill_unsent(place))
        return found

    def _fill_unsent(self, place: int) -> Any:
        """Return a column after the changes, in which what was not sent is replaced."""
        values = self._after.field(place)
        absent = self._absent.get(place)
        if absent is None:
            return values
        lacks = pa.array(absent)
        if place in self._places:
            known = absent & self.has_before
            values = pc.if_else(pa.array(known), self._before.field(self._places[place]), values)
            lacks = pa.array(absent & ~known)
        other: str | bytes | None = None
        if self._fields[place].takes_placeholder:
            is_binary = pa.types.is_binary(values.type)
            other = self._placeholder.encode() if is_binary else self._placeholder
        return pc.if_else(lacks, pa.scalar(other, values.type), values)

    def before_cells(self) -> list[Cells]:
        """Return the columns of the rows before the changes; those that were not sent are null."""
        return [
            self._fields[place].cells(self._before.field(self._places[place]))
            if place in self._places
            else same(self._fields[place].schema.as_optional(), None)
            for place in range(len(self._fields))
        ]

    def last_cells(self, value: Schema) -> list[Cells]:
        """Return the rows after the changes, and before them if they are deleted."""
        names = list(value.fields)
        found = []
        for place, one in enumerate(self._fields):
            field = Field(value.fields[names[place]], one.values)
            found.append(field.cells(self._last(place)))
        return found

    def key_cells(self, place: int) -> Cells:
        """Return a column of the key: of the row before a delete, else after the change."""
        if not self.is_delete.any():
            return self._after_cell(place)
        return self._fields[place].cells(self._last(place))

    def _last(self, place: int) -> Any:
        after = self._fill_unsent(place)
        if place not in self._places:
            return pc.if_else(pa.array(self.is_delete), pa.scalar(None, after.type), after)
        old = self._before.field(self._places[place])
        if self.is_delete.all():
            return old
        return pc.if_else(pa.array(self.is_delete), old, after)


def _letters(ops: Any, moved: Any, *, is_read: bool) -> Cells:
    codes = {op: "r" if is_read and op == Op.INSERT else one for op, one in _LETTERS.items()}
    kinds = np.where(moved, np.uint8(Op.INSERT), ops)
    if (kinds == kinds[0]).all():
        return same(STRING, codes[Op(int(kinds[0]))])
    table = np.zeros(256, np.uint8)
    for op, letter in codes.items():
        table[op] = ord(letter)
    return Cells(schema=STRING, values=(np.arange(len(ops) + 1, dtype=np.int32), table[kinds]))


def _is_read(given: CdcBatch) -> bool:
    return given.resent or int(given.batch.column("gsn")[0].as_py()) < 0


def _snapshot(given: CdcBatch) -> str:
    if given.resent:
        return "incremental"
    return "true" if int(given.batch.column("gsn")[0].as_py()) < 0 else "false"


def _strings(schema: Schema, array: Any) -> Cells:
    return Cells(schema=schema, values=texts_of(array))


def _lsns(positions: Any) -> Any:
    """Return the low 64 bits of positions, where LSNs are."""
    data = positions.buffers()[1]
    start = positions.offset * 16
    both = np.frombuffer(data, ">i8")[start // 8 : start // 8 + 2 * len(positions)]
    return both[1::2].astype(np.int64)


def _source_schema(connector: str) -> Schema:
    text, number = STRING.as_optional(), _OPTIONAL_INT64
    fields = {
        "version": STRING,
        "connector": STRING,
        "name": STRING,
        "ts_ms": INT64,
        "snapshot": text,
        "db": STRING,
        "sequence": text,
        "ts_us": number,
        "ts_ns": number,
        "schema": STRING,
        "table": STRING,
        "txId": number,
    }
    if connector in _LSN:
        fields["lsn"] = number
    fields["gsn"] = number
    return Schema(kind=STRUCT, name=f"io.debezium.connector.{connector}.Source", fields=fields)
