"""Several change logs as a source: what a pipeline with [merge] has in place of a server.

One of its URLs is that of the first log's source, with a word in front; `[merge]` makes them, and
no pipeline file can name one. Not here: reading the logs and writing the merged one
(`penstock.merge`), which an engine could not do: engines do not know the log.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.merged"

DESCRIPTOR = Descriptor(
    name="merged",
    shown="A merge of logs",
    # By whose types the rows have: those of the first log's source.
    schemes={f"merged-{types}": types for types in ("postgresql", "mysql", "mariadb")},
    begins=("begins where its logs begin", ""),
    has_same_types=True,
    has_schemas=True,
    parts={
        "checks": f"{_HERE}.checks",
        "extraction": "penstock.merge.extraction",
        "lag": "penstock.merge.lag:MergeLagReader",
        "plan": f"{_HERE}.plan",
        "position": f"{_HERE}.position:MergedPosition",
        "positions": f"{_HERE}.position:MergedPositions",
        "reset": "penstock.merge.reset",
        "tables": f"{_HERE}.tables",
    },
)
