"""Rows of one frame as a consumer sees them: columns that become values when they are touched.

A column is turned into values once, for all rows of its frame. Not here: the order of rows
(`events.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import bits
from penstock.log.python_values import python_values
from penstock.log.transactions import Transaction, Transactions
from penstock.model import Column, Op, PenstockError, Rows

_RAW = ("binary", "uuid")  # kept as bytes if values stay as they are in the log
_NONE: frozenset[str] = frozenset()


class KeyNotSent(PenstockError):
    """The source did not send the values that identify a row, so its key is unknown."""

    code = "CN20"
    retry = "operator"


class Image:
    """After or before images of a frame, as columns.

    Attributes:
        loaded: the columns touched so far, by name.
        absent: columns of rows that were not sent; None: all were sent.
    """

    def __init__(
        self, struct: Any, columns: Sequence[Column], absent: Absent | None, *, keep_binary: bool
    ) -> None:
        self._struct = struct
        self._columns = columns
        self._names = [column.name for column in columns]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._keep_binary = keep_binary
        self.absent = absent
        self.loaded: dict[str, Sequence[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def cells(self, name: str) -> Sequence[Any]:
        """Return the values of a column for all rows; values that were not sent are meaningless.

        Raises KeyError for an unknown column.
        """
        found = self.loaded.get(name)
        if found is None:
            found = self.loaded[name] = self._read(self._places[name])
        return found

    def names_of(self, row: int) -> Sequence[str]:
        """Return the columns that were sent, in order."""
        if self.absent is None:
            return self._names
        lacking = self.absent.names(row)
        return [name for name in self._names if name not in lacking] if lacking else self._names

    def column(self, name: str) -> Any:
        """Return a column as Arrow has it."""
        return self._struct.field(self._places[name])

    def _read(self, place: int) -> Sequence[Any]:
        values: Any = self._struct.field(place)
        neutral = self._columns[place].neutral
        if not self._keep_binary:
            return python_values(values, neutral)
        found: Sequence[Any] = values.to_pylist() if neutral in _RAW else values
        return found


class Absent:
    """Columns that were not sent, of each row of a frame."""

    def __init__(self, masks: list[bytes | None], names: Sequence[str]) -> None:
        """Set the masks.

        Args:
            masks: as in the log.
            names: of all columns.
        """
        self._masks = masks
        self._names = names
        self._known: dict[bytes | None, frozenset[str]] = {None: _NONE}

    def names(self, row: int) -> frozenset[str]:
        """Return the names of the columns that were not sent with a row."""
        mask = self._masks[row]
        found = self._known.get(mask)
        if found is None:
            found = self._known[mask] = frozenset(self._names[at] for at in bits(mask))
        return found


class RowsFrame:
    """One rows frame of a segment, with the common facts of its events.

    Attributes:
        ops: the ASCII letter of each row.
        has_before: flags of the rows with a before image.
        old_keys: of each row before the change; None until they are loaded.
        new_keys: of each row after the change; None until they are loaded.
    """

    def __init__(
        self,
        rows: Rows,
        transactions: Transactions,
        *,
        keep_binary: bool,
        reloaded: Mapping[int, int],
        gsn_shift: int = 0,
        keys_have_two: bool = False,
    ) -> None:
        """Prepare the columns.

        Args:
            rows: the rows.
            transactions: of its segment; those of these rows are loaded.
            keep_binary: keep values as in the log.
            reloaded: for each transaction that sends this table again, the gsn after which its
                rows are.
            gsn_shift: how much lower numbers are than in the segment.
            keys_have_two: an update that changed its key has two numbers, of which the second is
                the row's.
        """
        self.keys_have_two = keys_have_two
        self.gsn_shift = gsn_shift
        batch, relation = rows.batch, rows.relation
        self.table = relation.full_name
        self.cache_id = relation.source_id
        self.gsns: npt.NDArray[np.int64] = batch.column("gsn").to_numpy()
        self._batch = batch
        self._transactions = transactions
        self._reloaded = reloaded
        names = [column.name for column in relation.columns]
        sent = [relation.columns[index] for index in relation.before]
        lacks = batch.column("absent").null_count < batch.num_rows
        absent = Absent(batch.column("absent").to_pylist(), names) if lacks else None
        after, before = batch.column("after"), batch.column("before")
        self.after = Image(after, relation.columns, absent, keep_binary=keep_binary)
        self.before = Image(before, sent, None, keep_binary=keep_binary)
        self._not_before = frozenset(names) - {column.name for column in sent}
        self._key = [names[at] for at in relation.key] or names
        self._has_old_keys = bool(relation.identifying)
        self.ops: bytes = batch.column("op").to_numpy().tobytes()
        self.has_before: npt.NDArray[np.bool_] = np.asarray(before.is_valid())
        self.old_keys: list[tuple[Any, ...] | None] | None = None
        self.new_keys: list[tuple[Any, ...] | None] | None = None
        self._found: tuple[int, Transaction | None] = (0, None)

    def trx(self, row: int) -> int:
        """Return the number of a row's transaction."""
        return int(self._batch.column("trx")[row].as_py())

    def number(self, row: int, *, is_first_of_two: bool) -> int:
        """Return a row's number.

        Args:
            row: the row.
            is_first_of_two: return the number of the old key's row, which is deleted.
        """
        return int(self.gsns[row]) - self.gsn_shift - (is_first_of_two and self.keys_have_two)

    def find_moved(self) -> npt.NDArray[np.bool_]:
        """Return flags of the rows that are updates that changed the key."""
        count = self._batch.num_rows
        none = np.zeros(count, np.bool_)
        if not self._has_old_keys or not self.has_before.any():
            return none
        candidates = self.has_before & (np.frombuffer(self.ops, np.uint8) == Op.UPDATE)
        if not candidates.any():
            return none
        differs, absent = none, self.after.absent
        for name in self._key:
            unlike = find_differing(self.after.column(name), self.before.column(name))
            if absent is not None:
                unlike &= [name not in absent.names(row) for row in range(count)]
            differs = differs | unlike
        moved: npt.NDArray[np.bool_] = candidates & differs
        return moved

    def load_old_keys(self) -> list[tuple[Any, ...] | None]:
        """Return the keys of the rows before their changes; None if they were not sent."""
        keys: list[tuple[Any, ...] | None] = [None] * self._batch.num_rows
        if self._has_old_keys:
            keys = list(zip(*map(self.before.cells, self._key), strict=True))
            for row in np.flatnonzero(~self.has_before).tolist():
                keys[row] = None
        self.old_keys = keys
        return keys

    def load_new_keys(self) -> list[tuple[Any, ...] | None]:
        """Return the keys of the rows after their changes; None if they were not sent."""
        keys: list[tuple[Any, ...] | None]
        keys = list(zip(*map(self.after.cells, self._key), strict=True))
        absent = self.after.absent
        if absent is not None:
            for row in range(len(keys)):
                if not absent.names(row).isdisjoint(self._key):
                    keys[row] = self._unchanged_key(row, absent.names(row))
        self.new_keys = keys
        return keys

    def _unchanged_key(self, row: int, lacking: frozenset[str]) -> tuple[Any, ...] | None:
        """Return a key in which columns that were not sent have their previous values."""
        if not self.has_before[row] or not all(n in self.before for n in lacking & {*self._key}):
            return None
        return tuple(
            (self.before if name in lacking else self.after).cells(name)[row] for name in self._key
        )

    def key_not_sent(self) -> KeyNotSent:
        """Return the error: the source did not send the row's key."""
        return KeyNotSent(
            f"the log holds a change of {self.table} without the values that identify its row",
            hint=f"Have the source send whole keys of {self.table} (replica identity, "
            "binlog_row_image), or leave event.key alone for this table.",
            table=self.table,
        )

    def absent(self, row: int, *, is_gone: bool) -> frozenset[str]:
        """Return the columns that were not sent.

        Args:
            row: the row.
            is_gone: the row was deleted.
        """
        if is_gone:
            return self._not_before
        return _NONE if self.after.absent is None else self.after.absent.names(row)

    def transaction(self, row: int) -> Transaction:
        """Return the transaction of a row."""
        number = self.trx(row)
        if self._found[0] != number:
            self._found = (number, self._transactions.find(number))
        found = self._found[1]
        assert found is not None  # a segment has the transactions of all its rows
        return found

    def resent(self, row: int) -> bool:
        """Return whether the row was read again, after a RELOAD marker."""
        begins = self._reloaded.get(self.trx(row)) if self._reloaded else None
        return begins is not None and int(self.gsns[row]) > begins


def find_differing(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """Return where two columns have different values; NULL equals NULL, NaN equals NaN."""
    if pa.types.is_floating(one.type):
        kind = pa.int64() if one.type == pa.float64() else pa.int32()
        one, other = (pc.add(each, pa.scalar(0, each.type)).view(kind) for each in (one, other))
    unlike = pc.fill_null(pc.not_equal(one, other), False)
    return np.asarray(pc.or_(unlike, pc.not_equal(one.is_valid(), other.is_valid())))
