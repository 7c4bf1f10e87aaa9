"""Doctor: everything that can be known to go wrong before the first byte moves.

Runs the checks of `doctor_*.py` and gathers what they find; it changes nothing. Not here: how
findings are printed (`display.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import psycopg

# The modules register their checks when they are imported.
import penstock.engines.postgres.checks  # noqa: F401
from penstock.control import doctor_directory, doctor_host  # noqa: F401
from penstock.control.doctor_load import LOAD_CHECKS, Loading, as_postgres_has_them
from penstock.control.followed import followed_names
from penstock.control.new_tables import new_findings
from penstock.engines.mysql.checks.at_source import look_at_source
from penstock.engines.mysql.checks.at_target import look_at_target
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, server_errors
from penstock.engines.postgres.source.catalog import Survey, open_catalog, survey
from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import (
    CHECKS,
    Check,
    Finding,
    Looked,
    Probe,
    Severity,
    Side,
    unreachable,
    untold,
)
from penstock.ports.config import Config
from penstock.sql.read_plan import is_mysql


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
    Changes nothing anywhere. A server that cannot be reached is one finding with the code of the
    connection's error; its checks are counted as skipped.
    """
    findings = _Told(on_finding)
    looked = Looked(findings)

    def took(other: Looked) -> None:
        findings.extend(other.findings)
        looked.done += other.done
        looked.skipped += other.skipped

    def run(side: Side, subject: Config | Probe | Loading | None, checks: list[Check]) -> None:
        for check in _wanted(config, checks, side, only):
            if subject is None:
                looked.skipped += 1
            else:
                looked.take(check, check.side, partial(check.function, subject))

    run(Side.HOST, config, CHECKS)
    with ExitStack() as stack:
        source = None
        if config.source.is_mysql:
            found, tables = look_at_source(config, only=only)
            took(found)
        else:
            source = stack.enter_context(_source(config, findings))
            run(Side.SOURCE, source, CHECKS)
            tables = source.tables if source is not None else None
        if Side.TARGET in sides:
            if is_mysql(config.target.url):
                took(look_at_target(config, tables or (), only=only))
            else:
                target = stack.enter_context(_target(config, source, tables or (), findings))
                run(Side.TARGET, target, CHECKS)
            asked = not any(one.side is Side.TARGET for one in findings.unreachable)
            loading = Loading(config, tuple(tables)) if tables is not None and asked else None
            run(Side.TARGET, loading, LOAD_CHECKS)
    order = list(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Report(findings=tuple(findings), checks_done=looked.done, checks_skipped=looked.skipped)


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

    @property
    def unreachable(self) -> list[Finding]:
        """Those that say that a server cannot be asked."""
        kinds: list[type[ConnectFailed]] = [ConnectFailed, *ConnectFailed.__subclasses__()]
        codes = {kind.code for kind in kinds}
        return [finding for finding in self if finding.code in codes]


def _wanted(config: Config, checks: list[Check], side: Side, only: Collection[str]) -> list[Check]:
    return [
        check
        for check in checks
        if check.side is side
        and (config.pipeline.mode.has_change or not check.change_only)
        and (not only or check.code in only)
    ]


@contextmanager
def _connected(
    opened: Callable[[], psycopg.Connection], side: Side, findings: list[Finding]
) -> Iterator[psycopg.Connection | None]:
    try:
        connection = opened()
    except ConnectFailed as error:
        findings.append(unreachable(error, side))
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
            seen = survey(connection, config.source.tables, dropped=followed_names(config))
        tables, new = new_findings(config, seen.tables)
        findings.extend(new)
        return replace(seen, tables=tables)
    except PenstockError as error:
        findings.append(untold(error, Side.SOURCE))
        return Survey(tables=())


@contextmanager
def _target(
    config: Config,
    source: Probe | None,
    tables: Sequence[TableDefinition],
    findings: list[Finding],
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
            tables=as_postgres_has_them(config, tables),
            source_id=source.source_id if source else None,
        )


# -- what a start is refused for ---------------------------------------------------------------
# One list, and a test that walks all error classes: one that somebody has to mend something for is
# here, under its checks or under the reason why no check finds it.

ITSELF = "itself"  # doctor says this very error: it needs the same thing for its first question

CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("HS21", "HS23", "HS24", "HS25", "HS31"), (ITSELF,)),
        **dict.fromkeys(("PG42", "PG43", "MY40"), (ITSELF, "PK06")),
        "CT10": ("PG07", "MY040"),
        "CT11": ("PG07", "MY040"),
        "CT30": ("PG35",),
        "CT31": ("PG08", "PG35"),
        "CT33": ("PG11",),
        "CT36": ("MY042",),
        "CT37": ("MY042",),
        "CT64": ("PK19",),
        "CT71": ("PK17",),
        "CT72": ("PK17",),
        "HS28": ("PG21", "PK10", "MY016", "MY039"),
        "LD01": ("PK02",),
        "LD02": ("PK02",),
        "LD03": ("PK02", "PK04"),
        "LD43": ("PK15",),
        "LD45": ("PK15",),
        "LD46": ("PG33", "PG34", "PK15"),
        "MY50": ("MY009", "MY041"),
        "MY51": ("MY009",),
        "MY52": ("MY009", "MY041"),
        "MY53": ("MY009", "MY041"),
        "MY54": ("MY010",),
        "MY57": ("MY014",),
        "MY58": ("MY001",),
        "MY60": ("MY010",),
        "MY70": ("MY017",),
        "MY72": ("MY034",),
        "MY88": ("MY041",),
        "PG47": ("PG15",),
        "PG48": ("PG13", "PG17"),
        "PG50": ("PG10",),
        "PG51": ("PG10",),
        "PG52": ("PG09",),
        "PG53": ("PG10",),
        "PG54": ("PG10",),
        "PG55": ("PG07",),
        "PG56": ("PG07",),
        "PG57": ("PG07",),
        "PG58": ("PG31",),
        "PG59": ("PG11",),
        "PG61": ("PG01",),
        "PG63": ("PG12",),
        "PG64": ("PG12",),
        "PG65": ("PK06",),
        "PG67": ("PG13",),
        "PG74": ("PG09",),
        "PG75": ("PG09",),
        "TG01": ("PK14", "PK20"),
        "TG02": ("PK08", "MY039"),
        "TG03": ("PK16",),
        "TG10": ("PK12", "PK20"),
        "TG11": ("PK13",),
        "TG12": ("PK13",),
        "TG13": ("PK09",),
        "TG34": ("PG33", "PK20"),
        "TG37": ("PK20",),
    }
)
"""Code of an error to the codes of the checks that find it."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "CF HS32 HS33": "the pipeline file: no command comes as far as doctor's checks",
        "VF": "of `penstock verify`",
        "WB": "of the web interface",
        "LG": "of the change log: `penstock log check`",
        "DC": "of bytes that were received",
        "CT01 CT02 CT03 CT04 HS14": "of `penstock run` itself: another process runs, or has failed",
        "CT50 CT70 CT80 CT81 CT82 CT83 LD60 LG30 LG31 LG32": "of other commands",
        "CT68 CT69": "told among past errors, or by [source] newTables: nothing refuses to begin",
        "CT12 LD42 MY89": "files of the directory, read by every command",
        "PG60": "the pipeline file: the name of a slot, which is read before doctor's checks",
        "HS10 HS11 HS12 HS13 HS60": "of this machine at the moment that it is asked for something",
        "HS41 HS42 HS43 HS44 HS70 HS71": "of the demo's servers and of listening",
        "HS29 HS40 PG44": "of a server at the moment that it is asked for something",
        "CT34": "of waiting for the extract process, which no command does with a limit",
        "CT38": "of asking for the lag: which server answers is what MY010 looks at before",
        "LD06 LD20 LD21 LD22 LD40 LD44 LD48": "while rows are loaded",
        "MY55 MY59 MY80 MY81 MY82 MY83 MY84 MY85 MY86 MY87": "while the binlog is followed",
        "PG46 PG49 PG66 PG71 PG72": "while changes are followed",
        "CT40 TG04 TG20 TG21 TG22 TG23 TG30 TG31 TG32 TG33 TG35 TG36": "while changes are applied",
    }
)
"""Codes, or what codes begin with, to the reason why no check of doctor finds the error."""
