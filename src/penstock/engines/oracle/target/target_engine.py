"""Oracle as a target of the change loader: the port of `ports/target.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.oracle.target.apply import OracleTarget
from penstock.engines.oracle.target.merge_tables import OracleStager
from penstock.engines.oracle.target.progress import open_session, progress_of
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import TargetEngine
from penstock.sql.state_store import Records


class OracleTargetEngine(TargetEngine):
    """Oracle as target. Its connections raise typed errors, so it has no driver's classes."""

    errors: tuple[type[BaseException], ...] = ()
    ddl_commits = True

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        raise AssertionError(f"{doing}: errors are typed already") from error

    def open_staging(
        self,
        url: str,
        *,
        choices: Choices = NO_CHOICES,
        directory: Path | None = None,  # noqa: ARG002 - all rows wait in merge tables
    ) -> OracleStager:
        return OracleStager(open_session(url), url, choices)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> OracleTarget:
        connection = open_session(url)
        progress = progress_of(connection)
        return OracleTarget(
            url=url,
            connection=connection,
            namespaces=namespaces,
            progress=progress,
            records=Records(progress),
            clock=clock,
            allow_triggers=allow_triggers,
            policies=policies,
            choices=choices,
        )
