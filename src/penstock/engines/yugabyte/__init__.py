"""YugabyteDB as a source: PostgreSQL's engine in a dialect of its logical replication.

A slot there is a separate stream: LSNs count its records (SEQUENCE) or are commit times
(HYBRID_TIME), so nothing is computed with them; a snapshot is a time (`yb_read_time`); the server
does not lock out a second consumer. Everything else is as in PostgreSQL.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.yugabyte"
_POSTGRES = "penstock.engines.postgres"

DESCRIPTOR = Descriptor(
    name="yugabyte",
    shown="YugabyteDB",
    extra="postgres",
    libraries=("psycopg",),
    schemes={"yugabytedb": "postgresql"},
    options={"changeExtractor": frozenset({"replicationSlot", "publication"})},
    begins=(
        "starts at the position of its replication slot",
        "name the slot with replicationSlot",
    ),
    example="yugabytedb://user:${PASSWORD}@host:5433/database",
    has_same_types=True,
    has_schemas=True,
    has_table_requests=False,
    sends_heartbeats=False,
    has_later_points=False,
    parts={
        "lag": f"{_HERE}.lag:YugabyteLagReader",
        "options": f"{_HERE}.options",
        "reach": f"{_HERE}.reach:reach",
        "checks": f"{_HERE}.checks",
        "extraction": f"{_HERE}.extraction",
        "plan": f"{_HERE}.tables",
        "planner": f"{_HERE}.planner:make_planner",
        "position": "penstock.codec.postgres.lsn:Lsn",
        "positions": f"{_POSTGRES}.positions:positions_of",
        "reset": f"{_HERE}.reset",
        "free_names": f"{_HERE}.slots:choose_names",
        "tables": f"{_HERE}.tables",
        "read_plan": f"{_POSTGRES}.source.read_plan:read_plan",
        "log_plan": f"{_POSTGRES}.source.read_plan:log_plan",
        "relation_of": f"{_POSTGRES}.source.relations:relation_of",
        "type_rules": f"{_POSTGRES}.type_rules:TYPE_RULES",
        "bulk_reader": f"{_HERE}.bulk_reader",
    },
)
