"""Runs of committed transactions: the surviving rows, decoded and numbered.

Transactions come in order of their positions. A transaction with more rows than a run has comes in
several runs, of which only the last one ends at a flush point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from msgspec import structs

from penstock.codec.columns import transactions_batch
from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.redo_outcome import RedoBroken, Stop, redo_error
from penstock.codec.oracle.sql_redo import Decoder, make_decoder
from penstock.engines.oracle.source.ddl_text import Ddl, kind_of_ddl
from penstock.engines.oracle.source.entries import (
    MISMATCH,
    OPERATION,
    REASON_BITS,
    UNREADABLE,
    Entry,
    Transaction,
)
from penstock.engines.oracle.source.errors import RELOAD, RowsUnlogged
from penstock.engines.oracle.source.key_order import order_moves
from penstock.engines.oracle.source.lobs import (
    Gone,
    Labels,
    LobAssembler,
    ReadLob,
    literal_of,
)
from penstock.engines.oracle.source.shapes import Shapes
from penstock.engines.oracle.source.undo import find_survivors
from penstock.host.errors import StatementInterrupted
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, Run, TableName
from penstock.model.change import DROP_TABLE

RUN_ROWS = 8192
RUN_BYTES = 64 * 1024 * 1024
_UNNAMED = frozenset(("column",))
_UPDATE = int(Operation.UPDATE)


class Emission:
    """Converter of transactions to runs, for one stream.

    Attributes:
        gsn: Number of the last row.
        trx: Number of the last transaction.
        time_us: Its commit time.
        has_ddl: Whether the last transaction changed a captured table's definition.
    """

    def __init__(
        self,
        shapes: Shapes,
        start: FlushPoint,
        *,
        read_lob: Callable[[int], ReadLob],
        time_us: Callable[[object], int],
        may_capture: Callable[[TableName], bool],
        on_drop: Callable[[TableName], None] = lambda _: None,
        run_rows: int | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            shapes: Of the captured tables.
            start: Where the log ends.
            read_lob: Returns for a commit SCN the reader of large objects as of it.
            time_us: Converts a TIMESTAMP.
            may_capture: Whether a new table would be captured.
            on_drop: Called with each captured table that was dropped or renamed.
            run_rows: Rows of a run.
        """
        self.trx, self.time_us = start.trx, start.commit_time_us
        self.has_ddl = False
        self._shapes = shapes
        self._decoder: Decoder = make_decoder(gsn=start.gsn)
        self._read_lob = read_lob
        self._to_us = time_us
        self._may_capture = may_capture
        self._on_drop = on_drop
        self._run_rows = RUN_ROWS if run_rows is None else run_rows
        self._bound: dict[int, Entry] = {}
        self._introduced: dict[TableName, Relation] = {}
        self._relations: list[Relation] = []
        self._markers: list[Marker] = []
        self._lines: list[tuple[int, int, int, int]] = []
        self._since = self._position = start.position

    @property
    def gsn(self) -> int:
        """Return the number of the last row."""
        return self._decoder.gsn

    def introduce(self) -> None:
        """Give the shapes of all captured tables that this stream has not given yet."""
        for relation in self._shapes.present_relations():
            name = TableName(relation.schema, relation.name)
            if self._introduced.get(name) != relation:
                self._introduced[name] = relation
                self._relations.append(relation)

    def take(self, end: int | None = None) -> Run:
        """Return what was decoded so far as a run. end: ordinal of its flush point."""
        rows = tuple(self._decoder.take())
        run = Run(
            rows=rows,
            markers=tuple(self._markers),
            relations=tuple(self._relations),
            transactions=transactions_batch(self._lines),
            end=None if end is None else self._point(end),
        )
        self._markers, self._relations, self._lines = [], [], []
        return run

    @property
    def is_full(self) -> bool:
        """Return whether a run should be taken between two transactions."""
        return self._decoder.row_count >= self._run_rows or self._decoder.byte_count >= RUN_BYTES

    @property
    def is_empty(self) -> bool:
        """Return whether a run would have nothing."""
        return not (self._decoder.row_count or self._markers or self._relations or self._lines)

    def _point(self, position: int) -> FlushPoint:
        return FlushPoint(
            position=position, gsn=self.gsn, trx=self.trx, commit_time_us=self.time_us
        )

    # ------------------------------------------------------------------ one transaction

    def give(self, transaction: Transaction) -> Iterator[Run]:
        """Decode a transaction; yield the runs that its rows fill. `take` returns the rest.

        Raises:
            RedoBroken: A row cannot be read.
            RowsUnlogged: A DDL statement moved rows.
            StatementInterrupted: A table's definition changed meanwhile.
        """
        gsn, markers = self.gsn, len(self._markers)
        self.has_ddl = False
        position, time_us = transaction.position, self._to_us(transaction.time)
        self._position = position
        changes = self._changes(transaction)
        if transaction.has_marks or transaction.has_lobs:
            changes = map(self._name_columns, changes)
        for entries in self._put_in_order(changes):
            yield from self._decode(entries, self.trx + 1)
        for owner, name, object_, text in transaction.ddl:
            table = self._shapes.table_at(object_, owner, name)
            self._alter(table, text, position, time_us)
        if self.gsn == gsn and len(self._markers) == markers:
            return
        self.trx += 1
        self.time_us = time_us or self.time_us
        source_id = int.from_bytes(transaction.xid)
        self._lines.append((position, position, self.time_us, source_id))
        self._since = position

    def _changes(self, transaction: Transaction) -> Iterator[list[Entry]]:
        """Yield the surviving changes, in parts."""
        if not (transaction.has_undo or transaction.has_lobs):
            yield from transaction.frames()
            return
        labels = Labels(transaction).by_frame if transaction.has_lobs else []
        masks = find_survivors(transaction, labels)
        if not labels:
            for entries, mask in zip(transaction.frames(), masks, strict=True):
                yield [one for one, is_alive in zip(entries, mask, strict=True) if is_alive]
            return
        # Updates that were made of large objects need the shapes of their tables.
        assembler = LobAssembler(self._read_lob(transaction.position >> 64))
        for number, entries in enumerate(transaction.frames()):
            yield list(assembler.convert(entries, masks[number], labels[number]))

    def _put_in_order(self, parts: Iterator[list[Entry]]) -> Iterator[list[Entry]]:
        """Yield parts that the decoder takes, in which updates of keys are in order."""
        prepared = map(self._bind_tables, parts)
        for entries in prepared:
            if not self._has_moves(entries):
                yield entries
                continue
            rest = order_moves(chain(entries, chain.from_iterable(prepared)), self._shapes.key_of)
            while part := list(islice(rest, RUN_ROWS)):
                yield part

    def _bind_tables(self, entries: list[Entry]) -> list[Entry]:
        """Bind the tables of some changes that are not bound yet."""
        bound = self._bound
        if not all([one.table in bound for one in entries]):  # noqa: C419 - faster as a list
            for number, entry in {one.table: one for one in reversed(entries)}.items():
                if number not in bound:
                    self._bind(entry)
        return entries

    def _name_columns(self, entries: list[Entry]) -> list[Entry]:
        """Name the columns of changes of older versions."""
        return [self._name(one) if one.code > OPERATION else one for one in entries]

    def _name(self, entry: Entry) -> Entry:
        if entry.code & UNREADABLE:
            table = self._shapes.table_of(entry.table)
            relation = self._shapes.relations.get(table)
            raise redo_error(entry.code >> REASON_BITS, 0, entry, relation=relation)
        read = self._read_lob(self._position >> 64)

        def read_large(column: str) -> str:
            value = read(entry, column)
            return "NULL" if isinstance(value, Gone) else literal_of(value)

        named = self._shapes.name_columns(entry, read_large)
        return structs.replace(named, code=entry.code & ~MISMATCH)

    def _bind(self, entry: Entry) -> None:
        relation = self._shapes.bind(self._decoder, entry, self._since)
        self._bound[entry.table] = structs.replace(entry, text="")
        self._introduced[TableName(relation.schema, relation.name)] = relation

    def _has_moves(self, entries: list[Entry]) -> bool:
        """Return whether an update may change a key."""
        for one in entries:
            if one.code == _UPDATE:
                key = self._shapes.key_of(one.table)
                if key is not None and key.may_move(one):
                    return True
        return False

    def _decode(self, entries: list[Entry], trx: int) -> Iterator[Run]:
        decoder, at = self._decoder, 0
        while True:
            try:
                at = decoder.decode(entries, trx, at, self._run_rows)
            except RedoBroken as error:
                self._refuse(error)
                raise
            if decoder.stop is Stop.MORE:
                return
            if decoder.stop is Stop.WIDEN:
                number, column = decoder.widen
                self._shapes.widen(number, column)
                table = self._shapes.table_of(number)
                for at, one in list(self._bound.items()):
                    if self._shapes.table_of(at) == table:
                        self._bind(one)
            else:
                yield self.take()

    def _refuse(self, error: RedoBroken) -> None:
        """Raise StatementInterrupted for a row of a table that was altered a moment ago."""
        if error.fields.get("reason") not in _UNNAMED:
            return
        fresh = [one for one in self._bound if self._shapes.is_fresh(one)]
        for number in fresh:
            self._shapes.forget_version(number)
        if fresh:
            raise StatementInterrupted(
                f"a table was altered after its redo was written: {error.message}",
                hint="penstock reads the redo again, by the catalogue as it is now.",
            ) from error

    # ------------------------------------------------------------------ DDL

    def _alter(self, table: TableName, text: str, position: int, time_us: int) -> None:
        is_captured = self._shapes.is_captured(table)
        if not is_captured and not self._may_capture(table):
            return
        self.has_ddl = True
        kind = kind_of_ddl(text)
        if not is_captured:
            return
        if kind is Ddl.UNLOGGED:
            raise RowsUnlogged(
                f"a statement at SCN {position >> 64} moved rows of {table} that have no redo: "
                f"{text[:80]!r}",
                hint=f"Load the table again. {RELOAD}",
                table=str(table),
            )
        if kind is not Ddl.DROP:
            self._shapes.alter(table, text, position)
        if kind is Ddl.TRUNCATE:
            self._mark(MarkerKind.TRUNCATE, table, position, time_us, {})
        elif kind is Ddl.DROP:
            self._mark(MarkerKind.DDL, table, position, time_us, DROP_TABLE)
            self._shapes.drop(table)
            self._on_drop(table)

    def _mark(
        self,
        kind: MarkerKind,
        table: TableName,
        position: int,
        time_us: int,
        data: dict[str, str],
    ) -> None:
        marker = Marker(
            kind=kind,
            gsn=self.gsn,
            trx=self.trx + 1,
            position=position,
            commit_time_us=time_us or self.time_us,
            tables=((table.schema, table.name),),
            data=dict(data),
        )
        self._markers.append(marker)
