"""The nine callbacks of a plugin, and its view of the FlexCDC that calls it.

Names, arguments and order are those of FlexCDC.
"""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from penstock.ports.changelog import Origin

Row = Mapping[str, Any]

# All nine, each with its number of arguments.
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
    """Form of a row's values: typed values of Python, or the text of SQL literals."""

    PYTHON = "python"
    SQL = "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Facts about a transaction when it is committed.

    Attributes:
        commit_time: at the source, UTC without a zone, in whole seconds.
        position: its end, as the source prints it.
        file: the same as in binlog_consumer_status.
        offset: the same as in binlog_consumer_status.
        id: unique id of this transaction, even after `setup --force`, which restarts the units of
            work.
    """

    commit_time: datetime.datetime | None
    position: str
    file: str
    offset: int
    id: str = ""


class Instance(Protocol):
    """FlexCDC as a plugin sees it: the last argument of each callback."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        """Keys with their texts by section: `flexcdc`, `source`, `dest`, any other of the file."""
        ...

    @property
    @abstractmethod
    def mvlogList(self) -> Mapping[str, str]:  # noqa: N802 - FlexCDC's name
        """Name of the changelog of every captured table, by `schema.table`."""
        ...

    @abstractmethod
    def get_source(self, new: bool = False) -> Any:
        """Return the driver's connection to the source.

        Args:
            new: Return a separate connection, which the caller closes.

        Raises:
            ConnectFailed: The source cannot be reached, or refuses the connection.
        """
        ...

    @abstractmethod
    def get_dest(self, new: bool = False) -> Any:
        """Return the driver's connection to the destination; see get_source.

        The shared one is that of the open transaction: a plugin's writes there are committed with
        the position, and a plugin neither commits nor rolls back.
        """
        ...

    @abstractmethod
    def columns(self, db: str, table: str) -> Mapping[str, str]:
        """Return the columns of a captured table and their types, in order, as in its changelog."""
        ...

    @abstractmethod
    def key(self, db: str, table: str) -> Sequence[str]:
        """Return the key columns that the present row was written with; empty without a key."""
        ...

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Origin for events in Debezium's form; the source is asked once."""
        ...

    @property
    @abstractmethod
    def transaction(self) -> Transaction:
        """Present transaction, in commit_trx only."""
        ...

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Folder of the settings file: base of relative paths in the settings."""
        ...


class Plugin(Protocol):
    """Plugin with all nine callbacks, though some may do nothing: none is abstract.

    A transaction is begin_trx, its rows in order, then commit_trx; once commit_trx returns, the
    plugin has the transaction for good. Only then is the position stored: a crash, or an exception
    from any callback, repeats at most this transaction, with the same numbers, and loses none. Any
    exception of a plugin ends the run with an error.

    The arguments of the callbacks are:

    - trx_id, uow_id: the number of the transaction.
    - gsn: the number of this row image; in begin_trx the last one of the previous transaction, in
      commit_trx the last one of this transaction.
    - row: column name to value; see RowValues.
    - db, table: the names that the source has.
    - instance: FlexCDC as the plugin sees it.
    """

    def plugin_init(self, instance: Instance, /) -> None:
        """Start, before anything is connected."""
        ...

    def plugin_deinit(self, instance: Instance, /) -> None:
        """End the plugin. This is also called after an error."""
        ...

    def begin_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """Begin a transaction."""
        ...

    def insert(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Process an inserted row."""
        ...

    def delete(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Process a deleted row, given with its last values."""
        ...

    def update_before(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Process the old values of an updated row. Not called with skip_before_update."""
        ...

    def update_after(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Process the new values of an updated row. Called directly after update_before."""
        ...

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """Complete the transaction. After the return the plugin has it for good."""
        ...

    def rollback_trx(self, uow_id: int, instance: Instance, /) -> None:
        """Discard the transaction; it is repeated with the same numbers."""
        ...


class PluginBase(Plugin):
    """Plugin that does nothing: override the callbacks that you need.

    A plugin may have one callback more, `truncate(db, table, trx_id, gsn, instance)`: a table that
    was emptied has no rows to pass on, and a plugin without this callback ends the run there.

    Attributes:
        row_values: form of its rows; None: as `row_values` in the settings says.
    """

    row_values: RowValues | str | None = None

    def plugin_init(self, instance: Instance, /) -> None:
        """Do nothing."""

    def plugin_deinit(self, instance: Instance, /) -> None:
        """Do nothing."""

    def begin_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """Do nothing."""

    def insert(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Do nothing."""

    def delete(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Do nothing."""

    def update_before(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Do nothing."""

    def update_after(
        self, row: Row, db: str, table: str, trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Do nothing."""

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        """Do nothing."""

    def rollback_trx(self, uow_id: int, instance: Instance, /) -> None:
        """Do nothing."""


FlexCDC_Plugin = PluginBase
"""FlexCDC's name for it."""
