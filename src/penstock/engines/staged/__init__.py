"""A staging database as a source: what changefeeds have staged becomes a change log.

One of its URLs names a target schema (`ports.stage_groups`). It cannot be named in a pipeline file,
since it has no part `options`: `penstock stage` makes its URLs. Not here: how mutations are staged
(an engine's part `staging`), and what becomes of the log.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.staged"

DESCRIPTOR = Descriptor(
    name="staged",
    shown="A staging database",
    # By whose types the rows have: those of the target.
    schemes={f"staged-{types}": types for types in ("postgresql", "mysql", "mariadb")},
    begins=("starts where its target is", ""),
    parts={
        "extraction": f"{_HERE}.extraction",
        "position": f"{_HERE}.position:HlcPosition",
        "positions": f"{_HERE}.position:HlcPositions",
    },
)
