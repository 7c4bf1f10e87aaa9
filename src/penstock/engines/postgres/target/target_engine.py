"""PostgreSQL as a target of the change loader: the port of `ports/target.py` over this folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psycopg

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    statement_error,
)
from penstock.engines.postgres.target.apply import (
    LOCK_TIMEOUT_MS,
    PostgresTarget,
    connect_to_apply,
)
from penstock.engines.postgres.target.foreign import preparations
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.staging import (
    PostgresStagingWriter,
    StagingArea,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports import target as port
from penstock.ports.target import MergeTable, Staging, TargetEngine
from penstock.sql.state_store import Records

STAGER_NAME = "penstock stager"
NAME_BYTES_MAX = 63


class PostgresTargetEngine(TargetEngine):
    """PostgreSQL as target."""

    errors: tuple[type[BaseException], ...] = (psycopg.Error,)
    ddl_commits = False

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        assert isinstance(error, psycopg.Error)
        return statement_error(doing, error)

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        room = NAME_BYTES_MAX
        return port.staging_name(merge_name, place=place, use=use, room=room, unit="utf-8")

    def open_staging(
        self,
        url: str,
        *,
        choices: Choices = NO_CHOICES,
        directory: Path | None = None,  # noqa: ARG002 - all rows wait in merge tables
    ) -> PostgresStaging:
        settings = {**EXACT_TEXT_SETTINGS, "lock_timeout": str(LOCK_TIMEOUT_MS)}
        connection = connect(url, application_name=STAGER_NAME, options=settings)
        return PostgresStaging(connection, url, choices)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> PostgresTarget:
        connection, is_replica = connect_to_apply(url)
        progress = PostgresProgress(connection)
        return PostgresTarget(
            connection=connection,
            namespaces=namespaces,
            replica=is_replica,
            progress=progress,
            records=Records(progress),
            clock=clock,
            allow_triggers=allow_triggers,
            policies=policies,
            choices=choices,
        )


class PostgresStaging(Staging):
    """The stager's side; see `Staging`."""

    def __init__(
        self, connection: psycopg.Connection, url: str, choices: Choices = NO_CHOICES
    ) -> None:
        """Store the connection: autocommit, used by no other code. url: where writers connect."""
        self._connection = connection
        self._url = url
        self._choices = choices
        self._progress = PostgresProgress(connection)
        self._records = Records(self._progress)
        self._area = StagingArea(connection)

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self,
        wanted: Sequence[MergeTable],
        *,
        place: int,  # noqa: ARG002 - the names are the place's own
        source_engine: str,
    ) -> dict[str, PostgresStagingWriter]:
        """Empty these merge tables. Rows go nowhere else: COPY cannot update."""
        stamps = self._area.prepare({one.name: MergeLayout(one.relation) for one in wanted})
        return {
            one.name: PostgresStagingWriter(
                url=self._url,
                table=one.source,
                staging=one.name,
                stamp=stamps[one.name],
                relation=one.relation,
                prepare=preparations(one.relation, source_engine, self._choices),
            )
            for one in wanted
        }

    def empty_ahead(self) -> None:
        self._area.empty_ahead()

    def forget(self, names: Iterable[str]) -> None:
        self._area.forget(names)

    def begin_files(self, files: Iterable[str]) -> None:
        self._progress.begin_files(files)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
