"""A configured pipeline as an engine sees it: what it may know of the log and of the bulk load.

Engines know neither the log nor the loader; they ask these functions for what they need of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model import TableName
from penstock.ports.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState:
    """Progress of the bulk load.

    Attributes:
        copied: All rows are loaded.
        finished: Keys and indexes are created as well.
        planned: Tables whose copy has been planned, by their names at the source.
    """

    copied: bool = False
    finished: bool = False
    planned: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Configured pipeline.

    Attributes:
        log_position: Returns the position of the newest flush point in the log's own state; 0 if
            there is no log yet, or nothing in it.
        bulk: Returns the state of the bulk load; read again at each call, because another process
            writes it.
    """

    config: Config
    log_position: Callable[[], int]
    bulk: Callable[[], BulkState]
