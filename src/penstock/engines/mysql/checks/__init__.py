"""Doctor for MySQL and MariaDB: the checks MY001 to MY042, as source and as target.

Each module holds the checks of one subject and registers them when it is imported.
"""

from penstock.engines.mysql.checks import settings, standing, tables, target
from penstock.engines.mysql.checks.probe import (
    MYSQL_CHECKS,
    MySQLProbe,
    Wanted,
    examine,
    look,
    wanted_checks,
)

__all__ = [
    "MYSQL_CHECKS",
    "MySQLProbe",
    "Wanted",
    "examine",
    "look",
    "settings",
    "standing",
    "tables",
    "target",
    "wanted_checks",
]
