"""Comparing tables of two servers, each read at one snapshot.

First both sides are read whole, in parallel, and answer with checksums per bucket; then only the
rows of buckets that differ are sent, as hashes in key order, and merged. So the cost is that
of reading both tables once, and if there are differences once more, plus these, wherever they
are.

Servers of different engines compute images of rows alike. Each column is the text by which the
table of types compares it (`codec.types`), so values that a pipeline considers equal are equal
here. Each text is preceded by its length, NULL differs from every text, and long values enter as a
digest if an engine cannot make texts of any length. Not here: the SQL of images and of hashing
them (`ports.verify.Dialect`), reading a server (`ports.verify.VerifyReader`), and the position of
the snapshots (`verify.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Mapping as TypeMapping
from penstock.codec.types.mapping import Form
from penstock.codec.types.mapping import Kind as TypeKind
from penstock.control.verify.hashed_rows import (
    Kind,
    Sums,
    Tally,
    add_sums,
    bucket_count,
    differing_buckets,
    merge,
)
from penstock.model import ColumnDefinition, PenstockError, TableDefinition, TableName
from penstock.ports.verify import (
    ComparedCell,
    Dialect,
    Hasher,
    Hashes,
    Image,
    Part,
    TableGone,
    VerifyReader,
    key_columns,
)
from penstock.sql.read_plan import copied_columns

# Kinds whose text can hold anything; the text of all others is digits, letters and signs.
_ANY_TEXT = frozenset({TypeKind.TEXT, TypeKind.PADDED, TypeKind.PRINTED})
_BYTES = Form(kind=TypeKind.BYTES)


class ColumnIncomparable(PenstockError):
    """The type table has no common text for a column, so its values cannot be compared."""

    code = "VF04"


def compared_columns(
    definition: TableDefinition,
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
    *,
    present: Collection[str],
) -> list[ColumnDefinition]:
    """Return the compared columns: loaded ones, and generated ones that the target has.

    Servers of one engine compute generated columns alike. present: names of the
    target's columns, as it has them.
    """
    names = {column.name for column in copied_columns(definition, servers)}
    source, target = dialects
    if source is target:
        names |= {
            column.name
            for column in definition.columns
            if target.column_name(column.name) in present
        }
    return [column for column in definition.columns if column.name in names]


def shared_images(
    definition: TableDefinition,
    target: TableName,
    columns: Sequence[ColumnDefinition],
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
) -> tuple[Image, Image]:
    """Return the images of a table's rows at source and target. Raises ColumnIncomparable."""
    mappings = servers.mappings(definition)
    for column in columns:
        if refused := mappings[column.name].refused:
            raise ColumnIncomparable(
                f"column {column.name} of {definition.name} cannot be compared: {refused}",
                hint="Take the table out of [source] tables, or see `penstock plan`.",
                table=str(target),
            )
    cells = {
        column.name: _cells(column, mappings[column.name], servers, dialects) for column in columns
    }
    key = [cells[name] for name in key_columns(definition) if name in cells]
    source, into = dialects
    return (
        source.image([one for one, _ in cells.values()], [one for one, _ in key]),
        into.image([one for _, one in cells.values()], [one for _, one in key]),
    )


def _cells(
    column: ColumnDefinition,
    mapping: TypeMapping,
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
) -> tuple[ComparedCell, ComparedCell]:
    """Return a column at the source and in the target."""
    source, target = mapping.equal.source, mapping.equal.target
    cell = ComparedCell(
        name=column.name,
        text=source,
        is_any=mapping.equal.name in _ANY_TEXT,
        is_long=dialects[0].is_long(column.type_text) or dialects[1].is_long(mapping.target_type),
        is_bytes=source == _BYTES.sql(servers.source.engine)
        and target == _BYTES.sql(servers.target.engine),
    )
    return cell, replace(cell, text=target)


NAMED_MAX = 20
QUEUED_BATCHES_MAX = 4


