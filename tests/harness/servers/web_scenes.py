"""Scenes of the web interface: recorded readings, served as they are, for pictures.

Nothing is read from a server, and no clock goes: the same scene always gives the same page.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.pipelines.pipeline import pipeline
from harness.pipelines.readings import NOW_US, lag
from penstock.control.doctor.past_errors import PastError
from penstock.control.pipeline.outages import Outage, Retry
from penstock.control.pipeline.running import ProcessState
from penstock.control.status.consumer_list import ConsumerLine
from penstock.control.status.lag import TargetState
from penstock.control.status.status import Status, TableFacts, TableState
from penstock.control.tables.change_counts import ChangeCounts, KindCounts
from penstock.engines.postgres.positions import LsnPositions
from penstock.host.http_server import http_server
from penstock.load.bulk_progress import BulkProgress, TableProgress
from penstock.model import FlushPoint, PenstockError, TableName
from penstock.ports.handover import STEPS, Handover, HandoverStep
from penstock.ports.lag import LogEnd, Retention
from penstock.ports.target import Applied
from penstock.web.access import Access, Hosts
from penstock.web.app import Interface
from penstock.web.reading import PipelineWatch, Reading, Sample, Speeds
from penstock.web.tasks import Stage, TaskKind, Tasks, TaskView
from penstock.web.watching import Trouble

SOURCE_URL = "postgresql://repl:secret@db1.example:5432/shop"
TARGET_URL = "mysql://loader:secret@db2.example:3306/shop"
SECONDS = 600
BEGUN_US = NOW_US - 40_000_000
HANDED_OVER = "2026-11-18T11:02:40+00:00"
SHOP = (
    ("address", 48_210),
    ("cart", 112_400),
    ("category", 64),
    ("customer", 40_000),
    ("order_line", 1_284_300),
    ("orders", 412_900),
    ("payment", 398_120),
    ("product", 12_450),
    ("review", 87_300),
    ("shipment", 301_775),
    ("stock", 12_450),
    ("visit", 2_410_000),
)
LONG = "invoice_line_of_the_current_year_with_discounts_and_returns"


def wave(second: int, *, base: float, height: float, period: float) -> float:
    """Return a value that looks measured: two waves and a saw, never below 0."""
    turn = 2 * math.pi * second / period
    rough = ((second * 7919) % 101) / 101 - 0.5
    return max(0.0, base + height * (math.sin(turn) * 0.5 + math.sin(3.7 * turn) * 0.3 + rough))


def history(
    *, lag_s: float | None = 0.5, per_s: float = 18.0, grows: bool = False, seconds: int = SECONDS
) -> tuple[Sample, ...]:
    """Return a sample each second. grows: the lag, up to lag_s. Without lag_s it is not known."""
    return tuple(
        Sample(
            at_s=float(second),
            lag_s=None
            if lag_s is None
            else lag_s * second / seconds
            if grows
            else wave(second, base=lag_s, height=lag_s, period=170),
            extracted_transactions=wave(second, base=per_s, height=per_s / 2, period=240),
            loaded_transactions=wave(second - 2, base=per_s, height=per_s / 2, period=240),
            consumer_lags_s={
                "search": wave(second, base=1.2, height=1.2, period=90),
                "audit": 2.0 + second / 5,
            },
        )
        for second in range(seconds)
    )


def shop_bulk(*, share: float = 1.0, tables: Sequence[tuple[str, int]] = SHOP) -> BulkProgress:
    """Return the load of a shop; the first tables are done, the last ones wait."""
    found = []
    for number, (name, rows) in enumerate(tables):
        part = min(1.0, max(0.0, share * len(tables) - number * 0.8))
        is_done = part == 1.0
        done = rows if is_done else int(rows * part * 0.97)
        found.append(
            TableProgress(
                table=TableName("public", name),
                rows_done=done,
                rows_total=rows,
                bytes_done=done * 120,
                bytes_total=rows * 120,
                chunks_done=4 if is_done else int(part * 4),
                chunks_total=4,
                rows_per_s=0.0 if is_done or not done else 24_300.0 + 1_000 * number,
                eta_s=None if is_done or not done else (rows - done) / 24_300,
            )
        )
    done = sum(one.rows_done for one in found)
    total = sum(one.rows_total for one in found)
    return BulkProgress(
        phase="done" if share == 1.0 else "copying",
        tables=tuple(found),
        rows_done=done,
        rows_total=total,
        bytes_done=done * 120,
        bytes_total=total * 120,
        rows_per_s=71_400.0 if share < 1.0 else 0.0,
        bytes_per_s=71_400.0 * 120,
        eta_s=(total - done) / 71_400 if share < 1.0 else None,
    )


def shop_status(
    *,
    bulk: BulkProgress | None = None,
    lag_s: float | None = 0.6,
    action: str = "RUN",
    runs: bool = True,
    outages: tuple[Outage, ...] = (),
    retries: tuple[Retry, ...] = (),
) -> Status:
    """Return a status of the shop; without lag_s the lag is not known."""
    bulk = shop_bulk() if bulk is None else bulk
    is_loaded = bulk.phase == "done"
    steps = tuple(
        HandoverStep(number=number, name=name, text=f"{name}: at 0/5A21F08", at=HANDED_OVER)
        for number, name in enumerate(STEPS[: 4 if is_loaded else 2], 1)
    )
    handover = Handover(slot="shop", position="0/5A21F08", steps=steps)
    pids = {"run": 4711, "extract": 4719, "load": 4718}
    position = 0x6B5A50C8
    return Status(
        pipeline="shop",
        mode="data+change",
        directory=Path("shop"),
        identity=None,
        processes=tuple(
            ProcessState(name=name, pid=pid if runs else 0) for name, pid in pids.items()
        ),
        handover=handover,
        log=LogEnd(
            log_id="log",
            end=FlushPoint(
                position=position, gsn=1_204_318, trx=84_120, commit_time_us=NOW_US - 900_000_000
            ),
            number_next=12,
            segments=11,
            size_bytes=104_857_600,
        ),
        target=TargetState(
            applied=Applied(
                segment=10, gsn=1_204_240, trx=84_112, position=position - 9000, commit_time_us=1
            ),
            action=action,
            bulk=bulk,
        ),
        lag=None
        if lag_s is None
        else replace(
            lag(lag_s),
            source_position=position + 3000,
            log_position=position,
            applied_position=position - 9000,
            rows=78,
            slot_bytes=3000,
            applied_bytes=12_000,
            positions=LsnPositions(),
        ),
        positions=LsnPositions(),
        outages=outages,
        retries=retries,
        read_us=NOW_US,
        target_read_us=NOW_US,
    )


def shop_reading(status: Status | None = None, **changed: object) -> Reading:
    """Return a reading of a busy shop."""
    status = status or shop_status()
    facts = tuple(
        TableFacts(table=TableName("public", name), state=TableState.FOLLOWED, share=1.0)
        for name, _ in SHOP
    )
    whole = Reading(
        number=1,
        at_us=NOW_US,
        at_s=SECONDS - 0.5,
        status_at_us=NOW_US,
        status=status,
        processes=status.processes,
        bulk=status.target.bulk,
        speeds=Speeds(
            extracted_rows=312.0,
            loaded_rows=309.0,
            extracted_transactions=23.0,
            loaded_transactions=25.0,
        ),
        retention=Retention(
            size_bytes=3 * 2**20, age_s=340.0, left_bytes=2**34, state="reserved", expires_s=None
        ),
        counts=ChangeCounts(
            tables={
                TableName("public", name): KindCounts(
                    insert=rows // 7, update=rows // 19, delete=rows // 240, truncate=0
                )
                for name, rows in SHOP
            },
            gsn_first=1,
            complete=True,
        ),
        tables=facts,
        history=history(),
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


def past_error(minutes: int, code: str, error: str, hint: str, command: str = "load") -> PastError:
    """Return an error that ended a process some minutes ago."""
    hour, minute = divmod(11 * 60 + 6 - minutes, 60)
    return PastError(
        at=f"2026-11-18T{hour:02d}:{minute:02d}:40+00:00",
        command=command,
        code=code,
        error=error,
        hint=hint,
    )


DISK_FULL = past_error(
    4,
    "HS13",
    "cannot write /var/lib/penstock/billing/log/12.ckt: No space left on device, 0 bytes free",
    "Make room on this file system, then start the same command again.",
    "extract",
)
REFUSED = "connection to server at db2.example, port 3306 failed: Connection refused"
TARGET_AWAY = Outage(
    side="target",
    code="HS22",
    error=REFUSED,
    hint="Check host and port in the URL, and that the server runs.",
    since_us=NOW_US - 75_000_000,
)


def away() -> Reading:
    """Return a pipeline whose target does not answer."""
    retry = Retry(
        process="load",
        error=REFUSED,
        since_us=NOW_US - 75_000_000,
        next_us=NOW_US + 3_000_000,
    )
    trouble = Trouble(
        code="HS22",
        error=f"target unreachable: {TARGET_AWAY.error}",
        hint=TARGET_AWAY.hint,
        since_us=TARGET_AWAY.since_us,
    )
    return shop_reading(
        shop_status(lag_s=None, outages=(TARGET_AWAY,), retries=(retry,)),
        troubles=(trouble,),
        status_at_us=NOW_US - 75_000_000,
        history=history(lag_s=75.0, grows=True),
        errors=(
            DISK_FULL,
            past_error(181, "HS22", REFUSED, TARGET_AWAY.hint),
        ),
    )


def refused_table(name: str) -> TableFacts:
    """Return a table that cannot be followed."""
    return TableFacts(
        table=TableName("public", name),
        state=TableState.REFUSED,
        share=None,
        code="PG12",
        error="has no primary key and replica identity DEFAULT",
        hint=f'Run: alter table "public"."{name}" replica identity full;',
    )


STILL = Speeds(extracted_rows=0.0, loaded_rows=0.0)


def one_of_many(number: int) -> Reading:
    """Return a reading of one of many pipelines."""
    if number % 23 == 7:
        return away()
    if number % 31 == 11:
        return shop_reading(tables=(refused_table("import"),))
    if number % 29 == 13:
        return shop_reading(shop_status(lag_s=340.0), history=history(lag_s=340.0, grows=True))
    if number % 17 == 5:
        status = shop_status(bulk=shop_bulk(share=0.5), lag_s=None)
        return shop_reading(status, history=history(lag_s=None), speeds=Speeds())
    if number % 19 == 3:
        return shop_reading(shop_status(lag_s=55.0, action="PAUSE"), speeds=STILL)
    lag_s = 0.2 + number % 5 * 0.3
    speeds = Speeds(extracted_rows=number * 37.0, loaded_rows=number * 37.0)
    return shop_reading(
        shop_status(lag_s=lag_s), history=history(lag_s=lag_s, per_s=5.0 + number), speeds=speeds
    )


def few() -> dict[str, Reading]:
    """Return the readings of seven pipelines, one in each state."""
    billing = shop_status(lag_s=247.0, runs=False)
    return {
        "accounts": shop_reading(history=history(lag_s=0.3)),
        "billing": shop_reading(billing, errors=(DISK_FULL,), speeds=STILL),
        "catalogue": shop_reading(
            shop_status(bulk=shop_bulk(share=0.55), lag_s=None),
            speeds=Speeds(extracted_rows=41.0),
            history=history(lag_s=None),
        ),
        "events": shop_reading(
            shop_status(lag_s=212.0),
            history=history(lag_s=212.0, grows=True),
            speeds=Speeds(extracted_rows=9_120.0, loaded_rows=7_400.0),
        ),
        "orders": away(),
        "shop": shop_reading(errors=(past_error(40, "HS22", "connection lost", ""),)),
        "tickets": shop_reading(shop_status(lag_s=55.0, action="PAUSE"), speeds=STILL),
    }


CONSUMERS = (
    ConsumerLine(
        name="audit",
        state="failed",
        saved=1_180_400,
        lag_events=23_918,
        lag_bytes=2_900_000,
        lag_seconds=122.0,
        links=3,
        link_bytes=28_000_000,
        held_bytes=9_400_000,
        error="audit.py: PermissionError: /srv/audit/2026-11.jsonl",
        hint="penstock consume shop.toml audit",
    ),
    ConsumerLine(
        name="search",
        state="reading",
        pid=4725,
        saved=1_204_200,
        lag_events=118,
        lag_bytes=14_200,
        lag_seconds=1.1,
        links=1,
        link_bytes=9_400_000,
        held_bytes=0,
    ),
)
FINDINGS = (
    {
        "severity": "W",
        "code": "PG25",
        "what": "max_slot_wal_keep_size of the source is -1: no limit",
        "why": "a pipeline that is stopped for long fills the server's disk",
        "command": "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();",
    },
    {
        "severity": "I",
        "code": "PG30",
        "what": "the schemas of the wanted tables have 12 sequences",
        "why": "their state is not replicated: set them when the applications move to the target",
        "command": "select setval(pg_get_serial_sequence('TABLE', 'COLUMN'), max(COLUMN)) "
        "from TABLE;",
    },
)
DOCTOR = TaskView(
    stage=Stage.DONE,
    number=9,
    began_us=BEGUN_US,
    ended_us=NOW_US,
    findings=FINDINGS,
    report={"checks_done": 63, "checks_skipped": 0},
)
VERIFY = TaskView(
    stage=Stage.DONE,
    number=9,
    began_us=BEGUN_US,
    ended_us=NOW_US,
    result={
        "equal": True,
        "position": "0/6B5A50C8",
        "way": "checksums of ranges",
        "seconds": 4.212,
        "hold_seconds": 0.08,
        "not_compared": {},
        "tables": [
            {
                "table": f"public.{name}",
                "equal": True,
                "source_rows": rows,
                "target_rows": rows,
                "missing": 0,
                "surplus": 0,
                "different": 0,
                "named": [],
            }
            for name, rows in SHOP
        ],
    },
)


class FixedTasks(Tasks):
    """Doctor and verify that have ended."""

    def view(self, name: str, kind: TaskKind) -> TaskView:
        """Return the recorded result."""
        del name
        return DOCTOR if kind is TaskKind.DOCTOR else VERIFY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A page in a state.

    Attributes:
        readings: Returns the readings of its pipelines, by name.
        path: The address below the server's.
        size: Width and height of the window in pixels.
        is_dark: Whether the visitor prefers dark colours.
        is_shown: Whether a page of the documentation shows its picture.
    """

    readings: Callable[[], dict[str, Reading]]
    path: str = "/"
    size: tuple[int, int] = (1000, 860)
    is_dark: bool = False
    is_shown: bool = False


