"""Change rows of one capture instance, converted to changes of the log.

A batch of a change table has two rows for an update (operation 3 with the old values, 4 with the
new ones). Here they become one change, as do the delete and the insert by which SQL Server records
an update of the key (reference, sections 2 and 1c S1). Values that the change table lacks are
marked as absent. Everything works on whole columns. Pure.

Follows the reference's section 2: the update mask has the bits of the first eight columns in its
LAST byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import after_type, before_type
from penstock.codec.sqlserver.columns import SourceColumn, make_columns
from penstock.codec.sqlserver.lsn import LSN_BYTES, SqlServerLsn
from penstock.engines.sqlserver.errors import UpdateTorn
from penstock.model import Identity, Op, Relation

DELETE, INSERT, BEFORE, AFTER = 1, 2, 3, 4  # values of __$operation
HEAD = ("__$start_lsn", "__$command_id", "__$seqval", "__$operation", "__$update_mask")
HALVES = (DELETE, BEFORE)  # operations whose next row may belong to the same change

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a change table behind the head, and the relation that its rows get.

    Attributes:
        relation: Shape of the rows in the log.
        columns: One per column of the relation, in its order.
        ordinals: Their numbers in the update mask, from 1.
    """

    relation: Relation
    columns: tuple[SourceColumn, ...]
    ordinals: tuple[int, ...]

    @property
    def large(self) -> tuple[int, ...]:
        """Return the indexes of columns whose value a change table may lack."""
        return tuple(at for at, one in enumerate(self.columns) if one.kind.is_large)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Order of changes: transaction, command, seqval (in two numbers), operation; one per change.

    Attributes:
        transactions: Indexes into the batch's transactions.
        commands: __$command_id.
        high: First 8 bytes of __$seqval.
        low: Last 2 bytes of __$seqval.
        operations: __$operation of the change's last row.
    """

    transactions: Ints
    commands: Ints
    high: Words
    low: Words
    operations: Ints

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.transactions)

    def of(self, index: int) -> tuple[int, int, int, int, int]:
        """Return the order of one change as a tuple."""
        found = (self.transactions, self.commands, self.high, self.low, self.operations)
        first, *rest = (int(column[index]) for column in found)
        return first, rest[0], rest[1], rest[2], rest[3]

    def take(self, wanted: Any) -> Keys:
        """Return the order of some changes: a slice, a mask or indexes."""
        return Keys(
            transactions=self.transactions[wanted],
            commands=self.commands[wanted],
            high=self.high[wanted],
            low=self.low[wanted],
            operations=self.operations[wanted],
        )

    def count_through(self, bound: tuple[int, int, int, int, int]) -> int:
        """Return how many changes, which are in order, are not after a bound."""
        is_before = np.zeros(len(self), np.bool_)
        is_equal = np.ones(len(self), np.bool_)
        columns = (self.transactions, self.commands, self.high, self.low, self.operations)
        for column, limit in zip(columns, bound, strict=True):
            wanted = column.dtype.type(limit)
            is_before |= is_equal & (column < wanted)
            is_equal &= column == wanted
        return int(np.count_nonzero(is_before | is_equal))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Changes of one batch, in order.

    Attributes:
        layout: Columns by which later batches must be read; a column may have become text.
        keys: Order of the changes.
        steps: Row numbers that each change takes: 2 for an update of the key, else 1.
        columns: op, absent, after and before, as `penstock.codec.columns.batch_schema` has them.
    """

    layout: Layout
    keys: Keys
    steps: Ints
    columns: tuple[Any, Any, Any, Any]


