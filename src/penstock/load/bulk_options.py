"""Options of a bulk load, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.codec.server_pair import ServerPair
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import BulkTarget, open_bulk_target

APPLICATION_NAME = "penstock bulk driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Options of a bulk load: where it reads and writes.

    Attributes:
        namespaces: source schema to target schema.
        servers: both servers, unless they have the same types.
        replaces: whether rows of a target table that no plan of this load wrote may be deleted.
        adds_foreign_keys: False leaves them to `finish_foreign_keys`, even if all tables are at one
            position.
        beside: whether the same session applies changes meanwhile, so that a slot is left to them.
        keys_directory: directory of the file with unique keys that wait for changes; None if no
            changes follow, so that none waits.
        shift: number that the change log adds to the source's positions.
        isolates: whether a table that cannot be copied is left behind while the others are loaded.
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
    """Result of a bulk load.

    Attributes:
        rows: total per source table, including earlier runs.
        positions: consistent point of each source table as an ordered number.
        notes: sentences for the user: tables copied from the beginning and why, and what the target
            lacks.
        foreign_keys_pending: whether tables are at different positions, so that their foreign keys
            wait (`finish_foreign_keys`) until changes are applied up to `settled`.
        broken: tables that were left behind, each with its error.
    """

    rows: dict[TableName, int] = field(default_factory=dict)
    positions: dict[TableName, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    foreign_keys_pending: bool = False
    settled: int = 0
    broken: Mapping[TableName, PenstockError] = field(default_factory=dict)

    @property
    def stands_at_one_position(self) -> bool:
        """Return whether all tables have the source's rows of one moment."""
        return all(position == self.settled for position in self.positions.values())
