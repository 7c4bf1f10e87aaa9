"""Comparing tables of two servers, each read at one snapshot.

First both sides are read whole, in parallel, and answer with checksums per bucket; then only the
rows of buckets that differ are shipped, as hashes in key order, and merged. So the cost is that
of reading both tables once, plus once more and the differences when there are any, wherever they
are. A server is a `Reader`: here is that of PostgreSQL, that of MySQL and MariaDB in
`compare_mysql.py`. Not here: which position the snapshots stand at (`verify.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, ClassVar, Self

import psycopg
from psycopg.pq import TransactionStatus

from penstock.control import checksum
from penstock.control.checksum import (
    PROBE,
    Hasher,
    Image,
    Part,
    Sums,
    add_sums,
    bucket_count,
    differing_buckets,
    key_columns,
    source_image,
    target_image,
)
from penstock.control.shared_image import compared_columns, shared_images
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quoted,
    server_errors,
)
from penstock.engines.postgres.verify.hashed_rows import Hashes, Kind, Tally, merge, read_hashes
from penstock.model import PenstockError, Retry, TableDefinition, TableName
from penstock.ports.verify import Dialect, Reader
from penstock.sql.read_plan import Ends

APPLICATION_NAME = "penstock verify"
BLOCK_BYTES_DEFAULT = 8192
PART_BYTES = 256 * 2**20
NAMED_MAX = 20
CANCEL_TIMEOUT_S = 5.0
WORK_MEMORY = "64MB"  # for the sums of 65,536 buckets, and for sorting hashes
QUEUED_BATCHES_MAX = 4

BEGIN = "begin isolation level repeatable read read only"
KIND = "select relkind::text from pg_class where oid = to_regclass(%(name)s)"
LEAVES = """
    select n.nspname, c.relname, c.relfilenode, pg_relation_filenode(c.oid),
           pg_relation_size(c.oid), c.reltuples::bigint, c.relkind::text,
           current_setting('block_size')::int
      from pg_partition_tree(to_regclass(%(name)s)) as t
      join pg_class as c on c.oid = t.relid
      join pg_namespace as n on n.oid = c.relnamespace
     where t.isleaf
     order by c.oid
"""
PLAIN = """
    select n.nspname, c.relname, c.relfilenode, pg_relation_filenode(c.oid),
           pg_relation_size(c.oid), c.reltuples::bigint, c.relkind::text,
           current_setting('block_size')::int
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where c.oid = to_regclass(%(name)s)
"""
COLUMN_TYPES = """
    select attname, format_type(atttypid, atttypmod)
      from pg_attribute
     where attrelid = to_regclass(%(name)s)
       and attnum > 0
       and not attisdropped
"""


class TableGone(PenstockError):
    """A table that should be compared is not there on one of the sides."""

    code = "VF01"


class ColumnGone(PenstockError):
    """The target's table lacks a column that the source's has."""

    code = "VF02"


class TableRewritten(PenstockError):
    """A table was truncated or rewritten between the snapshot and our lock on it."""

    code = "VF03"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePair:
    """A source table and where it is in the target."""

    source: TableDefinition
    target: TableName

    def without(self, names: Collection[str]) -> TablePair:
        """The same without some columns of the source, which the target need not have."""
        columns = tuple(one for one in self.source.columns if one.name not in names)
        identity = tuple(name for name in self.source.identity_columns if name not in names)
        source = replace(self.source, columns=columns, identity_columns=identity)
        return replace(self, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row that differs. key: its key as a record's text, cut; the row's for keyless tables.

    missing: in the source only; surplus: in the target only; different: in both, not equal.
    """

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """What comparing one table found. Counts are exact; `named` holds the first ones only."""

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
        """Whether both sides hold the same rows."""
        return not (self.missing or self.surplus or self.different)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareProgress:
    """How far the reading has come, both sides together. table: the last one that moved on."""

    table: TableName
    bytes_done: int
    bytes_total: int


