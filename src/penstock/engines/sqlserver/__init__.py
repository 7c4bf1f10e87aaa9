"""SQL Server: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.sqlserver"

DESCRIPTOR = Descriptor(
    name="sqlserver",
    shown="SQL Server",
    extra="sqlserver",
    libraries=("mssql_python",),
    schemes={"sqlserver": "sqlserver"},
    start_keys=frozenset({"startLsn"}),
    options={"changeExtractor": frozenset({"startLsn"})},
    begins=(
        "starts at a log sequence number",
        "name the place with startLsn",
    ),
    has_schemas=True,
    sends_heartbeats=False,
    example="sqlserver://user:${PASSWORD}@host:1433/database",
    parts={
        "bulk_reader": f"{_HERE}.reading.bulk_reader",
        "log_plan": f"{_HERE}.reading.read_plan:log_plan",
        "plan": f"{_HERE}.plan",
        "planner": f"{_HERE}.planner:make_planner",
        "read_plan": f"{_HERE}.reading.read_plan:read_plan",
        "relation_of": f"{_HERE}.reading.relations:relation_of",
        "schema_source": f"{_HERE}.reading.schema_description",
        "tables": f"{_HERE}.tables",
        "verify": f"{_HERE}.verify:VERIFIER",
        "bulk_target": f"{_HERE}.target.bulk:SQLServerBulk",
        "bulk_writer": f"{_HERE}.target.chunk:SQLServerWriter",
        "deferred_keys": f"{_HERE}.target.deferred_keys",
        "leftovers": f"{_HERE}.target.progress",
        "progress": f"{_HERE}.target.progress:connect_progress",
        "repair": f"{_HERE}.target.repair:SQLServerRepair",
        "schema_target": f"{_HERE}.target.schema_target",
        "target": f"{_HERE}.target.target_engine:SQLServerTargetEngine",
        "target_state": f"{_HERE}.target.progress:connect_progress",
        "type_rules": f"{_HERE}.target.type_rules:TYPE_RULES",
        "checks": f"{_HERE}.checks",
        "enabling": f"{_HERE}.enable",
        "extraction": f"{_HERE}.extraction",
        "lag": f"{_HERE}.lag:SQLServerLagReader",
        "options": f"{_HERE}.url",
        "position": "penstock.codec.sqlserver.lsn:SqlServerLsn",
        "positions": f"{_HERE}.positions:positions_of",
        "reach": f"{_HERE}.url:reach",
        "reset": f"{_HERE}.reset",
    },
)
