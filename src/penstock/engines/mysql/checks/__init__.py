"""Doctor for MySQL and MariaDB: the checks MY001 to MY045 and PK20, as source and as target."""

# The modules add their checks to the lists when they are imported, in this order.
from penstock.engines.mysql.checks import (  # noqa: F401
    resume_checks,
    room_checks,
    settings,
    table_checks,
    target_checks,
)
from penstock.engines.mysql.checks.looking import look_at_source, look_at_target
from penstock.engines.mysql.checks.probe import (
    CHECKS_OF,
    NOT_FOUND_BEFORE,
    SOURCE_CHECKS,
    TARGET_CHECKS,
)
from penstock.engines.mysql.checks.refusals import APPLY_CHECKS, EXTRACT_CHECKS
from penstock.engines.mysql.connect import server_errors

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

CHECKS = (*SOURCE_CHECKS, *EXTRACT_CHECKS, *TARGET_CHECKS, *APPLY_CHECKS)
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = "drop database wirekite;"