class Side:
    """A PostgreSQL server; see `Reader`.

    snapshot_id: an exported snapshot to import; None makes one now. The first session (the lead)
    also holds a lock on every compared table, so that none can be rewritten under our hands.
    """

    def __init__(self, url: str, *, snapshot_id: str | None, sessions: int) -> None:
        """Open the sessions. Raises the typed errors of `engines.postgres.connect`."""
        if sessions < 1:
            raise ValueError(f"at least one session is needed, not {sessions}")
        self._free: queue.SimpleQueue[psycopg.Connection] = queue.SimpleQueue()
        with ExitStack() as opened:
            self.lead = self._open(url, snapshot_id, opened)
            with server_errors("exporting a snapshot"):
                row = self.lead.execute("select pg_export_snapshot()").fetchone()
            assert row is not None
            self.snapshot_id = str(row[0])
            self._sessions = [self._open(url, self.snapshot_id, opened) for _ in range(sessions)]
            for session in self._sessions:
                self._free.put(session)
            self._opened = opened.pop_all()
        self.executor = ThreadPoolExecutor(sessions, thread_name_prefix="verify-read")
        self.dialect: Dialect = checksum

    @staticmethod
    def _open(url: str, snapshot_id: str | None, opened: ExitStack) -> psycopg.Connection:
        settings = {
            **EXACT_TEXT_SETTINGS,
            "synchronize_seqscans": "off",
            "jit": "off",
            "work_mem": WORK_MEMORY,
        }
        connection = connect(url, application_name=APPLICATION_NAME, options=settings)
        opened.callback(connection.close)
        with server_errors("importing the snapshot"):
            connection.execute(BEGIN)
            if snapshot_id is not None:
                connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
        return connection

    def cancel(self) -> None:
        """End the queries that run now."""
        for session in self._sessions:
            if session.info.transaction_status is TransactionStatus.ACTIVE:
                session.cancel_safe(timeout=CANCEL_TIMEOUT_S)

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection]:
        """A session for one query; waits until one is free."""
        connection = self._free.get()
        try:
            yield connection
        finally:
            self._free.put(connection)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """See Reader."""
        with self._session() as connection, server_errors(doing):
            return connection.execute(query).fetchall()

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        """See Reader."""
        with self._session() as connection:
            yield from read_hashes(connection, query, doing)

    def column_types(self, table: TableName) -> dict[str, str]:
        """See Reader."""
        with server_errors(f"reading the columns of {table}"):
            found = self.lead.execute(COLUMN_TYPES, {"name": quoted(*table)}).fetchall()
        return {str(name): str(type_text) for name, type_text in found}

    def column_name(self, name: str) -> str:
        """See Reader."""
        return name

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """See Reader."""
        return _parts(self.lead, table, side)

    @contextmanager
    def row_reader(self) -> Iterator[psycopg.Connection]:
        """See Reader."""
        yield self.lead

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        if kind is not None:
            self.cancel()  # a query that still runs would keep its thread, and so us, waiting
        self.executor.shutdown(wait=True)
        self._opened.close()


@dataclass(slots=True)
class _Work:
    """One table while it is compared: per side the parts, the SQL and the checksums."""

    pair: TablePair
    images: tuple[Image, Image]
    parts: tuple[tuple[Part, ...], tuple[Part, ...]]
    buckets: int
    sums: tuple[Sums, Sums] = field(default_factory=lambda: ({}, {}))


