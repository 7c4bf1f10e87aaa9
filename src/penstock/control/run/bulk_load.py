"""The bulk load of a configured pipeline, which the load process runs before the first change.

Joins configuration, source and package `load`. The load process waits for the position of the
handover and reads at its point; the extract process takes Wirekite's four steps, in its
engine's way, and keeps them in state/handover.json. Not here: these steps (`handover` of each
engine), the file (`penstock.ports.handover`), the copying of chunks (`penstock.load.bulk`), the
unique keys that are created after the load (`penstock.load.deferred_keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from penstock.control.pipeline.servers import server_pair, source_tables
from penstock.control.pipeline.table_requests import read_requests
from penstock.host.clock import REAL_CLOCK
from penstock.load.bulk import (
    BulkOptions,
    BulkResult,
    load_in_bulk,
)
from penstock.load.bulk_progress import OnProgress
from penstock.load.deferred_keys import read_deferred_keys
from penstock.load.session import Session
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import Capture
from penstock.ports.bulk import (
    Planner,
    Planning,
    Point,
    open_planner,
)
from penstock.ports.config import Config, OnTableError
from penstock.ports.handover import Handover, HandoverPhase, HandoverView, read_handover
from penstock.ports.positions import kind_of


def bulk_options(config: Config) -> BulkOptions:
    """Return where this pipeline's bulk load reads, writes and keeps its state."""
    return BulkOptions(
        source_url=config.source.url,
        target_url=config.target.url,
        state_directory=config.layout.state,
        run_directory=config.layout.run,
        namespaces=config.target.map,
        max_threads=config.data_loader.max_threads,
        servers=server_pair(config),
        keys_directory=config.layout.state if config.pipeline.mode.has_change else None,
        isolates=config.change_loader.on_table_error is OnTableError.ISOLATE,
    )


def bulk_load(
    config: Config,
    session: Session,
    planner: Planner,
    *,
    definitions: Sequence[TableDefinition] | None = None,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> BulkResult:
    """Load the tables that are not loaded yet. Raises the errors of `load_in_bulk`.

    Call it with the handover's planner (`handover.bulk_planner`) in mode data+change, with that of
    `source_planner.data_planner` in mode data.
    """
    tables = source_tables(config) if definitions is None else definitions
    return load_in_bulk(
        session, bulk_options(config), tables, planner, on_progress=on_progress, stop=stop
    )


def add_table_foreign_keys(config: Config, table: TableName) -> list[str]:
    """Add the foreign keys of a table from a table sync; they may have to wait for rows.

    Returns the shortcomings.
    """
    config = narrow(config, table)
    try:
        definitions = source_tables(config)
        with closing(bulk_options(config).open_target()) as target:
            return target.add_foreign_keys(definitions)
    except PenstockError as error:
        return [f"foreign keys of {table} are not made: {error.message}"]


def narrow(config: Config, table: TableName) -> Config:
    """Return the same pipeline, for this table alone."""
    return replace(config, source=replace(config.source, tables=(as_pattern(table),)))


def has_deferred_keys(config: Config) -> bool:
    """Return whether a table of the bulk load still has deferred keys."""
    requests = read_requests(config)
    return any(
        not table.with_foreign_keys and requests.of(table.source).capture is not Capture.REMOVED
        for table in read_deferred_keys(config.layout.state)
    )


__all__ = ["HandoverView", "bulk_planner", "read_handover", "wait_for_point"]


POLL_INTERVAL_S = 0.2


class HandoverFailed(PenstockError):
    """The extract process reports that the handover failed."""

    code = "CT34"


def wait_for_point(
    config: Config, *, stop: Callable[[], bool] = lambda: False, timeout_s: float = float("inf")
) -> Handover | None:
    """Wait, in the load process, until the position is captured; return None if stopped before.

    Raises HandoverFailed after timeout_s.
    """
    deadline_s = REAL_CLOCK.monotonic_s() + timeout_s
    while not stop():
        state = read_handover(config)
        if state is not None and state.position and state.phase is not HandoverPhase.STOPPED:
            return state
        if REAL_CLOCK.monotonic_s() > deadline_s:
            raise HandoverFailed(
                f"no position was captured within {timeout_s:.0f} s",
                hint=f"Start the other half: penstock extract {config.path.name}",
            )
        REAL_CLOCK.sleep(POLL_INTERVAL_S)
    return None


def bulk_planner(config: Config) -> Planning:
    """Return the planner of the bulk load in mode data+change, with the handover's point."""

    def first() -> Point | None:
        state = read_handover(config)
        return None if state is None else state.point(kind_of(config))

    return open_planner(config, first=first)
