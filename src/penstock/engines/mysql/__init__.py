"""MySQL and MariaDB: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.mysql"

DESCRIPTOR = Descriptor(
    name="mysql",
    shown="MySQL or MariaDB",
    extra="mysql",
    libraries=("pymysql", "cryptography"),
    schemes={"mysql": "mysql", "mariadb": "mariadb"},
    options={
        "changeExtractor": frozenset({"binlogFile", "binlogPosition", "serverId"}),
        "changeLoader": frozenset({"applySessions"}),
    },
    start_keys=frozenset({"binlogFile", "binlogPosition"}),
    begins=(
        "starts at a place of its binlog",
        "name the place with binlogFile and binlogPosition",
    ),
    logs_computed=True,
    lends_snapshots=True,
    worker_modules=(f"{_HERE}.target.direct", f"{_HERE}.target.chunk"),
    example="mysql://user:${PASSWORD}@host:3306/database",
    parts={
        "changelog": f"{_HERE}.target.changelog:MySQLChangelogs",
        "changelog_source": f"{_HERE}.source.changelog_facts",
        "lag": f"{_HERE}.lag:MySQLLagReader",
        "options": f"{_HERE}.url",
        "reach": f"{_HERE}.url:reach",
        "checks": f"{_HERE}.checks",
        "extraction": f"{_HERE}.extraction",
        "plan": f"{_HERE}.plan",
        "planner": f"{_HERE}.planner:make_planner",
        "position": "penstock.codec.mysql.binlog_position:BinlogPosition",
        "positions": f"{_HERE}.positions:positions_of",
        "reset": f"{_HERE}.replica",
        "tables": f"{_HERE}.tables",
        "target_state": f"{_HERE}.target.progress:connect_progress",
        "target": f"{_HERE}.target.target_engine:MySQLTargetEngine",
        "verify": f"{_HERE}.verify:VERIFIER",
        "relation_of": f"{_HERE}.source.relations:relation_of_definition",
        "log_plan": f"{_HERE}.source.read_plan:log_plan",
        "read_plan": f"{_HERE}.source.read_plan:read_plan",
        "type_rules": f"{_HERE}.target.layout:TYPE_RULES",
        "schema_source": f"{_HERE}.source.schema_description",
        "schema_target": f"{_HERE}.target.shapes",
        "bulk_reader": f"{_HERE}.source.bulk_reader",
        "bulk_writer": f"{_HERE}.target.chunk:MySQLWriter",
        "bulk_target": f"{_HERE}.target.bulk:MySQLBulk",
        "deferred_keys": f"{_HERE}.target.deferred_keys",
        "row_apply": f"{_HERE}.target.row_apply:MySQLRowTarget",
        "progress": f"{_HERE}.target.progress:connect_progress",
        "repair": f"{_HERE}.target.repair:MySQLRepair",
        "leftovers": f"{_HERE}.target.progress",
    },
)
