"""Triggers and foreign keys of a SQL Server target that rest until the end of a transaction.

The server has no switch for a session, so they are altered inside the transaction. The lock that
this takes keeps other sessions out of the tables, so for those they still act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetForeignKey, TargetTable
from penstock.host.errors import PrivilegeMissing
from penstock.model import TableName
from penstock.ports.target import TriggersWouldFire

Run = Callable[[str, TableName], object]
"""Runs a statement about a table, and raises typed errors."""


@contextmanager
def quiet_triggers(run: Run, tables: Sequence[TargetTable]) -> Iterator[None]:
    """Disable triggers for a with block: those of the source have done their work.

    An error rolls the transaction back, which enables them. Raises TriggersWouldFire.
    """
    for table in tables:
        for trigger in table.triggers:
            _alter_trigger(run, "DISABLE", table, trigger)
    yield
    for table in tables:
        for trigger in table.triggers:
            _alter_trigger(run, "ENABLE", table, trigger)


def _alter_trigger(run: Run, what: str, table: TargetTable, trigger: str) -> None:
    try:
        run(f"ALTER TABLE {table.sql_name} {what} TRIGGER {quote(trigger)}", table.name)
    except PrivilegeMissing as error:
        raise TriggersWouldFire(
            f"target table {table.name} has trigger {trigger}, which would act a second time",
            hint=f"Run: GRANT ALTER ON {table.sql_name} TO [USER]; or: ALTER TABLE "
            f"{table.sql_name} DISABLE TRIGGER {quote(trigger)};",
            table=str(table.name),
        ) from error


@contextmanager
def deferred_foreign_keys(run: Run, tables: Sequence[TargetTable]) -> Iterator[None]:
    """Check foreign keys of tables, and those to them, at the end of a with block.

    `WITH CHECK CHECK` reads both tables. A key that does not hold is an error of `run`.
    """
    keys = keys_of(tables)
    for key in keys:
        run(f"ALTER TABLE {quote(*key.child)} NOCHECK CONSTRAINT {quote(key.name)}", key.child)
    yield
    for key in keys:
        run(
            f"ALTER TABLE {quote(*key.child)} WITH CHECK CHECK CONSTRAINT {quote(key.name)}",
            key.child,
        )


def keys_of(tables: Iterable[TargetTable]) -> list[TargetForeignKey]:
    """Return the foreign keys of tables, and those to them, each once."""
    found = {(key.child, key.name): key for table in tables for key in table.parents}
    found |= {(key.child, key.name): key for table in tables for key in table.children}
    return [found[place] for place in sorted(found)]
