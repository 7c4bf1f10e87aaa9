"""MySQL and MariaDB as targets of the change loader: the port of `ports/target.py`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pymysql

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.mysql.connect import connect, statement_error
from penstock.engines.mysql.target.apply import LOCK_TIMEOUT_S, MySQLTarget, lock_timeouts
from penstock.engines.mysql.target.direct import UnsureTables
from penstock.engines.mysql.target.merge_tables import MySQLStager
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import TargetEngine

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

    def open_staging(
        self, url: str, *, choices: Choices = NO_CHOICES, directory: Path | None = None
    ) -> MySQLStager:
        """Connect for preparing merge tables. directory: for rows that need no merge table."""
        settings = lock_timeouts(LOCK_TIMEOUT_S)
        with ExitStack() as opened:
            logged = connect(url, application_name=STAGER_NAME, options=settings)
            opened.callback(logged.close)
            silent = connect(url, application_name=STAGER_NAME, options=settings)
            opened.callback(silent.close)
            staging = MySQLStager(
                logged, silent, url, choices=choices, directory=directory, unsure=self.unsure
            )
            opened.pop_all()
        return staging

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
