"""MySQL and MariaDB as targets of a repair: the port of `ports/verify.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.codec.server_pair import ServerPair
from penstock.engines.mysql.connect import quote, rows, run, server_errors, value
from penstock.engines.mysql.target.chunk import MySQLWriter
from penstock.engines.mysql.target.progress import transaction
from penstock.engines.mysql.target.shapes import check_shape
from penstock.engines.mysql.target.target import read_target_tables, require
from penstock.model import TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.target import SCHEMA, Applied
from penstock.ports.verify import (
    RepairRefused,
    RepairTable,
    RepairTarget,
    own_columns,
    target_moved,
)

TRANSACTIONAL = frozenset({"INNODB", "ROCKSDB", "TOKUDB"})
PRESENT = """
    select 1 as here
      from information_schema.tables
     where table_schema = %s
       and table_name = 'wirekite_log'
"""

APPLIED = f"select applied_gsn from {SCHEMA}.wirekite_log for update"


class MySQLRepair(MySQLWriter, RepairTarget):
    """Connection that repairs rows of a MySQL or MariaDB target."""

    def __init__(self, url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> None:
        """Connect. The session ignores foreign keys; triggers cannot be ignored and are refused."""
        super().__init__(url)
        del namespaces
        assert servers is not None, "a MySQL target always has a pair of servers"
        self._servers = servers
        self.replica = True
        doing = "setting up the session"
        binlog = value(self._connection, "select @@binlog_format", doing=doing)
        level = "repeatable read" if binlog == "STATEMENT" else "read committed"
        run(self._connection, f"set session transaction isolation level {level}", doing=doing)

    @contextmanager
    def transaction(self) -> Iterator[object]:
        with server_errors("repairing the target"), transaction(self._connection):
            yield self._connection

    def hold(self, expected: Applied) -> None:
        doing = "locking the applied position"
        if not rows(self._connection, PRESENT, (SCHEMA,), doing=doing):
            return
        found = rows(
            self._connection,
            f"select applied_gsn from {SCHEMA}.wirekite_log for update",
            doing=doing,
        )
        if found and found[0]["applied_gsn"] != expected.gsn:
            raise target_moved(expected, int(found[0]["applied_gsn"]))

    def check(self, table: RepairTable) -> None:
        found = require(read_target_tables(self._connection, [table.target]), table.target)
        check_shape(table.definition, found, self._servers)
        names = {column.name.lower() for column in table.definition.columns}
        own = [c.name for c in found.columns if c.name.lower() not in names and not c.generated]
        if own:
            raise own_columns(table.target, own)
        if found.triggers or found.engine.upper() not in TRANSACTIONAL:
            what = f"trigger {found.triggers[0]}" if found.triggers else f"engine {found.engine}"
            raise RepairRefused(
                f"target table {table.target} has {what}",
                hint="Triggers would act on what is written: drop them meanwhile. A table without "
                "transactions could be left half repaired: alter table ... engine = InnoDB;",
                table=str(table.target),
            )

    def delete(self, table: TableName, condition: str) -> int:
        statement = f"delete from {quote(*table)} where {condition}"
        return run(self._connection, statement, doing=f"deleting rows of {table}")

    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        return self._load(task, reader)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        with server_errors(doing), self._connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())
