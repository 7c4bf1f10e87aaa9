"""Policies for changes of shape: one for each kind of change, and a default.

Pure. Not here: the kinds of changes (`sql/shape_changes.py`), and how an engine applies them
(`alter.py` of its target).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from penstock.model.errors import PenstockError


class Policy(StrEnum):
    """Action of the loader when a captured table changes its shape at the source.

    Attributes:
        EXCEPTION: Stop, with nothing of it applied.
        EVOLVE: Change the target like the source; stop if that is not possible.
        TRY_EVOLVE: The same; do as LENIENT if that is not possible, with a note.
        LENIENT: Never lose a column or value of the target.
        IGNORE: Keep the target's shape; values without a column are not written.
    """

    EXCEPTION = "exception"
    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    LENIENT = "lenient"
    IGNORE = "ignore"


class ChangeKind(StrEnum):
    """Kind of change, with its name in [schemaChanges]."""

    ADD_COLUMN = "addColumn"
    DROP_COLUMN = "dropColumn"
    RENAME_COLUMN = "renameColumn"
    WIDEN_TYPE = "widenType"
    NARROW_TYPE = "narrowType"
    CHANGE_TYPE = "changeType"
    NULLABILITY = "nullability"
    CHANGE_KEY = "changeKey"
    TRUNCATE = "truncate"


class SchemaChangeRefused(PenstockError):
    """A table changed its shape, and the policy for that kind of change is to stop.

    `fields`: table, kind and change. The change and all later ones are not applied.
    """

    code = "TG22"
    retry = "operator"


class SchemaChangeNotApplied(PenstockError):
    """A change of shape could not be applied, and try_evolve continued as lenient does.

    Kept among a pipeline's past errors; no work has ended.
    """

    code = "TG23"
    retry = "operator"

    @classmethod
    def of(cls, table: str, note: str) -> Self:
        """Return the error for a table and its note."""
        return cls(
            f"{table}: {note}; continued as with lenient",
            hint="The target keeps every column and value. To have the source's shape, alter the "
            "table there, or load it again; docs/schema-changes.md says what each policy does.",
            table=table,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policy of each kind of change; kinds without one of their own have the default's."""

    default: Policy = Policy.EVOLVE
    kinds: Mapping[ChangeKind, Policy] = field(default_factory=dict)

    def of(self, kind: ChangeKind) -> Policy:
        """Return the policy for a change of this kind."""
        return self.kinds.get(kind, self.default)

    def keeps(self, kind: ChangeKind) -> bool:
        """Return whether a change of this kind leaves the target's columns as they are."""
        return self.of(kind) in (Policy.LENIENT, Policy.IGNORE)

    @property
    def keeps_rows(self) -> bool:
        """Return whether rows that a TRUNCATE empties at the source stay in the target."""
        return self.keeps(ChangeKind.TRUNCATE)

    def check(self, kind: ChangeKind, what: str, *, table: str) -> None:
        """Raise SchemaChangeRefused if the policy for this kind of change is to stop.

        what: the change as a sentence without a full stop.
        """
        if self.of(kind) is not Policy.EXCEPTION:
            return
        raise SchemaChangeRefused(
            f"{table}: {what} at the source, and {kind.value} is set to stop there",
            hint=f'Write {kind.value} = "evolve" (or try_evolve, lenient, ignore) below '
            "[schemaChanges], then run `penstock run` again: it goes on with this change.",
            table=table,
            kind=kind.value,
            change=what,
        )


EVOLVE_ALL = Policies()
