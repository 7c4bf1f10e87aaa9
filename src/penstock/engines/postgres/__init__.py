"""PostgreSQL, 14 to 18: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.postgres"

DESCRIPTOR = Descriptor(
    name="postgres",
    shown="PostgreSQL",
    extra="postgres",
    schemes={"postgresql": "postgresql", "postgres": "postgresql"},
    options={"changeExtractor": frozenset({"replicationSlot", "publication", "keepMessages"})},
    begins=(
        "starts at the position of its replication slot",
        "name the slot with replicationSlot",
    ),
    example="postgresql://user:${PASSWORD}@host:5432/database",
    has_same_types=True,
    has_schemas=True,
    worker_modules=(f"{_HERE}.target.send", f"{_HERE}.target.chunk"),
    parts={
        "changelog": f"{_HERE}.target.changelog:PostgresChangelogs",
        "changelog_source": f"{_HERE}.source.changelog_facts",
        "lag": f"{_HERE}.lag:PostgresLagReader",
        "options": f"{_HERE}.options",
        "checks": f"{_HERE}.checks",
        "demo": f"{_HERE}.server.shop",
        "extraction": f"{_HERE}.extraction",
        "plan": f"{_HERE}.plan",
        "planner": f"{_HERE}.planner:make_planner",
        "position": "penstock.codec.postgres.lsn:Lsn",
        "positions": f"{_HERE}.positions:positions_of",
        "reset": f"{_HERE}.reset",
        "tables": f"{_HERE}.tables",
        "target_state": f"{_HERE}.target_state:PostgresStateReader",
        "target": f"{_HERE}.target.target_engine:PostgresTargetEngine",
        "verify": f"{_HERE}.verify.verifier:VERIFIER",
        "relation_of": f"{_HERE}.source.relations:relation_of",
        "log_plan": f"{_HERE}.source.read_plan:log_plan",
        "read_plan": f"{_HERE}.source.read_plan:read_plan",
        "type_rules": f"{_HERE}.type_rules:TYPE_RULES",
        "schema_source": f"{_HERE}.source.schema_description",
        "staging": f"{_HERE}.staging.database:PostgresStaging",
        "schema_target": f"{_HERE}.target.schema_rendering",
        "bulk_reader": f"{_HERE}.source.bulk_reader",
        "bulk_writer": f"{_HERE}.target.chunk:PostgresWriter",
        "bulk_target": f"{_HERE}.target.bulk:PostgresBulk",
        "deferred_keys": f"{_HERE}.target.deferred_keys",
        "row_apply": f"{_HERE}.target.row_apply:PostgresRowTarget",
        "progress": f"{_HERE}.target.progress_session:PostgresProgress",
        "repair": f"{_HERE}.target.repair:PostgresRepair",
        "leftovers": f"{_HERE}.target.leftovers",
    },
)
