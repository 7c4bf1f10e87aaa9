"""The bulk load of a configured pipeline, which the load process runs before the first change.

Joins configuration, source and package `load`. Not here: the handover's point (`handover.py`), and
the copying of chunks (`penstock.load.bulk`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.control.pipeline.servers import server_pair, source_tables
from penstock.load.bulk import load_in_bulk
from penstock.load.bulk_options import BulkOptions, BulkResult
from penstock.load.bulk_progress import OnProgress
from penstock.load.session import Session
from penstock.model import TableDefinition
from penstock.ports.bulk import Planner
from penstock.ports.config import Config, OnTableError


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
