"""A plugin that gets a transaction whole: its row images are kept until it is committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from penstock.consume.plugins.base import Instance, PluginBase, Row
from penstock.consume.plugins.settings import PluginSection


class Action(StrEnum):
    """What a row image is: FlexCDC's MYSQL_ACTION, and T for a table that was emptied."""

    INSERT = "I"
    DELETE = "D"
    UPDATE_BEFORE = "UB"
    UPDATE_AFTER = "UA"
    TRUNCATE = "T"


@dataclass(frozen=True, slots=True)
class Change:
    """One row image. gsn: its number; of a TRUNCATE that of the image before it.

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
        """`schema.table`."""
        return f"{self.db}.{self.table}"


class CollectingPlugin(PluginBase, ABC):
    """Keeps row images in memory, and delivers them in commit_trx.

    section, keys: the section in the settings and its keys, with their defaults; None: must be
    given. All have `filter`, the tables to skip.
    """

    section: ClassVar[str]
    keys: ClassVar[dict[str, str | None]]

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._skipped: frozenset[str] = frozenset()

    @abstractmethod
    def configure(self, settings: PluginSection, instance: Instance) -> None:
        """Read the settings and open what is needed."""

    @abstractmethod
    def deliver(self, changes: Sequence[Change], uow_id: int, gsn: int, instance: Instance) -> None:
        """Take a transaction for good, which has one change at least; gsn: its last number."""

    def close(self) -> None:
        """Close what `configure` opened; also after an error, and when nothing was opened."""

    def plugin_init(self, instance: Instance, /) -> None:
        """See Plugin."""
        settings = PluginSection(instance, self.section, {"filter": "", **self.keys})
        self._skipped = settings.tables("filter")
        self.configure(settings, instance)

    def plugin_deinit(self, _: Instance, /) -> None:
        """See Plugin."""
        self.close()

    def begin_trx(self, _uow_id: int, _gsn: int, _: Instance, /) -> None:
        """See Plugin."""
        self._changes.clear()

    def insert(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""
        self._keep(Action.INSERT, row, db, table, gsn, instance)

    def delete(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""
        self._keep(Action.DELETE, row, db, table, gsn, instance)

    def update_before(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""
        self._keep(Action.UPDATE_BEFORE, row, db, table, gsn, instance)

    def update_after(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""
        self._keep(Action.UPDATE_AFTER, row, db, table, gsn, instance)

    def truncate(self, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /) -> None:
        """A table was emptied whole."""
        self._keep(Action.TRUNCATE, {}, db, table, gsn, instance)

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """See Plugin."""
        if self._changes:
            self.deliver(self._changes, uow_id, gsn, instance)
        self._changes.clear()

    def rollback_trx(self, _uow_id: int, _: Instance, /) -> None:
        """See Plugin."""
        self._changes.clear()

    def _keep(
        self, action: Action, row: Row, db: str, table: str, gsn: int, instance: Instance
    ) -> None:
        if f"{db}.{table}" not in self._skipped:
            key = instance.key(db, table)
            self._changes.append(Change(action, db, table, gsn, row, key))