def make_chunk(
    batch: pa.RecordBatch,
    layout: Layout,
    *,
    index_of: Callable[[Bytes], Ints],
    widen: Callable[[Layout, tuple[int, ...]], Layout],
) -> Chunk:
    """Return the changes of a batch that splits no change.

    Args:
        batch: The columns of HEAD, then those of the layout.
        layout: See there.
        index_of: Returns for commit LSNs (rows of 10 bytes, in order) the transactions' indexes.
        widen: Returns the layout in which these columns are kept as text.

    Raises:
        UpdateTorn: A row of an update has no partner.
        ValueBroken: A value does not have its column's type.
    """
    made = make_columns(batch.select(range(len(HEAD), batch.num_columns)), layout.columns)
    if made.as_text:
        layout = widen(layout, made.as_text)
    operations = _numbers(batch.column(3))
    starts, sequences = fixed_bytes(batch.column(0)), fixed_bytes(batch.column(2))
    mask = _mask(batch.column(4))
    _check_pairs(operations, starts, sequences, _numbers(batch.column(1)), layout.relation)
    is_replaced = _find_replaced(operations, starts, sequences, is_keyed=bool(layout.relation.key))
    is_last = (operations != BEFORE) & ~is_replaced
    rows = np.flatnonzero(is_last)
    was_replaced = np.zeros(len(operations), np.bool_)
    was_replaced[1:] = is_replaced[:-1]
    is_update = (operations == AFTER) | was_replaced
    high, low = _words(sequences)
    keys = Keys(
        transactions=index_of(starts)[rows],
        commands=_numbers(batch.column(1))[rows],
        high=high[rows],
        low=low[rows],
        operations=operations[rows],
    )
    images = _Images(layout, made.arrays, mask, operations, rows, is_update[rows])
    is_moved = images.find_moved()
    return Chunk(
        layout=layout,
        keys=keys,
        steps=1 + is_moved.astype(np.int64),
        columns=(images.op(), images.absent(), images.after(), images.before(is_moved)),
    )


