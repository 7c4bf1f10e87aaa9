"""SQL Server as a target of the change loader: the port of `ports/target.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.sqlserver.target.apply import SQLServerTarget
from penstock.engines.sqlserver.target.claims import LOCK_WAIT_S
from penstock.engines.sqlserver.target.merge_tables import SQLServerStager
from penstock.engines.sqlserver.target.progress import SQLServerProgress, open_session
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import TargetEngine
from penstock.sql.state_store import Records

APPLY_LOCK_TIMEOUT_S = 10  # the batch is then repeated


class SQLServerTargetEngine(TargetEngine):
    """SQL Server as target. Its connections raise typed errors, so it has no driver's classes."""

    errors: tuple[type[BaseException], ...] = ()
    ddl_commits = False

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        raise AssertionError(f"{doing}: errors are typed already") from error

    def open_staging(
        self,
        url: str,
        *,
        choices: Choices = NO_CHOICES,
        directory: Path | None = None,  # noqa: ARG002 - all rows wait in merge tables
    ) -> SQLServerStager:
        connection = open_session(url, lock_timeout_s=LOCK_WAIT_S)
        return SQLServerStager(connection, url, choices)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> SQLServerTarget:
        connection = open_session(url, lock_timeout_s=APPLY_LOCK_TIMEOUT_S)
        progress = SQLServerProgress(connection)
        return SQLServerTarget(
            connection=connection,
            namespaces=namespaces,
            progress=progress,
            records=Records(progress),
            clock=clock,
            allow_triggers=allow_triggers,
            policies=policies,
            choices=choices,
        )
