"""Oracle: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.oracle"

DESCRIPTOR = Descriptor(
    name="oracle",
    shown="Oracle",
    extra="oracle",
    libraries=("oracledb",),
    schemes={"oracle": "oracle"},
    start_keys=frozenset({"startScn"}),
    options={
        "changeExtractor": frozenset({"startScn", "transactionRowsMax", "transactionHoursMax"}),
        "target": frozenset({"directPath"}),
    },
    begins=(
        "starts at a system change number",
        "name the place with startScn",
    ),
    has_schemas=True,
    sends_heartbeats=False,
    example="oracle://c%23%23penstock:${PASSWORD}@host:1521/service?pdb=NAME",
    parts={
        "bulk_reader": f"{_HERE}.reading.bulk_reader",
        "checks": f"{_HERE}.checks",
        "enabling": f"{_HERE}.enable",
        "extraction": f"{_HERE}.extraction",
        "lag": f"{_HERE}.lag:OracleLagReader",
        "log_plan": f"{_HERE}.reading.read_plan:log_plan",
        "options": f"{_HERE}.url",
        "plan": f"{_HERE}.plan",
        "planner": f"{_HERE}.planner:make_planner",
        "position": "penstock.codec.oracle.scn:OraclePosition",
        "positions": f"{_HERE}.positions:positions_of",
        "reach": f"{_HERE}.url:reach",
        "read_plan": f"{_HERE}.reading.read_plan:read_plan",
        "relation_of": f"{_HERE}.reading.relations:relation_of",
        "reset": f"{_HERE}.reset",
        "schema_source": f"{_HERE}.reading.schema_description",
        "tables": f"{_HERE}.tables",
        "bulk_target": f"{_HERE}.target.bulk:OracleBulk",
        "bulk_writer": f"{_HERE}.target.chunk:OracleWriter",
        "deferred_keys": f"{_HERE}.target.deferred_keys",
        "repair": f"{_HERE}.target.repair:OracleRepair",
        "verify": f"{_HERE}.verify:VERIFIER",
        "schema_target": f"{_HERE}.target.schema_target",
        "leftovers": f"{_HERE}.target.progress",
        "progress": f"{_HERE}.target.progress:connect_progress",
        "target": f"{_HERE}.target.target_engine:OracleTargetEngine",
        "target_options": f"{_HERE}.url",
        "target_state": f"{_HERE}.target.progress:connect_progress",
        "type_rules": f"{_HERE}.target.type_rules:TYPE_RULES",
    },
)
