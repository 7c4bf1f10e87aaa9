"""A MySQL or MariaDB target of a configured pipeline under doctor's eyes.

Not here: the checks (`target.py`), and the same of a source (`engines/mysql/resume_state.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace

from penstock.engines.mysql.checks.probe import MySQLProbe, Wanted, look, wanted_checks
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source.catalog import open_catalog, survey
from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Looked, Side, unreachable
from penstock.ports.config import Config
from penstock.ports.target import target_name

APPLICATION_NAME = "penstock doctor"


def look_at_target(
    config: Config, tables: Sequence[TableDefinition], *, only: Collection[str] = ()
) -> Looked:
    """What doctor finds at the target; a server that cannot be reached is one finding.

    tables: the captured tables where the source is of another kind; else they are read here.
    """
    wanted = Wanted(
        has_change=config.pipeline.mode.has_change, has_data=config.pipeline.mode.has_data
    )
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(
                connect(config.target.url, application_name=APPLICATION_NAME)
            )
        except ConnectFailed as error:
            skipped = len(wanted_checks(Side.TARGET, wanted, only))
            return Looked([unreachable(error, Side.TARGET)], skipped=skipped)
        source = _source(config, wanted, stack) if config.source.is_mysql else None
        if source is not None:
            tables = source.tables
        # The checks look for the tables under the names that they have in the target.
        there = tuple(
            replace(table, name=target_name(table.name, config.target.map)) for table in tables
        )
        probe = MySQLProbe(
            side=Side.TARGET,
            url=config.target.url,
            connection=connection,
            wanted=wanted,
            tables=there,
            source=source,
        )
        return look(probe, only=only)


def _source(config: Config, wanted: Wanted, stack: ExitStack) -> MySQLProbe | None:
    """The source's probe, to compare with; None where the source's own checks say what is wrong."""
    try:
        connection = stack.enter_context(
            open_catalog(config.source.url, application_name=APPLICATION_NAME)
        )
        seen = survey(connection, config.source.tables)
    except PenstockError:
        return None
    return MySQLProbe(
        side=Side.SOURCE,
        url=config.source.url,
        connection=connection,
        wanted=wanted,
        tables=seen.tables,
        survey=seen,
    )
