"""SQLite: the file for progress of a pipeline without a target. It is neither source nor target.

A URL of it in a pipeline file is refused, since it has no part `options`.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.sqlite"

DESCRIPTOR = Descriptor(
    name="sqlite",
    shown="SQLite",
    schemes={"sqlite": "sqlite"},
    begins=("cannot be a source", ""),
    parts={
        "progress": f"{_HERE}.progress:SQLiteProgress",
        "progress_url": f"{_HERE}.progress:progress_url",
        "target_state": f"{_HERE}.progress:SQLiteProgress",
    },
)
