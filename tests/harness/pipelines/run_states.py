"""Statuses of a run, as `penstock run` reads them: for tests of its view, and for its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.control.pipeline.running import ProcessState
from penstock.control.status.lag import Lag, TargetState
from penstock.control.status.status import Status
from penstock.control.tables.table_list import TableLine
from penstock.engines.postgres.positions import LsnPositions
from penstock.load.bulk_progress import BulkProgress, TableProgress
from penstock.load.loader_state import LoaderState
from penstock.model import FlushPoint, TableName
from penstock.ports.handover import STEPS, Handover
from penstock.ports.lag import LogEnd
from penstock.ports.target import Applied

LONG_NAMES = (
    "invoice_line_of_the_current_year_with_discounts_and_returns",
    "invoice_line_of_the_current_year_with_discounts_and_refunds",
    "payment",
)
CHUNKS = 4


class Hands:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def table(name: str, *, rows_done: int, rows_total: int = 1_200_000, done: bool = False) -> Any:
    """Return the progress of one table of the schema `accounting`."""
    return TableProgress(
        table=TableName("accounting", name),
        rows_done=rows_done,
        rows_total=rows_total,
        bytes_done=rows_done * 100,
        bytes_total=rows_total * 100,
        chunks_done=CHUNKS if done else int(rows_done > 0),
        chunks_total=CHUNKS,
        rows_per_s=18_000.0 if rows_done and not done else 0.0,
        eta_s=(rows_total - rows_done) / 18_000.0 if rows_done and not done else None,
    )


def bulk_load(*names: str, phase: str = "copying", rows_done: int = 300_000) -> BulkProgress:
    """Return a load of these tables, a quarter done; all done in other phases than copying."""
    is_over = phase != "copying"
    tables = tuple(table(name, rows_done=rows_done, done=is_over) for name in names)
    rows = sum(one.rows_done for one in tables)
    return BulkProgress(
        phase=phase,
        tables=tables,
        rows_done=rows,
        rows_total=sum(one.rows_total for one in tables),
        bytes_done=rows * 100,
        bytes_total=sum(one.bytes_total for one in tables),
        rows_per_s=18_000.0 * len(names) if rows and not is_over else 0.0,
        eta_s=50.0 if rows and not is_over else None,
    )


def loader(
    state: str, *, batches: int = 0, rows: int = 1200, is_spark_starting: bool = False
) -> LoaderState:
    """Return the report of the load process 12. rows: those of the last batch."""
    return LoaderState(
        pid=12,
        state=state,
        is_spark_starting=is_spark_starting,
        batch_count=batches,
        batch_rows=rows if batches else 0,
        batch_tables=3 if batches else 0,
        seconds={"stage": 0.5, "apply": 0.3} if batches else {},
    )


def refused_line(name: str) -> TableLine:
    """Return a table that cannot be captured."""
    return TableLine(
        table=TableName("shop", name),
        state="refused",
        code="PG12",
        error="has no primary key and replica identity DEFAULT",
        hint="Run: alter table ... replica identity full;",
    )


def run_status(
    *,
    bulk: BulkProgress | None = None,
    loader: LoaderState | None = None,
    tables: tuple[TableLine, ...] = (),
    pids: dict[str, int] | None = None,
    extracted: tuple[int, int] = (48_210, 1_310),
    loaded: tuple[int, int] = (0, 0),
    lag_s: float | None = None,
) -> Status:
    """Return a status of the pipeline `shop` in mode data+change.

    Args:
        bulk: The bulk load.
        loader: The report of the load process, which is process 12.
        tables: Tables with requests.
        pids: Processes that run; None for all.
        extracted: Rows and transactions in the log.
        loaded: Rows and transactions in the target.
        lag_s: The lag; None if it is not known.
    """
    handover = Handover(slot="shop", position="0/1690000")
    for number in (1, 2):
        handover = handover.with_step(number, f"{STEPS[number - 1]}: at 0/1690000")
    running = {"run": 10, "load": 12, "extract": 13} if pids is None else pids
    position = 0x16B5A50
    return Status(
        pipeline="shop",
        mode="data+change",
        directory=Path("/tmp/shop"),
        identity=None,
        processes=tuple(ProcessState(name=name, pid=pid) for name, pid in running.items()),
        handover=handover,
        positions=LsnPositions(),
        log=LogEnd(
            log_id="log",
            end=FlushPoint(position=position, gsn=extracted[0], trx=extracted[1]),
            segments=3,
            size_bytes=5_340_000,
        ),
        target=TargetState(
            applied=Applied(gsn=loaded[0], trx=loaded[1], position=position - 0x9C0), bulk=bulk
        ),
        lag=None
        if lag_s is None
        else Lag(
            seconds=lag_s,
            slot_bytes=100,
            applied_bytes=2496,
            rows=extracted[0] - loaded[0],
            extracting=True,
            source_position=position,
            log_position=position,
            applied_position=position - 0x9C0,
            applied_commit_us=0,
            positions=LsnPositions(),
        ),
        tables=tables,
        loader=loader,
    )


def following(number: int) -> Status:
    """Return a status that follows changes: 4,000 rows more for each number."""
    rows, transactions = 48_210 + 4000 * number, 1_310 + 100 * number
    return run_status(
        bulk=bulk_load("orders", "customer", "payment", phase="done"),
        loader=loader("waiting", batches=3),
        extracted=(rows, transactions),
        loaded=(47_210 + 3900 * number, 1_300 + 98 * number),
        lag_s=0.8,
    )


LAGGING = tuple(following(number) for number in range(6))


def told_run() -> list[tuple[Status, float]]:
    """Return the statuses of a run from its start to changes, each with the seconds it lasts."""
    starting = loader("copying", is_spark_starting=True)
    altered = loader("waiting", batches=3)
    altered.note_alteration("shop.orders", "column gift_note was added as text")
    paused = TableLine(table=TableName("shop", "review_import"), state="paused")
    last = following(6)
    return [
        (run_status(loader=starting, extracted=(0, 0)), 4.0),
        (run_status(loader=loader("copying"), extracted=(310, 12)), 3.0),
        *((following(number), 2.0) for number in range(5)),
        (replace(following(5), loader=altered), 2.0),
        (replace(last, loader=altered, tables=(paused,)), 2.0),
    ]
