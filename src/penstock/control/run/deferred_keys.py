"""The maker of the deferred unique keys, for the load process: the `KeyMaker` of a pipeline.

Not here: the time (`penstock.load.loader`), and the statements (`deferred_keys.py` of each target).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import structlog

from penstock.control.pipeline.servers import source_tables
from penstock.control.pipeline.table_requests import read_requests
from penstock.control.run.bulk_load import bulk_options
from penstock.host import faults
from penstock.load.deferred_keys import KeyMaker, put_deferred_keys, read_deferred_keys
from penstock.model import PenstockError, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import Capture
from penstock.ports.bulk import DeferredTable, add_deferred_keys
from penstock.ports.config import Config

logger = structlog.get_logger()


class DeferredKeyMaker(KeyMaker):
    """Maker of deferred keys, on a connection to the target.

    A table is removed from the file when it has all of its keys.
    """

    def __init__(self, config: Config) -> None:
        """Keep the configuration."""
        self._config = config

    def make(self, tables: Sequence[DeferredTable]) -> None:
        for table in tables:
            logger.info("unique keys are made", table=str(table.target), count=len(table.keys))
            faults.point("load.keys.before")
            notes = add_deferred_keys(self._config.target.url, table)
            if table.with_foreign_keys:
                notes += self._foreign_keys(table)
            for note in notes:
                logger.warning("deferred keys", note=note)
            faults.point("load.keys.made")
            put_deferred_keys(self._config.layout.state, (), instead_of=[table.source])

    def _foreign_keys(self, table: DeferredTable) -> list[str]:
        """Add the foreign keys of a table from a table sync; they may have to wait for rows."""
        config = narrow(self._config, table.source)
        try:
            definitions = source_tables(config)
            with closing(bulk_options(config).open_target()) as target:
                return target.add_foreign_keys(definitions)
        except PenstockError as error:
            return [f"foreign keys of {table.source} are not made: {error.message}"]


def narrow(config: Config, table: TableName) -> Config:
    """Return the same pipeline, for this table alone."""
    return replace(config, source=replace(config.source, tables=(as_pattern(table),)))


def unique_keys_wait(config: Config) -> bool:
    """Return whether a table of the bulk load still waits for unique keys."""
    requests = read_requests(config)
    return any(
        not table.with_foreign_keys and requests.of(table.source).capture is not Capture.REMOVED
        for table in read_deferred_keys(config.layout.state)
    )