class ColumnGone(PenstockError):
    """The target's table lacks a column of the source's."""

    code = "VF02"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePair:
    """Source table and its table in the target."""

    source: TableDefinition
    target: TableName

    def without(self, names: Collection[str]) -> TablePair:
        """Return the pair without some columns of the source, which the target need not have."""
        columns = tuple(one for one in self.source.columns if one.name not in names)
        identity = tuple(name for name in self.source.identity_columns if name not in names)
        source = replace(self.source, columns=columns, identity_columns=identity)
        return replace(self, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Row that differs. key: its key as a record's text, cut; the row's for keyless tables.

    missing: in the source only; surplus: in the target only; different: in both, not equal.
    """

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """Result of comparing one table. Counts are exact; `named` holds only the first ones."""

    table: TableName
    target: TableName
    source_rows: int
    target_rows: int
    missing: int = 0
    surplus: int = 0
    different: int = 0
    has_key: bool = True
    named: tuple[Difference, ...] = ()

    @property
    def equal(self) -> bool:
        """Return whether both sides hold the same rows."""
        return not (self.missing or self.surplus or self.different)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareProgress:
    """Progress of the reading, for both sides together. table: the table read last."""

    table: TableName
    bytes_done: int
    bytes_total: int


@dataclass(slots=True)
class _Work:
    """Table while it is compared: per side the parts, the SQL and the checksums."""

    pair: TablePair
    images: tuple[Image, Image]
    parts: tuple[tuple[Part, ...], tuple[Part, ...]]
    buckets: int
    sums: tuple[Sums, Sums] = field(default_factory=lambda: ({}, {}))


def compare_tables(
    pairs: Sequence[TablePair],
    source: VerifyReader,
    target: VerifyReader,
    *,
    named_max: int = NAMED_MAX,
    on_progress: Callable[[CompareProgress], None] | None = None,
    hasher: Hasher | None = None,
    servers: ServerPair | None = None,
) -> list[TableResult]:
    """Compare tables row by row; return the results in the order of the pairs.

    Raises TableGone, ColumnGone, TableRewritten, ColumnIncomparable, and the typed errors of the
    servers.

    Args:
        pairs: The tables.
        source: Reader of the source.
        target: Reader of the target.
        named_max: The greatest number of named differences.
        on_progress: Gets the progress.
        hasher: None: the result of `hasher_for`.
        servers: Both servers; None: values are copied between them untranslated.
    """
    return [
        work.result
        for work in compare(
            pairs,
            source,
            target,
            named_max=named_max,
            on_progress=on_progress,
            hasher=hasher or hasher_for(source, target),
            servers=servers,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Compared table, with the facts that say which rows differ.

    Attributes:
        images: Those of the source and the target.
        parts: Those of the target.
        source_sums: Checksums of the source.
        buckets: Number of buckets.
        differing: The buckets with differing keys.
        keys: First hashes of the keys that differ; None: too many to name.
    """

    pair: TablePair
    result: TableResult
    images: tuple[Image, Image]
    parts: tuple[Part, ...]
    source_sums: Sums
    buckets: int
    differing: tuple[int, ...] = ()
    keys: tuple[int, ...] | None = ()


def compare(
    pairs: Sequence[TablePair],
    source: VerifyReader,
    target: VerifyReader,
    *,
    hasher: Hasher,
    named_max: int = NAMED_MAX,
    on_progress: Callable[[CompareProgress], None] | None = None,
    servers: ServerPair | None = None,
    on_gone: Callable[[TableName, TableGone], None] | None = None,
) -> list[Compared]:
    """Compare as `compare_tables`, and return the facts that a repair needs.

    on_gone: called with a table that a side does not have, instead of raising; the rest is
    compared.
    """
    works = []
    for pair in pairs:
        try:
            works.append(_prepare(pair, source, target, servers))
        except TableGone as error:
            if on_gone is None:
                raise
            on_gone(pair.source.name, error)
    _read_sums(works, (source, target), hasher, on_progress)
    return [_compare_one(work, (source, target), hasher, named_max) for work in works]


def hasher_for(source: VerifyReader, target: VerifyReader) -> Hasher:
    """Return the fastest hash function that both servers compute alike."""
    theirs = target.hashers()
    return next(one for one, says in source.hashers().items() if theirs.get(one) == says)


def _prepare(
    pair: TablePair, source: VerifyReader, target: VerifyReader, servers: ServerPair | None
) -> _Work:
    definition = pair.source
    source_parts, source_rows = source.parts(definition.name, "source")
    target_parts, target_rows = target.parts(pair.target, "target")
    types = target.column_types(pair.target)
    return _Work(
        pair=pair,
        images=_images(pair, (source.dialect, target.dialect), types, servers),
        parts=(source_parts, target_parts),
        buckets=bucket_count(max(source_rows, target_rows)),
    )


def _images(
    pair: TablePair,
    dialects: tuple[Dialect, Dialect],
    types: Mapping[str, str],
    servers: ServerPair | None,
) -> tuple[Image, Image]:
    definition, into = pair.source, dialects[1]
    columns = definition.columns
    if servers is not None:
        columns = tuple(compared_columns(definition, servers, dialects, present=types))
    lacking = [column.name for column in columns if into.column_name(column.name) not in types]
    if lacking:
        raise ColumnGone(
            f"{pair.target} in the target has no column {lacking[0]}, which {definition.name} "
            "in the source has",
            hint="Let the loader catch up, or add the column to the target by hand.",
            columns=lacking,
        )
    if servers is not None:
        return shared_images(definition, pair.target, columns, servers, dialects)
    printed = into.printed_images(definition, types)
    assert printed is not None, "values that are not translated have the same text on both sides"
    return printed


def _read_sums(
    works: Sequence[_Work],
    sides: tuple[VerifyReader, VerifyReader],
    hasher: Hasher,
    on_progress: Callable[[CompareProgress], None] | None,
) -> None:
    """Read every part of every table on both sides, the largest tables first."""
    total = sum(part.size_bytes for work in works for parts in work.parts for part in parts)
    done = 0
    running: list[tuple[Future[Sums], _Work, int, Part]] = []
    for work in sorted(works, key=lambda w: -sum(p.size_bytes for p in w.parts[0])):
        for which, side in enumerate(sides):
            for part in work.parts[which]:
                query = side.dialect.bucket_query(work.images[which], part, work.buckets, hasher)
                doing = f"reading {work.pair.source.name} in the {('source', 'target')[which]}"
                future = side.executor.submit(_sums, side, query, doing)
                running.append((future, work, which, part))
    for future, work, which, part in running:
        add_sums(work.sums[which], future.result())
        done += part.size_bytes
        if on_progress is not None:
            on_progress(
                CompareProgress(table=work.pair.source.name, bytes_done=done, bytes_total=total)
            )


def _sums(side: VerifyReader, query: str, doing: str) -> Sums:
    rows = side.fetch(query, doing)
    return {int(b): (int(count), int(one), int(two)) for b, count, one, two in rows}


def _compare_one(
    work: _Work, sides: tuple[VerifyReader, VerifyReader], hasher: Hasher, named_max: int
) -> Compared:
    source_rows, target_rows = (sum(s[0] for s in sums.values()) for sums in work.sums)
    differing = differing_buckets(*work.sums)
    tally = _merge(work, sides, hasher, differing, named_max) if differing else Tally(named_max)
    result = TableResult(
        table=work.pair.source.name,
        target=work.pair.target,
        source_rows=source_rows,
        target_rows=target_rows,
        has_key=bool(key_columns(work.pair.source)),
        missing=tally.missing,
        surplus=tally.surplus,
        different=tally.different,
        named=_names(work, sides, hasher, tally),
    )
    return Compared(
        pair=work.pair,
        result=result,
        images=work.images,
        parts=work.parts[1],
        source_sums=work.sums[0],
        buckets=work.buckets,
        differing=tuple(differing),
        keys=tally.keys,
    )


def _merge(
    work: _Work,
    sides: tuple[VerifyReader, VerifyReader],
    hasher: Hasher,
    differing: list[int],
    named_max: int,
) -> Tally:
    with ExitStack() as stack:
        streams = []
        for which, side in enumerate(sides):
            query = side.dialect.rows_query(
                work.images[which], work.parts[which], work.buckets, differing, hasher
            )
            name = str(work.pair.source.name)
            streams.append(stack.enter_context(_Stream(side, query, f"narrowing down {name}")))
        return merge(iter(streams[0]), iter(streams[1]), named_max)


def _names(
    work: _Work, sides: tuple[VerifyReader, VerifyReader], hasher: Hasher, tally: Tally
) -> tuple[Difference, ...]:
    """Return the keys of the named differences as text, read from a side that has the row."""
    named = tally.named or []
    texts: dict[tuple[int, int], str] = {}
    for which, side in enumerate(sides):
        wanted = sorted({one for kind, one, _ in named if (kind == "surplus") == (which == 1)})
        if not wanted:
            continue
        query = side.dialect.names_query(work.images[which], work.parts[which], wanted, hasher)
        found = side.fetch(query, f"reading the keys that differ in {work.pair.source.name}")
        texts |= {(int(one), int(two)): str(text) for one, two, text in found}
    return tuple(Difference(kind=kind, key=texts[one, two]) for kind, one, two in named)


class _Stream:
    """Rows of a query, fetched by a thread of their own so that both servers work at once."""

    def __init__(self, side: VerifyReader, query: str, doing: str) -> None:
        self._side = side
        self._query = query
        self._doing = doing
        self._batches: queue.Queue[Hashes | BaseException | None] = queue.Queue(QUEUED_BATCHES_MAX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fetch, daemon=True)

    def _fetch(self) -> None:
        try:
            for rows in self._side.hashes(self._query, self._doing):
                if not self._put(rows):
                    self._side.cancel()
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Hashes | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._batches.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[Hashes]:
        while True:
            rows = self._batches.get()
            if isinstance(rows, BaseException):
                raise rows
            if rows is None:
                return
            yield rows

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if kind is not None:
            self._side.cancel()
        self._thread.join()
