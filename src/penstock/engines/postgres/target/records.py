"""The captured tables' records of one connection: read once, made when first needed.

Two connections of a loader use them at the same time, one for staging and one for applying; a
record that either makes is never overwritten by the other. Not here: the table itself
(`progress.py`), and what is written into it when a shape changes (`apply.py`).
"""

from __future__ import annotations

import psycopg

from penstock.engines.postgres.target import progress
from penstock.model import TableName
from penstock.ports.target import TableRecord


class Records:
    """Contents of `wirekite.wirekite_table`, as one connection has read them."""

    def __init__(self, connection: psycopg.Connection) -> None:
        """connection: autocommit, or in the transaction that the records belong to."""
        self._connection = connection
        self._known: dict[TableName, TableRecord] = {}

    def get(self, source: TableName, target: TableName) -> TableRecord:
        """Return the record of a captured table, made when it is the first time."""
        while source not in self._known:
            self._known = progress.read_tables(self._connection)
            if source not in self._known:
                self._add(source, target)  # nothing happens when its merge name was taken just now
        return self._known[source]

    def _add(self, source: TableName, target: TableName) -> None:
        taken = {record.merge_name: record.target for record in self._known.values()}
        name = progress.merge_name(target, taken)
        record = TableRecord(
            source=source, target=target, merge_name=name, made=False, columns=None
        )
        progress.add_table(self._connection, record)

    def put(self, record: TableRecord) -> None:
        """Write a record, whatever was there."""
        progress.write_tables(self._connection, [record])
        self._known[record.source] = record

    def forget(self) -> None:
        """Read again when next needed: after a failure."""
        self._known.clear()
