"""Part `enabling`: supplemental logging of tables that are to be added.

Not here: supplemental logging of the database, which only an administrator may add. Doctor prints
the command (`OR002`).
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from penstock.engines.oracle.beginning import LOG_GROUPS, LOGS_ALL, log_columns_text
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.target.progress import DDL_WAIT
from penstock.host.errors import PrivilegeMissing
from penstock.model import TableName
from penstock.ports.config import Config

logger = structlog.get_logger(__name__)


def enable_capture(config: Config, tables: Sequence[TableName]) -> None:
    """Let the redo have all columns of each table, as far as it does not have them yet.

    Raises PrivilegeMissing, StatementFailed, and the errors of connecting.
    """
    with connect(config.source.url, autocommit=True) as session:
        logged = {
            TableName(str(owner), str(name))
            for owner, name, kind in session.execute(LOG_GROUPS)
            if kind == LOGS_ALL
        }
        session.run(DDL_WAIT)
        for table in tables:
            if table not in logged:
                _enable(session, table)
                logger.info("all columns are logged from now on", table=str(table))


def _enable(session: Connection, table: TableName) -> None:
    text = log_columns_text(table)
    try:
        session.run(text)
    except PrivilegeMissing as error:
        raise PrivilegeMissing(
            f"the user may not let the redo have the columns of {table}: {error.message}",
            hint=f"Run as the owner of the table: {text};",
            **error.fields,
        ) from error
