"""Decode SQL_REDO of LogMiner into batches: the readable twin of the kernel `_sql_redo.pyx`.

The twin is the specification, the oracle of the tests and the fallback without a compiler. Both
have one class `Decoder` with the same results, stops and errors; `make_decoder` picks.

    decoder = make_decoder(gsn=7)
    decoder.bind(90001, relation, passed=("SYS_NC00007$",))
    done = decoder.decode(rows, trx=3)       # rows: RedoRow, of one transaction, in its order
    decoder.stop, decoder.widen              # why it stopped before the last row, if it did
    decoder.take()                           # batches of the rows so far

An insert's after image has its values. An update's is WHERE overlaid with SET; a column in neither
is absent. So is one whose value the statement does not tell, if its type explains that: a large
object has rows of its own. Without such a reason the row is refused. A before image is WHERE. Not
here: the order of rows and their undoing, which need more than the statements; large objects
(`lob_statements`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.codec.oracle.cells import LONG_DATA, How, Plan, plan_columns
from penstock.codec.oracle.literals import read_value
from penstock.codec.oracle.redo_outcome import (
    BYTE_LIMIT_DEFAULT,
    BYTE_LIMIT_MAX,
    STATEMENT_BYTES_MAX,
    Defect,
    Reason,
    RedoRow,
    Stop,
    redo_error,
)
from penstock.codec.oracle.statements import (
    DELETE,
    INSERT,
    UNTOLD,
    UPDATE,
    Cell,
    Statement,
    Value,
    ValueKind,
    scan_statement,
)
from penstock.codec.oracle.values import FormatUnknown, Malformed, NotUnicode, Unfit
from penstock.codec.row_store import RowStore
from penstock.model import Identity, Relation, Rows

try:
    from penstock.codec.oracle._sql_redo import Decoder as _Kernel
except ImportError:  # no compiler where it was installed
    COMPILED = False
else:
    COMPILED = True

_GENERIC_PREFIX = b"COL "
_NULL, _UNSUPPORTED = ValueKind.NULL, ValueKind.UNSUPPORTED


class _Widen(Exception):
    """A value does not fit its column's neutral type."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """Relation of a number, and the way in which its rows are read.

    Attributes:
        places: name to index in the relation; -1 for a column that is passed over.
    """

    relation: Relation
    plans: Sequence[Plan]
    places: dict[bytes, int]
    store: RowStore
    is_full: bool = field(default=False)


class _Images:
    """Values of one statement by the index of their column, None for a column that it lacks."""

    def __init__(self, binding: _Binding, text: bytes, statement: Statement) -> None:
        self.binding, self.text, self.statement = binding, text, statement
        count = len(binding.relation.columns)
        self.new: list[Value | None] = [None] * count
        self.old: list[Value | None] = [None] * count
        self._place(statement.new, self.new)
        self._place(statement.old, self.old)

    def _place(self, cells: list[Cell], values: list[Value | None]) -> None:
        passed = set()
        for cell in cells:
            place = self.binding.places.get(cell.name)
            if place is None:
                is_generic = cell.name.startswith(_GENERIC_PREFIX)
                reason = Reason.DICTIONARY if is_generic else Reason.COLUMN
                raise Defect(reason, cell.offset)
            if place < 0:
                if cell.name in passed:
                    raise Defect(Reason.TWICE, cell.offset)
                passed.add(cell.name)
                continue
            if values[place] is not None:
                raise Defect(Reason.TWICE, cell.offset, place)
            values[place] = cell.value

    def check_told(self) -> None:
        """Refuse a value that the statement hides, unless the type of its column explains that."""
        plans = self.binding.plans
        for column, value in enumerate(self.new):
            if value is not None and plans[column].is_long and self._is_long_data(value):
                raise Defect(Reason.UNTOLD, value.start, column)
            if value is not None and value.kind in UNTOLD and plans[column].how is not How.UNREAD:
                if value.kind is ValueKind.UNKNOWN and plans[column].may_be_large:
                    continue
                raise Defect(Reason.UNTOLD, value.start, column)
        for column, value in enumerate(self.old):
            if value is not None and plans[column].is_long and self._is_long_data(value):
                self.old[column] = None
            elif value is not None and value.kind is _UNSUPPORTED:
                if plans[column].how is How.UNREAD or plans[column].may_be_large:
                    continue
                raise Defect(Reason.UNTOLD, value.start, column)

    def _is_long_data(self, value: Value) -> bool:
        return value.kind is ValueKind.QUOTED and self.text[value.first : value.last] == LONG_DATA

    def check(self) -> None:
        """Refuse a row that lacks a value that identifies it."""
        relation, op = self.binding.relation, self.statement.op
        needed = relation.key if op == INSERT else relation.before
        values = self.new if op == INSERT else self.old
        if op != INSERT and not needed:
            raise Defect(Reason.BEFORE, 0)
        for column in needed:
            if not _is_told(values[column]):
                raise Defect(Reason.BEFORE, 0, column)
        if op == UPDATE:
            for column in relation.identifying:
                value = self.new[column]
                if value is not None and not _is_told(value):
                    raise Defect(Reason.BEFORE, 0, column)

    def has_moved(self) -> bool:
        """Return whether an update changes the key, or any column of a table without one."""
        return any(
            new is not None and old is not None and self._spell(new) != self._spell(old)
            for new, old in (
                (self.new[column], self.old[column]) for column in self.binding.relation.identifying
            )
        )

    def _spell(self, value: Value) -> bytes:
        """Return the value's text; `IS NULL` and `NULL` are equal."""
        return b"" if value.kind is _NULL else self.text[value.start : value.end]

    def after(self) -> tuple[list[Any], list[int]]:
        """Return the after image and the absent columns. Raises Defect and _Widen."""
        shown: list[Any] = [None] * len(self.new)
        absent: list[int] = []
        for column, new in enumerate(self.new):
            value = self.old[column] if new is None else new
            if value is None or value.kind in UNTOLD:
                absent.append(column)
            elif value.kind is not _NULL:
                shown[column] = self.read(column, value)
        return shown, absent

    def before(self) -> list[Any]:
        """Return the values of the before image, each in its column's place."""
        shown: list[Any] = [None] * len(self.old)
        for column in self.binding.relation.before:
            shown[column] = self.read(column, self.old[column])
        return shown

    def read(self, column: int, value: Value | None) -> Any:
        """Return a value in the column's form. Raises Defect and _Widen."""
        assert value is not None, "checked before"
        try:
            return read_value(self.text, value, self.binding.plans[column])
        except Unfit as error:
            raise _Widen(column) from error
        except Malformed as error:
            raise Defect(Reason.VALUE, value.start, column) from error
        except FormatUnknown as error:
            raise Defect(Reason.FORMAT, value.start, column) from error
        except NotUnicode as error:
            raise Defect(Reason.TEXT, value.start, column) from error


