"""Steps from a changelog's shape to one that holds rows of a relation. Pure.

A changelog keeps all row images that it ever got, so a column never gets a type that holds less
than the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from penstock.model import Relation
from penstock.ports.changelog import GSN, OWN_COLUMNS


class StepKind(StrEnum):
    """Kind of a step."""

    RENAME = "rename"
    ADD = "add"
    RETYPE = "retype"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of a changelog.

    Attributes:
        column: its name now; of RENAME the old one.
        to: the new name of RENAME.
        kind: the type of ADD and RETYPE.
        after: of ADD, the previous column.
    """

    does: StepKind
    column: str
    to: str = ""
    kind: str = ""
    after: str = ""


def name_aside(name: str, number: int) -> str:
    """Return the name of a column whose name another one has now."""
    return f"{name}_penstock_{number}"


def steps(
    shape: Mapping[str, str],
    relation: Relation,
    types: Sequence[str],
    *,
    same: Callable[[str, str], bool],
    holds: Callable[[str, str], bool],
    fold: Callable[[str], str],
    drops: bool,
    names: Mapping[int, str] = MappingProxyType({}),
) -> list[Step]:
    """Return the steps from a changelog's shape to one that holds the relation's rows.

    Steps that were done before a crash are not returned again.

    Args:
        shape: the changelog's columns with their types.
        relation: the relation.
        types: types that the relation's columns get.
        same: returns whether two texts are the same type.
        holds: returns whether the first type holds all values of the second.
        fold: returns a name in a form that is equal for names that the server takes as one.
        drops: drop columns that the relation does not have; otherwise they stay, for earlier rows.
        names: by identity the column's name in the changelog, as far as it is known.
    """
    now = {name: kind for name, kind in shape.items() if name not in OWN_COLUMNS}
    wanted = {fold(column.name): column.id for column in relation.columns}
    found: list[Step] = []

    def rename(old: str, new: str) -> None:
        found.append(Step(does=StepKind.RENAME, column=old, to=new))
        now[new] = now.pop(old)

    known = dict(names)
    for number, name in names.items():
        aside = name_aside(name, number)
        if wanted.get(fold(name), number) != number:
            # Its name belongs to another column now: old images must not mix with new ones.
            if name in now and aside not in now:
                rename(name, aside)
            known[number] = aside
    before = GSN
    for column, kind in zip(relation.columns, types, strict=True):
        there = {fold(name): name for name in now}
        old = known.get(column.id, there.get(fold(column.name), column.name))
        if old != column.name and old in now and there.get(fold(column.name), old) == old:
            rename(old, column.name)
        if column.name not in now:
            found.append(Step(does=StepKind.ADD, column=column.name, kind=kind, after=before))
        elif not same(now[column.name], kind) and not holds(now[column.name], kind):
            found.append(Step(does=StepKind.RETYPE, column=column.name, kind=kind))
        before = column.name
    if drops:
        gone = [name for name in now if fold(name) not in wanted]
        found += [Step(does=StepKind.DROP, column=name) for name in gone]
    return found
