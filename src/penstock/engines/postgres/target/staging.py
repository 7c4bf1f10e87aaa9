"""Merge tables: created if missing, recreated if their shape changed, empty when a batch begins.

They are unlogged: a crash of the server empties them, and then the batch is staged again. There
are two sets of them, so that one batch can be staged while the previous one is applied; as long
as no two batches overlap, all use the first set, whose tables have the documented names. Not
here: filling them (`load/job.py`) and applying them (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import psycopg

from penstock.engines.postgres.connect import literal, quote, server_errors
from penstock.engines.postgres.target.claims import end_workers
from penstock.engines.postgres.target.merge import MergeLayout, create_merge_table
from penstock.engines.postgres.target.target import same_type
from penstock.host.errors import StatementFailed
from penstock.ports.target import SCHEMA, StagingChanged

# Emptied in one transaction: each takes five places of the server's lock table, which has 64 for a
# connection by default. The transaction that applies the batch needs them at the same time.
TABLES_AT_ONCE = 100
MADE_MEANWHILE = ("42P07", "23505")  # a table of this name, or its row in a catalogue, is there

SHAPES = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where c.relnamespace = 'wirekite'::regnamespace and c.relname = any(%s)
     order by c.relname, a.attnum
"""

STAMPS = """
    select relname, relfilenode::bigint
      from pg_class
     where relnamespace = 'wirekite'::regnamespace and relname = any(%s)
"""

Shape = tuple[tuple[str, str], ...]


class StagingArea:
    """The merge tables of one target; remembers shapes, so that most batches only truncate."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._shapes: dict[str, Shape] = {}
        self._used: set[str] = set()
        self._emptied: dict[str, int] = {}  # since they were used: their stamps

    def prepare(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        """Create these merge tables, by name, empty. Call outside a transaction.

        Returns a stamp per name, which changes when the table is recreated or emptied. Raises
        StagingChanged if another loader creates them at the same moment.
        """
        stamps: dict[str, int] = {}
        try:
            for names in _pieces(list(wanted)):
                with server_errors("preparing merge tables"), self._connection.transaction():
                    stamps |= self._prepare({name: wanted[name] for name in names})
        except StatementFailed as error:
            if error.fields.get("sqlstate") not in MADE_MEANWHILE:
                raise
            raise StagingChanged(
                error.message,
                hint="penstock retries automatically. Let one loader work on a target: stop the "
                "other `penstock run` or `penstock load`.",
            ) from error
        self._used.update(wanted)
        for name in wanted:
            self._emptied.pop(name, None)
        return stamps

    def empty_ahead(self) -> None:
        """Empty those that earlier batches used, so that the next batch need not wait for it."""
        used, self._used = sorted(self._used & self._shapes.keys()), set()
        for names in _pieces(used):
            listed = ", ".join(quote(SCHEMA, name) for name in names)
            with server_errors("emptying merge tables"), self._connection.transaction():
                self._connection.execute(f"truncate {listed}")
                self._emptied |= _stamps(self._connection, names)

    def _prepare(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        # No worker has the stamps of those that were emptied ahead: no late worker writes into
        # them.
        ready = [name for name in wanted if name in self._emptied]
        stamps = _stamps(self._connection, ready) if ready else {}
        empty = {
            name
            for name in ready
            if stamps.get(name) == self._emptied[name]
            and _same(self._shapes[name], wanted[name].sql_columns)
        }
        rest = {name: layout for name, layout in wanted.items() if name not in empty}
        if not rest:
            return stamps
        self._make(rest)
        return _stamps(self._connection, wanted)

    def _make(self, wanted: Mapping[str, MergeLayout]) -> None:
        self._look([name for name in wanted if name not in self._shapes])
        kept = []
        for name, layout in wanted.items():
            found = self._shapes.get(name)
            if found is not None and _same(found, layout.sql_columns):
                kept.append(name)
                continue
            if found is not None:
                self._connection.execute(f"drop table {quote(SCHEMA, name)}")
            self._connection.execute(create_merge_table(layout, name))
            self._shapes[name] = layout.sql_columns
        if kept:
            listed = ", ".join(quote(SCHEMA, name) for name in kept)
            self._connection.execute(f"truncate {listed}")

    def forget(self, names: Iterable[str]) -> None:
        """Look at the catalogue again when these are next needed: they are being dropped."""
        for name in names:
            self._shapes.pop(name, None)
            self._emptied.pop(name, None)

    def _look(self, names: list[str]) -> None:
        if not names:
            return
        end_workers(self._connection, names)
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in self._connection.execute(SHAPES, (names,)).fetchall():
            found.setdefault(table, []).append((column, kind))
        self._shapes |= {name: tuple(columns) for name, columns in found.items()}


def check_staged(connection: psycopg.Connection, expected: Mapping[str, tuple[int, int]]) -> None:
    """Lock merge tables against writers, and check that each holds what was staged.

    expected: per name the stamp that it got when it was emptied, and its rows. A worker of an
    earlier attempt, which Spark gave up, may still be sending rows: then there are too many. A
    crash of the server empties unlogged tables, and another loader may use the same ones. Call in
    the transaction that applies them; raises StagingChanged.
    """
    for names in _pieces(list(expected)):
        tables = {name: quote(SCHEMA, name) for name in names}
        connection.execute(f"lock table {', '.join(tables.values())} in share mode")
        stamps = _stamps(connection, names)
        found = " union all ".join(
            f"select {literal(name)}, count(*) from {table}" for name, table in tables.items()
        )
        for name, count in connection.execute(found).fetchall():
            stamp, rows = expected[name]
            if count != rows or stamps.get(name) != stamp:
                what = f"holds {count} rows, {rows} were staged" if count != rows else "was emptied"
                raise StagingChanged(
                    f"merge table {tables[name]} {what}",
                    hint="Do nothing: the batch is staged again automatically.",
                )


def _pieces(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), TABLES_AT_ONCE):
        yield names[at : at + TABLES_AT_ONCE]


def _stamps(connection: psycopg.Connection, names: Iterable[str]) -> dict[str, int]:
    """Return values by name that change whenever a table gets a new, empty file."""
    return dict(connection.execute(STAMPS, (list(names),)).fetchall())


def drop_merge_tables(connection: psycopg.Connection, names: Iterable[str]) -> None:
    """Drop merge tables that only one batch needed."""
    for name in names:
        with server_errors("dropping a merge table"):
            connection.execute(f"drop table if exists {quote(SCHEMA, name)}")


def _same(found: Shape, wanted: Shape) -> bool:
    return len(found) == len(wanted) and all(
        name == other and same_type(kind, another)
        for (name, kind), (other, another) in zip(found, wanted, strict=True)
    )
