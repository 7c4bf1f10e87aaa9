"""Output of `doctor`, `status` and `lag`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from penstock.control.doctor.doctor import Report
from penstock.control.pipeline.display import (
    console,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)
from penstock.control.status.consumer_list import ConsumerLine
from penstock.control.status.drawing import bulk_table, change_rows, table_rows
from penstock.control.status.lag import Lag
from penstock.control.status.run_events import in_flight, point_text
from penstock.control.status.status import Status
from penstock.control.tables.table_list import TableLine
from penstock.control.verify.compare import CompareProgress
from penstock.control.verify.verify import VerifyResult
from penstock.log.reader import LogFinding
from penstock.model.words import count_words
from penstock.ports.checks import Finding, Severity
from penstock.ports.lake import TableFacts
from penstock.ports.positions import Positions

SEVERITY_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.INFO: "cyan",
}


def show_report(report: Report, out: Console | None = None) -> None:
    """Print doctor's findings as blocks, so that each command can be copied unchanged."""
    out = out or console()
    for finding in report.findings:
        _show_finding(finding, out)
    counts = {s: sum(f.severity is s for f in report.findings) for s in Severity}
    skipped = f", {report.checks_skipped} could not be done" if report.checks_skipped else ""
    out.print(
        f"{count_words(report.checks_done, 'check')} done{skipped}: "
        f"{count_words(counts[Severity.ERROR], 'error')}, "
        f"{count_words(counts[Severity.WARNING], 'warning')}, "
        f"{count_words(counts[Severity.INFO], 'note')}"
    )
    if not report.errors:
        out.print(Text("nothing stops this pipeline from running", style="green"))


def _show_finding(finding: Finding, out: Console) -> None:
    head = Text(f"{finding.severity} {finding.code}", style=SEVERITY_STYLES[finding.severity])
    out.print(head.append(f"  {finding.what}", style="default"))
    out.print(Text(f"        {finding.why}", style="dim"))
    if finding.command:
        out.print(Text(f"        > {finding.command}"))


def show_no_lag(status: Status, out: Console | None = None) -> None:
    """Print that the target's lag is not known, why, and the next try."""
    out = out or console()
    out.print(pairs([("lag", f"unknown: {status.why_no_lag}")]))
    for outage in status.outage_lines():
        out.print(Text(outage, style="red"))
    for one in status.outages:
        out.print(Text(f"next for the {one.side}: {one.hint}"))
    log = _place(status.positions, status.log.end.position)
    rows = [("change log is at", f"{log}, {count_words(status.log.end.gsn, 'row')}")]
    out.print(pairs(rows))


def _place(positions: Positions, position: int) -> str:
    return positions.text(position) if position else "its beginning"


def show_lag(lag: Lag, out: Console | None = None) -> None:
    """Print how far behind the target is, or without one the change log."""
    out = out or console()
    extracting = "" if lag.extracting else " (the extractor does not run)"
    rows = f", {count_words(lag.rows, 'row')} in the log" if lag.has_target else ""
    lines = [
        ("lag", f"{lag.words}{rows}"),
        *_at_source(lag, extracting),
        ("change log is at", _place(lag.positions, lag.log_position)),
        ("target is at", _place(lag.positions, lag.applied_position)),
    ]
    of_target = ("behind what is applied", "target is at")
    out.print(pairs([line for line in lines if lag.has_target or line[0] not in of_target]))


def _at_source(lag: Lag, extracting: str) -> list[tuple[str, str]]:
    """Return the known facts of the source's log: its bytes, or the position acknowledged to it."""
    text = lag.positions.text
    if not lag.counts_bytes:
        return [("source knows as read", text(lag.confirmed_position) + extracting)]
    return [
        ("not extracted yet", human_bytes(lag.slot_bytes) + extracting),
        ("behind what is applied", human_bytes(lag.applied_bytes)),
        ("source is at", text(lag.source_position)),
    ]


