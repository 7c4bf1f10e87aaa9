"""Apache Iceberg as a target: tables that Spark, and readers without Spark, read as they are.

Everything that both lake formats share is in `engines/lake/`.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.iceberg"
_LAKE = "penstock.engines.lake"

DESCRIPTOR = Descriptor(
    name="iceberg",
    shown="Apache Iceberg",
    schemes={"iceberg": "iceberg"},
    options={
        "target": frozenset(
            (
                "batchSeconds",
                "apply",
                "fileMegabytes",
                "history",
                "formatVersion",
                "versionHours",
                "partition",
                "tagMinutes",
            )
        )
    },
    example="iceberg://CATALOG/NAMESPACE",
    parts={
        "options": f"{_LAKE}.options",
        "target_options": f"{_LAKE}.options",
        "tables": f"{_LAKE}.plan",
        "plan": f"{_LAKE}.plan",
        "plan_notes": f"{_LAKE}.plan:list_notes",
        "plan_problems": f"{_LAKE}.plan:list_problems",
        "checks": f"{_LAKE}.checks",
        "verify": f"{_HERE}.parts:VERIFIER",
        "versions": f"{_HERE}.versions:open_versions",
        "upkeep": f"{_HERE}.parts:UPKEEP",
        "table_facts": f"{_LAKE}.progress:read_table_facts",
        "repair": f"{_HERE}.parts:REPAIR",
        "demo_lake": f"{_HERE}.demo:DEMO_LAKE",
        "target": f"{_HERE}.parts:make_target",
        "leftovers": f"{_HERE}.parts:LEFTOVERS",
        "bulk_target": f"{_HERE}.bulk:open_bulk_target",
        "bulk_writer": f"{_LAKE}.bulk_writer:open_writer",
        "progress": f"{_LAKE}.progress:connect_progress",
        "target_state": f"{_LAKE}.progress:connect_progress",
        "spark": f"{_HERE}.spark:properties",
    },
)
