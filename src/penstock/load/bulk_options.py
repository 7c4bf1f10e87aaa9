"""Options of a bulk load, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model import PenstockError, TableName
from penstock.ports.bulk import BulkTarget, open_bulk_target
from penstock.ports.server_pair import ServerPair

APPLICATION_NAME = "penstock bulk driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Options of a bulk load: where it reads and writes. namespaces: source to target schema.

    servers: both, unless they have the same types. replaces: rows of a target table that no
    plan of this load put there may go. adds_foreign_keys: False leaves them to
    `finish_foreign_keys`, also where all tables are at one position. beside: changes are applied
    meanwhile by the same session, and a slot is left to them. keys_directory: of the file with the
    unique keys that wait for changes to be applied; None: no changes follow, and none waits.
    shift: what the change log adds to the source's positions. isolates: a table that cannot be
    copied is left behind, and the others are loaded.
    """

    source_url: str = field(repr=False)
    target_url: str = field(repr=False)
    state_directory: Path
    run_directory: Path
    namespaces: Mapping[str, str] = field(default_factory=dict)
    max_threads: int = 5
    servers: ServerPair | None = None
    replaces: bool = False
    adds_foreign_keys: bool = True
    beside: bool = False
    keys_directory: Path | None = None
    shift: int = 0
    isolates: bool = False

    def open_target(self, application_name: str = APPLICATION_NAME) -> BulkTarget:
        """Connect to the target."""
        return open_bulk_target(
            self.target_url,
            self.namespaces,
            application_name=application_name,
            servers=self.servers,
        )


@dataclass(slots=True)
class BulkResult:
    """Result of a bulk load. rows: per source table, in all, also those of earlier runs.

    positions: per source table its consistent point as an ordered number. notes: sentences for
    the user: what was begun afresh and why, what the target lacks. foreign_keys_pending: tables are
    at different positions, so their foreign keys have to wait (`finish_foreign_keys`), until
    changes are applied up to `settled`. broken: tables that were left behind, each with its error.
    """

    rows: dict[TableName, int] = field(default_factory=dict)
    positions: dict[TableName, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    foreign_keys_pending: bool = False
    settled: int = 0
    broken: Mapping[TableName, PenstockError] = field(default_factory=dict)

    @property
    def stands_at_one_position(self) -> bool:
        """Return whether all tables are as the source was at one moment."""
        return all(position == self.settled for position in self.positions.values())
