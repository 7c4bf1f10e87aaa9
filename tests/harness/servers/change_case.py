"""A server with one captured table, and a log of it: what most tests of the source begin with."""

from __future__ import annotations

from typing import Any

from harness.servers.change_table_log import ChangeLog, Seen
from harness.servers.change_tables import ChangeServer, FakeTable
from harness.servers.change_writer import ChangeWriter

COLUMNS = [("id", "int"), ("name", "nvarchar(20)"), ("body", "nvarchar(max)")]


class Case:
    """A server with one captured table, its writer, and a log that has read nothing yet."""

    def __init__(self, **log: Any) -> None:
        self.server = ChangeServer()
        self.table = self.server.add_table("t", COLUMNS)
        self.writer = ChangeWriter(self.server)
        self.instance = self.server.capture(self.table, start=self.writer.next_lsn())
        self.begin = self.writer.idle()
        self.log = ChangeLog(self.server, begin=self.begin, **log)

    def insert(self, *ids: int, table: FakeTable | None = None) -> list[Seen]:
        """Commit a transaction that inserts rows."""
        transaction = self.writer.begin()
        for number in ids:
            transaction.insert(table or self.table, row_of(number))
        return transaction.commit()

    def add_table(self, name: str) -> FakeTable:
        """Create and capture another table."""
        table = self.server.add_table(name, COLUMNS)
        self.server.capture(table, start=self.writer.next_lsn())
        return table


def row_of(number: int, **values: Any) -> dict[str, Any]:
    """Return a row of the table."""
    return {"id": number, "name": f"n{number}", "body": None, **values}
