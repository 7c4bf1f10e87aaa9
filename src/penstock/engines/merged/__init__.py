"""Several change logs as a source: the engine of a pipeline with [merge].

Its URLs are that of the first log's source with a prefix; only `[merge]` creates them, and a
pipeline file cannot name one. Not here: reading the logs and writing the merged one
(`penstock.merge`), since engines do not know the log.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.merged"

DESCRIPTOR = Descriptor(
    name="merged",
    shown="A merge of logs",
    # Types of the rows: those of the first log's source.
    schemes={f"merged-{types}": types for types in ("postgresql", "mysql", "mariadb")},
    begins=("begins where its logs begin", ""),
    has_same_types=True,
    has_schemas=True,
    parts={
        "checks": f"{_HERE}.checks",
        "extraction": "penstock.merge.extraction",
        "lag": "penstock.merge.lag:MergeLagReader",
        "plan": f"{_HERE}.tables",
        "position": f"{_HERE}.position:MergedPosition",
        "positions": f"{_HERE}.position:MergedPositions",
        "reset": "penstock.merge.extraction",
        "tables": f"{_HERE}.tables",
    },
)
