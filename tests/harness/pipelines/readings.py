"""Readings for tests of the web interface: of a pipeline at full work, without any server."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.past_errors import PastError
from penstock.control.pipeline.outages import Outage
from penstock.control.pipeline.running import ProcessState
from penstock.control.status.lag import Lag, TargetState
from penstock.control.status.status import Status, table_facts
from penstock.control.tables.change_counts import ChangeCounts, KindCounts
from penstock.engines.postgres.positions import LsnPositions
from penstock.load.bulk_progress import BulkProgress, TableProgress
from penstock.load.job_figures import SparkReport, TaskFigures, figures_of
from penstock.load.loader_state import LoaderState
from penstock.model import FlushPoint, TableName
from penstock.ports.handover import Handover
from penstock.ports.lag import LogEnd, Retention
from penstock.ports.lake import TableFacts
from penstock.ports.progress import ProgressRow
from penstock.ports.target import Applied
from penstock.web.reading import PipelineWatch, Reading, Sample, Speeds
from penstock.web.watching import Trouble

NOW_US = 1_795_000_000_000_000
ORDERS = TableName("public", "orders")
HOSTILE = TableName("public", '<script>alert("1\\2")\n</script>')
SOURCE_URL = "postgresql://repl:source-password@127.0.0.1:1/shop"
WHEN = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - as the column without time zone gives it
TARGET_URL = "postgresql://load:target-password@127.0.0.1:1/shop"


def bulk(*, done: bool = False) -> BulkProgress:
    """Return a bulk load of two tables, one of them complete."""
    tables = (
        TableProgress(
            table=ORDERS,
            rows_done=500,
            rows_total=1000,
            bytes_done=2**20,
            bytes_total=2**21,
            chunks_done=2 if done else 1,
            chunks_total=2,
            rows_per_s=100.0,
            eta_s=5.0,
        ),
        TableProgress(table=HOSTILE, rows_done=7, rows_total=7, chunks_done=1, chunks_total=1),
    )
    return BulkProgress(
        phase="done" if done else "copying",
        tables=tables,
        rows_done=507,
        rows_total=1007,
        bytes_done=2**20,
        bytes_total=2**21,
        rows_per_s=100.0,
        bytes_per_s=2.0**18,
        eta_s=4.0,
    )


def status(*, done: bool = True, action: str = "RUN", lag_s: float | None = 1.5) -> Status:
    """Return a pipeline that follows changes; done: its bulk load."""
    row = ProgressRow(source="0.ckt", mark="17", start_time=WHEN, finish_time=None)
    return Status(
        pipeline="shop",
        mode="data+change",
        directory=Path("/nowhere"),
        identity=None,
        processes=tuple(
            ProcessState(name=name, pid=pid)
            for name, pid in (("run", 10), ("extract", 11), ("load", 12))
        ),
        handover=Handover(slot="s", tables=(str(ORDERS),)).with_step(1, "the slot was made"),
        log=LogEnd(
            log_id="log",
            end=FlushPoint(position=0x900, gsn=1200, trx=300, commit_time_us=NOW_US),
            number_next=3,
            segments=2,
            size_bytes=4096,
        ),
        target=TargetState(
            applied=Applied(segment=1, gsn=1000, trx=250, position=0x800, commit_time_us=NOW_US),
            action=action,
            extracted=(row,),
            loaded=(row,),
            bulk=bulk(done=done),
            lake={
                str(ORDERS): TableFacts(files=3, rows=1000, dead_rows=40, size_bytes=4096),
                str(HOSTILE): TableFacts(files=1, rows=7, versions=12, missing=2),
            },
        ),
        lag=None if lag_s is None else lag(lag_s),
        positions=LsnPositions(),
        outages=() if lag_s is not None else (source_away(),),
        read_us=NOW_US,
        target_read_us=NOW_US,
    )


def source_away() -> Outage:
    """Return an outage of the source for a minute."""
    return Outage(
        side="source",
        code="HS22",
        error="the source does not answer",
        hint="Start it.",
        since_us=NOW_US - 60_000_000,
    )


def lag(seconds: float) -> Lag:
    """Return a lag of so many seconds."""
    return Lag(
        seconds=seconds,
        slot_bytes=100,
        applied_bytes=2048,
        rows=200,
        extracting=True,
        source_position=0x1000,
        log_position=0x900,
        applied_position=0x800,
        applied_commit_us=NOW_US,
    )


def spark_report(*, pid: int = 12, ui: str = "") -> SparkReport:
    """Return a report of two jobs; 12 is the load process."""
    tasks = [TaskFigures(of=str(HOSTILE), rows=7, size_bytes=2048, seconds=1.5)]
    report = SparkReport(pid=pid, ui=ui)
    for group in ("bulk load", "changes"):
        report.add(figures_of(group, f"work on {HOSTILE}", tasks, at_us=NOW_US))
    return report


def reading(found: Status | None = None, **changed: Any) -> Reading:
    """Return a reading of a status, with two minutes of history."""
    found = found or status()
    history = tuple(
        Sample(
            at_s=float(second),
            lag_s=None if second == 50 else second % 7 / 2,
            extracted_transactions=second / 2,
            loaded_transactions=second / 3,
        )
        for second in range(120)
    )
    whole = Reading(
        number=5,
        at_us=NOW_US,
        at_s=119.5,
        status_at_us=NOW_US,
        status=found,
        processes=found.processes,
        bulk=found.target.bulk,
        spark=spark_report(),
        speeds=Speeds(
            extracted_rows=12.0,
            loaded_rows=11.0,
            extracted_transactions=3.0,
            loaded_transactions=2.0,
        ),
        retention=Retention(
            size_bytes=3 * 2**20,
            age_s=5400.0,
            left_bytes=2**30,
            state="reserved",
            expires_s=7 * 86_400.0,
        ),
        counts=ChangeCounts(
            tables={ORDERS: KindCounts(insert=4, update=3, delete=2, truncate=1)},
            gsn_first=1,
            complete=True,
        ),
        tables=tuple(table_facts(found, {ORDERS, HOSTILE})),
        errors=(
            PastError(
                at="2026-11-21T10:00:00+00:00",
                command="load",
                code="TG99",
                error="table <b>x</b> is full",
                hint="Run: vacuum full;",
            ),
        ),
        loader=loader(),
        history=history,
    )
    return replace(whole, **changed)


def loader() -> LoaderState:
    """Return a loader that has measured a hundred heartbeats and some commits."""
    state = LoaderState(pid=12)
    for number in range(100):
        state.heartbeats.observe(0.2 if number < 98 else 4.0)
    state.commits.observe(0.5)
    return state


def trouble() -> Trouble:
    """Return the error of an unavailable target."""
    return Trouble(code="HS22", error="no connection to the target", hint="Start the server.")


def watch(folder: Path, found: Reading | None = None, *, name: str = "shop") -> PipelineWatch:
    """Return a watch that never looks: it holds this reading."""
    config = pipeline(folder, SOURCE_URL, TARGET_URL, name=name, file=f"{name}.toml")
    made = PipelineWatch(config)
    made.latest = found or reading()
    return made
