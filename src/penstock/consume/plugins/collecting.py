"""Base of plugins that get whole transactions: row images are kept until the commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from penstock.consume.plugins.base import Instance, PluginBase, Row
from penstock.consume.plugins.settings import PluginSection


class Action(StrEnum):
    """Kind of a row image: FlexCDC's MYSQL_ACTION, and T for a table that was emptied."""

    INSERT = "I"
    DELETE = "D"
    UPDATE_BEFORE = "UB"
    UPDATE_AFTER = "UA"
    TRUNCATE = "T"


@dataclass(frozen=True, slots=True)
class Change:
    """One row image.

    Attributes:
        gsn: its number; of a TRUNCATE that of the previous image.
        key: the names of the key columns.
    """

    action: Action
    db: str
    table: str
    gsn: int
    row: Row
    key: Sequence[str]

    @property
    def name(self) -> str:
        """Name of the table, `schema.table`."""
        return f"{self.db}.{self.table}"


class CollectingPlugin(PluginBase, ABC):
    """Keeps row images in memory, and delivers them in commit_trx.

    Attributes:
        section: the section in the settings.
        keys: the keys of the section with their defaults; None: must be given. All sections have
            `filter`, the tables to skip.
    """

    section: ClassVar[str]
    keys: ClassVar[dict[str, str | None]]

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._skipped: frozenset[str] = frozenset()

    @abstractmethod
    def configure(self, settings: PluginSection, instance: Instance) -> None:
        """Read the settings and open the plugin's resources."""

    @abstractmethod
    def deliver(self, changes: Sequence[Change], uow_id: int, gsn: int, instance: Instance) -> None:
        """Take a transaction for good, which has at least one change.

        Args:
            changes: the changes.
            uow_id: number of the transaction.
            gsn: its last number.
            instance: FlexCDC.
        """

    def close(self) -> None:
        """Close the resources that `configure` opened; also after an error, or if none
        was opened.
        """

    def plugin_init(self, instance: Instance, /) -> None:
        settings = PluginSection(instance, self.section, {"filter": "", **self.keys})
        self._skipped = settings.tables("filter")
        self.configure(settings, instance)

    def plugin_deinit(self, _: Instance, /) -> None:
        self.close()

    def begin_trx(self, _uow_id: int, _gsn: int, _: Instance, /) -> None:
        self._changes.clear()

    def insert(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.INSERT, row, db, table, gsn, instance)

    def delete(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.DELETE, row, db, table, gsn, instance)

    def update_before(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.UPDATE_BEFORE, row, db, table, gsn, instance)

    def update_after(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.UPDATE_AFTER, row, db, table, gsn, instance)

    def truncate(self, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /) -> None:
        """Keep that a table was emptied."""
        self._keep(Action.TRUNCATE, {}, db, table, gsn, instance)

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        if self._changes:
            self.deliver(self._changes, uow_id, gsn, instance)
        self._changes.clear()

    def rollback_trx(self, _uow_id: int, _: Instance, /) -> None:
        self._changes.clear()

    def _keep(
        self, action: Action, row: Row, db: str, table: str, gsn: int, instance: Instance
    ) -> None:
        if f"{db}.{table}" not in self._skipped:
            key = instance.key(db, table)
            self._changes.append(Change(action, db, table, gsn, row, key))