def show_status(status: Status, out: Console | None = None) -> None:
    """Print a status."""
    out = out or console()
    running = [f"{p.name} (pid {p.pid})" for p in status.processes if p.pid]
    mode = f"mode {status.mode}" if status.has_target else "no target"
    head = [
        ("pipeline", f"{status.pipeline}, {mode}, in {status.directory}"),
        ("processes", ", ".join(running) or "none runs"),
        ("action", _action(status)),
    ]
    if status.identity is not None:
        server = f"system {status.identity.system_id}, database {status.identity.database}"
        head.append(("source", f"{server}, slot {status.identity.slot}"))
    out.print(pairs(head))
    for line in status.outage_lines():
        out.print(Text(line, style="red"))
    for text in _handover(status):
        out.print(Text(text))
    _show_unfinished(status, out)
    for text, style in table_rows(status):
        out.print(Text(text, style=style))
    bulk = status.target.bulk
    if bulk is not None and bulk.phase == "done":
        tables = count_words(len(bulk.tables), "table")
        out.print(f"bulk load done: {count_words(bulk.rows_done, 'row')}, {tables}")
    elif bulk is not None:
        out.print(bulk_table(bulk, out.width))
    if status.target.lake:
        show_lake(status.target.lake, out)
    if status.merge is not None:
        for text, is_trouble in status.merge.lines(status.read_us):
            out.print(Text(text, style="yellow" if is_trouble else ""))
    for text in status.base.lines() if status.base is not None else ():
        out.print(Text(text))
    _show_readers(status, out)
    if status.mode != "data":
        out.print(pairs(change_rows(status)))
        _show_files(status, out)


def _show_unfinished(status: Status, out: Console) -> None:
    """Print what is left of a batch in parts, unless a loader is at it."""
    is_loading = any(one.pid for one in status.processes if one.name == "load")
    if status.target.unfinished and not is_loading:
        out.print(Text(f"{status.target.unfinished.text}; start the loader", style="yellow"))


def _show_readers(status: Status, out: Console) -> None:
    """Print the consumers and the server of the log."""
    for one in status.consumers or ():
        out.print(Text(one.line(), style="red" if one.error else ""))
        if one.error:
            out.print(Text(f"        {one.error}", style="red"))
            out.print(Text(f"        > {one.hint}"))
    for text, is_trouble in status.serve.lines() if status.serve is not None else ():
        out.print(Text(text, style="red" if is_trouble else ""))


def _handover(status: Status) -> list[str]:
    """Return the four steps if the handover stopped something; otherwise only its position."""
    handover = status.handover
    if handover is None:
        return []
    if not in_flight(handover):
        return [f"handover {one.number} of 4: {one.text} ({one.at})" for one in handover.steps]
    return [f"{point_text(handover)} ({handover.steps[1].at})"] if len(handover.steps) > 1 else []


def _action(status: Status) -> str:
    if status.target.unknown:
        return "unknown"
    return f"{status.target.action}, {count_words(status.target.restarts, 'restart')} so far"


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


def show_tables(lines: Sequence[TableLine], out: Console | None = None) -> None:
    """Print the tables of a pipeline, and the state of each."""
    out = out or console()
    if not lines:
        out.print("no table is captured yet: `penstock run` begins with them")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("table", "state", "on its way to", "behind the others"):
        table.add_column(title, overflow="fold")
    for line in lines:
        behind = count_words(line.behind, "change") if line.behind else ""
        table.add_row(str(line.table), line.state, line.wanted, behind)
    out.print(table)
    for line in lines:
        if line.error:
            out.print(Text(f"{line.table}: {line.code} {line.error}", style="red"))
            out.print(Text(f"        > {line.hint}"))


