"""PostgreSQL, 14 to 18: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.postgres"

DESCRIPTOR = Descriptor(
    name="postgres",
    shown="PostgreSQL",
    schemes={"postgresql": "postgresql", "postgres": "postgresql"},
    options={"changeExtractor": frozenset({"replicationSlot", "publication", "keepMessages"})},
    begins=(
        "starts where its replication slot stands",
        "name the slot with replicationSlot",
    ),
    example="postgresql://user:${PASSWORD}@host:5432/database",
    parts={
        "options": f"{_HERE}.options",
        "extraction": f"{_HERE}.extraction",
        "planner": f"{_HERE}.planner:make_planner",
        "target": f"{_HERE}.target.engine",
    },
)
