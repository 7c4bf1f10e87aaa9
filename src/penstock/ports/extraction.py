"""Makes a source's engine for the extract process, and what it needs at the source.

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
    """An engine's part `extraction`."""

    def identity(self, config: Config, /) -> SourceIdentity:
        """Ask the source for its identity. Raises what connecting does."""
        ...

    def opened(
        self,
        pipeline: Pipeline,
        options: ExtractOptions,
        /,
        *,
        tables: Callable[[], list[TableDefinition]],
        stop: Callable[[], bool],
    ) -> AbstractContextManager[SourceEngine]:
        """The engine, for as long as changes are extracted.

        In mode data+change the handover is made around it: entering waits until the position is
        captured, leaving until the bulk load does not need its snapshot any more, unless stop()
        says so. tables: those that the pipeline captures, read when called. Raises
        LogWithoutBulkLoad and the engine's refusals.
        """
        ...

    def has_begun(self, pipeline: Pipeline, /) -> bool:
        """Whether the log has a position, from where it goes on whatever else is asked for."""
        ...


def extraction_of(config: Config) -> Extraction:
    """The part of the engine that a pipeline's source URL names."""
    found: Extraction = part(config.source.url, "extraction")
    return found
