"""What a plan needs to know of a source."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.codec.types import Server
from penstock.model import TableDefinition

APPLICATION_NAME = "penstock plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source's server and its captured tables.

    left_out: the tables that a pattern takes in and that are not captured, each with its reason.
    problems: tables that are named and are not there, or cannot be captured.
    """

    server: Server
    tables: tuple[TableDefinition, ...]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