def one(reading: Callable[[], Reading]) -> Callable[[], dict[str, Reading]]:
    """Return the readings of a single pipeline, `shop`."""
    return lambda: {"shop": reading()}


def many() -> dict[str, Reading]:
    """Return the readings of 80 pipelines."""
    names = [f"{area}-{part}" for area in AREAS for part in PARTS]
    return {name: one_of_many(number) for number, name in enumerate(names)}


AREAS = ("berlin", "lagos", "lima", "milan", "osaka", "paris", "quito", "tokyo")
PARTS = (
    *("accounts", "billing", "catalogue", "events", "orders"),
    *("payments", "search-with-a-long-name", "shop", "stock", "tickets"),
)


def many_tables() -> Reading:
    """Return a pipeline with 500 tables; three are refused, one of them has a long name."""
    plain = [
        TableFacts(
            table=TableName("warehouse", f"{name}_{number:02d}"),
            state=TableState.FOLLOWED,
            share=1.0,
        )
        for number in range(42)
        for name, _ in SHOP
    ]
    wrong = [refused_table("import"), refused_table(LONG), refused_table("scratch")]
    paused = TableFacts(
        table=TableName("public", "audit"), state=TableState.PAUSED, share=1.0, wanted="following"
    )
    return shop_reading(tables=(*plain[:200], *wrong, paused, *plain[200:496]))


