"""Tables as clients see them: a relation in PostgreSQL's types, cut to the published part.

A client matches tables and columns by name. The log's own number of a table may be too long for
the protocol, so the catalogue keeps another one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type, batch_schema, cast_exactly
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types import served
from penstock.codec.types.mapping import NO_CHOICES, Choices
from penstock.model import Identity, Op, Relation, TableName
from penstock.serve.catalog.publications import Published
from penstock.serve.forms import Form, RowEncoder
from penstock.serve.row_filter import row_filter

_WORDS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Relation in PostgreSQL's types.

    Attributes:
        converts: for each column, see `served.ServedColumn`.
    """

    relation: Relation
    converts: tuple[served.Convert | None, ...]

    def under(self, oid: int) -> Served:
        """Return the same with the number for clients."""
        return Served(relation=replace(self.relation, source_id=oid), converts=self.converts)


def served_relation(relation: Relation, engine: str, choices: Choices = NO_CHOICES) -> Served:
    """Return the shape that catalogue and stream use for a relation of a log of this engine."""
    table = TableName(relation.schema, relation.name)
    found = [
        served.served_column(column, engine, table=table, choices=choices)
        for column in relation.columns
    ]
    announced = replace(relation, columns=tuple(one.column for one in found))
    is_whole = len(relation.before) == len(relation.columns)
    if not relation.key and is_whole and relation.identity is not Identity.NOTHING:
        announced = replace(announced, identity=Identity.FULL)
    return Served(relation=announced, converts=tuple(one.convert for one in found))


