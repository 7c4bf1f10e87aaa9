"""Process from which Spark forks its Python workers: `spark.python.daemon.module`.

A stock worker spends up to a second per task reading jar and zip directories that are on its
`sys.path`, and each new worker imports Arrow and the drivers again. Here both happen once, before
the first fork. pyspark is imported from its installation if there is one, because those modules are
compiled, and else from the archives of Spark. The imported objects are hidden from the garbage
collector, because Spark's worker loop collects after every task.

Nothing imports this module: Spark runs it as `python -m penstock.load.daemon`.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any
from zipimport import zipimporter

from penstock.ports.registry import engines

Worker = Callable[[socket.socket, bool], int]

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
    others = [entry for entry in sys.path if not entry.endswith((".jar", ".zip"))]
    is_installed = all(PathFinder.find_spec(name, others) for name in ("pyspark", "py4j"))
    useless = (".jar", ".zip") if is_installed else (".jar",)
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(useless)]
    for entry in [one for one in sys.path_importer_cache if one.endswith(useless)]:
        del sys.path_importer_cache[entry]
    # Spark's worker drops all caches of imports before each task, and then an archive reads its
    # directory again: 60 ms with pyspark's. Those that are left do not change while workers run.
    setattr(zipimporter, "invalidate_caches", lambda _archive: None)  # noqa: B010
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("pyarrow").array([0])  # the first one imports pandas, where it is
    for engine in engines():
        with suppress(ModuleNotFoundError):  # a driver that is not installed
            for name in engine.worker_modules:
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def acknowledging_at_once(worker: Worker) -> Worker:
    """Return the function that serves one task, with that task's bytes acknowledged at once.

    The JVM sends a task in several pieces, and its kernel holds each piece back until the previous
    one is acknowledged (Nagle's algorithm). The worker's kernel would delay that by 40 ms. Linux
    forgets the option once it has sent something, so it is set before each task. Source: tcp(7),
    TCP_QUICKACK.
    """

    def serve(sock: socket.socket, authenticated: bool) -> int:
        if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return worker(sock, authenticated)

    return serve


if __name__ == "__main__":
    prepare()
    spark: Any = importlib.import_module("pyspark.daemon")
    spark.worker = acknowledging_at_once(spark.worker)
    spark.manager()
