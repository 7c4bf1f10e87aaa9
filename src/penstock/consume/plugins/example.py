"""Example plugin: it prints its arguments, as FlexCDC's does."""

from __future__ import annotations

import sys
from typing import IO

from penstock.consume.plugins.base import Instance, Plugin, Row, RowValues


class Example(Plugin):
    """Prints every callback to standard output; writes nothing anywhere else.

    `plugin = "penstock.consume.plugins:Example"`.
    """

    row_values = RowValues.SQL

    def __init__(self, file: IO[str] | None = None) -> None:
        """Set the output.

        Args:
            file: output; standard output if None.
        """
        self._file = file

    def plugin_init(self, _: Instance, /) -> None:
        self._say("PLUGIN STARTUP")

    def plugin_deinit(self, _: Instance, /) -> None:
        self._say("PLUGIN SHUTDOWN")

    def begin_trx(self, uow_id: int, gsn: int, _: Instance, /) -> None:
        self._say(f"START TRANSACTION: trx_id: {uow_id}, Prev GSN: {gsn}")

    def insert(self, row: Row, db: str, table: str, trx_id: int, gsn: int, _: Instance, /) -> None:
        self._row("INSERT", row, db, table, trx_id, gsn)

    def delete(self, row: Row, db: str, table: str, trx_id: int, gsn: int, _: Instance, /) -> None:
        self._row("DELETE", row, db, table, trx_id, gsn)

    def update_before(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, _: Instance, /
    ) -> None:
        self._row("UPDATE (OLD)", row, db, table, trx_id, gsn)

    def update_after(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, _: Instance, /
    ) -> None:
        self._row("UPDATE (NEW)", row, db, table, trx_id, gsn)

    def truncate(self, db: str, table: str, trx_id: int, gsn: int, _: Instance, /) -> None:
        """Print that a table was emptied; not one of FlexCDC's callbacks."""
        self._say(f"TRX_ID: {trx_id}, Schema:{db}, Table: {table}, DML: TRUNCATE, AFTER: {gsn}")

    def commit_trx(self, uow_id: int, gsn: int, _: Instance, /) -> None:
        self._say(f"COMMIT: trx_id: {uow_id}, Last GSN: {gsn}")

    def rollback_trx(self, uow_id: int, _: Instance, /) -> None:
        self._say(f"ROLLBACK: trx_id: {uow_id}")

    def _row(self, dml: str, row: Row, db: str, table: str, trx_id: int, gsn: int) -> None:
        lines = [f"TRX_ID: {trx_id}, Schema:{db}, Table: {table}, DML: {dml}, AT: {gsn}", "Array"]
        lines += ["(", *(f"    [{name}] => {value}" for name, value in row.items()), ")"]
        self._say("\n".join(lines))

    def _say(self, text: str) -> None:
        file = self._file or sys.stdout
        file.write(text + "\n")
        file.flush()
