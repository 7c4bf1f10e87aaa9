"""What `doctor`, `status` and `lag` print. Not here: what `penstock run` shows (`live.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.control.display import console, human_bytes, human_count, human_seconds, pairs
from penstock.control.doctor import Report
from penstock.control.findings import Finding, Severity
from penstock.control.lag import Lag
from penstock.control.live import bulk_table, change_rows
from penstock.control.status import Status
from penstock.log.reader import Finding as LogFinding
from penstock.model import Lsn

SEVERITY_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.INFO: "cyan",
}


def show_report(report: Report, out: Console | None = None) -> None:
    """Print doctor's findings as blocks, so that each command can be copied as it stands."""
    out = out or console()
    for finding in report.findings:
        _show_finding(finding, out)
    counts = {s: sum(f.severity is s for f in report.findings) for s in Severity}
    skipped = f", {report.checks_skipped} could not be done" if report.checks_skipped else ""
    out.print(
        f"{report.checks_done} checks done{skipped}: {counts[Severity.ERROR]} errors, "
        f"{counts[Severity.WARNING]} warnings, {counts[Severity.INFO]} notes"
    )
    if not report.errors:
        out.print(Text("nothing stops this pipeline from running", style="green"))


def _show_finding(finding: Finding, out: Console) -> None:
    head = Text(f"{finding.severity} {finding.code}", style=SEVERITY_STYLES[finding.severity])
    out.print(head.append(f"  {finding.what}", style="default"))
    out.print(Text(f"        {finding.why}", style="dim"))
    if finding.command:
        out.print(Text(f"        > {finding.command}"))


def show_lag(lag: Lag, out: Console | None = None) -> None:
    """Print how far behind the target is."""
    out = out or console()
    extracting = "" if lag.extracting else " (nobody reads the slot: the extractor does not run)"
    out.print(
        pairs(
            [
                ("lag", f"{human_seconds(lag.seconds)}, {human_count(lag.rows)} rows in the log"),
                ("behind the slot", human_bytes(lag.slot_bytes) + extracting),
                ("behind what is applied", human_bytes(lag.applied_bytes)),
                ("source is at", str(Lsn(lag.source_position))),
                ("change log is at", str(Lsn(lag.log_position))),
                ("target is at", str(Lsn(lag.applied_position))),
            ]
        )
    )


def show_status(status: Status, out: Console | None = None) -> None:
    """Print a status."""
    out = out or console()
    running = [f"{p.name} (pid {p.pid})" for p in status.processes if p.pid]
    head = [
        ("pipeline", f"{status.pipeline}, mode {status.mode}, in {status.directory}"),
        ("processes", ", ".join(running) or "none runs"),
        ("action", f"{status.target.action}, {status.target.restarts} restarts so far"),
    ]
    if status.identity is not None:
        server = f"system {status.identity.system_id}, database {status.identity.database}"
        head.append(("source", f"{server}, slot {status.identity.slot}"))
    out.print(pairs(head))
    for step in status.handover.steps if status.handover else ():
        out.print(Text(f"handover {step.number} of 4: {step.text} ({step.at})"))
    bulk = status.target.bulk
    if bulk is not None and bulk.phase == "done":
        out.print(f"bulk load done: {human_count(bulk.rows_done)} rows, {len(bulk.tables)} tables")
    elif bulk is not None:
        out.print(bulk_table(bulk))
    if status.mode != "data":
        out.print(pairs(change_rows(status)))
        _show_files(status, out)


def _show_files(status: Status, out: Console) -> None:
    for title, rows in (("extracted", status.target.extracted), ("loaded", status.target.loaded)):
        for row in rows:
            finished = f"{row.finish_time:%H:%M:%S}" if row.finish_time else "under way"
            out.print(Text(f"{title}: {row.source}  mark {row.mark}  {finished}", style="dim"))


def show_segments(segments: Iterable[Mapping[str, Any]], out: Console | None = None) -> None:
    """Print the segments of a log as a table."""
    out = out or console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("segment", "rows", "sequence", "position", "last commit (UTC)", "size"):
        table.add_column(title, justify="left", no_wrap=True)
    table.add_column("tables", overflow="fold")
    for segment in segments:
        commit_us = segment["commit_time_us"]
        commit = datetime.fromtimestamp(commit_us / 1e6, UTC) if commit_us else None
        table.add_row(
            segment["segment"],
            human_count(segment["rows"]),
            f"{segment['gsn_first']} to {segment['gsn_last']}" if segment["rows"] else "none",
            segment["position"],
            f"{commit:%Y-%m-%d %H:%M:%S}" if commit else "none",
            human_bytes(segment["size_bytes"]),
            ", ".join(segment["tables"]),
        )
    out.print(table)


def show_log_findings(findings: Sequence[LogFinding], out: Console | None = None) -> None:
    """Print what a check of the log found."""
    out = out or console()
    for finding in findings:
        out.print(Text(f"{finding.severity} {finding.code}  {finding.file}: {finding.message}"))
        if finding.hint:
            out.print(Text(f"        > {finding.hint}"))
    if not any(finding.severity == "error" for finding in findings):
        out.print(Text("the log is whole", style="green"))
