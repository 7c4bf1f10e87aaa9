"""Modules that a loader into a lake imports, for the process from which lives are forked.

Importing it loads the parts of the engines. The process of a test has no need of that.
"""

from penstock.control.pipeline import table_requests
from penstock.control.run import load_process
from penstock.ports.registry import engines

NAMES = ("delta", "iceberg", "postgres")

for engine in engines():
    if engine.name in NAMES:
        for part in engine.parts:
            engine.part(part)

__all__ = ["NAMES", "load_process", "table_requests"]
