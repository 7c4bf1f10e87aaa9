"""Staging database as a source: staged changefeeds become a change log.

A URL of it names a target schema (`ports.feeds`). A pipeline file cannot name one, since the
engine has no part `options`: `penstock stage` creates the URLs. Not here: staging mutations (an
engine's part `staging`), and the use of the log.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.feeds"

DESCRIPTOR = Descriptor(
    name="feeds",
    shown="A staging database",
    # By whose types the rows have: those of the target.
    schemes={f"staged-{types}": types for types in ("postgresql", "mysql", "mariadb")},
    begins=("starts where its target is", ""),
    parts={
        "extraction": f"{_HERE}.extraction",
        "position": f"{_HERE}.extraction:HlcPosition",
        "positions": f"{_HERE}.extraction:HlcPositions",
    },
)
