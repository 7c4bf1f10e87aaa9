"""Deferred unique keys in PostgreSQL: made late, and dropped before a table is copied again.

Not here: when (`penstock.load.deferred_keys`), and the statements (`schema.py`).
"""

from __future__ import annotations

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    server_errors,
)
from penstock.engines.postgres.target import schema
from penstock.engines.postgres.target.bulk_keys import INDEX_MEMORY
from penstock.ports.bulk import DEFERRED_KEYS_APPLICATION, DeferredTable


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the waiting unique keys of a table."""
    settings = {**EXACT_TEXT_SETTINGS, "maintenance_work_mem": INDEX_MEMORY}
    with (
        connect(url, application_name=DEFERRED_KEYS_APPLICATION, options=settings) as target,
        server_errors(f"adding keys of {table.target}"),
    ):
        commit_durably(target)  # they are forgotten after it
        return schema.add_deferred_keys(target, table)


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop unique keys that an earlier load of the table has created."""
    with (
        connect(url, application_name=DEFERRED_KEYS_APPLICATION) as target,
        server_errors(f"dropping keys of {table.target}"),
    ):
        return schema.drop_deferred_keys(target, table)
