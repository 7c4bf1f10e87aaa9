"""Apache Ignite: a node's directory, read by consumers in place of a change log.

Not a source of change logs, and no target.
"""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.ignite"

DESCRIPTOR = Descriptor(
    name="ignite",
    shown="Apache Ignite",
    schemes={"ignite": "ignite"},
    begins=("is read where consumers' saved state is", "take it out"),
    example="ignite:///var/lib/ignite/work?consistentId=node-1",
    names_alone=True,
    parts={
        "options": f"{_HERE}.options",
        "direct": f"{_HERE}.directory:open_directory",
        "commands": f"{_HERE}.commands",
        "checks": f"{_HERE}.checks",
    },
)
