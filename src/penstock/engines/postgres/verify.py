"""Comparison by `penstock verify` of PostgreSQL servers: `Verifier`, `VerifyReader` of
`ports/verify.py`.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import psycopg
from psycopg import pq
from psycopg.pq import TransactionStatus

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres import checksum
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
    statement_error,
)
from penstock.engines.postgres.source.bulk_reader import PostgresBulkReader
from penstock.engines.postgres.source.snapshot import (
    plain_point,
    temporary_consistent_point,
)
from penstock.host.errors import ConnectionLost
from penstock.model import TableDefinition, TableName
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.verify import (
    APPLICATION_NAME,
    ARRAY_ROWS,
    PART_BYTES,
    Dialect,
    Hasher,
    Hashes,
    Part,
    SourcePoint,
    TableChangedMeanwhile,
    Verifier,
    VerifyReader,
    table_gone,
)

# Row messages (tags I, U, D, T) of transactions that end behind the log. A transaction's last
# message has the position of its end; the slot may be before the log's end after a crash.
UNREAD_ROWS = """
    select coalesce(sum(row_count), 0)::int8
      from (select count(*) filter (where get_byte(data, 0) in (73, 85, 68, 84)) as row_count,
                   max(lsn) as end_lsn
              from pg_logical_slot_peek_binary_changes(
                       %(slot)s, %(until)s::pg_lsn, null,
                       'proto_version', '1', 'publication_names', %(publications)s)
             group by xid) as transactions
     where end_lsn > %(log_end)s::pg_lsn
"""
SLOT_EXISTS = """
    select exists (select from pg_replication_slots where slot_name = %(slot)s)
"""
# Makes the server's log reach beyond the position, so that an idle source is passed at once. Its
# commit writes everything before it, too, whatever the server's synchronous_commit is.
NUDGE = """
    select set_config('synchronous_commit', 'local', true),
           case when not pg_is_in_recovery()
                then pg_logical_emit_message(true, 'penstock', 'verify')
           end
"""


class PostgresVerifier(Verifier):
    """Verifier of a PostgreSQL server."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        _tables: Callable[[], Sequence[TableDefinition]],
        _tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[VerifyReader, SourcePoint]]:
        """Open sessions in one snapshot. Nothing has to wait for the point, so nothing is
        reported.
        """
        url = config.source.url
        with ExitStack() as stack:
            # A temporary slot is dropped as soon as the reader has imported the snapshot.
            follows = config.pipeline.mode.has_change
            with (temporary_consistent_point if follows else plain_point)(url) as point:
                reader = stack.enter_context(
                    PostgresVerifyReader(
                        url,
                        snapshot_id=point.snapshot_id,
                        sessions=sessions,
                        part_bytes=part_bytes,
                    )
                )
            yield reader, SourcePoint(position=point.position, text=str(Lsn(point.position)))

    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> PostgresVerifyReader:
        return PostgresVerifyReader(url, snapshot_id=None, sessions=sessions, part_bytes=part_bytes)

    def nudge(self, url: str) -> None:
        """Make the server's log reach beyond the point."""
        with (
            connect(url, application_name=APPLICATION_NAME) as connection,
            server_errors("writing a mark into the source's log"),
        ):
            connection.execute(NUDGE)

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        _tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        """Return what is unread: nothing if there is no slot, because nothing was captured."""
        section = config.change_extractor
        names = '"' + section.publication.replace('"', '""') + '"'
        parameters = {
            "slot": section.replication_slot,
            "until": str(Lsn(point.position)),
            "publications": names,
            "log_end": str(Lsn(since)),
        }
        with (
            connect(config.source.url, application_name=APPLICATION_NAME) as connection,
            server_errors("looking into the replication slot"),
        ):
            if not _first(connection, SLOT_EXISTS, parameters):
                return ""
            unread = int(_first(connection, UNREAD_ROWS, parameters))
        return f"the replication slot still holds {count_words(unread, 'change')}" if unread else ""


VERIFIER: Verifier = PostgresVerifier()


def _first(connection: psycopg.Connection, query: str, parameters: dict[str, str]) -> Any:
    row: Sequence[Any] | None = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


WAIT_S = 60.0
_HEADER_BYTES = 19  # signature, flags, length of an empty extension
_ROW = np.dtype(
    [
        ("fields", ">i2"),
        *(
            (f"{part}{i}", f">i{size}")
            for i in range(4)
            for part, size in (("length", 4), ("hash", 8))
        ),
    ]
)