class _Images:
    """Images of the changes of one batch. rows: of each change its last row."""

    def __init__(
        self,
        layout: Layout,
        arrays: tuple[Any, ...],
        mask: Bytes,
        operations: Ints,
        rows: Ints,
        is_update: Bools,
    ) -> None:
        self._layout = layout
        self._relation = layout.relation
        self._arrays = arrays
        self._mask = mask
        self._operations = operations[rows]
        self._rows = rows
        self._is_update = is_update
        self._is_delete = self._operations == DELETE
        self._is_all = len(rows) == len(operations)

    def op(self) -> Any:
        """Return the kinds of the changes, as the log has them."""
        found = np.full(len(self._rows), int(Op.INSERT), np.uint8)
        found[self._is_update] = int(Op.UPDATE)
        found[self._is_delete] = int(Op.DELETE)
        return pa.array(found)

    def after(self) -> Any:
        """Return the new rows; NULL for deletes."""
        has_deletes = bool(self._is_delete.any())
        if self._is_all and not has_deletes:
            columns = list(self._arrays)
        else:
            wanted = pa.array(self._rows, mask=self._is_delete if has_deletes else None)
            columns = [array.take(wanted) for array in self._arrays]
        nulls = pa.array(self._is_delete) if has_deletes else None
        fields = list(after_type(self._relation))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)

    def before(self, is_moved: Bools) -> Any:
        """Return the old rows, where the log has them: of deletes, and updates of the key."""
        has = self._is_delete | is_moved
        if self._relation.identity is Identity.FULL:
            has = self._is_delete | self._is_update
        old = np.where(self._is_delete, self._rows, self._rows - 1)
        fields = list(before_type(self._relation))
        if not fields or not has.any():
            return pa.nulls(len(old), before_type(self._relation))
        wanted = pa.array(old, mask=~has)
        columns = [self._arrays[at].take(wanted) for at in self._relation.before]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(~has))

    def absent(self) -> Any:
        """Return the columns that each row lacks: of large types, NULL and not in the mask."""
        count = len(self._rows)
        lacking = {}
        for at in self._layout.large:
            values = self._arrays[at]
            if not values.null_count:
                continue
            is_null = np.asarray(values.is_null().to_numpy(zero_copy_only=False))[self._rows]
            is_lacking = is_null & (self._operations == AFTER) & ~self._is_changed(at)
            if is_lacking.any():
                lacking[at] = is_lacking
        if not lacking:
            return pa.nulls(count, pa.binary())
        width = (len(self._layout.columns) + 7) // 8
        found = np.zeros((count, width), np.uint8)
        for at, is_lacking in lacking.items():
            found[:, at // 8] |= is_lacking.astype(np.uint8) << np.uint8(at % 8)
        texts = [row.tobytes() if row.any() else None for row in found]
        return pa.array(texts, pa.binary())

    def find_moved(self) -> Bools:
        """Return which changes are updates that changed a column by which rows are found."""
        is_moved = np.zeros(len(self._rows), np.bool_)
        identifying = self._relation.identifying
        may_move = self._is_update & (self._operations == INSERT)
        for at in identifying:
            may_move |= self._is_update & self._is_changed(at)
        places = np.flatnonzero(may_move)
        if not len(places):
            return is_moved
        new, old = pa.array(self._rows[places]), pa.array(self._rows[places] - 1)
        for at in identifying:
            is_moved[places] |= _differ(self._arrays[at].take(old), self._arrays[at].take(new))
        return is_moved

    def _is_changed(self, at: int) -> Bools:
        """Return whether a column's bit is set in the mask of each change."""
        byte, bit = divmod(self._layout.ordinals[at] - 1, 8)
        if byte >= self._mask.shape[1]:
            return np.zeros(len(self._rows), np.bool_)
        found: Bools = (self._mask[self._rows, -1 - byte] >> np.uint8(bit)) & 1 == 1
        return found


def fixed_bytes(array: Any, width: int = LSN_BYTES) -> Bytes:
    """Return binary values of one length as rows of bytes. Raises ValueError for another form."""
    count = len(array)
    if array.null_count:
        raise ValueError(f"NULL where {width} bytes are expected")
    if not count:
        return np.zeros((0, width), np.uint8)
    if pa.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        raw = np.frombuffer(array.buffers()[1], np.uint8)
        raw = raw[array.offset * size : (array.offset + count) * size]
    else:
        is_wide = pa.types.is_large_binary(array.type)
        bounds = np.frombuffer(array.buffers()[1], np.int64 if is_wide else np.int32)
        bounds = bounds[array.offset : array.offset + count + 1]
        size = int(bounds[1] - bounds[0])
        if (np.diff(bounds) != size).any():
            raise ValueError(f"values of several lengths where {width} bytes are expected")
        if not size:
            return np.zeros((count, 0), np.uint8)
        raw = np.frombuffer(array.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    if width not in (size, 0):
        raise ValueError(f"{size} bytes where {width} are expected")
    return raw.reshape(count, size)


def _mask(array: Any) -> Bytes:
    """Return the update masks as rows of bytes, all of one length."""
    return fixed_bytes(array, 0)


def _numbers(array: Any) -> Ints:
    found: Ints = np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.int64)
    return found


def _words(sequences: Bytes) -> tuple[Words, Words]:
    """Return LSNs as two numbers each: their first 8 bytes, and the last 2."""
    packed = np.ascontiguousarray(sequences)
    high = np.ascontiguousarray(packed[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    low = np.ascontiguousarray(packed[:, 8:]).view(">u2").reshape(-1).astype(np.uint64)
    return high, low


def _same_as_next(rows: Bytes) -> Bools:
    found: Bools = (rows[:-1] == rows[1:]).all(axis=1)
    return found


def _check_pairs(
    operations: Ints, starts: Bytes, sequences: Bytes, commands: Ints, relation: Relation
) -> None:
    """Raise UpdateTorn unless each row 3 is followed by its row 4, and each 4 follows its 3."""
    is_old, is_new = operations == BEFORE, operations == AFTER
    if not is_old.any() and not is_new.any():
        return
    torn = is_old[:-1] != is_new[1:]
    same = _same_as_next(starts) & _same_as_next(sequences) & (commands[:-1] == commands[1:])
    torn |= is_old[:-1] & ~same
    where = np.flatnonzero(torn)
    at = int(where[0]) if len(where) else -1
    if is_new[0]:
        at = 0
    elif at < 0 and is_old[-1]:
        at = len(operations) - 1
    if at >= 0:
        lsn = SqlServerLsn.of_bytes(starts[at].tobytes())
        raise UpdateTorn(
            f"the change table of {relation.full_name} has an update in the transaction {lsn} "
            "without its other row",
            hint="Rows of the change table were deleted by hand or by another program: load the "
            "table again.",
            table=relation.full_name,
        )


def _find_replaced(operations: Ints, starts: Bytes, sequences: Bytes, *, is_keyed: bool) -> Bools:
    """Return which rows are deletes that the next row, an insert, continues as an update.

    Both have one commit LSN and one seqval, whatever their commands are (reference, S1). In a
    table without a key a row is found by all of its values: its delete and insert stay two.
    """
    found = np.zeros(len(operations), np.bool_)
    if is_keyed and len(operations) > 1:
        pairs = (operations[:-1] == DELETE) & (operations[1:] == INSERT)
        if pairs.any():
            found[:-1] = pairs & _same_as_next(starts) & _same_as_next(sequences)
    return found


def _differ(old: Any, new: Any) -> Bools:
    """Return where values differ; NULL equals NULL."""
    unequal = pc.fill_null(pc.not_equal(old, new), False)
    one_null = pc.xor(old.is_null(), new.is_null())
    return np.asarray(pc.or_(unequal, one_null).to_numpy(zero_copy_only=False))
