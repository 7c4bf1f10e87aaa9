"""Part `enabling`: create the capture instances of tables that are to be added.

Follows the reference's section 1. Not here: enabling the database, which needs an administrator of
the server; doctor prints the command (`checks/capture_checks.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.errors import EnablingRefused, InstanceUnreadable
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.beginning import read_database
from penstock.engines.sqlserver.source.instances import Instance, enable_text, instances_of
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.ports.config import Config

WAIT_S = 30.0
LOOK_INTERVAL_S = 0.5

logger = structlog.get_logger(__name__)


def enable_capture(config: Config, tables: Sequence[TableName]) -> None:
    """Create a capture instance for each table without one; return when all can be read.

    Raises CdcDisabled, EnablingRefused, InstanceUnreadable, PrivilegeMissing, and the errors of
    connecting.
    """
    with connect(config.source.url) as session:
        read_database(session)
        for table in tables:
            if not _instances_of(session, table):
                _enable(session, table)
                logger.info("capture instance created", table=str(table))
            wait_readable(partial(_instances_of, session, table), table)


def _instances_of(session: Connection, table: TableName) -> list[Instance]:
    return [
        one for one in instances_of(session.execute(statements.INSTANCES)) if one.table == table
    ]


def _enable(session: Connection, table: TableName) -> None:
    text = enable_text(*table)
    try:
        session.run(text)
    except PrivilegeMissing as error:
        raise PrivilegeMissing(
            f"the user may not enable the capture of {table}: {error.message}",
            hint=f"Run at the database, as db_owner: {text}",
            **error.fields,
        ) from error
    except StatementFailed as error:
        raise EnablingRefused(
            f"the server refuses to capture {table}: {error.message}",
            hint=f"See what doctor says of this table (MS011), or run it at the database: {text}",
            table=str(table),
        ) from error


def wait_readable(
    look: Callable[[], list[Instance]],
    table: TableName,
    *,
    timeout_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a table has an instance whose lowest LSN the user can read.

    Args:
        look: Returns the instances of the table.
        table: Its name.
        timeout_s: Seconds to wait.
        sleep: Waits so many seconds.

    Raises:
        InstanceUnreadable: There is none in time.
    """
    waited_s = 0.0
    while not any(one.least for one in look()):
        if waited_s >= timeout_s:
            raise InstanceUnreadable(
                f"the capture instance of {table} cannot be read after {timeout_s:.0f} seconds",
                hint="Run `penstock doctor FILE`: MS007 names the missing GRANT or role.",
                table=str(table),
            )
        sleep(LOOK_INTERVAL_S)
        waited_s += LOOK_INTERVAL_S
