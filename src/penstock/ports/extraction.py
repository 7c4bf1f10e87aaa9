"""The engine of a source for the extract process, and its preparations at the source.

Not here: the engine itself (`source.py`), and the loop that drives it (`penstock.extract`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.model import TableDefinition
from penstock.ports.config import Config
from penstock.ports.extract_options import ExtractOptions
from penstock.ports.identity import SourceIdentity
from penstock.ports.pipeline import Pipeline
from penstock.ports.registry import part
from penstock.ports.source import SourceEngine


class Extraction(Protocol):
    """Part `extraction` of an engine."""

    def identity(self, config: Config, /) -> SourceIdentity:
        """Ask the source for its identity. Raises the errors of connecting."""
        ...

    def open_engine(
        self,
        pipeline: Pipeline,
        options: ExtractOptions,
        /,
        *,
        tables: Callable[[], list[TableDefinition]],
        stop: Callable[[], bool],
    ) -> AbstractContextManager[SourceEngine]:
        """Return the engine, for as long as changes are extracted.

        In mode data+change the handover surrounds it: entering waits until the position is
        captured, leaving until the bulk load no longer needs its snapshot, unless stop()
        returns True. tables: returns the tables that the pipeline captures. Raises
        LogWithoutBulkLoad and the engine's refusals.
        """
        ...

    def has_begun(self, pipeline: Pipeline, /) -> bool:
        """Return whether the log has a position, from which it continues in any case."""
        ...


def extraction_of(config: Config) -> Extraction:
    """Return the part `extraction` of the engine that a pipeline's source URL names."""
    found: Extraction = part(config.source.url, "extraction")
    return found
