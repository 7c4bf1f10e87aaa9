"""Nouns that every package shares, and the base of all errors.

Standard library only. No I/O, no drivers, no columns: rows as Arrow live in `penstock.codec`.
"""

from penstock.model.change import DROP_TABLE, FlushPoint, Marker, MarkerKind, Op, Rows, Run
from penstock.model.errors import LOAD_AFRESH, LOAD_AGAIN, PenstockError, Retry
from penstock.model.relation import Column, ComputedColumn, Identity, Relation, TypeDefinition
from penstock.model.table import (
    ColumnDefinition,
    ForeignKey,
    TableDefinition,
    TableName,
    UniqueKey,
)

__all__ = [
    "DROP_TABLE",
    "LOAD_AFRESH",
    "LOAD_AGAIN",
    "Column",
    "ColumnDefinition",
    "ComputedColumn",
    "FlushPoint",
    "ForeignKey",
    "Identity",
    "Marker",
    "MarkerKind",
    "Op",
    "PenstockError",
    "Relation",
    "Retry",
    "Rows",
    "Run",
    "TableDefinition",
    "TableName",
    "TypeDefinition",
    "UniqueKey",
]
