"""MySQL and MariaDB as targets of the change loader: the port of `ports/target.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pymysql

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.mysql.connect import Connection, connect, run, statement_error
from penstock.engines.mysql.target import progress
from penstock.engines.mysql.target.apply import LOCK_TIMEOUT_S, MySQLTarget, lock_timeouts
from penstock.engines.mysql.target.direct import DirectTables, write_rows
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.engines.mysql.target.progress import NAME_LENGTH_MAX, Records
from penstock.engines.mysql.target.send import NOT_ALLOWED, send, without_log
from penstock.engines.mysql.target.staging import NO_STRICT, StagingArea
from penstock.model import PenstockError, Relation, TableName
from penstock.ports import target as port
from penstock.ports.policies import EVOLVE_ALL, Policies

__all__ = [
    "ddl_commits",
    "errors",
    "layout",
    "open_staging",
    "open_target",
    "send",
    "staging_name",
    "typed",
    "write_rows",
]

STAGER_NAME = "penstock stager"

errors: tuple[type[BaseException], ...] = (pymysql.Error,)
ddl_commits = True


def typed(doing: str, error: BaseException) -> PenstockError:
    """See `Engine.typed`."""
    assert isinstance(error, pymysql.Error)
    return statement_error(doing, error)


def layout(relation: Relation) -> MergeLayout:
    """See `Engine.layout`."""
    return MergeLayout(relation)


def staging_name(merge_name: str, *, place: int, use: int) -> str:
    """See `Engine.staging_name`."""
    return port.staging_name(merge_name, place=place, use=use, room=NAME_LENGTH_MAX)


def open_staging(url: str) -> MySQLStaging:
    """See `Engine.open_staging`."""
    settings = lock_timeouts(LOCK_TIMEOUT_S)
    return MySQLStaging(connect(url, application_name=STAGER_NAME, options=settings), url)


def open_target(
    url: str,
    namespaces: Mapping[str, str],
    *,
    allow_triggers: bool = False,
    choices: Choices = NO_CHOICES,
    policies: Policies = EVOLVE_ALL,
) -> MySQLTarget:
    """See `Engine.open_target`."""
    return MySQLTarget(
        url, namespaces, allow_triggers=allow_triggers, choices=choices, policies=policies
    )


class MySQLStaging:
    """The stager's side; see `Staging`.

    Two connections: merge tables are kept out of the target's binlog where that is allowed, and
    records and progress rows are not.
    """

    def __init__(self, connection: Connection, url: str) -> None:
        """connection: autocommit, used by nobody else meanwhile."""
        self._connection = connection
        self._records = Records(connection)
        try:
            self._silent = connect(
                url, application_name=STAGER_NAME, options=lock_timeouts(LOCK_TIMEOUT_S)
            )
        except BaseException:
            connection.close()
            raise
        try:
            without_log(self._silent)
            self._relax()
        except BaseException:
            self.close()
            raise
        self._area = StagingArea(self._silent)
        self._direct = DirectTables(connection, self._records)

    def _relax(self) -> None:
        """Let a merge table have as many columns as fit in the base table's rows, if we may."""
        try:
            run(self._silent, NO_STRICT, doing="setting up the session")
        except PenstockError as error:
            if error.fields.get("errno") != NOT_ALLOWED:
                raise

    def merge_name(self, table: TableName, target: TableName) -> str:
        """See `Staging`."""
        return self._records.get(table, target).merge_name

    def prepare(self, wanted: Mapping[str, Relation]) -> dict[str, int]:
        """See `Staging`."""
        return self._area.prepare(wanted)

    def forget(self, names: Iterable[str]) -> None:
        """See `Staging`."""
        self._area.forget(names)

    def direct(
        self,
        wanted: Mapping[TableName, Relation],
        tables: Mapping[TableName, TableName],
        *,
        source_engine: str,
        choices: Choices,
        unsure: Collection[TableName],
    ) -> Mapping[TableName, object]:
        """See `Staging`."""
        return self._direct.among(
            wanted, tables, source_engine=source_engine, choices=choices, unsure=unsure
        )

    def begin_files(self, files: Iterable[str]) -> None:
        """See `Staging`."""
        progress.begin_files(self._connection, files)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._silent.close()
