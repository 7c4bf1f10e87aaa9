"""The nine callbacks of a plugin, and what it is given of the FlexCDC that calls it.

Names, arguments and order are those of FlexCDC. Follows document 003.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from penstock.ports.changelog import Origin

Row = Mapping[str, Any]

# All nine, each with how many arguments it is called with.
CALLBACKS = {
    "plugin_init": 1,
    "plugin_deinit": 1,
    "begin_trx": 3,
    "insert": 6,
    "delete": 6,
    "update_before": 6,
    "update_after": 6,
    "commit_trx": 3,
    "rollback_trx": 2,
}
TRUNCATE, TRUNCATE_ARGUMENTS = "truncate", 5  # ours, and not required


class RowValues(StrEnum):
    """What a row's values are: typed values of Python, or the text of SQL literals."""

    PYTHON = "python"
    SQL = "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is known of a transaction when it is committed.

    commit_time: at the source, UTC without a zone, in whole seconds. position: its end, as the
    source prints it. file, offset: the same as binlog_consumer_status has it. id: of this
    transaction alone, also after `setup --force`, which begins units of work anew.
    """

    commit_time: datetime.datetime | None
    position: str
    file: str
    offset: int
    id: str = ""


class Instance(Protocol):
    """What a plugin may ask of the FlexCDC that calls it: the last argument of each callback.

    settings: by section (`flexcdc`, `source`, `dest`, and any other of consumer.ini) the keys with
    their texts. mvlogList: by `schema.table` the changelog's name, of every captured table.
    """

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        """See the class."""
        ...

    @property
    def mvlogList(self) -> Mapping[str, str]:  # noqa: N802 - FlexCDC's name
        """See the class."""
        ...

    def get_source(self, new: bool = False) -> Any:
        """The driver's connection to the source. new: one of its own, which the caller closes."""
        ...

    def get_dest(self, new: bool = False) -> Any:
        """The same for the destination.

        The shared one is that of the open transaction: what a plugin writes there is committed
        with the position, and a plugin neither commits it nor rolls it back.
        """
        ...

    def columns(self, db: str, table: str) -> Mapping[str, str]:
        """The columns of a captured table and their types, in order, as its changelog has them."""
        ...

    def key(self, db: str, table: str) -> Sequence[str]:
        """The key columns that the row at hand was written with; none: the table has no key."""
        ...

    @property
    def origin(self) -> Origin:
        """What events in Debezium's form say of where they are from; asks the source once."""
        ...

    @property
    def transaction(self) -> Transaction:
        """The transaction at hand, in commit_trx only."""
        ...

    @property
    def directory(self) -> Path:
        """The folder of the file with the settings: relative paths in them begin there."""
        ...


class Plugin(Protocol):
    """What a plugin has: all nine, though some may do nothing.

    A transaction is begin_trx, its rows in order, then commit_trx; a plugin that returns from
    commit_trx has the transaction for good. Only then is the position stored: a crash, or an
    exception from any callback, repeats at most this transaction, with the same numbers, and loses
    none. Whatever a plugin raises ends the run with an error.

    trx_id, uow_id: the number of the transaction. gsn: the number of this row image; in begin_trx
    the last one of the transaction before, in commit_trx the last one of this. row: column name to
    value; see RowValues. db, table: as the source has them.
    """

    def plugin_init(self, instance: Instance, /) -> None:
        """At the start, before anything is connected."""
        ...

    def plugin_deinit(self, instance: Instance, /) -> None:
        """At the end, also after an error."""
        ...

    def begin_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """A transaction begins."""
        ...

    def insert(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """A row was inserted."""
        ...

    def delete(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """A row was deleted; row: what it was."""
        ...

    def update_before(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """A row was updated; row: what it was. Not called with skip_before_update."""
        ...

    def update_after(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """A row was updated; row: what it is now. Comes directly behind update_before."""
        ...

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """The transaction is whole. Returning says that the plugin has it for good."""
        ...

    def rollback_trx(self, uow_id: int, instance: Instance, /) -> None:
        """The transaction was given up; it comes again with the same numbers."""
        ...


class PluginBase:
    """A plugin that does nothing: override what is wanted.

    row_values: what its rows hold; None: as `row_values` in the settings says.

    A plugin may have one callback more, `truncate(db, table, trx_id, gsn, instance)`: a table that
    was emptied whole has no rows to hand out, and a plugin without it ends the run there.
    """

    row_values: RowValues | str | None = None

    def plugin_init(self, instance: Instance, /) -> None:
        """See Plugin."""

    def plugin_deinit(self, instance: Instance, /) -> None:
        """See Plugin."""

    def begin_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """See Plugin."""

    def insert(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""

    def delete(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""

    def update_before(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""

    def update_after(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """See Plugin."""

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """See Plugin."""

    def rollback_trx(self, uow_id: int, instance: Instance, /) -> None:
        """See Plugin."""


FlexCDC_Plugin = PluginBase
"""The name that FlexCDC has for it."""
