"""Doctor: everything that can be known to go wrong before the first byte moves.

Runs the checks of this machine, of both servers' engines and of the load, and gathers their
findings; it changes nothing. Not here: the checks (`doctor_*.py`, the engines' `checks`), and
printing of findings (`pipeline/display.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from penstock.control.doctor.load_checks import CLUSTER_CHECKS, LOAD_CHECKS, LoadSubject
from penstock.control.doctor.local_checks import (
    CONSUMER_CHECKS,
    DIRECTORY_CHECKS,
    EXTRA_CHECKS,
    HOST_CHECKS,
)
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.new_tables import new_findings, without_new
from penstock.control.pipeline.running import processes
from penstock.control.pipeline.servers import followed_names, pipeline_of, server_pair
from penstock.control.pipeline.table_requests import read_requests
from penstock.log.layout import load_state
from penstock.model import PenstockError
from penstock.ports.checks import (
    CHECKS_PART,
    ITSELF,
    EngineChecks,
    Examined,
    Finding,
    Looked,
    Severity,
    Side,
    checks_of,
)
from penstock.ports.config import Config
from penstock.ports.feeds import staging_at
from penstock.ports.registry import engines


class PreflightFailed(PenstockError):
    """Doctor found an error; nothing was begun. `--json` shows the finding's own code."""

    code = "CT01"
    retry = "operator"

    def as_dict(self) -> dict[str, Any]:
        """Return the error under the code of its first finding."""
        shown = PenstockError.as_dict(self)
        shown["code"] = self.fields["findings"][0]["code"]
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings of doctor. checks_done: checks that ran; checks_skipped: the server was away."""

    findings: tuple[Finding, ...]
    checks_done: int
    checks_skipped: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that stop a run."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as `penstock doctor --json` prints it."""
        return {
            "ok": not self.errors,
            "checks_done": self.checks_done,
            "checks_skipped": self.checks_skipped,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def require(self) -> None:
        """Raise PreflightFailed if there is an error."""
        if not self.errors:
            return
        first, *others = self.errors
        more = f" ({len(others)} more: {', '.join(f.code for f in others)})" if others else ""
        raise PreflightFailed(
            f"{first.what}: {first.why}{more}",
            hint=f"Fix it: {first.command}" if first.command else "Run `penstock doctor`.",
            findings=[finding.as_dict() for finding in self.errors],
        )


def examine(
    config: Config,
    *,
    only: Collection[str] = (),
    sides: Collection[Side] = tuple(Side),
    executors: bool = False,
    on_finding: Callable[[Finding], None] = lambda _finding: None,
) -> Report:
    """Run every check that concerns this pipeline, or only those with these codes or sides.

    Changes nothing anywhere. A server that cannot be reached is one finding with the code
    of the connection's error; its checks are counted as skipped, and if it is the source, also the
    target's checks that need it.

    Args:
        config: The pipeline.
        only: Codes of the checks; empty for all.
        sides: Sides of the checks.
        executors: Check those of a cluster, too, by starting Spark: if no load follows.
        on_finding: Called with each finding at once; the report has them in order of severity.
    """
    findings = _Reported(on_finding)
    looked = Looked(
        findings=findings,
        has_change=config.pipeline.mode.has_change,
        has_target=config.has_target,
        only=only,
    )
    looked.look(EXTRA_CHECKS, config)
    if findings:  # without its drivers the rest cannot be examined
        return _report(findings, looked)
    if config.staging is not None and Side.TARGET in sides:
        findings.extend(_of_staging(config, config.staging.url))
        looked.done += 1
    if config.stage is not None:  # changefeeds are posted to it: there is no source to look at
        return _report(findings, looked)
    examined = examined_of(config)
    at_source = checks_of(config.source.url)
    looked.look(HOST_CHECKS, config)
    looked.look(DIRECTORY_CHECKS, config)
    looked.look(CONSUMER_CHECKS, config)
    if executors:
        looked.look(CLUSTER_CHECKS, config)
    source = at_source.look_at_source(examined, looked)
    if Side.TARGET in sides and config.has_target:
        at_target = checks_of(config.target.url)
        reached = at_target.look_at_target(examined, looked, source)
        if reached and source.tables is not None:

            @contextmanager
            def convert_errors(doing: str) -> Iterator[None]:
                with at_source.server_errors(doing), at_target.server_errors(doing):
                    yield

            looked.look(LOAD_CHECKS, LoadSubject(config, source.tables), typed=convert_errors)
        else:
            looked.skip(LOAD_CHECKS)
    return _report(findings, looked)


def _of_staging(config: Config, url: str) -> Iterator[Finding]:
    """Yield the findings about the staging database. Only changefeeds cannot run without it."""
    for one in staging_at(url).examine():
        is_error = one.severity is Severity.ERROR and config.stage is None
        yield replace(one, severity=Severity.WARNING) if is_error else one


def _report(findings: list[Finding], looked: Looked) -> Report:
    order = list(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Report(findings=tuple(findings), checks_done=looked.done, checks_skipped=looked.skipped)


def examined_of(config: Config) -> Examined:
    """Return the facts of a pipeline for the engines' checks."""

    def log_id() -> str:
        state = load_state(config.layout.log)
        return state.log_id if state is not None else ""

    return Examined(
        pipeline=pipeline_of(config),
        log_id=log_id,
        log_end=lambda: read_log_end(config).end.position,
        followed=lambda: followed_names(config),
        copied=lambda: read_requests(config).list_copied(),
        known=lambda tables: without_new(config, tables),
        judged=lambda tables: new_findings(config, tables),
        extracts=lambda: any(one.pid for one in processes(config) if one.name == "extract"),
        servers=lambda: server_pair(config),
    )


class _Reported(list[Finding]):
    """Findings, each passed on when it is added."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        super().__init__()
        self._report = report

    def append(self, finding: Finding) -> None:
        super().append(finding)
        self._report(finding)

    def extend(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.append(finding)


# -- reasons to refuse a start ------------------------------------------------------------------
# One list in parts, ours here and each engine's in its `checks`. A test walks all error classes: an
# error that needs operator action is listed, under its checks or under the reason why
# no check finds it.

_CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("HS21", "HS23", "HS24", "HS25", "HS31"), (ITSELF,)),
        "CN10": ("PK22",),
        "HS35": ("PK25",),
        "CT64": ("PK19",),
        "CT65": ("PK26",),
        "CT66": ("PK26",),
        "CT71": ("PK17",),
        "CT72": ("PK17",),
        "LD01": ("PK02",),
        "LD02": ("PK02",),
        "LD03": ("PK02", "PK04"),
        **dict.fromkeys(("LD09", "LD14", "LD15", "LD51"), ("PK24",)),
        "LD43": ("PK15",),
        "LD45": ("PK15",),
        "LD46": ("PK15",),
        "SL01": ("PK21",),
        "TG03": ("PK16",),
    }
)

_NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "CF HS32 HS33 HS34": "of the pipeline file: no command gets as far as doctor's checks",
        "SK": "of a query in the user's own Spark",
        "VF": "of `penstock verify`",
        "WB": "of the web interface",
        "CN": "of consumers: `penstock consume`",
        "KF": "of brokers and topics, which only the consumer asks: `penstock consume`",
        "FX": "of FlexCDC: `penstock flexcdc`",
        "ST": "of `penstock stage`",
        "SV": "of `penstock serve`",
        "BA": "of the base that the load process keeps and `penstock serve` reads",
        "CT78 PS21": "of `penstock resend`",
        "IG": "of a directory that is read in place of a server: `penstock consume`",
        "LG": "of the change log: `penstock log check`",
        "DC": "of bytes that were received",
        "CT01 CT02 CT03 CT04 CT05 CT06 HS14": (
            "of `penstock run` itself: another process runs, or has failed"
        ),
        "CT50 CT70 CT80 CT81 CT82 CT83 CT84 LD60 LG30 LG31 LG32 LG33": "of other commands",
        "CT68 CT69": "shown among past errors, or by [source] newTables: nothing refuses to begin",
        "CT12 LD42": "files of the directory, read by every command",
        "HS10 HS11 HS12 HS13 HS60 HS74": "of this machine at the moment it is asked for something",
        "HS41 HS42 HS43 HS44 HS70 HS71": "of the demo's servers and of listening",
        "HS29 HS40": "of a server at the moment that it is asked for something",
        "CT34": "of waiting for the extract process, which no command does with a limit",
        "LD06 LD20 LD21 LD22 LD40 LD44 LD48": "while rows are loaded",
        "CT40 TG04 TG20 TG21 TG22 TG23 TG30 TG31 TG32 TG33 TG35 TG36": "while changes are applied",
    }
)


def checks_of_errors() -> dict[str, tuple[str, ...]]:
    """Return the codes of the checks that find each error's code, at any engine."""
    joined = dict(_CHECKS_OF)
    for part in _parts():
        for code, checks in part.CHECKS_OF.items():
            joined[code] = joined.get(code, ()) + checks
    return joined


def not_found_before() -> dict[str, str]:
    """Return why no check of doctor finds an error, by its code or a prefix of codes."""
    joined = dict(_NOT_FOUND_BEFORE)
    for part in _parts():
        joined |= part.NOT_FOUND_BEFORE
    return joined


def _parts() -> Iterator[EngineChecks]:
    return (engine.part(CHECKS_PART) for engine in engines() if CHECKS_PART in engine.parts)