def show_lake(tables: Mapping[str, TableFacts], out: Console | None = None) -> None:
    """Print the tables of a lake: files, rows, size, versions."""
    out = out or console()
    if not tables:
        out.print("the lake has no table yet: `penstock run` creates them")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("lake", overflow="fold")
    for title in ("files", "rows", "dead rows", "size", "versions", "gsn", "missing"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, facts in sorted(tables.items()):
        table.add_row(
            name,
            human_count(facts.files),
            human_count(facts.rows - facts.dead_rows),
            human_count(facts.dead_rows),
            human_bytes(facts.size_bytes),
            human_count(facts.versions),
            str(facts.gsn),
            human_count(facts.missing) if facts.missing else "",
        )
    out.print(table)


def show_consumers(lines: Sequence[ConsumerLine], out: Console | None = None) -> None:
    """Print a pipeline's consumers, how far behind each is, and its disk space."""
    out = out or console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("consumer", "state", "saved", "read", "behind", "", "", "links", "held back"):
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(
            line.name,
            line.state if line.is_configured else f"{line.state}, not in the file",
            *("" if gsn is None else str(gsn) for gsn in (line.saved, line.read)),
            "" if line.lag_events is None else count_words(line.lag_events, "event"),
            "" if line.lag_bytes is None else human_bytes(line.lag_bytes),
            "" if line.lag_seconds is None else human_seconds(line.lag_seconds),
            f"{line.links}, {human_bytes(line.link_bytes)}",
            human_bytes(line.held_bytes),
        )
    out.print(table)
    for line in lines:
        if line.error:
            out.print(Text(f"{line.name}: {line.error}", style="red"))
            out.print(Text(f"        > {line.hint}"))


def show_log_findings(findings: Sequence[LogFinding], out: Console | None = None) -> None:
    """Print the findings of a check of the log."""
    out = out or console()
    for finding in findings:
        out.print(Text(f"{finding.severity} {finding.code}  {finding.file}: {finding.message}"))
        if finding.hint:
            out.print(Text(f"        > {finding.hint}"))
    if not any(finding.severity == "error" for finding in findings):
        out.print(Text("the log is whole", style="green"))


DIFFERENCES = {
    "missing": "in the source only",
    "surplus": "in the target only",
    "different": "differs",
}


class VerifyBar:
    """Progress of a comparison, in a terminal; a line for each wait, elsewhere too."""

    def __init__(self, out: Console | None = None, *, shown: bool = True) -> None:
        """Prepare the bar. shown: False prints nothing at all (with --json)."""
        self._out = out or console()
        self._shown = shown
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        """Return itself; nothing is drawn before there is something to show."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def waiting(self, text: str) -> None:
        """Print what is waited for."""
        if self._shown:
            self._out.print(text)

    def progress(self, seen: CompareProgress) -> None:
        """Update the bar. Called from any thread."""
        if not self._shown or not self._out.is_terminal:
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("comparing {task.fields[table]}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._out,
                transient=True,
            )
            self._task = self._progress.add_task("", total=seen.bytes_total, table="")
            self._progress.start()
        self._progress.update(
            self._task,
            completed=seen.bytes_done,
            total=max(seen.bytes_total, 1),
            table=str(seen.table),
        )


def _show_not_compared(result: VerifyResult, out: Console) -> None:
    for name, state in result.left_out.items():
        out.print(Text(f"{name}: not compared, not in step ({state})", style="yellow"))
    for name, why in result.not_compared.items():
        out.print(Text(f"{name}: not compared: {why}", style="red"))
    for name, columns in result.columns_left_out.items():
        listed = ", ".join(sorted(columns))
        text = f"{name}: not compared, the target is without by [schemaChanges]: {listed}"
        out.print(Text(text, style="yellow"))


def show_verify(result: VerifyResult, out: Console | None = None) -> None:
    """Print the result of a comparison; the last line is the verdict."""
    out = out or console()
    for table in result.tables:
        if table.equal:
            continue
        out.print(
            Text(
                f"{table.table}: {count_words(table.missing, 'row')} missing in the target, "
                f"{human_count(table.surplus)} surplus, {human_count(table.different)} different",
                style="red",
            )
        )
        for difference in table.named:
            out.print(Text(f"  {DIFFERENCES[difference.kind]}: {difference.key}"))
        hidden = table.missing + table.surplus + table.different - len(table.named)
        if hidden > 0:
            out.print(f"  and {human_count(hidden)} more")
    _show_not_compared(result, out)
    rows = sum(table.source_rows for table in result.tables)
    tables = count_words(len(result.tables), "table")
    facts = f"{tables}, {count_words(rows, 'row')}, at {result.at}"
    taken = f"in {human_seconds(result.seconds)}"
    if result.way:
        out.print(Text(f"compared by {result.way}", style="dim"))
    for done in result.repaired:
        out.print(
            Text(
                f"{done.target} repaired: {count_words(done.deleted, 'row')} deleted, "
                f"{human_count(done.written)} written from the source",
                style="green",
            )
        )
    if result.repaired:
        out.print(
            Text(f"source and target differed and are equal now: {facts}, {taken}", style="green")
        )
    elif result.not_compared and all(table.equal for table in result.tables):
        out.print(Text(f"what was compared is equal: {facts}, {taken}", style="bold red"))
    elif result.equal:
        out.print(Text(f"source and target are equal: {facts}, compared {taken}", style="green"))
    else:
        out.print(Text(f"source and target differ: {facts}, compared {taken}", style="bold red"))
