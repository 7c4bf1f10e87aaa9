"""Rows of a source on their way into Oracle, by the one table of types.

A staged value has its neutral type or is text or bytes, as its column's `Staged` says; the
mapping's template converts it to the column's type. Pure. Not here: the table itself
(`codec.types`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.codec import types as typemap
from penstock.codec.oracle.types import OracleType, parse_type
from penstock.codec.types import Engine
from penstock.engines.oracle.target.catalog import TargetColumn
from penstock.engines.oracle.target.layout import Staged, default_form
from penstock.model import Column, Relation
from penstock.sql.row_translation import AS_IS, MapColumn, RowTranslation, mapper_to

_TEXTS = frozenset(("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB", "LONG"))
_BYTES = frozenset(("RAW", "BLOB", "LONG RAW"))


def kind_of(text: str) -> str:
    """Return the family of a type, in which templates are the same."""
    base = parse_type(text).base
    return "text" if base in _TEXTS else "bytes" if base in _BYTES else base


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation(RowTranslation):
    """Translation of a source's rows into types of Oracle."""

    to_target: ClassVar[MapColumn] = staticmethod(mapper_to(Engine.ORACLE))

    def forms(self, relation: Relation) -> tuple[Staged, ...]:
        """Return the form in which each column is staged."""
        return tuple(_form(column, found) for column, found in self.mappings(relation))

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
            and kind_of(columns[column.name].type_text) == kind_of(found.target_type)
        }


def _form(column: Column, found: typemap.Mapping) -> Staged:
    target = parse_type(found.target_type)
    own = default_form(column)
    if own is Staged.OWN and not found.write.needs_text:
        return _as_text(target) if target.base in _TEXTS else Staged.OWN
    if target.base == "BLOB":
        return Staged.BLOB
    return Staged.RAW if target.base == "RAW" else _as_text(target)


def _as_text(target: OracleType) -> Staged:
    return Staged.LONG if target.base in ("CLOB", "NCLOB", "LONG") else Staged.SHORT
