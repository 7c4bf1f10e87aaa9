"""The names of the package for type checkers; see `__init__.py`."""

from penstock.control.run.pipeline import Pipeline as Pipeline
from penstock.control.status.lake_view import lake as lake
from penstock.control.status.log_view import read_log as read_log
from penstock.log.changes import ABSENT as ABSENT
from penstock.log.changes import Change as Change
from penstock.log.changes import ChangeLog as ChangeLog
from penstock.model import PenstockError as PenstockError

__version__: str
__all__ = [
    "ABSENT",
    "Change",
    "ChangeLog",
    "PenstockError",
    "Pipeline",
    "__version__",
    "lake",
    "read_log",
]
