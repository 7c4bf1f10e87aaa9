"""Notes on each table along the stream, so that a stream that resumes finds the state at its place.

Every note has the place from which it holds: the position of the transaction that caused it. A
stream that resumes further back forgets later notes. Stored as state/binlog_tables.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.engines.mysql.source.ddl_text import Effect, Limit
from penstock.engines.mysql.source.known_columns import KnownColumns, find_keys
from penstock.model import Relation, TableDefinition, TableName

_Note = TypeVar("_Note")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterNote:
    """An ALTER of a table that is not captured yet, a working table of a tool.

    Attributes:
        effect: the statement.
        values: of added columns, the value that existing rows got, keyed by name.
    """

    effect: Effect
    values: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitNote:
    """Condition that can make rows missing in a tool's copy; see `ddl_losses.Limit`."""

    what: str
    columns: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class TableNotes:
    """Notes on one table.

    Each dict maps a position of the binlog to the value that holds from there on.

    Attributes:
        captured: whether rows go to the log.
        there: whether the table exists.
        definitions: None if it has changed and the new one is not known.
        relations: the shapes that the log has.
        columns: the columns with their identities; None if they are not known yet.
        altered: ALTERs of a working table of an online schema change tool.
        limits: for such a table, conditions because of which rows may be missing.
        fresh: positions where the table began empty.
        version: the highest that any relation had.
        last_id: the highest identity that any column had; never used again, like versions.
    """

    schema: str
    name: str
    captured: dict[int, bool] = field(default_factory=dict)
    there: dict[int, bool] = field(default_factory=dict)
    definitions: dict[int, TableDefinition | None] = field(default_factory=dict)
    relations: dict[int, Relation] = field(default_factory=dict)
    columns: dict[int, KnownColumns | None] = field(default_factory=dict)
    altered: dict[int, list[AlterNote]] = field(default_factory=dict)
    limits: dict[int, list[LimitNote]] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)
    version: int = 0
    last_id: int = 0

    @property
    def table(self) -> TableName:
        """Name of the table."""
        return TableName(self.schema, self.name)

    @property
    def is_captured(self) -> bool:
        """Return whether rows go to the log."""
        return self.captured[max(self.captured)] if self.captured else False

    @property
    def is_there(self) -> bool:
        """Return whether the table exists."""
        return self.there[max(self.there)] if self.there else True

    @property
    def definition(self) -> TableDefinition | None:
        """Current definition; None if not known."""
        return self.definitions[max(self.definitions)] if self.definitions else None

    @property
    def relation(self) -> Relation | None:
        """Last relation; None before the first."""
        return self.relations[max(self.relations)] if self.relations else None

    @property
    def relation_since(self) -> int:
        """Position from which the last relation holds; -1 before the first."""
        return max(self.relations) if self.relations else -1

    @property
    def known_columns(self) -> KnownColumns | None:
        """Current columns; None if not known yet."""
        return self.columns[max(self.columns)] if self.columns else None

    @property
    def doubt(self) -> str:
        """Reason why the table has to be read again; empty if it need not."""
        known = self.known_columns
        return known.doubt if known is not None and self.is_captured and self.is_there else ""

    def knows(self, since: int) -> bool:
        """Return whether the columns at a place, or at a later one, are noted."""
        return bool(self.columns) and max(self.columns) >= since

    def add_limits(self, since: int, limits: Sequence[Limit]) -> None:
        """Note limits of working tables: in others an invalid row is refused with an error."""
        if limits and not self.is_captured:
            said = [LimitNote(what=one.what, columns=one.columns) for one in limits]
            self.limits[since] = self.limits.get(since, []) + said

    def key_names(self) -> set[str]:
        """Return the columns that identify rows, in lower case; empty if they are not known."""
        if self.relation is not None:
            names = [self.relation.columns[index].name for index in self.relation.key]
        else:
            last = [one for one in self.definitions.values() if one is not None][-1:]
            names = [name for one in last for name in one.primary_key]
        return {name.lower() for name in names}

    def find_unique_keys(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the identities of the columns of unique keys, found by the last definition.

        Without a definition, any unique key of the last relation may have one of these names.
        """
        there = {at: one for at, one in self.definitions.items() if one is not None}
        known = self.known_columns
        if not names or known is None:
            return ()
        if not there:
            last = self.relation
            ids = {column.name: column.id for column in last.columns} if last is not None else {}
            keys = (last.unique or ()) if last is not None else ()
            return tuple(tuple(ids[name] for name in key) for key in keys)
        at = max(there)
        return find_keys(known, there[at], names, since=at)

    def note_columns(self, since: int, known: KnownColumns | None) -> None:
        """Note the columns from a place on."""
        self.columns[since] = known
        if known is not None:
            self.last_id = max([self.last_id, *(column.id for column in known.columns)])

    def forget_ahead(self, position: int) -> None:
        """Forget notes that hold from that position or a later one; versions are never used
        twice.
        """
        for notes in (
            self.captured,
            self.there,
            self.definitions,
            self.relations,
            self.columns,
            self.altered,
            self.limits,
        ):
            for since in [one for one in notes if one >= position]:
                del notes[since]
        self.fresh = [since for since in self.fresh if since < position]

    def forget_behind(self, position: int) -> None:
        """Forget notes that no stream that begins at that position or later needs."""
        for notes in (
            self.captured,
            self.there,
            self.definitions,
            self.relations,
            self.columns,
        ):
            old = sorted(since for since in notes if since < position)
            for since in old[:-1]:
                del notes[since]
        settled = min(self.relations, default=-1)
        self.fresh = [since for since in self.fresh if since > settled]


def in_order(notes: Mapping[int, Sequence[_Note]]) -> list[_Note]:
    """Return notes that are kept by position, in the order of the stream."""
    return [one for since in sorted(notes) for one in notes[since]]


@dataclass(slots=True, kw_only=True)
class AllNotes:
    """Content of the file."""

    tables: list[TableNotes] = field(default_factory=list)
