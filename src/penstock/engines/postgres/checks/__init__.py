"""Doctor's checks of PostgreSQL servers: what a source must be like, and what a target must."""

# The modules put their checks into the lists when they are imported, in this order.
from penstock.engines.postgres.checks import (  # noqa: F401
    identity,
    server,
    slot_checks,
    table_checks,
    target_checks,
)
from penstock.engines.postgres.checks.looking import look_at_source, look_at_target
from penstock.engines.postgres.checks.probe import (
    CHECKS_OF,
    NOT_FOUND_BEFORE,
    SOURCE_CHECKS,
    TARGET_CHECKS,
)
from penstock.engines.postgres.connect import server_errors

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "CHECKS_OF_A_NEW_TABLE",
    "DROP_PROGRESS",
    "NOT_FOUND_BEFORE",
    "look_at_source",
    "look_at_target",
    "server_errors",
]

CHECKS = (*SOURCE_CHECKS, *TARGET_CHECKS)
CHECKS_OF_A_NEW_TABLE = ("PK06", "PG12", "PG15", "PG21", "PG22")
DROP_PROGRESS = "drop schema wirekite cascade;"
