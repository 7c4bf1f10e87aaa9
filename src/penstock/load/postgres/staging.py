"""Merge tables: made when missing, made anew when their shape changed, empty when a batch begins.

They are unlogged: a crash of the server empties them, and then the batch is staged again.
Not here: filling them (`load/job.py`) and applying them (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from penstock.host.connect import quoted, server_errors
from penstock.load.merge_rows import MergeLayout
from penstock.load.postgres.merge import create_merge_table
from penstock.load.postgres.progress import SCHEMA
from penstock.load.postgres.types import same_type

SHAPES = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where c.relnamespace = 'wirekite'::regnamespace and c.relname = any(%s)
     order by c.relname, a.attnum
"""

Shape = tuple[tuple[str, str], ...]


class StagingArea:
    """The merge tables of one target; remembers shapes, so that most batches only truncate."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._shapes: dict[str, Shape] = {}

    def prepare(self, wanted: Mapping[str, MergeLayout]) -> None:
        """Have these merge tables, by name, empty. Call outside a transaction."""
        if not wanted:
            return
        with server_errors("preparing merge tables"), self._connection.transaction():
            self._look([name for name in wanted if name not in self._shapes])
            kept = []
            for name, layout in wanted.items():
                found = self._shapes.get(name)
                if found is not None and _same(found, layout.sql_columns):
                    kept.append(name)
                    continue
                if found is not None:
                    self._connection.execute(f"drop table {quoted(SCHEMA, name)}")
                self._connection.execute(create_merge_table(layout, name))
                self._shapes[name] = layout.sql_columns
            if kept:
                listed = ", ".join(quoted(SCHEMA, name) for name in kept)
                self._connection.execute(f"truncate {listed}")

    def forget(self) -> None:
        """Look at the catalogue again: after a failure or another connection."""
        self._shapes.clear()

    def drop(self, names: list[str]) -> None:
        """Drop merge tables that only this batch needed."""
        for name in names:
            with server_errors("dropping a merge table"):
                self._connection.execute(f"drop table if exists {quoted(SCHEMA, name)}")
            self._shapes.pop(name, None)

    def _look(self, names: list[str]) -> None:
        if not names:
            return
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in self._connection.execute(SHAPES, (names,)).fetchall():
            found.setdefault(table, []).append((column, kind))
        self._shapes |= {name: tuple(columns) for name, columns in found.items()}


def _same(found: Shape, wanted: Shape) -> bool:
    return len(found) == len(wanted) and all(
        name == other and same_type(kind, another)
        for (name, kind), (other, another) in zip(found, wanted, strict=True)
    )
