"""Order of tables by their foreign keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock.model import TableName


class KeyToParent(Protocol):
    """Foreign key of a table.

    Attributes:
        parent: The table that it refers to.
    """

    @property
    def parent(self) -> TableName:
        """The table that it refers to."""
        ...


class TableWithKeys(Protocol):
    """Table as its order needs it.

    Attributes:
        name: The table's.
        parents: Its foreign keys.
    """

    @property
    def name(self) -> TableName:
        """Name of the table."""
        ...

    @property
    def parents(self) -> Sequence[KeyToParent]:
        """Foreign keys from it."""
        ...


def sort_by_keys(tables: Iterable[TableWithKeys]) -> list[TableName]:
    """Return the names of tables, parents before children; in a cycle names decide."""
    waiting: Mapping[TableName, TableWithKeys] = {one.name: one for one in tables}
    waiting = dict(sorted(waiting.items()))
    result: list[TableName] = []
    while waiting:
        free = [
            name
            for name, table in waiting.items()
            if not any(key.parent in waiting and key.parent != name for key in table.parents)
        ]
        for name in free or [next(iter(waiting))]:
            result.append(name)
            del waiting[name]
    return result
