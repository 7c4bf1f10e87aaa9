"""PostgreSQL as a target of the change loader: the port of `ports/target.py` over this folder."""

from __future__ import annotations

from collections.abc import Mapping
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
from penstock.engines.postgres.target.merge_tables import (
    PostgresStager,
)
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import TargetEngine
from penstock.sql.state_store import Records

STAGER_NAME = "penstock stager"


class PostgresTargetEngine(TargetEngine):
    """PostgreSQL as target."""

    errors: tuple[type[BaseException], ...] = (psycopg.Error,)
    ddl_commits = False

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        assert isinstance(error, psycopg.Error)
        return statement_error(doing, error)

    def open_staging(
        self,
        url: str,
        *,
        choices: Choices = NO_CHOICES,
        directory: Path | None = None,  # noqa: ARG002 - all rows wait in merge tables
    ) -> PostgresStager:
        settings = {**EXACT_TEXT_SETTINGS, "lock_timeout": str(LOCK_TIMEOUT_MS)}
        connection = connect(url, application_name=STAGER_NAME, options=settings)
        return PostgresStager(connection, url, choices)

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
