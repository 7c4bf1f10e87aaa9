"""Doctor: everything that can be known to go wrong before the first byte moves.

Runs the checks of `doctor_*.py` and gathers what they find; it changes nothing. Not here: how
findings are printed (`display.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

# The modules register their checks when they are imported.
from penstock.control import (  # noqa: F401
    doctor_host,
    doctor_identity,
    doctor_server,
    doctor_slot,
    doctor_tables,
    doctor_target,
)
from penstock.control.config import Config
from penstock.control.doctor_mysql import MYSQL_CHECKS
from penstock.control.doctor_mysql.at_target import target_findings
from penstock.control.findings import CHECKS, Check, Finding, Probe, Severity, Side
from penstock.control.followed import followed_names
from penstock.control.mysql_source import source_findings
from penstock.host.connect import EXACT_TEXT_SETTINGS, ConnectFailed, connect, server_errors
from penstock.load.bulk_types import is_mysql
from penstock.model import PenstockError
from penstock.source.postgres.catalog import Survey, open_catalog, survey


class PreflightFailed(PenstockError):
    """Doctor found an error; nothing was begun. `--json` shows the finding's own code."""

    code = "CT01"
    retry = "operator"

    def as_dict(self) -> dict[str, Any]:
        """The error under the code of its first finding."""
        shown = PenstockError.as_dict(self)
        shown["code"] = self.fields["findings"][0]["code"]
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What doctor found. checks_done: how many ran; checks_skipped: no way to ask the server."""

    findings: tuple[Finding, ...]
    checks_done: int
    checks_skipped: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a run."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    def as_dict(self) -> dict[str, Any]:
        """The report as `penstock doctor --json` prints it."""
        return {
            "ok": not self.errors,
            "checks_done": self.checks_done,
            "checks_skipped": self.checks_skipped,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def require(self) -> None:
        """Raise PreflightFailed when there is an error."""
        if not self.errors:
            return
        first, *others = self.errors
        more = f" ({len(others)} more: {', '.join(f.code for f in others)})" if others else ""
        raise PreflightFailed(
            f"{first.what}: {first.why}{more}",
            hint=f"Mend it: {first.command}" if first.command else "Run `penstock doctor`.",
            findings=[finding.as_dict() for finding in self.errors],
        )


def examine(
    config: Config,
    *,
    only: Collection[str] = (),
    sides: Collection[Side] = tuple(Side),
    on_finding: Callable[[Finding], None] = lambda _finding: None,
) -> Report:
    """Run every check that concerns this pipeline, or only those with these codes or sides.

    on_finding: told each finding as soon as it is there; the report has them in order of severity.
    Changes nothing anywhere. A server that can not be reached is one finding with the code of the
    connection's error; its checks are counted as skipped.
    """
    findings = _Told(on_finding)
    counts = {"done": 0, "skipped": 0}

    def run(side: Side, subject: Config | Probe | None) -> None:
        for check in _wanted(config, side):
            if only and check.code not in only:
                continue
            if subject is None:
                counts["skipped"] += 1
            else:
                findings.extend(_outcome(check, subject))
                counts["done"] += 1

    run(Side.HOST, config)
    with ExitStack() as stack:
        source = None
        if config.source.is_mysql:
            found = [one for one in source_findings(config) if not only or one.code in only]
            findings.extend(found)
            counts["done"] += sum(check.side is Side.SOURCE for check in MYSQL_CHECKS)
        else:
            source = stack.enter_context(_source(config, findings))
            run(Side.SOURCE, source)
        if Side.TARGET in sides and is_mysql(config.target.url):
            tables = source.tables if source is not None else ()
            findings.extend(target_findings(config, tables, only=only))
            counts["done"] += sum(check.side is Side.TARGET for check in MYSQL_CHECKS)
        elif Side.TARGET in sides:
            run(Side.TARGET, stack.enter_context(_target(config, source, findings)))
    order = list(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Report(
        findings=tuple(findings), checks_done=counts["done"], checks_skipped=counts["skipped"]
    )


class _Told(list[Finding]):
    """Findings, each told to somebody when it is added."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, finding: Finding) -> None:
        super().append(finding)
        self._tell(finding)

    def extend(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.append(finding)


def _wanted(config: Config, side: Side) -> list[Check]:
    return [
        check
        for check in CHECKS
        if check.side is side and (config.pipeline.mode.has_change or not check.change_only)
    ]


def _outcome(check: Check, subject: Config | Probe) -> list[Finding]:
    """A check's findings; a check that itself fails is a finding too, never silence."""
    try:
        return list(check.function(subject))
    except PenstockError as error:
        return [
            Finding(
                code=check.code,
                severity=Severity.ERROR,
                side=check.side,
                what=f"the check of {check.title} could not be done: {error.message}",
                why="what it would have found is not known",
                command=error.hint,
            )
        ]


@contextmanager
def _connected(
    opened: Callable[[], psycopg.Connection], side: Side, findings: list[Finding]
) -> Iterator[psycopg.Connection | None]:
    try:
        connection = opened()
    except ConnectFailed as error:
        findings.append(
            Finding(
                code=error.code,
                severity=Severity.ERROR,
                side=side,
                what=f"{side}: {error.message}",
                why="nothing can be asked of this server or done with it",
                command=error.hint,
            )
        )
        yield None
        return
    with connection:
        yield connection


@contextmanager
def _source(config: Config, findings: list[Finding]) -> Iterator[Probe | None]:
    def opened() -> psycopg.Connection:
        return open_catalog(config.source.url, application_name="penstock doctor")

    with _connected(opened, Side.SOURCE, findings) as connection:
        if connection is None:
            yield None
            return
        with server_errors("asking the source who it is"):
            system_id = connection.execute(
                "select system_identifier::text from pg_control_system()"
            ).fetchone()
        seen = _survey(config, connection, findings)
        yield Probe(
            config=config,
            connection=connection,
            version=connection.info.server_version,
            tables=seen.tables,
            survey=seen,
            source_id=(system_id[0], connection.info.dbname) if system_id else None,
        )


def _survey(config: Config, connection: psycopg.Connection, findings: list[Finding]) -> Survey:
    try:
        with server_errors("reading the source's catalogue"):
            return survey(connection, config.source.tables, dropped=followed_names(config))
    except PenstockError as error:
        findings.append(
            Finding(
                code=error.code,
                severity=Severity.ERROR,
                side=Side.SOURCE,
                what=error.message,
                why="the tables to replicate can not be told",
                command=error.hint,
            )
        )
        return Survey(tables=())


@contextmanager
def _target(
    config: Config, source: Probe | None, findings: list[Finding]
) -> Iterator[Probe | None]:
    def opened() -> psycopg.Connection:
        return connect(
            config.target.url, application_name="penstock doctor", options=EXACT_TEXT_SETTINGS
        )

    with _connected(opened, Side.TARGET, findings) as connection:
        if connection is None:
            yield None
            return
        yield Probe(
            config=config,
            connection=connection,
            version=connection.info.server_version,
            tables=source.tables if source else (),
            source_id=source.source_id if source else None,
        )
