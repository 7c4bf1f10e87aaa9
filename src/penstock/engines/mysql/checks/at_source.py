"""A MySQL or MariaDB source of a configured pipeline under doctor's eyes.

Not here: the checks (`standing.py`, `extracting.py`, ...), and the same of a target
(`at_target.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from penstock.control.new_tables import new_findings
from penstock.engines.mysql.checks.extracting import Extracting, wanted_extract_checks
from penstock.engines.mysql.checks.probe import MySQLProbe, Wanted, look, wanted_checks
from penstock.engines.mysql.resume_state import resume_point, server_id_of
from penstock.engines.mysql.source.catalog import Survey, captured_tables, open_catalog, survey
from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Finding, Looked, Side, unreachable, untold
from penstock.ports.config import Config


def look_at_source(
    config: Config, *, only: Collection[str] = ()
) -> tuple[Looked, tuple[TableDefinition, ...] | None]:
    """What doctor finds at the source; a server that cannot be reached is one finding.

    With it the tables that the pipeline follows, None where they cannot be asked for.
    """
    wanted = Wanted(
        has_change=config.pipeline.mode.has_change,
        has_data=config.pipeline.mode.has_data,
        server_id=server_id_of(config),
        resume=resume_point(config),
    )
    try:
        with open_catalog(config.source.url, application_name="penstock doctor") as connection:
            seen = Survey(tables=())
            findings: list[Finding] = []
            try:
                seen = survey(connection, config.source.tables)
                tables, new = new_findings(config, seen.tables)
                seen = replace(seen, tables=tables)
                findings += new
                captured_tables(connection, config.source.tables)
            except PenstockError as error:
                findings.append(untold(error, Side.SOURCE))
            probe = MySQLProbe(
                side=Side.SOURCE,
                url=config.source.url,
                connection=connection,
                wanted=wanted,
                tables=seen.tables,
                survey=seen,
            )
            looked = look(probe, only=only)
            looked.findings[:0] = findings
            extracting = Extracting(config, connection)
            for one in wanted_extract_checks(config, only):
                looked.take(one, Side.SOURCE, partial(one.function, extracting))
            return looked, probe.tables
    except ConnectFailed as error:
        skipped = len(wanted_checks(Side.SOURCE, wanted, only))
        skipped += len(wanted_extract_checks(config, only))
        return Looked([unreachable(error, Side.SOURCE)], skipped=skipped), None
