"""Assumptions of penstock about a server: a sentence each, and the code that relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """An assumption. code: the modules of src/penstock that rely on it."""

    name: str
    says: str
    code: str


def table_of(*rows: tuple[str, str, str]) -> Mapping[str, Assumption]:
    """Return assumptions by name, of rows of name, sentence and code."""
    found = {name: Assumption(name=name, says=says, code=code) for name, says, code in rows}
    assert len(found) == len(rows), "a name is there twice"
    return MappingProxyType(found)