def loading() -> Reading:
    """Return a pipeline in its bulk load."""
    return shop_reading(
        shop_status(bulk=shop_bulk(share=0.55), lag_s=None),
        speeds=Speeds(extracted_rows=41.0, extracted_transactions=6.0),
        history=history(seconds=40),
        at_s=39.5,
    )


def consuming() -> Reading:
    """Return a pipeline with two consumers, one of which failed."""
    return shop_reading(consumers=CONSUMERS)


PAGE = "/pipelines/shop"
PHONE = (320, 900)
SCENES = {
    "web": Scene(readings=one(shop_reading), path=f"{PAGE}#replication", is_shown=True),
    "web-index": Scene(readings=few, size=(1000, 520), is_shown=True),
    "index-dark": Scene(readings=few, size=(1000, 520), is_dark=True),
    "web-bulk": Scene(readings=one(loading), path=f"{PAGE}#bulk", is_shown=True),
    "web-consumers": Scene(
        readings=one(consuming), path=f"{PAGE}#consumers", size=(1000, 960), is_shown=True
    ),
    "web-doctor": Scene(
        readings=one(shop_reading), path=f"{PAGE}#doctor", size=(1000, 760), is_shown=True
    ),
    "web-verify": Scene(
        readings=one(shop_reading), path=f"{PAGE}#verify", is_dark=True, is_shown=True
    ),
    "web-phone": Scene(readings=one(shop_reading), path=PAGE, size=PHONE, is_shown=True),
    "phone-list": Scene(readings=few, size=PHONE),
    "phone-errors": Scene(readings=one(away), path=f"{PAGE}#errors", size=PHONE, is_dark=True),
    "errors": Scene(readings=one(away), path=f"{PAGE}#errors"),
    "errors-dark": Scene(readings=one(away), path=f"{PAGE}#errors", is_dark=True),
    "many": Scene(readings=many, size=(1280, 900)),
    "many-dark": Scene(readings=many, size=(1280, 900), is_dark=True),
    "many-tables": Scene(readings=one(many_tables), path=f"{PAGE}#tables", size=(1000, 1000)),
    "start": Scene(readings=dict, size=(1000, 700)),
}


@contextmanager
def serve_readings(
    folder: Path, readings: dict[str, Reading]
) -> Iterator[tuple[str, list[PipelineWatch]]]:
    """Serve these readings for the block; yield the server's address and the watches."""
    watches = []
    for name, reading in readings.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        config = pipeline(folder / name, SOURCE_URL, TARGET_URL, name=name, file=f"{name}.toml")
        watch = PipelineWatch(config)
        watch.latest = reading
        watches.append(watch)
    ended: list[bool] = []
    site = Interface(
        watches, access=Access(None), hosts=Hosts("127.0.0.1"), ended=lambda: bool(ended)
    )
    site.tasks = FixedTasks()
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        with http_server(
            site.app,
            listener,
            name="web",
            end_requests_s=1,
            end_within_s=5,
            not_started=lambda: PenstockError("the server of the scenes did not start"),
            end_streams=lambda: ended.append(True),
        ):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", watches
    finally:
        site.close()
        listener.close()