def compare_tables(
    pairs: Sequence[TablePair],
    source: Reader,
    target: Reader,
    *,
    named_max: int = NAMED_MAX,
    on_progress: Callable[[CompareProgress], None] | None = None,
    hasher: Hasher | None = None,
    ends: Ends | None = None,
) -> list[TableResult]:
    """Compare tables row by row; the results come in the order of the pairs.

    hasher: None takes what `hasher_for` says. ends: the two servers, unless both are PostgreSQL.
    Raises TableGone, ColumnGone, TableRewritten, ColumnIncomparable, and the typed errors of
    `engines.postgres.connect`.
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
            ends=ends,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A table that was compared, with what says which rows differ.

    images: of the source and the target. buckets: how many there are. keys: first hashes of the
    keys that differ; None: too many to say. differing: the buckets that they are in. parts: of the
    target. source_sums: of the source.
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
    source: Reader,
    target: Reader,
    *,
    hasher: Hasher,
    named_max: int = NAMED_MAX,
    on_progress: Callable[[CompareProgress], None] | None = None,
    ends: Ends | None = None,
    on_gone: Callable[[TableName, TableGone], None] | None = None,
) -> list[Compared]:
    """As `compare_tables`, with what a repair needs to know.

    on_gone: told of a table that a side does not have, instead of raising; the rest is compared.
    """
    works = []
    for pair in pairs:
        try:
            works.append(_prepare(pair, source, target, ends))
        except TableGone as error:
            if on_gone is None:
                raise
            on_gone(pair.source.name, error)
    _read_sums(works, (source, target), hasher, on_progress)
    return [_compared(work, (source, target), hasher, named_max) for work in works]


def hasher_for(source: Reader, target: Reader) -> Hasher:
    """What both servers can compute alike, the fastest of it."""
    if isinstance(source, Side) and isinstance(target, Side):
        return choose_hasher(source.lead, target.lead)
    return Hasher.SHARED


def choose_hasher(source: psycopg.Connection, target: psycopg.Connection) -> Hasher:
    """FAST when both servers give the same numbers and store text alike, else SHA256."""
    with server_errors("probing the hash functions"):
        answers = [c.execute(PROBE).fetchone() for c in (source, target)]
    return Hasher.FAST if answers[0] == answers[1] else Hasher.SHA256


def _prepare(pair: TablePair, source: Reader, target: Reader, ends: Ends | None) -> _Work:
    definition = pair.source
    source_parts, source_rows = source.parts(definition.name, "source")
    target_parts, target_rows = target.parts(pair.target, "target")
    types = target.column_types(pair.target)
    return _Work(
        pair=pair,
        images=_images(pair, target, types, ends),
        parts=(source_parts, target_parts),
        buckets=bucket_count(max(source_rows, target_rows)),
    )


def _images(
    pair: TablePair, target: Reader, types: Mapping[str, str], ends: Ends | None
) -> tuple[Image, Image]:
    definition = pair.source
    columns = definition.columns
    if ends is not None:
        columns = tuple(compared_columns(definition, ends, types))
    lacking = [column.name for column in columns if target.column_name(column.name) not in types]
    if lacking:
        raise ColumnGone(
            f"{pair.target} in the target has no column {lacking[0]}, which {definition.name} "
            "in the source has",
            hint="Let the loader catch up, or add the column to the target by hand.",
            columns=lacking,
        )
    if ends is not None:
        return shared_images(definition, pair.target, columns, ends)
    return source_image(definition), target_image(definition, types)


def _parts(lead: psycopg.Connection, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
    """Lock a table and cut it into parts; also an estimate of its rows."""
    name = {"name": quoted(*table)}
    with server_errors(f"looking at {table} in the {side}"):
        found = lead.execute(KIND, name).fetchone()
        if found is None:
            raise TableGone(
                f"there is no table {table} in the {side}",
                hint="See `penstock table ls`: a table that is new is added, or left out, by "
                "newTables; a captured one comes back by `penstock table resync`. Else check "
                "tables and [target.map].",
            )
        only = "" if found[0] == "p" else "only "  # tables that inherit are compared by themselves
        lead.execute(f"lock table {only}{quoted(*table)} in access share mode")
        leaves = lead.execute(LEAVES, name).fetchall() or lead.execute(PLAIN, name).fetchall()
    parts: list[Part] = []
    rows = 0
    for schema, relation, seen_node, node, size, tuples, kind, block_bytes in leaves:
        # pg_class is read in our snapshot, the function reads what is now.
        if kind == "r" and seen_node != node:
            raise TableRewritten(
                f"{table} in the {side} was truncated or rewritten while verify began",
                hint="Run `penstock verify` again.",
            )
        rows += tuples if tuples >= 0 else size // 64
        parts += cut(TableName(schema, relation), size, block_bytes, whole=kind != "r")
    return tuple(parts), rows


def cut(relation: TableName, size_bytes: int, block_bytes: int, *, whole: bool) -> list[Part]:
    """Cut a relation into parts of about PART_BYTES; the last one has an open end.

    whole: do not cut (foreign tables have no blocks).
    """
    blocks = PART_BYTES // block_bytes
    starts = [None, *range(blocks, size_bytes // block_bytes, blocks)]
    if whole or len(starts) == 1:
        return [Part(relation=relation, size_bytes=size_bytes)]
    ends: list[int | None] = [*starts[1:], None]
    return [
        Part(
            relation=relation,
            size_bytes=size_bytes // len(starts),
            block_first=first,
            block_end=end,
        )
        for first, end in zip(starts, ends, strict=True)
    ]


def _read_sums(
    works: Sequence[_Work],
    sides: tuple[Reader, Reader],
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


def _sums(side: Reader, query: str, doing: str) -> Sums:
    rows = side.fetch(query, doing)
    return {int(b): (int(count), int(one), int(two)) for b, count, one, two in rows}


def _compared(
    work: _Work, sides: tuple[Reader, Reader], hasher: Hasher, named_max: int
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
    work: _Work, sides: tuple[Reader, Reader], hasher: Hasher, differing: list[int], named_max: int
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
    work: _Work, sides: tuple[Reader, Reader], hasher: Hasher, tally: Tally
) -> tuple[Difference, ...]:
    """The keys of the named differences as text, read from a side that has the row."""
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

    def __init__(self, side: Reader, query: str, doing: str) -> None:
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
