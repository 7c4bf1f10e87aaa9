"""The names of the package for type checkers; see `__init__.py`."""

from penstock.consume.api import CdcCache as CdcCache
from penstock.consume.api import CdcConsumer as CdcConsumer
from penstock.consume.api import CdcLog as CdcLog
from penstock.consume.api import CdcMapping as CdcMapping
from penstock.consume.api import CdcType as CdcType
from penstock.consume.api import PlaceKeeper as PlaceKeeper
from penstock.consume.batches import BatchIterator as BatchIterator
from penstock.consume.batches import CdcBatch as CdcBatch
from penstock.consume.batches import batches_of as batches_of
from penstock.consume.events import CdcEvent as CdcEvent
from penstock.consume.events import EventIterator as EventIterator
from penstock.consume.events import events_of as events_of
from penstock.consume.pieces import Piece as Piece
from penstock.control.consumers.consumer_process import run as run

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
