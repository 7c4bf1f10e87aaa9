"""Extractions in tests: setup, a run on a thread, and the content of the log afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.pipelines.stream import changes_of, run_sql
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import create_slot, ensure_publication
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor, Outcome
from penstock.log import Segment, list_segments, open_chain
from penstock.model import Run

SLOT = "penstock_extract"
QUICK = ExtractOptions(
    slot=SLOT, publication="p", exit_when_idle=True, idle_wait_s=0.5, flush_interval_s=0.3
)


def set_up(url: str, ddl: str, *, slot: str = SLOT) -> None:
    """Run the DDL, publish all tables of schema public, create the slot."""
    with connect(url, application_name="test") as sql:
        run_sql(sql, ddl)
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
        ensure_publication(catalog, "p", [table.name for table in tables])
    with open_replication(url, application_name="test") as replication:
        create_slot(replication, url, slot, snapshot=False)


def extractor_of(url: str, directory: Path, **more: Any) -> Extractor:
    """Return an extractor of all tables of schema public; QUICK unless options are given."""
    more.setdefault("options", QUICK)
    if "tables" not in more:
        with open_catalog(url) as catalog:
            more["tables"] = captured_tables(catalog, ["public.*"])
    options = more["options"]
    asked = {key: more.pop(key) for key in ("tables", "takes", "start_position") if key in more}
    engine = PostgresEngine(url, options=options, **asked)
    return Extractor(engine, directory, **more)


@contextmanager
def running(extractor: Extractor) -> Iterator[list[Outcome]]:
    """Run the extraction on a thread; its outcome or error is known at the end of the block."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcomes.append(extractor.run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield outcomes
    finally:
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def segments_of(directory: Path) -> Iterator[list[Segment]]:
    """Open the closed segments of a pipeline's log, for a with block."""
    with ExitStack() as stack:
        chain = open_chain(list_segments(directory / "log"))
        yield [stack.enter_context(segment) for segment in chain]


def log_changes(directory: Path) -> list[Any]:
    """Return every row in the closed segments, in order."""
    with segments_of(directory) as segments:
        return [c for s in segments for c in changes_of(Run(rows=tuple(s.rows())))]


class Stop:
    """A stop that the test requests."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self) -> bool:
        return self.asked.is_set()


def until(condition: Any, limit_s: float = 60.0) -> None:
    """Wait for a condition; fails if it does not hold in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
