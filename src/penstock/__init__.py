"""penstock: change data capture for people who live in Python and Spark.

`Pipeline` runs a pipeline and compares its two sides; `read_log` reads its change log; `lake` reads
its target in Delta Lake or Iceberg, all tables at one commit of the source; `ABSENT` is a column
that the source did not send.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
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

# Where each name is: loaded when it is asked for, so that `import penstock` costs nothing. Types
# are in `__init__.pyi`: an import here would make every package seem to import all others.
_PLACES = {
    "ABSENT": "penstock.log.changes",
    "Change": "penstock.log.changes",
    "ChangeLog": "penstock.log.changes",
    "PenstockError": "penstock.model",
    "Pipeline": "penstock.control.run.pipeline",
    "lake": "penstock.control.status.lake_view",
    "read_log": "penstock.control.status.log_view",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
