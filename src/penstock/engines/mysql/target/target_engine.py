"""MySQL and MariaDB as targets of the change loader: the port of `ports/target.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pymysql

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.mysql.connect import Connection, connect, run, statement_error
from penstock.engines.mysql.target.apply import LOCK_TIMEOUT_S, MySQLTarget, lock_timeouts
from penstock.engines.mysql.target.direct import DirectTables, MySQLStagingWriter, UnsureTables
from penstock.engines.mysql.target.progress import NAME_LENGTH_MAX, MySQLProgress
from penstock.engines.mysql.target.row_events import RowsFiles
from penstock.engines.mysql.target.send import NOT_ALLOWED, Destination, without_log
from penstock.engines.mysql.target.staging import NO_STRICT, StagingArea
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports import target as port
from penstock.ports.target import MergeTable, Staging, TargetEngine
from penstock.sql.state_store import Records

STAGER_NAME = "penstock stager"


class MySQLTargetEngine(TargetEngine):
    """MySQL or MariaDB as target. Applying and staging share `unsure`, the unsure tables."""

    errors: tuple[type[BaseException], ...] = (pymysql.Error,)
    ddl_commits = True

    def __init__(self) -> None:
        self.unsure = UnsureTables()

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        assert isinstance(error, pymysql.Error)
        return statement_error(doing, error)

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        return port.staging_name(merge_name, place=place, use=use, room=NAME_LENGTH_MAX)

    def open_staging(
        self, url: str, *, choices: Choices = NO_CHOICES, directory: Path | None = None
    ) -> MySQLStaging:
        """Connect for preparing merge tables. directory: for rows that need no merge table."""
        settings = lock_timeouts(LOCK_TIMEOUT_S)
        connection = connect(url, application_name=STAGER_NAME, options=settings)
        return MySQLStaging(
            connection, url, choices=choices, directory=directory, unsure=self.unsure
        )

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> MySQLTarget:
        return MySQLTarget(
            url,
            namespaces,
            allow_triggers=allow_triggers,
            choices=choices,
            policies=policies,
            unsure=self.unsure,
            clock=clock,
        )


class MySQLStaging(Staging):
    """Staging side; see `Staging`.

    It has two connections: merge tables are excluded from the target's binlog if that is allowed,
    and records and progress rows are not.
    """

    def __init__(
        self,
        connection: Connection,
        url: str,
        *,
        choices: Choices,
        directory: Path | None,
        unsure: UnsureTables,
    ) -> None:
        """Keep the connection, in autocommit, not used by others. url: where writers connect."""
        self._connection = connection
        self._url = url
        self._files = RowsFiles(directory)
        self._progress = MySQLProgress(connection)
        self._records = Records(self._progress)
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
        self._direct = DirectTables(connection, self._records, choices=choices, unsure=unsure)

    def _relax(self) -> None:
        """Allow merge tables as many columns as base tables can have, if the account may."""
        try:
            run(self._silent, NO_STRICT, doing="setting up the session")
        except PenstockError as error:
            if error.fields.get("errno") != NOT_ALLOWED:
                raise

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self, wanted: Sequence[MergeTable], *, place: int, source_engine: str
    ) -> dict[str, MySQLStagingWriter]:
        stamps = self._area.prepare({one.name: one.relation for one in wanted})
        folder = self._files.begin(place)
        plain = [one for one in wanted if one.is_plain] if folder is not None else []
        direct = self._direct.among(plain, source_engine=source_engine)
        return {
            one.name: MySQLStagingWriter(
                place=Destination(
                    url=self._url,
                    table=one.source,
                    staging=one.name,
                    stamp=stamps[one.name],
                    relation=one.relation,
                ),
                direct=direct.get(one.source),
                path=None if folder is None else folder / str(number),
            )
            for number, one in enumerate(wanted)
        }

    def empty_ahead(self) -> None:
        self._area.empty_ahead()

    def forget(self, names: Iterable[str]) -> None:
        self._area.forget(names)

    def begin_files(self, files: Iterable[str]) -> None:
        self._progress.begin_files(files)

    def close(self) -> None:
        self._connection.close()
        self._silent.close()
        self._files.close()
