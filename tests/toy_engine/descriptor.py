"""The engine's descriptor, which names its parts and imports none of them."""

from penstock.ports.registry import Descriptor

DESCRIPTOR = Descriptor(
    name="toy",
    shown="Toy",
    schemes={"toy": "postgresql"},  # toy:// URLs; values are of PostgreSQL's types
    begins=("starts at its present end", ""),
    example="toy:///folder/file.db",
    parts={
        # for source and target
        "options": "toy_engine.facts",
        "tables": "toy_engine.facts",
        "plan": "toy_engine.facts",
        "checks": "toy_engine.checks",
        "verify": "toy_engine.verify:VERIFIER",
        # as a source
        "extraction": "toy_engine.source",
        "lag": "toy_engine.source:ToyLag",
        "position": "toy_engine.store:ToyPosition",
        "positions": "toy_engine.source:ToyPositions",
        "planner": "toy_engine.bulk_source:ToyPlanner",
        "bulk_reader": "toy_engine.bulk_source",
        "read_plan": "toy_engine.bulk_source:read_plan",
        # as a target
        "loading": "toy_engine.target:LOADING",
        "bulk_target": "toy_engine.bulk_target:ToyBulk",
        "bulk_writer": "toy_engine.bulk_target:ToyWriter",
        "progress": "toy_engine.progress:ToyProgress",
        "target_state": "toy_engine.progress:ToyProgress",
    },
)