def _is_told(value: Value | None) -> bool:
    return value is not None and value.kind not in UNTOLD


class Decoder:
    """Decoder of rows of transactions into Arrow batches.

    Attributes:
        gsn: number of the last row.
        row_count: rows since the last `take`.
        byte_count: bytes of their statements.
        stop: why the last `decode` returned.
        widen: number of the table and index of the column after Stop.WIDEN.
    """

    def __init__(self, *, gsn: int = 0, byte_limit: int = BYTE_LIMIT_DEFAULT) -> None:
        if not 1 <= byte_limit <= BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {BYTE_LIMIT_MAX}")
        self.gsn = gsn
        self.row_count = 0
        self.byte_count = 0
        self.stop = Stop.MORE
        self.widen = (0, 0)
        self._byte_limit = byte_limit
        self._bindings: dict[int, _Binding] = {}
        self._stores: list[RowStore] = []

    def bind(self, table: int, relation: Relation, passed: Collection[str] = ()) -> None:
        """Set the relation of a number's rows from here on.

        Args:
            table: number of the caller's choice, from 0 to 2**63 - 1.
            relation: columns of the rows, by their names in the statements.
            passed: names of columns of the table that the relation lacks: hidden or left out.
        """
        places = {name.encode(): -1 for name in passed}
        places |= {column.name.encode(): at for at, column in enumerate(relation.columns)}
        self._bindings[table] = _Binding(
            relation=relation,
            plans=plan_columns(relation),
            places=places,
            store=self._store(relation),
            is_full=relation.identity is Identity.FULL,
        )

    def _store(self, relation: Relation) -> RowStore:
        for store in self._stores:
            if store.relation == relation:
                return store
        self._stores.append(RowStore(relation))
        return self._stores[-1]

    def unbind(self, table: int) -> None:
        """Forget the relation of a number. Its rows so far are kept until `take`."""
        self._bindings.pop(table, None)

    def decode(
        self, rows: Sequence[RedoRow], trx: int, start: int = 0, row_limit: int = 1 << 62
    ) -> int:
        """Decode rows of a transaction; return the index of the first one that is not decoded.

        Args:
            rows: inserts, updates and deletes in the transaction's order, without undone ones.
            trx: number of the transaction in the log.
            start: index of the first row to decode.
            row_limit: rows in the batches at which it stops.

        Raises:
            RedoBroken: A row has an unknown form or value. Those before it are kept.
        """
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self.stop = Stop.MORE
        for at in range(start, len(rows)):
            if self.row_count >= row_limit or self.byte_count >= self._byte_limit:
                self.stop = Stop.LIMIT
                return at
            row = rows[at]
            try:
                self._add(row, trx)
            except _Widen as widen:
                self.stop, self.widen = Stop.WIDEN, (row.table, widen.column)
                return at
            except Defect as defect:
                raise self._error(defect, row) from defect
        return len(rows)

    def _add(self, row: RedoRow, trx: int) -> None:
        binding = self._bindings.get(row.table)
        if binding is None:
            raise Defect(Reason.UNBOUND, 0)
        try:
            text = row.text.encode()
        except UnicodeEncodeError as error:
            raise Defect(Reason.TEXT, 0) from error
        if len(text) > STATEMENT_BYTES_MAX:
            raise Defect(Reason.TOO_LONG, 0)
        statement = scan_statement(text)
        images = _Images(binding, text, statement)
        images.check_told()
        images.check()
        op = statement.op
        after, absent = images.after() if op != DELETE else (None, [])
        has_moved = op == UPDATE and images.has_moved()
        has_before = op == DELETE or has_moved or (op == UPDATE and binding.is_full)
        before = images.before() if has_before else None
        self.gsn += 1 + has_moved
        binding.store.add((self.gsn, trx, op), after, before, absent)
        self.row_count += 1
        self.byte_count += len(text)

    def _error(self, defect: Defect, row: RedoRow) -> Exception:
        binding = self._bindings.get(row.table)
        return redo_error(
            defect.reason,
            defect.offset,
            row,
            relation=binding.relation if binding is not None else None,
            column=defect.column,
        )

    def take(self) -> list[Rows]:
        """Return the rows so far, a batch for each relation, and forget them."""
        taken = [store.batch() for store in self._stores if len(store)]
        used = {id(binding.store) for binding in self._bindings.values()}
        for store in self._stores:
            store.clear()
        self._stores = [store for store in self._stores if id(store) in used]
        self.row_count, self.byte_count = 0, 0
        return taken


def make_decoder(*, gsn: int = 0, byte_limit: int = BYTE_LIMIT_DEFAULT) -> Decoder:
    """Return the compiled decoder, or the twin if it is not built or PENSTOCK_PURE=1 forbids it.

    Arguments are as for `Decoder`.
    """
    kind = Decoder
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        # The stub promises the same methods; the tests run both through one suite.
        kind = cast("type[Decoder]", _Kernel)
    return kind(gsn=gsn, byte_limit=byte_limit)
