"""What is remembered of each table along the stream, so that a stream that goes on finds it as it
was there.

Everything is noted with the place since which it is so: the position of the transaction that made
it so. A stream that goes on further back forgets what comes later. Kept as
state/binlog_tables.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import Relation, TableDefinition, TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNote:
    """A column was added; see `added_columns.Added`."""

    name: str
    value: str | None
    unclear: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitNote:
    """Rows may be missing where a tool copied them; see `ddl_losses.Limit`."""

    what: str
    columns: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class TableNotes:
    """One table. All keys are places since which something is so.

    captured: rows go to the log. there: whether the table exists. definitions: None: changed since,
    and not known. relations: as the log has them. added: columns that statements added. columns:
    old and new names of those that they renamed. limits: of a working table of an online schema
    change tool, which rows may be missing. fresh: the table began empty there. loose: a session
    changed it that was not strict. version: the highest that any relation had.
    """

    schema: str
    name: str
    captured: dict[int, bool] = field(default_factory=dict)
    there: dict[int, bool] = field(default_factory=dict)
    definitions: dict[int, TableDefinition | None] = field(default_factory=dict)
    relations: dict[int, Relation] = field(default_factory=dict)
    added: dict[int, list[AddedNote]] = field(default_factory=dict)
    columns: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    limits: dict[int, list[LimitNote]] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)
    loose: list[int] = field(default_factory=list)
    version: int = 0

    @property
    def table(self) -> TableName:
        """The name."""
        return TableName(self.schema, self.name)

    @property
    def is_captured(self) -> bool:
        """Whether rows go to the log."""
        return self.captured[max(self.captured)] if self.captured else False

    @property
    def is_there(self) -> bool:
        """Whether the table exists."""
        return self.there[max(self.there)] if self.there else True

    @property
    def definition(self) -> TableDefinition | None:
        """The current definition; None: not known."""
        return self.definitions[max(self.definitions)] if self.definitions else None

    @property
    def relation(self) -> Relation | None:
        """The last relation; None before the first."""
        return self.relations[max(self.relations)] if self.relations else None

    @property
    def settled(self) -> int:
        """Since when the last relation holds; -1 before the first."""
        return max(self.relations) if self.relations else -1

    def added_since(self, place: int) -> dict[str, AddedNote]:
        """Columns that were added behind a place, the last word on each."""
        return {
            note.name: note
            for since in sorted(self.added)
            if since > place
            for note in self.added[since]
        }

    def names_since(self, place: int) -> dict[str, str]:
        """Columns that were renamed behind a place: the name now to what it was there."""
        found: dict[str, str] = {}
        for since in sorted(self.columns):
            if since > place:
                # One statement gives all its names at once.
                pairs = [(found.pop(old, old), new) for old, new in self.columns[since]]
                found |= {new: old for old, new in pairs}
        return found

    def forget_ahead(self, position: int) -> None:
        """Forget what holds since that position or later; versions are never used twice."""
        for notes in (
            self.captured,
            self.there,
            self.definitions,
            self.relations,
            self.added,
            self.columns,
            self.limits,
        ):
            for since in [one for one in notes if one >= position]:
                del notes[since]
        self.fresh = [since for since in self.fresh if since < position]
        self.loose = [since for since in self.loose if since < position]

    def forget_behind(self, position: int) -> None:
        """Forget what no stream that begins at that position or later needs."""
        for notes in (self.captured, self.there, self.definitions, self.relations):
            old = sorted(since for since in notes if since < position)
            for since in old[:-1]:
                del notes[since]
        settled = min(self.relations, default=-1)
        self.added = {since: notes for since, notes in self.added.items() if since > settled}
        self.columns = {since: pairs for since, pairs in self.columns.items() if since > settled}
        self.fresh = [since for since in self.fresh if since > settled]
        self.loose = [since for since in self.loose if since > settled]


@dataclass(slots=True, kw_only=True)
class AllNotes:
    """The file."""

    tables: list[TableNotes] = field(default_factory=list)
