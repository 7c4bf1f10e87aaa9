"""Tables whose unique keys wait, in any target: which they are, and how their keys are dropped.

Not here: the file of them (`deferred_keys.py`), the statements (`deferred_keys.py` of a target).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from penstock.model import TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports import deferred_keys
from penstock.ports.bulk import BulkTarget, TablePlan
from penstock.ports.deferred_keys import DeferredTable, early_and_late

logger = structlog.get_logger(__name__)


def deferred_tables(
    plans: Iterable[TablePlan],
    definitions: Mapping[TableName, TableDefinition],
    target: BulkTarget,
    *,
    positions: PositionKind,
    shift: int,
    with_foreign_keys: bool,
) -> list[DeferredTable]:
    """Those of these tables whose rows are of several moments, with the keys that wait.

    positions: of the source. shift: what the change log adds to them.
    """
    mixed = [plan for plan in plans if plan.is_mixed and plan.source in definitions]
    found = [
        DeferredTable(
            source=plan.source,
            target=plan.target,
            settled=plan.ordinals(positions)[1] + shift,
            keys=target.deferred_keys(early_and_late(definitions[plan.source])[1]),
            with_foreign_keys=with_foreign_keys,
        )
        for plan in mixed
    ]
    return [one for one in found if one.keys or one.with_foreign_keys]


def drop_deferred_keys(url: str, table: DeferredTable) -> None:
    """Drop the keys of a table that is to be filled with rows of several moments.

    One that another table's foreign key needs stays: then rows may be refused.
    """
    for note in deferred_keys.drop_deferred_keys(url, table):
        logger.warning("late keys", note=note)
