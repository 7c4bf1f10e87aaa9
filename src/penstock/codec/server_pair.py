"""The two servers of a pipeline, and how rows are read at one so that they fit the other."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.codec.lines import LineCell, TextCell
from penstock.codec.types import NO_CHOICES, Choices, Mapping, Server, map_table
from penstock.model import TableDefinition


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Reading plan of a table's rows for another engine; bulk.json holds it too.

    Attributes:
        columns: Their names, in order.
        expressions: The list of the source's SELECT.
        cells: The form in which the expressions are written.
        lines: The form of the columns of its COPY.
        templates: What LOAD DATA computes of each value, `{}` for the value itself.
        enums: Columns in which an empty text is the value 0 of an ENUM, not a label.
        goals: What the source's own reader makes of each column, in its own words.
    """

    columns: tuple[str, ...]
    expressions: tuple[str, ...] = ()
    cells: tuple[TextCell, ...] = ()
    lines: tuple[LineCell, ...] = ()
    templates: tuple[str, ...] = ()
    enums: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPair:
    """The two servers of a load, and the user's choices for values that may get lost."""

    source: Server
    target: Server
    choices: Choices = NO_CHOICES

    def mappings(self, definition: TableDefinition) -> dict[str, Mapping]:
        """Return how each column is held in the target."""
        return map_table(definition, self.source, self.target, choices=self.choices)
