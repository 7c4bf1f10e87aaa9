"""Helpers of the tests of doctor's checks of MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.engines.mysql.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, MySQLProbe, ProbeScope
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source.catalog import survey
from penstock.ports.checks import Finding, Looked, Severity, Side
from plugins.mysql import MySQLServer


def examine(probe: MySQLProbe, *, only: Collection[str] = ()) -> list[Finding]:
    """Return the findings of the checks of the probe's side, or of these codes, worst first."""
    looked = Looked(has_change=probe.wanted.has_change, only=only)
    looked.look(SOURCE_CHECKS if probe.side is Side.SOURCE else TARGET_CHECKS, probe)
    order = list(Severity)
    return sorted(looked.findings, key=lambda finding: order.index(finding.severity))


def look(
    server: MySQLServer, *codes: str, url: str = "", patterns: tuple[str, ...] = ("d.*",),
    side: Side = Side.SOURCE, **wanted: Any,
) -> list[Finding]:  # fmt: skip
    """Return the findings of the checks of these codes, as an account or as the superuser."""
    url = url or server.url()
    with connect(url, application_name="doctor") as connection:
        seen = survey(connection, patterns)
        probe = MySQLProbe(
            side=side,
            url=url,
            connection=connection,
            wanted=ProbeScope(**wanted),
            tables=seen.tables,
            survey=seen,
        )
        return examine(probe, only=codes)


def one(findings: list[Finding], code: str, severity: Severity, *said: str) -> Finding:
    """Return the single finding; check its code, severity and words."""
    assert [(f.code, f.severity) for f in findings] == [(code, severity)], findings
    text = " ".join((findings[0].what, findings[0].why, findings[0].command))
    for word in said:
        assert word in text
    return findings[0]
