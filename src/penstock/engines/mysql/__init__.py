"""MySQL and MariaDB: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.mysql"

DESCRIPTOR = Descriptor(
    name="mysql",
    shown="MySQL or MariaDB",
    schemes={"mysql": "mysql", "mariadb": "mariadb"},
    options={"changeExtractor": frozenset({"binlogFile", "binlogPosition", "serverId"})},
    begins=(
        "starts at a place of its binlog",
        "name the place with binlogFile and binlogPosition",
    ),
    example="mysql://user:${PASSWORD}@host:3306/database",
    parts={
        "options": f"{_HERE}.options",
        "extraction": f"{_HERE}.extraction",
        "planner": f"{_HERE}.planner:make_planner",
        "target": f"{_HERE}.target.engine",
        "server": f"{_HERE}.server.embedded:EmbeddedMySQL",
    },
)
