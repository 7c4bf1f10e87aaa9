"""Tables whose unique keys wait, in whichever target: which, and their keys made and dropped.

Not here: the file of them (`late_keys.py`), the statements (`postgres/schema.py`,
`mysql/late_keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

import structlog

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    server_errors,
)
from penstock.engines.postgres.target import schema
from penstock.engines.postgres.target.bulk_keys import INDEX_MEMORY
from penstock.load.late_keys import LateTable, early_and_late
from penstock.load.ledger import TablePlan, position_of
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import BulkTarget
from penstock.sql.read_plan import is_mysql

logger = structlog.get_logger(__name__)
APPLICATION_NAME = "penstock late keys"


def late_tables(
    plans: Iterable[TablePlan],
    definitions: Mapping[TableName, TableDefinition],
    target: BulkTarget,
    *,
    shift: int,
    with_foreign_keys: bool,
) -> list[LateTable]:
    """Those of these tables whose rows are of several moments, with the keys that wait.

    shift: what the change log adds to the source's positions.
    """
    mixed = [plan for plan in plans if plan.is_mixed and plan.source in definitions]
    found = [
        LateTable(
            source=plan.source,
            target=plan.target,
            settled=position_of(plan.settled).ordinal + shift,
            keys=target.late_keys(early_and_late(definitions[plan.source])[1]),
            with_foreign_keys=with_foreign_keys,
        )
        for plan in mixed
    ]
    return [one for one in found if one.keys or one.with_foreign_keys]


def add_late_keys(url: str, table: LateTable) -> list[str]:
    """Make the unique keys of a table that have waited; safe to repeat.

    Returns a sentence for each that cannot be had any more. Raises TargetDdlFailed for one that
    the target refuses, and what a connection does.
    """
    if is_mysql(url):
        from penstock.engines.mysql.connect import connect as connect_mysql
        from penstock.engines.mysql.target import late_keys as of_mysql

        with closing(connect_mysql(url, application_name=APPLICATION_NAME)) as connection:
            return of_mysql.add_late_keys(connection, table)
    settings = {**EXACT_TEXT_SETTINGS, "maintenance_work_mem": INDEX_MEMORY}
    with (
        connect(url, application_name=APPLICATION_NAME, options=settings) as target,
        server_errors(f"adding keys of {table.target}"),
    ):
        commit_durably(target)  # they are forgotten behind it
        return schema.add_late_keys(target, table)


def drop_late_keys(url: str, table: LateTable) -> None:
    """Take away the keys of a table that is to be filled with rows of several moments.

    One that another table's foreign key needs stays: then rows may be refused.
    """
    if is_mysql(url):
        from penstock.engines.mysql.connect import connect as connect_mysql
        from penstock.engines.mysql.target import late_keys as of_mysql

        with closing(connect_mysql(url, application_name=APPLICATION_NAME)) as connection:
            notes = of_mysql.drop_late_keys(connection, table)
    else:
        with (
            connect(url, application_name=APPLICATION_NAME) as target,
            server_errors(f"dropping keys of {table.target}"),
        ):
            notes = schema.drop_late_keys(target, table)
    for note in notes:
        logger.warning("late keys", note=note)
