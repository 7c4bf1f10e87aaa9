"""Plugins in tests: an instance without servers, and transactions that are passed to a plugin."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.consume.plugins import Plugin, Transaction
from penstock.model import TableName

COMMIT_TIME = datetime.datetime(2026, 3, 4, 5, 6, 7)  # noqa: DTZ001 - as in mview_uow
Image = tuple[str, dict[str, Any]]


class FakeInstance:
    """Instance that a plugin gets. Every table has the key `id`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Mapping[str, str]],
        key: Sequence[str] = ("id",),
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.mvlogList: Mapping[str, str] = {}
        self.names = tuple(key)
        self.transaction = Transaction(
            commit_time=COMMIT_TIME,
            position="0/16B3748",
            file="0/16B3748",
            offset=23803720,
            id="log-9",
        )

    def get_source(self, new: bool = False) -> Any:
        """Fail, as there is no server."""
        raise NotImplementedError

    def get_dest(self, new: bool = False) -> Any:
        """Fail, as there is no server."""
        raise NotImplementedError

    def columns(self, db: str, table: str) -> Mapping[str, str]:
        """Fail, as there is no server."""
        raise NotImplementedError

    def origin(
        self, table: TableName, /, *, unit: int, where: tuple[str, int], row: int
    ) -> Mapping[str, Any]:
        """Return an origin without a server."""
        return {"connector": "none", "db": table.schema, "at": [unit, *where, row]}

    def key(self, db: str, table: str) -> Sequence[str]:
        """Return the same key for every table."""
        return self.names


def send(
    plugin: Plugin,
    instance: FakeInstance,
    unit: int,
    last: int,
    *images: Image,
    table: str = "item",
    commit: bool = True,
) -> int:
    """Send a transaction: images as (callback, row), also `truncate`; return its last number."""
    plugin.begin_trx(unit, last, instance)
    for callback, row in images:
        if callback == "truncate":
            plugin.truncate("shop", table, unit, last, instance)  # type: ignore[attr-defined]
            continue
        last += 1
        getattr(plugin, callback)(row, "shop", table, unit, last, instance)
    if commit:
        plugin.commit_trx(unit, last, instance)
    else:
        plugin.rollback_trx(unit, instance)
    return last
