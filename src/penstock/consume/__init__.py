"""Change log as Python: consumers at their own pace, each with its own saved state."""

from importlib import import_module
from typing import Any

from penstock.consume.api import (
    CdcCache,
    CdcConsumer,
    CdcLog,
    CdcMapping,
    CdcType,
    PlaceKeeper,
)
from penstock.consume.batches import BatchIterator, CdcBatch, batches_of
from penstock.consume.events import CdcEvent, EventIterator, events_of
from penstock.consume.pieces import Piece

__all__ = [
    "BatchIterator",
    "CdcBatch",
    "CdcCache",
    "CdcConsumer",
    "CdcEvent",
    "CdcLog",
    "CdcMapping",
    "CdcType",
    "EventIterator",
    "Piece",
    "PlaceKeeper",
    "batches_of",
    "events_of",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "run":  # uses the configuration, a package above this one, so it is loaded on demand
        return import_module("penstock.control.consumers.consumer_process").run
    raise AttributeError(f"module 'penstock.consume' has no attribute {name!r}")
