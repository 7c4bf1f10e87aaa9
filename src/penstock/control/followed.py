"""Which tables a pipeline has followed so far, dropped ones too.

Not here: the catalogue as it is now (`source.postgres.catalog`).
"""

from __future__ import annotations

from penstock.control.config import Config
from penstock.host.files import REAL_FILES, Files
from penstock.log import PipelineLayout, checkpoint
from penstock.model import TableName
from penstock.source.postgres.ddl_watch import WatchState
from penstock.source.postgres.engine import WATCH_FILE


def followed(layout: PipelineLayout, files: Files = REAL_FILES) -> WatchState | None:
    """What a pipeline's extraction remembers of the tables it follows; None before its first look.

    Raises CheckpointCorrupt.
    """
    return checkpoint.load(layout.state / WATCH_FILE, WatchState, files)


def is_followed(config: Config, table: TableName) -> bool:
    """Whether a table that the configuration takes is followed; before a first run all are."""
    if config.source.is_mysql:
        return True
    state = followed(config.layout)
    return state is None or table in state.names


def followed_names(config: Config) -> frozenset[TableName]:
    """The tables that the change log follows, or did until they were dropped at the source.

    Empty before changes were extracted. Raises CheckpointCorrupt.
    """
    state = followed(config.layout)
    return state.names if state is not None else frozenset()
