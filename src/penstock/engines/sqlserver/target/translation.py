"""Rows of a source on their way into SQL Server, by the one table of types.

The log holds rows with the types of their source. A staged value has its neutral type, in the
type of SQL Server that `STAGED` names, or is text where the mapping needs text; the mapping's
template converts it to the column's type. Pure. Not here: the table itself (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.codec.sqlserver.types import parse_type
from penstock.codec.types import Engine
from penstock.engines.sqlserver.target.catalog import TargetColumn, without_collation
from penstock.model import Relation
from penstock.sql.row_translation import (
    AS_IS,
    MapColumn,
    RowTranslation,
    mapper_to,
)

_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar", "text", "ntext", "xml", "json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation(RowTranslation):
    """Translation of a source's rows into types of SQL Server."""

    to_target: ClassVar[MapColumn] = staticmethod(mapper_to(Engine.SQLSERVER))

    def as_text(self, relation: Relation) -> frozenset[int]:
        """Return the indexes of the columns whose values are staged as text."""
        return frozenset(
            place
            for place, (column, found) in enumerate(self.mappings(relation))
            if found.write.needs_text and column.neutral not in ("string", "binary")
        )

    def templates(self, relation: Relation, columns: Mapping[str, TargetColumn]) -> dict[str, str]:
        """Return the templates over staged values, by column; without one a value is unchanged.

        A template is for the type that the mapping names. Into a column of another kind, created by
        others, the value is written as it is, and the server decides.
        """
        return {
            column.name: found.write.sql
            for column, found in self.mappings(relation)
            if found.write.sql != AS_IS
            and column.name in columns
            and _kind(columns[column.name].type_text) == _kind(found.target_type)
        }


def _kind(text: str) -> str:
    base = parse_type(without_collation(text)).base
    return "text" if base in _TEXTS else base
