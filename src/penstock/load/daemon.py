"""The process from which Spark forks its Python workers: `spark.python.daemon.module`.

A stock worker spends up to a second per task reading jar and zip directories that are on its
`sys.path`, and each new worker imports Arrow and the drivers again. Here both happen once, before
the first fork; what was imported is taken out of the garbage collector's sight, because Spark's
worker loop collects after every task.

Imported by nothing: Spark runs it as `python -m penstock.load.daemon`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from penstock.ports.registry import engines

PRELOADED = (
    "numpy",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyspark.worker",
    "penstock.load.job",
    "penstock.load.chunk",
)


def prepare() -> None:
    """Clean `sys.path` and import what every task needs."""
    # Arrow's own allocator takes huge pages, and to touch those of a task's few rows first costs
    # more than the rows do: a fifth of a worker's time, and a third of its first task's.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    archives = (".jar", ".zip")
    # Where pyspark comes with Spark alone, it and py4j are in such archives, and stay.
    kept = tuple(one for name in ("pyspark", "py4j") for one in _places(name))
    gone = [one for one in sys.path if one.endswith(archives) and one not in kept]
    sys.path[:] = [entry for entry in sys.path if entry not in gone]
    for entry in [e for e in sys.path_importer_cache if e.endswith(archives) and e not in kept]:
        del sys.path_importer_cache[entry]
    for name in PRELOADED:
        importlib.import_module(name)
    for engine in engines():
        with suppress(ModuleNotFoundError):  # a driver that is not installed
            for name in engine.worker_modules:
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _places(name: str) -> list[str]:
    """The entries of `sys.path` that a package is imported from."""
    found = importlib.import_module(name)
    return [str(Path(place).parent) for place in found.__path__]


if __name__ == "__main__":
    prepare()
    importlib.import_module("pyspark.daemon").manager()
