"""A configured pipeline as an engine sees it: what it may know of the log and of the bulk load.

Engines know neither the log nor the loader; what they have to know of them, they ask these
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model import TableName
from penstock.ports.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState:
    """How far the bulk load is.

    copied: all rows are there; finished: keys and indexes as well. planned: tables whose copy has
    been planned, by their names at the source.
    """

    copied: bool = False
    finished: bool = False
    planned: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A configured pipeline.

    log_position: of the newest flush point that the log's own state knows; 0 where there is no log
    yet, or nothing in it. bulk: read anew at each call, for another process writes it.
    """

    config: Config
    log_position: Callable[[], int]
    bulk: Callable[[], BulkState]
