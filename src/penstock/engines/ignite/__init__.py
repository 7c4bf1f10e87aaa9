"""Apache Ignite: a node's directory, as the source of a change log or read directly by a
consumer.

It cannot be a target.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.ignite"

DESCRIPTOR = Descriptor(
    name="ignite",
    shown="Apache Ignite",
    schemes={"ignite": "ignite"},
    begins=("begins where the node's saved state is, or with the first segment that is there", ""),
    options={"source": frozenset(("includeBackups", "timeZone"))},
    example="ignite:///var/lib/ignite/work?consistentId=node-1",
    names_alone=True,
    has_nodes=True,
    extra="ignite",
    libraries=("javaobj", "pyignite"),
    parts={
        "options": f"{_HERE}.url",
        "direct": f"{_HERE}.directory:open_directory",
        "commands": f"{_HERE}.commands",
        "checks": f"{_HERE}.checks",
        "tables": f"{_HERE}.tables",
        "plan": f"{_HERE}.tables",
        "extraction": f"{_HERE}.extraction",
        "lag": f"{_HERE}.lag:IgniteLag",
        "schema_source": f"{_HERE}.tables",
        "type_rules": f"{_HERE}.tables:TYPE_RULES",
        "planner": f"{_HERE}.planner:make_planner",
        "bulk_reader": f"{_HERE}.bulk_reader",
        "read_plan": f"{_HERE}.source.read_plan:read_plan",
        "log_plan": f"{_HERE}.source.read_plan:log_plan",
        "relation_of": f"{_HERE}.tables:relation_of",
        "position": f"{_HERE}.source.position:IgnitePosition",
        "positions": f"{_HERE}.source.position:IgnitePositions",
    },
)