class TableView:
    """Part of one relation version that a set of publications sends. Used by several threads."""

    def __init__(
        self, relation: Relation, served: Served, published: Published, form: Form
    ) -> None:
        """Prepare the filters; `relation` is the log's. Raises Refused for a bad filter."""
        self._logged, self._form = relation, form
        self._converts = served.converts
        shape = served.relation
        self._filters = {
            op: [row_filter(text, shape) for text in published.filters[word] or ()]
            for op, word in _WORDS.items()
            if word in published.actions and published.filters[word] is not None
        }
        self.actions = published.actions
        self._columns = _find_places(shape, published.columns or ())
        # Columns of a projected relation's before image: places in the kept columns.
        kept = {index: place for place, index in enumerate(self._columns)}
        self._before = [at for at, index in enumerate(shape.before) if index in kept]
        lacking = [index for index in shape.before if index not in kept]
        if lacking and shape.identity is not Identity.FULL:
            self._lacking: str = shape.columns[lacking[0]].name
        else:
            self._lacking = ""
        self.relation = replace(
            shape,
            columns=tuple(shape.columns[index] for index in self._columns),
            key=tuple(kept[index] for index in shape.key if index in kept),
            before=tuple(kept[shape.before[at]] for at in self._before),
        )
        self._as_is = (
            not self._filters
            and len(self._columns) == len(shape.columns)
            and not any(self._converts)
            and self.actions >= {"insert", "update", "delete"}
        )
        self._logged_schema = batch_schema(relation)

    @cached_property
    def encoder(self) -> RowEncoder:
        """Encoder of the rows that `rows` returns."""
        return self._form.encoder(self.relation)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of the log to send, in the view's shape.

        Raises Refused, served.Unservable.
        """
        if self._as_is:
            return batch
        ops = batch.column("op")
        if self._lacking and bool(pc.any(pc.not_equal(ops, int(Op.INSERT))).as_py()):
            raise Refused(
                "42P10",
                f'column list of table "{self._logged.full_name}" leaves out "{self._lacking}", '
                "which identifies its rows",
            )
        batch = self._filter(batch)
        unwanted = [int(op) for op, word in _WORDS.items() if word not in self.actions]
        if unwanted:
            keep = pc.invert(pc.is_in(batch.column("op"), pa.array(unwanted, pa.uint8())))
            batch = batch.filter(keep)
        return self._project(batch)

    def _filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that fulfil a filter; an update across it becomes an insert or delete."""
        if not self._filters or not batch.num_rows:
            return batch
        ops = np.asarray(batch.column("op"))
        old = self._name_columns(batch.column("before"), self._logged.before)
        new = self._name_columns(batch.column("after"), range(len(self._logged.columns)))
        keep, changed = np.ones(batch.num_rows, np.bool_), ops.copy()
        for op in self._filters:
            rows = ops == op
            if not rows.any():
                continue
            if op is Op.INSERT:
                keep[rows] = self._fulfils(op, new)[rows]
                continue
            was = self._fulfils(op, old)
            if op is Op.DELETE:
                keep[rows] = was[rows]
                continue
            now = self._fulfils(op, new)
            # Without an old image the update did not touch the identity of the row, and so nothing
            # that a filter over updates may use.
            was = np.where(np.asarray(batch.column("before").is_valid()), was, now)
            keep[rows] = (was | now)[rows]
            inserted = rows & ~was & now
            if (inserted & np.asarray(batch.column("absent").is_valid())).any():
                raise Refused(
                    "0A000",
                    f"a row of {self._logged.full_name} begins to fulfil its row filter, and the "
                    "source has not sent all of its columns",
                )
            changed[inserted] = Op.INSERT
            changed[rows & was & ~now] = Op.DELETE
        arrays = list(batch.columns)
        arrays[batch.schema.get_field_index("op")] = pa.array(changed, pa.uint8())
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema).filter(pa.array(keep))

    def _name_columns(self, image: Any, indexes: Sequence[int]) -> dict[str, Any]:
        columns = self._logged.columns
        return {
            columns[index].name: values
            for index, values in zip(indexes, image.flatten(), strict=True)
        }

    def _fulfils(self, op: Op, columns: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found: np.ndarray[Any, np.dtype[np.bool_]] | None = None
        for one in self._filters[op]:
            if not one.columns <= columns.keys():
                raise Refused(
                    "42P10",
                    f"a row filter of {self._logged.full_name} needs columns that do not identify "
                    "its rows",
                )
            kept = np.asarray(one.keeps(columns)).astype(np.bool_)
            found = kept if found is None else found | kept
        assert found is not None, "a filter has conditions"
        return found

    def _project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = batch_schema(self.relation)
        after, before = batch.column("after"), batch.column("before")
        arrays = [
            batch.column("gsn"),
            batch.column("trx"),
            batch.column("op"),
            self._absent(batch.column("absent")),
            self._image(after, list(self._columns), list(self._columns), schema.field("after")),
            self._image(
                before,
                self._before,
                [self._logged.before[at] for at in self._before],
                schema.field("before"),
            ),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _image(self, image: Any, places: list[int], indexes: list[int], field: pa.Field) -> Any:
        """Return an image of the relation's columns.

        Args:
            image: the log's image.
            places: in the log's image.
            indexes: of the same columns in the relation.
            field: the field of the result.
        """
        values = image.flatten()
        chosen = []
        for place, index in zip(places, indexes, strict=True):
            convert = self._converts[index]
            one = values[place]
            wanted = arrow_type(self.relation.columns[self._columns.index(index)].neutral)
            one = one if convert is None else convert(one)
            chosen.append(cast_exactly(one, wanted))
        if not chosen:
            return pa.array([{} if ok else None for ok in image.is_valid().to_pylist()], field.type)
        missing = pc.invert(image.is_valid())
        return pa.StructArray.from_arrays(chosen, fields=list(field.type), mask=missing)

    def _absent(self, absent: Any) -> Any:
        if len(self._columns) == len(self._logged.columns) or absent.null_count == len(absent):
            return absent
        return pa.array([self._move(one) for one in absent.to_pylist()], pa.binary())

    def _move(self, bits: bytes | None) -> bytes | None:
        if bits is None:
            return None
        number = int.from_bytes(bits, "little")
        found = sum((number >> index & 1) << at for at, index in enumerate(self._columns))
        return found.to_bytes((len(self._columns) + 7) // 8, "little") if found else None


def _find_places(shape: Relation, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the places of a list's columns, in the table's order. Raises Refused."""
    if not names:
        return tuple(range(len(shape.columns)))
    known = {column.name for column in shape.columns}
    for name in names:
        if name not in known:
            raise Refused(
                "42703", f'column "{name}" of relation "{shape.full_name}" does not exist'
            )
    return tuple(index for index, column in enumerate(shape.columns) if column.name in names)
