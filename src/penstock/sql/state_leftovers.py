"""State that a pipeline leaves at a SQL target; see `ports/reset.py`.

Not here: the statements that empty tables, and running them (the engines).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.ports.reset import Leftovers
from penstock.ports.target import SCHEMA
from penstock.sql.state_store import StateStore

Empty = Callable[[Collection[TableName], Collection[TableName]], Iterable[Removal]]


def find_leftovers(
    store: StateStore, tables: Collection[TableName] | None, empty: Empty
) -> Leftovers:
    """Return what the target holds of a pipeline.

    Args:
        store: The target's state tables.
        tables: Tables to empty, with those that the target remembers; None: tables stay.
        empty: Plans the emptying of tables; its second argument are those that penstock created.

    Removals are in an order in which a reset that was killed can be repeated: the tables first, and
    what remembers them last.
    """
    removals: list[Removal] = []
    if tables is not None:
        known = {record.target for record in store.read_tables().values()}
        removals += empty({*tables, *known}, store.made_tables())
    log_id = store.log_id()
    if store.has_schema():
        container = store.dialect.container
        removals.append(
            Removal(
                what=f"the pipeline's progress at the target: {container} {SCHEMA}",
                statements=(store.dialect.drop_schema,),
            )
        )
    return Leftovers(log_id=log_id, removals=tuple(removals))