def read_hashes(connection: psycopg.Connection, query: str, doing: str) -> Iterator[Hashes]:
    """Yield the rows of a query of four bigint columns as arrays, in the query's order.

    Raises the typed errors of `engines.postgres.connect`.
    """
    raw = connection.pgconn
    begun = raw.exec_(f"copy ({query}) to stdout (format binary)".encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise statement_error(doing, psycopg.errors.error_from_result(begun))
    parts: list[bytes | memoryview] = []
    first = True
    while True:
        length, data = raw.get_copy_data(1)
        if length > 0:
            parts.append(data)
        elif length == 0:
            _wait(raw, doing)
            raw.consume_input()
        if parts and (length < 0 or len(parts) >= ARRAY_ROWS):
            block = b"".join(parts)
            parts.clear()
            yield _decode(block[_HEADER_BYTES:] if first else block)
            first = False
        if length < 0:
            break
    while (result := raw.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise statement_error(doing, psycopg.errors.error_from_result(result))


def _wait(raw: pq.abc.PGconn, doing: str) -> None:
    poll = select.poll()
    poll.register(raw.socket, select.POLLIN)
    while not poll.poll(WAIT_S * 1000):
        if raw.status != pq.ConnStatus.OK:
            raise ConnectionLost(f"{doing}: the connection broke")


def _decode(block: bytes) -> Hashes:
    rows = np.frombuffer(block, dtype=_ROW, count=len(block) // _ROW.itemsize)
    return np.stack([rows[f"hash{i}"].astype(np.int64) for i in range(4)], axis=1)


CANCEL_TIMEOUT_S = 5.0
WORK_MEMORY = "64MB"  # for the sums of 65,536 buckets, and for sorting hashes

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


class PostgresVerifyReader(VerifyReader):
    """Sessions in one snapshot.

    snapshot_id: an exported snapshot to import; None takes one now. The first session (the lead)
    also holds a lock on every compared table, so that none can be rewritten meanwhile.
    """

    def __init__(
        self, url: str, *, snapshot_id: str | None, sessions: int, part_bytes: int = PART_BYTES
    ) -> None:
        """Open the sessions. Raises the typed errors of `engines.postgres.connect`."""
        if sessions < 1:
            raise ValueError(f"at least one session is needed, not {sessions}")
        self._part_bytes = part_bytes
        with ExitStack() as opened:
            self.lead = self._open(url, snapshot_id, opened)
            with server_errors("exporting a snapshot"):
                row = self.lead.execute("select pg_export_snapshot()").fetchone()
            assert row is not None
            self.snapshot_id = str(row[0])
            self._sessions = LentSessions(
                [self._open(url, self.snapshot_id, opened) for _ in range(sessions)]
            )
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
        """End the queries that run now or are about to begin."""
        self._sessions.refuse()
        for session in self._sessions.iterate_lent():
            if session.info.transaction_status is TransactionStatus.ACTIVE:
                session.cancel_safe(timeout=CANCEL_TIMEOUT_S)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        with self._sessions.lend() as connection, server_errors(doing):
            return connection.execute(query).fetchall()

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        with self._sessions.lend() as connection:
            yield from read_hashes(connection, query, doing)

    def hashers(self) -> Mapping[Hasher, str]:
        with server_errors("probing the hash functions"):
            probed = self.lead.execute(checksum.PROBE).fetchone()
        return {Hasher.FAST: str(probed), Hasher.SHA256: "postgres", Hasher.SHARED: ""}

    def column_types(self, table: TableName) -> dict[str, str]:
        with server_errors(f"reading the columns of {table}"):
            found = self.lead.execute(COLUMN_TYPES, {"name": quote(*table)}).fetchall()
        return {str(name): str(type_text) for name, type_text in found}

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        return read_parts(self.lead, table, side, part_bytes=self._part_bytes)

    @contextmanager
    def row_reader(self) -> Iterator[PostgresBulkReader]:
        yield PostgresBulkReader(self.lead)

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


def read_parts(
    lead: psycopg.Connection, table: TableName, side: str, *, part_bytes: int = PART_BYTES
) -> tuple[tuple[Part, ...], int]:
    """Lock a table and cut it into parts; return these and an estimate of its rows."""
    name = {"name": quote(*table)}
    with server_errors(f"looking at {table} in the {side}"):
        found = lead.execute(KIND, name).fetchone()
        if found is None:
            raise table_gone(table, side)
        only = "" if found[0] == "p" else "only "  # tables that inherit are compared by themselves
        lead.execute(f"lock table {only}{quote(*table)} in access share mode")
        leaves = lead.execute(LEAVES, name).fetchall() or lead.execute(PLAIN, name).fetchall()
    parts: list[Part] = []
    rows = 0
    for schema, relation, seen_node, node, size, tuples, kind, block_bytes in leaves:
        # pg_class is read in our snapshot, the function reads what is now.
        if kind == "r" and seen_node != node:
            raise TableChangedMeanwhile(
                f"{table} in the {side} was truncated or rewritten while verify began",
                hint="Run `penstock verify` again.",
            )
        rows += tuples if tuples >= 0 else size // 64
        name_of = TableName(schema, relation)
        parts += cut(name_of, size, block_bytes, part_bytes=part_bytes, whole=kind != "r")
    return tuple(parts), rows


def cut(
    relation: TableName, size_bytes: int, block_bytes: int, *, part_bytes: int, whole: bool
) -> list[Part]:
    """Cut a relation into ranges of its blocks; the last one has an open end.

    whole: do not cut (foreign tables have no blocks).
    """
    blocks = max(part_bytes // block_bytes, 1)
    starts = list(range(0, size_bytes // block_bytes, blocks))
    if whole or len(starts) <= 1:
        return [Part(relation=relation, size_bytes=size_bytes)]
    ends = [*starts[1:], None]
    return [
        Part(
            relation=relation,
            size_bytes=size_bytes // len(starts),
            where=" and ".join(
                [f"ctid >= '({first},0)'"] * (first > 0)
                + [f"ctid < '({end},0)'"] * (end is not None)
            ),
        )
        for first, end in zip(starts, ends, strict=True)
    ]
