"""Doctor's check of what the loader would refuse at a MySQL or MariaDB target (PK20).

It requires of a table what the loader itself requires, by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from penstock.engines.mysql.target.apply import MySQLTarget
from penstock.engines.mysql.target.shapes import check_shape
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Checks, Examined, Finding, Severity, Side, fix_of
from penstock.ports.target import (
    TargetNotTransactional,
    TargetShapeDiffers,
    TargetTableMissing,
    TriggersWouldFire,
    target_name,
)

APPLY_CHECKS = Checks(Side.TARGET)


@dataclass(frozen=True, slots=True)
class Applying:
    """Task of the loader. tables: the captured ones, as the source has them."""

    examined: Examined
    tables: tuple[TableDefinition, ...]


def _finding_of(error: PenstockError, why: str) -> Finding:
    return Finding(
        code="PK20",
        severity=Severity.ERROR,
        side=Side.TARGET,
        what=error.message,
        why=why,
        command=fix_of(error),
    )


@APPLY_CHECKS.check("PK20", "target tables for changes", change_only=True, needs_source=True)
def applied_to(applying: Applying) -> Iterator[Finding]:
    """Check the target's tables: they exist in mode change, have the source's shape, and no other
    pipeline loads them.
    """
    examined = applying.examined
    config = examined.config
    servers = examined.servers()
    assert servers is not None, "the target is MySQL or MariaDB"
    copied = examined.copied()  # those are created
    makes = config.creates_tables
    planned = examined.pipeline.bulk().planned
    with closing(MySQLTarget(config.target.url, config.target.map)) as target:
        for table in applying.tables:
            is_copied = table.name in copied
            try:
                found = target.get_table(target_name(table.name, config.target.map))
                if makes and not is_copied and table.name not in planned:
                    check_shape(table, found, servers)
            except TargetShapeDiffers as error:
                yield _finding_of(error, "rows of the source do not fit into it")
            except TargetTableMissing as error:
                if not makes and not is_copied:
                    yield _finding_of(
                        error, "mode change applies changes to existing tables; it creates none"
                    )
            except (TargetNotTransactional, TriggersWouldFire) as error:
                yield _finding_of(error, "the loader refuses the table at its first change")
