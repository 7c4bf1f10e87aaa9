"""Shape of a table's rows in the change log, from its definition. Pure."""

from __future__ import annotations

from penstock.engines.oracle.source import relations
from penstock.model import Relation, TableDefinition


def relation_of(definition: TableDefinition) -> Relation:
    """Return the shape of a table's rows: all columns but the virtual ones, in order."""
    return relations.relation_of(definition)
